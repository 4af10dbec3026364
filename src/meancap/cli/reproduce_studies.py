"""`meancap reproduce label-noise`, `wind`, `feedback` and `avoid`: density ratios, and something to avoid."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .command import bar, comma_numbers


def add_feedback(kinds: Any) -> None:
    p = _parser(kinds, "feedback", "density-ratio feedback on held-out mixtures with a leak", seeds="2,3,4")
    p.add_argument("--mixtures", default="11,12,13,14", metavar="S", help="their seeds (11,12,13,14)")
    p.add_argument("--samples", type=int, default=2048, metavar="N", help="for each noise (2048)")
    p.set_defaults(run=feedback)


def feedback(args: argparse.Namespace) -> int:
    import torch

    from ..runs.feedback_mixtures import MixtureStudy, mixture_table, run_mixtures

    torch.set_num_threads(args.threads)
    mixtures, seeds = (tuple(map(int, comma_numbers(text, int))) for text in (args.mixtures, args.seeds))
    study = MixtureStudy(mixtures, args.samples, seeds=seeds)
    _run(run_mixtures(study, args.out), "feedback")
    _write(args.out, mixture_table(study, args.out))
    return 0


def add_avoid(kinds: Any) -> None:
    p = _parser(kinds, "avoid", "rules with something to avoid, on mixtures and garments")
    p.add_argument("--samples", type=int, default=512, metavar="N", help="of a mixture, for each seed (512)")
    p.add_argument(
        "--pictures", type=int, default=60, metavar="N", help="of garments, each of two seeds (60)"
    )
    p.set_defaults(run=avoid)


def avoid(args: argparse.Namespace) -> int:
    import torch

    from ..runs.avoid import AvoidStudy, avoid_table, run_avoid

    torch.set_num_threads(args.threads)
    seeds = tuple(int(v) for v in comma_numbers(args.seeds, int))
    study = AvoidStudy(args.samples, pictures=args.pictures, seeds=seeds)
    _run(run_avoid(study, args.out), "avoid")
    _write(args.out, avoid_table(study, args.out))
    return 0


def add_label_noise(kinds: Any) -> None:
    p = _parser(
        kinds,
        "label-noise",
        "guidance on networks with a known share of wrong labels",
        "--data DIR --models noise-0/model.safetensors noise-0.3/model.safetensors ",
    )
    p.add_argument("--models", required=True, type=Path, nargs="+", metavar="FILE",
                   help="weights by `meancap train --label-noise P`")  # fmt: skip
    p.add_argument("--data", required=True, type=Path, metavar="DIR", help="the files of Fashion-MNIST")
    p.add_argument("--samples", type=int, default=80, metavar="N", help="for each arm and seed (80)")
    p.add_argument("--calls", type=int, default=40, metavar="N", help="of the network per sample (40)")
    p.set_defaults(run=label_noise)


def label_noise(args: argparse.Namespace) -> int:
    import torch

    from ..runs.label_noise import LabelNoiseStudy, label_noise_table, run_label_noise, share_of

    torch.set_num_threads(args.threads)
    study = LabelNoiseStudy(args.samples, args.calls)
    shares = sorted(map(share_of, args.models), reverse=True)
    seeds = [int(v) for v in comma_numbers(args.seeds, int)]
    _run(run_label_noise(study, args.models, args.data, args.out, seeds), "label-noise")
    _write(args.out, list(label_noise_table(study, args.models, args.data, args.out, seeds)))

    def draw() -> dict[str, Any]:
        from ..report.label_noise import figures, ratio_findings
        from ..runs.scenes_table import write_table

        findings = [row for share in shares for row in ratio_findings(args.out, study, seeds, share)]
        write_table(findings, args.out / "ratios.csv")
        return figures(args.out, study, seeds)

    return _draw(args.out, draw)


def add_wind(kinds: Any) -> None:
    p = _parser(kinds, "wind", "rules on somebody else's model of wind series", "--presets 1ch ")
    p.add_argument("--presets", default="1ch,2ch,3ch", metavar="P", help="of the package (1ch,2ch,3ch)")
    p.add_argument("--days", type=int, default=3, metavar="N", help="of each regime, for each seed (3)")
    p.add_argument("--steps", type=int, default=50, help="of its DDIM sampler (50)")
    p.set_defaults(run=wind)


def wind(args: argparse.Namespace) -> int:
    import torch

    from ..runs.wind import WindStudy, run_wind, wind_table

    torch.set_num_threads(args.threads)
    study = WindStudy(tuple(args.presets.split(",")), args.days, args.steps)
    seeds = [int(v) for v in comma_numbers(args.seeds, int)]
    _run(run_wind(study, args.out, seeds), "wind")
    _write(args.out, list(wind_table(study, args.out, seeds)))

    def draw() -> dict[str, Any]:
        from ..report.wind import wind_series

        return {f"days-{preset}": wind_series(args.out, preset, seeds[0]) for preset in study.presets}

    return _draw(args.out, draw)


def _parser(
    kinds: Any, name: str, about: str, example: str = "", seeds: str = "0,1,2"
) -> argparse.ArgumentParser:
    p: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Give the same command again to go on after a stop.",
        epilog=f"example:\n  meancap reproduce {name} {example}--out out/{name}\n\n"
        "DIR gets run.json, cells/, table.csv and figures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the study's folder")
    p.add_argument("--seeds", default=seeds, metavar="S", help=f"of the noise ({seeds})")
    p.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    return p


def _run(steps: Iterable[str], name: str) -> None:
    for done in bar(steps, None, name, "cell"):
        if not sys.stderr.isatty():
            print(done, file=sys.stderr)


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    from ..runs.scenes_table import write_table

    rounded = [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    print(write_table(rounded, out / "table.csv").read_text(encoding="utf-8"), end="")


def _draw(out: Path, draw: Callable[[], dict[str, Any]]) -> int:
    try:
        from ..report.style import look, save_png
    except ImportError:
        print('meancap: no figures without matplotlib: pip install "meancap[report]"', file=sys.stderr)
        return 0
    with look():
        for name, figure in draw().items():
            save_png(figure, out / f"{name}.png", dots=130)
    return 0
