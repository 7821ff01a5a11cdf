"""Learning what a stack keeps from peaks of memory: found back, beside step times, and felt by what is predicted."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from simpar.cli import run
from simpar.learning.answer import learn
from simpar.learning.fit import Observed, Peak
from simpar.learning.memory import learn_memory, merge_peaks
from simpar.learning.parameters import MEMORY, RESERVED, spread_of
from simpar.learning.reports import read_report
from simpar.learning.runs import runs_of
from simpar.stacks.stack import load_stack
from simpar.uncertainty.memory import MemoryRisk, Parts
from simpar.uncertainty.table import load_error_table
from simpar.units import GIB, MIB
from simpar.validation.predict import NO_TUNING, ParameterOverrides, predict
from simpar.validation.profile_overrides import ProfileOverrides
from simpar.validation.rows import case
from simpar.validation.table import validate
from tests.learning.test_answer import FEW, LAYOUTS, OTHERS, ROW
from tests.learning.test_reports import folder

KEEPS = {
    "memory.extra_saved": 12.0,
    "memory.allocator.fragmentation": 0.2,
    "memory.allocator.workspace_bytes": 256 * MIB,
}
DEEP = ({"tp": "1", "pp": "2"}, {"micro_batch": "2"})


def rows_of(layouts, stack="nemo", truth=KEEPS, slower=1.0):
    """Rows of layouts with times and reserved peaks of a stack that keeps something else; theirs are kept."""
    rows = []
    for changes in layouts:
        row = {**ROW, "stack": stack, "notes": "peak reserved", **changes}
        found = predict(case(row), ParameterOverrides({}, {stack: truth}))
        own = {
            "iteration_time_s": str(slower * found.step_time_s),
            "peak_mem_gib": str(found.peak_reserved_bytes / GIB),
        }
        rows.append(own | row)
    return rows


def table(path, rows):
    """A CSV of rows."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def observed(layouts, *, counts="reserved"):
    """Layouts with the peaks of the truth."""
    found = []
    for changes in layouts:
        entry = case({**ROW, "stack": "nemo", **changes})
        known = predict(entry, ParameterOverrides({}, {"nemo": KEEPS}))
        found.append(Observed(entry, 1.0, peak=Peak(known.peak_bytes(counts), counts)))
    return found


def errors_of(runs, tuning):
    """log(measured / predicted) of peaks."""
    return np.array(
        [np.log(run.peak.size_bytes / predict(run.case, tuning).peak_bytes(run.peak.counts)) for run in runs]
    )


@pytest.mark.slow
def test_what_a_stack_keeps_is_learnt_back():
    """Four peaks: other layouts are predicted to 3 % where 5 to 23 % were missing, and most of it is where it was."""
    found, others = learn_memory(observed((*LAYOUTS[::2], *DEEP))), observed(OTHERS)
    assert errors_of(others, NO_TUNING).max() > 0.15
    assert np.abs(errors_of(others, found.learned.tuning)).max() < 0.03
    assert np.median(np.abs(found.learned.left_out)) < 0.02
    values = dict(zip((key for _, _, key in found.learned.prior.names), found.learned.values, strict=True))
    assert values["memory.extra_saved"] == pytest.approx(12.0, rel=0.15)
    assert values["memory.allocator.fragmentation"] + values["memory.allocator.churn"] == pytest.approx(0.35, rel=0.15)


@pytest.mark.slow
def test_peaks_of_tensors_say_nothing_of_the_allocator():
    """What is saved is found back from allocated peaks as well; gaps stay as they were."""
    learned = learn_memory(observed((*LAYOUTS, *DEEP), counts="allocated")).learned
    changed = {
        key for (_, _, key), is_, was in zip(learned.prior.names, learned.values, learned.prior.values, strict=True)
        if is_ != was
    }  # fmt: skip
    assert "memory.extra_saved" in changed
    assert not changed & set(RESERVED)
    assert np.median(np.abs(learned.after)) < 0.01


def test_peaks_that_agree_change_nothing():
    """What is predicted already is left as it is; without peaks there is nothing to learn."""
    agreeing = [replace(run, peak=Peak(predict(run.case).peak_reserved_bytes)) for run in observed(FEW[:2])]
    learned = learn_memory(agreeing).learned
    assert np.array_equal(learned.values, learned.prior.values)
    assert learn_memory([replace(run, peak=None) for run in agreeing]) is None


def test_spreads_are_those_of_shipped_stacks():
    """Every parameter of memory has one."""
    assert all(spread_of("stack", key) > 0 for key in (*MEMORY, *RESERVED))
    assert 2 < spread_of("stack", "memory.logit_bytes") < 8
    assert 0.02 < spread_of("stack", "memory.allocator.fragmentation") < 0.08


@pytest.mark.slow
def test_a_profile_predicts_the_memory_of_others(tmp_path, capsys):
    """Rows with and without peaks: the file predicts peaks of other layouts; the command prints errors."""
    rows = rows_of(LAYOUTS, slower=1.2)
    rows[1]["peak_mem_gib"] = ""
    path, ours = table(tmp_path / "runs.csv", rows), tmp_path / "ours.yaml"
    others = table(tmp_path / "others.csv", rows_of(OTHERS))
    assert run(["learn", path, "-o", str(ours)]) == 0
    out = capsys.readouterr().out
    assert "nemo memory.extra_saved" in out
    assert "error of peak memory, %" in out
    _, hardly, _ = load_error_table().memory.habits  # a few published runs show what nemo keeps
    assert f"memory of nemo that is not modelled: {100 * hardly:.0f} % of what it needs before" in out
    before = validate(others, jobs=1)["memory_ape_median"]
    after = validate(others, jobs=1, using=ours)["memory_ape_median"]
    assert before > 9
    assert after < 4
    (own,) = load_stack(str(ours)).own_runs
    assert (own.layouts, own.peaks) == (3, 2)
    assert "of peak memory 1" in load_stack(str(ours)).provenance


@pytest.mark.slow
def test_runs_without_memory_teach_what_they_did(tmp_path):
    """No parameter of memory moves, nothing is said of it, and step times teach the same with peaks and without."""
    with_peaks = rows_of(LAYOUTS[:2], slower=1.2)
    without = [{**row, "peak_mem_gib": ""} for row in with_peaks]
    both, bare = (learn(table(tmp_path / f"{at}.csv", rows)) for at, rows in enumerate((with_peaks, without)))
    assert bare.to_dict()["memory"] is None
    assert not [change for change in bare.changes() if change["parameter"].startswith("memory.")]
    assert "memory" not in bare.to_yaml("ours.yaml").partition("stacks:")[0]
    assert np.array_equal(both.learned.values, bare.learned.values)
    assert all("memory_error_percent" not in each for each in bare.to_dict()["runs_detail"])
    assert both.to_dict()["runs_detail"][0]["measured_peak_bytes"] == pytest.approx(
        float(with_peaks[0]["peak_mem_gib"]) * GIB
    )


@pytest.mark.parametrize(
    ("peak", "words"), [("65000", "65,000.00 GiB are more than its device has (79.2)"), ("0.02", "is it in GiB?")]
)
def test_odd_peaks_are_left_out_and_said(tmp_path, peak, words):
    """The time of the run is learnt from all the same."""
    rows = rows_of(LAYOUTS[:2])
    rows[0]["peak_mem_gib"] = peak
    found = runs_of([table(tmp_path / "runs.csv", rows)], ProfileOverrides("nemo", "dgx-h100"))
    assert [one.peak is None for one in found.layouts] == [True, False]
    (line,) = found.remarks
    assert line.startswith("peak memory of row 2 (Llama-2-7B on 16")
    assert words in line


def test_repeats_are_one_peak():
    """The geometric mean of those of one kind."""
    first = observed(LAYOUTS[:1])[0]
    peaks = (Peak(10.0), None, Peak(40.0), Peak(5.0, "allocated"))
    assert merge_peaks([replace(first, peak=peak) for peak in peaks]).size_bytes == pytest.approx(20.0)
    assert merge_peaks([replace(first, peak=None)]) is None


def test_folders_of_runs_on_processors_have_no_peak(tmp_path):
    """What a process grows by is no tensor; an accelerator's allocator is believed."""
    path = folder(tmp_path / "run", {"tp": 2, "zero": 0}, peak_reserved_bytes=5e9)
    assert read_report(path, ProfileOverrides("simpar", "laptop-cpu-4")).peak is None
    path = folder(tmp_path / "other", {"tp": 2, "zero": 0}, peak_reserved_bytes=5e9, machine={"device": "cuda"})
    assert read_report(path, ProfileOverrides("simpar", "dgx-h100")).peak == Peak(5e9)


@pytest.mark.slow
def test_own_peaks_make_the_risk_smaller(tmp_path):
    """A stack whose memory nobody published: five peaks tell part of what is not known."""
    rows = rows_of((*LAYOUTS, *DEEP), stack="automodel")
    path, ours = table(tmp_path / "runs.csv", rows), tmp_path / "ours.yaml"
    answer = learn(path, stack="automodel", hardware="dgx-h100")
    ours.write_text(answer.to_yaml("ours.yaml"))
    stack, (unknown, *_) = load_stack(str(ours)), reversed(load_error_table().memory.habits)
    risk = MemoryRisk.of(stack.known_as, load_error_table(), stack.own_runs)
    assert MemoryRisk.of("automodel", load_error_table()).habits == unknown
    assert risk.habits < unknown
    said = answer.to_dict()["memory"]["stack_spread_percent"]["automodel"]
    assert said["before"] == pytest.approx(100 * unknown, abs=0.1)
    assert said["after"] == pytest.approx(100 * risk.habits, abs=0.1)
    rows = table(tmp_path / "others.csv", rows_of(OTHERS[:1], stack="automodel"))
    before, after = (
        validate(rows, jobs=1, using=chosen)["rows_detail"][0]
        for chosen in (ProfileOverrides("automodel", "dgx-h100"), ProfileOverrides.learned(str(ours)))
    )
    assert abs(after["memory_error_percent"]) < abs(before["memory_error_percent"])
    low, high = after["reserved_memory_interval_bytes"]
    assert low < after["measured_peak_gib"] * GIB < high
    # of the same bytes: what is learnt moves more of them, whose gaps are uncertain by themselves
    parts = Parts(28 * GIB, 22 * GIB, 2 * GIB, 0.0, 0.0, 0.15)
    stranger = MemoryRisk.of("automodel", load_error_table())
    ends = [each.reserved_interval_bytes(54 * GIB, parts) for each in (stranger, risk)]
    (wide_low, wide_high), (narrow_low, narrow_high) = ends
    assert wide_low < narrow_low < narrow_high < wide_high
