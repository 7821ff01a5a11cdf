"""Pipeline schedules as tables of actions.

``SCHEDULES`` are the producers by name, as the files of this folder declare them: by the month in which they were
published, those of whole microbatches first. To add a schedule, add a file that says what
:class:`~simpar.plan.schedules.producer.Producer` asks.
"""

from functools import lru_cache

from simpar import files
from simpar.declared import entries
from simpar.errors import UserError
from simpar.plan.schedules.actions import Schedule
from simpar.plan.schedules.producer import Producer

EVEN_COSTS = (1.0, 1.0, 1.0)


def _listed() -> dict[str, Producer]:
    """The producers of all files."""
    producers: list[Producer] = entries(__name__, __path__, "PRODUCERS")
    return {each.name: each for each in sorted(producers, key=lambda one: (one.runs_slices, one.promise.month))}


SCHEDULES = _listed()
HALF_SCHEDULES = {each.name: each.half_schedule for each in SCHEDULES.values() if each.half_schedule}
"""Schedules with two ends, each with the schedule that it runs as on half of the ranks."""


def producer_of(name: str) -> Producer:
    """The producer of a name. Raises UserError for an unknown one."""
    return SCHEDULES[files.choose(name, SCHEDULES, "schedule")]


def default_schedule(chunks: int = 1) -> str:
    """The schedule of plans that name none, for that number of chunks per rank."""
    return next(each.name for each in SCHEDULES.values() if each.usual and (each.chunks > 1) == (chunks > 1))


def schedules_with_same_memory(name: str) -> tuple[str, ...]:
    """Schedules searched by default, with as many chunks as ``name``, that promise no more in flight than it does."""
    one, many = producer_of(name), (8, 64)  # ranks and microbatches, enough for a pipeline to fill
    most = one.promise.most_in_flight(*many)
    alike = [each for each in SCHEDULES.values() if each.chunks == one.chunks and each.searched == "by default"]
    return tuple(each.name for each in alike if each.promise.most_in_flight(*many) <= most)


def suggest_schedules(name: str) -> str:
    """``; did you mean 'zb-h1' or 'zb-v'?`` for a word that hints at several schedules; "" for other words."""
    names = " or ".join(repr(each.name) for each in SCHEDULES.values() if _bare(name) in each.names.hints)
    return f"; did you mean {names}?" if names else ""


def schedule_named(name: str) -> str | None:
    """The table's name for what people write ("1F1B", "ZB_H1", "Interleaved1F1B"), None if unknown."""
    bare = _bare(name)
    result = (each.name for each in SCHEDULES.values() if bare in (_bare(each.name), *each.names.aliases))
    return next(result, None)


def natural_vpp(name: str) -> int:
    """The default number of chunks per rank of a schedule. Raises UserError for an unknown name."""
    return producer_of(name).chunks


def chunks_instead(name: str, vpp: int) -> int | None:
    """The chunks per rank of a schedule that cannot run ``vpp`` of them, None if it can.

    >>> chunks_instead("zb-v", 3), chunks_instead("interleaved", 3)
    (2, None)
    """
    producer = producer_of(name)
    return None if producer.any_chunks or producer.chunks == vpp else producer.chunks


def looks_at_costs(name: str) -> bool:
    """Whether a schedule depends on the durations of its passes. Raises UserError for an unknown name."""
    return producer_of(name).looks_at_costs


def describe() -> dict[str, str]:
    """Every schedule's name and what it is, in a sentence."""
    return {name: each.describe() for name, each in SCHEDULES.items()}


def producer_on_ranks(name: str, num_ranks: int) -> Producer:
    """The producer in effect for a schedule on ``num_ranks`` ranks: the usual one on a single rank.

    There nothing is pipelined, and every framework runs the backward of a microbatch behind its forward, whatever
    schedule a plan names. Schedules of several chunks, of token slices and with two ends keep their own tables. Raises
    UserError for an unknown name.
    """
    named = producer_of(name)
    own = named.chunks > 1 or named.runs_slices or named.half_schedule
    return named if num_ranks > 1 or own else producer_of(default_schedule())


@lru_cache(maxsize=64)
def make_schedule(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    vpp: int | None = None,
    *,
    costs: tuple[float, float, float] = EVEN_COSTS,
) -> Schedule:
    """The action table of a named schedule for ``vpp`` chunks a rank (None: the schedule's natural number).

    ``costs`` are durations of F, I and W of one stage, in any unit; schedules that are fixed orders ignore
    them. Raises UserError for an unknown name or an impossible shape.

    >>> schedule = make_schedule("1f1b", num_ranks=4, num_microbatches=8)
    >>> [str(action) for action in schedule.actions[3][:4]]  # of the last rank
    ['3F0', '3B0', '3F1', '3B1']
    >>> schedule.peak_in_flight(0)  # microbatches whose activations the first rank holds at most
    4
    """
    producer = producer_on_ranks(name, num_ranks)
    chunks = producer.chunks if vpp is None else vpp
    if not producer.any_chunks and chunks != producer.chunks:
        others = ", ".join(each.name for each in SCHEDULES.values() if each.any_chunks)
        raise UserError(f"schedule {name}: vpp = {chunks}; allowed: {producer.chunks} (any number of chunks: {others})")
    shape = (num_ranks, num_microbatches, *((chunks,) if producer.any_chunks else ()))
    return producer.make(*shape, costs=costs) if producer.looks_at_costs else producer.make(*shape)


def _bare(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
