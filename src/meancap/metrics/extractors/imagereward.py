"""ImageReward-v1.0 (Xu et al. 2023): how people would like an image as an answer to a prompt.

reward   one number per pair; 0 is the average of its training data, negative ones are ordinary
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...extras import need
from ..locate import BERT_WORDS, IMAGE_REWARD, fingerprint
from .base import Extractor, Features, filled, load_state
from .clip import clip_pixels
from .imagereward_net import ImageReward, Sizes

LENGTH = 35  # words per prompt, padded or cut, as published
# Of the training objective, not of the score: projections of BLIP, and a buffer of BERT.
UNUSED = ("blip.vision_proj.", "blip.text_proj.", "blip.text_encoder.embeddings.position_ids")


def image_reward(weights: str | Path | None = None, words: str | Path | None = None) -> Extractor:
    """From `ImageReward.pt` and the word list of bert-base-uncased."""
    path, vocabulary = IMAGE_REWARD.find(weights), BERT_WORDS.find(words)
    network = load_image_reward(path)
    tokenizer = need("transformers", "metrics").BertTokenizer(str(vocabulary))

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        tokens = tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        pixels = clip_pixels(images, 224)
        reward = network(pixels, tokens["input_ids"], tokens["attention_mask"])
        return {"reward": reward[:, None]}

    mark = fingerprint(path)
    return Extractor(f"ImageReward-v1.0 (sha256 {mark})", run, batch=1, needs_prompts=True)


def load_image_reward(path: Path, sizes: Sizes | None = None) -> ImageReward:
    """The network with the tensors of `ImageReward.pt`."""
    state = {k: v for k, v in load_state(path).items() if not k.startswith(UNUSED)}
    with torch.device("meta"):
        network = ImageReward(sizes)
    return filled(network, state, path, "ImageReward-v1.0")
