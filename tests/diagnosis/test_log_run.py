"""Runs as logs tell them: begun anew, resumed, with batches that grow, and with means instead of times."""

import pytest

from simpar.diagnosis.answer import explain
from simpar.diagnosis.log_run import read_clock
from simpar.diagnosis.logs import read_log
from simpar.units import GIB
from tests.diagnosis.test_logs import BRIDGE, MAXTEXT, MEGATRON


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:01:02", 62.0), ("1:02:03", 3723.0), ("1 day, 0:00:01", 86_401.0), ("12 days, 10:00:00", 1_072_800.0),
        ("3s", 3.0), ("1m 2s", 62.0), ("1h 0m 3s", 3603.0), ("2d 1h 0m 0s", 176_400.0), ("fast", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_clocks_of_logs(text, seconds):
    """As Python prints a time, and as ms-swift does."""
    assert read_clock(text) == seconds


def test_a_batch_that_grows(tmp_path):
    """Steps are those with the last batch, however long the run warmed up."""
    path = tmp_path / "train.log"
    steps = [
        MEGATRON.format(i=i, ms=10.0 if i < 60 else 40.0).replace("size:    64", f"size: {8 if i < 60 else 32}")
        for i in range(1, 99)
    ]
    path.write_text("\n".join(steps))
    found = read_log(path)
    assert (found.job, found.figures["step_time_s"]) == ({"global_batch": 32}, 0.04)
    assert found.notes == ("59 logged steps with other batch sizes than the last are left out.",)
    ramp = "".join(f"[Rampup Batch Size Phase], completed step: {at}, seconds: 0.500, loss: 9\n" for at in range(40))
    path.write_text(ramp + "".join(MAXTEXT.format(i=at, s=2.0) + "\n" for at in range(40, 60)))
    found = read_log(path)
    assert (found.job, found.figures["step_time_s"], found.count) == ({}, 2.0, 18)
    assert found.notes == ("40 logged steps with other batch sizes than the last are left out.",)


@pytest.mark.parametrize(
    "form", ["{{'train_speed(s/it)': {mean:.6f}, {clock}, {steps}}}", '{{"memory(GiB)": 1, {rest}}}']
)
def test_a_resumed_run_of_swift(tmp_path, form):
    """The mean counts from the step at which the run was resumed: that follows from its clock in whole seconds."""
    path = tmp_path / ("train.log" if form.startswith("{{'") else "logging.jsonl")
    lines = []
    for at in range(501, 600):
        spent = 9.0 + 2.0 * (at - 501)
        mean, clock = spent / (at - 500), f"{spent // 60:.0f}m {spent % 60:.0f}s"
        rest = f'"train_speed(s/it)": {mean:.6f}, "elapsed_time": "{clock}", "global_step/max_steps": "{at}/900"'
        lines.append(form.format(
            mean=mean, clock=f"'elapsed_time': '{clock}'", steps=f"'global_step/max_steps': '{at}/900'", rest=rest
        ))  # fmt: skip
    path.write_text("\n".join([*lines, ""]))
    found = explain(path).log
    assert (found.framework, found.figures["step_time_s"]) == ("ms-swift", pytest.approx(2.0, rel=1e-3))


def test_the_trainers_summary_as_a_table(tmp_path):
    """Below "***** train metrics *****"; 0.004 steps per s, rounded, say no step time, and samples do."""
    table = (
        "***** train metrics *****\n  epoch                    =        1.0\n  train_loss               =     1.2345\n"
        "  train_runtime            = {clock}\n  train_samples            =       6400\n"
        "  train_samples_per_second =       25.6\n  train_steps_per_second   =        {rate}\n"
    )
    path = tmp_path / "train.log"
    path.write_text(table.format(clock="0:04:10.00", rate=0.4))
    assert read_log(path).figures == {"step_time_s": 2.5, "samples_per_s": 25.6}
    path.write_text(f"  Total optimization steps = 30\n{table.format(clock='1 day, 0:00:00.00', rate=0.0)}")
    assert read_log(path).figures == {"step_time_s": 2880.0, "samples_per_s": 25.6}
    path.write_text(table.format(clock="0:04:10.00", rate=0.004))
    assert read_log(path).figures == {"samples_per_s": 25.6}


def test_the_trainers_summary(tmp_path):
    """Where bars went elsewhere, the time of the run over its steps; batch and samples as it prints them."""
    path = tmp_path / "train.log"
    path.write_text(
        "  Total train batch size (w. parallel, distributed & accumulation) = 1,024\n  Total optimization steps = 30\n"
        "{'train_runtime': '453.4', 'train_samples_per_second': '4.411', 'train_steps_per_second': '0.066'}\n"
    )
    found = read_log(path)
    assert found.figures == pytest.approx({"step_time_s": 453.4 / 30, "samples_per_s": 4.411})
    assert found.job == {"global_batch": 1024}


def test_a_file_of_two_runs(tmp_path):
    """The last run is answered, without the steps of the first that it has not come to; a resumed one is whole."""
    path = tmp_path / "train.log"

    def run(first, last, ms):
        return "".join(f"{BRIDGE.format(i=at, ms=ms)}\n" for at in range(first, last + 1))

    path.write_text(run(1, 40, 9000.0) + run(1, 12, 3000.0))
    found = read_log(path)
    assert (found.figures, found.steps[1]) == ({"step_time_s": 3.0}, 12)
    assert found.notes[0].startswith("Steps begin again at 1 after 40: several runs or ranks in one file")
    path.write_text(run(1, 40, 3000.0) + run(31, 35, 3000.0))
    assert read_log(path).steps == (5, 35)
    path.write_text("".join(run(at, at, 3000.0) + run(max(at - 2, 1), max(at - 2, 1), 3000.0) for at in range(1, 40)))
    assert read_log(path).notes == (), "two ranks of one run, one of them a little behind"


def test_a_mean_since_the_run_began_is_undone(tmp_path):
    """modded-nanogpt prints the mean of all steps so far: four of 2 s behind one of 10 s."""
    times = [10.0, 2.0, 2.0, 2.0, 2.0]
    sums = [sum(times[: at + 1]) for at in range(5)]
    path = tmp_path / "log.txt"
    path.write_text("".join(
        f"step:{at + 1}/1750 train_time:{total * 1e3:.0f}ms step_avg:{total * 1e3 / (at + 1):.2f}ms\n"
        for at, total in enumerate(sums)
    ))  # fmt: skip
    found = read_log(path)
    assert (found.framework, found.figures["step_time_s"]) == ("modded-nanogpt", pytest.approx(2.0, rel=1e-3))


def test_speed_of_swift_is_a_mean_since_the_start(tmp_path):
    """Steps of 2 s after a first one of 9 s: the speed so far falls, the step time does not."""
    line = (
        "{{'loss': 1.6, 'token_acc': 0.63, 'memory(GiB)': 2.5, 'train_speed(iter/s)': {speed:.6f}, 'epoch': 0.0, "
        "'global_step/max_steps': '{i}/90', 'percentage': '0.01%', 'elapsed_time': '3s'}}"
    )
    path = tmp_path / "train.log"
    path.write_text("\n".join(line.format(i=i, speed=i / (9 + 2 * (i - 1))) for i in range(1, 9)))
    found = read_log(path)
    assert found.framework == "ms-swift"
    assert found.figures == pytest.approx({"step_time_s": 2.0, "reserved_bytes": 2.5 * GIB}, rel=1e-3)


def test_early_records_of_swift(tmp_path):
    """They end with the step, which the speed stands before: 10 s to step 5 and 30 s to step 10 are 4 s a step."""
    line = "{{'loss': 1.8, 'memory(GiB)': 2.5, 'train_speed(iter/s)': {speed}, 'epoch': 0.1, 'global_step': {i}}}"
    path = tmp_path / "train.log"
    path.write_text("\n".join(line.format(i=i, speed=i / at) for i, at in ((1, 2), (5, 10), (10, 30))))
    found = read_log(path)
    assert (found.framework, found.figures["reserved_bytes"]) == ("ms-swift", 2.5 * GIB)
    assert found.figures["step_time_s"] == pytest.approx(4.0, rel=1e-3)
