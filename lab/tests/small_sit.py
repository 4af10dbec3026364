"""Small random models that every test here can afford; nothing in them starts at zero."""

import torch

from meancap_lab.models.data import Pixels
from meancap_lab.models.sit import SiT, SiTConfig

SHAPE = SiTConfig(size=8, channels=1, patch=4, width=16, depth=2, heads=2, classes=10, learn_sigma=False)


def random_sit(config=SHAPE, seed=0, spread=0.2):
    model = SiT(config).requires_grad_(False).eval()
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name != "pos_embed":
            p.copy_(spread * torch.randn(p.shape, generator=g))
    return model


def pixels(config=SHAPE):
    return Pixels(torch.full((config.channels, config.size, config.size), 0.5), 0.25)
