"""A displacement: one number per sample times a direction.

    g = coefficient * direction

The direction is one of three: the gap of the two predictions; the way from the conditional output to a
nominal output that a host has made; or any tensor that a rule turned it to. As long as it is one of the first
two, no rule needs more of it than its lengths, and the result is written in the network's own units.

A plain cap at the end of a chain is not solved at once: the ray remembers it, and the operation that writes
the result measures, solves and writes together. Whoever asks for the coefficient before that gets it worked
out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...operation import Found, Lengths, Request, kept, lengths, margin_of, measured, run
from ...prediction import Prediction
from ...tensors import Number, per_sample, vector


class Limit(NamedTuple):
    """A plain hard cap: |m_c + g| <= max(gamma |m_c|, floor), or |g| <= max((gamma - 1) |m_c|, floor)."""

    gamma: Number
    floor: Number  # 0 is none
    ball: bool


class Ray:
    """A displacement g = coefficient * direction at one prediction."""

    def __init__(
        self,
        p: Prediction,
        coefficient: Number = 1.0,
        turned: Tensor | None = None,
        nominal: Tensor | None = None,
        asked: Number | None = None,
        limit: Limit | None = None,
        measured: Lengths | None = None,
    ) -> None:
        self.p = p
        self.turned = turned  # the direction as a displacement of the mean, where a rule or a user made it
        self.nominal = nominal  # a host's own guided output: the direction is k (out_c - nominal)
        self.asked = asked  # the coefficient before the first cap shortened it
        self.limit = limit  # a cap that is not solved yet, on `_before`
        self._before = coefficient
        self._coefficient = None if limit is not None else coefficient
        self._lengths = measured
        self._found: Found | None = None  # what the operation found: the lengths and the coefficient

    @property
    def is_gap(self) -> bool:
        """Whether the direction is the gap of the two predictions."""
        return self.turned is None and self.nominal is None

    @property
    def _tensor(self) -> Tensor | None:
        """The direction, where it is a tensor of its own and not a difference of two outputs."""
        return self.p.gap if self.turned is None and self.nominal is None else self.turned

    @property
    def direction(self) -> Tensor:
        """The direction as a displacement of the mean."""
        if self.turned is not None:
            return self.turned
        if self.nominal is None:
            return self.p.delta
        way = self.p.out_c.to(self.p.dtype) - self.nominal.to(self.p.dtype)
        return per_sample(self.p.k, way) * way

    @property
    def lengths(self) -> Lengths:
        """|m_c|, |direction| and the component of m_c along it, taken once per direction."""
        if self._lengths is None:
            p = self.p
            if self._found is not None:
                m, d, along, self._coefficient = self._found
                self._lengths = Lengths(m, d, along)
            elif self.turned is not None:
                self._lengths = lengths(p.m_c, self.turned)
            elif self.nominal is not None:
                self._lengths = measured(p.shown, p.out_c, self.nominal, p.a, p.k)
            else:
                self._lengths = p.lengths
        return self._lengths

    @property
    def coefficient(self) -> Number:
        if self._coefficient is None and self._found is not None:
            self._coefficient = self._found[3]
        if self._coefficient is None:
            assert self.limit is not None
            gamma, floor, ball = self.limit
            c, margin = self._before, margin_of(self.p.dtype)
            left = c * kept(*self.lengths, c, gamma, floor, ball=ball, margin=margin)
            self._coefficient = torch.where(vector(c, self.p.shown) == 0, 0.0, left)
        return self._coefficient

    @property
    def g(self) -> Tensor:
        return per_sample(self.coefficient, self.direction) * self.direction

    def scaled(self, coefficient: Number, asked: Number | None = None) -> Ray:
        """The same direction under another coefficient."""
        return self._with(coefficient, self.asked if asked is None else asked, None)

    def limited(self, limit: Limit) -> Ray:
        """The same displacement under a cap."""
        c = self.coefficient
        return self._with(c, c if self.asked is None else self.asked, limit)

    def _with(self, coefficient: Number, asked: Number | None, limit: Limit | None) -> Ray:
        return Ray(self.p, coefficient, self.turned, self.nominal, asked, limit, self._lengths)

    def mean(self, *, measured: bool = False) -> Tensor:
        """The guided mean m_c + g, in the precision of the prediction; keeps what was `measured`."""
        return self._written(self._tensor, self.p.dtype, mean=True, measured=measured)

    def output(self, dtype: torch.dtype, *, measured: bool = False) -> Tensor:
        """The guided output of the network, in its own units: out_c + g / k; keeps what was `measured`."""
        direction = self._tensor
        if direction is None or self.p.states_means:
            return self._written(direction, dtype, mean=direction is not None, measured=measured)
        base, k = self.p.out_c.to(self.p.dtype), vector(self.p.k, self.p.shown)
        # With k = 0 the mean is x, whatever the network says.
        back = per_sample(torch.where(k == 0, 0.0, 1 / k), base)
        return (base + back * self.g).to(dtype)

    def _written(self, direction: Tensor | None, dtype: torch.dtype, *, mean: bool, measured: bool) -> Tensor:
        p = self.p
        if direction is None:
            tensors = p.shown, p.out_c, p.out_u if self.nominal is None else self.nominal
            a, k = p.a, p.k
        else:  # the direction moves the mean, so the mean is what it is added to
            tensors, a, k = (p.m_c, p.m_c, direction), 0.0, 1.0
        how = (direction is not None, mean, dtype)
        if self.limit is None or self._lengths is not None:
            free = (a, k, self.coefficient, math.inf, 0.0)
            return run(Request(*tensors, free, True, 0.0, *how, False, False))[0]
        gamma, floor, ball = self.limit
        numbers, margin = (a, k, self._before, gamma, floor), margin_of(p.dtype)
        result, found = run(Request(*tensors, numbers, ball, margin, *how, True, measured))
        self._found = found if measured else None
        return result
