"""Hosts that hard-code u + s (c - u): the wrapped network makes them compute the rule's result."""

import importlib.util
from itertools import pairwise

import pytest
import torch
from torch import nn

from absent import stand_ins
from meancap import CFG, Cap, Prediction, guide, parse, sample
from meancap.adapters.substitute import substituted

INF = float("inf")
FORMS = [(0, "u + s (c - u)"), (1, "c + s (c - u)")]


class Network(nn.Module):
    """A velocity field that looks at its condition; the unconditional half sees zeros."""

    def __init__(self, size=12):
        super().__init__()
        self.one, self.two = nn.Linear(size + 2, 24), nn.Linear(24, size)

    def forward(self, x, t, label=None):
        label = torch.zeros(len(x), 1) if label is None else label
        t = torch.as_tensor(t, dtype=x.dtype).reshape(-1, 1).expand(len(x), 1)
        return self.two(torch.tanh(self.one(torch.cat([x, t, label], dim=1))))


def host(network, x, label, scale, offset, calls, order):
    """Euler with guidance written into the loop, as many hosts have it."""
    for i in range(5):
        t = torch.tensor(i / 5, dtype=torch.float64)
        both = {"c": label, "u": torch.zeros_like(label)}
        x = x + host_step(network, x, t, both, calls, order, scale, offset) / 5
    return x


def host_step(network, x, t, both, calls, order, scale, offset):
    if calls == "together":
        halves = network(torch.cat([x, x]), t, torch.cat([both[k] for k in order])).chunk(2)
    else:
        halves = tuple(network(x, t, both[k]) for k in order)
    c, u = halves if order == "cu" else halves[::-1]
    return c + scale * (c - u) if offset else u + scale * (c - u)


def ours(network, x, label, rule):
    def predict(x, t):
        c, u = (
            network(x, torch.tensor(t, dtype=torch.float64), one) for one in (label, torch.zeros_like(label))
        )
        return Prediction.from_velocity(x, t, c, u)

    return sample(predict, rule, x, [i / 5 for i in range(6)])


def drawn(size=12):
    torch.manual_seed(0)
    network = Network(size).double().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(0, 0.7)
    return network, torch.randn(3, size).double(), torch.tensor([[2.0], [-1.0], [3.0]]).double()


@pytest.mark.parametrize("order", ["cu", "uc"])
@pytest.mark.parametrize("calls", ["together", "apart"])
@pytest.mark.parametrize(("offset", "formula"), FORMS)
@pytest.mark.parametrize("rule", ["Cap(1.05)", "CapDisplacement(1.02)", "apg(4)", "CFG(3) | Rescale(0.5)"])
def test_the_host_computes_what_the_core_samples(rule, offset, formula, calls, order):
    network, x, label = drawn()
    chain = parse(rule)
    expected = ours(network, x, label, CFG(6.0 + offset) | chain if chain.caps else chain)
    with substituted(network, rule, scale=6.0, offset=offset, calls=calls, order=order) as record:
        found = host(network, x, label, 6.0, offset, calls, order)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert len(record) == 5 and (not chain.caps or record.stacked()["active"].any())


@pytest.mark.parametrize("calls", ["together", "apart"])
def test_what_is_not_capped_keeps_the_hosts_own_bits_and_nothing_stays(calls):
    network, x, label = drawn()
    native = host(network, x, label, 6.0, 0, calls, "cu")
    with substituted(network, Cap(INF), scale=6.0, calls=calls) as record:
        assert torch.equal(host(network, x, label, 6.0, 0, calls, "cu"), native)
        assert torch.equal(host(network, x, label, 6.0, 0, calls, "cu"), native)
    assert len(record) == 5, "a new run begins where time goes back"
    assert "forward" not in network.__dict__
    assert torch.equal(host(network, x, label, 6.0, 0, calls, "cu"), native)


def test_noise_at_one_is_the_same_turned_round():
    network, x, label = drawn()
    t = torch.tensor(0.3, dtype=torch.float64)
    c, u = (network(x, t, one) for one in (label, torch.zeros_like(label)))
    expected, _ = guide(CFG(6) | Cap(1.05), Prediction.from_mean(x, 0.7, x - 0.3 * c, x - 0.3 * u))
    with substituted(network, Cap(1.05), scale=6.0, noise_at=1):
        both = torch.cat([label, torch.zeros_like(label)])
        one, two = network(torch.cat([x, x]), t, both).chunk(2)
    torch.testing.assert_close(x - 0.3 * (two + 6.0 * (one - two)), expected, rtol=1e-12, atol=1e-12)


def interval(network, x, label, calls, order, on):
    """Euler that guides only in some steps, and makes the conditional prediction alone in the others."""
    for i in range(6):
        t, none = torch.tensor(i / 6, dtype=torch.float64), torch.zeros_like(label)
        if i not in on:
            x = x + network(x, t, label) / 6
            continue
        x = host_step(network, x, t, {"c": label, "u": none}, calls, order, 6.0, 0) / 6 + x
    return x


@pytest.mark.parametrize("order", ["cu", "uc"])
@pytest.mark.parametrize("calls", ["together", "apart"])
@pytest.mark.parametrize("on", [{1, 2, 3}, {0, 1}, {5}, {0, 2, 4}])
def test_steps_without_guidance_pass_and_shift_no_pair(on, calls, order):
    """Interval guidance: a lone call is no half of a pair, whichever calls come after it."""
    network, x, label = drawn()
    x, label = x[:2], label[:2]  # an even batch, whose halves are not two predictions
    expected = x
    for i in range(6):
        t, none = torch.tensor(i / 6, dtype=torch.float64), torch.zeros_like(label)
        c, u = network(expected, t, label), network(expected, t, none)
        p = Prediction.from_velocity(expected, i / 6, c, u)
        m, _ = guide(CFG(6.0) | Cap(1.05) if i in on else CFG(1.0), p)
        expected = expected + (m - expected) / (1 - i / 6) / 6
    with substituted(network, Cap(1.05), scale=6.0, calls=calls, order=order) as record:
        for _ in range(2):
            found = interval(network, x, label, calls, order, on)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert len(record) == len(on) and record.unguided == 6 - len(on)
    assert float(record.stacked()["ratio"].max()) <= 1.05 * (1 + 1e-9)
    assert f"{6 - len(on)} more steps were not guided" in record.summary()


def test_a_run_broken_between_two_calls_shifts_no_later_pair():
    network, x, label = drawn()
    expected = ours(network, x, label, CFG(6.0) | Cap(1.05))
    with substituted(network, Cap(1.05), scale=6.0, calls="apart") as record:
        network(x, torch.tensor(0.4, dtype=torch.float64), label)  # and then it stops
        found = host(network, x, label, 6.0, 0, "apart", "cu")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert len(record) == 5


@pytest.mark.parametrize("calls", ["together", "apart"])
def test_a_host_that_makes_no_pair_is_said_to_be_unguided(calls):
    network, x, label = drawn()
    told = pytest.warns(UserWarning, match="nothing was guided: no ")
    with told, substituted(network, Cap(1.05), scale=6.0, calls=calls) as record:
        network(x, torch.tensor(0.4, dtype=torch.float64), label)
    assert record.unguided == 1 and record.rows() == []


@pytest.mark.parametrize(("method", "stages"), [("euler", 1), ("heun2", 2), ("rk4", 4), ("midpoint", 2)])
def test_a_time_that_a_solver_repeats_begins_no_run(method, stages):
    """The record is of all evaluations, and an anchor at the first mean stays where it was."""
    network, x, label = drawn()

    def guided(x, t, label, scale):
        """Two calls, as the image example of flow_matching makes them."""
        return (1 + scale) * network(x, t, label) - scale * network(x, t)

    solver = pytest.importorskip("flow_matching.solver").ODESolver(velocity_model=guided)
    options = {"step_size": 0.25, "method": method, "label": label, "scale": 5.0}
    native = solver.sample(x_init=x, **options)
    with substituted(network, Cap(INF), scale=5.0, offset=1, calls="apart") as record:
        for _ in range(2):
            assert torch.equal(solver.sample(x_init=x, **options), native)
    assert len(record) == 4 * stages
    options["label"], x = label[:1], x[:1]
    first = x + network(x, torch.zeros(1, dtype=torch.float64))  # m_u at t = 0
    found = []
    for rule in (Cap(1.02, anchor="first"), Cap(1.02, anchor=first[0])):
        with substituted(network, rule, scale=5.0, offset=1, calls="apart") as record:
            found.append(solver.sample(x_init=x, **options))
        assert len(record) == 4 * stages and record.stacked()["active"].any()
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


class Decoder(nn.Module):
    """The arguments of the decoders in Chatterbox and CosyVoice; the last of VoxCPM's have other names."""

    def __init__(self):
        super().__init__()
        self.network = Network(24).requires_grad_(False)
        for parameter in self.network.parameters():
            parameter.normal_(0, 0.7)

    def forward(self, x, mask, mu, t, spks=None):
        return self.network(x.flatten(1), t, mu).reshape(x.shape) * mask


def speech(network, x, mu, scale, how):
    """Euler as in three speech models, with the doubled batch in buffers that are used again."""
    rows, noise_at = len(x), int(how == "voxcpm")
    both, times = torch.zeros(2 * rows, *x.shape[1:]).to(x), torch.zeros(2 * rows).to(x)
    given = torch.cat([mu, torch.zeros_like(mu)])
    grid = torch.linspace(noise_at, 1 - noise_at, 7).to(x)
    states = [x]
    for t, r in pairwise(grid):
        both[:rows], both[rows:], times[:] = x, x, t
        if how == "chatterbox":
            out = network.forward(
                x=both, mask=torch.ones(2 * rows, 1, x.shape[2]), mu=given, t=times, spks=None
            )
        else:
            out = network(both, torch.ones(2 * rows, 1, x.shape[2]), given, times)
        c, u = out.chunk(2)
        x = x + (r - t) * (zero_star(c, u, scale) if noise_at else (1 + scale) * c - scale * u)
        states.append(x)
    return states


def zero_star(c, u, scale):
    s = (c * u).sum((1, 2), keepdim=True) / ((u * u).sum((1, 2), keepdim=True) + 1e-8)
    return u * s + scale * (c - u * s)


def largest_ratio(network, states, mu, noise_at):
    """|m| / |m_c| of every step that was made, from the states alone."""
    grid, worst = torch.linspace(noise_at, 1 - noise_at, 7), []
    for t, r, x, after in zip(grid, grid[1:], states, states[1:], strict=False):
        c = network(x, torch.ones(len(x), 1, 1), mu, t.expand(len(x)))
        k = (1 - t) if noise_at == 0 else -t
        m, m_c = (x + k * v for v in ((after - x) / (r - t), c))
        worst.append(m.flatten(1).norm(dim=1) / m_c.flatten(1).norm(dim=1))
    return float(torch.stack(worst).max())


def spoken(rows=16):
    torch.manual_seed(1)
    return Decoder(), torch.randn(rows, 4, 6), torch.randn(rows, 1)


HOSTS = {
    "chatterbox": {"scale": 2.0, "offset": 1},  # calls network.forward, by names
    "cosyvoice": {"scale": 2.0, "offset": 1},  # the time is the fourth argument, after a mask
    "voxcpm": {"formula": lambda c, u: zero_star(c, u, 2.0), "noise_at": 1},
}


@pytest.mark.parametrize("how", HOSTS)
def test_speech_models_are_capped_in_their_own_loops(how):
    network, x, mu = spoken()
    native = speech(network, x, mu, 2.0, how)
    with substituted(network, Cap(INF), **HOSTS[how]) as record:
        assert all(map(torch.equal, speech(network, x, mu, 2.0, how), native))
    assert len(record) == 6 and float(record.stacked()["ratio"].max()) > 1.1
    with substituted(network, Cap(1.02), **HOSTS[how]) as record:
        states = speech(network, x, mu, 2.0, how)
    noise_at = int(how == "voxcpm")
    assert record.stacked()["active"].any() and not record.remark
    assert largest_ratio(network, states, mu, noise_at) <= 1.02 * (1 + 1e-4)
    assert largest_ratio(network, native, mu, noise_at) > 1.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("voxcpm", {"scale": 2.0, "noise_at": 1}),  # another formula
        ("cosyvoice", {"scale": 2.0}),  # another offset
        ("cosyvoice", {"scale": 2.0, "offset": 1, "order": "uc"}),
    ],
)
def test_a_host_that_goes_elsewhere_is_reported(how, said, dtype):
    network, x, mu = spoken()
    told = pytest.warns(UserWarning, match="not where its formula leads")
    with told as warned, substituted(network.to(dtype), Cap(INF), **said) as record:
        speech(network, x.to(dtype), mu.to(dtype), 2.0, how)
    assert len(warned) == 1 and record.summary().endswith("the host did not follow these numbers")


def test_what_was_not_seen_or_not_understood_is_said():
    network, x, mu = spoken()
    with pytest.warns(UserWarning, match="the network was not called"), substituted(network, Cap(2), scale=2):
        pass
    mask = substituted(network, Cap(2), scale=2, state=lambda args, kwargs: args[:2])
    with (
        pytest.raises(ValueError, match=r"one for each of the 32 rows.*got a tensor of shape \(32, 1, 6\)"),
        mask,
    ):
        speech(network, x, mu, 2.0, "cosyvoice")
    linear = nn.Linear(6, 6)
    unnamed = substituted(linear, Cap(2), scale=2)
    with pytest.raises(TypeError, match=r"arguments \(input\) have none of the names t"), unnamed:
        linear(x)
    for wrong in ({}, {"scale": 2.0, "formula": zero_star}, {"formula": zero_star, "calls": "apart"}):
        with pytest.raises(ValueError, match="scale, or its formula"), substituted(network, Cap(2), **wrong):
            pass
    with pytest.raises(TypeError, match="must be a torch module"), substituted(speech, Cap(2), scale=2.0):
        pass


def test_a_network_is_substituted_once():
    network = spoken()[0]
    outer, inner = (substituted(network, rule, scale=2.0) for rule in ("Cap(1.1)", "CFG(9)"))
    with pytest.raises(ValueError, match="wrapped already"), outer, inner:
        pass
    assert "forward" not in network.__dict__


# What F5-TTS imports beside its model: audio input, training, Chinese text.
UNUSED = ("torchaudio", "librosa", "rjieba", "pypinyin", "ema_pytorch", "wandb", "vocos", "jieba", "datasets")


@pytest.mark.filterwarnings("ignore")
def test_f5_tts_is_guided_in_its_own_sampler():
    if importlib.util.find_spec("f5_tts") is None:
        pytest.skip(
            "not run: pip install --no-deps f5-tts x-transformers einops einx torch-einops-utils loguru"
        )
    with stand_ins(*UNUSED):
        from f5_tts.model.backbones.dit import DiT
        from f5_tts.model.cfm import CFM

    torch.manual_seed(0)
    network = DiT(
        dim=32, depth=1, heads=2, dim_head=16, ff_mult=2, mel_dim=8, text_num_embeds=20, text_dim=16
    )
    for parameter in network.parameters():
        parameter.requires_grad_(False).normal_(0, 0.2)
    spectrogram = nn.Identity()  # the reference is given as a spectrogram already
    spectrogram.n_mel_channels = 8
    model = CFM(network, mel_spec_module=spectrogram).eval()
    spoken = {
        "cond": torch.randn(1, 6, 8), "text": torch.randint(0, 20, (1, 7)), "duration": 16, "steps": 6,
        "cfg_strength": 4.0, "seed": 3,
    }  # fmt: skip
    native = model.sample(**spoken)[0]
    with substituted(model.transformer, Cap(INF), scale=4.0, offset=1) as record:
        assert torch.equal(model.sample(**spoken)[0], native)
    asked = record.stacked()["asked"]
    torch.testing.assert_close(asked, torch.full_like(asked, 5.0), rtol=1e-4, atol=0)
    gamma = float(record.stacked()["ratio"].max()) ** 0.5
    assert gamma > 1.001
    heard = []
    with substituted(model.transformer, Cap(gamma), scale=4.0, offset=1) as record:
        # The network's own output, before it is substituted.
        handle = model.transformer.proj_out.register_forward_hook(lambda *call: heard.append(call[-1]))
        found, trajectory = model.sample(**spoken)
        handle.remove()
    assert not torch.equal(found, native) and record.stacked()["active"].any()
    times = [*record.stacked()["t"][:, 0].tolist(), 1.0]
    assert len(heard) == len(trajectory) - 1 == 6
    for x, after, out, t, r in zip(trajectory, trajectory[1:], heard, times, times[1:], strict=False):
        c, v = out.double().chunk(2)[0], (after - x).double() / (r - t)
        ratio = (x + (1 - t) * v).norm() / (x + (1 - t) * c).norm()
        assert float(ratio) <= gamma * (1 + 1e-4) and not torch.equal(x, after)
