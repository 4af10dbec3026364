"""The outputs of the model under test: the exact means of a case with the errors of its kind.

    on the ray   eta and leak: some scale leads from the two means to the true one at each state
    rough        a smooth random field in each velocity, which a scale multiplies
    smeared      both densities too wide, the unconditional one twice as much: limited capacity
    network      a small MLP of (x, t, label), trained on data whose labels may leak

Components have their widths along the coordinates, so that all logits are two matrix products of (x^2, x) and
many settings of a rule cost one call. Tests compare the means with `meancap_lab.mixtures`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meancap.files import write_whole
from meancap.prediction import Prediction
from meancap.sampling import Predict

from .cases import Case, truth, widths

WAVES = 24
TRAINING, DROPPED = 2000, 0.3  # steps of a network, and the share of labels that it is not shown
_WIDTH, _BATCH, _RATE = 96, 256, 2e-3


class Law:
    """The two sides of a condition, components in it and others; widths may be taken too large."""

    def __init__(self, case: Case, smear: float = 0.0) -> None:
        weights, self.means, variances = widths(case)
        self.log_weights, self.variances, self.members = (
            weights.log(),
            variances * (1 + smear) ** 2,
            case.members,
        )
        self._kept: dict[tuple[float, torch.dtype], list[Tensor]] = {}

    def sides(self, x: Tensor, t: float) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior means given the condition and given its complement, (n, d), and the log odds, (n, 1)."""
        constant, slopes, towards = self._at(t, x.dtype)
        logits = torch.addmm(constant, torch.cat([x * x, x], 1), slopes)
        found, masses, k = [], [], self.members
        for part, fields in ((logits[:, :k], towards[:k]), (logits[:, k:], towards[k:])):
            most = part.amax(1, keepdim=True)
            shares = (part - most).exp()
            total = shares.sum(1, keepdim=True)
            slope, shift = (shares / total @ fields).chunk(2, 1)
            found.append(torch.addcmul(shift, slope, x))
            masses.append(total.log() + most)
        return found[0], found[1], masses[0] - masses[1]

    def _at(self, t: float, dtype: torch.dtype) -> list[Tensor]:
        """Constants and slopes of the logits in (x^2, x), then the factors of x and 1 in the means."""
        if (t, dtype) not in self._kept:
            c = (1 - t) ** 2 + t * t * self.variances
            constant = self.log_weights - 0.5 * (t * t * self.means.square() / c + c.log()).sum(1)
            slopes = torch.cat([-0.5 / c, t * self.means / c], 1).T
            towards = torch.cat([t * self.variances / c, (1 - t) ** 2 * self.means / c], 1)
            self._kept[t, dtype] = [one.to(dtype) for one in (constant, slopes, towards)]
        return self._kept[t, dtype]


@lru_cache(maxsize=2)
def perfect(case: Case) -> Predict:
    """The model without any error."""
    return _on_ray(replace(case, eta=0.0, leak=0.0))


def alignment(case: Case, x: Tensor) -> Tensor:
    """Mean of p(A | x) under the truth, (...) for samples (..., n, d)."""
    odds = Law(case).sides(x.reshape(-1, x.shape[-1]), 1.0)[2]
    return odds.sigmoid().reshape(x.shape[:-1]).mean(-1)


@lru_cache(maxsize=2)
def predictor(case: Case, folder: Path | None = None) -> Predict:
    """The model with its errors; a trained network is kept in `folder`."""
    if case.kind == "network":
        return _asked(_trained(case, folder)[0])
    if case.kind == "smeared":
        return _smeared(case)
    exact = _on_ray(case)
    return _rough(exact, case) if case.rough else exact


def weaker(case: Case, folder: Path | None = None) -> Predict:
    """A model with the same errors, only larger, as autoguidance requires: of a network, an early state."""
    if case.kind == "network":
        return _asked(_trained(case, folder)[1])
    outside = 1 - float(truth(case).log_prior.exp())
    more = replace(
        case,
        eta=(1 + case.eta) / 2,
        leak=(case.leak + outside) / 2 if case.leak else 0.0,
        rough=2 * case.rough,
        smear=2 * case.smear,
    )
    return predictor(more)


def _on_ray(case: Case) -> Predict:
    law, shift = Law(case), math.inf
    if case.leak:
        prior = float(law.log_weights[: case.members].exp().sum())
        shift = math.log((1 - case.leak) / case.leak) - math.log(prior / (1 - prior))

    def predict(x: Tensor, t: float) -> Prediction:
        m_in, m_out, o = law.sides(x, t)
        between = m_in - m_out
        outside = (1 - case.eta) * (-o - shift).sigmoid() + case.eta * (-o).sigmoid()
        # sigmoid(a) - sigmoid(b) without subtraction keeps the gap's digits where both are 1.
        lead = (1 - case.eta) * -math.expm1(-shift) * (o + shift).sigmoid() * (-o).sigmoid()
        m_c, gap = m_in - outside * between, lead * between
        return Prediction(x, t, m_c, m_c - gap, gap=gap)

    return predict


def _smeared(case: Case) -> Predict:
    with_, without = Law(case, case.smear), Law(case, 2 * case.smear)

    def predict(x: Tensor, t: float) -> Prediction:
        m_c = with_.sides(x, t)[0]
        m_in, m_out, o = without.sides(x, t)
        return Prediction.from_mean(x, t, m_c, m_out + o.sigmoid() * (m_in - m_out))

    return predict


def _rough(predict: Predict, case: Case) -> Predict:
    draw = torch.Generator().manual_seed(case.seed)
    d = case.dimension

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    waves = torch.cat([2 / math.sqrt(d) * normal(d, 2 * WAVES), normal(1, 2 * WAVES)])
    phases = 2 * math.pi * torch.rand(2 * WAVES, generator=draw, dtype=torch.float64)
    size = case.rough * math.sqrt(2 / WAVES)
    amplitudes = [size * normal(WAVES, d) for _ in range(2)]

    def wrong(x: Tensor, t: float) -> Prediction:
        p = predict(x, t)
        ripples = torch.addmm((phases + t * waves[-1]).to(x), x, waves[:-1].to(x)).cos().chunk(2, 1)
        e_c, e_u = (one @ ((1 - t) * size).to(x) for one, size in zip(ripples, amplitudes, strict=True))
        return Prediction(x, t, p.m_c + e_c, p.m_u + e_u, gap=p.delta + e_c - e_u)

    return wrong


class _VelocityNet(nn.Module):
    """Velocity of (x, t, label); label 2 is the dropped one."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(d + 8, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, d)
        )

    def forward(self, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        angles = t * (math.pi * torch.tensor([0.5, 1.0]))
        v: Tensor = self.body(torch.cat([x, t, angles.sin(), angles.cos(), F.one_hot(label, 3).float()], 1))
        return v


def _asked(net: _VelocityNet) -> Predict:
    def predict(x: Tensor, t: float) -> Prediction:
        n, shown = len(x), x.float()
        labels = (torch.full((n,), 1), torch.full((n,), 2))
        v_c, v_u = (net(shown, torch.full((n, 1), float(t)), one).to(x.dtype) for one in labels)
        return Prediction.from_velocity(x, float(t), v_c, v_u)

    return predict


@lru_cache(maxsize=4)
def _trained(case: Case, folder: Path | None) -> tuple[_VelocityNet, _VelocityNet]:
    """The network, and its state after an eighth of the training; from `folder` if it is there."""
    nets = _VelocityNet(case.dimension), _VelocityNet(case.dimension)
    path = None if folder is None else folder / f"{case.name}.pt"
    if path is not None and path.is_file():
        for net, state in zip(nets, torch.load(path, weights_only=True), strict=True):
            net.load_state_dict(state)
    else:
        states = _train(case)
        for net, state in zip(nets, states, strict=True):
            net.load_state_dict(state)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = BytesIO()  # a file would hold its temporary name
            torch.save(states, content)
            write_whole(path, content.getvalue())
    for net in nets:
        net.requires_grad_(False)
    return nets


def _train(case: Case) -> list[dict[str, Tensor]]:
    """States after all steps and after an eighth of them."""
    draw, early = torch.Generator().manual_seed(case.seed), {}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(case.seed)
        net = _VelocityNet(case.dimension)
        optimiser = torch.optim.Adam(net.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, TRAINING)
        data, labels = _labelled(case, TRAINING * _BATCH, draw)
        for step in range(TRAINING):
            rows = slice(step * _BATCH, (step + 1) * _BATCH)
            t = torch.rand(_BATCH, 1, generator=draw)
            noise = torch.randn(_BATCH, case.dimension, generator=draw)
            guess = net(torch.lerp(noise, data[rows], t), t, labels[rows])
            optimiser.zero_grad()
            (guess - (data[rows] - noise)).square().mean().backward()
            optimiser.step()
            schedule.step()
            if step + 1 == TRAINING // 8:
                early = {name: value.clone() for name, value in net.state_dict().items()}
    return [net.state_dict(), early]


def _labelled(case: Case, n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Data and labels: 1 the condition, 0 the rest, 2 dropped; a share `leak` of label 1 is wrong."""
    weights, means, variances = widths(case)
    k = torch.multinomial(weights, n, replacement=True, generator=draw)
    prior = float(weights[: case.members].sum())
    rate = case.leak / (1 - case.leak) * prior / (1 - prior)
    label = torch.where(torch.rand(n, generator=draw) < rate, 1, (k < case.members).long())
    label = torch.where(torch.rand(n, generator=draw) < DROPPED, 2, label)
    z = torch.randn(n, case.dimension, generator=draw)
    return means[k].float() + variances[k].sqrt().float() * z, label


def examples(case: Case, n: int, leak: float = 0.0) -> Tensor:
    """Data under the condition with labels to trust, or a share of them from elsewhere, (n, d)."""
    weights, means, variances = widths(case)
    draw = torch.Generator().manual_seed(case.seed + 1)
    inside = torch.arange(len(weights)) < case.members
    sides = torch.where(inside, weights[inside].sum(), weights[~inside].sum())
    shares = torch.where(inside, 1 - leak, leak) * weights / sides
    k = torch.multinomial(shares, n, replacement=True, generator=draw)
    z = torch.randn(n, case.dimension, generator=draw, dtype=torch.float64)
    return means[k] + variances[k].sqrt() * z
