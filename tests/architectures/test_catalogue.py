"""Parameter counts of the catalogue against published totals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simpar import files
from simpar.architectures.catalogue import (
    KIN,
    NAMES,
    catalogue,
    config_of,
    find_model,
    find_shipped,
    list_shipped,
    load_model,
)
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.layout.layout import Layout
from simpar.layout.sharding import rank_dims
from simpar.plan.plan import Plan

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
    "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_630_071_296, "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560, "deepseek-moe-16b": 16_375_728_128,
    "deepseek-v2": 235_741_434_880, "deepseek-v2-lite": 15_706_484_224, "olmoe-1b-7b": 6_919_161_856,
    "dbrx": 131_596_523_520, "phi-3.5-moe": 41_873_153_344, "nemotron-3-nano": 31_577_940_288,
    "nemotron-nano-2-9b": 8_888_227_328, "nemotron-3-super": 120_668_707_840, "olmo-3-7b": 7_298_011_136,
    "olmo-3-32b": 32_233_522_176, "apertus-8b": 8_053_338_176, "gemma-3-270m": 268_098_176,
    "mt5-small": 300_176_768, "mt5-base": 582_401_280, "mt5-large": 1_229_581_312,
}  # fmt: skip
HUB = {  # ids on the Hugging Face hub, and parameters of their checkpoints
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384, "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384, "HuggingFaceTB/SmolLM3-3B-Base": 3_075_098_624,
    "Qwen/Qwen2-7B-Instruct": 7_615_616_512, "Qwen/Qwen1.5-7B-Chat": 7_721_324_544, "Qwen/QwQ-32B": 32_763_876_352,
    "Qwen/Qwen3-4B-Instruct-2507": 4_022_468_096, "google/gemma-2b-it": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896, "google/gemma-2-9b-it": 9_241_705_984, "microsoft/phi-2": 2_779_683_840,
    "microsoft/phi-4": 14_659_507_200, "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552, "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552, "mistralai/Mistral-Nemo-Instruct-2407": 12_247_782_400,
    "mistralai/Mistral-Small-24B-Base-2501": 23_572_403_200, "codellama/CodeLlama-7b-hf": 6_738_546_688,
    "lmsys/vicuna-7b-v1.5": 6_738_415_616, "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": 8_030_261_248, "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "01-ai/Yi-34B": 34_388_917_248, "internlm/internlm2-7b": 7_737_708_544, "bigscience/bloom-7b1": 7_069_016_064,
    "bigcode/starcoder2-7b": 7_173_923_840, "bigcode/starcoder": 15_517_456_384,
    "EleutherAI/gpt-j-6b": 6_050_882_784, "EleutherAI/gpt-neo-2.7B": 2_651_307_520,
    "EleutherAI/pythia-70m": 70_426_624, "facebook/opt-125m": 125_239_296, "google-t5/t5-small": 60_506_624,
    "google/flan-t5-xl": 2_849_757_184, "ByteDance-Seed/Seed-OSS-36B-Instruct": 36_151_104_512,
    "stabilityai/stablelm-2-1_6b": 1_644_515_328, "ibm-granite/granite-4.0-h-small": 32_207_337_984,
    "mistralai/Ministral-8B-Instruct-2410": 8_019_808_256, "mistralai/Codestral-22B-v0.1": 22_247_282_688,
    "CohereLabs/aya-expanse-8b": 8_028_033_024, "CohereLabs/c4ai-command-a-03-2025": 111_057_580_032,
    "upstage/SOLAR-10.7B-Instruct-v1.0": 10_731_524_096, "tiiuae/Falcon3-7B-Instruct": 7_455_550_464,
    "baidu/ERNIE-4.5-0.3B-PT": 360_748_032, "allenai/Olmo-3-7B-Instruct": 7_298_011_136,
    "allenai/OLMo-2-1124-7B-Instruct": 7_298_617_344, "THUDM/glm-4-9b-chat-hf": 9_399_951_360,
    "Qwen/Qwen1.5-32B-Chat": 32_512_218_112, "Qwen/Qwen1.5-110B": 111_209_914_368,
    "Qwen/CodeQwen1.5-7B-Chat": 7_250_284_544,
    "01-ai/Yi-1.5-9B-Chat": 8_829_407_232, "THUDM/chatglm2-6b": 6_243_584_000, "THUDM/chatglm3-6b": 6_243_584_000,
    "baichuan-inc/Baichuan-7B": 7_000_559_616, "stabilityai/stablelm-3b-4e1t": 2_795_443_200,
    "togethercomputer/RedPajama-INCITE-Base-3B-v1": 2_775_864_320, "bigcode/starcoderbase-1b": 1_137_207_296,
    "bigcode/santacoder": 1_124_886_528, "codellama/CodeLlama-70b-hf": 68_976_910_336,
    "distilgpt2": 81_912_576,
    "EleutherAI/polyglot-ko-5.8b": 5_885_059_072, "openbmb/MiniCPM-2B-sft-bf16": 2_724_880_896,
    "EleutherAI/pythia-70m-deduped": 70_426_624,
    "HuggingFaceTB/SmolLM-135M": 134_515_008, "openlm-research/open_llama_7b_v2": 6_738_415_616,
    "HuggingFaceH4/zephyr-7b-beta": 7_241_732_096, "openchat/openchat_3.5": 7_241_732_096,
    "google/gemma-1.1-7b-it": 8_537_680_896, "meta-llama/Llama-Guard-3-8B": 8_030_261_248,
}  # fmt: skip
MIXTURES = {  # billions of parameters in all and met by one token, as printed
    "mixtral-8x7b": (46.7, 12.9), "mixtral-8x22b": (141, 39), "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22), "deepseek-moe-16b": (16.4, 2.8), "deepseek-v2": (236, 21), "deepseek-v3": (671, 37),
    "olmoe-1b-7b": (6.9, 1.3), "llama-4-scout": (109, 17), "llama-4-maverick": (400, 17), "dbrx": (132, 36),
    "phi-3.5-moe": (41.9, 6.6), "qwen2-57b-a14b": (57, 14), "grok-1": (314, 86), "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12), "kimi-k2": (1040, 32.6), "nemotron-3-nano": (31.6, 3.6),
    "minimax-m2": (230, 10), "ernie-4.5-21b-a3b": (21.8, 3), "hunyuan-a13b": (80, 13), "moonlight-16b-a3b": (16, 3),
    "qwen3-coder-480b-a35b": (480, 35),
    "nemotron-3-super": (120.6, 12.7), "nemotron-3-ultra": (550, 55), "qwen3-next-80b-a3b": (80, 3.9),
    "ling-mini-2.0": (16.26, 1.4), "ling-flash-2.0": (103, 6.1), "ling-1t": (1000, 51),
    "ring-mini-linear-2.0": (16.4, 1.6), "ring-flash-linear-2.0": (104, 6.1), "longcat-flash": (560, 27),
    "mimo-v2-flash": (309, 15), "mistral-small-4-119b": (119, 6.5), "step-3.5-flash": (196.8, 11), "step-3": (316, 38),
    "k-exaone-236b-a23b": (236, 23),
    "qwen3.5-35b-a3b": (35, 3), "qwen3.5-397b-a17b": (397, 17), "kimi-linear-48b-a3b": (49.1, 3),
    "minimax-text-01": (456, 45.9), "ernie-4.5-300b-a47b": (300, 47),
    "dots-llm1": (142, 14), "glm-5": (744, 40), "glm-4.7-flash": (30, 3.6), "deepseek-v3.2": (671, 37),
}  # fmt: skip

ANNOUNCED = {  # billions of parameters, as model cards print them
    "smolvlm2-2.2b": 2.25, "paligemma2-3b": 3.03, "dots.ocr": 3.04, "internvl3.5-8b": 8.53, "ministral-3-3b": 3.85,
    "ministral-3-8b": 8.92, "ministral-3-14b": 13.9, "mistral-large-3": 675, "flux.1-dev": 11.9, "hunyuan-7b": 7.5,
    "wan2.1-t2v-14b": 14.3, "stable-diffusion-3.5-large": 8.15, "falcon-h1-7b": 7.59, "mimo-7b": 7.62,
    "minicpm4-8b": 8.19, "granite-4.0-micro": 3.4, "ernie-4.5-vl-28b-a3b": 29.4,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ANNOUNCED))
def test_models_are_as_large_as_their_cards_say(name: str) -> None:
    """With towers; and no field of theirs is left unread."""
    graph = load_model(name)
    assert graph.num_parameters() / 1e9 == pytest.approx(ANNOUNCED[name], rel=0.005)
    assert graph.details.unread == ()


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_exact(name: str) -> None:
    """The graph has as many parameters as the released checkpoint, to the last one."""
    assert load_model(name).num_parameters() == PUBLISHED[name]


@pytest.mark.parametrize("name", sorted(HUB))
def test_ids_of_the_hub_are_models_of_their_size(name: str) -> None:
    """Tuned, quantised and dated versions have the sizes of what they were made of."""
    assert load_model(name).num_parameters() == HUB[name]


def test_names_that_people_say_are_each_of_one_model() -> None:
    """Every other name belongs to a shipped model, and to one only; none is shipped by itself, but for a toy."""
    names = files.load(NAMES).data
    said = [each for every in names.values() for each in every]
    assert list_shipped() == tuple(catalogue())
    assert set(names) <= set(catalogue())
    assert len(said) == len(set(said))
    assert {re.sub(r"[^a-z0-9]", "", name) for name in catalogue()} & set(said) == {"tinyllama"}
    assert find_model("TinyLlama/tinyllama") == "tinyllama-1.1b"


def test_endings_are_not_read_into_sizes() -> None:
    """4b-it is no 4 bit, and a name that nothing is left of is none."""
    assert find_model("google/gemma-3-4b-it") == "gemma-3-4b"
    assert find_model("org/instruct") is None
    assert find_model("Qwen/Qwen9B") is None


def test_dates_at_the_end_of_names() -> None:
    """A month and a day, or a year and a month; another version of a model by its date is another one."""
    assert find_model("moonshotai/Kimi-K2-Instruct-0905") == "kimi-k2"
    assert find_model("THUDM/GLM-4-32B-0414") == "glm-4-32b"
    assert find_model("mistralai/Magistral-Small-2507") == "mistral-small-24b"  # reads text alone, unlike later ones
    assert find_model("unsloth/Magistral-Small-2509-unsloth-bnb-4bit") == "mistral-small-3.1-24b"
    assert find_model("mistralai/Mistral-Small-3.1") == "mistral-small-3.1-24b"
    assert find_model("mistralai/Mistral-Small-Instruct-2409") == "codestral-22b"
    assert find_model("liuhaotian/llava-v1.5-13b") == "llava-1.5-13b"


@pytest.mark.parametrize(("name", "parallel"), [("redpajama-7b", False), ("redpajama-3b", False), ("pythia-1b", True)])
def test_layers_whose_mlp_is_beside_attention_or_behind_it(name: str, parallel: bool) -> None:
    """RedPajama's is behind it (litgpt's config.py: parallel_residual=False), Pythia's beside it."""
    graph = load_model(name)
    added = [op.name for op in graph.blocks[graph.layers[1]].operators if "residual" in op.name]
    assert (len(added) == 1) is parallel


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_mixtures_are_as_large_as_announced(name: str) -> None:
    """Total and active parameters agree with the announcements within their rounding and counting habits.

    Announcements leave out a vision tower, embedding and output projection (GLM) or count the prediction layer.
    """
    graph, (total, active) = load_model(name), MIXTURES[name]
    assert graph.num_parameters() / 10**9 == pytest.approx(total, rel=0.015)
    table = graph.dims["vocab"] * graph.dims["hidden"] / 10**9
    assert active - table - 0.04 * active <= graph.num_active_parameters() / 10**9 <= active * 1.03 + 2 * table


def test_gpt_oss_counts_as_its_model_card() -> None:
    """116.83 B and 20.91 B in all; 5.13 B and 3.61 B active, the embedding left out [arXiv 2508.10925, table 1]."""
    large, small = load_model("gpt-oss-120b"), load_model("gpt-oss-20b")
    assert [round(g.num_parameters() / 10**9, 2) for g in (large, small)] == [116.83, 20.91]
    active = [g.num_active_parameters() - g.dims["vocab"] * g.dims["hidden"] for g in (large, small)]
    assert [round(count / 10**9, 2) for count in active] == [5.13, 3.61]


def test_deepseek_v3_leaves_its_prediction_layer_out_of_the_count() -> None:
    """671 B main model; the prediction module adds a layer, norms and a projection, 11.5 B [DeepSeek-V3 weights]."""
    graph = load_model("deepseek-v3")
    assert graph.auxiliary == ("prediction_moe",)
    assert graph.layers.count("layer") == 3
    assert graph.layers.count("layer_moe") == 58
    assert graph.blocks["prediction_moe"].parameters(graph.dims) / 10**9 == pytest.approx(11.5, abs=0.15)


def test_a_mixture_multiplies_like_its_active_part() -> None:
    """Multiplications a token: active matrices, without the input embedding; a prediction layer and its head on top."""
    graph = load_model("qwen3-30b-a3b")
    table = graph.dims["vocab"] * graph.dims["hidden"]
    assert graph.num_matmul_parameters() == pytest.approx(graph.num_active_parameters() - table, rel=1e-3)
    deepseek = load_model("deepseek-v3")
    further = deepseek.num_matmul_parameters() - (deepseek.num_active_parameters() - 129280 * 7168)
    assert further / 10**9 == pytest.approx(0.93 + 0.10 + 0.58, abs=0.1)


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
    local = rank_dims(graph, Layout.of(Plan(tp=2)), Training(seq_len=2048, global_batch=8)).tensor
    block = graph.blocks[graph.layers[0]]
    whole, half = block.parameters(graph.dims), block.parameters(local)
    replicated = 2 * half - whole
    assert 0 <= replicated < 0.001 * whole


@pytest.mark.parametrize(("size", "billions"), [("4b", 4.5), ("8b", 8.1), ("47b", 46.8), ("56b", 56.3)])
def test_nemotron_h_is_as_large_as_printed(size: str, billions: float) -> None:
    """The names round [NVIDIA 2025, arXiv 2504.03624]; counts of the model cards."""
    assert load_model(f"nemotron-h-{size}").num_parameters() / 10**9 == pytest.approx(billions, rel=0.005)


def test_a_downloaded_folder_is_its_config(tmp_path, monkeypatch) -> None:
    """With a slash or without; a folder of a shipped name does not hide the model, one without a config is refused."""
    monkeypatch.chdir(tmp_path)
    for folder in ("own", "llama-3-8b", "meta-llama/Llama-3.1-8B", "empty"):
        Path(folder).mkdir(parents=True)
    Path("own/config.json").write_text(json.dumps(config_of("gpt2")))
    for name in ("own", "./own", "own/", str(tmp_path / "own")):
        assert load_model(name).num_parameters() == PUBLISHED["gpt2"]
    for name in ("llama-3-8b", "meta-llama/Llama-3.1-8B"):
        assert load_model(name).num_parameters() == PUBLISHED["llama-3-8b"]
    with pytest.raises(UserError, match=r"^empty: is a folder without config.json; "):
        load_model("empty")


@pytest.mark.parametrize(
    "name", ["gpt-4", "GPT-4o-mini", "claude-3.5-sonnet", "gemini-2.5-pro", "o3", "PaLM-2", "qwen3-max"]
)
def test_models_without_published_sizes_are_said_to_be(name: str) -> None:
    """They are like no shipped model in name alone."""
    with pytest.raises(UserError, match=r"not shipped \(its sizes are not published\); nearest: gpt-oss-120b, "):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PaLM", "one head of keys; arXiv 2204.02311); nearest: falcon-180b, "),
        ("palm-540b", "one head of keys; arXiv 2204.02311); nearest: falcon-180b, "),
        ("ChatGLM", "GLM-4 followed it; arXiv 2406.12793); nearest: chatglm3-6b, glm-4-9b; "),
        ("THUDM/chatglm-6b", "nearest: chatglm3-6b, "),
        ("glm-130b", "nearest: megatron-145b, "),
        ("LaMDA", "nearest: megatron-145b, "),
        ("MiniCPM3-4B", "nearest: minicpm4-8b; "),
        ("ai21-jamba-mini-1.7", "their config.json is read by transformers' class); nearest: granite-4.0-h-small, "),
        ("intern-s1", "of a family that is not declared); nearest: internvl3-78b, "),
        ("grok-2", "an MLP beside the experts, which is not declared); nearest: grok-1; "),
    ],
)
def test_families_that_are_not_shipped_name_what_is_nearest_in_kind(name: str, meant: str) -> None:
    """Not the names that look alike: palm-540b suggested falcon-40b, LaMDA llama-7b."""
    with pytest.raises(UserError, match=re.escape(meant)):
        load_model(name)


def test_kin_are_shipped_and_their_families_are_not() -> None:
    """The file names no model that is gone, and none whose own family came."""
    for family, each in files.load(KIN).data.items():
        assert all(find_shipped(name) for name in each["nearest"])
        assert find_model(family) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-3", "gpt3-175b"),
        ("mt-nlg", "megatron-530b"),
        ("llama3.3", "llama-3.1-70b"),
        ("Qwen/Qwen-7B-Chat", "qwen1.5-7b"),
    ],
)
def test_what_people_say_for_short(name: str, meant: str) -> None:
    """The model of those sizes, without a size where only one is meant."""
    assert load_model(name).num_parameters() == load_model(meant).num_parameters()


def test_an_unknown_id_of_the_hub_names_what_is_like_it() -> None:
    """It is neither a file nor in the cache; a path is a file that is not there."""
    with pytest.raises(UserError, match=r"^meta-llama/Llama-9-8B: no such file, nor .*nearest: llama-3-8b, "):
        load_model("meta-llama/Llama-9-8B")
    with pytest.raises(UserError, match=r"^nothing/config.json: cannot be read"):
        load_model("nothing/config.json")
    with pytest.raises(UserError, match="unknown model"):
        load_model("x" * 10_000)  # longer than any path


@pytest.mark.parametrize(
    "path",
    ["/data/Llama-3.1-8B/", "../hub/LLM-Research/Meta-Llama-3___1-8B-Instruct/",
     "~/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"],
)  # fmt: skip
def test_folders_are_named_after_their_models(path):
    """With a slash behind it, by ModelScope's spelling of dots, and in the hub's cache."""
    assert find_model(path) == "llama-3.1-8b"
