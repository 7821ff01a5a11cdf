"""Rows of mixtures: the released config behind a name, with the row's layers and layout."""

from __future__ import annotations

import pytest

from benchmarks.normalise.mixtures import expert_plan, overlap_words, recipe_layers
from benchmarks.normalise.stacks import stack_of
from simpar.stacks.stack import ExpertHabits, load_stack
from simpar.validation.cells import Unmodelled
from tests.benchmarks.normalise.published import case, mixture

ROW = {
    "source": "a table", "model_name": "DeepSeekV3", "n_layers": "61", "hidden": "7168", "n_heads": "128",
    "n_experts": "256", "topk": "8", "ep": "32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sizes", "billions"),
    [
        ("DeepSeekV3", {}, 671),
        ("grok1-314b", {"n_layers": "64", "hidden": "6144", "n_heads": "48", "n_experts": "8", "topk": "2"}, 316),
        ("GPT OSS 120B", {"n_layers": "36", "hidden": "2880", "n_heads": "64", "n_experts": "128", "topk": "4"}, 117),
        ("Qwen3_30B_a3B", {"n_layers": "48", "hidden": "2048", "n_heads": "32", "n_experts": "128"}, 30.5),
    ],
)
def test_names_lead_to_released_configs(name: str, sizes: dict[str, str], billions: float) -> None:
    """Whatever a table calls a model, its parameters are the released ones."""
    graph = mixture({**ROW, "model_name": name, **sizes})
    assert graph.num_parameters() / 10**9 == pytest.approx(billions, rel=0.01)


def test_a_release_in_the_notes_is_no_word_of_overlap() -> None:
    """What a row says of overlap stands apart from its notes, which may end with a version."""
    row = {**ROW, "notes": "overlap matched from workload_base_configs.py@v0.3.0:PRETRAIN_CONFIG_V2"}
    assert expert_plan({**row, "overlap_notes": "MoE all-to-all overlap"})["ep_overlap"] is True
    assert "ep_overlap" not in expert_plan({**row, "overlap_notes": "no MoE all-to-all overlap"})


def test_proxies_have_the_row_s_layers() -> None:
    """A proxy keeps the first, dense layer and drops the rest."""
    row = {**ROW, "model_name": "deepseekv2-l4", "n_layers": "4", "hidden": "5120", "n_experts": "160", "topk": "6"}
    assert mixture(row).layers == ("layer", "layer_moe", "layer_moe", "layer_moe")


def test_only_bridge_s_recipes_predict_further_tokens() -> None:
    """Megatron-Bridge trains the prediction layer unless the row says otherwise."""
    bridge = {**ROW, "source": "Megatron-Bridge performance summary"}
    assert len(mixture(bridge).layers) == 62
    assert len(mixture({**bridge, "model_name": "DeepSeekV3 (w/o MTP)"}).layers) == 61
    assert len(mixture(ROW).layers) == 61


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_name": "Secret-MoE"}, "not released.* ffn_hidden not published"),
        ({"model_name": "DeepSeek-V4-Pro", "ffn_hidden": "3072"}, "not released"),
    ],
)
def test_other_mixtures_have_a_reason(change: dict[str, str], reason: str) -> None:
    """A name that is not known and sizes that are not all there, or layers that no row describes."""
    with pytest.raises(Unmodelled, match=reason):
        mixture({**ROW, **change})


def test_a_row_s_sizes_beat_its_model_s_name() -> None:
    """Half the hidden size, fewer and narrower experts, another vocabulary: what the row prints, no matter the name."""
    own = {"hidden": "3584", "n_experts": "64", "topk": "4", "ffn_hidden": "1024", "vocab": "32000"}
    dims = mixture({**ROW, **own}).dims
    assert [dims[name] for name in ("hidden", "num_experts", "topk", "expert_ffn", "vocab")] == [
        3584, 64, 4, 1024, 32000,
    ]  # fmt: skip
    assert mixture({**ROW, "ffn_hidden": "18432"}).dims["expert_ffn"] == 2048, "that of its dense layers"


def test_mixtures_of_other_names_are_what_they_print() -> None:
    """Experts in all layers of a decoder like Llama."""
    sizes = {
        "n_layers": "16",
        "hidden": "2048",
        "n_heads": "16",
        "n_kv_heads": "4",
        "ffn_hidden": "1408",
        "vocab": "50000",
    }
    graph = mixture({**ROW, "model_name": "OurMoE", **sizes, "n_experts": "16", "topk": "2"})
    assert graph.layers == ("layer_moe",) * 16
    assert graph.num_parameters() == pytest.approx(
        2 * 50000 * 2048 + 16 * (16 * 3 * 2048 * 1408 + 2.5 * 2048**2), rel=0.01
    )


def test_words_of_a_row() -> None:
    """Slices of experts, caps and overlap stand in the notes."""
    assert expert_plan(ROW) == {"ep": 32}
    assert expert_plan({**ROW, "notes": "flags; ETP=1; x"}) == {"ep": 32, "etp": 1}
    assert expert_plan({**ROW, "notes": "expert TP=4"})["etp"] == 4
    assert expert_plan({**ROW, "overlap_notes": "MoE all-to-all overlap; x"})["ep_overlap"] is True
    assert expert_plan({**ROW, "model_name": "DeepSeekV3 (tokendrop)"})["capacity_factor"] == 1.0


def test_flags_of_primus() -> None:
    """From its second stage on nothing of what is routed waits for the host, and a token is sent once to a rank."""
    changes = {
        flags: stack_of({**ROW, "source": "Primus", "stack": "megatron", "notes": flags})[1]
        for flags in (
            "x",
            "use_turbo_grouped_gemm: true",
            "turbo_sync_free_moe_stage: 1",
            "turbo_sync_free_moe_stage: 2",
        )
    }
    none, grouped, first, second = changes.values()
    assert none == first == {}
    assert grouped == {"fusion.grouped_products": True}
    assert second == {"fusion.grouped_products": True, "experts.sync_s": 0.0}
    plans = [expert_plan({**ROW, "notes": flags}) for flags in changes]
    assert ["token_dispatch" in plan for plan in plans] == [False, False, False, True]


def test_configs_of_primus_send_tokens_by_deepep_where_they_do() -> None:
    """Its large models; gpt-oss has exchanges between all, and so have other frameworks that do not say."""
    names = {"deepseek-v3": True, "Qwen3-235B-A22B (best configuration)": True, "GPT-OSS 20B": False}
    for name, sends in names.items():
        row = {**ROW, "source": "Primus MoE", "model_name": name}
        assert ("token_dispatch" in expert_plan(row)) == sends
        assert "token_dispatch" not in expert_plan({**row, "source": "a table"})


def test_configs_of_primus_add_up_gradients_of_mixtures_in_16_bits() -> None:
    """Unless a row says otherwise; dense models keep Megatron-LM's 32 bits."""
    row = {
        **ROW, "source": "Primus MoE", "stack": "megatron", "gpu_type": "MI355X", "n_gpus": "64", "tp": "1", "pp": "1",
        "ep": "8", "seq_len": "4096", "micro_batch": "1", "global_batch_seqs": "64",
    }  # fmt: skip
    plan = case(row).plan
    assert (plan["grad_dtype"], plan["reduce_dtype"]) == ("bf16", "bf16")
    assert "gradients added up in bf16" in case(row).read_as
    assert "grad_dtype" not in case({**row, "source": "a table"}).plan
    assert "grad_dtype" not in case({**row, "notes": "accumulate-allreduce-grads-in-fp32"}).plan


def test_stacks_without_runs_of_mixtures_have_the_costs_of_those_with_some() -> None:
    """The prior lies among what was fitted, and is what a stack has that says nothing of experts."""
    fitted = [load_stack(name).experts for name in ("nemo", "nemo-24", "megatron")]
    assert load_stack("torchtitan").experts == load_stack("fsdp").experts == ExpertHabits()
    for name in ("overhead", "row_s", "sync_s"):
        values = [getattr(each, name) for each in fitted]
        assert min(values) <= getattr(ExpertHabits(), name) <= max(values), name


@pytest.mark.parametrize(
    ("stages", "layers"),
    [(16, (4,) * 15 + (2,)), (8, (8,) * 7 + (6,)), (32, (2,) * 30 + (1, 1)), (1, None), (64, None)],
)
def test_last_stage_of_a_model_that_predicts_further_has_the_rest(stages: int, layers: tuple[int, ...] | None) -> None:
    """61 layers and the one that predicts further, whose loss comes on top of the other."""
    graph = mixture({**ROW, "source": "Megatron-Bridge performance summary"})
    assert recipe_layers(graph, stages) == layers


def test_silent_rows_do_what_their_source_s_scripts_say() -> None:
    """SimuMax's runs overlap nothing of their data parallelism and cap their experts."""
    silent = {**ROW, "source": "SimuMax A100-PCIe (measured vs peer)"}
    assert "no tp/dp overlap" in overlap_words(silent)
    assert expert_plan(silent)["capacity_factor"] == 1.0
    told = expert_plan({**ROW, "notes": "proxy with 4 layers; capacity factor 1.25 with padding"})
    assert told["capacity_factor"] == 1.25


def test_silent_recipes_hide_their_exchange_since_26_06() -> None:
    """Earlier releases and dense models are taken by their word, machines of one rack since 25.11 by their library."""
    silent = {"notes": "Bridge container release 26.08, Pre-Training", "n_experts": "128"}
    assert "cuda graph full" in overlap_words(silent)
    assert overlap_words({**silent, "notes": "Bridge container release 25.11, Pre-Training"}) == ""
    rack = {**silent, "gpu_type": "GB200", "notes": "Bridge container release 25.11, Pre-Training"}
    assert overlap_words(rack) == "dispatcher hybridep"
    assert overlap_words({**rack, "notes": "Bridge container release 25.09, Pre-Training"}) == ""
    assert overlap_words({**silent, "n_experts": ""}) == ""
    assert overlap_words({**silent, "overlap_notes": "DeepEP"}) == "deepep"
