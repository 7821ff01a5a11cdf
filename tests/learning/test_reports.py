"""Folders of simpar run: what ran and how long it took, as any measured run; what is none is a line."""

import json

import pytest

from simpar.errors import UserError
from simpar.learning.answer import learn
from simpar.learning.reports import is_report, read_report
from simpar.learning.runs import runs_of
from simpar.plan.plan import Plan
from simpar.validation.cells import Unmodelled
from simpar.validation.predict import ParameterOverrides, predict_time_s
from simpar.validation.profile_overrides import ProfileOverrides

MODEL = {
    "model_type": "llama", "name": "small", "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 704, "vocab_size": 8192,
}  # fmt: skip
TRAINING = {"seq_len": 256, "global_batch": 8}
HERE = ProfileOverrides("simpar", "laptop-cpu-4")


def folder(path, plan, *, step_time_s=1.0, spread_s=0.0, peak_reserved_bytes=0.0, **job):
    """A folder as ``simpar run`` leaves it on four ranks."""
    path.mkdir(exist_ok=True)
    dumped = Plan.model_validate({"micro_batch": 2, "precision": "fp32", **plan}).model_dump(mode="json")
    machine = {"device": "cpu", "threads": 1}
    (path / "job.json").write_text(
        json.dumps({"plan": dumped, "model": MODEL, "training": TRAINING, "machine": machine, **job})
    )
    spread = {"p10": step_time_s - spread_s, "p90": step_time_s + spread_s}
    measured = {
        "step_time_s": step_time_s, "step_time_spread_s": spread, "steps_measured": 4,
        "peak_reserved_bytes": peak_reserved_bytes,
    }  # fmt: skip
    (path / "report.json").write_text(
        json.dumps({"model": "small", "ranks": 4, "hardware": "laptop-cpu-4", "measured": measured})
    )
    return str(path)


def test_a_folder_is_the_layout_that_ran(tmp_path):
    """Model, plan, ranks and time; either the folder or the report in it is named."""
    path = folder(tmp_path / "run", {"tp": 2, "zero": 0}, step_time_s=2.0, spread_s=0.2)
    found = read_report(path, HERE)
    assert (found.time_s, found.case.num_devices, found.case.plan["tp"]) == (2.0, 4, 2)
    assert found.scatter == pytest.approx(0.05)
    assert found.case.graph.name == "small"
    assert is_report(path)
    assert is_report(f"{path}/report.json")
    assert read_report(f"{path}/report.json", HERE) == found


@pytest.mark.slow
def test_three_runs_teach_a_processor(tmp_path):
    """Cores that are slower and shared: a fourth layout is predicted where the shipped estimate is far off."""
    truth = ParameterOverrides(
        {"cpu-laptop": {"sustained_clock": 0.5}}, {}, {"laptop-cpu-4": {"host.compute_capacity": 2.0}}
    )
    plans = ({"dp": 4}, {"tp": 2}, {"pp": 4, "schedule": "gpipe"}, {"pp": 2, "schedule": "1f1b"})
    paths = []
    for at, plan in enumerate(plans):
        case = read_report(folder(tmp_path / str(at), plan), HERE).case
        paths.append(folder(tmp_path / str(at), plan, step_time_s=predict_time_s(case, truth)))
    answer = learn(*paths[:3], stack="simpar", hardware="laptop-cpu-4")
    last = read_report(paths[3], HERE)
    assert answer.errors()["before"] > 50
    assert predict_time_s(last.case) / last.time_s < 0.6
    assert predict_time_s(last.case, answer.learned.tuning) / last.time_s == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"machine": {"device": "cuda"}}, "of another device"), ({"model": "package.module:function"}, "code of yours")],
)
def test_runs_that_cannot_be_learnt_from_say_why(tmp_path, change, reason):
    """Another device than the profile's, and models that are code."""
    path = folder(tmp_path / "run", {"dp": 4}, **change)
    with pytest.raises(Unmodelled, match=reason):
        read_report(path, HERE)
    with pytest.raises(UserError, match="nothing to learn from: run is left out: "):
        runs_of([path], HERE)


def test_a_folder_of_something_else_is_a_line(tmp_path):
    """No job, or a job without its parts."""
    with pytest.raises(UserError, match="cannot be read"):
        read_report(str(tmp_path), HERE)
    path = folder(tmp_path / "run", {"dp": 4})
    (tmp_path / "run" / "report.json").write_text('{"ranks": 4}')
    with pytest.raises(UserError, match="is not a folder of simpar run"):
        read_report(path, HERE)
