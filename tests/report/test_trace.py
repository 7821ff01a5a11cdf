"""Traces obey the rules that viewers enforce silently."""

import gzip
import json
from dataclasses import replace

import numpy as np

from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.program.blocks.phases import BlockStep
from simpar.program.blocks.segments import Segment
from simpar.program.ir.program import Label
from simpar.report.detail import InnerSteps
from simpar.report.timeline import Timeline
from simpar.report.trace import trace, write_trace
from simpar.simulation import simulate
from tests.trace_rules import check_trace


def test_a_trace_breaks_no_rule(timeline):
    """The checker finds nothing to complain about."""
    assert check_trace(trace(timeline)) == []


def test_every_slice_lies_where_the_timeline_says(timeline):
    """Times are us with the ns as decimals; one slice per op and stream."""
    slices = [event for event in trace(timeline)["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(timeline.slices)
    spans = sorted((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in slices)
    wanted = zip(timeline.slices.start_ns.tolist(), timeline.slices.finish_ns.tolist(), strict=True)
    assert spans == sorted(wanted)


def test_processes_are_classes_and_say_how_many_ranks_they_stand_for(timeline):
    """Process names carry the multiplicity; threads are the streams."""
    events = trace(timeline)["traceEvents"]
    processes = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    threads = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert processes == [f"stage {stage} (x8)" for stage in range(4)]
    assert threads == set(timeline.streams)


def test_each_message_has_one_arrow_with_two_ends(timeline):
    """Three stage borders, 8 microbatches, two directions: 48 arrows."""
    events = trace(timeline)["traceEvents"]
    starts = [e["id"] for e in events if e["ph"] == "s"]
    ends = [e["id"] for e in events if e["ph"] == "f"]
    assert len(starts) == 48
    assert sorted(starts) == sorted(ends)


def test_overlapping_slices_of_one_stream_go_to_lanes_of_their_own(timeline):
    """Two flows that overlap in part would be dropped on one thread: they get two."""
    slices = timeline.slices
    columns = {name: getattr(slices, name) for name in slices.__dataclass_fields__}
    late = np.where(slices.stream == 1, slices.finish_ns + 4 * 10**6, slices.finish_ns)
    wide = type(slices)(**columns | {"finish_ns": late})
    crowded = Timeline(wide, timeline.labels, timeline.classes, timeline.streams, timeline.arrows)
    data = trace(crowded)
    assert check_trace(data) == []
    names = {e["args"]["name"] for e in data["traceEvents"] if e.get("name") == "thread_name"}
    assert "send_F (2)" in names


def test_the_checker_sees_partial_overlap_and_loose_arrows(timeline):
    """A slice that overlaps its neighbour in part, and an arrow from nowhere, are reported."""
    data = trace(timeline)
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    slices[0]["dur"] += 0.5
    arrow = next(event for event in data["traceEvents"] if event["ph"] == "s")
    arrow["ts"] += 0.123
    problems = " ".join(check_trace(data))
    assert "overlaps" in problems
    assert "does not start on a slice" in problems


def test_memory_counters_carry_every_part(timeline):
    """Counters are stacked series by memory category, ending at the static state."""
    counters = [e for e in trace(timeline)["traceEvents"] if e["ph"] == "C" and e["pid"] == 0]
    assert set(counters[0]["args"]) == set(timeline.memory[0].parts)
    assert counters[-1]["args"]["activations"] == 0


def test_a_trace_can_be_compressed(timeline, tmp_path):
    """A name ending in .gz gives the same JSON, compressed, and the same bytes each time."""
    for name in ("a.json.gz", "b.json.gz", "c.json"):
        write_trace(timeline, tmp_path / name)
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "c.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_written_trace_is_plain_json(timeline, tmp_path):
    """The file loads and carries the metadata given."""
    write_trace(timeline, tmp_path / "t.json", metadata={"simpar_version": "1"})
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["otherData"] == {"simpar_version": "1"}


def test_blocks_open_into_their_steps(timeline):
    """Inner steps lie nested in the slice they belong to, on their own streams, exactly where offsets say."""
    ran = (
        ("norm", "forward", "compute"),
        ("all_gather", "tp", "send_F"),
        ("none", "tp", "compute"),
        ("mlp", "forward", "compute"),
    )
    start_ns, finish_ns = np.array([0, 1, 2, 2]) * 10**6, np.array([1, 2, 2, 3]) * 10**6
    segment = Segment(tuple(BlockStep(*step) for step in ran), start_ns, finish_ns, 3 * 10**6, {})
    steps = InnerSteps(((0, segment),), 0)
    assert steps.labels == (Label("forward", "norm", 0), Label("tp", "all_gather", 0), Label("forward", "mlp", 0))
    slices = timeline.slices
    forwards = np.flatnonzero((slices.label == 0) & (slices.class_id == 0))
    inner = np.where(np.isin(np.arange(len(slices)), forwards), 0, -1)
    opened = replace(timeline, slices=replace(slices, inner=inner), inner=(steps,), arrows=timeline.arrows[:0])
    events = trace(opened)["traceEvents"]
    found = [e for e in events if e["ph"] == "X" and e["name"] == "fwd norm L0"]
    assert [e["ts"] for e in found] == (slices.start_ns[forwards] / 1000).tolist()
    assert len(events) == len(trace(replace(timeline, arrows=timeline.arrows[:0]))["traceEvents"]) + 3 * len(found)


def test_large_timelines_show_one_class_a_stage(timeline, monkeypatch):
    """Above the limit a second class of a pipeline rank is left out, and nothing else."""
    slices = timeline.slices
    twin = replace(slices, class_id=slices.class_id + 4)
    both = type(slices)(
        **{name: np.concatenate([getattr(slices, name), getattr(twin, name)]) for name in slices.__dataclass_fields__}
    )
    double = replace(timeline, slices=both, classes=(*timeline.classes, *timeline.classes), memory=())
    monkeypatch.setattr("simpar.report.trace.MAX_SLICES", len(slices))
    data = trace(double)
    assert check_trace(data) == []
    assert sum(event["ph"] == "X" for event in data["traceEvents"]) == len(slices)


def test_real_runs_give_traces_that_break_no_rule():
    """A simulated pipeline with tensor parallelism: nested steps and arrows, no overlap."""
    plan = Plan(tp=2, pp=2, micro_batch=1)
    made = simulate("gpt2", load_cluster("dgx-h100", 1), plan, Training(seq_len=512, global_batch=16))
    data = trace(made.timeline)
    assert check_trace(data) == []
    names = " ".join(event["name"] for event in data["traceEvents"] if event["ph"] == "X")
    assert "tp " in names
    assert "fwd attention L0" in names
