"""Repositories for the Hugging Face Hub, as folders: `python tools/huggingface.py OUT`.

    OUT/meancap-fashion/   model.safetensors   the weights as in the package; the header holds everything
    OUT/meancap-scenes/    config.json         the same configuration, for readers and for the Hub's counter
                           README.md           the card of docs/, with the metadata that the Hub reads
    OUT/meancap-block/     a block for modular diffusers, of integrations/huggingface/block
    OUT/space/             the Space of integrations/huggingface/space

Nothing is sent anywhere; CONTRIBUTING.md has the commands that upload the folders.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

CARD = """\
---
license: mit
library_name: meancap
pipeline_tag: {task}
tags:
- flow-matching
- classifier-free-guidance
- safetensors
{more}---
"""
USE = """\

## Use

```python
from huggingface_hub import hf_hub_download
from meancap import CFG, Cap, noise, sample, {grid}
from {package} import {name}

model = {name}(hf_hub_download("{owner}/meancap-{name}", "model.safetensors"))
start = noise(range({count}), model.shape)
x = sample(model.predict({prompts}), CFG({scale}) | Cap(1.1), start, {grid}({steps}))
images = model.decode(x)
```
"""


@dataclass(frozen=True)
class Published:
    """A shipped model, and what its card says on the Hub."""

    name: str
    task: str
    more: str  # lines of the metadata
    use: dict[str, str | int]


MODELS = (
    Published(
        "fashion", "unconditional-image-generation", "- sit\ndatasets:\n- zalando-datasets/fashion_mnist\n",
        {"package": "meancap_lab.models",
         "grid": "uniform", "prompts": "range(10)", "scale": 8, "count": 10, "steps": 20},
    ),
    Published(
        "scenes", "text-to-image", "- synthetic\n",
        {"package": "meancap_lab.models.scenes",
         "grid": "shifted", "prompts": '["a red disc"]', "scale": 4, "count": 1, "steps": 16},
    ),
)  # fmt: skip


def owner() -> str:
    """As pyproject.toml names it; on the Hub it is the user or organisation of the same name."""
    sys.path.insert(0, str(Path(__file__).parent))
    import owner as names

    return names.owner(ROOT)


def card(model: Published) -> str:
    """The model card beside the weights, without links and pictures that lead nowhere on the Hub."""
    text = weights_and_config(model.name)[0].with_suffix(".md").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if not line.startswith("![")]
    body = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", "\n".join(lines)).rstrip("\n")
    head = CARD.format(task=model.task, more=model.more)
    return head + "\n" + body + "\n" + USE.format(name=model.name, owner=owner(), **model.use)


def weights_and_config(name: str) -> tuple[Path, dict[str, Any]]:
    """The file in the package, and the configuration of its network."""
    from meancap_lab.models.checkpoint import load_sit
    from meancap_lab.models.classes import SHIPPED as FASHION
    from meancap_lab.models.scenes.model import SHIPPED as SCENES
    from meancap_lab.models.scenes.model import load_scene_net

    if name == "scenes":
        return SCENES, {"model_type": "scene_net", **asdict(load_scene_net(SCENES)[0].config)}
    model, _, names = load_sit(FASHION)
    return FASHION, {"model_type": "sit", **asdict(model.config), "names": list(names)}


def model_repository(out: Path, model: Published) -> Path:
    """Writes the folder of a shipped model; returns it."""
    folder = out / f"meancap-{model.name}"
    folder.mkdir(parents=True, exist_ok=True)
    weights, config = weights_and_config(model.name)
    shutil.copyfile(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(model), encoding="utf-8")
    return folder


def main(argv: list[str] | None = None) -> int:
    """Writes the folders and says where they are."""
    parser = argparse.ArgumentParser(description="Folders for the Hugging Face Hub.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args(argv).out
    made = [model_repository(out, model) for model in MODELS]
    for source, name in (("space", "space"), ("block", "meancap-block")):
        folder = ROOT / "integrations" / "huggingface" / source
        made.append(Path(shutil.copytree(folder, out / name, dirs_exist_ok=True)))
    print(*made, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
