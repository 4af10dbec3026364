"""The network at inference: the doubled batch has the bits of two calls of `SiT.forward`."""

from dataclasses import replace

import pytest
import torch

from meancap import CFG, Cap, Interval, noise, sample, uniform
from meancap_lab.models import fashion, sit
from meancap_lab.models.classes import ClassModel
from meancap_lab.models.sit import NetworkPredictor, SiTConfig, pieces
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


def predictor(network, labels):
    return NetworkPredictor(network, torch.tensor(labels), network.config.classes)


@pytest.mark.parametrize(
    ("count", "threads"), [(1, 1), (2, 1), (3, 1), (31, 1), (1, 2), (3, 2), (5, 2), (7, 2)]
)
def test_the_shipped_network_keeps_every_bit(count, threads):
    torch.set_num_threads(threads)
    network = fashion().network
    x, labels = batch(network, count)
    v_c, v_u = plain(network, x, 0.3, labels)
    found = predictor(network, labels).velocities(x, 0.3, 2)
    assert torch.equal(found, torch.cat([v_c, v_u]))
    assert torch.equal(predictor(network, labels).velocities(x, 0.3, 1), v_c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_pieces_have_the_bits_of_plain_calls_of_them(dtype, monkeypatch):
    monkeypatch.setattr(sit, "_ROWS", 300)  # 64 tokens: pieces of 3 and 4 samples
    network = random_sit(WIDE).to(dtype)
    x, labels = batch(network, 7)
    cuts = pieces(7, network.piece)
    assert len(cuts) == 2
    parts = [plain(network, x[p], 0.7, labels[p]) for p in cuts]
    due = torch.cat([part[side] for side in (0, 1) for part in parts])
    found = predictor(network, labels).velocities(x, 0.7, 2)
    assert torch.equal(found, due)
    whole = torch.cat(plain(network, x, 0.7, labels))
    torch.testing.assert_close(found, whole, rtol=0, atol=64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("samples", [0, 1, 2, 25, 26, 99, 100])
def test_pieces_are_alike_and_whole(samples):
    found = pieces(samples, 25)
    assert [i for piece in found for i in range(samples)[piece]] == list(range(samples))
    sizes = [len(range(samples)[piece]) for piece in found]
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= 25


def test_one_label_for_each_sample():
    network = random_sit(WIDE)
    x, labels = batch(network, 4)
    for predict in (predictor(network, labels[:2]), predictor(network, labels[:2]).conditional):
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
    assert rows == [4] * 4 + [4, 4] * 5 + [4]
    assert torch.equal(
        end, sample(model.predict(labels).__call__, rule, noise(range(4), model.shape), uniform(10))
    )
