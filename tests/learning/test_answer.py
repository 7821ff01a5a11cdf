"""From a table to a file of profiles and back: what is written predicts what was learnt, bad input is a line."""

import csv
import json
from functools import cache

import numpy as np
import pytest

from simpar.cli import run
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.learning.answer import learn
from simpar.learning.runs import runs_of
from simpar.stacks.stack import load_stack
from simpar.validation.predict import ParameterOverrides, predict_time_s
from simpar.validation.profile_overrides import ProfileOverrides
from simpar.validation.rows import case
from simpar.validation.table import read_table, validate

ROW = {
    "source": "test", "model_name": "Llama-2-7B", "n_layers": "32", "hidden": "4096", "n_heads": "32",
    "n_kv_heads": "32", "ffn_hidden": "11008", "vocab": "32000", "seq_len": "4096", "gpu_type": "H100 SXM 80GB",
    "gpus_per_node": "8", "n_gpus": "16", "interconnect": "NVLink; InfiniBand", "precision": "bf16", "tp": "2",
    "pp": "1", "dp": "", "zero_stage_or_fsdp": "ZeRO-1", "micro_batch": "1", "global_batch_seqs": "64",
    "recompute": "none", "schedule": "1F1B", "stack": "megatron", "status": "ok",
}  # fmt: skip
LAYOUTS = ({}, {"tp": "4"}, {"tp": "1", "zero_stage_or_fsdp": "FSDP"})
FEW = (  # devices, whose steps are predicted sooner
    {"n_gpus": "1", "tp": "1", "global_batch_seqs": "8"}, {"n_gpus": "2", "global_batch_seqs": "8"},
    {"n_gpus": "2", "tp": "1", "zero_stage_or_fsdp": "FSDP", "global_batch_seqs": "8"},
)  # fmt: skip
OTHERS = ({"micro_batch": "2"}, {"tp": "8"}, {"seq_len": "2048", "global_batch_seqs": "128"})
TRUTH = ParameterOverrides({"h100-sxm-80gb": {"sustained_clock": 0.6}}, {"nemo": {"launch.step_overhead_s": 0.12}})


@cache
def true_time_s(row):
    """The time of the truth for a row, given as its items."""
    return predict_time_s(case(dict(row)), TRUTH)


def table(path, layouts, stack="nemo", **every):
    """A CSV of layouts with the times of the truth; ``iteration_time_s`` of a layout is kept."""
    rows = []
    for changes in layouts:
        row = {**ROW, "stack": stack, **changes}
        if "iteration_time_s" not in row:
            row["iteration_time_s"] = str(true_time_s(tuple(row.items())))
        rows.append(row | every)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A table of three runs and what is learnt from it."""
    path = table(tmp_path_factory.mktemp("learnt") / "runs.csv", FEW)
    return path, learn(path, stack="nemo", hardware="dgx-h100")


def test_three_runs_make_a_profile_that_predicts_others(tmp_path, learnt):
    """``--using`` predicts layouts on more devices within a few percent where the shipped profiles are far off."""
    (_, answer), others = learnt, table(tmp_path / "others.csv", OTHERS)
    ours = tmp_path / "ours.yaml"
    ours.write_text(answer.to_yaml("ours.yaml"))
    before = validate(others, jobs=1)["time_ape_median"]
    after = validate(others, jobs=1, using=ours)["time_ape_median"]
    assert before > 15
    assert after < 3


@pytest.mark.slow
def test_intervals_are_those_that_were_promised(tmp_path, learnt):
    """Predictions with the file are as sure as the answer says; with one of its two profiles they are not."""
    (_, answer), ours = learnt, tmp_path / "ours.yaml"
    ours.write_text(answer.to_yaml("ours.yaml"))
    halves = answer.half_intervals()
    assert halves["after"] < 0.9 * halves["before"]
    others = table(tmp_path / "others.csv", OTHERS)
    found = validate(others, jobs=1, using=ours)
    assert 100 * found["interval_width_median"] == pytest.approx(halves["after"], abs=0.1)
    assert found["interval_coverage"] == 1.0
    assert [row["own_runs"] for row in found["rows_detail"]] == [3, 3, 3]
    alone = validate(others, jobs=1, using=ProfileOverrides(str(ours), "dgx-h100"))
    assert 100 * alone["interval_width_median"] == pytest.approx(halves["before"], abs=0.1)
    assert not any(row["own_runs"] for row in alone["rows_detail"])


def test_the_file_predicts_what_was_learnt(tmp_path, learnt):
    """Its stack and its cluster give the errors that were printed, and say where they are from."""
    path, answer = learnt
    ours = tmp_path / "ours.yaml"
    ours.write_text(answer.to_yaml("ours.yaml"))
    chosen = ProfileOverrides.learned(str(ours))
    times = [predict_time_s(chosen.case(row)) for row in read_table(path)]
    errors = np.log([run.time_s for run in answer.runs.layouts]) - np.log(times)
    assert errors == pytest.approx(answer.learned.after, abs=1e-5)
    stack, cluster = load_stack(str(ours)), load_cluster(str(ours), 2)
    assert stack.learned_from == "nemo"
    assert stack.name == cluster.profile.name == "ours.yaml"
    for provenance in (stack.provenance, cluster.profile.provenance):
        assert "3 run(s) of runs.csv (Llama-2-7B)" in provenance
    assert cluster.device.name == "h100-sxm-80gb"


@pytest.mark.slow
def test_what_was_learnt_can_be_learnt_on(tmp_path, learnt):
    """A learnt file is a stack and hardware like any other, and the new one goes back to the same names."""
    (path, answer), ours = learnt, tmp_path / "ours.yaml"
    ours.write_text(answer.to_yaml("ours.yaml"))
    again = learn(path, stack=str(ours), hardware=str(ours))
    assert again.errors()["before"] < 5
    (tmp_path / "more.yaml").write_text(again.to_yaml("more.yaml"))
    assert list(ProfileOverrides.learned(str(tmp_path / "more.yaml")).stacks) == ["nemo"]


@pytest.mark.slow
def test_several_stacks_are_learnt_apart(tmp_path):
    """Rows name theirs; the file holds all, and a table is predicted with the one that a row names."""
    rows = [*LAYOUTS, {"stack": "fsdp", "zero_stage_or_fsdp": "FSDP", "tp": "1", "micro_batch": "2"}]
    path, ours = table(tmp_path / "runs.csv", rows), tmp_path / "ours.yaml"
    ours.write_text(learn(path).to_yaml("ours.yaml"))
    assert load_stack(f"{ours}#fsdp").name == "ours.yaml#fsdp"
    assert validate(path, jobs=1, using=ours)["modelled"] == 4
    other = table(tmp_path / "other.csv", [{}], stack="megatron")
    assert "has no stack megatron" in str(validate(other, jobs=1, using=ours)["unmodelled_reasons"])


@pytest.mark.slow
def test_repeats_are_one_layout_and_tell_the_noise(tmp_path):
    """Two runs of a layout that differ by 4 % are one, with noise; by 40 % they are named."""
    time_s = predict_time_s(case({**ROW, "stack": "nemo"}), TRUTH)
    near = [{"iteration_time_s": str(time_s * factor)} for factor in (0.98, 1.02)]
    found = learn(table(tmp_path / "near.csv", [*near, *LAYOUTS[1:]])).to_dict()
    assert (found["runs"], found["layouts"]) == (4, 3)
    assert 2 < found["repeats_spread_percent"] < 4
    assert found["remarks"] == []
    far = [{"iteration_time_s": str(time_s * factor)} for factor in (0.8, 1.2)]
    remarks = runs_of([table(tmp_path / "far.csv", [*far, *LAYOUTS[1:]])], ProfileOverrides()).remarks
    assert len(remarks) == 1
    assert "rows 2, 3 are one layout" in remarks[0]
    assert "differ by 50%" in remarks[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu_type": "A100 SXM 80GB"}, r"of another device \(a100-sxm-80gb, not h100-sxm-80gb\)"),
        ({"iteration_time_s": "0.01"}, "0.01 s are impossible: at the device's peak"),
        ({"iteration_time_s": "4100"}, "is it in seconds"), ({"iteration_time_s": "-3"}, "is negative"),
        ({"iteration_time_s": "soon"}, "is not a number"), ({"iteration_time_s": ""}, "no step time"),
        ({"disturbed": "abnormal by its authors"}, "abnormal by its authors"), ({"tp": "3"}, "does not divide"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_learnt_from_are_left_out_and_said(tmp_path, change, reason):
    """A line each; where nothing is left, the reason is the error."""
    bad = {"iteration_time_s": "3", **change}
    chosen = ProfileOverrides("nemo", "dgx-h100")
    found = runs_of([table(tmp_path / "mixed.csv", [*LAYOUTS[:1], bad])], chosen)
    assert found.count == 1
    (line,) = found.remarks
    assert line.startswith("row 3 (Llama-2-7B on 16")
    alone = [table(tmp_path / "alone.csv", [bad])]
    with pytest.raises(UserError, match=reason) as error:
        runs_of(alone, chosen)
    assert "\n" not in str(error.value)


def test_rows_that_are_still_blank_are_one_line(tmp_path):
    """A table that is filled in run by run: what is not measured yet is left out together; all of it is an error."""
    blank = [{**changes, "iteration_time_s": ""} for changes in OTHERS]
    found = runs_of([table(tmp_path / "some.csv", [*LAYOUTS[:1], *blank])], ProfileOverrides("nemo", "dgx-h100"))
    assert found.count == 1
    assert found.remarks == ("rows 3, 4, 5 are left out: no step time",)
    with pytest.raises(UserError, match=r"^nothing to learn from: rows 2, 3, 4 are left out: no step time$"):
        runs_of([table(tmp_path / "none.csv", blank)], ProfileOverrides("nemo", "dgx-h100"))


def test_what_was_learnt_under_another_version_is_refused(tmp_path, learnt, capsys):
    """Wherever the file is named, with one line that says what to do; a profile is no fault of the rows."""
    (runs, answer), ours = learnt, tmp_path / "ours.yaml"
    text = answer.to_yaml("ours.yaml")
    job = ["simulate", "--model", "llama-2-7b", "--seq-len", "4096", "--global-batch", "64"]
    for old, words in ((text.replace("revision: 1", "revision: 0"), "simpar 0."), ("learned: yes", "an older")):
        ours.write_text(old)
        for command in (
            [*job, "--hardware", "dgx-h100", "--stack", str(ours)], [*job, "--hardware", str(ours)],
            ["validate", runs, "--using", str(ours)],
            ["learn", runs, "--stack", str(ours), "-o", str(tmp_path / "more.yaml")],
            ["learn", runs, "--hardware", str(ours), "-o", str(tmp_path / "more.yaml")],
        ):  # fmt: skip
            assert run(command) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"{ours}: learnt under {words}")
            assert "learn again from the same runs" in error
            assert error.count("\n") == 1


@pytest.mark.slow
def test_a_device_in_other_words_is_what_the_user_says_it_is(tmp_path):
    """Words that name no profile, or none, are those of --hardware; a stack left blank is that of --stack."""
    path = table(tmp_path / "runs.csv", LAYOUTS, gpu_type="our accelerator", stack="nemo")
    assert learn(path, stack="nemo", hardware="dgx-h100").errors()["left_out"] < 5
    with pytest.raises(UserError, match="no profile for our accelerator"):
        learn(path)


@pytest.mark.slow
def test_learning_that_does_not_help_is_said(tmp_path, capsys):
    """Errors of opposite signs that nothing explains: runs left out are no better predicted."""
    rows = []
    for changes, factor in zip(LAYOUTS, (1.12, 0.9, 1.0), strict=True):
        time_s = factor * predict_time_s(case({**ROW, **changes, "stack": "nemo"}))
        rows.append({**changes, "iteration_time_s": str(time_s)})
    path = table(tmp_path / "runs.csv", rows)
    assert run(["learn", path, "-o", str(tmp_path / "ours.yaml")]) == 0
    assert "no better than before: measure more layouts" in capsys.readouterr().out


def test_the_command_writes_and_prints(tmp_path, capsys, monkeypatch):
    """What changed, errors before and after, and how the file is used; JSON on request; bad input ends in 2."""
    monkeypatch.chdir(tmp_path)
    path = table(tmp_path / "runs.csv", FEW[:2])
    assert run(["learn", path, "--stack", "nemo", "--hardware", "dgx-h100", "-o", "ours.yaml"]) == 0
    out = capsys.readouterr().out
    assert "h100-sxm-80gb sustained_clock" in out
    assert "left out" in out
    assert "wrote ours.yaml: --stack ours.yaml --hardware ours.yaml" in out
    assert run(["validate", path, "--using", "ours.yaml", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["time_ape_median"] < 5
    alone = table(tmp_path / "alone.csv", FEW[:1])
    assert run(["learn", alone, "-o", "ours.yaml", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(ROW) + "\n")
    for arguments, words in (
        (["learn", str(empty), "-o", "ours.yaml"], "has no rows"),
        (["learn", path, "-o", "ours.txt"], "ends in .yaml"),
        (["learn", path, "--stack", "nemoo", "-o", "ours.yaml"], "did you mean 'nemo'"),
        (["validate", path, "--using", "missing.yaml"], "cannot be read"),
    ):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
