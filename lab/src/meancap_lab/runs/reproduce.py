"""A protocol as a folder of runs that share their noise, and one table over them.

    OUT/<setting>/    a run folder for each setting
    OUT/figures/<setting>/   small runs with diagnostics, for the paper's mechanism and qualitative figures
    OUT/table.csv     one row per setting: scale, what guidance did, and the scores of `reproduce fashion`
    OUT/protocol.json the settings and the choices that the paper leaves open

`tiny_imagenet` and `tiny_sd35` write random weights in the published formats, for rehearsing a whole protocol
without the real ones: the pictures mean nothing, but every file, option and count is exercised. `make_demo`
makes the runs of `meancap demo`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from meancap.files import csv_text, write_whole
from meancap.rules import parse
from meancap.sampling import noise, uniform

from ..mixtures import SINGLE, flow
from ..models.classes import fashion
from ..models.scenes.model import scenes
from ..models.sit import SiT, SiTConfig
from ..tensor_files import write_tensors
from .config import RunConfig
from .folder import Ledger, Run, folder_lock
from .generate import ClassSource, SceneSource, device_of, make_run, open_model
from .paper_protocols import ImageProtocol, ImageSetting, pinned_sigmas
from .scoring import read_scores, score_runs

_FEW = {"imagenet": 1, "cifar": 10}  # samples of each class in the runs of the figures


@dataclass(frozen=True)
class BlockProgress:
    """A block of a setting has been made; `total` counts this process's blocks of all settings."""

    setting: str
    done: int
    total: int


def setting_configs(protocol: ImageProtocol, base: RunConfig) -> dict[str, RunConfig]:
    """The runs of a protocol by folder: its settings, then its figures; `base` has model and format."""
    runs = {s.name: _setting_config(protocol, s, base) for s in protocol.settings}
    for folder, s in protocol.figure_runs.items():
        config = _setting_config(protocol, s, replace(base, diagnostics=True))
        if protocol.mechanism_samples is not None and "/class-" in folder:
            label, count, seed = protocol.mechanism_samples
            batch = min(base.batch, count)
            config = replace(config, classes=(str(label),), per_class=count, seed=seed, batch=batch)
        elif protocol.name in _FEW:
            config = replace(config, per_class=_FEW[protocol.name])
        runs[folder] = config
    return runs


def _setting_config(protocol: ImageProtocol, s: ImageSetting, base: RunConfig) -> RunConfig:
    config = replace(base, rule=str(s.rule), steps=s.evaluations, seed=protocol.seed)
    if protocol.name != "sd35":
        share = max(1, round(s.share * config.per_class))
        return replace(config, channels=s.channels, per_class=share)
    # The chain replaces the pipeline's combination, whose scale only switches guidance on: above 1.
    scale = 2.0 if s.scale == 1 else s.scale
    noise = "device" if base.noise == "device" else "stream"
    return replace(config, guidance_scale=scale, sigmas=pinned_sigmas(s.evaluations), noise=noise)


def reproduce(
    protocol: ImageProtocol, base: RunConfig, out: Path, *, local: int = 0, rank: int = 0, world: int = 1
) -> Iterator[BlockProgress]:
    """Makes every run of the protocol, yielding after each block; `finish` writes the table."""
    source = open_model(base, device_of(base.device, local))
    runs = {name: source.prepare(config) for name, config in setting_configs(protocol, base).items()}
    chosen = {"left_open": [asdict(choice) for choice in protocol.choices]}
    shares = {name: range(rank, run.config.blocks, world) for name, run in runs.items()}
    done, total = 0, sum(map(len, shares.values()))
    for name, run in runs.items():
        store = run.store(out / name, **chosen)
        done += len(shares[name]) - len(store.missing(shares[name]))
        for _ in make_run(store, run.make, rank, world):
            done += 1
            yield BlockProgress(name, done, total)


def finish(protocol: ImageProtocol, out: Path, score_by: str = "") -> bool:
    """Scores the runs (optional) and writes the table if every run is finished; returns whether they are.

    Whichever process ends last does it.
    """
    with folder_lock(out):
        folders = [*(s.name for s in protocol.settings), *protocol.figure_runs]
        if not all(Ledger(out / name, "images").finished for name in folders):
            return False
        if score_by:
            for _ in score_runs([out / s.name for s in protocol.settings], [score_by]):
                pass
        about = {
            "protocol": protocol.name,
            "samples": protocol.samples,
            "seed": protocol.seed,
            "choices": [asdict(c) for c in protocol.choices],
            "settings": [{"folder": s.name, "rule": str(s.rule)} for s in protocol.settings],
        }
        write_whole(out / "protocol.json", json.dumps(about, indent=1) + "\n")
        rows = [_setting_row(s, Run.open(out / s.name), score_by) for s in protocol.settings]
        write_whole(out / "table.csv", csv_text(rows))
        return True


def _setting_row(setting: ImageSetting, run: Run, score_by: str) -> dict[str, Any]:
    """One line of the table, from the run folder alone."""
    cells: dict[str, Any] = {
        "method": setting.method,
        "scale": setting.scale,
        "gamma": "" if setting.gamma is None else setting.gamma,
        "evaluations": run.finished["evaluations"] // max(1, run.finished["samples"]),
        "samples": run.finished["samples"],
    }
    if run.config["diagnostics"] and run.meter:
        meter = run.meter
        cells |= {
            "effective_scale_first": round(float(meter["scale"][0].mean()), 4),
            "effective_scale_last": round(float(meter["scale"][-1].mean()), 4),
            "share_capped": round(float(meter["active"].mean()), 4),
            "largest_ratio": round(float(meter["ratio"].max()), 4),
        }
    scores = [s for s in read_scores(run.folder) if s.protocol.startswith(f"{score_by}:")]
    return cells | {s.name: float(f"{s.value:.5g}") for s in scores}


def tiny_imagenet(folder: Path) -> tuple[Path, Path]:
    """Weights and autoencoder for the ImageNet protocol, made once in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, vae = folder / "sit.pt", folder / "vae"
    with folder_lock(folder):  # other processes of the rehearsal wait for the first
        if not weights.is_file():
            _tiny_sit(weights)
        if not vae.is_dir():
            _tiny_vae(scaling_factor=0.18215).save_pretrained(vae)
    return weights, vae


def tiny_sd35(folder: Path) -> tuple[Path, Path]:
    """A pipeline and two prompts for the SD3.5 protocol, made once in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pipeline, prompts = folder / "pipeline", folder / "prompts.txt"
    with torch.random.fork_rng(), folder_lock(folder):
        torch.manual_seed(0)
        if not (pipeline / "model_index.json").is_file():
            tiny_sd3(folder)
    write_whole(prompts, "a dog on rocks by the beach\n\na bedroom with a large bed\n")
    return pipeline, prompts


def _tiny_sit(path: Path) -> None:
    """A bare `.pt` like the released SiT files: a published width, one block, 8 x 8 latents."""
    config = SiTConfig(size=8, channels=4, patch=2, width=384, depth=1, heads=6, classes=1000)
    model = SiT(config).requires_grad_(False)
    _randomise(model, 0, 0.05)
    with torch.no_grad():
        model.y_embedder.embedding_table.weight.mul_(40)  # classes far apart, so that a cap has work to do
    content = BytesIO()  # a file would hold its temporary name
    torch.save(model.state_dict(), content)
    write_whole(path, content.getvalue())


def _tiny_vae(**factors: float) -> Any:
    """An autoencoder of 4-channel latents that doubles height and width."""
    from diffusers import AutoencoderKL

    make: Any = AutoencoderKL
    vae = make(
        block_out_channels=[8, 8],
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        norm_num_groups=2,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        **factors,
    )
    _randomise(vae, 0, 0.3)
    return vae


def tiny_sd3(folder: Path) -> Path:
    """Writes a StableDiffusion3Pipeline with three small text encoders whose tokens are letters."""
    import transformers
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    words = _tokenizer_files(folder / "words")
    tokenizer: Any = transformers.CLIPTokenizer.from_pretrained(words)
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=1,
        num_attention_heads=4,
        projection_dim=32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    make: Any = SD3Transformer2DModel
    transformer = make(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        pos_embed_max_size=32,
    )
    third = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4, pad_token_id=0
    )
    encoders: list[Any] = [*(CLIPTextModelWithProjection(text) for _ in range(2)), T5EncoderModel(third)]
    for i, module in enumerate((transformer, *encoders)):
        _randomise(module, i, 0.2)
    parts: dict[str, Any] = {
        "transformer": transformer,
        "vae": _tiny_vae(shift_factor=0.0609, scaling_factor=1.5305),
    }
    for end, encoder in zip(("", "_2", "_3"), encoders, strict=True):
        parts |= {f"text_encoder{end}": encoder, f"tokenizer{end}": tokenizer}
    scheduler: Any = FlowMatchEulerDiscreteScheduler
    pipe: Any = StableDiffusion3Pipeline
    pipe(scheduler=scheduler(shift=3.0), **parts).save_pretrained(folder / "pipeline")
    return folder / "pipeline"


def _tokenizer_files(folder: Path) -> Path:
    """A CLIP tokenizer that knows bytes only: every letter is a token."""
    folder.mkdir(parents=True, exist_ok=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": 77, "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})
    )
    return folder


def _randomise(module: torch.nn.Module, seed: int, spread: float) -> None:
    """Draws every weight anew, so that no layer starts at zero and the classes differ."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name != "pos_embed" and "norm" not in name:
                p.copy_(spread * torch.randn(p.shape, generator=g))


SCALE, GAMMA = 8, 1.1
RULES = {
    "no guidance": "CFG(1)",
    f"CFG {SCALE}": f"CFG({SCALE})",
    f"CFG {SCALE}, capped at {GAMMA}": f"CFG({SCALE}) | Cap({GAMMA})",
}
# For each noise seed, the prompt that CFG(1) misses most and CFG(3) meets, chosen by tools/demo_prompts.py.
# The picture shows the two prompts that CFG(1) misses most.
PROMPTS = (
    "a blue disc left of a green triangle", "a red square left of a blue triangle",
    "a cyan triangle left of a blue square", "a green square left of a blue triangle",
)  # fmt: skip
SHOWN_PROMPTS = (0, 3)
SCENE_RULES = {f"CFG {s}": f"CFG({s})" for s in (1, 3, SCALE, 20)}
SCENE_RULES |= {f"{title}, capped": f"{rule} | Cap({GAMMA})" for title, rule in SCENE_RULES.items()}
BLOCKS = 3 * len(RULES) + len(SCENE_RULES)  # 120 garments of each rule, 40 at a time; one block of scenes


def make_demo(out: Path) -> Iterator[str]:
    """Makes the missing parts of the runs, yielding a title after each block, and scores the garments."""
    garments, drawing = ClassSource(fashion()), SceneSource(scenes())
    base = RunConfig("fashion", steps=32, per_class=12, batch=40, diagnostics=True)
    for title, rule in RULES.items():
        prepared = garments.prepare(replace(base, rule=rule))
        for _ in make_run(prepared.store(_demo_folder(out, title)), prepared.make):
            yield title
    few = RunConfig("scenes", steps=32, per_class=1, batch=len(PROMPTS))
    for title, rule in SCENE_RULES.items():
        prepared = drawing.prepare_lines(replace(few, rule=rule), PROMPTS)
        for _ in make_run(prepared.store(_demo_folder(out / "scenes", title)), prepared.make):
            yield title
    condition, start = SINGLE.condition(), noise(range(2000), (2,))
    ends = {title: flow(condition, parse(rule), start, uniform(50)) for title, rule in RULES.items()}
    write_tensors(out / "overshoot.safetensors", ends, {"scene": "single", "steps": "50"})
    for _ in score_runs([_demo_folder(out, title) for title in RULES], ["fashion"]):
        pass


def open_demo(out: Path) -> tuple[dict[str, Run], dict[str, Run]]:
    """The finished runs by title: of the garments, and of the scenes."""
    garments = {title: Run.open(_demo_folder(out, title)) for title in RULES}
    return garments, {title: Run.open(_demo_folder(out / "scenes", title)) for title in SCENE_RULES}


def _demo_folder(out: Path, title: str) -> Path:
    return out / title.replace(" ", "-").replace(",", "")
