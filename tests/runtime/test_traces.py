"""One Perfetto view of the simulated and the measured step: clocks aligned, processes apart, slices nested."""

import gzip
import json

import pytest

from simpar.runtime.traces import MAX_EVENTS, MEASURED_PID, merge_traces, write_both
from simpar.scenario import load_scenario
from simpar.simulation import simulate
from tests.trace_rules import check_trace


def kineto(base_ns, start_us, *, pid, names=("forward", "aten::mm")):
    """A Kineto trace of one step of 100 us with a main thread and a helper."""
    slices = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#2",
            "pid": pid,
            "tid": 7,
            "ts": start_us,
            "dur": 100.0,
        }
    ]
    slices += [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": 7, "ts": start_us + 10 * depth,
         "dur": 100.4 - 10 * depth}
        for depth, name in enumerate(names, 1)
    ]  # fmt: skip
    helper = {"ph": "X", "cat": "cpu_op", "name": "gloo", "pid": pid, "tid": 9, "ts": start_us + 5, "dur": 3.0}
    unseen = {"ph": "X", "cat": "python_function", "name": "own", "pid": pid, "tid": 7, "ts": start_us, "dur": 1.0}
    return {"baseTimeNanoseconds": base_ns, "traceEvents": [*slices, helper, unseen]}


def slices_of(events, rank):
    """Slices of a measured rank by name."""
    return {e["name"]: e for e in events if e["ph"] == "X" and e["pid"] == MEASURED_PID + rank}


def test_ranks_with_clocks_of_their_own_are_aligned():
    """Rank 1 counts from a base 1 ms later and begins 40 us after rank 0: it stands at 40 us."""
    events = merge_traces([kineto(0, 2_000.0, pid=11), kineto(1_000_000, 1_040.0, pid=12)])
    first, second = slices_of(events, 0), slices_of(events, 1)
    assert first["ProfilerStep#2"]["ts"] == 0
    assert second["ProfilerStep#2"]["ts"] == pytest.approx(40)
    assert second["gloo"]["ts"] == pytest.approx(45)
    assert "own" not in first


def test_slices_that_stick_out_by_rounding_are_cut():
    """A viewer drops what overlaps without nesting: ends are those of the slice around them."""
    found = slices_of(merge_traces([kineto(0, 0.0, pid=1)]), 0)
    assert found["forward"]["dur"] == pytest.approx(90)
    assert found["aten::mm"]["dur"] == pytest.approx(80)


def test_long_traces_keep_their_longest_slices():
    """Beyond the limit the short ones go, never the step."""
    long = kineto(0, 0.0, pid=1, names=())
    long["traceEvents"] += [
        {"ph": "X", "cat": "cpu_op", "name": "tiny", "pid": 1, "tid": 7, "ts": 0.001 * n, "dur": 0.0005}
        for n in range(MAX_EVENTS + 50)
    ]
    events = merge_traces([long])
    assert sum(e["ph"] == "X" for e in events) == MAX_EVENTS
    assert "ProfilerStep#2" in slices_of(events, 0)


def test_one_file_shows_both(tmp_path):
    """Processes of the simulation first, every rank under a number of its own, all from time zero; gzip by name."""
    timeline = simulate(**load_scenario("gpt2-laptop").inputs()).timeline
    files = []
    for rank in range(2):
        files.append(tmp_path / f"trace-rank{rank}.json")
        files[-1].write_text(json.dumps(kineto(0, 500.0 + rank, pid=1)))
    write_both(tmp_path / "both.json.gz", timeline, files)
    found = json.loads(gzip.decompress((tmp_path / "both.json.gz").read_bytes()))
    assert check_trace(found) == []
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e.get("name") == "process_name"}
    measured = {pid: name for pid, name in names.items() if pid >= MEASURED_PID}
    assert measured == {MEASURED_PID: "measured: rank 0", MEASURED_PID + 1: "measured: rank 1"}
    simulated = {pid: name for pid, name in names.items() if pid < MEASURED_PID}
    assert simulated
    assert all(name.startswith("simulated: ") for name in simulated.values())
    for pids in (simulated, measured):
        assert min(e["ts"] for e in found["traceEvents"] if e["ph"] == "X" and e["pid"] in pids) == 0
    write_both(tmp_path / "alone.json", None, files)
    alone = json.loads((tmp_path / "alone.json").read_text())["traceEvents"]
    assert {e["pid"] for e in alone} == set(measured)
