"""Networks that score an image with its prompt.

    image, text   CLIP embeddings (OpenAI ViT-B/32) through transformers, 512 numbers each; their cosine is
                  the paper's CLIP column
    ImageReward   ImageReward-v1.0 (Xu et al. 2023): how people would like an image as an answer to a prompt;
                  0 is the average of its training data, negative ones are ordinary

Preprocessing is CLIP's own: the shorter side to 224 by Pillow's bicubic resize, the centre, CLIP's mean and
spread. ImageReward is BLIP of transformers (a vision transformer, and a BERT whose every layer also looks at
the image) with a head of its own, because the published package imports with old versions of transformers and
timm only; `ImageReward.pt` loads under other parameter names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from meancap.files import sha256_of

from ..extras import need
from ..tensor_files import local_folder
from .extractor import Extractor, Features, MissingWeights, Weights, beside, load_network
from .images import three_channels

IMAGE_REWARD = Weights(
    "ImageReward-v1.0",
    ("ImageReward.pt",),
    "MEANCAP_IMAGEREWARD",
    "huggingface.co/THUDM/ImageReward",
    habits=("~/.cache/ImageReward",),
)
BERT_WORDS = Weights(
    "the word list of bert-base-uncased",
    ("bert-base-uncased-vocab.txt", "vocab.txt"),
    "MEANCAP_BERT_VOCAB",
    "huggingface.co/google-bert/bert-base-uncased",
    habits=("~/.cache/ImageReward",),
)

CLIP_NAME = "openai/clip-vit-base-patch32"
CLIP_VARIABLE = "MEANCAP_CLIP"
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_SPREAD = (0.26862954, 0.26130258, 0.27577711)


def clip_b32(weights: str | Path | None = None) -> Extractor:
    """From a folder as `save_pretrained` writes it, else $MEANCAP_CLIP, else the Hugging Face cache."""
    transformers = need("transformers", "metrics")
    place = str(weights or os.environ.get(CLIP_VARIABLE) or CLIP_NAME)
    try:
        folder = str(local_folder(place))  # by a name, transformers would look for adapters on the network
        model = transformers.CLIPModel.from_pretrained(folder, local_files_only=True).train(False)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise MissingWeights(
            f"CLIP ViT-B/32 is not on this machine (looked at {place}): put {CLIP_NAME} with its tokenizer "
            f"into the Hugging Face cache, or set {CLIP_VARIABLE} to a folder that holds both"
        ) from error
    size = int(model.config.vision_config.image_size)
    longest = int(model.config.text_config.max_position_embeddings)

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        tokens = tokenizer(
            list(prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        words, mask = (beside(model, tokens[name]) for name in ("input_ids", "attention_mask"))
        # The whole model's output: its embeddings have unit length and have kept their names through
        # transformers 4 and 5.
        pixels = beside(model, _clip_pixels(images, size))
        out = model(input_ids=words, attention_mask=mask, pixel_values=pixels)
        return {"image": out.image_embeds, "text": out.text_embeds}

    mark = f"{model.num_parameters():,} parameters"
    identity = f"CLIP {place} ({mark}), bicubic {size} centre crop"
    return Extractor(identity, run, batch=8, needs_prompts=True, network=model)


def _clip_pixels(images: Tensor, size: int) -> Tensor:
    """CLIP's preprocessing of (batch, height, width, channels) bytes."""
    numpy, pillow = need("numpy", "images"), need("PIL.Image", "images")
    pictures = []
    for pixels in three_channels(images).numpy():
        shown = pillow.fromarray(pixels)
        wide, high = shown.size
        short = min(wide, high)
        # Both sides as torchvision and OpenAI's code have it: the shorter exactly `size`, the longer cut to
        # an integer.
        shape = (
            size if wide <= high else size * wide // short,
            size if high <= wide else size * high // short,
        )
        shown = shown.resize(shape, pillow.Resampling.BICUBIC)
        left, top = round((shape[0] - size) / 2), round((shape[1] - size) / 2)
        shown = shown.crop((left, top, left + size, top + size))
        pictures.append(torch.from_numpy(numpy.array(shown)))
    x = torch.stack(pictures).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(_CLIP_MEAN)[:, None, None]) / torch.tensor(_CLIP_SPREAD)[:, None, None]


_LENGTH = 35  # words per prompt, padded or cut, as published
_MEAN, _SPREAD = 0.16717362830052426, 1.0333394966054072
_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
}
_TEXT = {
    "vocab_size": 30524,
    "hidden_size": 768,
    "encoder_hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
}
# Of the training objective, not of the score: projections of BLIP, and a buffer of BERT.
_UNUSED = ("blip.vision_proj.", "blip.text_proj.", "blip.text_encoder.embeddings.position_ids")
# Parts of the file's names, and of the names in transformers.
_RENAMED = {
    "blip.text_encoder.": "text.",
    "blip.visual_encoder.norm.": "vision.post_layernorm.",
    "blip.visual_encoder.": "vision.",
    "vision.cls_token": "vision.embeddings.class_embedding",
    "vision.pos_embed": "vision.embeddings.position_embedding",
    "vision.patch_embed.proj": "vision.embeddings.patch_embedding",
    "vision.blocks.": "vision.encoder.layers.",
    ".norm1.": ".layer_norm1.",
    ".norm2.": ".layer_norm2.",
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.proj.": ".self_attn.projection.",
}


def image_reward(weights: str | Path | None = None, words: str | Path | None = None) -> Extractor:
    """From `ImageReward.pt` and the word list of bert-base-uncased."""
    path, vocabulary = IMAGE_REWARD.find(weights), BERT_WORDS.find(words)
    network = load_network(ImageReward(), path, "ImageReward-v1.0", rename=_name_in_transformers)
    tokenizer = need("transformers", "metrics").BertTokenizer(str(vocabulary))

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        tokens = tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=_LENGTH, return_tensors="pt"
        )
        given = (_clip_pixels(images, 224), tokens["input_ids"], tokens["attention_mask"])
        reward = network(*(beside(network, x) for x in given))
        return {"ImageReward": reward[:, None]}

    mark = sha256_of(path)[:16]
    identity = f"ImageReward-v1.0 (sha256 {mark})"
    return Extractor(identity, run, batch=1, needs_prompts=True, network=network)


def _name_in_transformers(name: str) -> str | None:
    if name.startswith(_UNUSED):
        return None
    for part, new in _RENAMED.items():
        name = name.replace(part, new)
    return name


class ImageReward(nn.Module):
    """Takes CLIP-normalised pixels, word numbers and a mask of real words; gives one reward per pair.

    `vision` and `text` change sizes of BLIP, and `head` is the width of each layer of the head; tests use
    smaller ones than ImageReward-v1.0.
    """

    def __init__(
        self,
        vision: Mapping[str, int] | None = None,
        text: Mapping[str, int] | None = None,
        head: Sequence[int] = (1024, 128, 64, 16),
    ) -> None:
        super().__init__()
        transformers = need("transformers", "metrics")
        seen = transformers.BlipVisionConfig(**{**_VISION, **(vision or {})})
        # A decoder has cross-attention; called as an encoder, its words still look both ways.
        read = transformers.BlipTextConfig(**{**_TEXT, **(text or {})}, is_decoder=True)
        self.vision = transformers.BlipVisionModel(seen)
        self.text = transformers.BlipTextModel(read, add_pooling_layer=False)
        widths = (read.hidden_size, *head, 1)
        # Numbered as in the file, where dropouts stand between the first four.
        numbers = [str(min(2 * i, i + 3)) for i in range(len(widths) - 1)]
        layers = zip(numbers, widths[:-1], widths[1:], strict=True)
        self.mlp = nn.ModuleDict({"layers": nn.ModuleDict({k: nn.Linear(i, o) for k, i, o in layers})})

    def forward(self, pixels: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        image = self.vision(pixel_values=pixels).last_hidden_state
        read = self.text(
            input_ids=words, attention_mask=mask, encoder_hidden_states=image, is_decoder=False
        ).last_hidden_state
        x: Tensor = read[:, 0]
        for layer in self.mlp["layers"].children():
            x = layer(x)
        return (x[:, 0] - _MEAN) / _SPREAD
