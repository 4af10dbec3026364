"""Wan 2.1, its guidance capped.

    python examples/diffusers/wan.py "a paper boat drifts down a stream" --gamma 1.15
    python examples/diffusers/wan.py --tiny      # random weights: tries the script, paints noise

Wan's scheduler rounds its timesteps, so the cap reads sigma from the scheduler itself.
"""

import argparse
from pathlib import Path

import torch
from diffusers import WanPipeline

from meancap import Cap
from meancap.adapters.diffusers import guided

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("prompt", nargs="?", default="a paper boat drifts down a stream")
parser.add_argument("--scale", type=float, default=5.0, help="the pipeline's own guidance scale")
parser.add_argument("--gamma", type=float, default=1.15, help="how much longer guidance may make the mean")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("out/wan"))
parser.add_argument("--tiny", action="store_true", help="random weights, to try the script")
args = parser.parse_args()

if args.tiny:
    from tiny import tiny

    pipe, height, width, frames = tiny(WanPipeline), 64, 64, 5
else:
    pipe = WanPipeline.from_pretrained("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", torch_dtype=torch.bfloat16)
    pipe.to("cuda" if torch.cuda.is_available() else "cpu")
    height, width, frames = 480, 832, 81

with guided(pipe, Cap(args.gamma)) as record:
    result = pipe(
        args.prompt,
        negative_prompt="static, blurred",
        guidance_scale=args.scale,
        num_inference_steps=args.steps,
        height=height,
        width=width,
        num_frames=frames,
        output_type="pil",
        generator=torch.Generator().manual_seed(args.seed),
    )

args.out.mkdir(parents=True, exist_ok=True)
first, *rest = result.frames[0]
first.save(args.out / "video.gif", save_all=True, append_images=rest, duration=1000 // 16)
record.save(args.out / "guidance.json")
record.plot().savefig(args.out / "guidance.png")
print(record.summary())
