"""What the kernels are compared with: float64 by the textbook, and the eager path."""

import pytest
import torch

from meancap import guided_velocity
from meancap.rules import fused


def eager(*args, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "on_cuda", lambda x: False)
        return guided_velocity(*args, **options)


def velocities(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    x, v_c, other = (torch.randn(*shape, generator=g) for _ in range(3))
    return x.to(dtype), v_c.to(dtype), (v_c + other).to(dtype)


def flat(v):
    return v.double().flatten(1)


def truth(x, t, v_c, v_u, c, gamma, floor=0.0, ball=True):
    """|m_c|, |gap|, <m_c, gap> / |gap| and the capped coefficient in float64, by the textbook."""
    t, c, gamma, floor = (
        torch.as_tensor(v, dtype=torch.float64).expand(len(x)) for v in (t, c, gamma, floor)
    )
    m, d = flat(x) + (1 - t)[:, None] * flat(v_c), (1 - t)[:, None] * (flat(v_c) - flat(v_u))
    m_length, d_length, dot = m.norm(dim=1), d.norm(dim=1), (m * d).sum(1)
    along = dot / d_length
    if ball:  # a s^2 + 2 b s - room = 0 for g = c d
        a, b = (c * d_length) ** 2, c * dot
        room = torch.maximum(gamma * m_length, floor) ** 2 - m_length**2
        s = (-b + (b * b + a * room).sqrt()) / a
    else:
        s = torch.maximum((gamma - 1) * m_length, floor) / (c.abs() * d_length)
    return m_length, d_length, along, c * s.clamp(0, 1)


def close(found, exact, rtol):
    torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=0)
