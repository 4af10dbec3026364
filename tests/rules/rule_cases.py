"""Velocities for every test of the parts, the worked example, and a network that counts its calls."""

import torch

from cases import V_C, V_U, T, X
from meancap import Prediction, guided_velocity
from meancap.sampling import Predictor

SHAPE = (3, 4, 8, 8)
_V_N = torch.tensor([[0.4, -0.9, 0.3, 0.1]], dtype=torch.float64)  # under what is to be avoided, or the image


def velocities(seed, shape=SHAPE):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3)]


def dot(a, b):
    """The inner product of each sample, shaped to multiply it."""
    return (a * b).flatten(1).sum(1).reshape(-1, *[1] * (a.dim() - 1))


def norm(v):
    return dot(v, v).sqrt()


def guided_example(rule, axes=2):
    """The guided velocity of the example after one step; a rule for images sees it as one of 2 x 2."""
    shape = (1, 4) if axes <= 2 else (1, *[1] * (axes - 3), 2, 2)
    x, v_c, v_u, v_n = (v.reshape(shape) for v in (X, V_C, V_U, _V_N))
    v, _ = guided_velocity(rule, x, T, v_c, v_u, t_next=0.5, extra=dict.fromkeys(rule.needs, v_n))
    return tuple(v.flatten().tolist())


class Network(Predictor):
    """A predictor that counts its calls, for both predictions and for the conditional one alone."""

    def __init__(self, shift=0.0):
        self.shift, self.both, self.half = shift, 0, 0

    def __call__(self, x, t):
        self.both += 1
        return Prediction.from_velocity(x, t, torch.sin(3 * x + self.shift + t), torch.cos(x) - t)

    def conditional(self, x, t):
        self.half += 1
        v = torch.sin(3 * x + self.shift + t)
        return Prediction.from_velocity(x, t, v, v)
