"""Scenes drawn by a program: what a sentence asks for, and the exact law of everything it leaves open.

prompts = [parse_prompt("a red disc left of a blue square, dark background")]
scenes = draw(codes(prompts), torch.Generator().manual_seed(0))
pictures = render(scenes)
"""

from .law import ATTRIBUTES, BACKGROUNDS, COLOURS, PLACES, SHAPES, Scenes, draw
from .prompt import Prompt, Thing, codes, parse_prompt, prompt_of
from .render import SIZE, coverage, masks, render

__all__ = [
    "ATTRIBUTES",
    "BACKGROUNDS",
    "COLOURS",
    "PLACES",
    "SHAPES",
    "SIZE",
    "Prompt",
    "Scenes",
    "Thing",
    "codes",
    "coverage",
    "draw",
    "masks",
    "parse_prompt",
    "prompt_of",
    "render",
]
