"""Model repositories for the Hugging Face Hub, as folders: `python tools/huggingface.py OUT`.

    OUT/meancap-fashion/   model.safetensors   the weights as in the package; the header holds everything
                           config.json         the same configuration, for readers and for the Hub's counter
                           README.md           the card of docs/, with the metadata that the Hub reads
    OUT/space/             the Space of huggingface/space

Nothing is sent anywhere; docs/releasing.md has the two commands that upload the folders.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

METADATA = """\
---
license: mit
library_name: meancap
pipeline_tag: unconditional-image-generation
tags:
- flow-matching
- classifier-free-guidance
- sit
- safetensors
datasets:
- zalando-datasets/fashion_mnist
---
"""
USE = """\

## Use

```python
from huggingface_hub import hf_hub_download
from meancap import CFG, Cap, noise, sample, uniform
from meancap.models import fashion

model = fashion(hf_hub_download("NAME/meancap-fashion", "model.safetensors"))
x = sample(model.predict(range(10)), CFG(8) | Cap(1.1), noise(range(10), model.shape), uniform(20))
images = model.decode(x)
```
"""


def owner() -> str:
    """As pyproject.toml names it; on the Hub it is the user or organisation of the same name."""
    sys.path.insert(0, str(Path(__file__).parent))
    import owner as names

    return names.owner(ROOT)


def card() -> str:
    """The model card: the page of the site, without links and pictures that lead nowhere on the Hub."""
    text = (ROOT / "docs" / "model-card-fashion.md").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if not line.startswith("![")]
    body = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", "\n".join(lines)).rstrip("\n")
    return METADATA + "\n" + body + "\n" + USE.replace("NAME/", f"{owner()}/")


def model_repository(out: Path) -> Path:
    """Writes the folder of the shipped model; returns it."""
    from meancap.models.checkpoint import load_sit
    from meancap.models.classes import SHIPPED

    folder = out / "meancap-fashion"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SHIPPED, folder / "model.safetensors")
    model, _, names = load_sit(SHIPPED)
    config = {"model_type": "sit", **asdict(model.config), "names": list(names)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(), encoding="utf-8")
    return folder


def main(argv: list[str] | None = None) -> int:
    """Writes the folders and says where they are."""
    parser = argparse.ArgumentParser(description="Folders for the Hugging Face Hub.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args(argv).out
    print(model_repository(out))
    shutil.copytree(ROOT / "huggingface" / "space", out / "space", dirs_exist_ok=True)
    print(out / "space")
    return 0


if __name__ == "__main__":
    sys.exit(main())
