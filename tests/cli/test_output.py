"""What a terminal, a pipe and Ctrl-C do to a command, and what it says of its command line."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar import cli, verbs
from simpar.cli.app import _Piped, _rich_console
from simpar.planner.certify.branch_and_bound import BranchAndBound
from tests.gate import some

SMALL = ["--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8"]


@contextmanager
def interruptible():
    """SIGINT as in a terminal; it is ignored where a shell runs tests behind itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("command", some([["list", "hardware"], ["schema", "scenario"]], 1))
def test_a_reader_that_left_is_no_error(command):
    """``| head -1``: nothing on standard error, and the exit code of a broken pipe."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        ran = subprocess.run(
            [sys.executable, "-m", "simpar", *command], check=False, stdout=pipe, stderr=subprocess.PIPE, timeout=120
        )
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_one_line():
    """Standard output that takes no more is named, with exit code 2."""
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "simpar", "list", "hardware"],
            check=False, stdout=full, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (2, b"standard output: No space left on device\n")


def test_ctrl_c_keeps_the_simulations_that_are_done(monkeypatch, tmp_path, capsys):
    """A sweep interrupted behind its first row prints and writes it, says so of the others, and exits with 130."""
    run, path, table = verbs.simulate, tmp_path / "sweep.json", tmp_path / "sweep.csv"

    def once(**inputs):
        if calls:
            os.kill(os.getpid(), signal.SIGINT)
        calls.append(1)
        return run(**inputs)

    calls: list[int] = []
    monkeypatch.setattr(verbs, "simulate", once)
    with interruptible():
        written = ["--json", str(path), "--csv", str(table)]
        assert cli.run(["simulate", *SMALL, "--over", "zero=0,1,2", *written]) == 130
    rows = json.loads(path.read_text())["sweep"]
    assert [row.get("interrupted", False) for row in rows] == [False, True, True]
    assert not any("refused" in row for row in rows)
    assert [line.split(",")[-2:] for line in table.read_text().splitlines()[1:]] == [
        ["", "False"], ["", "True"], ["", "True"],
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "* fastest that fits" in said
    assert said.count("not simulated") == 2
    assert "refused" not in said


def test_a_sweep_reads_every_choice_before_it_simulates_one(monkeypatch, capsys):
    """A bad value at the end of a list costs nothing."""
    monkeypatch.setattr(verbs, "simulate", lambda **_: pytest.fail("simulated before all was read"))
    assert cli.run(["simulate", *SMALL, "--over", "tp=1,x"]) == 2
    assert "plan.tp = 'x'" in capsys.readouterr().err


def test_ctrl_c_ends_a_grid_of_searches(monkeypatch, tmp_path):
    """One Ctrl-C ends the search that runs and starts no other; every cell says how it stands."""
    simulate, path = BranchAndBound.simulate, tmp_path / "grid.json"

    def interrupted(self, frontier, row):
        found = simulate(self, frontier, row)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(BranchAndBound, "simulate", interrupted)
    with interruptible():
        shape = ["--model", "tiny-llama", "--hardware", "dgx-h100", "--pp", "1", "--over", "nodes=1,2,4"]
        assert cli.run(["search", *SMALL, *shape, "--json", str(path)]) == 130
    cells = json.loads(path.read_text())["cells"]
    assert [cell["nodes"] for cell in cells] == [1, 2, 4]
    assert all(cell["interrupted"] for cell in cells)
    assert not cells[0]["certified_optimal"]
    assert [cell["reason"] for cell in cells[1:]] == ["interrupted", "interrupted"]


def test_list_says_what_there_is_to_list(capsys):
    """Alone it names the lists and the flags that take their names."""
    assert cli.run(["list"]) == 0
    assert "models       for --model" in capsys.readouterr().out


@pytest.mark.parametrize("group", [[], ["hardware"]])
def test_the_summary_of_every_command_is_whole(group, capsys, monkeypatch):
    """Nothing in a list of commands is cut off, in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "gpt2-laptop", "--micro-batch", "0"], "command line: plan.micro_batch = 0: "),
        (["simulate", "gpt2-laptop", "--set", "plan.tpp=2"], "command line: plan.tpp = 2: is not a key of a plan"),
        (["simulate", "gpt2-laptop", "--seeds", "4"], "perturbation.jitter.sigma missing: give --jitter"),
        (["simulate", "gpt2-laptop", "--checkpoint", "sync"], "operation.days missing: give --days"),
        (["simulate", "gpt2-laptop", "--model", "lama-3-8b"], "did you mean 'llama-3-8b'; nearest: llama-3-8b, "),
        (["search", *SMALL, "--deadline", "5"], "--deadline 5: needs a number and a unit, such as 5 s"),
        (["search", *SMALL, "--over", "nodes=1", "--backend", "spark"], "unknown backend 'spark'"),
        (["schema"], "plan|scenario|profile|device|stack|reliability"),
    ],
)
def test_one_line_says_whose_fault_it_is(arguments, message, capsys):
    """What the command line gave is not blamed on a line of the file, and a remedy is a flag that exists."""
    assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_published_figures_belong_to_the_run_that_was_published(capsys):
    """They stand beside the scenario as it is, and beside nothing that flags made of it."""
    assert cli.run(["simulate", "llama-3-8b-8-h100"]) == 0
    assert "published step time" in capsys.readouterr().out
    assert cli.run(["simulate", "llama-3-8b-8-h100", "--nodes", "1", "--jitter", "0.01"]) == 0
    assert "published step time" in capsys.readouterr().out
    assert cli.run(["simulate", "llama-3-8b-8-h100", "--zero", "2"]) == 0
    assert "published step time" not in capsys.readouterr().out


def test_a_scenario_needs_no_suffix(tmp_path, monkeypatch, capsys):
    """A file that is there is read, whatever it is called; a file is no folder to export to, nor the other way."""
    file = tmp_path / "mine"
    file.write_text("model: gpt2\ncluster: {hardware: laptop-cpu-4}\ntraining: {seq_len: 128, global_batch: 8}\n")
    assert cli.run(["simulate", str(file)]) == 0
    assert cli.run(["export", str(file), "--to", "torch", "--lossy", "-o", str(file)]) == 2
    assert f"--output {file}: is a file; allowed: a folder" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    assert cli.run(["simulate", "folder"]) == 2
    assert "folder: is a folder; a scenario is a file or a shipped name" in capsys.readouterr().err


def written(console: Any, text: str, *, soft_wrap: bool) -> str:
    """What a console that prints a text to a pipe writes."""
    with redirect_stdout(StringIO()) as stream:
        console.print(text, style="bold", soft_wrap=soft_wrap)
        console.out(text, highlight=False)
    return stream.getvalue()


LONG = st.lists(st.text("ab c", max_size=9), max_size=60).map(" ".join)


@given(st.text(" ab,.[]:/\\%\n\t\r\x07é✓日", max_size=300) | LONG, st.booleans())
def test_what_is_piped_is_what_rich_writes(text: str, soft_wrap: bool) -> None:
    """A console for a pipe, which imports rich only where lines are cut, writes what rich writes."""
    assert written(_Piped(), text, soft_wrap=soft_wrap) == written(_rich_console(), text, soft_wrap=soft_wrap)


def test_rich_is_not_imported_for_plain_lines(tmp_path: Path) -> None:
    """Nor are numpy's masked arrays, by a check whose output is piped."""
    (tmp_path / "job.sh").write_text("trl sft --model_name_or_path gpt2 --per_device_train_batch_size 4\n")
    run = "import sys; from simpar.cli import run; run(sys.argv[1:]); print({'rich', 'numpy.ma'} & {*sys.modules})"
    flags = ["--hardware", "dgx-h100", "--nodes", "1"]
    command = [sys.executable, "-c", run, "check", *flags, "job.sh"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "step time" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


WRITER = """
import signal
from simpar.cli.app import write_out
signal.signal(signal.SIGUSR1, lambda *_: None)
print("ready", flush=True)
write_out("é" * 300_000)
"""


def test_a_signal_cuts_no_answer_that_waits_for_its_reader():
    """A pipe that is full holds the write, a signal ends it early, and all of the text arrives all the same."""
    with subprocess.Popen([sys.executable, "-X", "utf8", "-c", WRITER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(5):
            time.sleep(0.1)
            process.send_signal(signal.SIGUSR1)
        assert process.stdout.read().decode() == "é" * 300_000
    assert process.returncode == 0
