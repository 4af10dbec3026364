"""How a diffusers pipeline lays out its predictions, and whether a run agrees with its layout.

`help(Layout)` names its fields. Two checks at the first guided step of a run:

verify_layout  the pipeline's own result follows from the two predictions by the layout's formula
same_state     the state that the scheduler steps is the denoiser's input
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NAMES = {"p": "weak", "n": "negative"}  # what a rule calls the further parts of an order
# The share of the nominal output that the fit may leave unexplained, and of the shown state that may differ:
# rounding in float32 and in half precision, far less than a wrong layout, a given frame or a mask.
_UNEXPLAINED = (1e-3, 5e-2)
_DIFFERENT = (1e-3, 2e-2)
_STATE_NAMES = ("hidden_states", "x", "sample", "latent_model_input")


@dataclass(frozen=True)
class Layout:
    """Where the conditional and the unconditional prediction are found in one pipeline.

    calls      "together": one call of the denoiser with all parts in the batch; "apart": one call for each
    order      the parts in the order they come: c conditional, u unconditional, p perturbed, n to be avoided;
               "c*" or "*c" if the conditional one is the first or the last of several and the pipeline
               combines them by a formula of its own, on whose result only caps act
    sign       the scheduler's convention is sign times the denoiser's output
    offset     the pipeline's guidance scale s means lambda = s + offset
    keep       what of a longer output reaches the scheduler: "all", its "first" or its "last" part
    rows       what shares one factor if the pipeline rescales its result: a "sample", or each "row"
    scale      the argument of the call that sets the scale
    denoisers  the components whose calls are the predictions
    extra      further calls that a step may make beside its parts, such as one with skipped layers
    weak       whether that one further call, if a step makes it, is a weaker model under the condition
    streams    how many states one call predicts, each with a scheduler's step of its own
    space      what the pipeline combines: the "output"s, or the "mean"s that follow from them
    clean      a keyword of the denoiser that marks clean frames in the state; a call with it raises an error
    note       what a user of this pipeline should know
    """

    calls: str
    order: str
    sign: int = 1
    offset: int = 0
    keep: str = "all"
    rows: str = "sample"
    scale: str = "guidance_scale"
    denoisers: tuple[str, ...] = ("transformer",)
    extra: int = 0
    weak: bool = False
    streams: int = 1
    space: str = "output"
    clean: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        allowed = {
            "calls": ("together", "apart"),
            "keep": ("all", "first", "last"),
            "rows": ("sample", "row"),
            "space": ("output", "mean"),
        }
        for field, values in allowed.items():
            if getattr(self, field) not in values:
                raise ValueError(f"a layout's {field} is one of {values}; got {getattr(self, field)!r}")
        known = {"c", "u"} <= set(self.order) <= {*"cu", *_NAMES} and len(set(self.order)) == len(self.order)
        if not known and self.order not in ("c*", "*c"):
            expected = "names c and u once each, such as 'uc', or is 'c*' or '*c'"
            raise ValueError(f"a layout's order {expected}; got {self.order!r}")
        if self.sign not in (1, -1):
            raise ValueError(f"a layout's sign is 1 or -1; got {self.sign}")

    @property
    def most(self) -> int:
        """How many calls of the denoiser one step makes at most."""
        return (len(self.order) if self.calls == "apart" else 1) + self.extra

    @property
    def caps_only(self) -> bool:
        """Whether the pipeline's formula is not described, so that only caps can act on its result."""
        return "*" in self.order

    @property
    def may_skip(self) -> bool:
        """Whether a pipeline of this layout may read its scale between its two predictions."""
        plain = self.order == "cu" and self.streams == 1
        return plain and self.calls == "apart" and self.scale == "guidance_scale"

    def parts(
        self, outputs: list[Any], nominal: Tensor, name: str, stream: int = 0
    ) -> dict[str, Tensor] | None:
        """The predictions in the scheduler's convention, by letter; None if only one was made.

        If only caps can act, one prediction is enough.
        """
        batch = nominal.shape[0]
        if self.calls == "apart":
            if len(outputs) < len(self.order) and not self.caps_only:
                rows = _output_tensor(outputs[0], stream).shape[0]
                if rows == batch * len(self.order):  # all parts: no sign that guidance is off
                    raise ValueError(
                        f"{name} made its {len(self.order)} predictions in one call, {rows} rows for {batch} "
                        "samples, but its layout has one call for each; "
                        f'pass layout=Layout("together", "{self.order}")'
                    )
                return None
            pieces = [_output_tensor(out, stream) for out in outputs[: self._own(outputs)]]
        else:
            whole = _output_tensor(outputs[0], stream)
            count, rest = divmod(whole.shape[0], batch)
            unguided = (1, len(self.order) - 1) if "p" in self.order else (1,)
            if not self.caps_only and not rest and count in unguided:
                return None  # the conditional one alone, or with the perturbed one
            if rest or (count != len(self.order) and not self.caps_only):
                raise self._misfit(name, whole, nominal)
            pieces = [whole[i * batch : (i + 1) * batch] for i in range(count)]
        letters = list(self.order)
        if self.caps_only:
            letters = [f"*{i}" for i in range(len(pieces) - 1)]
            letters.insert(0 if self.order == "c*" else len(letters), "c")
        return {letter: self._cut(v, nominal, name) for letter, v in zip(letters, pieces, strict=True)}

    def further(self, outputs: list[Any], nominal: Tensor, name: str) -> list[Tensor]:
        """The outputs of the calls beside the parts."""
        return [self._cut(_output_tensor(out), nominal, name) for out in outputs[self._own(outputs) :]]

    def _own(self, outputs: list[Any]) -> int:
        """How many of the calls of a step make its parts."""
        return 1 if self.calls == "together" else len(outputs) if self.caps_only else len(self.order)

    def others(
        self, parts: dict[str, Tensor], outputs: list[Any], nominal: Tensor, name: str
    ) -> dict[str, Tensor]:
        """The predictions beside c and u by the names that rules know them by."""
        named = {_NAMES[letter]: v for letter, v in parts.items() if letter in _NAMES}
        if self.weak:  # outside its window a pipeline skips no layer, and nothing is added for it
            named["weak"] = next(iter(self.further(outputs, nominal, name)), parts["c"])
        return named

    def _cut(self, v: Tensor, nominal: Tensor, name: str) -> Tensor:
        if v.dim() == nominal.dim() and self.keep != "all":
            for axis, size in enumerate(nominal.shape[1:], start=1):
                longer = max(v.shape[axis] - size, 0)
                v = v.narrow(axis, 0 if self.keep == "first" else longer, v.shape[axis] - longer)
        if v.shape != nominal.shape:
            raise self._misfit(name, v, nominal)
        return v if self.sign == 1 else -v

    def _misfit(self, name: str, v: Tensor, nominal: Tensor) -> ValueError:
        return ValueError(
            f"{name} made a prediction of shape {tuple(v.shape)} and a result of {tuple(nominal.shape)}, "
            f"which its layout ({self.calls}, {self.order}, keep {self.keep}) does not explain; "
            "pass layout=Layout(...)"
        )


def _output_tensor(output: Any, stream: int = 0) -> Tensor:
    """The prediction in whatever a denoiser returns: a tuple, an output object, or a list of samples."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple):
        return _output_tensor(output[stream])
    if isinstance(output, list):  # Z-Image: (C, 1, H, W) for each sample
        return torch.stack(output).squeeze(2)
    return _output_tensor(output.sample)


class LayoutError(RuntimeError):
    """The pipeline's own result contradicts the layout it is listed with."""


class _Fit(NamedTuple):
    """The formula that a pipeline seems to have used, the worst of its samples."""

    residual: float  # |nominal - fit| / |nominal|
    rho: float
    scale: float  # lambda; nan if the gap is too small to tell


def _fit_output(nominal: Tensor, c: Tensor, u: Tensor, extra: list[Tensor], rows: str) -> _Fit:
    """Least squares of the nominal output on u and c - u (and any extra terms), by sample or by row."""
    precision = torch.finfo(min((c.dtype, nominal.dtype), key=lambda d: torch.finfo(d).bits)).eps
    g, c, u, *more = (_rows(v, rows) for v in (nominal, c, u, *extra))
    gap = c - u
    # With u - e for the extra terms, the coefficient of the gap is all of what c contributes.
    basis = torch.stack([u, gap, *(u - e for e in more)], dim=-1)
    size = torch.linalg.vector_norm(basis, dim=-2, keepdim=True)
    unit = basis / torch.where(size == 0, torch.ones_like(size), size)
    solution = torch.linalg.pinv(unit.mT @ unit, hermitian=True) @ (unit.mT @ g[..., None])
    left = g - (unit @ solution)[..., 0]
    rho, along = ((solution / size.mT)[..., i, 0] for i in (0, 1))
    # Rounding moves lambda by about precision |g| / (|gap| √n); where that is large, the gap tells nothing.
    whole = torch.linalg.vector_norm(g, dim=-1)
    told = size[..., 0, 1] * g.shape[-1] ** 0.5 > 8 * precision * whole
    scales = (along / rho)[told]
    return _Fit(
        residual=_worst(left, g),
        rho=float(rho.flatten(1).median(1).values.min()),
        scale=float(scales.median()) if scales.numel() else float("nan"),
    )


def verify_layout(
    name: str, nominal: Tensor, c: Tensor, u: Tensor, extra: list[Tensor], rows: str, *, free: bool = False
) -> bool:
    """Raises if the output contradicts the layout; returns whether the gap was large enough to judge.

        c, u     the two predictions as the table reads them, in the scheduler's convention
        nominal  what the pipeline made of them; every formula in use is  rho (u + lambda (c - u)) + extra
                 terms, with rho > 0 shared by a sample or by a row, and lambda > 0

    If the order is wrong, lambda comes out negative; if the sign is wrong, rho does; if the rows are wrong,
    nothing fits. `free` is for pipelines whose formula can be replaced: the fit need not explain the output.
    """
    half = min(torch.finfo(c.dtype).bits, torch.finfo(nominal.dtype).bits) < 32
    result = _fit_output(nominal, c, u, extra, rows)
    complaint = ""
    if result.residual > _UNEXPLAINED[half] and not free:
        complaint = f"{result.residual:.0%} of the pipeline's result is unexplained"
    elif result.rho < 0:
        complaint = "the sign is reversed"
    elif result.scale < 0:
        complaint = "the conditional and the unconditional half are exchanged"
    if complaint:
        raise LayoutError(
            f"{name} does not combine its predictions as listed: {complaint}; if it adds terms of its own "
            "(clipping, say) pass verify=False, or a layout with order '*c' or 'c*' to cap its result; "
            "otherwise pass layout=Layout(...) and report it"
        )
    return result.scale == result.scale


def _rows(v: Tensor, rows: str) -> Tensor:
    v = v.detach().cpu().double()
    return v.flatten(1, -2) if rows == "row" else v.flatten(1)[:, None]


def _worst(part: Tensor, whole: Tensor) -> float:
    """|part| / |whole|, the worst of the samples."""
    size, of = (torch.linalg.vector_norm(v.flatten(1), dim=1) for v in (part, whole))
    return float((size / torch.where(of == 0, torch.ones_like(of), of)).max())


def shown_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What a denoiser was given as its state; None if that is no tensor and no list of like tensors."""
    given = next((kwargs[name] for name in _STATE_NAMES if name in kwargs), args[0] if args else None)
    if isinstance(given, list):  # Z-Image Omni: pictures to look at, and then the state, for each sample
        given = [one[-1] if isinstance(one, list) else one for one in given]
    if isinstance(given, (tuple, list)) and len({getattr(one, "shape", None) for one in given}) > 1:
        return None
    return _output_tensor(given) if isinstance(given, (Tensor, tuple, list)) else None


def same_state(shown: Tensor | None, stepped: Tensor) -> bool | None:
    """Whether `stepped` is in what was shown, up to a factor per sample; None if the shapes do not decide it.

    shown    the denoiser's first input: the state, perhaps repeated for both predictions, in another dtype,
             scaled by the scheduler, or with a picture, a mask or reference tokens put beside it
    stepped  the state that `scheduler.step` receives

    A posterior mean belongs to the state that the network saw. Wan 2.2 image-to-video (expand_timesteps)
    shows a clean first frame and steps a noisy one: m = x - sigma v is then no posterior mean of the model.
    """
    if shown is None or shown.dim() != stepped.dim() or shown.shape[0] % stepped.shape[0]:
        return None
    if any(a < b for a, b in zip(shown.shape, stepped.shape, strict=True)):
        return None
    bits = min(torch.finfo(v.dtype).bits for v in (shown, stepped))
    rows = shown[: stepped.shape[0]].detach().cpu().double()
    x = stepped.detach().cpu().double().flatten(1)
    distance = min(_apart(rows[place].flatten(1), x) for place in _places(shown, stepped))
    return distance <= _DIFFERENT[bits < 32]


def _places(shown: Tensor, stepped: Tensor) -> list[tuple[slice, ...]]:
    """The first and the last part of every axis that is longer in what was shown."""
    choices = [[slice(None)]]
    for longer, size in zip(shown.shape[1:], stepped.shape[1:], strict=True):
        choices.append([slice(None)] if longer == size else [slice(0, size), slice(longer - size, None)])
    return list(product(*choices))


def _apart(shown: Tensor, x: Tensor) -> float:
    """|shown - f x| / |shown| with the best factor f, the worst of the samples."""
    square = (x * x).sum(1, keepdim=True)
    factor = (shown * x).sum(1, keepdim=True) / torch.where(square == 0, torch.ones_like(square), square)
    return _worst(shown - factor * x, shown)
