"""SiT against the released shapes, and against diffusers' transformer with the same weights."""

import pytest
import torch

from meancap_lab.models.classes import ClassModel
from meancap_lab.models.sit import SiT, SiTConfig, named
from small_sit import SHAPE, random_sit

SMALL = SiTConfig(size=8, channels=4, patch=2, width=32, depth=3, heads=4, classes=7, learn_sigma=True)


def test_xl_2_has_the_released_size():
    with torch.device("meta"):
        model = SiT(named("SiT-XL/2"))
    state = model.state_dict()
    assert len(state) == 292
    assert sum(v.numel() for v in state.values()) == 675_129_632
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 674_834_720
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert shapes["pos_embed"] == (1, 256, 1152)
    assert shapes["x_embedder.proj.weight"] == (1152, 4, 2, 2)
    assert shapes["t_embedder.mlp.0.weight"] == (1152, 256)
    assert shapes["y_embedder.embedding_table.weight"] == (1001, 1152)
    assert shapes["blocks.27.attn.qkv.weight"] == (3456, 1152)
    assert shapes["blocks.0.adaLN_modulation.1.weight"] == (6912, 1152)
    assert shapes["final_layer.linear.weight"] == (32, 1152)


def diffusers_keys(state, depth):
    """The same weights under the names of diffusers' DiTTransformer2DModel."""
    found = {
        "pos_embed.proj.weight": state["x_embedder.proj.weight"],
        "pos_embed.proj.bias": state["x_embedder.proj.bias"],
        "proj_out_1.weight": state["final_layer.adaLN_modulation.1.weight"],
        "proj_out_1.bias": state["final_layer.adaLN_modulation.1.bias"],
        "proj_out_2.weight": state["final_layer.linear.weight"],
        "proj_out_2.bias": state["final_layer.linear.bias"],
    }
    for i in range(depth):
        ours, theirs = f"blocks.{i}.", f"transformer_blocks.{i}."
        for kind in ("weight", "bias"):
            q, k, v = state[f"{ours}attn.qkv.{kind}"].chunk(3)
            found[f"{theirs}attn1.to_q.{kind}"] = q
            found[f"{theirs}attn1.to_k.{kind}"] = k
            found[f"{theirs}attn1.to_v.{kind}"] = v
            found[f"{theirs}attn1.to_out.0.{kind}"] = state[f"{ours}attn.proj.{kind}"]
            found[f"{theirs}ff.net.0.proj.{kind}"] = state[f"{ours}mlp.fc1.{kind}"]
            found[f"{theirs}ff.net.2.{kind}"] = state[f"{ours}mlp.fc2.{kind}"]
            found[f"{theirs}norm1.linear.{kind}"] = state[f"{ours}adaLN_modulation.1.{kind}"]
            for j, name in ((0, "linear_1"), (2, "linear_2")):
                found[f"{theirs}norm1.emb.timestep_embedder.{name}.{kind}"] = state[
                    f"t_embedder.mlp.{j}.{kind}"
                ]
        table = state["y_embedder.embedding_table.weight"]
        found[f"{theirs}norm1.emb.class_embedder.embedding_table.weight"] = table
    return found


def test_output_equals_diffusers_transformer_with_mapped_keys():
    diffusers = pytest.importorskip("diffusers")
    ours = random_sit(SMALL, spread=0.1)
    theirs = diffusers.DiTTransformer2DModel(
        num_attention_heads=SMALL.heads,
        attention_head_dim=SMALL.width // SMALL.heads,
        in_channels=4,
        out_channels=8,
        num_layers=SMALL.depth,
        sample_size=SMALL.size,
        patch_size=2,
        num_embeds_ada_norm=SMALL.classes,
        norm_eps=1e-6,
    ).eval()
    missing, unexpected = theirs.load_state_dict(diffusers_keys(ours.state_dict(), SMALL.depth), strict=False)
    assert not unexpected
    assert missing == ["pos_embed.pos_embed"] or not missing
    for block in theirs.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0  # SiT's frequencies stop one short of 1e-4
    g = torch.Generator().manual_seed(1)
    x, t = torch.randn(5, 4, 8, 8, generator=g), torch.rand(5, generator=g)
    y = torch.tensor([0, 3, 6, 7, 7])
    with torch.no_grad():
        expected = theirs(x, timestep=t, class_labels=y).sample[:, :4]
        found = ours(x, t, y)
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_fresh_model_is_still_and_a_patch_comes_back_where_it_was():
    model = SiT(SHAPE)
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(model(x, torch.rand(3), torch.tensor([0, 1, 10])), torch.zeros_like(x))
    tokens = torch.arange(4 * 16.0).reshape(1, 4, 16)
    image = model.unpatch(tokens)[0, 0]
    assert image[0, 4] == 16 and image[4, 0] == 32 and image[1, 0] == 4 and image[0, 1] == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SiTConfig(size=9), "divisible"),
        (lambda: SiTConfig(width=30, heads=4), "heads"),
        (lambda: named("SiT-Q/2"), "SiT-S, -B, -L and -XL"),
        (lambda: ClassModel("m", "", random_sit(), torch.Tensor.byte, channels=2), "1 channels"),
        (lambda: ClassModel("m", "", random_sit(), torch.Tensor.byte).predict([10]), "0 to 9"),
        (lambda: ClassModel("m", "", random_sit(), torch.Tensor.byte).label("hat"), "hat"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
