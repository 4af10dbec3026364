"""The network at inference: the bits of `SiT.forward` on the doubled batch, with less work."""

from dataclasses import replace

import pytest
import torch

from meancap import CFG, Cap, Interval, noise, sample, uniform
from meancap.models import fashion, sit
from meancap.models.classes import ClassModel
from meancap.models.sit import Predictor, SiTConfig, pieces
from small_sit import pixels, random_sit

WIDE = SiTConfig(size=16, channels=3, patch=2, width=32, depth=3, heads=4, classes=7, learn_sigma=True)


def plain(network, x, t, labels):
    """Both velocities by two calls of the module, as one writes it down."""
    x, now, y = x.to(network.x_embedder.proj.weight.dtype), torch.full((len(x),), t), torch.tensor(labels)
    with torch.no_grad():
        return [network(x, now, c).float() for c in (y, torch.full_like(y, network.config.classes))]


def batch(network, count, seed=0):
    c, g = network.config, torch.Generator().manual_seed(seed)
    x = torch.randn(count, c.channels, c.size, c.size, generator=g)
    return x, torch.randint(c.classes, (count,), generator=g).tolist()


def both(predictor, x, t):
    p = predictor(x, t)
    return p.m_c, p.m_u


@pytest.mark.parametrize(
    ("count", "threads"), [(1, 1), (2, 1), (3, 1), (31, 1), (1, 2), (3, 2), (5, 2), (7, 2)]
)
def test_the_shipped_network_keeps_every_bit(count, threads):
    torch.set_num_threads(threads)
    network = fashion().network
    x, labels = batch(network, count)
    v_c, v_u = plain(network, x, 0.3, labels)
    found = Predictor(network, labels).velocities(x, 0.3, 2)
    assert torch.equal(found, torch.cat([v_c, v_u]))
    assert torch.equal(Predictor(network, labels).velocities(x, 0.3, 1), v_c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_other_shapes_and_precisions_keep_every_bit(dtype, monkeypatch):
    monkeypatch.setattr(sit, "_ROWS", 300)  # 64 tokens: pieces of 3 and 4 samples
    network = random_sit(WIDE).to(dtype)
    x, labels = batch(network, 7)
    assert len(pieces(14, 64, x.device)) == 4
    assert torch.equal(
        Predictor(network, labels).velocities(x, 0.7, 2), torch.cat(plain(network, x, 0.7, labels))
    )


def test_kept_conditions_are_used_and_change_no_bit():
    network, kept = random_sit(WIDE), {}
    x, labels = batch(network, 5)
    expected = both(Predictor(network, labels), x, 0.4)
    assert all(map(torch.equal, both(Predictor(network, labels, kept=kept), x, 0.4), expected))
    with torch.no_grad():
        network.t_embedder.mlp[0].weight.zero_()
    again = Predictor(network, labels, kept=kept)
    assert all(map(torch.equal, both(again, x, 0.4), expected))
    assert not torch.equal(again(x, 0.5).m_c, expected[0]) and len(kept) == 2
    assert not torch.equal(Predictor(network, labels)(x, 0.4).m_c, expected[0])
    other = [(label + 1) % 7 for label in labels]
    assert not torch.equal(Predictor(network, other, kept=kept)(x, 0.4).m_c, expected[0])


def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    network, kept = random_sit(WIDE), {}
    x, labels = batch(network, 2)
    predict = Predictor(network, labels, kept=kept)
    predict(x, 0.1)
    size = sum(v.nbytes for part in next(iter(kept.values())) for v in part)
    monkeypatch.setattr(sit, "_KEEP", 3 * size)
    for i in range(2, 9):
        predict(x, i / 10)
    assert len(kept) == 3


@pytest.mark.parametrize("samples", [0, 1, 2, 25, 26, 99, 100])
def test_pieces_are_alike_and_whole(samples):
    found = pieces(samples, 49, torch.device("cpu"))
    assert [i for piece in found for i in range(samples)[piece]] == list(range(samples))
    sizes = [len(range(samples)[piece]) for piece in found]
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= 25
    assert pieces(samples, 49, torch.device("meta")) == [slice(0, samples)]


def test_one_label_for_each_sample():
    network = random_sit(WIDE)
    x, labels = batch(network, 4)
    for predict in (Predictor(network, labels[:2]), Predictor(network, labels[:2]).conditional):
        with pytest.raises(ValueError, match="4 samples for 2 conditions"):
            predict(x, 0.5)


def test_unguided_channels_keep_the_conditional_prediction_and_idle_steps_are_skipped():
    network = random_sit(WIDE)
    model = ClassModel("small", "", network, pixels().pictures)
    x, labels = batch(network, 4)
    p = replace(model, channels=2).predict(labels)(x, 0.5)
    assert torch.equal(p.m_u[:, 2:], p.m_c[:, 2:]) and torch.equal(
        p.m_u[:, :2], model.predict(labels)(x, 0.5).m_u[:, :2]
    )
    rule, rows = CFG(3) | Interval(0.4, 0.8) | Cap(1.1), []
    handle = network.final_layer.linear.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    end = sample(model.predict(labels), rule, noise(range(4), model.shape), uniform(10))
    handle.remove()
    assert rows == [4] * 4 + [8] * 5 + [4]
    assert torch.equal(
        end, sample(model.predict(labels).__call__, rule, noise(range(4), model.shape), uniform(10))
    )
