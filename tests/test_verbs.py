"""Functions in Python beside simulate, search and explain: they answer as the command line does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import simpar
from simpar import cli
from simpar.verbs import scenario_key
from simpar.workers import Processes, Workers
from tests.gate import some

TRAINING = {"seq_len": 1024, "global_batch": 64}
COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --bf16 --num-layers 12 "
    "--hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --global-batch-size 64"
)
FACTS = {"hardware": "dgx-h100", "model": "gpt2"}


def same(path: Path, found: object) -> None:
    """What the command line wrote is what the function gives."""
    assert json.loads(path.read_text()) == json.loads(json.dumps(found))


def test_a_sweep_is_that_of_the_command_line(tmp_path: Path) -> None:
    """Every combination in order, with its figures, or the reason of its refusal."""
    out = tmp_path / "sweep.json"
    keys = ["--over", "micro_batch=1,2,5", "--over", "seq_len=128,256"]
    assert cli.run(["simulate", "gpt2-laptop", *keys, "--json", str(out)]) == 0
    over = {"micro_batch": (1, 2, 5), "seq_len": (128, 256)}
    result = simpar.sweep("gpt2-laptop", over)
    texts = [{key: str(value) for key, value in row.choice.items()} for row in result.rows]
    written = [row | {"choice": text} for row, text in zip(result.to_dict()["sweep"], texts, strict=True)]
    same(out, {**result.to_dict(), "sweep": written})
    frame = result.to_frame()
    assert list(frame["micro_batch"]) == [1, 1, 2, 2, 5, 5]
    assert frame["refused"].str.len().gt(0).sum() == 2  # 5 does not divide the batch
    assert result.best.result.tokens_per_s == frame["tokens_per_s"].max()
    assert repr(result).startswith("<Sweep: 6 combinations; best micro_batch=2 seq_len=256: ")


def test_a_sweep_tells_what_is_being_simulated_and_can_be_stopped() -> None:
    """Ctrl-C keeps what is done; the rest is marked."""
    seen = []

    def stop(choice: dict[str, object]) -> None:
        seen.append(choice)
        if len(seen) == 2:
            raise KeyboardInterrupt

    result = simpar.sweep("gpt2-laptop", {"zero": [0, 1, 2]}, progress=stop)
    assert seen == [{"zero": 0}, {"zero": 1}]
    assert result.interrupted
    assert [row.interrupted for row in result.rows] == [False, True, True]


@pytest.mark.parametrize("killed", [False, True])
def test_processes_give_the_rows_that_one_process_gives(monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """In order, with reasons of refusals; also where the system kills them, as when memory runs out."""
    over, usual, ended = {"micro_batch": (1, 2, 5), "zero": (0, 2)}, Processes.submit, []

    def submit(self: Processes, item: int) -> object:
        future = usual(self, item)
        ended.extend(each.kill() for each in list(self._executor._processes.values()))
        return future

    expected = simpar.sweep("gpt2-laptop", over).to_dict()
    if killed:
        monkeypatch.setattr(Processes, "submit", submit)
    assert simpar.sweep("gpt2-laptop", over, workers=Workers(2)).to_dict() == expected
    assert bool(ended) == killed


@pytest.mark.parametrize("over", [{"zero": "1,2"}, {"zero": 1}, {"zero": []}])
def test_a_sweep_is_over_lists(over: dict[str, object]) -> None:
    """A text would be one letter after the other."""
    with pytest.raises(simpar.UserError, match=r"over: zero = .*: allowed: a list of values, at least one"):
        simpar.sweep("gpt2-laptop", over)


def test_a_sweep_refuses_keys_that_no_scenario_has() -> None:
    """As --set does."""
    with pytest.raises(simpar.UserError, match="did you mean"):
        simpar.sweep("gpt2-laptop", {"zeroo": [1]})
    assert scenario_key("nodes") == "cluster.nodes"


def test_results_are_compared_as_objects_and_as_files(tmp_path: Path) -> None:
    """A result in memory, its file, and a scenario that is simulated."""
    a, b = (simpar.simulate("gpt2", "dgx-h100", {"micro_batch": size}, TRAINING) for size in (4, 8))
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for result, path in zip((a, b), files, strict=True):
        result.save(path)
    found = simpar.compare(a, b)
    assert simpar.compare(*files) == simpar.compare(a, str(files[1])) == found
    assert cli.run(["compare", *map(str, files), "--json", str(tmp_path / "c.json")]) == 0
    same(tmp_path / "c.json", found.model_dump(mode="json"))
    assert found.to_frame().loc["step_time_s"].tolist() == [a.step_time_s, b.step_time_s]
    assert simpar.compare("gpt2-laptop", "gpt2-laptop").asked == {}
    whole = simpar.compare(a, b, tokens="1B")
    assert whole.figures["days"].a == pytest.approx(a.step_time_s * 1e9 / (64 * 1024) / 86400, rel=1e-4)  # whole steps
    with pytest.raises(simpar.UserError, match="result = 3: is of type int; allowed: "):
        simpar.compare(3, a)


def test_a_launch_is_checked_as_text_as_words_and_as_a_file(tmp_path: Path) -> None:
    """The same answer, which is that of the command line."""
    script = tmp_path / "train.sh"
    script.write_text(COMMAND)
    out = tmp_path / "check.json"
    flags = [text for key, value in FACTS.items() for text in (f"--{key}", value)]
    assert cli.run(["check", *flags, "--json", str(out), "--", *COMMAND.split()]) == 0
    checked = simpar.check(COMMAND, **FACTS)
    same(out, checked.to_dict())
    assert simpar.check(COMMAND.split(), **FACTS).to_dict() == checked.to_dict()
    assert simpar.check(script, **FACTS).result.step_time_s == checked.result.step_time_s
    with pytest.raises(simpar.UserError, match="launch = 3: is of type int"):
        simpar.check(3)


@pytest.mark.parametrize(
    ("what", "names", "load"),
    some([("hardware", simpar.clusters, simpar.Cluster), ("models", simpar.models, simpar.Model)], 1, tuples=True),
)
def test_what_is_shipped_is_listed(
    tmp_path: Path, what: str, names: Callable[[], dict[str, str]], load: Callable[[str], object]
) -> None:
    """Names that Model and Cluster take."""
    found = names()
    assert cli.run(["list", what, "--json", str(tmp_path / what)]) == 0
    same(tmp_path / what, found)
    assert load(next(iter(found)))
