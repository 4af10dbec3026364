"""One cell: a family of rules on one problem, swept over its scales and measured.

    variant 'rule'            the rule itself
            'open loop'       CFG with the rule's effective scale at each time, averaged over the samples
            'open loop push'  the same, averaged with the gap as weight: the same total push at each time
            'fixed mean'      CFG at the average of the effective scale over samples and steps
            'fixed push'      the same, weighted by the gap: the same total push over the run

The variants after the first exist at `config.matched` scales, for rules whose effective scale differs between
samples: they answer whether a rule is more than a weaker CFG. Where the gap vanishes and the displacement
does not, as with momentum, an unweighted average has no bound; beyond `LARGEST` it is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...diagnostics import Record
from ...lab.measures import MEASURES, Ruler
from ...lab.problems import Problem
from ...lab.volume import displaced, kl_terms, log_volumes
from ...rules import CFG, Rule
from ...sampling import trajectory
from ...sampling.open_loop import open_loop
from ...schedules import Piecewise
from .config import BenchConfig, noise, resamples
from .families import TRUTH, Family

LARGEST = 1e4  # samples beyond it are lost: no problem's data are within a factor of 100 of it
_ADAPTIVE = 1e-6


@dataclass(frozen=True, eq=False)
class Reading:
    """The measures of one rule: in the order of MEASURES, nan where a measure does not apply."""

    variant: str
    scale: float
    rule: str
    values: Tensor  # (measures,)
    replicates: Tensor  # (resamples, measures)
    nfe: int
    lost: float  # share of samples that ran away; then nothing is measured
    slice_error: float
    failure: str = ""


@lru_cache(maxsize=2)
def ruler(problem: Problem, config: BenchConfig) -> Ruler:
    """Everything about a truth, once per process; problems that share a truth share it."""
    return Ruler(problem.condition(), config.n, config.slices)


def measure_family(family: Family, problem: Problem, config: BenchConfig) -> list[Reading]:
    """The sweep of a family and, where it is adaptive, its own average run open-loop."""
    of = problem.exact() if family == TRUTH else problem
    readings = []
    for scale in family.scales(config):
        try:
            rule = family.rule(scale, problem, config)
            readings.append(measure_rule(rule, of, config, scale=scale))
            if scale in config.matched and family.nominal:
                readings += [
                    measure_rule(r, of, config, name, scale) for name, r in averages(rule, of, config)
                ]
        except (ValueError, TypeError) as error:  # a rule that cannot run on vectors says so, and is listed
            readings.append(_failed(family, scale, config, str(error)))
    return readings


def measure_rule(
    rule: Rule, problem: Problem, config: BenchConfig, variant: str = "rule", scale: float = math.nan
) -> Reading:
    """One rule at one scale."""
    model, rod = problem.model(), ruler(problem.exact(), config)
    start = noise(rod.directions.shape[1], config)
    first = _first_of_blocks(start, config)
    with_kl = start.shape[1] <= config.kl_dimensions
    everything = torch.cat([start, displaced(first)]) if with_kl else start
    end, nfe = _end(model.predict, rule, everything, config)
    x, moved = end[: config.n], end[config.n :]
    gone = float((~(x.abs() < LARGEST).all(1)).double().mean())
    values = torch.full((len(MEASURES),), math.nan, dtype=torch.float64)
    replicates = torch.full((config.resamples, len(MEASURES)), math.nan, dtype=torch.float64)
    if gone:
        return Reading(variant, scale, str(rule), values, replicates, nfe, gone, math.nan)
    blocks = resamples(config)
    counts = blocks.repeat_interleave(config.points, 1)
    one, many = rod.read(x), rod.read(x, counts)
    if with_kl:
        law = rod.condition.conditional
        terms = kl_terms(first, _first_of_blocks(x, config), log_volumes(moved), law)
        each = terms.reshape(config.blocks, -1).mean(1)
        one["kl"], many["kl"] = each.mean(), blocks.double() @ each / config.blocks
    for i, name in enumerate(MEASURES):
        if name in one:
            values[i], replicates[:, i] = one[name], many[name]
    return Reading(variant, scale, str(rule), values, replicates, nfe, gone, rod.slice_error(x))


def averages(rule: Rule, problem: Problem, config: BenchConfig) -> list[tuple[str, Rule]]:
    """The open-loop rivals of an adaptive rule; none for a rule that only follows the clock."""
    start = noise(problem.model().condition.mixture.means.shape[1], config)[:: max(1, config.n // 2048)]
    record = Record()
    for _ in trajectory(problem.model().predict, rule, start, config.times, record=record):
        pass
    seen = record.stacked()
    scale, gap, times = seen["scale"], seen["gap"], seen["t"][:, 0].tolist()
    if not scale.isfinite().all() or (not rule.turns and float(scale.std(1).max()) < _ADAPTIVE):
        return []
    mean = open_loop(record)
    push = (scale * gap).sum(1) / gap.sum(1).clamp_min(1e-300)
    total = float((scale * gap).sum() / gap.sum())
    rivals = [
        ("open loop", mean),
        ("open loop push", Piecewise(tuple(times), tuple(push.tolist()))),
        ("fixed mean", Piecewise((0.0,), (float(scale.mean()),))),
        ("fixed push", Piecewise((0.0,), (total,))),
    ]
    return [
        (name, CFG(schedule if len(schedule.values) > 1 else schedule.values[0]))
        for name, schedule in rivals
        if max(map(abs, schedule.values)) < LARGEST
    ]


def _end(predict: object, rule: Rule, x: Tensor, config: BenchConfig) -> tuple[Tensor, int]:
    """Where the samples end, and evaluations: the unconditional one counts where something was displaced."""
    nfe = 0
    for step in trajectory(predict, rule, x, config.times):  # type: ignore[arg-type]
        nfe += 1 + int((step.m != step.prediction.m_c).any())
        x = step.x_next
    return x, nfe


def _first_of_blocks(x: Tensor, config: BenchConfig) -> Tensor:
    return x.reshape(config.blocks, config.points, -1)[:, : config.kl_points].flatten(0, 1)


def _failed(family: Family, scale: float, config: BenchConfig, why: str) -> Reading:
    nothing = torch.full((config.resamples + 1, len(MEASURES)), math.nan, dtype=torch.float64)
    return Reading("rule", scale, family.call, nothing[0], nothing[1:], 0, 0.0, math.nan, why)
