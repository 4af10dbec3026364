"""The paper's image experiments as settings: which rule, at which scale, with how many evaluations.

    imagenet   SiT-XL/2 at 256 x 256: 50 samples of each of 1,000 classes, Euler, 20 and 50 evaluations
    sd35       Stable Diffusion 3.5 Medium: 5,000 COCO-2017 prompts at 1024 x 1024, 10 Euler steps, shift 3
               and its qualitative figures: four prompts, and one whose pictures hold a text
    fashion    the ImageNet protocol on the garments of this package, with the unguided run
    cifar      the same on its natural pictures, at larger scales too, with an anchored cap and an interval

Where the paper leaves a value open, the protocol carries the choice made here and the reason beside it, which
may be the authors' repository, github.com/ppposition/pmc at commit b27a9640 ("pmc" below). The paper's tables
come with the package as data. `plan_text` prints what a protocol would cost:

    work    floating-point operations of one network call: two for each weight that a token meets, and four
            for each pair of tokens and unit of width, in attention
    time    work x calls / (peak of the GPU x the share of it that such networks reach)
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from meancap.rules import CFG, Cap, CapDisplacement, Interval, Rule, apg
from meancap.schedules import Exponential

from ..models.sit import SiTConfig, named
from ..tensor_files import local_folder

if TYPE_CHECKING:
    from ..metrics.extractor import Weights


_ADM_REFERENCE = "VIRTUAL_imagenet256_labeled.npz"
_COCO_FOLDER = "val2017"


@dataclass(frozen=True)
class Choice:
    """A value that the paper does not state."""

    what: str
    value: str
    why: str


@dataclass(frozen=True)
class ImageSetting:
    """One run of a protocol."""

    method: str
    scale: float
    rule: Rule
    evaluations: int
    gamma: float | None = None
    share: float = 1.0  # of the protocol's samples
    channels: int | None = None  # guided latent channels; None: all

    @property
    def name(self) -> str:
        """The run's folder, such as pmc-1.05-scale-2.5-n50."""
        gamma = "" if self.gamma is None else f"-{self.gamma:.2f}"
        slug = self.method.lower().replace(" ", "-")
        return f"{slug}{gamma}-scale-{self.scale:g}-n{self.evaluations}"


@dataclass(frozen=True)
class ImageProtocol:
    """Settings that share model, samples and noise."""

    name: str
    settings: tuple[ImageSetting, ...]
    choices: tuple[Choice, ...]
    samples: int
    seed: int
    # The unguided and the capped run of the mechanism figure, with diagnostics.
    mechanism: tuple[ImageSetting, ...] = ()
    # Class, number of samples and seed of the mechanism figure; None: all classes or prompts.
    mechanism_samples: tuple[int, int, int] | None = None
    # The score protocols of the paper's table, each with the real images that the user brings.
    scored_by: tuple[tuple[str, str], ...] = ()

    @property
    def figure_runs(self) -> dict[str, ImageSetting]:
        """By folder, what the figures need: an unguided run beside a table, and those of the mechanism."""
        if not self.scored_by:  # a figure alone
            return {s.name: s for s in self.mechanism}
        beside = {f"figures/{s.name}": s for s in self.mechanism}
        if self.mechanism_samples is None:
            return beside
        inside = f"figures/class-{self.mechanism_samples[0]}"
        plain = next(iter(beside))
        return {plain: beside[plain], **{f"{inside}/{s.name}": s for s in self.mechanism}}

    @property
    def matched(self) -> list[str]:
        """The folders of the qualitative figure: no guidance, fixed CFG, the cap."""
        capped = self.mechanism[1]
        key = ("CFG", capped.scale, capped.evaluations)
        fixed = next(s for s in self.settings if (s.method, s.scale, s.evaluations) == key)
        return [next(iter(self.figure_runs)), fixed.name, capped.name]


_CIFAR_RADIUS = 5.0
_CHI = Choice("epsilon_m of chi", "1e-12", "not stated; chi = |m| / (|m_c| + epsilon_m)")


def imagenet(
    per_class: int = 50,
    channels: str = "4",
    vae: str = "stabilityai/sd-vae-ft-mse",
    dtype: str = "tf32",
) -> ImageProtocol:
    """Table 2 of the paper; `channels` is a number of guided latent channels, or paper."""
    if channels not in _CHANNELS:
        raise ValueError(f"--channels must be one of {', '.join(_CHANNELS)}; got {channels!r}")
    settings = [
        replace(setting, channels=_guided_channels(setting.method, channels))
        for evaluations in (20, 50)
        for scale in (1.5, 2.0, 2.5)
        for setting in _compared(scale, evaluations, radius=5.0)
    ]
    choices = (
        Choice(
            "guided channels",
            _CHANNELS[channels],
            "not stated; pmc guides 3 of 4 for CFG (SiT's own sampler) and 4 for PMC: --channels paper",
        ),
        Choice(
            "evaluations",
            "counted: 20 and 50 network evaluations",
            "the reference's --num-sampling-steps N makes N - 1 Euler evaluations; N = 21 and 51 correspond",
        ),
        Choice("APG", "eta 0, radius 5, momentum -0.5, on means", "not stated; APG's own row for DiT-XL/2"),
        Choice("C2FG rate", "0.2", "not stated for SiT; the paper's value for SD3.5"),
        Choice("autoencoder", vae, "not stated; pmc sit_sampling.py and SiT's sample.py have sd-vae-ft-mse"),
        Choice("precision", dtype, "not stated; pmc and SiT's sampler have tf32: float32 with TF32 products"),
        Choice(
            "class order and noise",
            "classes in turn, one seed per sample",
            "classes in turn as in pmc; its noise is one stream over batches, ours depends on no batch",
        ),
        Choice(
            "mechanism figure",
            "class 300, seed 20, 32 samples, 50 evaluations, gamma 1.10, all channels",
            "pmc analyze_cfg_gap.py; scale 2.5 is the paper's",
        ),
        Choice("classes of the qualitative figure", "16 of all", "not published"),
        _CHI,
    )
    mechanism = (
        ImageSetting("Conditional", 1.0, CFG(1.0), 50),
        ImageSetting("PMC", 2.5, CFG(2.5) | Cap(1.10), 50, gamma=1.10),
    )
    scored_by = (("adm-imagenet256", _ADM_REFERENCE),)
    samples = 1000 * per_class
    return ImageProtocol(
        "imagenet", tuple(settings), choices, samples, 0, mechanism, _MECHANISM_SAMPLES, scored_by
    )


_MECHANISM_SAMPLES = (300, 32, 20)
# What --channels does on SiT.
_CHANNELS = {
    "4": "all 4 for every method",
    "3": "the first 3 of 4 for every method, as SiT's own sampler",
    "paper": "the first 3 of 4 for CFG and C2FG, all 4 for PMC and APG (pmc has no C2FG and no APG)",
}


def _guided_channels(method: str, channels: str) -> int | None:
    if channels == "paper":
        return 3 if method in ("CFG", "C2FG") else None
    return 3 if channels == "3" else None


def sd35(prompts: int = 5000) -> ImageProtocol:
    """Table 3 of the paper."""
    scales = (3.0, 5.0, 7.0, 9.0)
    settings = [s for scale in scales for s in _compared(scale, 10, 15.0, CapDisplacement, (1.15,))]
    choices = (
        *_PIPELINE,
        Choice("APG", "eta 0, radius 15, momentum -0.5, on means", "not stated; APG's own row for SDXL"),
        Choice("C2FG progress", "p = 1 - sigma on the shifted grid", "the text allows step / N as well"),
        Choice(
            "COCO prompts",
            "the file given by --prompts",
            "the paper's file is not published; `meancap prompts coco` follows pmc generate_coco_sd35.py",
        ),
        Choice("COCO references", "bilinear 8-bit resize to 299 x 299", "the paper says only: directly"),
        Choice(
            "not pmc's published sweep",
            "COCO 2017, 5,000 prompts, 1024 x 1024, 10 steps, gamma 1.15, as the paper's table",
            "run_coco_sd35_cfg_sweep.sh has COCO 2014, 30,000 prompts, 512 x 512, 20 steps, gamma 1.2, "
            "Clean-FID and CLIP L/14: another experiment",
        ),
    )
    scored_by = (
        ("coco-torchmetrics", _COCO_FOLDER),
        ("coco-cleanfid-recall", _COCO_FOLDER),
        ("clip-b32", ""),
        ("imagereward-1.0", ""),
        ("hsv", ""),
    )
    return ImageProtocol("sd35", tuple(settings), choices, prompts, 42, scored_by=scored_by)


_PIPELINE = (
    Choice(
        "sigmas",
        "linspace(1, 0.002994012, steps), then shift 3, pinned",
        "the diffusers version is not stated; releases with issue #13243 shift the low end twice, and "
        "pinning keeps that grid whatever release runs",
    ),
    Choice(
        "noise",
        "one CPU generator for all prompts in order",
        "the paper's is a CUDA generator, whose stream a CPU cannot replay: --noise device on a GPU",
    ),
)
# The figures on SD3.5 by name: the appendix's four prompts, and the one of pmc sd35_cfg_gap.py with a text.
FIGURES = {
    "categories": (
        "A dog is shown sitting on rocks by the beach, photorealistic",
        "A beautiful mountain and river landscape, photorealistic",
        "A bedroom with a large bed sitting under a painting, photorealistic",
        "a person on a small boat with another boat in the background, photorealistic",
    ),
    "text": ("A cat holding a sign that says hello world, photorealistic",),
}
_COPIES = 8  # pictures of each prompt


def figure_prompts(figure: str) -> list[str]:
    """The lines of a figure's prompt file: each prompt eight times."""
    return [prompt for prompt in FIGURES[figure] for _ in range(_COPIES)]


def sd35_figure(figure: str) -> ImageProtocol:
    """A qualitative figure of the paper on SD3.5: no guidance, fixed CFG and PMC at scale 5."""
    settings = (
        ImageSetting("Conditional", 1.0, CFG(1.0), 20),
        ImageSetting("CFG", 5.0, CFG(5.0), 20),
        ImageSetting("PMC", 5.0, CFG(5.0) | CapDisplacement(1.15), 20, gamma=1.15),
    )
    choices = (
        *_PIPELINE,
        Choice("gamma, steps, seed and pictures", "1.15, 20, 43, 8 of each prompt", "pmc sd35_cfg_gap.py"),
        Choice("rows of the figure", "in order", "which pictures the paper shows is not published"),
        _CHI,
    )
    mechanism = (settings[0], settings[2])
    return ImageProtocol("sd35", settings, choices, len(figure_prompts(figure)), 43, mechanism)


def fashion_protocol(
    per_class: int = 100,
    scales: Sequence[float] = (1.5, 2.0, 4.0, 6.0),
    evaluations: Sequence[int] = (20, 50),
    seed: int = 0,
) -> ImageProtocol:
    """The ImageNet protocol on the shipped model, with the unguided run beside it."""
    settings = []
    for n in evaluations:
        settings.append(ImageSetting("Conditional", 1.0, CFG(1.0), n))
        for scale in scales:
            settings += _compared(scale, n, radius=2.5)
    choices = (
        Choice("APG", "eta 0, radius 2.5, momentum -0.5, on means",
               "a radius is absolute; this is about a tenth of the mean's length here, as 5 is for DiT-XL/2"),
        Choice("C2FG rate", "0.2", "as for SD3.5"),
        Choice("origin", "the mean picture of the training set", "the model's data are centred there"),
    )  # fmt: skip
    return ImageProtocol("fashion", tuple(settings), choices, 10 * per_class, seed)


def cifar(per_class: int = 500, evaluations: Sequence[int] = (20,), seed: int = 0) -> ImageProtocol:
    """The ImageNet protocol on the shipped natural pictures; beyond its scales half as many samples."""
    settings = []
    for n in evaluations:
        settings.append(ImageSetting("Conditional", 1.0, CFG(1.0), n))
        for scale in (1.5, 2.0, 2.5):
            settings += _compared(scale, n, radius=_CIFAR_RADIUS)
        for scale in (4.0, 8.0):
            further = [
                *_compared(scale, n, radius=_CIFAR_RADIUS),
                ImageSetting("PMC anchored", scale, CFG(scale) | Cap(1.10, anchor="first"), n, 1.10),
                ImageSetting("Interval", scale, CFG(scale) | Interval(0.2, 1.0), n),
            ]
            settings += [replace(s, share=0.5) for s in further]
    choices = (
        Choice("APG", f"eta 0, radius {_CIFAR_RADIUS:g}, momentum -0.5, on means",
               "a radius is absolute; this is about a tenth of the mean's length here, as 5 is for DiT-XL/2"),
        Choice("C2FG rate", "0.2", "as for SD3.5"),
        Choice("origin", "the mean picture of the training set", "the model's data are centred there"),
        _CHI,
    )  # fmt: skip
    mechanism = (
        ImageSetting("Conditional", 1.0, CFG(1.0), evaluations[0]),
        ImageSetting("PMC", 2.5, CFG(2.5) | Cap(1.10), evaluations[0], gamma=1.10),
    )
    scored_by = (("adm-cifar10", "cifar-10"),)
    samples = 10 * per_class
    return ImageProtocol("cifar", tuple(settings), choices, samples, seed, mechanism, None, scored_by)


def pinned_sigmas(steps: int) -> tuple[float, ...]:
    """The grid before its shift."""
    return tuple(1 + i * (0.002994012087583542 - 1) / (steps - 1) for i in range(steps))


def _compared(
    scale: float, n: int, radius: float, cap: type[Cap] = Cap, gammas: Sequence[float] = (1.05, 1.10)
) -> list[ImageSetting]:
    return [
        ImageSetting("CFG", scale, CFG(scale), n),
        ImageSetting("APG", scale, apg(scale, radius=radius), n),
        ImageSetting("C2FG", scale, CFG(Exponential(scale, 0.2)), n),
        *(ImageSetting("PMC", scale, CFG(scale) | cap(gamma), n, gamma) for gamma in gammas),
    ]


def paper_table(name: str) -> list[dict[str, str]]:
    """The rows of `paper_tables/NAME.csv`, as text."""
    lines = _text(f"{name}.csv").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def paper_source(name: str) -> str:
    """Where the table comes from, as one line."""
    lines = _text(f"{name}.csv").splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


def _text(name: str) -> str:
    return (files("meancap_lab") / "paper_tables" / name).read_text(encoding="utf-8")


_SHARE = 0.4  # of the peak; what transformers of this size reach, give or take a third
# Dense peaks from the data sheets.
_PEAKS = {
    "float32": {"A100": 19.5e12, "H100": 67e12, "RTX 4090": 82.6e12},
    "tf32": {"A100": 156e12, "H100": 494e12, "RTX 4090": 82.6e12},
    "bfloat16": {"A100": 312e12, "H100": 989e12, "RTX 4090": 165e12},
}
_PEAKS["float16"] = _PEAKS["bfloat16"]


# Operations of one pass of a score protocol, and the numbers that it keeps of an image.
_INCEPTION = (11.5e9, 2048 + 2023 + 1008)
_PASSES = {
    **dict.fromkeys(("adm-imagenet256", "coco-torchmetrics", "coco-cleanfid-recall"), _INCEPTION),
    "clip-b32": (14.8e9, 1024),
    "imagereward-1.0": (137e9, 1),
    "efficientnet-lite0": (0.8e9, 2280),
}
_CORE = 1.7e11  # operations a second of one core: 15 pictures through the Inception (studies/inception)
_REFERENCE_COUNT = {_ADM_REFERENCE: 10_000, _COCO_FOLDER: 5000}


def score_plan(images: Mapping[str, int], largest: int) -> list[str]:
    """What scores cost: `images` to pass under each protocol, references too; `largest` of one run."""
    lines = []
    for name, count in images.items():
        work, numbers = _PASSES.get(name, (0.0, 3))
        total, kept = count * work, 4e-9 * numbers
        hours = [f"{gpu} {total / (peak * _SHARE) / 3600:.2g} h" for gpu, peak in _PEAKS["float32"].items()]
        lines.append(
            f"  {name}: {count:,} passes of {work / 1e9:.1f} GFLOP = {total:.3g} FLOP; {', '.join(hours)}, "
            f"one CPU core {total / _CORE / 3600:.3g} h; features {count * kept:.1f} GB on disk, "
            f"{largest * kept:.1f} GB in memory for the largest run"
        )
    return [f"scores: passes x operations / (float32 peak x {_SHARE}), N processes take 1/N:", *lines]


@dataclass(frozen=True)
class _Need:
    """Something that a run needs, and whether it is here."""

    what: str
    here: bool
    how: str


def imagenet_needs(checkpoint: Path | None, vae: str) -> list[_Need]:
    """What the ImageNet protocol needs."""
    from ..metrics.inception import INCEPTION

    adm = "openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches/imagenet/256"
    return [
        _Need(
            "the checkpoint",
            checkpoint is not None and checkpoint.is_file(),
            "give --checkpoint; SiT-XL-2-256.pt is linked from github.com/willisma/SiT",
        ),
        _Need("the autoencoder", _is_local(vae), f"hf download {vae}"),
        _gpu(),
        _weights(INCEPTION),
        _Need(
            "for scores, ADM's reference",
            Path(_ADM_REFERENCE).is_file(),
            f"{_ADM_REFERENCE} from {adm}; looked for in this folder, or where --reference says",
        ),
    ]


def sd35_needs(protocol: ImageProtocol, pipeline: str, prompts: Path | None) -> list[_Need]:
    """What the SD3.5 protocol needs; its figure is not scored."""
    from ..metrics.image_text import BERT_WORDS, CLIP_NAME, CLIP_VARIABLE, IMAGE_REWARD
    from ..metrics.inception import INCEPTION

    needs = [_Need("the pipeline", _is_local(pipeline), f"hf download {pipeline}"), _gpu()]
    if not protocol.scored_by:
        return needs
    given = prompts is not None and prompts.is_file()
    return [
        *needs,
        _Need("the prompts", given, "give --prompts: 5,000 COCO-2017 validation captions, one per line"),
        *map(_weights, (INCEPTION, IMAGE_REWARD, BERT_WORDS)),
        _Need(
            "for scores, CLIP ViT-B/32",
            _is_local(os.environ.get(CLIP_VARIABLE) or CLIP_NAME),
            f"hf download {CLIP_NAME}, or set {CLIP_VARIABLE} to its folder",
        ),
        _Need(
            "for scores, the images of COCO 2017 val",
            Path(_COCO_FOLDER).is_dir(),
            f"images.cocodataset.org/zips/{_COCO_FOLDER}.zip, unpacked; looked for in this folder, or where "
            "--reference says",
        ),
    ]


def _weights(file: Weights) -> _Need:
    places = list(file.places())
    found = next((f", {place}" for place in places if place.is_file()), "")
    folders = ", ".join(dict.fromkeys(str(place.parent) for place in places))
    how = (
        f"{file.names[0]} from {file.source}; looked for at ${file.variable}, in $MEANCAP_WEIGHTS and in "
        f"{folders}, or where --weights says"
    )
    return _Need(f"for scores, {file.title}{found}", bool(found), how)


def _gpu() -> _Need:
    return _Need("a CUDA device", torch.cuda.is_available(), "none is visible; a CPU would take months")


def _is_local(source: str) -> bool:
    try:
        local_folder(source)
    except (ValueError, ImportError):
        return False
    return True


def sit_work(config: SiTConfig) -> float:
    """Operations of one forward pass for one latent."""
    per_token = config.depth * 12 * config.width**2
    per_token += (config.channels + config.out_channels) * config.patch**2 * config.width
    modulation = (6 * config.depth + 2) * config.width**2 + (256 + config.width) * config.width
    attention = 4 * config.depth * config.tokens**2 * config.width
    return 2.0 * (config.tokens * per_token + modulation) + attention


def _sd35_work() -> float:
    """SD3.5 Medium at 1024 x 1024: 2.24 G weights, 4,096 picture and 333 text tokens, 24 joint attentions and
    13 more over the picture tokens alone, 1,536 wide."""
    tokens, text, width = 4096, 333, 1536
    # Text has its own half of the weights in each joint block; a token meets about half of all.
    weights = 2.24e9 / 2
    attention = 4 * width * (24 * (tokens + text) ** 2 + 13 * tokens**2)
    return 2.0 * weights * (tokens + text) + attention


def plan_text(
    protocol: ImageProtocol,
    needs: list[_Need],
    out: Path,
    picture: int,
    dtype: str,
    given: str = "",
    *,
    tiny: bool = False,
) -> str:
    """Settings, arithmetic, what is missing, and commands to copy; `given` are options to repeat."""
    lines = [f"{protocol.name}: {len(protocol.settings)} runs of {protocol.samples:,} samples", ""]
    for s in protocol.settings:
        lines.append(f"  {s.name:<28} {s.rule}")
    lines += ["", "left open by the paper, and chosen here:"]
    lines += [f"  {c.what}: {c.value} ({c.why})" for c in protocol.choices]
    if tiny:
        lines += ["", "rehearsal: random weights on this machine, a minute; the scores are those of `hsv`"]
        return "\n".join([*lines, f"    meancap reproduce {protocol.name} {given}--out {out}"])
    lines += ["", *_cost(protocol, dtype)]
    table = len(protocol.settings) * protocol.samples
    passes = {name: table + _REFERENCE_COUNT.get(real, 0) for name, real in protocol.scored_by}
    lines += score_plan(passes, protocol.samples) if passes else []
    disk = len(protocol.settings) * protocol.samples * picture * picture * 3
    free = shutil.disk_usage(_existing(out)).free
    lines += [
        f"disk: {disk / 1e9:.0f} GB of pixels (less as PNG), and one run more while its .npz is made; "
        f"{free / 1e9:.0f} GB are free at {out}",
        "",
        "needed:",
    ]
    lines += [f"  [{'x' if n.here else ' '}] {n.what}" + ("" if n.here else f": {n.how}") for n in needs]
    if protocol.name == "imagenet":
        lines.append("  The network of `meancap weights inception` has no last layer: no Inception score.")
    return "\n".join([*lines, "", *_commands(protocol, out, given)])


def _cost(protocol: ImageProtocol, dtype: str) -> list[str]:
    """Calls, operations and hours of the runs and of their figures."""
    work = sit_work(named("SiT-XL/2")) if protocol.name == "imagenet" else _sd35_work()
    calls = sum(2 * s.evaluations for s in protocol.settings) * protocol.samples
    lines = [
        f"work: 2 calls x evaluations x samples, over all runs = {calls:.3g} calls",
        f"      one call = {work / 1e9:.1f} GFLOP, together {calls * work:.3g} FLOP, without the decoder",
    ]
    for gpu, peak in _PEAKS[dtype].items():
        seconds = calls * work / (peak * _SHARE)
        per_run = seconds / 3600 / len(protocol.settings)
        lines.append(
            f"      {gpu}, {dtype}: {calls * work:.3g} / ({peak / 1e12:.0f} T x {_SHARE}) = "
            f"{seconds / 3600:.3g} h on one, "
            f"{per_run:.2g} h a run; N of them under torchrun take 1/N"
        )
    lines.append("      times are arithmetic, not measured: no GPU run stands behind them")
    if protocol.mechanism_samples is not None:
        counts = [1000, *[protocol.mechanism_samples[1]] * len(protocol.mechanism)]
        further = sum(
            2 * s.evaluations * n for s, n in zip(protocol.figure_runs.values(), counts, strict=True)
        )
        named_runs = zip(protocol.figure_runs, counts, strict=True)
        listed = ", ".join(f"{name} ({n:,} samples)" for name, n in named_runs)
        lines.append(f"figures: {listed}: {further:.3g} calls, {further / calls:.1%} of the table's")
    return lines


def _commands(protocol: ImageProtocol, out: Path, given: str) -> list[str]:
    """Lines to copy: making the runs on one GPU or many, scoring them, the report."""
    reproduce = f"reproduce {protocol.name} {given}--out {out}"
    counts = sorted({s.evaluations for s in protocol.settings})
    runs = " ".join(f"{out}/*-n{n}" for n in counts)
    lines = [
        "commands to copy (rerun one to resume it):",
        "  one GPU:",
        f"    meancap {reproduce}",
        "  one machine with eight:",
        f"    torchrun --standalone --nproc_per_node 8 -m meancap {reproduce}",
        f"  two machines with eight each that share {out}; start it on both, HOST is one of them:",
        "    torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 "
        f"-m meancap {reproduce}",
        "  the same under SLURM:",
        f"    srun --nodes 2 --ntasks 16 --gpus-per-task 1 meancap {reproduce}",
    ]
    if not protocol.scored_by:
        return [*lines, f"  it ends with {out}/qualitative.png and mechanism.png"]
    lines.append("  then the scores (torchrun and srun as above) and the report beside the paper's table:")
    for name, reference in protocol.scored_by:
        against = f" --reference {reference}" if reference else ""
        lines.append(f"    meancap score {runs} --protocol {name}{against}")
    lines.append(f"    meancap report {out}")
    if protocol.name == "sd35":
        lines.append("  the paper's figures of four prompts and of a text, each with mechanism.png:")
        lines += [f"    meancap reproduce sd35 --figure {name} --out {out}-{name}" for name in FIGURES]
    return lines


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
