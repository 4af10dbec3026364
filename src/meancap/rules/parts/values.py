"""Numbers that belong to a rule: one per channel, one per element, or a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...notation import write


class Values:
    """A tensor as a value, so that a rule that holds one is still a frozen, comparable, printable thing."""

    def __init__(self, values: Tensor | Sequence[float]) -> None:
        try:
            tensor = torch.as_tensor(values, dtype=torch.float64).detach().cpu().clone()
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected numbers in a regular (nested) list; {error}") from None
        if tensor.numel() == 0 or not bool(tensor.isfinite().all()):
            raise ValueError("a rule's values must be finite numbers, at least one")
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape)

    def tensor(self, like: Tensor) -> Tensor:
        """The values as they are, in the precision and on the device of `like`."""
        return self._tensor.to(like.dtype).to(like.device)

    def on(self, like: Tensor, name: str) -> Tensor:
        """Broadcast against a batch: one value per channel (the second axis), or one per element."""
        sample = tuple(like.shape[1:])
        values = self.tensor(like)
        if self.shape == sample:
            return values
        if self.shape in ((sample[0],), (1,), ()):
            return values.reshape(-1, *[1] * (len(sample) - 1))
        raise ValueError(
            f"{name} has shape {self.shape}; a sample here has {sample}: give that shape, or ({sample[0]},)"
        )

    def times(self, y: Tensor, name: str) -> Tensor:
        """W y: element by element, or a square matrix on the flattened sample."""
        size = math.prod(y.shape[1:])
        if self.shape == (size, size) and self.shape != tuple(y.shape[1:]):
            return (y.flatten(1) @ self.tensor(y).T).reshape(y.shape)
        return self.on(y, name) * y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and torch.equal(self._tensor, other._tensor)

    def __hash__(self) -> int:
        return hash((self.shape, tuple(self._tensor.flatten().tolist())))

    def __str__(self) -> str:
        return write(self._tensor.tolist())

    __repr__ = __str__
