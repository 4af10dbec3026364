"""How a diffusers pipeline lays out its predictions.

`help(Layout)` names its fields. A layout is compared with the pipeline's own result at the first step of a
run (`check`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Others = dict[str, Tensor]
NAMES = {"p": "weak", "n": "negative"}  # what a rule calls the further parts of an order


@dataclass(frozen=True)
class Layout:
    """Where the conditional and the unconditional prediction are found in one pipeline.

    calls      "together": one call of the denoiser with all parts in the batch; "apart": one call for each
    order      the parts in the order they come: c conditional, u unconditional, p perturbed, n to be avoided
    sign       the scheduler's convention is sign times the denoiser's output
    offset     the pipeline's guidance scale s means lambda = s + offset
    keep       what of a longer output reaches the scheduler: "all", its "first" or its "last" part
    rows       what shares one factor where the pipeline rescales its result: a "sample", or each "row"
    scale      the argument of the call that states the scale
    denoisers  the components whose calls are the predictions
    extra      further calls that a step may make beside its parts, such as one with skipped layers
    weak       whether that one further call, where a step makes it, is a weaker model under the condition
    streams    how many states one call predicts, each with a scheduler's step of its own
    space      what the pipeline combines: the "output"s, or the "mean"s that follow from them
    clean      a keyword of the denoiser that marks clean frames in the state; a call that uses it is refused
    note       what a user of this pipeline should know
    """

    calls: str
    order: str
    sign: int = 1
    offset: int = 0
    keep: str = "all"
    rows: str = "sample"
    scale: str = "guidance_scale"  # the argument of the call that states the scale
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
        if not {"c", "u"} <= set(self.order) <= {*"cu", *NAMES} or len(set(self.order)) != len(self.order):
            raise ValueError(f"a layout's order names c and u once each, such as 'uc'; got {self.order!r}")
        if self.sign not in (1, -1):
            raise ValueError(f"a layout's sign is 1 or -1; got {self.sign}")

    @property
    def most(self) -> int:
        """How many calls of the denoiser one step makes at most."""
        return (len(self.order) if self.calls == "apart" else 1) + self.extra

    def parts(
        self, outputs: list[Any], nominal: Tensor, name: str, stream: int = 0
    ) -> dict[str, Tensor] | None:
        """The predictions in the scheduler's convention, by letter; None where only one was made."""
        batch = nominal.shape[0]
        if self.calls == "apart":
            if len(outputs) < len(self.order):
                self._refuse_together(tensor(outputs[0], stream), batch, name)
                return None
            pieces = [tensor(out, stream) for out in outputs[: len(self.order)]]
        else:
            whole = tensor(outputs[0], stream)
            if whole.shape[0] == batch or (
                "p" in self.order and whole.shape[0] == batch * (len(self.order) - 1)
            ):
                return None  # the conditional one alone, or with the perturbed one
            if whole.shape[0] != batch * len(self.order):
                raise self._misfit(name, whole, nominal)
            pieces = [whole[i * batch : (i + 1) * batch] for i in range(len(self.order))]
        return {letter: self._cut(v, nominal, name) for letter, v in zip(self.order, pieces, strict=True)}

    def further(self, outputs: list[Any], nominal: Tensor, name: str, stream: int = 0) -> list[Tensor]:
        """What the calls beside the parts said."""
        own = len(self.order) if self.calls == "apart" else 1
        return [self._cut(tensor(out, stream), nominal, name) for out in outputs[own:]]

    def others(self, parts: dict[str, Tensor], outputs: list[Any], nominal: Tensor, name: str) -> Others:
        """The predictions beside c and u by the names that rules know them by."""
        named = {NAMES[letter]: v for letter, v in parts.items() if letter in NAMES}
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

    def _refuse_together(self, whole: Tensor, batch: int, name: str) -> None:
        """One call that holds all parts is no sign that guidance is off."""
        if whole.shape[0] == batch * len(self.order):
            raise ValueError(
                f"{name} made its {len(self.order)} predictions in one call, {whole.shape[0]} rows for "
                f"{batch} samples, and its layout says one call for each; "
                f'pass layout=Layout("together", "{self.order}")'
            )

    def _misfit(self, name: str, v: Tensor, nominal: Tensor) -> ValueError:
        return ValueError(
            f"{name} made a prediction of shape {tuple(v.shape)} and a result of {tuple(nominal.shape)}, "
            f"which its layout ({self.calls}, {self.order}, keep {self.keep}) does not explain; "
            "pass layout=Layout(...)"
        )


def tensor(output: Any, stream: int = 0) -> Tensor:
    """The prediction in whatever a denoiser returns: a tuple, an output object, or a list of samples."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple):
        return tensor(output[stream])
    if isinstance(output, list):  # Z-Image: (C, 1, H, W) for each sample
        return torch.stack(output).squeeze(2)
    return tensor(output.sample)
