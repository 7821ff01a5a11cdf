"""Progress bars: behind whatever launchers write before a line, and of runs that were resumed."""

import json

import pytest

from simpar.diagnosis.logs import read_log
from simpar.diagnosis.metrics import read_metrics
from simpar.errors import UserError

SPEAKERS = (
    "", "[rank0]:", "[default0]:", "[1,0]<stderr>:", "0: ", "worker-0: ", "ip-10-0-0-1: ", "trainer-1  | ",
    "(RayTrainWorker pid=1234, ip=10.0.0.1) ", "[pod/run-0/pytorch] ", "2026-05-01T00:00:00.123456789Z stderr F ",
    "2026-05-01 00:00:00.123 PDT [rank0]: ", "10.0.0.1: ", "trainer_1    | ", "Mar 01 12:00:00 node1 python[1234]: ",
    "n[1-4]: ", "12:00:00 ", "1709294400.123456 ", "#033[34m", "job-0-abc pytorch ", "[rank 0] ", "> ",
    "[2026-05-01 12:00:00,123] ",
)  # fmt: skip


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_who_speaks_before_a_bar(tmp_path, speaker):
    """Bars of loading, which have a name, are none of training whoever speaks."""
    path = tmp_path / "train.log"
    lines = [f"{speaker} {at}%|#  | {at}/30 [00:{2 * at:02d}<01:00,  2.00s/it]" for at in range(1, 30)]
    loading = f"{speaker}Map: 100%|##| 5/30 [00:01<00:00,  9.00s/it]"
    path.write_bytes("\r\n".join([loading, *lines]).encode())
    assert read_log(path).figures == {"step_time_s": 2.0}
    path.write_text(loading)
    with pytest.raises(UserError, match="has no line of a training step"):
        read_log(path)


@pytest.mark.parametrize(
    "speaker",
    ["2026-05-01 12:00:00 | INFO | __main__:train:10 - ", "[INFO|trainer.py:13] 2026-05-01 >> ", "<node1> ", "node1\t",
     "\x1b]0;title\x07", "[36m(pid=12)[0m "],
)  # fmt: skip
def test_a_bar_without_a_name_is_known_behind_any_words(tmp_path, speaker):
    """One with a name has a colon before its percents."""
    path = tmp_path / "train.log"
    bars = [f"{at}%|#  | {at}/30 [00:{2 * at:02d}<01:00,  2.00s/it]" for at in range(1, 30)]
    path.write_text("\n".join(f"{speaker}{bar}" for bar in bars))
    assert read_log(path).figures == {"step_time_s": 2.0}
    path.write_text("\n".join(f"{speaker}Tokenizing: {bar}" for bar in bars))
    with pytest.raises(UserError, match="has no line of a training step"):
        read_log(path)


def test_an_evaluation_is_not_the_training_in_whose_course_it_runs(tmp_path):
    """However long it takes, where the log does not say how many steps are trained."""
    path = tmp_path / "train.log"
    evaluation = [f" 1%|#  | {at}/900 [{at // 60:02d}:{at % 60:02d}<20:00,  1.50s/it]" for at in range(900)]
    for every, count in ((20, 60), (30, 40)):  # several, and a single one
        lines = []
        for at in range(1, count):
            lines.append(f" 1%|#  | {at}/100 [{at // 30:02d}:{2 * at % 60:02d}<01:00,  2.00s/it]")
            lines += evaluation if at % every == 0 else []
        path.write_text("\n".join(lines) + "\n")
        assert read_log(path).figures == {"step_time_s": 2.0}


def resumed_bars(first=501, last=520, total=1000, step_s=2.0):
    """What tqdm draws, whose mean has a weight of 0.3, after it jumped to the step that a run goes on from."""
    steps_mean = time_mean = 0.0
    for at in range(first, last + 1):
        steps_mean = 0.3 * (first if at == first else 1) + 0.7 * steps_mean
        time_mean = 0.3 * step_s + 0.7 * time_mean
        rate = time_mean / steps_mean
        shown = f"{rate:.2f}s/it" if rate >= 1 else f"{1 / rate:.2f}it/s"
        yield f" 50%|##  | {at}/{total} [00:{int(step_s * (at - first + 1)):02d}<16:00, {shown}]"


@pytest.mark.parametrize("said", ["", "  Continuing training from global step 500\n"])
def test_bars_of_a_resumed_run(tmp_path, said):
    """The shown speed counts 500 steps that were not run: by its clock it is seen, and the clock is taken."""
    path = tmp_path / "train.log"
    path.write_text(said + "\n".join(resumed_bars()))
    assert read_log(path).figures == {"step_time_s": pytest.approx(2.0, rel=0.01)}


def test_the_summary_of_a_resumed_run(tmp_path):
    """500 of 1,000 steps took 1,000 s; the Trainer divides all steps and samples by them."""
    path = tmp_path / "train.log"
    path.write_text(
        "  Total optimization steps = 1,000\n  Continuing training from global step 500\n"
        "{'train_runtime': 1000.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 1.0}\n"
    )
    assert read_log(path).figures == {"step_time_s": pytest.approx(2.0), "samples_per_s": pytest.approx(16.0)}


def test_the_state_of_a_resumed_run(tmp_path):
    """Two summaries: the second run trained what is between them."""
    path = tmp_path / "trainer_state.json"
    ends = [
        {"step": 400, "train_runtime": 4000.0, "train_samples_per_second": 1.6},
        {"step": 1000, "train_runtime": 1200.0, "train_samples_per_second": 80.0},
    ]
    path.write_text(json.dumps({"global_step": 1000, "log_history": [{"loss": 1.0, "step": 10}, *ends]}))
    assert read_metrics(path).figures == {"step_time_s": pytest.approx(2.0), "samples_per_s": pytest.approx(48.0)}


def test_records_without_a_time(tmp_path):
    """Named: losses of the Trainer tell no step time."""
    path = tmp_path / "train.log"
    path.write_text("{'loss': 1.2, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 5)
    with pytest.raises(UserError, match="records of Hugging Face Trainer without a time: its progress bars"):
        read_log(path)


def bars(number, total, step_s):
    """What tqdm draws over itself from the first step on."""
    return "\r".join(
        f"{at}%|#  | {at}/{total} [{int(at * step_s) // 60:02d}:{int(at * step_s) % 60:02d}<01:00, {step_s:5.2f}s/it]"
        for at in range(1, number + 1)
    )


def test_bars_of_evaluations_are_told_by_how_long_they_run(tmp_path):
    """More batches than the steps of training so far, again and again, and each of them short."""
    path = tmp_path / "train.log"
    path.write_text("\n".join([bars(30, 90, 2.0), bars(50, 50, 1.0), bars(50, 50, 1.0)]))
    found = read_log(path)
    assert (found.figures, found.notes) == ({"step_time_s": 2.0}, ())


@pytest.mark.parametrize("said", ["", "  Total optimization steps = 30\n"])
def test_of_two_trainings_the_last_is_answered_and_the_first_is_said(tmp_path, said):
    """The first has logged more steps than the second so far."""
    path = tmp_path / "train.log"
    path.write_text(f"{said}{bars(30, 30, 15.0)}\n{said}{bars(12, 30, 5.0)}\n")
    found = read_log(path)
    assert (found.figures, found.steps[1]) == ({"step_time_s": 5.0}, 12)
    assert found.notes[0].startswith("Steps begin again at 1 after")


def test_lightning_counts_batches_in_either_bar(tmp_path):
    """Of rich, too, beside its bars of validation; that batches are no steps is said."""
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"Epoch {epoch}/9  ━━━━━╸━━━━ {at}/40 0:00:{at:02d} • 0:00:20 0.50it/s v_num: 0.000\n"
            f"Validation ━━━━━━ {at}/90 0:00:01 • 0:00:01 9.00it/s\n"
            for epoch in (0, 1)
            for at in range(1, 41)
        )
    )
    found = read_log(path)
    assert (found.framework, found.figures, found.steps[1]) == ("Lightning", {"step_time_s": 2.0}, 80)
    assert found.notes[0].startswith("Lightning counts batches")


def test_bars_of_tqdm_loggable(tmp_path):
    """Levanter's, with thousands of steps rounded."""
    path = tmp_path / "train.log"
    line = (
        "INFO:tqdm_logging: Progress on:train {n}/10.0kit rate:2.0s/it remaining:5:33:20 elapsed:00:02 postfix:loss=9"
    )
    path.write_text("\n".join(line.format(n=n) for n in ("1.00it", "2.00it", "999it", "1.00kit", "1.10kit")))
    found = read_log(path)
    assert (found.framework, found.steps, found.figures) == ("Levanter", (2, 1100), {"step_time_s": 2.0})


@pytest.mark.parametrize(
    "line",
    [
        " 5%|#  | 5/30 [00:10<01:00,  ..50s/it]",
        f" 5%|#  | {'9' * 5000}/30 [00:10<01:00,  2.00s/it]",
        f" 5%|#  | 5/30 [00:10<01:00,  {'9' * 5000}s/it]",
        f" iteration {'9' * 5000}/ 50 | elapsed time per iteration (ms): 9000 |",
        "Progress on:train ..kit/10.0kit rate:2.0s/it remaining:1 elapsed:00:02",
        'DCGM_FI_DEV_FB_USED{gpu="0"} ..e',
    ],
)
def test_numbers_that_are_none(tmp_path, line):
    """A damaged line is no step."""
    path = tmp_path / "train.log"
    path.write_text(f"{line}\n{bars(20, 30, 2.0)}\n")
    assert read_log(path).figures == {"step_time_s": 2.0}
    path.write_text(f"{line}\n")
    with pytest.raises(UserError, match="has no line of a training step"):
        read_log(path)


@pytest.mark.parametrize("code", ["utf-16", "utf-8-sig"])
def test_what_powershell_writes(tmp_path, code):
    """Text in 16 bits, with its mark."""
    path = tmp_path / "train.log"
    path.write_bytes("\n".join(resumed_bars(1, 9)).encode(code))
    assert read_log(path).figures == {"step_time_s": pytest.approx(2.0)}


@pytest.mark.parametrize("step_s", [0.2, 0.6, 1.4, 2.5, 30.0])
def test_clocks_in_whole_seconds(tmp_path, step_s):
    """Differences of single steps of 1.4 s are 1 or 2 s, and their median 1: steps are taken over longer spans."""
    path = tmp_path / "trainer_log.jsonl"
    records = []
    for at in range(1, 61):
        s = int(3 + at * step_s)
        clock = f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}"
        records.append({"current_steps": at, "total_steps": 60, "loss": 1.2, "elapsed_time": clock})
    path.write_text("\n".join(map(json.dumps, records)))
    found = read_metrics(path)
    assert found.framework == "LLaMA-Factory"
    assert found.figures["step_time_s"] == pytest.approx(step_s, rel=0.05)


@pytest.mark.parametrize(("shown", "step_s"), [("0.01it/s", 128.0), ("0.05it/s", 128.0), ("0.12it/s", 1 / 0.12)])
def test_rates_of_one_digit(tmp_path, shown, step_s):
    """Lightning rounds slow rates to hundredths: 0.01it/s is anything from 67 to 200 s, and the clock is taken."""
    path = tmp_path / "train.log"
    path.write_text(f"Epoch 0:   3%|#    | 8/260 [17:04<8:57:59,  {shown}, v_num=2]\n")
    assert read_log(path).figures == {"step_time_s": pytest.approx(step_s)}
