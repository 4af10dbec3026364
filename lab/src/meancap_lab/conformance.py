"""Does an implementation of guidance conform to conformance/vectors.json?

An implementation is a Python function or a program. The names of a function's parameters say what it takes:

    x, t, v_c, v_u            state, time and velocities data - noise, data at t = 1
    x, sigma, v_c, v_u        as many hosts have them: noise at sigma = 1, velocities noise - data
    m_c, m_u                  posterior means instead
    scale, gamma, form        λ, Γ, 'ball' or 'displacement'; a case that needs an absent one is not run
    convention                'data at 1' or 'noise at 1', of a function that takes t in both
    method, options, others   a method of the catalogue, its options, and further velocities by name

It returns an array, the guided velocity or mean, or a dict with any of share, mean and velocity, and raises
NotImplementedError for a case that it does not take. A program reads a JSON object per line and writes one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meancap.files import write_whole

ARRAYS = {"torch": "torch", "numpy": "numpy", "jax": "jax.numpy", "mlx": "mlx.core"}
_UNITS = {"float64": 2.0**-53, "float32": 2.0**-24}
_EXPECTED = ("share", "mean", "velocity")
_NOISE = "noise at 1"
_HALF = 1e-4  # larger limits are those of half precision and of badly conditioned shares
Case = dict[str, Any]


class _NotServedError(Exception):
    """A case that an implementation does not take."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on one case: 'pass', 'fail' or 'not run'."""

    name: str
    trap: str
    verdict: str
    error: float | None = None  # of a sample, relative to its largest element; of the quantity that did worst
    limit: float | None = None
    excess: float | None = None  # by which a mean passes its bound at most, in units of |m_c|
    note: str = ""


def read_cases(path: Path, dtype: str | None = None) -> list[Case]:
    """The cases with their inputs; `dtype` stands in for float64, with wider tolerances."""
    vectors = json.loads(path.read_text(encoding="utf-8"))
    cases = []
    for entry in vectors["cases"]:
        case = {"convention": "data at 1", **vectors["inputs"].get(entry.get("input"), {}), **entry}
        case["meaning"] = vectors["traps"][case["trap"]]
        if dtype and case["dtype"] == "float64":
            wider = _UNITS[dtype] / _UNITS["float64"]
            case |= {"dtype": dtype, "tolerance": {k: wider * v for k, v in case["tolerance"].items()}}
        cases.append(case)
    return cases


def check_function(name: str, cases: Sequence[Case], arrays: str = "torch") -> Iterator[Outcome]:
    """The verdicts on `module:function`, which is given arrays of this kind."""
    place, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"give the function as module:function, such as mine.guidance:cfg; got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    function = getattr(importlib.import_module(place), attribute)
    taken, make = inspect.signature(function).parameters, _array_maker(arrays)
    for given in cases:
        case = _with_noise_at_1(given) if "sigma" in taken else given
        try:
            answer = function(**_arguments(case, taken, make))
        except (NotImplementedError, _NotServedError) as reason:
            yield Outcome(case["name"], case["trap"], "not run", note=str(reason))
        except Exception as error:  # whatever foreign code raises is its verdict
            yield _failure(case, f"{type(error).__name__}: {error}")
        else:
            kind = "velocity" if "v_c" in taken else "mean"
            yield _judge(case, answer if isinstance(answer, dict) else {kind: answer})


def check_program(command: str, cases: Sequence[Case]) -> Iterator[Outcome]:
    """The verdicts on a program that reads a JSON object per line, a case, and answers each with one."""
    questions = [json.dumps(_without_nan(_asked(case))) for case in cases]
    done = subprocess.run(
        shlex.split(command), input="\n".join(questions) + "\n", capture_output=True, text=True, timeout=600
    )
    lines = done.stdout.splitlines()
    if len(lines) != len(cases):
        raise ValueError(
            f"{command} must answer {len(cases)} lines with one each; got {len(lines)} and exit code "
            f"{done.returncode}: {done.stderr.strip()[-200:]}"
        )
    for case, line in zip(cases, lines, strict=True):
        answer = json.loads(line)
        if "not run" in answer:
            yield Outcome(case["name"], case["trap"], "not run", note=str(answer["not run"]))
        else:
            yield _judge(case, answer)


def _asked(case: Case) -> Case:
    """The inputs of a case, with the posterior means and the further velocities by name."""
    k = -case["t"] if case["convention"] == _NOISE else 1 - case["t"]
    means = {f"m_{n}": [_sum(x, v, k) for x, v in zip(case["x"], case[f"v_{n}"], strict=True)] for n in "cu"}
    others = {key[2:]: v for key, v in case.items() if key.startswith("v_") and key not in ("v_c", "v_u")}
    hidden = (*_EXPECTED, "tolerance", "meaning", "exact", "input", *(f"v_{name}" for name in others))
    plain = {k: v for k, v in case.items() if k not in hidden}
    return plain | means | {"others": others}


def _sum(x: list[float], v: list[Any], k: float) -> list[float]:
    return [a + k * float(b) for a, b in zip(x, v, strict=True)]


def _with_noise_at_1(case: Case) -> Case:
    """The same case in the other convention: 1 - t for t, velocities negated."""
    if case["convention"] == _NOISE:
        return case
    negated = {k: _negative(v) for k, v in case.items() if k.startswith("v_") or k == "velocity"}
    return case | negated | {"t": 1 - case["t"], "convention": _NOISE}


def _without_nan(value: Any) -> Any:
    """The same with 'nan' for what JSON cannot write."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(v) for v in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _negative(value: Any) -> Any:
    return [_negative(v) for v in value] if isinstance(value, list) else value if value == "nan" else -value


def _array_maker(kind: str) -> Callable[[Any, Case], Any]:
    xp = importlib.import_module(ARRAYS[kind])
    if kind == "jax":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    if kind == "mlx":
        xp.set_default_device(xp.cpu)  # which alone has float64

    def make(values: list[Any], case: Case) -> Any:
        if not hasattr(xp, case["dtype"]):
            raise _NotServedError(f"{kind} has no {case['dtype']}")
        flat = [_numbers(sample) for sample in values]
        array = (xp.tensor if kind == "torch" else xp.array)(flat, dtype=getattr(xp, case["dtype"]))
        return array.reshape((len(values), *case["shape"]))

    return make


def _arguments(case: Case, taken: Mapping[str, Any], make: Callable[[Any, Case], Any]) -> dict[str, Any]:
    """What a function with these parameters is called with; raises an error if it does not take the case."""
    asked = _asked(case)
    uncapped = all(share == 1 for share in case.get("share", [0]))
    if case.get("method") == "CFG" and "method" not in taken:
        asked |= {"scale": case["options"]["scale"], "gamma": "inf", "form": "ball"}
        uncapped = True
    elif "method" in case and "method" not in taken:
        raise _NotServedError("takes no method")
    if "method" in case and "v_c" not in taken:
        raise _NotServedError("takes means")
    if not uncapped and "method" not in case and "gamma" not in taken:
        raise _NotServedError("has no cap")
    if asked.get("form") == "displacement" and "form" not in taken:
        raise _NotServedError("has no displacement form")
    if case["convention"] == _NOISE and not taken.keys() & {"sigma", "convention"}:
        raise _NotServedError("takes data at 1 only")
    arrays = {key: make(asked[key], case) for key in ("x", "v_c", "v_u", "m_c", "m_u")}
    others = {name: make(v, case) for name, v in asked["others"].items()}
    asked |= {**arrays, "sigma": case["t"], "others": others, "gamma": float(asked.get("gamma", "inf"))}
    return {key: value for key, value in asked.items() if key in taken}


def _failure(case: Case, note: str) -> Outcome:
    return Outcome(case["name"], case["trap"], "fail", math.inf, note=note[:200])


def _judge(case: Case, answer: Mapping[str, Any]) -> Outcome:
    listed = {
        k: v.tolist() if hasattr(v, "tolist") else v for k, v in answer.items() if k in case["tolerance"]
    }
    found = {key: [_flat(_numbers(sample)) for sample in value] for key, value in listed.items()}
    errors = {key: _error(value, case[key]) for key, value in found.items()}
    if not errors:
        return _failure(case, f"the answer has none of {', '.join(case['tolerance'])}")
    limits = case["tolerance"]
    worst = max(errors, key=lambda key: errors[key] / (limits[key] or 1e-300))
    failed = errors[worst] > limits[worst]
    note, excess = case["meaning"] if failed else "", _excess(case, found)
    verdict = "fail" if failed else "pass"
    return Outcome(case["name"], case["trap"], verdict, errors[worst], limits[worst], excess, note)


def _numbers(value: Any) -> Any:
    """Floats, also of null and of texts such as 'nan', which JSON has for numbers that are not finite."""
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return math.nan if value is None else float(value)


def _flat(value: Any) -> list[Any]:
    return [v for part in value for v in _flat(part)] if isinstance(value, list) else [value]


def _error(found: list[list[float]], expected: list[Any]) -> float:
    """The largest difference of a sample over its largest element; infinite if only one of them is a NaN."""
    worst = math.inf if len(found) != len(expected) else 0.0
    for got, wanted in zip(found, map(_flat, expected), strict=False):
        finite = all(map(math.isfinite, got))
        if wanted == ["nan"]:
            worst = math.inf if finite else worst
        elif len(got) != len(wanted) or not finite:
            worst = math.inf
        else:
            largest = max(map(abs, wanted)) or 1.0
            worst = max(worst, *(abs(a - b) / largest for a, b in zip(got, wanted, strict=True)))
    return worst


def _excess(case: Case, found: Mapping[str, list[list[float]]]) -> float | None:
    gamma, asked = float(case.get("gamma", "inf")), _asked(case)
    if math.isinf(gamma) or not found.keys() & {"mean", "velocity"}:
        return None
    k = -case["t"] if case["convention"] == _NOISE else 1 - case["t"]
    excess = []
    for i, m_c in enumerate(asked["m_c"]):
        m = found["mean"][i] if "mean" in found else _sum(case["x"][i], found["velocity"][i], k)
        ball = case["form"] == "ball"
        length, factor = (math.hypot(*m), gamma) if ball else (math.dist(m, m_c), gamma - 1)
        whole = math.hypot(*m_c)
        if whole > 0 and math.isfinite(length):
            excess.append(length / whole - factor)
    return max(excess, default=None)


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """One line per case, and what the failures usually mean."""
    width = max(len(o.name) for o in outcomes)
    lines = [f"{'case':<{width}}  {'trap':<12}  {'error':>8}  {'limit':>8}  verdict"]
    for o in outcomes:
        numbers = ("" if v is None else f"{v:.1e}" for v in (o.error, o.limit))
        error, limit = (f"{v:>8}" for v in numbers)
        lines.append(
            f"{o.name:<{width}}  {o.trap:<12}  {error}  {limit}  {o.verdict}{o.note and ': ' + o.note}"
        )
    counts = {v: sum(o.verdict == v for o in outcomes) for v in ("pass", "fail", "not run")}
    return "\n".join([*lines, ", ".join(f"{n} {verdict}" for verdict, n in counts.items())])


def write_outcomes(path: Path, label: str, outcomes: Sequence[Outcome]) -> None:
    """The verdicts as JSON, for `report_page`; an infinite error is null there."""
    rows = [asdict(o) | {"error": o.error if math.isfinite(o.error or 0) else None} for o in outcomes]
    write_whole(path, json.dumps({"label": label, "outcomes": rows}, indent=1) + "\n")


def report_page(files: Sequence[Path]) -> str:
    """A row per implementation and a line per failure, in Markdown, from the files of `write_outcomes`."""
    head = (
        "implementation",
        "pass",
        "fail",
        "not run",
        "largest error that passed",
        "largest excess of a bound",
    )
    rows, failures = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], []
    for file in files:
        run = json.loads(file.read_text(encoding="utf-8"))
        outcomes = [Outcome(**o) for o in run["outcomes"]]
        counts = [sum(o.verdict == v for o in outcomes) for v in ("pass", "fail", "not run")]
        passed = [o for o in outcomes if o.verdict == "pass" and (o.limit or 0) < _HALF]
        worst = [max((v for v in values if v is not None), default=0.0) for values in (
            [o.error for o in passed], [o.excess for o in passed]
        )]  # fmt: skip
        excess = f"{worst[1]:.0e}" if worst[1] > 0 else "none"
        rows.append(f"| {run['label']} | {' | '.join(map(str, counts))} | {worst[0]:.0e} | {excess} |")
        for o in outcomes:
            if o.verdict == "fail":
                error = "no number" if o.error is None else f"error {o.error:.1e}"
                failures.append(f"| {run['label']} | {o.name} | {o.trap} | {error} | {o.note} |")
    heads = [
        "",
        "| implementation | case that fails | trap | error | what it usually means |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(rows + (heads + failures if failures else [])) + "\n"
