"""Per-sample numbers: lengths, inner products, and the precision they are taken in.

    sample   one entry along the first axis; every reduction here is over all the others
    number   a float shared by all samples, or one float64 value per sample, shape (batch,)

Squares of float32 elements leave float32's range beyond 1e19 and below 1e-19, and long float32 sums lose
digits, so numbers are float64. Where a device has no float64, `scaled_lengths` gets there by powers of two.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

Number = float | Tensor

# Lengths found in float32 are trusted within this range; outside, float64 takes over.
_SMALLEST, _LARGEST = 1e-12, 1e15
_LARGEST_EXPONENT = math.log(sys.float_info.max)
FEW = 16  # up to this many samples, Python does their arithmetic faster than kernels are dispatched


class Lengths(NamedTuple):
    """Two vectors per sample, reduced to what a cap needs to know of them."""

    m: Number  # |m|
    d: Number  # |d|
    along: Number  # component of m along d, that is <m, d> / |d|; 0 where d = 0

    def vectors(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three as tensors with one entry per sample of `like`."""
        m, d, along = (vector(v, like) for v in self)
        return m, d, along


def vector(v: Number, like: Tensor) -> Tensor:
    """A number as a tensor with one entry per sample of `like`."""
    if isinstance(v, Tensor):
        return v.expand(like.shape[:1]) if v.numel() == 1 else v
    return torch.full(like.shape[:1], v, dtype=scalar_dtype(like.device), device=like.device)


def per_sample(v: Number, like: Tensor) -> Number:
    """`v` shaped so that it multiplies `like` sample by sample, in the precision of `like`."""
    if isinstance(v, Tensor):
        return v.to(like.dtype).reshape(v.shape[:1] + (1,) * (like.dim() - 1))
    return v


def promoted(x: Tensor) -> Tensor:
    """`x` in float32 at least; guidance in half precision breaks its own bound."""
    if not x.is_floating_point():
        raise TypeError(f"guidance needs floating-point tensors; got {x.dtype}")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def scalar_dtype(device: torch.device) -> torch.dtype:
    """The widest floating type that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def on_host(x: Tensor) -> bool:
    """Whether values can be looked at: no device to wait for, no graph to break, no tangent to lose."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and forward_ad._current_level < 0


def lengths(m: Tensor, d: Tensor) -> Lengths:
    """|m|, |d| and the component of m along d, for each sample."""
    m, d = m.flatten(1), d.flatten(1)
    if scalar_dtype(m.device) != torch.float64:
        return scaled_lengths(m, d)
    if is_plain(m) and is_plain(d):
        return blocked_lengths(m, d, torch.stack([_norms(v) for v in (m, d)]), torch.empty_like(m))
    return exact_lengths(m, d)


def exact_lengths(m: Tensor, d: Tensor) -> Lengths:
    """In float64 throughout: right for every finite float32 input."""
    m, d = m.double(), d.double()
    if m.shape[1] <= 8:  # few elements, many samples: sum whole columns
        columns = list(zip(m.unbind(1), d.unbind(1), strict=True))
        q = sum((a * a for a, _ in columns), start=m.new_zeros(()))
        a = sum((b * b for _, b in columns), start=m.new_zeros(()))
        dot = sum((a * b for a, b in columns), start=m.new_zeros(()))
        return lengths_of(q.sqrt(), a.sqrt(), dot)
    return lengths_of(torch.linalg.vector_norm(m, dim=1), torch.linalg.vector_norm(d, dim=1), (m * d).sum(1))


def scaled_lengths(m: Tensor, d: Tensor) -> Lengths:
    """In the tensors' own precision, each sample first divided by a power of two near its largest element."""
    m, m_unit = _near_one(m)
    d, d_unit = _near_one(d)
    q, a = torch.linalg.vector_norm(m, dim=1), torch.linalg.vector_norm(d, dim=1)
    found = lengths_of(q, a, (m * d).sum(1))
    return Lengths(found.m * m_unit, found.d * d_unit, found.along * m_unit)


def _near_one(v: Tensor) -> tuple[Tensor, Tensor]:
    exponent = torch.frexp(v.abs().amax(1)).exponent.clamp(-125, 127)
    unit = torch.ldexp(torch.ones_like(v[:, 0]), exponent - 1)
    return v / unit[:, None], unit


def lengths_of(m: Tensor, d: Tensor, dot: Tensor) -> Lengths:
    """From |m|, |d| and <m, d>."""
    return Lengths(m, d, torch.where(d == 0, torch.zeros_like(dot), dot / d))


@lru_cache(maxsize=256)
def _block(size: int) -> int:
    """The longest block up to 128 that divides `size`, or 0.

    Short, because in a long float32 sum one large element swallows the digits of the others.
    """
    if size < 512:
        return 0
    return next((b for b in range(128, 31, -1) if size % b == 0), 0)


def is_plain(v: Tensor) -> bool:
    """Whether float32 sums over short blocks will do: on the host, nothing traced, a size that divides."""
    ready = v.dtype == torch.float32 and v.is_contiguous() and on_host(v) and not v.requires_grad
    return ready and v.numel() > 0 and _block(v.shape[1:].numel()) > 0


def _norms(v: Tensor) -> Tensor:
    """The norm of every block: shape (..., blocks)."""
    size = _block(v.shape[-1])
    norms: Tensor = torch.linalg.vector_norm(v.view(*v.shape[:-1], v.shape[-1] // size, size), dim=-1)
    return norms


def paired_lengths(pair: Tensor, products: Tensor) -> Lengths:
    """The same from m and d stacked in one (2, batch, size) tensor; `products` is memory to write into."""
    return blocked_lengths(pair[0], pair[1], _norms(pair), products)


def scaled_gap(found: Lengths, scale: Number) -> Lengths:
    """The lengths of m and of scale * d, scale >= 0."""
    m, d, along = found
    return Lengths(m, each_sample(lambda a, b: a * b, d, scale), along)


def blocked_lengths(m: Tensor, d: Tensor, norms: Tensor, products: Tensor) -> Lengths:
    """Float32 over short blocks, float64 over the blocks; a sample out of float32's range is done apart."""
    batch, size = m.shape[0], _block(m.shape[1])
    both = torch.linalg.vector_norm(norms, dim=2, dtype=torch.float64)
    dots = torch.mul(m, d, out=products).view(batch, -1, size).sum(2).sum(1, dtype=torch.float64)
    if batch > FEW:
        inside = trusted(both)
        suspect = [] if bool(inside.all()) else (~inside).nonzero().flatten().tolist()
        found = Lengths(both[0], both[1], dots / both[1])
    else:
        q, a = both.tolist()
        suspect = [i for i in range(batch) if not (_trusted(q[i]) and _trusted(a[i]))]
        along = [divide(b, a_i) for b, a_i in zip(dots.tolist(), a, strict=True)]
        if batch == 1 and not suspect:  # one sample: its numbers are floats
            return Lengths(q[0], a[0], along[0])
        found = Lengths(*torch.tensor((q, a, along), dtype=torch.float64).unbind(0))
    for i in suspect:
        for kept, value in zip(found, exact_lengths(m[i : i + 1], d[i : i + 1]), strict=True):
            kept[i] = value[0]  # type: ignore[index]
    return found


def _trusted(length: float) -> bool:
    return _SMALLEST < length < _LARGEST


def trusted(found: Tensor) -> Tensor:
    """Of which samples float32 could measure all the lengths: shape (batch,) from (lengths, batch)."""
    return ((found > _SMALLEST) & (found < _LARGEST)).all(0)


def each_sample(f: Callable[..., Number], *numbers: Number | None) -> Number:
    """f on each sample's numbers: in Python for a few samples on the host, on whole vectors otherwise."""
    vectors = [v for v in numbers if isinstance(v, Tensor)]
    if not vectors:
        return f(*numbers)
    counts = [v.numel() for v in vectors]
    need_one_each(max(counts), *counts)
    few = vectors[0].numel() <= FEW and all(on_host(v) and not v.requires_grad for v in vectors)
    if not few:
        return f(*numbers)
    columns = (v.tolist() if isinstance(v, Tensor) else repeat(v, vectors[0].numel()) for v in numbers)
    return torch.tensor([f(*row) for row in zip(*columns, strict=True)], dtype=torch.float64)


def need_one_each(samples: int, *counts: int) -> None:
    """Refuses numbers that are neither one for all samples nor one for each."""
    for count in counts:
        if count not in (1, samples):
            raise ValueError(f"give one number for all samples, or one for each; got {count} and {samples}")


def size(a: Number) -> Number:
    """|a|."""
    return a.abs() if isinstance(a, Tensor) else math.fabs(a)


def hypot(a: Number, b: Number) -> Number:
    """sqrt(a^2 + b^2) without overflow."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.hypot(*_vectors(a, b))
    return math.hypot(a, b)


def root(a: Number) -> Number:
    """The square root."""
    return a.sqrt() if isinstance(a, Tensor) else math.sqrt(a)


def exp(v: Number) -> Number:
    """e to the v, of a float or of one number per sample; inf where it is too large, as in floating point."""
    if isinstance(v, Tensor):
        return v.exp()
    return math.inf if v > _LARGEST_EXPONENT else math.exp(v)


def power(base: Number, exponent: float) -> Number:
    """base^exponent for base >= 0; inf for 0 to a negative power or where too large, as in floating point."""
    if isinstance(base, Tensor):
        return torch.pow(base, exponent)
    if base == 0:
        return math.inf if exponent < 0 else math.pow(base, exponent)
    return math.inf if exponent * math.log(base) > _LARGEST_EXPONENT else math.pow(base, exponent)


def divide(a: Number, b: Number) -> Number:
    """a / b as floating point has it: x / 0 is inf, 0 / 0 is nan."""
    if isinstance(b, Tensor) and not isinstance(a, Tensor) and not torch.compiler.is_compiling():
        return torch.full_like(b, a) / b  # torch makes of a number over a tensor a product with 1 / b
    if isinstance(a, Tensor) or isinstance(b, Tensor) or b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def choose(condition: bool | Tensor, a: Number, b: Number) -> Number:
    """a where the condition holds, else b."""
    if isinstance(condition, Tensor):
        like = next((v for v in (a, b) if isinstance(v, Tensor)), None)
        dtype = like.dtype if like is not None else scalar_dtype(condition.device)
        a, b = (v if isinstance(v, Tensor) else condition.new_tensor(v, dtype=dtype) for v in (a, b))
        return torch.where(condition, a, b)
    return a if condition else b


def greater(a: Number, b: Number) -> Number:
    """The larger of the two, or nan where `a` is nan."""
    return choose(b > a, b, a)


def lesser(a: Number, b: Number) -> Number:
    """The smaller of the two, or nan where `a` is nan."""
    return choose(b < a, b, a)


def _vectors(a: Number, b: Number) -> tuple[Tensor, Tensor]:
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    return tuple(v if isinstance(v, Tensor) else torch.full_like(like, v) for v in (a, b))  # type: ignore[return-value]
