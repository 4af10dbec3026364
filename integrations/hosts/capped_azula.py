"""azula: a CFG denoiser under a rule. Copy this file; it needs azula and meancap.

    denoiser = RuleDenoiser(denoiser, Cap(1.1))
    x = sampler(x, positive={"label": y}, guidance=6.0)
    print(denoiser.session.record.summary())

azula's guidance w means lambda = w + 1, and its time runs from noise at 1 to data at 0. The result has no
gradient, so a sampler that differentiates its denoiser (DPS) cannot use it.
"""

from typing import Any

from azula.denoise import DiracPosterior
from azula.guidance import CFGDenoiser
from torch import Tensor

from meancap.adapters.session import Session
from meancap.path import on_gaussian
from meancap.rules import Rule


class RuleDenoiser(CFGDenoiser):
    """azula's CFGDenoiser under a rule. A cap limits its result, and any other rule replaces it."""

    def __init__(self, denoiser: Any, rule: Rule | str) -> None:
        super().__init__(denoiser)
        self.session, self.last = Session(rule), -1.0

    def forward(
        self,
        x_t: Tensor,
        t: Tensor,
        positive: dict,
        negative: dict | None = None,
        guidance: Any = 1.0,
        **more: Any,
    ) -> DiracPosterior:
        if float(t.max()) > self.last:  # times fall within a run
            self.session.begin()
        self.last = float(t.max())
        c = self.denoiser(x_t, t, **positive, **more).mean
        u = self.denoiser(x_t, t, **(negative or {}), **more).mean
        how = on_gaussian("mean", *self.schedule(t), x_t)
        return DiracPosterior(mean=self.session.guide(how, x_t, c, u, c + guidance * (c - u)))
