"""Stable Diffusion 3.5 Medium, its guidance capped.

    python examples/diffusers/sd35.py "a lighthouse in a storm, oil on canvas" --gamma 1.15
    python examples/diffusers/sd35.py --tiny      # random weights: tries the script, paints noise

The scale is stated once, to the pipeline; the cap keeps it from burning the picture.
"""

import argparse
from pathlib import Path

import torch
from diffusers import StableDiffusion3Pipeline

from meancap import Cap
from meancap.adapters.diffusers import guided

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("prompt", nargs="?", default="a lighthouse in a storm, oil on canvas")
parser.add_argument("--scale", type=float, default=7.0, help="the pipeline's own guidance scale")
parser.add_argument("--gamma", type=float, default=1.15, help="how much longer guidance may make the mean")
parser.add_argument("--steps", type=int, default=28)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("out/sd35"))
parser.add_argument("--tiny", action="store_true", help="random weights, to try the script")
args = parser.parse_args()

if args.tiny:
    from tiny import tiny

    pipe, size = tiny(StableDiffusion3Pipeline), 64
else:
    pipe = StableDiffusion3Pipeline.from_pretrained(
        "stabilityai/stable-diffusion-3.5-medium", torch_dtype=torch.bfloat16
    )
    pipe, size = pipe.to("cuda" if torch.cuda.is_available() else "cpu"), 1024

with guided(pipe, Cap(args.gamma)) as record:
    result = pipe(
        args.prompt,
        negative_prompt="",
        guidance_scale=args.scale,
        num_inference_steps=args.steps,
        height=size,
        width=size,
        generator=torch.Generator().manual_seed(args.seed),
    )

args.out.mkdir(parents=True, exist_ok=True)
result.images[0].save(args.out / "image.png")
record.save(args.out / "guidance.json")
record.plot().savefig(args.out / "guidance.png")
print(record.summary())
