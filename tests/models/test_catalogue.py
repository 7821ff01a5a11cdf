"""Parameter counts of the catalogue against published totals."""

from __future__ import annotations

import pytest

from simpar.models.catalogue import catalogue, load_model

PUBLISHED = {  # totals of the released checkpoints (model cards and safetensors indices on the Hugging Face hub)
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264, "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320, "gemma-3-1b": 999_885_952, "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080, "gpt-neox-20b": 20_554_567_680, "pythia-1b": 1_011_781_632,
    "pythia-6.9b": 6_857_302_016, "falcon-7b": 6_921_720_704, "falcon-40b": 41_303_293_952,
    "opt-1.3b": 1_315_758_080, "bloom-176b": 176_247_271_424, "olmo-2-7b": 7_298_617_344,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_exact(name: str) -> None:
    """The graph has as many parameters as the released checkpoint, to the last one."""
    assert load_model(name).num_parameters() == PUBLISHED[name]


@pytest.mark.parametrize("name", [n for n in catalogue() if n.startswith(("megatron", "gpt3"))])
def test_gpt_follows_the_closed_form(name: str) -> None:
    """12 L h^2 (1 + 13/12h) + (V + s) h + 2h parameters [arXiv 2104.04473, equation 2, with the final norm]."""
    dims = load_model(name).dims
    layers, hidden = len(load_model(name).layers), dims["hidden"]
    blocks = 12 * layers * hidden**2 + 13 * layers * hidden
    expected = blocks + (dims["vocab"] + dims["positions"]) * hidden + 2 * hidden
    assert load_model(name).num_parameters() == expected


@pytest.mark.parametrize(
    ("name", "billions"),
    [("megatron-1.7b", 1.7), ("megatron-18b", 18.4), ("megatron-145b", 145.6), ("megatron-1t", 1008.0)],
)
def test_published_sizes_of_the_scaling_study(name: str, billions: float) -> None:
    """The series of arXiv 2104.04473, table 1, has the printed sizes."""
    assert load_model(name).num_parameters() / 10**9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize("name", catalogue())
def test_every_model_states_its_source(name: str) -> None:
    """Every entry of the catalogue names where its facts come from."""
    assert catalogue()[name]["source"]


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt3-175b", "qwen2.5-7b", "gemma-2-9b", "mpt-7b"])
def test_shards_add_up(name: str) -> None:
    """Two tensor-parallel shards hold every matrix once; only vectors and key-value heads may be replicated."""
    graph = load_model(name)
    local = graph.local_dims(2)
    block = graph.blocks[graph.layers[0]]
    whole, half = block.parameters(graph.dims), block.parameters(local)
    replicated = 2 * half - whole
    assert 0 <= replicated < 0.001 * whole
