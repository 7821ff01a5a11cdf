"""Evaluation between steps: the mean loss on held-out batches, the same batches every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.data import Blend, Loader, SampleSource, open_source
from simpar.runtime.indexed import prefix_of
from simpar.runtime.job import Data, RunJob
from simpar.runtime.masked import as_trained
from simpar.runtime.tokenize import VALIDATION

SEED_APART = 1 << 31  # beyond all seeds of runs


@dataclass(frozen=True)
class Evaluation:
    """The first ``batches`` global batches of held-out data, after ``every`` steps and after the last one."""

    every: int
    batches: int
    last: int
    loader: Loader

    @staticmethod
    def of(job: RunJob, vocab: int, rank: int, ranks: int) -> Evaluation | None:
        """The evaluation of a data-parallel rank; None for a job without evaluation. Raises UserError."""
        wanted = job.measuring
        if wanted.evaluate_every is None:
            return None
        source = as_trained(held_out(job, vocab), job, vocab)
        loader = Loader(source, job.training.global_batch, rank, ranks, job.learning.seed)
        return Evaluation(wanted.evaluate_every, wanted.evaluate_batches, job.steps, loader)

    def is_due(self, done: int) -> bool:
        """Whether to evaluate after ``done`` steps."""
        return done % self.every == 0 or done == self.last

    def loss(self, of_batch: Callable[[int, Any], float]) -> float:
        """The mean over the batches.

        ``of_batch`` gives the mean loss of this rank's samples of a batch by number, with their targets,
        int64[samples, seq_len + 1].
        """
        total = 0.0
        for number in range(self.batches):
            wanted, factor = self.loader.targets(number)
            total += factor * of_batch(number, wanted)
        return total / self.batches


def held_out(job: RunJob, vocab: int) -> SampleSource:
    """The data that a job is evaluated on: a file of its own, what is held out, or synthetic sequences of another seed.

    Raises UserError if there are too few sequences, or if the job trains on a file and names no held-out file.
    """
    training, data, path = job.training, job.data, job.measuring.held_out
    if data.kind == "synthetic":
        if path is not None:
            raise UserError(f"--held-out {path}: the run trains on synthetic tokens; allowed: with --tokens or --text")
        return open_source(data, training, vocab, job.learning.seed + SEED_APART)
    inside = path is None
    if inside and (whole := [each.path for each in data.parts if not _holds_out(each)]):
        raise UserError(
            f"--eval-every: nothing is held out of {whole[0]}; allowed: with --held-out FILE, or --validation SHARE"
        )
    other = {} if inside else {"path": path, "blend": (), "validation": 0.0}  # a file that is named is so as a whole
    source = open_source(data.model_copy(update=other), training, vocab, job.learning.seed, held_out=inside)
    needed = training.global_batch * job.measuring.evaluate_batches
    for each, own, count in _needed(source, needed, data, job.learning.seed):
        if len(own) < count:
            whose = f"held out of {each.path}" if inside else f"--held-out {path}"
            raise UserError(
                f"{whose}: {len(own)} sequences of {training.seq_len} tokens; allowed: {count} or more, "
                f"--eval-batches {job.measuring.evaluate_batches} of {training.global_batch}"
            )
    return source


def _holds_out(data: Data) -> bool:
    """Whether data of one source has a part that is held out."""
    path = Path(str(data.path))
    return (path / VALIDATION).is_dir() or (data.validation > 0 and not path.is_dir() and prefix_of(path) is not None)


def _needed(source: SampleSource, count: int, data: Data, seed: int) -> Iterator[tuple[Data, SampleSource, int]]:
    """Each source, and how many sequences the first ``count`` take of it."""
    if not isinstance(source, Blend):
        yield data, source, count
    elif source.turns is None and len(source) < count:
        yield data.parts[0], source, count
    else:
        yield from zip(data.parts, source.sources, source.count(count, seed).tolist(), strict=True)
