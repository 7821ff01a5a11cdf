"""What labels and notes of published tables say becomes columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.normalise.row_plan import held_weights, maxtext_words, narrow_states
from benchmarks.normalise.rows import normalised
from benchmarks.normalise.tables import read_published
from benchmarks.tables import DATA
from simpar.validation.predict import change_stack, cluster_of, predict
from simpar.validation.summary import figures
from simpar.validation.table import outcomes_of, validate
from tests.benchmarks.normalise.published import case, suspect
from tests.gate import some
from tests.validation.test_validate import ROW, write


def test_devices_below_their_power_limit_are_devices_of_their_own() -> None:
    """They run at another clock: what is fitted to them must not bend the others."""
    assert case({**ROW, "gpu_type": "B200 (power-limited)"}).hardware == "hgx-b200-limited"
    assert case({**ROW, "gpu_type": "B200"}).hardware == "hgx-b200"
    assert case({**ROW, "gpu_type": "B200 SXM", "source": "SimuMax B200"}).hardware == "hgx-b200-throttled"
    assert case({**ROW, "gpu_type": "A100 SXM", "source": "SimuMax B200"}).hardware == "dgx-a100-80gb"


def test_what_rows_leave_to_their_framework() -> None:
    """NeMo's habits: adapters beside attention's projections on short documents, single layers a virtual stage."""
    nemo = {**ROW, "source": "NeMo performance summary", "pp": "4", "tp": "4", "dp": "1"}
    tuned = case({**nemo, "model_name": "LLAMA2-7B (LoRA)"})
    assert tuned.plan["lora_targets"] == ("q_proj", "k_proj", "v_proj")
    assert tuned.training.documents is not None
    assert (case(nemo).stack, case(nemo).plan["vpp"]) == ("nemo", 8)
    assert case({**nemo, "source": "a paper"}).plan["vpp"] == 1
    words = {**nemo, "source": "a paper", "overlap_notes": "EP overlap; VPP2", "schedule": "interleaved 1F1B"}
    assert (case(words).plan["vpp"], case(words).plan["schedule"]) == (2, "interleaved")
    assert predict(tuned).step_time_s < predict(case(nemo)).step_time_s


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({}, None),
        ({"notes": "fp8 parameters gathered"}, "stored"),
        ({"precision": "bf16 + mxfp8 parameter gather"}, "stored"),
        ({"source": "Primus MoE 2.0"}, "none"),
    ],
)
def test_weights_of_8_bit_products(said: dict[str, str], kind: str | None) -> None:
    """Where a row says that parameters are in 8 bits, and where the software casts them in every product."""
    assert held_weights({**ROW, **said}).get("quantized_weights") == kind


def test_layers_that_rows_count() -> None:
    """Recomputed ones are those of every virtual stage, offloaded ones those of the model; a flag is no degree."""
    row = {**ROW, "n_layers": "32", "dp": "", "tp": "1", "n_gpus": "8"}
    some = {**row, "recompute": "full recompute of 3 layers (per virtual stage)"}
    assert case(some).plan["recompute"] == "layers:full*3,none*29"
    pipeline = {**some, "pp": "4", "vpp": "2", "tp": "2"}
    assert case(pipeline).plan["recompute"] == "layers:" + ",".join(["full*3,none*1"] * 8)
    assert case({**pipeline, "vpp": "4"}).plan["recompute"] == "full"
    away = {**row, "recompute": "activation CPU offload 8 layers", "overlap_notes": "Megatron FSDP"}
    plan = case({**away, "zero_stage_or_fsdp": "FSDP 1"}).plan
    assert (plan["recompute"], plan["offload_activations"], plan["zero"], plan["hsdp"]) == ("none", 0.25, 3, 1)
    assert predict(case(away)).step_time_s > predict(case(row)).step_time_s


def test_slices_of_tpus() -> None:
    """FSDP inside a slice, replicas across; hosts of eight or four chips."""
    slices = {
        **ROW,
        "gpu_type": "TPU v5e",
        "gpus_per_node": "",
        "n_gpus": "512",
        "tp": "1",
        "dp": "512",
        "stack": "maxtext",
    }
    words = {"zero_stage_or_fsdp": "FSDP inside the slice, DP across slices", "notes": "line 80; 2 slice(s)"}
    found = case({**slices, **words, "global_batch_seqs": "1024"})
    assert (found.hardware, found.devices_per_node) == ("tpu-v5e-pod", 8)
    assert (found.plan["zero"], found.plan["hsdp"]) == (3, 2)
    assert case({**slices, "gpu_type": "TPU v5p", "recompute": "minimal"}).devices_per_node == 4


def test_rows_that_their_authors_call_abnormal_are_listed_apart() -> None:
    """They are modelled and counted, and compared with no other."""
    assert suspect({**ROW, "notes": "flagged by authors as abnormally low"}) == "abnormal by its authors"
    assert suspect(ROW) == ""


@pytest.mark.parametrize(
    ("words", "zero", "hsdp"),
    [
        ("zero0", 0, 1), ("distributed optimizer (ZeRO-1)", 1, 1), ("FSDP FULL_SHARD (ZeRO-3)", 3, 1),
        ("fsdp-grad-op", 2, 1), ("FSDP 4", 3, 2), ("DDP (no ZeRO in the config)", 0, 1), ("zero3", 3, 1),
    ],
)  # fmt: skip
def test_sharding_is_read_from_words(words: str, zero: int, hsdp: int) -> None:
    """The sharding column's words give stage and replicas."""
    plan = case({**ROW, "zero_stage_or_fsdp": words}).plan
    assert (plan.get("zero"), plan.get("hsdp", 1)) == (zero, hsdp)


@pytest.mark.parametrize(
    ("words", "tp", "nearest"),
    some(
        [
            ("MegaScale", "8", "megatron"), ("fsdp2", "1", "fsdp"), ("axlearn", "1", "maxtext"),
            ("lightning", "1", "fsdp"), ("our own", "2", "megatron"), ("our own", "1", "fsdp"), ("", "2", "megatron"),
        ],
        [("fsdp2", "1", "fsdp"), ("axlearn", "1", "maxtext"), ("our own", "2", "megatron")],
        tuples=True,
    ),
)  # fmt: skip
def test_an_unknown_stack_is_predicted_as_the_nearest_and_is_wide(words: str, tp: str, nearest: str) -> None:
    """Nothing measured supports it, whatever supports the profile in its place; what it was read as says so."""
    row = {**ROW, "stack": words, "tp": tp, "dp": ""}
    known, found = case({**row, "stack": nearest}), case(row)
    assert found.stack == nearest
    name = words.lower() or "an unnamed stack"
    assert found.read_as.endswith(f"stack {nearest}, the nearest to {name}")
    assert predict(found).step_time_s == predict(known).step_time_s
    certainty, usual = predict(found).certainty, predict(known).certainty
    assert certainty
    assert usual
    assert certainty.support == 0
    assert certainty.step_time_interval_s[1] > usual.step_time_interval_s[1]
    assert any(name in words for words in certainty.unsupported)


@pytest.mark.parametrize(
    ("citation", "tp", "stack", "kernel"),
    [
        ("arXiv 2205.01068", "1", "fsdp", "unfused"), ("arXiv 2210.02414", "2", "megatron-22", "unfused"),
        ("arXiv 2104.04473", "2", "megatron-sc21", "unfused"), ("arXiv 2402.15627", "2", "megatron", "flash"),
    ],
)  # fmt: skip
def test_software_that_a_paper_does_not_name_is_what_there_was_then(
    citation: str, tp: str, stack: str, kernel: str
) -> None:
    """Of its time, without fused attention before there was any; a stack that is named is not dated by its paper."""
    row = {**ROW, "stack": "", "citation": citation, "tp": tp, "dp": ""}
    found = case(row)
    assert found.stack == stack
    assert change_stack(found.stack, found.stack_changes).fusion.attention == kernel
    assert ("attention not fused" in found.read_as) == (kernel == "unfused")
    assert case({**row, "stack": "fsdp"}).stack_changes == {}


def test_the_first_flash_attention_is_half_as_fast_as_its_second_version() -> None:
    """The kernels of a row that names one without a version are the first's."""
    first, second = ({**ROW, "attention_kernel": name} for name in ("FlashAttention", "FlashAttention-2"))
    rates = [change_stack(found.stack, found.stack_changes).fusion.rate_on("x") for found in map(case, (first, second))]
    assert rates == [0.5, 1.0]
    assert predict(case(first)).step_time_s > predict(case(second)).step_time_s


def test_what_configs_of_published_software_say_is_read_where_a_row_is_silent() -> None:
    """Primus recomputes all layers under torch's FSDP; Megatron-LM's example of Llama 3 runs as NeMo's recipes do."""
    row = {**ROW, "source": "Primus", "stack": "megatron", "zero_stage_or_fsdp": "FSDP", "recompute": ""}
    assert case(row).plan["recompute"] == "full"
    assert case({**row, "zero_stage_or_fsdp": "DDP"}).plan["recompute"] == "none"
    assert case({**row, "source": "test"}).plan["recompute"] == "none"
    example = {**ROW, "stack": "megatron", "notes": "legend copies NeMo settings"}
    assert case(example).stack == "nemo"


def test_words_of_a_network_are_the_cluster_and_what_was_read_is_said(tmp_path: Path) -> None:
    """A quarter of the NICs make a step that communicates longer; inside one node they make none."""
    few = {**ROW, "interconnect": "NVLink; 2x100 Gb/s RoCE"}
    found = case(few)
    assert cluster_of(found).profile.scale_out.nics_per_node == 2  # type: ignore[union-attr]
    assert predict(found).step_time_s > predict(case(ROW)).step_time_s
    alone = {**few, "n_gpus": "8", "dp": "", "global_batch_seqs": "8"}
    assert case(alone).hardware_changes == {}
    result = validate(write(tmp_path / "t.csv", [normalised(few), normalised(ROW)]), jobs=1)
    read = result["by_source"]["test"]["read_as"]
    assert sorted(read.values()) == [1, 1]
    assert any("scale_out.nics_per_node 2 and scale_out.nic_bandwidth 12500000000.0" in words for words in read)


def test_a_model_without_sizes_is_the_one_of_its_name() -> None:
    """However a paper writes it."""
    sizes = ("n_layers", "hidden", "n_heads", "n_kv_heads", "ffn_hidden", "vocab")
    row = {name: value for name, value in ROW.items() if name not in sizes}
    for name, layers in (("GPT3-1.3B", 24), ("GPT-3 175B", 96), ("LLaMA 65B", 80), ("OPT-175B (BF16)", 96)):
        assert len(case({**row, "model_name": name}).graph.layers) == layers


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="published tables are not beside the checkout")
def test_published_runs_within_bounds() -> None:
    """A sample of the development table stays within the error it is documented with."""
    rows = read_published(DATA / "measured_runs_dev.csv")
    papers = [row for row in rows if row["source"].startswith(("Megatron SC21 Table 1", "Selective recompute Table 5"))]
    found = figures(outcomes_of(papers, jobs=1))
    assert found["modelled"] == len(papers)
    assert found["time_ape_median"] < 6
    assert found["time_ape_p90"] < 15


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="published tables are not beside the checkout")
def test_published_peaks_are_as_close_as_their_authors_simulator() -> None:
    """Allocated peaks of Megatron-Core on B200: dense models, mixtures, pipelines, long sequences."""
    rows = read_published(DATA / "measured_runs_dev.csv")
    found = figures(outcomes_of([row for row in rows if row["source"].startswith("SimuMax B200")], jobs=1))
    assert found["memory_rows"] == 37
    assert found["ours_on_peer_memory_ape_mean"] == pytest.approx(found["peer_memory_ape_mean"], abs=0.05)  # in percent


def test_remat_names_of_maxtext_wait_on_the_host():
    """What its notes say of layer inputs and of the loss; other stacks' notes mean what they say themselves."""
    notes = "layer inputs, q, k, v kept on the host; loss in 16 pieces"
    row = {"source": "recipes", "stack": "maxtext", "notes": notes}
    assert maxtext_words(row) == {"offload_activations": 1.0, "loss_chunks": 16}
    assert maxtext_words({**row, "notes": "1 slice(s)"}) == {}
    assert maxtext_words({**row, "stack": "fsdp"}) == {}


def test_weights_in_bf16_have_gradients_and_moments_like_them():
    """MaxText's weight_dtype, and adapters that take the dtype of their layer."""
    dtypes = {"parameter_dtype": "bf16", "moment_dtype": "bf16", "grad_dtype": "bf16"}
    assert narrow_states({"notes": "rank 64; bf16 weights"}) == {**dtypes, "master_weights": False}
    assert narrow_states({"notes": "bf16"}) == {}
