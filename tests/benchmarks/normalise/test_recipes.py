"""Rows whose blanks configurations fill: what is filled, what stays the row's own, and what is said of it."""

from __future__ import annotations

import json

import pytest

from benchmarks.normalise.recipes import completed, recipes
from benchmarks.normalise.rows import normalised
from simpar.validation.cells import Unmodelled
from simpar.validation.columns import RUN_COLUMNS
from tests.benchmarks.normalise.published import case, measured, suspect
from tests.validation.test_validate import MIXTURE, ROW

WORDS = ("overlap_notes", "data_set")
T5 = {
    "source": "NeMo-Framework-Launcher A100 SuperPOD scaling", "model_name": "mT5-3B", "seq_len": "512",
    "gpu_type": "A100 SXM 80GB", "gpus_per_node": "8", "n_gpus": "16", "stack": "megatron",
    "citation": "NVIDIA/NeMo-Framework-Launcher:README.md@23.08.03", "tokens_per_s_per_gpu": "11000",
}  # fmt: skip


def test_every_recipe_is_known_by_columns_fills_columns_and_is_cited() -> None:
    """No measured column is among them."""
    measured = {"iteration_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_mem_gib"}
    for recipe in recipes():
        assert set(recipe.row) <= {*RUN_COLUMNS, *WORDS}
        assert set(recipe.says) | set(recipe.instead) <= {*RUN_COLUMNS, *WORDS} - measured
        assert "/" in recipe.of


def test_blanks_are_filled_and_the_row_s_own_cells_are_not() -> None:
    """What a configuration says stands where a row says nothing."""
    found = case(T5)
    assert len(found.graph.layers) == 24 + 1 + 24
    assert (found.plan["tp"], found.plan["micro_batch"], found.training.global_batch) == (2, 24, 1920)
    assert "tp 2" in found.read_as
    assert found.read_as.endswith("launcher_scripts/conf/training/mt5/3b.yaml]")
    own = case({**T5, "tp": "4"})
    assert own.plan["tp"] == 4
    assert "tp 4" not in own.read_as


def test_notes_alone_fill_no_settings() -> None:
    """What they tell of kernels is said of the row, which is still fitted to; filled settings make it another's."""
    row = {**ROW, "stack": "megatron", "source": "ms-swift examples"}
    assert "cross entropy in fp32" in normalised(row)["assumed"]
    assert normalised(row)["configured_by"] == ""
    assert "launcher_scripts" in normalised(T5)["configured_by"]


def test_documents_are_those_of_the_data_set_that_a_launch_file_names() -> None:
    """LongWriter's published 5,009 tokens with a deviation of 2,933; a row that only packs has whole sequences."""
    row = {**ROW, "stack": "megatron", "source": "ms-swift examples", "notes": "samples packed to the full length"}
    long = {**row, "citation": "modelscope/ms-swift examples/megatron/long_text.sh"}
    assert json.loads(normalised(long)["documents"]) == {"mean": 5009, "spread": 0.586}
    assert "LongWriter-6k" in normalised(long)["assumed"]
    assert normalised(long)["configured_by"] == ""
    assert normalised(row)["documents"] == ""
    assert normalised({**row, "source": "NeMo", "notes": "packed sequences"})["documents"] == "200"


def test_a_release_of_flash_attention_is_a_kernel() -> None:
    """On Hopper the third is faster."""
    for release, kernel in (("2", "flash2"), ("3", "flash")):
        row = {**ROW, "stack": "megatron", "notes": f"FlashAttention-{release}; rank 32"}
        assert normalised(row)["stack.fusion.attention"] == kernel


def test_a_configuration_tells_which_of_two_rows_is_meant() -> None:
    """And the report says what was there."""
    row = {**ROW, "source": "MLPerf Training v5.1 llama31_8b", "gpu_type": "MI355X", "precision": "bf16"}
    found = case(row)
    assert found.plan["precision"] == "fp8"
    assert "precision fp8 in place of bf16 [AMD-AGI/Primus" in found.read_as
    assert case({**row, "gpu_type": "H100"}).plan["precision"] == "bf16"
    assert completed({**row, "precision": "fp8"})[1] == ()


def test_a_row_that_no_configuration_is_of_stays_as_it_is() -> None:
    """The same cells, and nothing said."""
    assert completed(ROW) == (ROW, ())
    with pytest.raises(Unmodelled, match="tp and pp"):
        case({**T5, "model_name": "GPT3-175B", "hidden": "12288", "n_heads": "96", "n_layers": "96"})


@pytest.mark.parametrize(("size", "layout"), [(4, (4, 1)), (8, (8, 1)), (32, (8, 4)), (280, (8, 35))])
def test_a_model_parallel_size_is_split_as_megatron_does(size: int, layout: tuple[int, int]) -> None:
    """Tensors up to the GPUs of a node, stages beyond; a row's own split comes first."""
    silent = {"notes": f"model-parallel size {size}, no interleaving", "tp": "", "pp": ""}
    row, said = completed(silent)
    assert (int(row["tp"]), int(row["pp"]), row["vpp"]) == (*layout, "1")
    assert "2104.04473" in said[0]
    assert completed({**silent, "tp": "2"})[0]["pp"] == ""


def test_flop_tell_the_share_of_layers_that_run_twice() -> None:
    """Half of a forward is a sixth of a model's FLOP; words without figures stay a reason."""
    row = {**ROW, "n_layers": "8", "recompute": "rematerialisation (partial)"}
    some = case({**row, "mfu_pct": "48", "hfu_pct": "56"})
    assert some.plan["recompute"] == "layers:full*4,none*4"
    with pytest.raises(Unmodelled, match="partial recompute"):
        case(row)


def test_experts_are_spread_over_no_more_ranks_than_a_stage_has() -> None:
    """As many as share what was printed evenly, and the report says so."""
    found = case({**ROW, **MIXTURE, "micro_batch": "1", "ep": "64", "pp": "2"})
    assert found.plan["ep"] == 8
    assert "experts over 8 ranks" in found.read_as


def test_heads_have_the_width_that_notes_or_their_trainer_say() -> None:
    """MaxText scales the number of heads, never their width."""
    sized = {**ROW, "hidden": "8192", "n_heads": "128", "ffn_hidden": "57344", "n_kv_heads": ""}
    assert case(sized).graph.dims["head_dim"] == 64
    assert case({**sized, "model_name": "MaxText-128B"}).graph.dims["head_dim"] == 128
    assert case({**sized, "notes": "parallel block; head_dim 256"}).graph.dims["head_dim"] == 256


def test_kempnerforge_s_ranks_of_experts_share_a_batch_and_its_log_is_of_tensors() -> None:
    """The batch of its data-parallel ranks, once for each rank of experts; steps are apart that no machine bounds."""
    row = {
        **ROW, **MIXTURE, "source": "KempnerForge MoE packed", "model_name": "Llama-3-MoE-64e", "gpu_type": "H200",
        "n_experts": "64", "ffn_hidden": "", "gpus_per_node": "4", "n_gpus": "8", "ep": "4", "micro_batch": "1",
        "global_batch_seqs": "2", "zero_stage_or_fsdp": "FSDP2 degree 2 x EP 4", "stack": "torchtitan",
        "peak_mem_gib": "40", "notes": "implementation-bound, use with care",
    }  # fmt: skip
    found = case(row)
    assert (found.stack, found.training.global_batch) == ("kempnerforge", 8)
    assert found.stack_changes["memory.eager_copies"]
    assert measured(row).peak_counts == "allocated"
    assert "memory allocated" in found.read_as
    assert "implementation" in suspect(row)
    dense = case({**ROW, "source": "KempnerForge H200", "overlap_notes": "torch.compile=true"})
    assert (dense.stack, dict(dense.stack_changes)) == ("kempnerforge", {})
