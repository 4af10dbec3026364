"""The worked example of every check value: one state and three velocities of four elements, at t = 0.4."""

import torch

from meancap import Rule, guided_velocity

X = (1.0, -0.5, 0.25, 2.0)
V_C = (0.3, -1.2, 0.7, 0.4)
V_U = (0.1, -0.6, 0.9, -0.2)
V_N = (0.4, -0.9, 0.3, 0.1)  # under what is to be avoided, or under the image alone
T, T_NEXT = 0.4, 0.5


def guided_example(rule: Rule, axes: int = 2) -> tuple[float, ...]:
    """The guided velocity of the example after one step; a rule for images sees it as one of 2 x 2."""
    shape = (1, 4) if axes <= 2 else (1, *[1] * (axes - 3), 2, 2)
    x, v_c, v_u, v_n = (torch.tensor(v, dtype=torch.float64).reshape(shape) for v in (X, V_C, V_U, V_N))
    v, _ = guided_velocity(rule, x, T, v_c, v_u, t_next=T_NEXT, extra={"negative": v_n, "image": v_n})
    return tuple(v.flatten().tolist())
