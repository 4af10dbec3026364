"""Our own implementations, for the checker: the library, and the file for other arrays.

meancap conformance check conformance.ours:library
meancap conformance check conformance.ours:arrays --arrays numpy
"""

import meancap.rules
from integrations.arrays.guided_arrays import guided_velocity as arrays  # noqa: F401
from meancap import CFG, Cap, CapDisplacement, Prediction
from meancap.rules import displace

_CAPS = {"ball": Cap, "displacement": CapDisplacement}
_STATELESS = {"apg": {"momentum": None}, "cfg_zero_star": {"zero_steps": 0}}


def library(
    x, t, v_c, v_u, scale=None, gamma=None, form=None, convention=None, method=None, options=None, others=None
):
    """Share, mean and velocity of a cap behind CFG, or the velocity of a method of the catalogue."""
    if convention == "noise at 1":
        found = library(x, 1 - t, -v_c, -v_u, scale, gamma, form)
        return found | {"velocity": -found["velocity"]}
    p = Prediction.from_velocity(x, t, v_c, v_u).beside(**(others or {}))
    if method is not None:
        return {"velocity": displace(_rule(method, options), p)[0].output(v_c.dtype)}
    g, _ = displace(CFG(scale) | _CAPS[form](gamma), p)
    share = g.coefficient / (scale - 1) if scale != 1 else g.coefficient + 1
    return {"share": share, "mean": g.mean().to(x.dtype), "velocity": g.output(v_c.dtype)}


def _rule(method, options):
    if method == "Ramp":
        return CFG(meancap.rules.Ramp(**options))
    if method == "tv_cfg":
        options = {"scale": options["scale"], "times": options["steps"]}
    return getattr(meancap.rules, method)(**options, **_STATELESS.get(method, {}))
