"""FLUX.1-dev with true classifier-free guidance, capped.

    python examples/diffusers/flux_true_cfg.py "a cat holding a sign that says hello" --gamma 1.15
    python examples/diffusers/flux_true_cfg.py --tiny      # random weights: tries the script, paints noise

FLUX.1-dev carries a distilled guidance of its own; the second prediction comes with true_cfg_scale and a
negative prompt.
"""

import argparse
from pathlib import Path

import torch
from diffusers import FluxPipeline

from meancap import Cap
from meancap.adapters.diffusers import guided

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("prompt", nargs="?", default="a cat holding a sign that says hello")
parser.add_argument("--scale", type=float, default=4.0, help="the pipeline's own guidance scale")
parser.add_argument("--gamma", type=float, default=1.15, help="how much longer guidance may make the mean")
parser.add_argument("--steps", type=int, default=28)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("out/flux_true_cfg"))
parser.add_argument("--tiny", action="store_true", help="random weights, to try the script")
args = parser.parse_args()

if args.tiny:
    from tiny import tiny

    pipe, size = tiny(FluxPipeline), 64
else:
    pipe = FluxPipeline.from_pretrained("black-forest-labs/FLUX.1-dev", torch_dtype=torch.bfloat16)
    pipe, size = pipe.to("cuda" if torch.cuda.is_available() else "cpu"), 1024

with guided(pipe, Cap(args.gamma)) as record:
    result = pipe(
        args.prompt,
        negative_prompt="blurry, low quality",
        true_cfg_scale=args.scale,
        num_inference_steps=args.steps,
        height=size,
        width=size,
        guidance_scale=1.0,  # the distilled guidance, which is no second prediction
        generator=torch.Generator().manual_seed(args.seed),
    )

args.out.mkdir(parents=True, exist_ok=True)
result.images[0].save(args.out / "image.png")
record.save(args.out / "guidance.json")
record.plot().savefig(args.out / "guidance.png")
print(record.summary())
