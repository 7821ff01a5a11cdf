"""Words of rows: dtypes of gradients, what a peak of memory counts, layers without experts, schedules of papers."""

from __future__ import annotations

import pytest

from benchmarks.normalise.words import dense_layers, gradient_dtypes, memory_unit, peak_counts
from simpar.units import GB, GIB
from tests.benchmarks.normalise.published import case, measured
from tests.validation.test_validate import MIXTURE, ROW


@pytest.mark.parametrize(
    ("words", "one_buffer", "found"),
    [
        ("bf16 (fp32 grad accumulation and reduce-scatter)", False, {"grad_dtype": "fp32", "reduce_dtype": "fp32"}),
        ("fp32 gradient accumulation", False, {"grad_dtype": "fp32"}),
        ("fp32 gradient accumulation", True, {"grad_dtype": "fp32", "reduce_dtype": "fp32"}),
        ("gradients are accumulated in bf16", False, {"grad_dtype": "bf16"}),
        ("no TP/DP overlap; fp32 grad reduce; sync p2p", True, {"grad_dtype": "fp32", "reduce_dtype": "fp32"}),
        ("overlapped grad reduce and param gather", True, {}),
        ("grad_reduce_in_fp32=true", False, {"reduce_dtype": "fp32"}),
        ("grad_reduce_in_fp32=false", False, {}),
        ("bf16", True, {}),
    ],
)
def test_dtypes_of_gradients(words: str, one_buffer: bool, found: dict[str, str]) -> None:
    """What gradients are added up in, and what is sent, in words of any of three columns."""
    for column in ("precision", "overlap_notes", "notes"):
        assert gradient_dtypes({column: words}, one_buffer=one_buffer) == found


def test_a_plan_says_dtypes_only_where_its_stack_has_others() -> None:
    """A word for the stack's usual changes nothing."""
    assert "grad_dtype" not in case({**ROW, "notes": "fp32 grad accumulation"}).plan
    halved = case({**ROW, "notes": "bf16 grad reduce"})
    assert (halved.plan["grad_dtype"], halved.plan["reduce_dtype"]) == ("bf16", "bf16")
    assert halved.read_as.endswith("gradients added up in bf16 and reduced in bf16")


@pytest.mark.parametrize(
    ("stack", "notes", "counts"),
    [
        ("megatron", "", "allocated"),
        ("torchtitan", "", "reserved"),
        ("megatron", "peak by nvidia-smi", "device"),
        ("torchtitan", "memory unit printed GB (device memory)", "device"),
        ("megatron", "max reserved", "reserved"),
        ("fsdp", "torch max allocated", "allocated"),
    ],
)
def test_what_a_peak_counts(stack: str, notes: str, counts: str) -> None:
    """The word decides, else the stack's habit."""
    assert peak_counts({"stack": stack, "notes": notes}) == counts


def test_units_of_memory() -> None:
    """GiB, which tables print as GB, unless they say that they mean 10^9."""
    assert memory_unit({"notes": "memory printed GB (max over stages)"}) == GIB
    row = {**ROW, "peak_mem_gib": "70", "notes": "memory in GB (10^9)"}
    assert memory_unit(row) == GB
    assert measured(row).peak_memory_bytes == 70 * GB
    read_off = measured({**ROW, "peak_mem_gib": "81.0", "source": "Qwen finetune README"})
    assert (read_off.peak_memory_bytes, read_off.peak_counts) == (81 * GB, "device")


def test_losses_that_keep_logits_in_fp32() -> None:
    """Where a release does not compile its loss, and where Megatron-Core's own fusion widens the logits."""
    row = {**ROW, "tp": "1", "dp": "16", "notes": "loss not compiled"}
    assert case({**row, "stack": "torchtitan"}).stack_changes["memory.logit_bytes"] == 14
    assert "memory.logit_bytes" not in case({**row, "stack": "torchtitan", "notes": ""}).stack_changes
    assert case({**row, "notes": "cross entropy in fp32"}).stack_changes["memory.logit_saved_bytes"] == 4


def test_layers_left_over_are_in_internevo_s_last_stages() -> None:
    """32 layers in five stages leave two."""
    row = {**ROW, "stack": "internevo", "tp": "1", "pp": "5", "dp": "1", "n_gpus": "5", "global_batch_seqs": "4"}
    row |= {"gpus_per_node": "5", "zero_stage_or_fsdp": "0"}
    assert case(row).plan["layers"] == (6, 6, 6, 7, 7)
    assert "layers" not in case({**row, "pp": "4", "n_gpus": "4", "gpus_per_node": "4"}).plan


@pytest.mark.parametrize(
    ("notes", "layers", "dense"),
    [("", 61, 3), ("", 4, 1), ("", 40, 2), ("4 layers, all MoE", 4, 0), ("2 dense layers", 4, 2),
     ("first_k_dense_replace=3", 4, 3)],
)  # fmt: skip
def test_proxies_keep_their_share_of_dense_layers(notes: str, layers: int, dense: int) -> None:
    """Four layers of DeepSeek-V3 are not three without experts and one with them, unless the row says so."""
    assert dense_layers({"notes": notes}, 3, layers=layers, of=61) == dense


@pytest.mark.parametrize(
    ("words", "name", "chunks"),
    [("zbb", "zb-h1", 1), ("ZBV", "zb-v", 2), ("zb-v", "zb-v", 2), ("V-Half", "v-half", 2), ("zbv-min", "v-min", 2),
     ("ZB-2p", "zb-h2", 1), ("Zero Bubble", "zb-h1", 1), ("DualPipeV", "dualpipev", 2), ("GPipe", "gpipe", 1),
     ("DAPPLE", "1f1b", 1), ("1F1B (PipeDream-Flush)", "1f1b", 1)],
)  # fmt: skip
def test_schedules_of_papers(words: str, name: str, chunks: int) -> None:
    """Names of schedules, and how many chunks they have where no column says."""
    plan = case({**ROW, "pp": "2", "dp": "4", "vpp": "", "schedule": words}).plan
    assert (plan["schedule"], plan["vpp"]) == (name, chunks)


@pytest.mark.parametrize(
    ("notes", "rank", "targets"),
    [("", 32, 3), ("LoRA rank 16, attention projections", 16, 4), ("r=8, all linear layers", 8, 7)],
)
def test_adapters(notes: str, rank: int, targets: int) -> None:
    """Rank and projections stand in the notes, else they are NeMo's."""
    plan = case({**ROW, "model_name": "Llama-2-7B LoRA", "notes": notes}).plan
    assert (plan["lora_rank"], len(tuple(plan["lora_targets"]))) == (rank, targets)  # type: ignore[arg-type]


def test_experts_are_spread_where_recipes_spread_them() -> None:
    """NeMo's are over the ranks that share them evenly, Megatron-LM's on every rank; both are said."""
    row = {**ROW, **MIXTURE, "micro_batch": "1", "ep": ""}
    assert case(row).plan["ep"] == 1
    recipe = case({**row, "source": "NeMo recipe"})
    assert recipe.plan["ep"] == 8
    assert "experts over 8 ranks" in recipe.read_as
