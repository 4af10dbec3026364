"""Reports what the guidance of a pipeline or a loop does, without changing it.

    with audit(pipe, gamma=1.1) as found:         # a diffusers pipeline
        pipe(prompt, guidance_scale=7)
    with audit(network, order="uc") as found:     # the network of any loop of Euler steps
        my_sampler(network)

A pipeline passes its guided prediction to its scheduler. In a loop the next state shows it: an Euler step
leads from x at time t to x' at t' by the guided velocity (x' - x) / (t' - t).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..prediction import Prediction
from ..record import span
from ..rules import Cap, Rule
from ..rules.rule import Displacement
from .session import RunRecord, Session
from .substitute import Call, Substitute

_PLAIN = "u + s (c - u)"
_ROUNDING = (1e-3, 3e-2)  # the share of an output that rounding explains, in float32 and in half precision


class Audit(RunRecord):
    """The meter of a host's own guidance, and what it shows; `gamma` is the bound whose excess is counted."""

    def __init__(self, gamma: float = 1.1) -> None:
        self.gamma = gamma
        super().__init__()

    def restart(self) -> None:
        super().restart()
        self.noise = 0.0  # the share of the host's result that the rounding of its states makes uncertain
        self._plain: list[Tensor] = []  # by evaluation and sample: whether some s explains the result
        self._unit: list[Tensor] = []  # whether s is 1

    def add(self, g: Displacement, p: Prediction, rule: Rule | None = None) -> None:
        super().add(g, p, rule)
        half = min(torch.finfo(v.dtype).bits for v in (p.out_c, p.out_u)) < 32
        share = _ROUNDING[half] + self.noise
        # A cap starts from the host's own result, which stands in the place of the unconditional output.
        c, u, host = (v.detach().flatten(1).cpu().double() for v in (p.out_c, p.out_u, g.p.out_u))
        gap, allowed = c - u, share * host.norm(dim=1)
        s = ((host - u) * gap).sum(1) / gap.square().sum(1).clamp(min=1e-300)
        self._plain.append((host - u - s[:, None] * gap).norm(dim=1) <= allowed)
        self._unit.append((host - c).norm(dim=1) <= share * gap.norm(dim=1))

    def report(self) -> dict[str, Any]:
        """What was found: numbers of steps and samples, scales, ratios and the formula."""
        if not len(self):
            return {"steps": 0, "steps_with_one_prediction": self.unguided, "reason": self.idle}
        s = {name: v.nan_to_num() for name, v in self.stacked().items()}
        plain = float(torch.stack(self._plain).double().mean())
        formula = _PLAIN if plain == 1 else f"another than {_PLAIN} in {1 - plain:.0%} of the results"
        return {
            "steps": len(self),
            "steps_with_one_prediction": self.unguided,
            "samples": s["ratio"].shape[1],
            "scale": [float(s["scale"].min()), float(s["scale"].max())],
            "largest_ratio": float(s["ratio"].max()),
            "gamma": self.gamma,
            "share_of_samples_above_gamma": float((s["ratio"] > self.gamma).any(0).double().mean()),
            "steps_with_two_predictions_at_scale_1": sum(bool(one.all()) for one in self._unit),
            "formula": "not known here" if self.shares else formula,
        }

    def summary(self) -> str:
        found = self.report()
        if "reason" in found:
            return super().summary()
        wasted = found["steps_with_two_predictions_at_scale_1"]
        parts = [
            f"applied scale {span(torch.tensor(found['scale']))}",
            f"largest ratio {found['largest_ratio']:.3f}",
            f"{found['share_of_samples_above_gamma']:.0%} of {found['samples']} samples above {self.gamma:g}",
            f"formula: {found['formula']}",
            f"{wasted} of {len(self)} steps at scale 1 made two predictions" if wasted else "",
            f"{self.unguided} steps made one prediction" if self.unguided else "",
            self.remark,
        ]
        return "; ".join(part for part in parts if part)

    def contents(self) -> dict[str, Any]:
        return {"audit": self.report(), **super().contents()}

    def _figure(self) -> Any:
        figure = super()._figure()
        for axes in [one for one in figure.axes if one.get_title().startswith("ratio")]:
            axes.axhline(self.gamma, color="#D55E00", linestyle=":", linewidth=1)
        return figure


class _Watch(Substitute):
    """A wrapped forward that changes nothing and measures each step when the next call shows its end."""

    seen: tuple[Call, Tensor, Tensor] | None = None

    def __init__(self, found: Audit, **options: Any) -> None:
        self.found = found
        super().__init__(Session(Cap(math.inf), found), **options)

    def _substitute(self, call: Call, pair: tuple[Tensor, Tensor]) -> Tensor:
        c, u = (v.detach().clone() for v in (pair if self.order == "cu" else pair[::-1]))
        self.seen = call._replace(x=call.x[: len(c)].clone()), c, u
        return call.output

    def _follow(self, call: Call | None) -> None:
        self.seen = None

    def _compare(self, call: Call) -> None:
        if self.seen is None:
            return
        (before, c, u), self.seen = self.seen, None
        x, after = before.x.double(), call.x[: len(c)].double()
        dt = (call.time - before.time)[: len(c)].to(x.device).reshape(-1, *[1] * (x.dim() - 1))
        if not bool(dt.all()):
            self.found.remark = "a solver with several evaluations per step was seen, not all of it"
            return
        moved = (after - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
        self.found.noise = torch.finfo(call.x.dtype).eps / max(float(moved.min()), 1e-300)
        self._guided(before, c, u, (after - x) / dt)


@contextmanager
def audit(thing: Any, *, gamma: float = 1.1, **options: Any) -> Iterator[Audit]:
    """Watches a diffusers pipeline, or the network of a loop, inside a block; yields what was found.

    gamma     counts the samples whose guided mean is more than gamma times as long as the conditional one
    options   `layout` for a pipeline; order, calls, noise_at and state for a network, as in `substituted`

    The results are the host's own, bit for bit. A loop must make Euler steps; its last step is not seen.
    """
    found = Audit(gamma)
    if isinstance(thing, nn.Module):
        with _Watch(found, **options).on(thing):
            yield found
        return
    from .diffusers import guided

    with guided(thing, Cap(math.inf), verify=False, record=found, **options):
        yield found
