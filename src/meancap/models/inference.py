"""Both velocities of a SiT at once: the same bits as two plain calls, without their repeated work.

    doubled batch   the conditional samples first, then the same samples without a class
    conditions      what each block receives of (t, class): shift, 1 + scale, gate. They do not depend on x,
                    and a caller whose weights stay as they are may keep them from batch to batch
    pieces          on a CPU the doubled batch is cut so that what a block makes of it stays in the cache

A matrix product rounds a row in the same way whatever the other rows are, except in very small products.
Tokens are always many; conditions are few, and those of each half are worked out by themselves, as in two
calls. `SiT.forward` remains the definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..prediction import Prediction
from .sit import SiT, SiTBlock

Conditions = tuple[tuple[Tensor, ...], ...]  # for each block, then for the last layer
ConditionCache = dict[tuple[float, tuple[int, ...]], Conditions]

_ROWS = 1250  # tokens in a piece, for each thread: enough for a matrix product, few enough for a cache
_KEEP = 2**27  # bytes of conditions that are kept at most


class Predictor:
    """(x, t) -> Prediction for one label per sample. `kept` holds conditions for as long as the caller likes.

    `conditional` is half the work: it states m_u = m_c, for a rule that is idle and does not read it.
    `negative`, one label per sample, is the reference in place of no class at all; `including` has both.
    """

    def __init__(
        self,
        network: SiT,
        labels: Sequence[int],
        channels: int | None = None,
        kept: ConditionCache | None = None,
        negative: Sequence[int] | None = None,
    ) -> None:
        self.network, self.channels, self.kept, self.negative = network, channels, kept, negative
        self.rows = [tuple(labels), tuple(negative or [network.config.classes] * len(labels))]

    def including(self, names: tuple[str, ...]) -> Predictor:
        """The same predictor, with the negative labels beside no class for a rule that looks at them."""
        if "negative" not in names or self.negative is None:
            return self
        both = Predictor(self.network, self.rows[0], self.channels, self.kept)
        both.rows.append(tuple(self.negative))
        return both

    def __call__(self, x: Tensor, t: float) -> Prediction:
        v_c, *others = self._velocities(x, t, len(self.rows)).chunk(len(self.rows))
        if self.channels is not None:
            # As in the reference sampler: the other channels keep the conditional prediction.
            others = [torch.cat([v[:, : self.channels], v_c[:, self.channels :]], dim=1) for v in others]
        p = Prediction.from_velocity(x.to(v_c.device), t, v_c, others[0])
        return p if len(others) == 1 else p.beside(negative=others[1])

    def conditional(self, x: Tensor, t: float) -> Prediction:
        v_c = self._velocities(x, t, 1)
        return Prediction.from_velocity(x.to(v_c.device), t, v_c, v_c)

    @torch.no_grad()
    def _velocities(self, x: Tensor, t: float, times: int) -> Tensor:
        """In float32: with the class, then as often as asked for without it and with the negative one."""
        if len(x) != len(self.rows[0]):
            raise ValueError(f"got {len(x)} samples for {len(self.rows[0])} labels; give one label each")
        network, weight = self.network, self.network.x_embedder.proj.weight
        conditions = self._conditions(float(t))
        h = network.x_embedder(x.to(weight.device, weight.dtype)) + network.pos_embed
        h = torch.cat([h.contiguous()] * times)  # patches come channels first, which would cost every block
        outputs = [
            _outward(network, h[piece], [[v[piece] for v in part] for part in conditions])
            for piece in pieces(len(h), network.config.tokens, h.device)
        ]
        return torch.cat(outputs).float()

    def _conditions(self, t: float) -> Conditions:
        kept, key = {} if self.kept is None else self.kept, (t, sum(self.rows, ()))
        if key not in kept:
            separate = [conditions_of(self.network, t, row) for row in self.rows]
            conditions = tuple(
                tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*separate, strict=True)
            )
            if (len(kept) + 1) * sum(v.nbytes for part in conditions for v in part) > _KEEP:
                return conditions
            kept[key] = conditions
        return kept[key]


def conditions_of(network: SiT, t: float, labels: Sequence[int]) -> Conditions:
    """The conditions at time t, one row for each label."""
    y = torch.tensor(labels, dtype=torch.long, device=network.pos_embed.device)
    c = network.t_embedder(torch.full((len(y),), t, device=y.device)) + network.y_embedder(y)
    conditions = []
    for layer in (*network.blocks, network.final_layer):
        made = layer.adaLN_modulation(c)[:, None]
        parts = made.chunk(made.shape[2] // network.config.width, dim=2)
        # Shift, scale and gate in turns; the scale is always used as 1 + scale.
        conditions.append(tuple(1 + v if i % 3 == 1 else v.contiguous() for i, v in enumerate(parts)))
    return tuple(conditions)


def pieces(samples: int, tokens: int, device: torch.device) -> list[slice]:
    """Neighbouring samples, in pieces of nearly one size; one piece where the device is no CPU."""
    most = _ROWS * torch.get_num_threads() // tokens if device.type == "cpu" else samples
    count = max(1, -(-samples // max(1, most)))
    ends = [i * samples // count for i in range(count + 1)]
    return [slice(low, high) for low, high in pairwise(ends)]


def _outward(network: SiT, h: Tensor, conditions: list[list[Tensor]]) -> Tensor:
    """From embedded patches to velocities; h is used up."""
    *inner, (shift, scale) = conditions
    for block, condition in zip(network.blocks, inner, strict=True):
        _through(block, h, condition)  # type: ignore[arg-type]
    last = network.final_layer
    return network.unpatch(last.linear(last.norm_final(h) * scale + shift))[:, : network.config.channels]


def _through(block: SiTBlock, h: Tensor, condition: list[Tensor]) -> None:
    """`Block.forward`, whose result takes the place of h; a scale comes with its 1."""
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = condition
    h.add_(gate_a * block.attn(block.norm1(h) * scale_a + shift_a))
    h.add_(gate_m * block.mlp(block.norm2(h) * scale_m + shift_m))
