"""Scenes drawn by a program: prompts, the exact law of what a prompt leaves open, and a model.

prompts = [parse_prompt("a red disc left of a blue square, dark background")]
pictures = render(draw(codes(prompts), torch.Generator().manual_seed(0)))     the law
model = scenes()                                                              the shipped model
measured = measure_pictures(detector(), model.decode(x), codes(prompts))      what its pictures show
"""

from .law import ATTRIBUTES, draw, render
from .measure import Readings, detect, detector, forms, measure_pictures
from .model import SceneModel, load_scene_net, save_scene_net, scene_net, scenes
from .prompt import Prompt, Thing, codes, parse_prompt, prompt_of

__all__ = [
    "ATTRIBUTES",
    "Prompt",
    "Readings",
    "SceneModel",
    "Thing",
    "codes",
    "detect",
    "detector",
    "draw",
    "forms",
    "load_scene_net",
    "measure_pictures",
    "parse_prompt",
    "prompt_of",
    "render",
    "save_scene_net",
    "scene_net",
    "scenes",
]
