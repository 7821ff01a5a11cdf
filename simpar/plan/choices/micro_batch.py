"""The choice of the micro-batch, a key of the plan itself."""

from __future__ import annotations

import numpy as np

from simpar.plan.choices.choice import (
    BLOCKS,
    MEMORY,
    Axis,
    Choice,
    Columns,
    Flag,
    Question,
    deciding,
    divisors,
    in_section,
)
from simpar.units import Flags

MAX_MICRO_BATCH = 64
"""The largest micro-batch that searches try."""


def _sizes(problem: Question) -> list[int]:
    return divisors(problem.training.global_batch, MAX_MICRO_BATCH)


def _divides_batch(rows: Columns) -> Flags:
    return np.asarray(rows.problem.training.global_batch // rows["dp"] % rows["micro_batch"] == 0)


CHOICES = in_section(
    "",
    Choice(
        "micro_batch",
        synonyms=("micro_batch_size", "microbatch_size", "train_micro_batch_size_per_gpu"),
        flag=Flag(int, "Sequences per microbatch"),
        axis=Axis(deciding(MEMORY, BLOCKS), _sizes, _divides_batch, after="ep"),
    ),
)
