"""Predictions to test on: random ones, adversarial ones, and the check values of the published formulas."""

import torch

from meancap import Prediction

UNIT = 2.0**-24

# One state and two velocities on which every published formula has been worked out by hand.
X = torch.tensor([[1, -0.5, 0.25, 2]], dtype=torch.float64)
V_C = torch.tensor([[0.3, -1.2, 0.7, 0.4]], dtype=torch.float64)
V_U = torch.tensor([[0.1, -0.6, 0.9, -0.2]], dtype=torch.float64)
T = 0.4


def random_prediction(*shape, seed=0, t=0.4, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x, v_c, other = (torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3))
    return Prediction.from_velocity(x.to(dtype), t, v_c.to(dtype), (v_c + 0.7 * other).to(dtype))


def adversarial(seed, samples, size):
    """Means and gaps in float32: every alignment, gaps from 1e-3 to 1e3 of the mean, flat to heavy-tailed."""
    g = torch.Generator().manual_seed(seed)
    m = torch.randn(samples, size, generator=g)
    if seed % 4 == 1:
        m = m.abs() + 0.5
    if seed % 4 == 2:
        m = m * torch.exp(3 * torch.randn(samples, size, generator=g))
    if seed % 4 == 3:
        m = m * 10.0 ** torch.randint(-12, 13, (samples, 1), generator=g)
    cosines = torch.tensor([-1.0, -0.999, -0.5, -1e-3, 0.0, 1e-3, 0.3, 0.7, 0.999, 1.0])
    cos = cosines[torch.randint(10, (samples,), generator=g)][:, None].double()
    unit = m.double() / m.double().norm(dim=1, keepdim=True)
    across = torch.randn(samples, size, generator=g).double()
    across -= (across * unit).sum(1, keepdim=True) * unit
    across /= across.norm(dim=1, keepdim=True)
    length = 10 ** (6 * torch.rand(samples, 1, generator=g) - 3).double() * m.double().norm(
        dim=1, keepdim=True
    )
    gap = (cos * unit + (1 - cos**2).clamp(min=0).sqrt() * across) * length
    return m, gap.float()


class Blobs:
    """Round Gaussians of one width with their exact posterior means; `members` are the condition."""

    def __init__(self, means, weights=None, *, std, members=(0,)):
        self.means, self.std, self.members = means, std, list(members)
        self.weights = torch.as_tensor([1.0] * len(means) if weights is None else weights).to(means)

    def responsibilities(self, x, t):
        spread = (1 - t) ** 2 + (t * self.std) ** 2
        away = (x[:, None] - t * self.means).square().sum(-1)
        return (self.weights.log() - away / (2 * spread)).softmax(1)

    def posterior_mean(self, x, t):
        centre = self.responsibilities(x, t) @ self.means
        return centre + t * self.std**2 / ((1 - t) ** 2 + (t * self.std) ** 2) * (x - t * centre)

    @property
    def conditional(self):
        return Blobs(self.means[self.members], self.weights[self.members], std=self.std)

    def sample(self, n, draw):
        k = torch.multinomial(self.weights, n, replacement=True, generator=draw)
        z = torch.randn(n, self.means.shape[1], generator=draw, dtype=self.means.dtype)
        return self.means[k] + self.std * z

    def predict(self, x, t):
        return Prediction(x, t, self.conditional.posterior_mean(x, t), self.posterior_mean(x, t))

    def velocities(self, x, t):
        p = self.predict(x, t)
        return [(m - x) / (1 - t) for m in (p.m_c, p.m_u)]
