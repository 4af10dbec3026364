"""A policy trained on a mixture does what it was trained for."""

import torch

from meancap import CFG, parse, sample, trajectory, uniform
from meancap_lab.bench.policy import Policy, train_policy
from meancap_lab.mixtures import Condition, Mixture

MEANS = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -0.5]], dtype=torch.float64)
CONDITION = Condition(Mixture(MEANS, std=0.6), (0,))
TIMES = uniform(10)
COST = 0.2


def objective(condition, rule, x, times, cost):
    """Log p(condition | x) at the end less `cost` times the running cost of the run, for each sample."""
    spent = torch.zeros(len(x), dtype=x.dtype)
    for step in trajectory(condition.predict, rule, x, times):
        t, s, g = step.t, step.t_next, step.m - step.prediction.m_c
        spent = spent + (s - t) * t / (1 - t) ** 3 * g.square().sum(1)
        x = step.x_next
    return condition.log_posterior(x, times[-1]) - cost * spent


def test_a_trained_policy_beats_every_constant_scale():
    policy = train_policy(CONDITION, CONDITION.predict, TIMES, cost=COST, hidden=16, rounds=60, rate=0.05)
    x = torch.randn(2048, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(99))
    found = objective(CONDITION, policy, x, TIMES, cost=COST)
    for scale in (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0):
        gain = found - objective(CONDITION, CFG(scale), x, TIMES, cost=COST)  # paired on the same noise
        assert float(gain.mean()) > 4 * float(gain.std()) / 2048**0.5, scale
    again = parse(str(policy), extra={"Policy": Policy})
    assert again == policy
    assert torch.equal(
        sample(CONDITION.predict, again, x, TIMES), sample(CONDITION.predict, policy, x, TIMES)
    )
