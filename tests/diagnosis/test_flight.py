"""Dumps of NCCL's flight recorder: costs and waiting over ranks, what did not end, and pickles that name code."""

import json
import pickle

import pytest

from simpar import cli
from simpar.diagnosis.answer import explain
from simpar.errors import UserError

GROUPS = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "1": {"name": "1", "desc": "mesh_dp", "ranks": "[0, 1, 2, 3]"},
    "2": {"name": "2", "desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": "[0, 1, 2, 3]"},
}


def entry(number, kind="all_reduce", group="1", duration=1.0, **more):
    """One collective as torch records it, of 1,000 bf16."""
    return {
        "record_id": number, "pg_id": int(group), "process_group": (group, GROUPS[group]["desc"]),
        "collective_seq_id": number, "p2p_seq_id": number if more.get("is_p2p") else 0, "op_id": number,
        "profiling_name": f"nccl:{kind}", "input_sizes": [[10, 100]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[10, 100]], "output_dtypes": ["BFloat16"], "state": "completed", "retired": True,
        "is_p2p": False, "duration_ms": duration, "time_created_ns": 1, **more,
    }  # fmt: skip


def dump(folder, rank, entries, *, text=False):
    """A rank's file, by the name that torch gives it."""
    data = {"version": "2.10", "pg_config": GROUPS, "pg_status": {}, "entries": entries}
    path = folder / f"nccl_trace_rank_{rank}{'.json' * text}"
    path.write_bytes(json.dumps(data).encode() if text else pickle.dumps(data))
    return path


@pytest.mark.parametrize("text", [False, True])
def test_the_last_rank_shows_the_cost(tmp_path, text):
    """Rank 2 comes last each time: 1 ms is the cost, the others wait 4 ms for it."""
    files = [
        dump(tmp_path, rank, [entry(n, duration=1.0 if rank == 2 else 5.0) for n in range(3)], text=text)
        for rank in range(4)
    ]
    found = explain(*files).flight
    (use,) = found.uses
    assert (use.axis, use.kind, use.calls, use.size_bytes) == ("dp", "all_reduce", 3, 2000)
    assert (use.cost_s, use.waiting_s) == (pytest.approx(0.001), pytest.approx(0.003))
    assert found.last == {2: 3}
    assert found.stuck == ()


def test_what_did_not_end_names_who_is_missing(tmp_path, capsys):
    """Three ranks sit in an all-reduce that rank 1 never called."""
    hanging = entry(7, state="started", retired=False, duration=None)
    files = [dump(tmp_path, rank, [entry(6), *([hanging] if rank != 1 else [])]) for rank in range(4)]
    (stuck,) = explain(*files).flight.stuck
    assert (stuck.axis, stuck.number, stuck.entered, stuck.missing) == ("dp", 7, (0, 2, 3), (1,))
    assert cli.run(["explain", *map(str, files)]) == 0
    assert "ranks 0, 2, 3 have called it, ranks 1 have not" in capsys.readouterr().out


def test_messages_are_not_matched_by_guess(tmp_path):
    """In a group of four a message does not say its other end: nothing is compared, and without timing that is said."""
    message = entry(1, kind="send", group="2", is_p2p=True, duration=None)
    found = explain(*(dump(tmp_path, rank, [message]) for rank in range(2))).flight
    assert [(use.axis, use.calls, use.cost_s) for use in found.uses] == [("pp", 2, None)]
    assert any("TORCH_NCCL_ENABLE_TIMING" in line for line in found.remarks)


class Code:
    """What a hostile pickle would run."""

    def __reduce__(self):
        return (print, ("run",))


def test_pickles_that_name_code_are_refused(tmp_path, capsys):
    """Nothing is run; other files that are no dumps are refused in one line."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Code()], "pg_config": {}}))
    with pytest.raises(UserError, match="only plain data is read"):
        explain(path)
    assert capsys.readouterr().out == ""
    good = dump(tmp_path, 0, [entry(1)]).read_bytes()
    for content, said in (
        (good[:-30], "is not a valid dump"), (pickle.dumps([1]), "is not a dump"),
        (pickle.dumps({"entries": 1}), "no entries"),
        (pickle.dumps({"entries": [{}], "pg_config": {}}), "malformed"), (b'{"entries": [}', "is not a valid dump"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(UserError, match=said):
            explain(path)
    unnamed = tmp_path / "dump"
    unnamed.write_bytes(good)
    with pytest.raises(UserError, match="of which rank"):
        explain(unnamed)
    path.write_bytes(good)
    again = tmp_path / "other_0"
    again.write_bytes(good)
    with pytest.raises(UserError, match="is of rank 0, as"):
        explain(path, again)
