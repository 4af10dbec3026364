"""The two optimisers of the recipe, behind one step: Muon on the hidden matrices, AdamW on the rest.

momentum   a running sum of gradients, looked at half a step ahead (Nesterov)
update     the nearest matrix with orthonormal rows or columns, by five Newton-Schulz iterations in
           which only the singular values change (Jordan et al. 2024)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def inside_blocks(name: str, p: Tensor) -> bool:
    """The matrices inside the blocks of a SiT, modulation excepted."""
    return name.startswith("blocks.") and p.dim() == 2 and "adaLN" not in name


def optimisers(
    model: nn.Module,
    rate: float,
    adam: float = 0.3,
    hidden_weights: Callable[[str, Tensor], bool] = inside_blocks,
) -> list[torch.optim.Optimizer]:
    """Muon for the hidden weights; AdamW, at a share `adam` of the rate, for embeddings, modulation, biases
    and the ends.
    """
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (hidden if hidden_weights(name, p) else rest).append(p)
    others = torch.optim.AdamW(rest, lr=adam * rate, betas=(0.9, 0.99), weight_decay=0.0)
    both: list[torch.optim.Optimizer] = [Muon(hidden, rate), others]
    for group in (group for optimiser in both for group in optimiser.param_groups):
        group["full"] = group["lr"]  # a schedule sets lr to a share of it
    return both


class Muon(torch.optim.Optimizer):
    """Momentum whose update matrix has all its singular values near one."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta, lr = group["momentum"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - beta)
                ahead = torch.lerp(p.grad, state["momentum"], beta)
                p.mul_(1 - lr * group["decay"])
                matrix = ahead.flatten(1)  # a convolution: outputs by everything that one of them reads
                # A taller matrix has longer columns; the factor keeps the change of its outputs the same.
                factor = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                p.add_(orthogonal(matrix).view(ahead.shape), alpha=-lr * factor)


def orthogonal(g: Tensor, iterations: int = 5) -> Tensor:
    """About U V' of g = U S V': each iteration sends singular values s to a s + b s^3 + c s^5."""
    a, b, c = 3.4445, -4.7750, 2.0315  # steep at 0; leaves s between about 0.7 and 1.2
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        s = x @ x.T
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.T if g.shape[0] > g.shape[1] else x
