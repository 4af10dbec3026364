"""Steps with noise: from the ODE (eta = 0) to the memoryless, or ancestral, sampler (eta = 1).

    n       (x - t m) / (1 - t), the noise in x that the mean m implies
    r       ((1 - s) t / (s (1 - t)))^2, what a step from t to s = t_next keeps of the variance of that noise
    step    x' = s m + (1 - s) (sqrt(1 - eta^2 (1 - r)) n + eta sqrt(1 - r) z),   z fresh Gaussian noise

Replacing a part of the noise in x by fresh noise changes no marginal: if m is exact and the steps are short,
x has the law of (1 - t) noise + t data for every eta. The step is DDIM's with the same eta, on the linear
path. With eta = 1 and y = x / t, sigma = (1 - t) / t it reads

    y' = r y + (1 - r) m + sigma' sqrt(1 - r) z,    r = (sigma' / sigma)^2,

the ancestral step of a variance-exploding model. It forgets the start: at t = 0, r = 0. In continuous time

    dx = (v + eta^2 (1 - t)/t score) dt + eta sqrt(2 (1 - t)/t) dW,    v = x/t + (1 - t)/t score,

so the force that guidance adds, (lambda - 1)(1 - t)/t (score_c - score_u), counts 1 + eta^2 times while it
acts. Fresh noise undoes a part of what earlier guidance did, and the two do not cancel: **the same scale is
not the same guidance here.** Compare samplers at equal alignment, never at equal scale.

Randomness belongs to samples: the generator of a seed draws the sample's start (what `noise` gives for that
seed) first, then one tensor for each step. Neither batch, order nor the other samples matter. All bits of a
seed count: from 2^32 on, where torch's own seeding would drop the higher ones, `generator_of` fills torch's
Mersenne Twister by the standard seeding from an integer of any size, that of Python's `random`.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import need_seeds
from .grids import kept_variance
from .loop import Mean, StepMethod, euler


@dataclass(frozen=True)
class Stochastic:
    """A step with noise, for `sample(..., step=...)`: one seed per sample, and the noise level eta."""

    seeds: tuple[int, ...]
    eta: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(int(seed) for seed in self.seeds))
        object.__setattr__(self, "eta", float(self.eta))
        if not self.seeds:
            raise ValueError("a step with noise needs one seed per sample; got none")
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta runs from 0 (the ODE) to 1 (memoryless); got {self.eta}")

    def begin(self, x: Tensor) -> StepMethod:
        """The step for one run from x: each call draws the next noise of every sample."""
        if len(x) != len(self.seeds):
            raise ValueError(f"got {len(x)} samples for {len(self.seeds)} seeds; give one seed per sample")
        if self.eta == 0:
            return euler
        draw = _stream(self.seeds, x)

        def step(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
            m = mean(x, t)
            if t_next == 1:
                return m
            keep, pull, spread = step_coefficients(t, t_next, self.eta)
            return keep * x + pull * m + spread * draw()

        return step


def ancestral(seeds: Iterable[int], eta: float = 1.0) -> Stochastic:
    """The memoryless step, or one of noise level `eta`: `sample(predict, rule, x, times, ancestral(seeds))`.

    Give the seeds that the start was drawn with, `x = noise(seeds, shape)`, or any others of your own.
    """
    return Stochastic(tuple(seeds), eta)


def step_coefficients(t: float, t_next: float, eta: float) -> tuple[float, float, float]:
    """The factors of x, m and fresh noise in one step t -> t_next."""
    fresh = 1 - kept_variance(t, t_next)
    keep = (1 - t_next) / (1 - t) * math.sqrt(1 - eta**2 * fresh)
    return keep, t_next - t * keep, eta * (1 - t_next) * math.sqrt(fresh)


def noise(
    seeds: Iterable[int],
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Gaussian noise of `shape` for each seed, drawn on the CPU: an image does not depend on its batch."""
    need_seeds(seeds, shape)
    generators = [generator_of(int(seed)) for seed in seeds]
    if not generators:
        raise ValueError("noise needs at least one seed")
    return _draw(generators, shape).to(device, dtype)


def generator_of(seed: int) -> torch.Generator:
    """A generator on the CPU for a seed >= 0 of any size: torch's own below 2^32, and none of those above."""
    if seed < 0:
        raise ValueError(f"a seed must be a whole number from 0; got {seed}")
    generator = torch.Generator().manual_seed(seed % 2**32)
    if seed >= 2**32:
        words = array("Q", random.Random(seed).getstate()[1][:624])
        state = generator.get_state()
        state[24 : 24 + 8 * 624] = torch.frombuffer(words, dtype=torch.uint8)  # behind three numbers
        generator.set_state(state)
    return generator


def _stream(seeds: tuple[int, ...], x: Tensor) -> Callable[[], Tensor]:
    """Draws shaped like x, one generator per sample, behind the draw that `noise` makes of the same seed."""
    generators = [generator_of(seed) for seed in seeds]
    _draw(generators, x.shape[1:])
    return lambda: _draw(generators, x.shape[1:]).to(x.device, x.dtype)


def _draw(generators: list[torch.Generator], shape: Sequence[int]) -> Tensor:
    return torch.stack([torch.randn(tuple(shape), generator=one) for one in generators])
