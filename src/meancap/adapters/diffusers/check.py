"""Whether a pipeline combines its predictions as the table says, tested at its first step.

    c, u     the two predictions as the table reads them, in the scheduler's convention
    nominal  what the pipeline made of them; every formula in use is  rho (u + lambda (c - u)) + extra terms,
             with rho > 0 shared by a sample or by a row, and lambda > 0

If the order is wrong, lambda comes out negative; if the sign is wrong, rho does; if the rows are wrong,
nothing fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# The share of the nominal output that the fit may leave unexplained: rounding, far less than a wrong layout.
_FULL, _HALF = 1e-3, 5e-2


class LayoutError(RuntimeError):
    """The pipeline's own result contradicts the layout it is listed with."""


@dataclass(frozen=True)
class Fit:
    """The formula that a pipeline seems to have used, the worst of its samples."""

    residual: float  # |nominal - fit| / |nominal|
    rho: float
    scale: float  # lambda; nan where the gap is too small to tell

    def complaint(self, allowed: float) -> str | None:
        """Why the layout cannot be right, or None."""
        if self.residual > allowed:
            return f"{self.residual:.0%} of the pipeline's result stays unexplained"
        if self.rho < 0:
            return "the sign is turned round"
        if self.scale < 0:
            return "the conditional and the unconditional half are exchanged"
        return None


def fit_output(nominal: Tensor, c: Tensor, u: Tensor, extra: list[Tensor], rows: str) -> Fit:
    """Least squares of the nominal output on u and c - u (and any extra terms), by sample or by row."""
    precision = torch.finfo(min((c.dtype, nominal.dtype), key=lambda d: torch.finfo(d).bits)).eps
    g, c, u, *more = (_rows(v, rows) for v in (nominal, c, u, *extra))
    gap = c - u
    basis = torch.stack([u, gap, *(c - e for e in more)], dim=-1)
    size = torch.linalg.vector_norm(basis, dim=-2, keepdim=True)
    unit = basis / torch.where(size == 0, torch.ones_like(size), size)
    solution = torch.linalg.pinv(unit.mT @ unit, hermitian=True) @ (unit.mT @ g[..., None])
    left = g - (unit @ solution)[..., 0]
    rho, along = ((solution / size.mT)[..., i, 0] for i in (0, 1))
    # Rounding moves lambda by about precision |g| / (|gap| √n); where that is large, the gap tells nothing.
    whole = torch.linalg.vector_norm(g, dim=-1)
    told = size[..., 0, 1] * g.shape[-1] ** 0.5 > 8 * precision * whole
    scales = (along / rho)[told]
    return Fit(
        residual=_worst(torch.linalg.vector_norm(left.flatten(1), dim=1), g),
        rho=float(rho.flatten(1).median(1).values.min()),
        scale=float(scales.median()) if scales.numel() else float("nan"),
    )


def verify(
    name: str, nominal: Tensor, c: Tensor, u: Tensor, extra: list[Tensor], rows: str, *, free: bool = False
) -> bool:
    """Raises where the output contradicts the layout; returns whether the gap was large enough to judge.

    `free` is for pipelines whose formula can be replaced, so that the fit need not explain the output.
    """
    half = min(torch.finfo(c.dtype).bits, torch.finfo(nominal.dtype).bits) < 32
    result = fit_output(nominal, c, u, extra, rows)
    complaint = result.complaint(math.inf if free else _HALF if half else _FULL)
    if complaint is not None:
        raise LayoutError(
            f"{name} does not combine its predictions as listed: {complaint}; if it adds terms of its own "
            "(clipping, say) pass verify=False, otherwise pass layout=Layout(...) and report it"
        )
    return result.scale == result.scale


def _rows(v: Tensor, rows: str) -> Tensor:
    v = v.detach().cpu().double()
    return v.flatten(1, -2) if rows == "row" else v.flatten(1)[:, None]


def _worst(left: Tensor, g: Tensor) -> float:
    whole = torch.linalg.vector_norm(g.flatten(1), dim=1)
    return float((left / torch.where(whole == 0, torch.ones_like(whole), whole)).max())
