"""The choice of the micro-batch, a key of the plan itself."""

import numpy as np

from simpar.plan.choices.choice import (
    BLOCKS,
    KERNELS,
    MEMORY,
    SIZES,
    Axis,
    Choice,
    Columns,
    Flag,
    Moves,
    Question,
    Size,
    divisors,
    double_and_half,
    in_section,
    make_effects,
)
from simpar.units import Flags

MAX_MICRO_BATCH = 64
"""The largest micro-batch that searches and menus try."""


def _sizes(problem: Question) -> list[int]:
    return divisors(problem.training.global_batch, MAX_MICRO_BATCH)


def _divides_batch(rows: Columns) -> Flags:
    return np.asarray(rows.problem.training.global_batch // rows["dp"] % rows["micro_batch"] == 0)


CHOICES = in_section(
    "",
    Choice(
        "micro_batch",
        is_column=True,
        synonyms=("micro_batch_size", "microbatch_size", "train_micro_batch_size_per_gpu"),
        flag=Flag(int, "Sequences per microbatch"),
        measured="sequences of a microbatch; blank or tuned: the fastest that fits",
        axis=Axis(
            make_effects(MEMORY, BLOCKS, KERNELS, SIZES),
            _sizes,
            _divides_batch,
            after="ep",
            possible=lambda problem: divisors(problem.training.global_batch),
            untuned=lambda _: (1,),
        ),
        moves=Moves(  # an action table is for its number of microbatches
            lambda plan, _: () if plan.pipeline.actions else double_and_half(plan.micro_batch),
            around=(1,),
            size=Size(lambda *_: MAX_MICRO_BATCH, lambda facts: facts.training.global_batch),
            room=lambda plan: {"micro_batch": 1} if plan.micro_batch > 1 else {},
        ),
    ),
)
