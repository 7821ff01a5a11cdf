"""Choices about what is kept for backward."""

from typing import Any

import numpy as np
from pydantic import Field, field_validator

from simpar.architectures import recompute
from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    BLOCKS,
    KERNELS,
    MEMORY,
    SHAPE,
    Axis,
    Choice,
    Columns,
    Flag,
    Moves,
    OptionalAxis,
    Question,
    Rules,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.pipeline import list_sliced_schedules
from simpar.plan.choices.section import Section
from simpar.plan.schedules import HALF_SCHEDULES
from simpar.units import Flags

MODES = (*recompute.SIMPLE, recompute.OPTIMAL)
"""The policies of menus and of single changes."""
RECOMPUTE = (*recompute.SIMPLE, recompute.policy_of_every(2))
"""The policies that searches try."""
SAVES = {recompute.NONE: 0, recompute.FULL: 2}
"""Policies by the memory that they save; all others are between these two."""


class MemoryPolicy(Section):
    """What is kept for backward: ``none``, ``selective``, ``full``, ``every:C``, ``segments:C`` or ``modules:A+B``.

    ``layers:none*4,full*8`` chooses layer by layer; ``optimal`` stands for the choice by layer that fits in memory
    with the least time. ``recompute_early`` runs layers that are recomputed in full again while a stage waits for the
    gradient, ahead of their backward, so that it hides in bubbles; their activations are live for longer.
    """

    recompute: str = Field(default="none", json_schema_extra={"pattern": f"^{recompute.PATTERN}$"})
    recompute_early: bool = Field(default=False, description="recompute while a stage waits for the gradient")

    @field_validator("recompute")
    @classmethod
    def _known(cls, value: str) -> str:
        if not recompute.is_known(value):
            raise ValueError(f"allowed: {recompute.ALLOWED}")
        return value


@dataclass(frozen=True, kw_only=True)
class DecidedMemory:
    """What is kept for backward."""

    recompute: str = "none"
    recompute_early: bool = False


def select_undecided(rows: Columns, which: Any = ...) -> Flags:
    """Which rows still wait for the choice by layer that ``recompute: optimal`` stands for."""
    names = rows.domain.get("recompute", ())
    if recompute.OPTIMAL not in names:
        return np.zeros(rows.count if which is ... else len(np.atleast_1d(which)), dtype=bool)
    return np.atleast_1d(rows.code["recompute"][which] == names.index(recompute.OPTIMAL))


def _policies(problem: Question) -> list[str]:
    """All policies by name that are alike in all stages, and the choice layer by layer."""
    periods = range(2, len(problem.graph.layers) + 1)
    return [*recompute.SIMPLE, *map(recompute.policy_of_every, periods), recompute.OPTIMAL]


def _policy_fits(rows: Columns) -> Flags:
    """Rows whose layers are chosen one by one only for whole sequences that enter at the first rank."""
    chosen = rows.one_of("recompute", recompute.OPTIMAL)
    return np.asarray(~chosen | ~rows.one_of("schedule", *list_sliced_schedules(rows), *HALF_SCHEDULES))


def _recomputes_in_pipeline(rows: Columns) -> Flags:
    """Rows that recompute whole layers in a pipeline."""
    whole = [name for name in rows.domain["recompute"] if recompute.FULL in recompute.modes(name)]
    return np.asarray((rows["pp"] > 1) & rows.one_of("recompute", *whole))


_KEEPS_EARLY = Rules(
    ("early",),
    reads=(
        "cp", "pp", "dp", "schedule", "zero", "hsdp", "recompute", "recompute_early", "reshard_after_forward",
        "offload_optimizer", "offload_parameters", "offload_activations", "ep_overlap", "tp",
    ),
)  # fmt: skip
CHOICES = in_section(
    "memory",
    Choice(
        "recompute",
        is_exported=True,
        is_column=True,
        synonyms=("recompute_granularity",),
        flag=Flag(str, f"Recomputed activations: {recompute.WORDS}"),
        measured="none, selective, full, every other layer, selective modules: NAMES, tuned, or as in a plan",
        axis=Axis(
            make_effects(MEMORY, SHAPE, KERNELS),
            lambda _: RECOMPUTE,
            _policy_fits,
            after="sequence_parallel",
            possible=_policies,
            untuned=lambda _: recompute.SIMPLE,
        ),
        moves=Moves(
            lambda plan, _: (mode for mode in MODES if mode != plan.memory.recompute),
            around=recompute.SIMPLE,
            menu=lambda *_: MODES,
            replacements=replace_with(
                "recompute",
                recompute.SELECTIVE,
                recompute.of_modules(["core_attn", "layernorm"]),
                recompute.FULL,
                recompute.NONE,
            ),
            saves=lambda policy: SAVES.get(policy, 1),
            after="ep",
        ),
    ),
    Choice(
        "recompute_early",
        axis=OptionalAxis(
            make_effects(MEMORY, BLOCKS),
            _recomputes_in_pipeline,
            rules=(_KEEPS_EARLY,),
            label="ahead of its backward",
            after="offload_activations",
        ),
    ),
)
