"""Rows are read by their columns alone: no label and no note changes a number."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.architectures.catalogue import catalogue
from simpar.validation.cells import Unmodelled
from simpar.validation.predict import change_stack, cluster_of, predict
from simpar.validation.rows import case, read_measurements
from simpar.validation.table import outcome, validate
from tests.validation.test_validate import MIXTURE, ROW, write

LABELS = ("source", "citation", "model_name", "notes", "overlap_notes", "assumed", "configured_by")
WORDS = (
    "dgxc-prod cluster", "KempnerForge tests", "packed sequences off", "packed sequences", "NeMo settings", "MLPerf",
    "SimuMax B200", "Primus", "arXiv 2104.04473", "Megatron-Bridge", "container release 26.08", "no TP/DP overlap",
    "DeepEP; cuda graph full_iteration", "fp32 grad accumulation", "ETP=2", "capacity factor 1.25", "head_dim 256",
    "max allocated", "GB (10^9)", "abnormally low", "compile=false", "layer-level timing: forward 7 ms, backward 9 ms",
    "Megatron FLOP counter", "model-parallel size 8", "llama3 (LoRA)", "qwen2", "mpt-7b", "MaxText-52B", "GPT-3",
)  # fmt: skip
"""Words that published tables have, each of which meant something for a prediction once."""
ROWS = (
    ROW, {**ROW, **MIXTURE, "micro_batch": "1"}, {**ROW, "gpu_type": "B200", "iteration_time_s": "", "mfu_pct": "40"},
    {**ROW, "peak_mem_gib": "40", "recompute": "", "micro_batch": ""}, {**ROW, "cp": "2", "dp": "4", "stack": ""},
)  # fmt: skip


def same(row: dict[str, str]) -> tuple[object, ...]:
    """What a row is read as, without the texts that only label it."""
    entry = case(row)
    assert entry.graph.name == (row["model_name"].strip() or "model")
    return dataclasses.replace(entry, graph=dataclasses.replace(entry.graph, name=""), supposed=()), read_measurements(
        row
    )


@given(
    row=st.sampled_from(ROWS),
    labels=st.dictionaries(
        st.sampled_from(LABELS), st.one_of(st.sampled_from(WORDS), st.text(max_size=40)), min_size=1
    ),
)
@settings(max_examples=100, deadline=None)
def test_no_label_changes_what_a_row_is_read_as(row: dict[str, str], labels: dict[str, str]) -> None:
    """Whatever stands in sources, names of models, citations and notes."""
    assert same({**row, **labels}) == same(row)


@pytest.mark.parametrize(
    "labels", [{"source": "dgxc-prod cluster"}, {"source": "KempnerForge tests"}, {"notes": "packed sequences off"}]
)
def test_no_label_changes_a_prediction(labels: dict[str, str]) -> None:
    """The same seconds and bytes, to the last bit."""
    found, usual = outcome(2, {**ROW, **labels}), outcome(2, ROW)
    assert found.prediction is not None
    assert dataclasses.replace(found, source="", cell=()) == dataclasses.replace(usual, source="", cell=())


def test_what_is_not_read_is_listed(tmp_path) -> None:
    """Notes, and cells in whose place another one is read."""
    row = {**ROW, "notes": "fp8 in truth", "hardware": "dgx-h100", "zero": "1"}
    assert validate(write(tmp_path / "t.csv", [row, ROW]), jobs=1)["columns_not_read"] == {
        "notes": "",
        "gpu_type": "in 1 row that hardware describes",
        "interconnect": "in 1 row that hardware describes",
        "zero_stage_or_fsdp": "in 1 row that zero describes",
    }


def test_keys_of_a_plan_are_columns() -> None:
    """By their own names or other frameworks', as numbers, words, true and false, and lists."""
    own = {
        "bucket_bytes": "50 MB", "sequence_parallel": "TRUE", "overlap_grad_reduce": "false", "tp_overlap": "true",
        "lora_rank": "16.0", "lora_targets": '["q_proj", "v_proj"]', "reduce_dtype": "bf16",
    }  # fmt: skip
    plan = case({**ROW, **own}).plan
    assert plan.items() >= {
        "bucket_bytes": "50 MB", "sequence_parallel": True, "overlap_grad_reduce": False, "lora_rank": 16,
        "lora_targets": ("q_proj", "v_proj"), "tensor_parallel": {"overlap": True}, "reduce_dtype": "bf16",
    }.items()  # fmt: skip
    renamed = {("tensor_parallel_size" if name == "tp" else name): value for name, value in ROW.items()}
    assert case(renamed).plan == case(ROW).plan
    with pytest.raises(Unmodelled, match="tensor_parallel_size = 4 and tp = 2 mean the same; give one"):
        case({**ROW, "tensor_parallel_size": "4"})


def test_fields_of_profiles_are_columns() -> None:
    """One field of the stack, of the cluster or of the model in place of its own."""
    found = case({**ROW, "stack.launch.graphs": '["step"]', "stack.fusion.attention_rate.others": "1.2"})
    assert found.stack_changes == {"launch.graphs": ("step",), "fusion.attention_rate.others": 1.2}
    assert change_stack(found.stack, found.stack_changes).launch.graphs == ("step",)
    slow = case({**ROW, "hardware.scale_out.nic_bandwidth": "100 Gb/s"})
    network = cluster_of(slow).profile.scale_out
    assert network is not None
    assert network.nic_bandwidth == 100e9 / 8
    assert predict(slow).step_time_s > predict(case(ROW)).step_time_s
    layered = case({**ROW, "model.norm": "layer", "model.head_dim": "256", "model.dropout": "true"})
    assert layered.graph.facts["norm"] == "layer"
    assert layered.graph.dims["head_dim"] == 256


def test_the_column_model_is_a_released_model_or_a_config() -> None:
    """Sizes that a row prints, and fields that it names, replace the model's own."""
    bare = ROW | dict.fromkeys(("n_layers", "hidden", "n_heads", "n_kv_heads", "ffn_hidden", "vocab"), "")
    named = {**bare, "model": "deepseek-v3", "n_layers": "4", "model.first_k_dense_replace": "1", "tp": "1", "dp": ""}
    layers = case({**named, "model.num_nextn_predict_layers": "null"}).graph.layers
    assert layers == ("layer", "layer_moe", "layer_moe", "layer_moe")
    config = '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, '
    config += '"intermediate_size": 1024, "vocab_size": 1000}'
    assert len(case({**bare, "model": config}).graph.layers) == 2
    for name in ("Llama-3.2-1B", "Llama 3.2 1B", "meta-llama/Llama-3.2-1B"):
        assert len(case({**bare, "model_name": name}).graph.layers) == 16
    assert "llama-3.2-1b" in catalogue()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stack": "megatorn"}, "unknown stack 'megatorn'; did you mean 'megatron'"),
        ({"hardware": "dgx-h10"}, "unknown hardware 'dgx-h10'; did you mean 'dgx-h100'"),
        ({"model": "llama-3-80b"}, "unknown model 'llama-3-80b'; did you mean 'llama-3-8b'"),
        ({"stack.fusion.atention": "flash"}, "column stack.fusion.atention: unknown field 'atention'; did you mean"),
        ({"stack.fusion.norm.kind": "1"}, "column stack.fusion.norm.kind: norm has no fields"),
        ({"hardware.scale_out.nics_per_node": "-1"}, "hardware.scale_out.nics_per_node = -1: allowed: greater"),
        ({"model.nrm": "layer"}, "column model.nrm: unknown field; did you mean 'norm'"),
        ({"attention_kernel": "fast"}, "attention_kernel = 'fast': allowed: 'flash'"),
        ({"status": "crashed"}, "status 'crashed' is not a known word; allowed: ok, oom"),
        ({"peak_mem_counts": "all"}, "peak_mem_counts 'all' is not a known word; allowed: allocated, reserved, device"),
        ({"documents": "-5"}, "documents = -5"),
        ({"bucket_bytes": "many"}, "bucket_bytes = 'many'"),
        ({"not_modelled": "a proxy"}, "a proxy"),
    ],
)
def test_what_is_wrong_in_a_cell_is_one_line(change: dict[str, str], reason: str) -> None:
    """With the column, the value and what is allowed."""
    found = outcome(2, {**ROW, **change})
    assert found.prediction is None
    assert reason in found.reason
    assert "\n" not in found.reason


def test_settings_that_say_so_are_tuned() -> None:
    """Each by itself; a blank micro-batch opens what is blank beside it."""
    row = {**ROW, "pp": "2", "dp": "4", "cp_method": "tuned"}
    assert case(row).open == ("cp_method",)
    assert "cp_method" not in case(row).plan
    assert case({**row, "recompute": "tuned", "micro_batch": "tuned"}).open == (
        "micro_batch", "cp_method", "recompute", "vpp",
    )  # fmt: skip
    assert case({**row, "micro_batch": "", "cp_method": "ring", "vpp": "2"}).open == ("micro_batch",)
    assert "tp_overlap = tuned: allowed for micro_batch, vpp," in outcome(2, {**row, "tp_overlap": "tuned"}).reason


def test_documents_are_packed_where_a_row_says_so() -> None:
    """By their mean length, or as a plan file has them."""
    assert case(ROW).training.documents is None
    packed = case({**ROW, "documents": "200"}).training.documents
    padded = case({**ROW, "documents": '{"mean": 200, "packing": "pad"}'}).training.documents
    assert packed is not None
    assert padded is not None
    assert (packed.mean, packed.packing, padded.packing) == (200, "pack", "pad")
