"""A diffusers pipeline, its guidance capped: the picture, and what guidance did.

    python examples/diffusers/capped.py sd35 "a lighthouse in a storm, oil on canvas"
    python examples/diffusers/capped.py qwen --rule "Cap(1.05)"
    python examples/diffusers/capped.py flux --tiny        # random weights: tries the script, paints noise

The scale is stated once, to the pipeline; the rule keeps it from burning the picture. SD3.5's is the paper's:
|m - m_c| <= 0.15 |m_c|. The others start with the ball |m| <= 1.1 |m_c|.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch

from meancap.adapters.diffusers import guided


@dataclass(frozen=True)
class Recipe:
    """One model: its pipeline and weights, how it is called, and a rule to begin with."""

    pipeline: str
    weights: str
    prompt: str
    negative: str
    scale: str  # the argument that states the guidance scale
    default: float
    steps: int
    rule: str = "Cap(1.1)"
    size: dict[str, int] = field(default_factory=lambda: {"height": 1024, "width": 1024})
    tiny: dict[str, int] = field(default_factory=lambda: {"height": 64, "width": 64})
    more: dict[str, Any] = field(default_factory=dict)


RECIPES = {
    "sd35": Recipe(
        "StableDiffusion3Pipeline", "stabilityai/stable-diffusion-3.5-medium",
        "a lighthouse in a storm, oil on canvas", "", "guidance_scale", 7.0, 28, rule="CapDisplacement(1.15)",
    ),
    "flux": Recipe(
        "FluxPipeline", "black-forest-labs/FLUX.1-dev", "a cat holding a sign that says hello",
        "blurry, low quality", "true_cfg_scale", 4.0, 28,
        more={"guidance_scale": 1.0},  # the distilled guidance, which is no second prediction
    ),
    "qwen": Recipe(
        "QwenImagePipeline", "Qwen/Qwen-Image", "a coffee shop sign that reads OPEN",
        " ", "true_cfg_scale", 4.0, 50,  # without a negative prompt it makes one prediction only
    ),
    "wan": Recipe(
        "WanPipeline", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "a paper boat drifts down a stream",
        "static, blurred", "guidance_scale", 5.0, 50,
        size={"height": 480, "width": 832, "num_frames": 81},
        tiny={"height": 64, "width": 64, "num_frames": 5}, more={"output_type": "pil"},
    ),
}  # fmt: skip

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", choices=RECIPES)
parser.add_argument("prompt", nargs="?")
parser.add_argument("--scale", type=float, help="the pipeline's own guidance scale")
parser.add_argument("--rule", help="a cap over the pipeline's guidance, or any chain instead of it")
parser.add_argument("--steps", type=int)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, help="out/MODEL where nothing is given")
parser.add_argument("--tiny", action="store_true", help="random weights, to try the script")
args = parser.parse_args()
recipe, out = RECIPES[args.model], args.out or Path("out") / args.model

kind = getattr(diffusers, recipe.pipeline)
if args.tiny:
    from tiny import tiny

    pipe = tiny(kind)
else:
    pipe = kind.from_pretrained(recipe.weights, torch_dtype=torch.bfloat16)
    pipe.to("cuda" if torch.cuda.is_available() else "cpu")

with guided(pipe, args.rule or recipe.rule) as record:
    result = pipe(
        args.prompt or recipe.prompt,
        negative_prompt=recipe.negative,
        num_inference_steps=args.steps or recipe.steps,
        generator=torch.Generator().manual_seed(args.seed),
        **{recipe.scale: recipe.default if args.scale is None else args.scale},
        **(recipe.tiny if args.tiny else recipe.size),
        **recipe.more,
    )

out.mkdir(parents=True, exist_ok=True)
if hasattr(result, "frames"):
    first, *rest = result.frames[0]
    picture = out / "video.gif"
    first.save(picture, save_all=True, append_images=rest, duration=1000 // 16)
else:
    picture = out / "image.png"
    result.images[0].save(picture)
record.save(out / "guidance.json")
record.plot().savefig(out / "guidance.png")
print(record.summary())
print(f"{picture}; what guidance did, step by step: {out / 'guidance.png'}")
