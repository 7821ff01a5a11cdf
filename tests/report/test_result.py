"""The result: its JSON keys are a promise."""

import json

import pytest

import simpar
from simpar.errors import UserError
from simpar.report.result import Result
from simpar.report.timeline import MEMORY_PARTS
from simpar.scenario import Published
from simpar.simulation import make_job
from tests.gate import some

PROMISED = {
    "step_time_s", "tokens_per_s", "tokens_per_s_per_device", "model_flops_per_step", "mfu", "hfu",
    "tflops_per_device", "bubble_fraction", "time_breakdown_s", "communication", "peak_memory_bytes",
    "peak_reserved_bytes", "static_memory_bytes", "fits", "memory", "cost_usd_per_step", "energy_j_per_step",
    "plan", "model", "cluster", "engine", "fold", "simpar_version", "schema_version",
}  # fmt: skip
BREAKDOWN = [
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble", "waiting",
    "optimizer", "host", "offload", "jitter",
]  # fmt: skip
MEMORY = ["parameters", "gradients", "optimizer_states", "activations", "transient", "overhead", "peak"]


def test_the_json_has_the_promised_keys(result):
    """Top-level keys, parts of the breakdown and of the memory table are all there."""
    data = json.loads(result.to_json())
    assert set(data) >= PROMISED
    assert list(data["time_breakdown_s"]) == BREAKDOWN
    for stage in data["memory"]:
        assert set(MEMORY) <= set(stage)
    for entry in data["communication"].values():
        assert set(entry) == {"bytes_per_rank", "sent_bytes_per_rank", "busy_s", "exposed_s", "algorithm"}


@pytest.mark.parametrize(
    "plan",
    some(
        [{"tp": 2, "zero": 3, "hsdp": 2}, {}, {"pp": 4, "schedule": "interleaved", "vpp": 2}, {"cp": 2, "zero": 1}], 1
    ),
)
def test_a_result_has_the_layout_that_was_simulated(plan):
    """Its numbers, and what follows from them, are those of the job; a saved result has it, too."""
    inputs = ("llama-3-8b", "dgx-h100", plan, simpar.Training(seq_len=1024, global_batch=16))
    result = simpar.simulate(*inputs)
    model, cluster = simpar.Model(inputs[0]), simpar.Cluster(inputs[1])
    assert result.layout == make_job(model, cluster, simpar.Plan(**plan), inputs[3]).layout
    assert Result.from_json(result.to_json()).layout == result.layout


def test_the_breakdown_sums_to_the_step(result):
    """Every second of the critical rank has one cause."""
    assert result.time_breakdown_s.total_s == pytest.approx(result.step_time_s)


def test_memory_parts_sum_to_the_peak(result):
    """Six parts make the peak of every stage."""
    for stage in result.memory.stages:
        assert list(stage.parts_bytes) == list(MEMORY_PARTS)
        assert sum(stage.parts_bytes.values()) == pytest.approx(stage.peak_bytes)


def test_a_result_survives_json(result):
    """Reading back what was written gives the same JSON again."""
    again = Result.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert again.timeline is None


def test_json_holds_no_clock_time_host_or_path(result):
    """Two runs of the same scenario write the same bytes."""
    text = result.to_json()
    assert "/work" not in text
    assert "hostname" not in text


@pytest.mark.parametrize(("seq_len", "said"), [(1024, 0), (2048, 1)])
def test_sequences_beyond_a_table_of_positions_are_assumed(seq_len, said):
    """GPT-2 has 1,024 rows."""
    training = simpar.Training(seq_len=seq_len, global_batch=8)
    result = simpar.simulate("gpt2", "dgx-h100", simpar.Plan(zero=1), training, with_timeline=False)
    longer = "a longer table of positions: its config has 1,024 rows, a sequence 2,048 tokens"
    assert result.setup.model.get("assumed", []).count(longer) == said


def test_save_and_load(result, tmp_path):
    """Saving writes what loading reads."""
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json").to_json() == result.to_json()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "a result is a JSON object"),
        ('{"schema_version": 99}', "schema_version = 99: allowed: 1"),
        ('{"schema_version": 1}', "not a result of"),
    ],
)
def test_other_files_are_refused_in_one_line(text, words):
    """A file that is no result says so, and what would be one."""
    with pytest.raises(UserError, match=words) as caught:
        Result.from_json(text, source="r.json")
    assert str(caught.value).startswith("r.json")
    assert "\n" not in str(caught.value)


def test_a_malformed_field_is_named(result):
    """The field that is wrong stands in the message."""
    data = json.loads(result.to_json()) | {"mfu": "high"}
    with pytest.raises(UserError, match="mfu"):
        Result.from_dict(data, source="r.json")


def test_a_frame_has_a_row_per_stage(result):
    """to_frame gives bytes per pipeline stage, or another of the tables."""
    assert result.to_frame("time").time_s.sum() == pytest.approx(result.step_time_s)
    assert result.to_frame("figures").value["step_time_s"] == result.step_time_s
    assert list(result.to_frame("communication").index) == list(result.communication)
    assert len(result.to_frame("trials")) == len(result.why.trials)
    with pytest.raises(UserError, match="unknown table 'memory'"):
        result.to_frame("memory")
    assert len(repr(result)) < 300
    frame = result.to_frame()
    assert list(frame.index) == [0, 1, 2, 3]
    assert frame["peak"].max() == result.peak_memory_bytes


def test_a_published_figure_travels_with_the_result(result):
    """with_published keeps everything else and survives JSON."""
    beside = result.with_published(Published(source="a paper", step_time_s=0.1))
    assert Result.from_json(beside.to_json()).published == beside.published


@pytest.mark.parametrize("recompute", ["full", "every:2", "selective"])
def test_recomputed_compute_is_what_recomputing_adds(recompute: str) -> None:
    """The compute of a step is longer by the forwards that run again."""
    training, cluster = simpar.Training(seq_len=1024, global_batch=8), simpar.Cluster("dgx-h100")
    shape = {"tp": 8, "micro_batch": 1}
    plain, again = (
        simpar.simulate("llama-3.2-1b", cluster, simpar.Plan(**shape, recompute=how), training)
        for how in ("none", recompute)
    )
    added_s = again.time_breakdown_s.compute - plain.time_breakdown_s.compute
    assert plain.speed.recompute_s == 0
    assert again.speed.recompute_s == pytest.approx(added_s, rel=0.01)
    assert again.to_dict()["recompute_s"] == again.speed.recompute_s
