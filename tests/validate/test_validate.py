"""Measured tables: rows are modelled or counted with a reason, and figures follow their definitions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks.tables import DATA
from simpar.errors import UserError
from simpar.units import GB, GIB
from simpar.validate.cells import Unmodelled
from simpar.validate.predict import Prediction, changed_stack, cluster_of, predict, result_of
from simpar.validate.rows import Measured, case, measured
from simpar.validate.summary import Outcome, figures, kendall_tau, regret_by_cell
from simpar.validate.table import label, outcomes_of, read_table, suspect, validate
from tests.gate import some

ROW = {
    "source": "test", "model_name": "Llama-2-7B", "n_layers": "32", "hidden": "4096", "n_heads": "32",
    "n_kv_heads": "32", "ffn_hidden": "11008", "vocab": "32000", "seq_len": "4096", "gpu_type": "H100 SXM 80GB",
    "gpus_per_node": "8", "n_gpus": "16", "interconnect": "NVLink; InfiniBand", "precision": "bf16", "tp": "2",
    "pp": "1", "dp": "8", "zero_stage_or_fsdp": "ZeRO-1", "micro_batch": "1", "global_batch_seqs": "64",
    "recompute": "none", "schedule": "1F1B", "stack": "megatron", "iteration_time_s": "1.5", "status": "ok",
}  # fmt: skip
MIXTURE = {
    "micro_batch": "", "n_experts": "8", "topk": "2", "model_name": "Mixtral 8x7B", "hidden": "4096", "tp": "1",
    "dp": "",
}  # fmt: skip


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """A CSV table of rows."""
    with path.open("w", newline="") as stream:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(stream, fieldnames=list(names))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_row_becomes_the_layout_it_describes() -> None:
    """Columns give model, cluster and plan."""
    found = case(ROW)
    assert found.graph.num_parameters() == 6_738_415_616
    assert (found.hardware, found.num_devices, found.stack) == ("dgx-h100", 16, "megatron")
    assert found.plan["zero"] == 1
    assert predict(found).step_time_s > 0


def test_the_interval_of_memory_is_that_of_the_peak_beside_it() -> None:
    """Of what the allocator reserves, though the device holds some GiB besides."""
    found = predict(case(ROW))
    low, high = found.certainty.reserved_memory_interval_bytes
    assert low < found.peak_reserved_bytes < high
    assert high - low < 0.5 * found.peak_reserved_bytes


def test_memory_is_of_the_rank_that_a_stack_logs() -> None:
    """With one microbatch the last stage is the fullest, for its logits; nanotron's log shows the first."""
    row = {
        **ROW,
        "stack": "nanotron",
        "n_gpus": "8",
        "tp": "1",
        "pp": "2",
        "dp": "4",
        "global_batch_seqs": "16",
    }
    asked = case({**row, "model_name": "ours", "n_layers": "8", "vocab": "128256", "micro_batch": "4"})
    assert predict(asked).peak_reserved_bytes < 0.95 * result_of(asked).memory.peak_reserved_bytes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_experts": "8"}, "config is not released"), ({"cp": "3"}, "tp x cp x pp does not divide"),
        ({"hidden": "", "model_name": "ours"}, "hidden not published"), (MIXTURE, "micro_batch not published"),
        ({"tp": "3"}, "does not divide"), ({"gpu_type": "Gaudi 3"}, "no profile"), ({"n_gpus": "many"}, "not a number"),
        ({"gpu_type": "TPU v3"}, "no profile"), ({"tp": "", "pp": ""}, "tp and pp not published"),
    ],
)  # fmt: skip
def test_rows_outside_the_model_have_a_reason(change: dict[str, str], reason: str) -> None:
    """What is not modelled says why."""
    with pytest.raises(Unmodelled, match=reason):
        predict(case({**ROW, **change}))


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
    assert (plan["recompute"], plan["offload_activations"], plan["zero"], plan["hsdp"]) == (
        "none",
        0.25,
        3,
        1,
    )
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


def test_step_time_from_tokens() -> None:
    """Where only tokens per second and device are published, the step follows."""
    row = {**ROW, "iteration_time_s": "", "tokens_per_s_per_gpu": "8192"}
    assert measured(row).step_time_s == pytest.approx(64 * 4096 / (8192 * 16))


def test_measured_fabric_is_the_state_of_the_cluster() -> None:
    """A slower measured all-reduce makes the same plan slower."""
    slow = {**ROW, "fabric_allreduce_gbs": "20"}
    assert cluster_of(case(slow)).state
    assert predict(case(slow)).step_time_s > predict(case(ROW)).step_time_s


@pytest.mark.parametrize(
    ("words", "tp", "nearest"),
    some(
        [
            ("MegaScale", "8", "megatron"), ("fsdp2", "1", "fsdp"), ("axlearn", "1", "maxtext"),
            ("torchtune", "1", "fsdp"), ("our own", "2", "megatron"), ("our own", "1", "fsdp"), ("", "2", "megatron"),
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
    assert changed_stack(found.stack, found.stack_changes).fusion.attention == kernel
    assert ("attention not fused" in found.read_as) == (kernel == "unfused")
    assert case({**row, "stack": "fsdp"}).stack_changes == {}


def test_the_first_flash_attention_is_half_as_fast_as_its_second_version() -> None:
    """The kernels of a row that names one without a version are the first's."""
    first, second = ({**ROW, "attention_kernel": name} for name in ("FlashAttention", "FlashAttention-2"))
    rates = [
        changed_stack(found.stack, found.stack_changes).fusion.rate_on("x")
        for found in map(case, (first, second))
    ]
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
    assert case(alone).network is None
    result = validate(write(tmp_path / "t.csv", [few, ROW]), jobs=1)
    read = result["by_source"]["test"]["read_as"]
    assert sorted(read.values()) == [1, 1]
    assert any("with 2 NICs of 100 Gb/s a node" in words for words in read)


def test_a_model_without_sizes_is_the_one_of_its_name() -> None:
    """However a paper writes it."""
    sizes = ("n_layers", "hidden", "n_heads", "n_kv_heads", "ffn_hidden", "vocab")
    row = {name: value for name, value in ROW.items() if name not in sizes}
    for name, layers in (("GPT3-1.3B", 24), ("GPT-3 175B", 96), ("LLaMA 65B", 80), ("OPT-175B (BF16)", 96)):
        assert len(case({**row, "model_name": name}).graph.layers) == layers


def test_every_row_is_counted(tmp_path: Path) -> None:
    """Modelled and unmodelled rows add up; the result is plain JSON with the promised keys."""
    table = write(tmp_path / "t.csv", [ROW, {**ROW, "n_experts": "8"}, {**ROW, "tp": "4", "dp": "4"}])
    found = validate(table, jobs=1)
    json.dumps(found, allow_nan=False)
    assert found["rows"] == 3
    assert found["modelled"] + sum(found["unmodelled_reasons"].values()) == 3
    keys = (
        "time_ape_median", "time_ape_mean", "time_ape_p90", "memory_ape_median", "static_memory_ape_median",
        "kendall_tau", "fit_accuracy", "fit_confusion", "regret_mean", "regret_max", "by_source", "rows_detail",
    )  # fmt: skip
    assert all(key in found for key in keys)


def test_bad_tables_are_one_line(tmp_path: Path) -> None:
    """A missing file or column is named."""
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(UserError, match="column n_gpus, seq_len missing"):
        read_table(write(tmp_path / "t.csv", [{"source": "x"}]))


def outcome(predicted: float, actual: float, *, fits: bool = True, said: bool = True) -> Outcome:
    """An outcome with given step times."""
    prediction = Prediction(predicted, 1 * GIB, 2 * GIB, 2 * GIB, said)
    return Outcome(1, "s", "x", ("cell",), Measured(actual, 1 * GB, None, None, None, fits), prediction)


def test_regret_is_the_cost_of_trusting_the_prediction() -> None:
    """The row predicted fastest was measured at 12 s, the best at 10 s: 20 percent."""
    rows = [outcome(1.0, 12.0), outcome(2.0, 10.0), outcome(3.0, 30.0)]
    assert list(regret_by_cell(rows).values()) == [pytest.approx(0.2)]


def test_rank_correlation() -> None:
    """Equal order gives 1, reversed order -1."""
    assert kendall_tau([outcome(t, t) for t in (1.0, 2.0, 3.0)]) == 1.0
    assert kendall_tau([outcome(t, 4 - t) for t in (1.0, 2.0, 3.0)]) == -1.0


def test_figures_of_known_errors() -> None:
    """Errors of 10 and 30 percent: median and mean 20, bias signed."""
    found = figures([outcome(1.1, 1.0), outcome(0.7, 1.0, fits=False)])
    assert found["time_ape_median"] == pytest.approx(20.0)
    assert found["time_bias_median"] == pytest.approx(-10.0)
    assert found["fit_confusion"] == {"fits_fits": 1, "oom_fits": 1}
    assert found["fit_accuracy"] == 0.5


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="published tables are not beside the checkout")
def test_published_runs_within_bounds() -> None:
    """A sample of the development table stays within the error it is documented with."""
    rows = read_table(DATA / "measured_runs_dev.csv")
    papers = [
        row
        for row in rows
        if row["source"].startswith(("Megatron SC21 Table 1", "Selective recompute Table 5"))
    ]
    found = figures(outcomes_of(papers, jobs=1))
    assert found["modelled"] == len(papers)
    assert found["time_ape_median"] < 6
    assert found["time_ape_p90"] < 15


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="published tables are not beside the checkout")
def test_published_peaks_closer_than_their_authors_simulator() -> None:
    """Allocated peaks of Megatron-Core on B200: dense models, mixtures, pipelines, long sequences."""
    rows = read_table(DATA / "measured_runs_dev.csv")
    found = figures(outcomes_of([row for row in rows if row["source"].startswith("SimuMax B200")], jobs=1))
    assert found["memory_rows"] == 37
    assert found["ours_on_peer_memory_ape_mean"] < found["peer_memory_ape_mean"]


def test_labels_are_without_the_decimals_of_spreadsheets():
    """Whole numbers, as a person would write them."""
    row = {"model_name": "llama-2.0", "n_gpus": "128.0", "tp": "2.0", "pp": "4"}
    assert label(row) == "llama-2.0 on 128 tp2 pp4"
