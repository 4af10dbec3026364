"""The pilot of a calibration in the post-CFG hook: it measures both means and returns the conditional one."""

from __future__ import annotations

from torch import Tensor

from ..pilot import Pilot
from .arguments import Args, negative, negative_in_range, noise_levels, sigmas, without_negative


class PilotHook:
    """Unguided runs of one patched model; `pilot.begin()` goes before each of them."""

    def __init__(self) -> None:
        self.pilot = Pilot()

    def __call__(self, args: Args) -> Tensor:
        if without_negative(args) or not negative_in_range(args):
            raise ValueError(
                "a calibration needs the negative at every step: wire in one without a range of its own"
            )
        how = noise_levels(args).place(sigmas(args))
        means = args["cond_denoised"], negative(args)[1], args["denoised"]
        return self.pilot.guide(how, args["input"], *means)
