"""Evaluation between steps: when, on what, and what is refused."""

import numpy as np
import pytest

from simpar.errors import UserError
from simpar.runtime.evaluate import Evaluation, held_out
from simpar.runtime.job import Data, RunJob
from simpar.runtime.request import load_request, make_ready

FLAGS = {"model": "tiny-llama", "training.seq_len": 16, "training.global_batch": 4, "plan.micro_batch": 1}


def ready(tmp_path, measuring, *settings, nproc=2, **options):
    """A job as the command makes it, on two ranks."""
    request = load_request("gpt2-laptop", FLAGS, ["cluster=null", *settings])
    fields = {"steps": 5, "folder": str(tmp_path), "measuring": measuring, **options}
    return make_ready(request, nproc, 1, fields)


def tokens(path, count):
    """A file of so many tokens."""
    np.arange(count, dtype=np.uint16).tofile(path)
    return str(path)


def test_a_model_is_evaluated_every_so_often_and_at_the_end(tmp_path):
    """After steps 2, 4 and the last of five; every time on the same batches, shared out among ranks."""
    job = ready(tmp_path, {"evaluate_every": 2, "evaluate_batches": 3}).job
    parts = [Evaluation.of(job, 256, rank, 2) for rank in range(2)]
    assert [done for done in range(1, 6) if parts[0].is_due(done)] == [2, 4, 5]
    seen = [[], []]
    drawn = [part.loader.batch for part in parts]
    assert parts[0].loss(lambda number, _: seen[0].append(drawn[0](number)) or float(len(seen[0]))) == 2.0
    parts[1].loss(lambda number, _: seen[1].append(drawn[1](number)) or 0.0)
    assert np.concatenate([*seen[0], *seen[1]]).shape == (12, 17)
    again = []
    parts[0].loss(lambda number, _: again.append(drawn[0](number)) or 0.0)
    assert np.array_equal(again, seen[0])
    whole = Evaluation.of(job, 256, 0, 1).loader.batch(0)
    assert np.array_equal(whole, np.concatenate((seen[0][0], seen[1][0])))


def test_synthetic_batches_are_not_those_that_are_trained_on(tmp_path):
    """Another seed, which no run can have."""
    job = ready(tmp_path, {"evaluate_every": 1}).job
    assert job.learning.seed == 0
    assert held_out(job, 256).seed >= 2**31


def test_nothing_is_evaluated_unless_asked_for(tmp_path):
    """The default."""
    assert Evaluation.of(ready(tmp_path, {}).job, 256, 0, 2) is None


@pytest.mark.parametrize(
    ("measuring", "settings", "words"),
    [
        ({"held_out": "x.bin"}, [], "--held-out x.bin: allowed: with --eval-every N"),
        ({"evaluate_every": 1, "held_out": "x.bin"}, [], "--held-out x.bin: the run trains on synthetic tokens"),
        ({"evaluate_every": 0}, [], "measuring.evaluate_every = 0: "),
        ({"evaluate_every": 1}, ["plan.sync=local-sgd"], "--eval-every with plan.sync = local-sgd: "),
    ],
)
def test_what_cannot_be_evaluated_is_refused(tmp_path, measuring, settings, words):
    """One line before anything starts."""
    with pytest.raises(UserError, match=words):
        ready(tmp_path, measuring, *settings)


@pytest.mark.parametrize(
    ("count", "words"), [(None, "--eval-every: nothing is held out of "), (70, "4 sequences of 16 tokens; allowed: 8")]
)
def test_a_file_needs_one_beside_it_that_is_long_enough(tmp_path, count, words):
    """Held-out data is a file of its own, with as many sequences as an evaluation takes."""
    data = Data(kind="tokens", path=tokens(tmp_path / "train.bin", 400))
    held = tokens(tmp_path / "held.bin", count) if count else None
    measuring = {"evaluate_every": 1, "evaluate_batches": 2, "held_out": held}
    with pytest.raises(UserError, match=words):
        ready(tmp_path, measuring, data=data)
    measuring["held_out"] = tokens(tmp_path / "long.bin", 200)
    job = ready(tmp_path, measuring, data=data).job
    assert isinstance(job, RunJob)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["plan.pp=2", "plan.schedule=zb-h1"], "--compile with schedule zb-h1: .*split into I and W"),
        (["plan.kind=single_process"], "--compile with kind = single_process: "),
        (["plan.tp=2", "plan.sequence_parallel=false"], "--compile with tp = 2 and whole sequences: "),
    ],
)
def test_what_cannot_be_compiled_is_refused(tmp_path, settings, words):
    """Layers that are called in parts, or with others' parameters."""
    with pytest.raises(UserError, match=words):
        ready(tmp_path, {}, *settings, machine={"compile": True})


def test_a_trace_that_would_not_be_written_is_refused(tmp_path):
    """Steps of the warm-up are not traced: a run that ends before is told so, not after it."""
    words = r"--trace-steps 2 .* after --warmup 4: 5 steps are left to run; allowed: 6 or more"
    with pytest.raises(UserError, match=words):
        ready(tmp_path, {"trace_steps": 2, "warmup": 4})
    assert ready(tmp_path, {"trace_steps": 2, "warmup": 3}).job.measuring.trace_steps == 2


def test_allocations_are_recorded_on_cuda_only(tmp_path):
    """A run on processors that asks for them is refused."""
    from simpar.runtime.request import on_machine

    job = ready(tmp_path, {"memory_snapshot": True}).job
    with pytest.raises(UserError, match=r"--memory-snapshot: .*CUDA only"):
        on_machine(job, 2)
