"""What users put round the denoiser: compilation, adapters, offloading, caching, a second expert."""

import diffusers
import pytest
import torch
from spy import Spy
from tiny_pipelines import CASES, call, model, pipeline

from meancap import Cap
from meancap.adapters.diffusers import guided

SD3, WAN = "StableDiffusion3Pipeline", "WanPipeline"
INF = float("inf")


@pytest.fixture
def graphs():
    """Counts the graphs that torch.compile makes."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    yield backend, made
    torch._dynamo.reset()


@pytest.mark.parametrize("warm", [True, False], ids=["compiled before", "compiled inside"])
@pytest.mark.parametrize("place", ["in place", "wrapped"])
def test_compilation_keeps_one_graph_and_the_same_result(graphs, place, warm):
    backend, made = graphs
    pipe = pipeline(SD3)
    with guided(pipe, Cap(1.05)):
        eager = call(SD3, pipe)
    if place == "in place":
        pipe.transformer.compile(backend=backend, fullgraph=True)
    else:
        pipe.transformer = torch.compile(pipe.transformer, backend=backend, fullgraph=True)
    if warm:
        native = call(SD3, pipe)
        with guided(pipe, Cap(INF)):
            assert torch.equal(call(SD3, pipe), native)
    with guided(pipe, Cap(1.05)) as record:
        torch.testing.assert_close(call(SD3, pipe), eager, rtol=1e-4, atol=1e-4)
    assert record.stacked()["active"].any()
    call(SD3, pipe)
    assert len(made) == 1


def test_lora_layers_loaded_inside_and_outside_the_block_take_part():
    peft = pytest.importorskip("peft")
    pipe = pipeline(SD3)
    plain = call(SD3, pipe)
    pipe.transformer.add_adapter(
        peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    )
    native = call(SD3, pipe)
    assert not torch.equal(plain, native)
    with guided(pipe, Cap(INF)):
        assert torch.equal(call(SD3, pipe), native)
        pipe.transformer.disable_adapters()
        assert torch.equal(call(SD3, pipe), plain)
    with guided(pipe, Cap(1.05)) as record:
        pipe.transformer.enable_adapters()
        assert not torch.equal(call(SD3, pipe), native)
    assert record.stacked()["active"].any()


@pytest.mark.parametrize("way", ["accelerate", "group"])
def test_offloaded_weights_give_the_same_result(way):
    pipe = pipeline(SD3)
    native = call(SD3, pipe)
    with guided(pipe, Cap(1.05)):
        capped = call(SD3, pipe)
    if way == "accelerate":
        from accelerate import cpu_offload

        cpu_offload(pipe.transformer, torch.device("cpu"))
    else:
        pipe.transformer.enable_group_offload(onload_device=torch.device("cpu"), offload_type="leaf_level")
    with guided(pipe, Cap(INF)):
        assert torch.equal(call(SD3, pipe), native)
    with guided(pipe, Cap(1.05)):
        assert torch.equal(call(SD3, pipe), capped)


def test_a_block_cache_inside_the_denoiser_is_left_alone():
    pipe = pipeline("FluxPipeline")
    pipe.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.05))
    native = call("FluxPipeline", pipe)
    with guided(pipe, Cap(INF)):
        assert torch.equal(call("FluxPipeline", pipe), native)
    with guided(pipe, Cap(1.05)) as record:
        assert not torch.equal(call("FluxPipeline", pipe), native)
    assert float(record.stacked()["ratio"].max()) <= 1.05001


def test_both_experts_of_wan_are_heard():
    second = model("WanTransformer3DModel", CASES[WAN].config, seed=1)
    pipe = pipeline(WAN, transformer_2=second, boundary_ratio=0.9)
    heard = []
    for number, expert in enumerate((pipe.transformer, second)):
        expert.register_forward_hook(lambda module, args, output, number=number: heard.append(number))
    native = call(WAN, pipe, guidance_scale_2=3.0)
    assert set(heard) == {0, 1}
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(WAN, pipe, guidance_scale_2=3.0), native)
    assert {round(float(v), 3) for v in record.stacked()["asked"].flatten()} == {7.0, 3.0}
    spy = Spy(WAN, pipe)
    with guided(pipe, Cap(1.02)):
        call(WAN, pipe, guidance_scale_2=3.0)
    assert float(spy.ratios().max()) <= 1.02 * (1 + 4 * 2.0**-24)


def test_a_denoiser_exchanged_inside_the_block_is_said_to_be_missed():
    pipe = pipeline(SD3)
    with (
        pytest.raises(RuntimeError, match="stepped without calling its transformer"),
        guided(pipe, Cap(1.05)),
    ):
        pipe.transformer = model("SD3Transformer2DModel", CASES[SD3].config, seed=2)
        call(SD3, pipe)
