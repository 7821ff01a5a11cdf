"""The ranks that a rank waits for, in figures and words."""

from collections.abc import Iterator

from simpar.calls import Strict
from simpar.units import format_seconds

MOST_NAMED = 8
"""The most ranks listed of a class that others wait for."""
OTHER_REPLICAS = "other replicas"
"""Cause of waiting if replicas step on their own: they wait for others where they synchronise."""
WORTH_A_HINT = 0.005
"""The least share of the step that a hint must gain."""


class Waited(Strict):
    """A part of the critical rank's waiting, in s: ``cause`` is a slow rank, unequal work, other groups or replicas.

    ``ranks`` are those waited for, at most MOST_NAMED (none if it is not one class of ranks), of pipeline ``stage``.
    ``factor`` is how many times longer their kernels take, ``kind`` what they do meanwhile if it is communication.
    """

    cause: str
    seconds: float
    ranks: tuple[int, ...] = ()
    num_ranks: int = 0
    stage: int | None = None
    factor: float = 1.0
    kind: str = ""


class SlowRanks(Strict):
    """Ranks whose kernels take ``factors`` times as long, and the simulated step in s without the slowdown."""

    factors: dict[int, float]
    step_time_without_s: float


class ExpertLoad(Strict):
    """Tokens on the fullest of ``ranks`` expert ranks over the mean; ``deviation`` is the standard deviation.

    The deviation is over layers and steps. A step takes the mean of the fullest load in every layer, or the ``sampled``
    load of one draw.
    """

    ranks: int
    fullest: float
    deviation: float
    sampled: bool = False


def slow_hints(slow: SlowRanks | None, step_time_s: float) -> Iterator[str]:
    """The simulated step without slow ranks; nothing if they cost next to nothing."""
    if slow is None or slow.step_time_without_s > (1 - WORTH_A_HINT) * step_time_s:
        return
    factors = sorted(slow.factors.items(), key=lambda item: -item[1])
    named = ", ".join(f"rank {rank} ({by:g} times slower)" for rank, by in factors[:MOST_NAMED])
    named += f" and {len(factors) - MOST_NAMED} more" if len(factors) > MOST_NAMED else ""
    without_s = slow.step_time_without_s
    yield (
        f"repair or replace {named}: {format_seconds(without_s)} instead of {format_seconds(step_time_s)} "
        f"({without_s / step_time_s - 1:+.1%})"
    )


def describe_waits(part: Waited) -> str:
    """The ranks waited for, in words."""
    many = "s" if part.num_ranks > 1 else ""
    ranks = f"rank{many} {', '.join(map(str, part.ranks[:3]))}" + (" ..." if part.num_ranks > 3 else "")
    if part.cause == "slow rank":
        return f"{ranks}, {part.factor:g} times slower" if part.ranks else "slow ranks"
    if part.cause == "unequal work":
        return f"{ranks} of stage {part.stage}, with more to do" if part.ranks else "ranks with more to do"
    if part.cause == OTHER_REPLICAS:
        return OTHER_REPLICAS
    kind = f"{part.kind} " if part.kind else ""
    return f"{kind}collectives of other groups" + (f" ({ranks})" if part.ranks else "")
