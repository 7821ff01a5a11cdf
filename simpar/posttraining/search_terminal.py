"""The answer of a search for a step of reinforcement learning on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simpar.posttraining.search import PoolCandidate, PostTrainingSearch
from simpar.posttraining.terminal import lead_lines
from simpar.posttraining.words import replica_words
from simpar.report.table import Column, ReportTable, print_lines, text
from simpar.report.words import layout
from simpar.units import format_figure, format_seconds, number_of

if TYPE_CHECKING:
    from rich.console import Console

MOST_REASONS = 3


def print_post_training_search(result: PostTrainingSearch, console: Console, top: int) -> None:
    """Print the best candidates, what each loses, and the certificate."""
    best = result.best
    console.print(f"{'best':8}{pools_words(best)}", style="bold", soft_wrap=True)
    for name, words in lead_lines(best.result.figures):
        console.print(f"{name:8}{words}", soft_wrap=True)
    console.print()
    columns: list[Column | str] = [
        "", text("pools", least=20), text("replicas", least=8), text("synchrony", least=10), "step",
        Column("responses/s", spare=1), "dollars a step", "loses", text("limit", least=20),
    ]  # fmt: skip
    shown = result.candidates[:top]
    rows = [_cells(at, one, best) for at, one in enumerate(shown, 1)]
    console.print(ReportTable(columns, rows))
    print_lines(console, (f"{at}: {layout(one.plan.model_dump(mode='json'))}" for at, one in enumerate(shown, 1)),
                "Training layouts", mark="- ")  # fmt: skip
    print_lines(console, certificate(result), "How sure", mark="- ")


def pools_words(one: PoolCandidate) -> str:
    """Pools, replicas and synchrony of a candidate in a few words."""
    return f"{_pools(one)}; {_replicas(one)}; {_synchrony(one)}"


def _pools(one: PoolCandidate) -> str:
    choice = one.choice
    if not choice.rollout_nodes:
        return f"{number_of(choice.training_nodes, 'node')} for both in turns"
    does = "for both in turns" if choice.placement == "hybrid" else "train"
    return f"{number_of(choice.training_nodes, 'node')} {does}, {choice.rollout_nodes} generate"


def _replicas(one: PoolCandidate) -> str:
    replica = one.choice.replica
    cache = f" {replica.cache_dtype} cache" if replica.cache_dtype not in (None, "bf16") else ""
    return f"{number_of(one.result.figures.generation.replicas, 'replica')} of {replica_words(replica)}{cache}"


def _synchrony(one: PoolCandidate) -> str:
    synchrony = one.choice.synchrony
    if not synchrony.steps_off:
        return "on policy"
    return f"{synchrony.steps_off} off" + (", interrupted" if synchrony.in_flight else "")


def _cells(at: int, one: PoolCandidate, best: PoolCandidate) -> list[str]:
    speed = one.result.figures.speed
    cost = speed.cost_usd_per_step
    return [
        str(at), _pools(one), _replicas(one), _synchrony(one), format_seconds(speed.step_time_s),
        format_figure(speed.samples_per_s), "" if cost is None else format_figure(cost),
        "" if one is best else f"{one.objective / best.objective - 1:+.1%}", one.result.figures.limits[0],
    ]  # fmt: skip


def certificate(result: PostTrainingSearch) -> Iterator[str]:
    """What the answer rests on."""
    counts = result.counts
    bounded = f"{counts['bounded']:,} bounded{' above the best' if result.is_certified else ''}"
    tried = (
        f"{counts['space']:,} points: {counts['simulated']:,} simulated, {bounded}, {counts['refused']:,} cannot run"
    )
    if result.is_certified:
        yield f"certified: no point of the space is better as predicted ({tried})"
    elif result.gap < 1.0:
        yield f"not certified: a point that was not simulated may be better by up to {result.gap:.1%} ({tried})"
    else:
        yield f"not certified: how much better a point may be is not known, the search was not finished ({tried})"
    sizes = [one.nodes for one in result.layouts]
    each = "every division of the nodes" if sizes[:1] in ([], [1]) else f"pools of multiples of {sizes[0]} nodes"
    yield (
        f"the space: {each} and every placement, replicas of powers of two in width and stages, "
        f"staleness up to {result.staleness}, and the best training layouts of an update on every size, whatever they "
        "mean for passes and new weights"
    )
    yield from _training_layouts(result)
    for reason in sorted(result.refused, key=lambda one: -result.refused[one])[:MOST_REASONS]:
        yield f"cannot run ({result.refused[reason]:,}): {reason}"
    yield from (each for each in result.best.result.figures.not_modelled[:1])


def _training_layouts(result: PostTrainingSearch) -> Iterator[str]:
    """Sizes whose training layouts are not proven to be the best, or which have none."""
    for one in result.layouts:
        where = f"training layouts on {number_of(one.nodes, 'node')}"
        if not one.plans:
            yield f"{where}: none{' so far' if one.is_open else ''}, {one.why}"
        elif one.is_open:
            yield f"{where}: the best so far, another may be better ({one.why})"
        elif one.proven < len(one.plans):
            yield f"{where}: the best {one.proven} of {len(one.plans)} are proven, the rest are the next best simulated"
