"""A protocol as a folder of runs that share their noise, and one table over them.

    OUT/<setting>/    a run folder for each setting
    OUT/table.csv     one row per setting: scale, what guidance did, and scores if there are any
    OUT/protocol.json the settings and the choices that the paper leaves open

`tiny_imagenet` and `tiny_sd35` write random weights in the published formats, for rehearsing a whole protocol
without the real ones: the pictures mean nothing, but every file, option and count is exercised. `make_demo`
makes the runs of `meancap demo`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from ..files import write_whole, writing
from ..models.classes import fashion
from ..models.sit import SiT, SiTConfig
from ..sampling import uniform
from ..scenes.model import scenes
from .config import versions
from .folder import Ledger, Run, Store, locked
from .generate import class_run, make_run, run, scene_blocks, scene_run
from .prepare import RunRequest, open_model
from .protocols import PINNED_SIGMAS, ImageProtocol, ImageSetting
from .scoring import read_scores, score_runs


@dataclass(frozen=True)
class BlockProgress:
    """A block of a setting has been made; `total` counts the blocks of all settings."""

    setting: str
    done: int
    total: int


def requests(protocol: ImageProtocol, base: RunRequest) -> list[tuple[ImageSetting, RunRequest]]:
    """Each setting as the options of `meancap generate`; `base` tells model, samples and format."""
    pairs = []
    for s in protocol.settings:
        request = replace(base, rule=str(s.rule), steps=s.evaluations, seed=protocol.seed)
        if protocol.name == "sd35":
            # The chain replaces the pipeline's combination, whose scale only switches guidance on; at scale 1
            # it is off, and the pipeline is left to itself.
            rule = None if s.scale == 1 else request.rule
            request = replace(
                request, rule=rule, guidance_scale=s.scale, sigmas=PINNED_SIGMAS, noise="stream"
            )
        pairs.append((s, request))
    return pairs


def reproduce(
    protocol: ImageProtocol,
    base: RunRequest,
    out: Path,
    *,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
) -> Iterator[BlockProgress]:
    """Makes every run of the protocol, yielding after each block; `finish` writes the table."""
    out.mkdir(parents=True, exist_ok=True)
    todo = requests(protocol, base)
    done = 0
    source = open_model(todo[0][1], device)
    for setting, request in todo:
        prepared = source.prepare(request)
        store = Store(out / setting.name, prepared.config, prepared.made_with)
        mine = len(range(rank, prepared.config.blocks, world))
        ready = mine - len(store.missing(range(rank, prepared.config.blocks, world)))
        done += ready
        for _ in make_run(store, prepared.make, rank, world):
            done += 1
            yield BlockProgress(setting.name, done, mine * len(todo))


def finish(protocol: ImageProtocol, out: Path, score_by: str = "") -> bool:
    """Scores the runs if asked to and writes the table, once every run is finished; whether they are.

    Whichever process ends last does it.
    """
    with locked(out):
        if not all(Ledger(out / s.name, "images").finished for s in protocol.settings):
            return False
        if score_by:
            for _ in score_runs([out / s.name for s in protocol.settings], [score_by]):
                pass
        write_protocol(protocol, out, score_by)
        return True


def write_protocol(protocol: ImageProtocol, out: Path, score_by: str = "") -> None:
    """protocol.json and table.csv."""
    about = {
        "protocol": protocol.name,
        "samples": protocol.samples,
        "seed": protocol.seed,
        "choices": [asdict(c) for c in protocol.choices],
        "settings": [{"folder": s.name, "rule": str(s.rule)} for s in protocol.settings],
    }
    write_whole(out / "protocol.json", json.dumps(about, indent=1) + "\n")
    write_whole(out / "table.csv", settings_table(protocol, out, score_by))


def settings_table(protocol: ImageProtocol, out: Path, score_by: str = "") -> str:
    """The settings with their facts, as CSV."""
    rows = [setting_row(s, Run.open(out / s.name), score_by) for s in protocol.settings]
    columns = list(dict.fromkeys(key for r in rows for key in r))
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def setting_row(setting: ImageSetting, run: Run, score_by: str = "") -> dict[str, Any]:
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
    return cells | scores_by_name(run.folder, score_by)


def scores_by_name(folder: Path, first: str) -> dict[str, float]:
    """The scores of a run; a number that several protocols have is told apart by its protocol's name."""
    named = [(s.protocol.partition(":")[0], s) for s in read_scores(folder)]
    values: dict[str, float] = {}
    for protocol, s in sorted(named, key=lambda one: (one[0] != first, one[0])):
        name = s.name if s.name not in values else f"{s.name} ({protocol})"
        values[name] = float(f"{s.value:.5g}")
    return values


def tiny_imagenet(folder: Path) -> tuple[Path, Path]:
    """Weights and autoencoder for the ImageNet protocol, made once in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, vae = folder / "sit.pt", folder / "vae"
    if not weights.is_file():
        tiny_sit(weights)
    if not vae.is_dir():
        tiny_vae(vae)
    return weights, vae


def tiny_sd35(folder: Path) -> tuple[Path, Path]:
    """A pipeline and two prompts for the SD3.5 protocol, made once in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pipeline, prompts = folder / "pipeline", folder / "prompts.txt"
    if not (pipeline / "model_index.json").is_file():
        tiny_sd3(folder)
    write_whole(prompts, "a dog on rocks by the beach\n\na bedroom with a large bed\n")
    return pipeline, prompts


def tiny_sit(path: Path, *, classes: int = 1000, seed: int = 0) -> Path:
    """A bare `.pt` like the released SiT files: a published width, one block, 8 x 8 latents."""
    config = SiTConfig(size=8, channels=4, patch=2, width=384, depth=1, heads=6, classes=classes)
    model = SiT(config).requires_grad_(False)
    _randomise(model, seed, 0.05)
    with torch.no_grad():
        model.y_embedder.embedding_table.weight.mul_(40)  # classes far apart, so that a cap has work to do
    with writing(path) as temporary:
        torch.save(model.state_dict(), temporary)
    return path


def tiny_vae(folder: Path, *, seed: int = 0) -> Path:
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
        scaling_factor=0.18215,
    )
    _randomise(vae, seed, 0.3)
    vae.save_pretrained(folder)
    return folder


def tiny_sd3(folder: Path, *, seed: int = 0) -> Path:
    """A StableDiffusion3Pipeline with three small text encoders, all of them reading letter by letter."""
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
    from diffusers import AutoencoderKL

    vae: Any = AutoencoderKL.from_pretrained(tiny_vae(folder / "tiny-vae", seed=seed))  # type: ignore[no-untyped-call]
    vae.register_to_config(shift_factor=0.0609, scaling_factor=1.5305)
    for i, module in enumerate((transformer, *encoders)):
        _randomise(module, seed + i, 0.2)
    scheduler: Any = FlowMatchEulerDiscreteScheduler
    pipe_class: Any = StableDiffusion3Pipeline
    pipe = pipe_class(
        transformer=transformer,
        scheduler=scheduler(shift=3.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=encoders[2],
        tokenizer_3=tokenizer,
    )
    pipe.save_pretrained(folder / "pipeline")
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
PROMPTS = (
    "a red disc left of a blue square",
    "a yellow triangle above a magenta disc",
    "a green square right of a cyan triangle",
    "a magenta square below a yellow disc",
)
BLOCKS = 4 * len(RULES)  # of each rule 120 garments, 40 at a time, and a scene for every prompt


def make_demo(out: Path) -> Iterator[str]:
    """Makes the missing parts of the three runs, yielding a title after each block, and scores them."""
    model = fashion()
    for title, rule in RULES.items():
        config = class_run(model, rule, per_class=12, times=uniform(32), batch=40, diagnostics=True)
        for _ in run(folder_of(out, title), model, config):
            yield title
    drawing, none = scenes(), [""] * len(PROMPTS)
    for title, rule in RULES.items():
        config = scene_run(drawing, rule, PROMPTS, none, steps=32, batch=len(PROMPTS))
        store = Store(scene_folder_of(out, title), config, versions())
        for _ in make_run(store, scene_blocks(drawing, config, PROMPTS, none)):
            yield title
    for _ in score_runs([folder_of(out, title) for title in RULES], ["fashion"]):
        pass


def open_demo(out: Path) -> dict[str, Run]:
    """The finished runs of the garments by title."""
    return {title: Run.open(folder_of(out, title)) for title in RULES}


def open_scenes(out: Path) -> dict[str, Run]:
    """The finished runs of the scenes by title."""
    return {title: Run.open(scene_folder_of(out, title)) for title in RULES}


def folder_of(out: Path, title: str) -> Path:
    """The folder of one of the garments' runs."""
    return out / title.replace(" ", "-").replace(",", "")


def scene_folder_of(out: Path, title: str) -> Path:
    """The folder of one of the scenes' runs."""
    return out / "scenes" / folder_of(out, title).name
