"""The answer for a step of reinforcement learning on the terminal: four lines first, then where time and memory go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simpar.hardware.part import nodes_words
from simpar.plan.post_training import Rollout
from simpar.posttraining.answer import ModelDevices, PostTrainingFigures, PostTrainingResult, SideMemory
from simpar.posttraining.words import replica_words
from simpar.report.table import ReportTable, print_lines, text
from simpar.report.words import layout
from simpar.units import format_bytes, format_count, format_figure, format_seconds, number_of

if TYPE_CHECKING:
    from rich.console import Console


def print_post_training(result: PostTrainingResult, console: Console) -> None:
    """Print the whole answer to a rich console."""
    figures = result.figures
    console.print(headline(figures), style="bold", soft_wrap=True, highlight=False)
    console.print()
    for name, words in lead_lines(figures):
        console.print(f"{name:8}{words}", soft_wrap=True)
    for title, table in tables(figures):
        console.print(f"\n{title}", style="bold")
        console.print(table)
    for title, lines in lists(figures):
        print_lines(console, lines, title, mark="- ")


def headline(figures: PostTrainingFigures) -> str:
    """Model, devices, and how both sides are laid out, in one line."""
    setup = figures.setup
    section, cluster = setup["post_training"], setup["cluster"]
    apart = f" + {number_of(setup['rollout_nodes'], 'node')} to generate" if section["rollout"]["nodes"] else ""
    off = section["synchrony"]["steps_off"]
    sync = f"{off} off policy" if off else "on policy"
    replica = replica_words(Rollout.model_validate(section["rollout"]))
    where = nodes_words(cluster["nodes"], cluster["hardware"])
    return (
        f"{setup['model']} on {where}{apart}: {section['algorithm'].upper()} "
        f"{section['placement']}, {sync}; trains {layout(setup['plan'])}; "
        f"{number_of(figures.generation.replicas, 'replica')} of {replica}"
    )


def tables(figures: PostTrainingFigures) -> tuple[tuple[str, ReportTable], ...]:
    """Where time and memory go, by title."""
    return (
        ("Where a step of the training devices goes", _training(figures)),
        ("Where a step of a replica goes (mean over replicas)", _generation(figures)),
        *((f"Where a step of {_named(one)} goes", _apart(one, figures)) for one in figures.models_apart),
        ("Memory of the fullest device", _memory(figures)),
        ("Texts, tokens", _lengths(figures)),
        ("New weights for generation", _weights(figures)),
    )


def lists(figures: PostTrainingFigures) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What limits, what was assumed and what is not modelled, by title."""
    return (("Limiting factors", figures.limits), ("Assumed", figures.assumed), ("Not modelled", figures.not_modelled))


def lead_lines(figures: PostTrainingFigures) -> Iterator[tuple[str, str]]:
    """Step, limit, waits of each side, and memory of both."""
    speed, generation, stale = figures.speed, figures.generation, figures.staleness
    cost = f", {format_figure(speed.cost_usd_per_step)} dollars" if speed.cost_usd_per_step is not None else ""
    yield (
        "step",
        (
            f"{format_seconds(speed.step_time_s)}{cost} on {number_of(speed.devices, 'device')}: "
            f"{format_figure(speed.samples_per_s)} responses/s, {format_count(speed.tokens_per_s)} tokens/s trained"
        ),
    )
    yield "limit", figures.limits[0]
    step = speed.step_time_s
    age = f"; responses are {stale.mean:.2g} updates old on average, {stale.largest} at most" if stale.allowed else ""
    yield (
        "waits",
        (
            f"training waits for generation {format_seconds(figures.parts_s.waiting)} "
            f"({figures.parts_s.waiting / step:.0%}), a replica for others or for weights "
            f"{format_seconds(generation.waiting)} ({generation.waiting / step:.0%}){age}"
        ),
    )
    others = "".join(f"; {_side(' and '.join(one.models), one.memory)}" for one in figures.models_apart)
    both = f"{_side('generation', figures.memory.generation)}; {_side('training', figures.memory.training)}"
    yield "memory", both + others


def _side(name: str, memory: SideMemory) -> str:
    fits = "fits" if memory.fits else "DOES NOT FIT"
    return f"{name} {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} ({fits})"


def _shares(rows: Iterator[tuple[str, float]], step_s: float) -> ReportTable:
    cells = [(name, format_seconds(seconds), f"{seconds / step_s:.1%}") for name, seconds in rows if seconds]
    return ReportTable([text("part"), "time", "of a step"], cells)


def _training(figures: PostTrainingFigures) -> ReportTable:
    parts = figures.parts_s

    def rows() -> Iterator[tuple[str, float]]:
        yield "waiting for responses", parts.waiting
        yield "waiting for passes on other devices", parts.elsewhere
        yield "states to the host and back", parts.switch
        yield from ((f"pass: {name}", seconds) for name, seconds in parts.passes.items())
        yield "updates", parts.training
        yield "new weights for generation", parts.weights

    return _shares(rows(), figures.speed.step_time_s)


def _generation(figures: PostTrainingFigures) -> ReportTable:
    one = figures.generation

    def rows() -> Iterator[tuple[str, float]]:
        yield f"generating, {one.inside.iterations:,.0f} iterations", one.generating
        yield "waiting", one.waiting
        yield "  while other replicas generate", one.tail
        yield "new weights", one.weights
        yield "devices are training", one.away

    return _shares(rows(), figures.speed.step_time_s)


def _named(one: ModelDevices) -> str:
    """Models on devices of their own, in words."""
    return f"{' and '.join(one.models)} on {number_of(one.devices, 'device')} of their own"


def _apart(one: ModelDevices, figures: PostTrainingFigures) -> ReportTable:
    rows = (("passes", one.passes), ("updates", one.training), ("waiting", one.waiting))
    return _shares(iter(rows), figures.speed.step_time_s)


def _memory(figures: PostTrainingFigures) -> ReportTable:
    memory = figures.memory
    table = ReportTable([text("side"), text("part"), "bytes"])
    sides = (("generation", memory.generation), ("training", memory.training), ("host of a node", memory.host))
    for name, side in sides:
        if side is None:
            continue
        for part, size in side.parts_bytes.items():
            table.add(name, part, format_bytes(size))
        table.add(name, "may take", format_bytes(side.capacity_bytes))
    for one in figures.models_apart:
        table.add(" and ".join(one.models), "in all", format_bytes(one.memory.total_bytes))
        table.add(" and ".join(one.models), "may take", format_bytes(one.memory.capacity_bytes))
    share = memory.peak_cache_share
    if memory.cache_tokens:
        table.add("cache", "tokens of a replica", f"{memory.cache_tokens:,}")
    if memory.state_bytes:
        table.add("cache", "states of a sequence", format_bytes(memory.state_bytes))
    table.add("cache", "in use at most", f"{share:.0%}")
    return table


def _lengths(figures: PostTrainingFigures) -> ReportTable:
    one = figures.lengths
    return ReportTable(
        [text("texts"), "mean", "99th percentile", "longest", "cut"],
        [
            ("prompts", f"{one.prompt_mean:,.0f}"),
            (
                "responses", f"{one.response_mean:,.0f}", f"{one.response_p99:,.0f}", f"{one.response_longest:,}",
                f"{one.cut_share:.1%}",
            ),
        ],
    )  # fmt: skip


def weights_rows(figures: PostTrainingFigures) -> Iterator[tuple[str, str]]:
    """How new weights move, in words."""
    moved = figures.weights
    yield "how", moved.method
    yield "take", format_seconds(moved.seconds)
    yield "all of them", format_bytes(moved.whole_bytes)
    yield "into a device", format_bytes(moved.received_per_device_bytes)
    yield "into a node, over the network", format_bytes(moved.received_per_node_bytes)
    yield "flows over links", f"{moved.flows}"
    if moved.slowest_link:
        yield moved.slowest_link, format_seconds(moved.slowest_link_seconds)


def _weights(figures: PostTrainingFigures) -> ReportTable:
    return ReportTable([text("one arrival"), ""], list(weights_rows(figures)))
