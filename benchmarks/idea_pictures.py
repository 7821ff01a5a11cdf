"""Draw the three ideas of simpar, each from what simpar computes: the Program, the fold, and the certificate.

    python benchmarks/idea_pictures.py                  # all three, into docs/images
    python benchmarks/idea_pictures.py program folding  # these

*program*: every op of a step of eight GPUs, on its streams, with what waits for what, and the memory that follows.
*folding*: 64 GPUs coloured by class, healthy, with a slow GPU and with a slow node; classes by number of GPUs.
*certificate*: the lower bound of every plan of a search, the plans that were simulated, and the best step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import simpar
from simpar.engine import choose_engine
from simpar.files import write_atomic
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.frontier import KERNELS, PASSES, STEP, SWEPT, TABLED, Frontier
from simpar.planner.problem import make_problem
from simpar.planner.progress import SearchProgress
from simpar.program.ir.program import Program, Timing
from simpar.program.lower import Lowered
from simpar.report.figures import clean, new_figure, render_figure
from simpar.report.palette import BACKWARD, BUBBLE, COMM, FORWARD, INK, KIND_COLOUR, MEMORY_COLOUR, UPDATE
from simpar.simulation import lower_job, make_job
from simpar.units import GIB, MS, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent.parent / "docs" / "images"
MS_PER_NS = 1e-6
STREAMS = {"compute": "kernels", "param_gather": "gathers", "grad_reduce": "reductions", "send": "messages"}
CLASS_COLOURS = (
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB", "#222255", "#997700", "#EE8866",
    "#44BB99", "#99DDFF", "#FFAABB", "#AAAA00", "#77AADD", "#884400",
)  # fmt: skip


def program() -> Figure:
    """A step of Llama 3 8B on eight GPUs: two pipeline stages, four replicas, ZeRO-1, three microbatches."""
    cluster = simpar.Cluster("dgx-h100")
    plan = simpar.Plan(pp=2, dp=4, zero=1, micro_batch=1)
    training = simpar.Training(seq_len=4096, global_batch=12)
    lowered = lower_job(make_job("llama-3-8b", cluster, plan, training, "megatron"), cluster)
    step, timing = lowered.program, choose_engine("auto", lowered.program)(lowered.program)
    result = simpar.simulate("llama-3-8b", cluster, plan, training, stack="megatron")
    figure = new_figure(13, 7.2)
    top, bottom = figure.subplots(2, 1, height_ratios=(2.4, 1.0), sharex=True)
    _draw_streams(top, step, timing)
    top.set_title(
f"The Program: one step of 8 GPUs is {len(step)} ops. An op starts when what it waits for (arrows)\n"
        "and the op before it on each of its streams (rows) have finished.",
        loc="left", fontsize=10, color=INK,
    )  # fmt: skip
    stage = result.to_dict()["timeline"]["stages"][0]["memory"]
    time_ms = np.array([*stage["time_s"], result.step_time_s]) / MS
    names = [name for name in MEMORY_COLOUR if name in stage]
    bottom.stackplot(
        time_ms,
        [np.array([*stage[name], stage[name][-1]]) / GIB for name in names],
        labels=[name.replace("_", " ") for name in names],
        colors=[MEMORY_COLOUR[name] for name in names],
        step="post",
    )
    title = "Memory follows: ops take and give bytes when they start and finish (stage 0)"
    bottom.set_title(title, loc="left", fontsize=10, color=INK)
    bottom.set_ylabel("GiB", color=INK)
    bottom.set_xlabel("ms from the start of the step", color=INK)
    bottom.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    clean(bottom)
    return figure


def _draw_streams(axes: Axes, step: Program, timing: Timing) -> None:
    """Ops as bars on the streams of both classes of ranks, with arrows for dependencies that change the row."""
    shown = [
        number
        for number, name in enumerate(step.stream_names)
        if len(step.streams.row(number)) and any(name.startswith(start) for start in STREAMS)
    ]
    shown = [number for number in shown if not _is_copy(step, number)]
    rows = {number: len(shown) - 1 - place for place, number in enumerate(shown)}
    row_of = _draw_ops(axes, step, timing, rows)
    for op, row in row_of.items():
        for before in step.dependencies.row(op):
            if before in row_of and row_of[before] != row:
                start, end = timing.finish_ns[before] * MS_PER_NS, timing.start_ns[op] * MS_PER_NS
                axes.annotate(
                    "", (end, row), (start, row_of[before]),
                    arrowprops={"arrowstyle": "->", "color": INK, "lw": 0.5, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0},
                )  # fmt: skip
    axes.set_yticks(list(rows.values()), [_stream_title(step, number) for number in rows], fontsize=8)
    for number, row in rows.items():
        if row + 1 in rows.values() and step.stream_class[number] != step.stream_class[shown[len(shown) - 2 - row]]:
            axes.axhline(row + 0.5, color="#999999", lw=0.8)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    clean(axes)
    kinds = {"forward": FORWARD, "backward": BACKWARD, "communication": COMM, "optimizer": UPDATE}
    handles = [axes.barh(0, 0, color=colour, label=name) for name, colour in kinds.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def _is_copy(step: Program, number: int) -> bool:
    """Whether a stream holds no op of its own kind: passes that stand on several streams are drawn on one."""
    kinds = {step.labels[step.ops.label[op]].kind for op in step.streams.row(number)}
    return step.stream_names[number] != "compute" and not kinds & {"dp", "pp"}


def _draw_ops(axes: Axes, step: Program, timing: Timing, rows: dict[int, int]) -> dict[int, int]:
    """Bars, named by the microbatch where there is room; the row on which every op is drawn, its first."""
    row_of: dict[int, int] = {}
    for number, row in rows.items():
        for op in step.streams.row(number).tolist():
            kind = step.labels[step.ops.label[op]].kind
            start, end = (float(each[op]) * MS_PER_NS for each in (timing.start_ns, timing.finish_ns))
            axes.barh(row, max(end - start, 0.15), left=start, height=0.72, color=KIND_COLOUR.get(kind, BUBBLE),
                      edgecolor="white", lw=0.4)  # fmt: skip
            if kind == "pp":  # too short to be seen
                axes.plot((start + end) / 2, row, "D", ms=6, color=COMM, mec="white", mew=0.5, zorder=3)
            row_of.setdefault(op, row)
    compute = [number for number in rows if step.stream_names[number] == "compute"]
    for number in compute:
        ops = step.streams.row(number)
        for microbatch in np.unique(step.ops.microbatch[ops]):
            for kind in ("forward", "backward"):
                mine = [
                    op for op in ops
                    if step.ops.microbatch[op] == microbatch and step.labels[step.ops.label[op]].kind == kind
                ]  # fmt: skip
                if mine and microbatch >= 0:
                    middle = (timing.start_ns[mine[0]] + timing.finish_ns[mine[-1]]) / 2 * MS_PER_NS
                    axes.text(middle, rows[number], f"{kind[0].upper()}{microbatch}", ha="center", va="center",
                              color="white", fontsize=9, weight="bold", zorder=5)  # fmt: skip
    return row_of


def _stream_title(step: Program, number: int) -> str:
    name = next(title for start, title in STREAMS.items() if step.stream_names[number].startswith(start))
    stage = int(step.stream_class[number])
    return f"stage {stage}: {name}"


def folding() -> Figure:
    """Ranks by class on 8 nodes, healthy and damaged, and classes against the size of the cluster."""
    figure = new_figure(13, 4.3)
    panels = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.35))
    cases: tuple[tuple[str, dict[str, float], dict[str, Any]], ...] = (
        ("all alike", {}, {}),
        ("GPU 27 is 1.2 times slower", {}, {"slow_ranks": {27: 1.2}}),
        ("the network of node 5 at half speed", {"node:5": 0.5}, {}),
    )
    for axes, (title, damage, perturbation) in zip(panels, cases, strict=False):
        lowered = _folded(8, damage, perturbation)
        _draw_classes(axes, lowered, title)
    sizes = [8, 32, 128, 512, 2048]
    found = [_folded(nodes, {}, {}) for nodes in sizes]
    slow = [_folded(nodes, {}, {"slow_ranks": {27: 1.2}}) for nodes in sizes]
    gpus = [8 * nodes for nodes in sizes]
    axes = panels[3]
    axes.plot(gpus, gpus, color=BUBBLE, marker="o", label="GPUs")
    axes.plot(gpus, [each.quotient.num_classes for each in slow], color=COMM, marker="s", label="classes, one GPU slow")
    axes.plot(
        gpus, [each.quotient.num_classes for each in found], color=FORWARD, marker="^", label="classes, all alike"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(gpus, [f"{each:,}" for each in gpus])
    ticks = [4, 16, 64, 256, 1024, 4096, 16384]
    axes.set_yticks(ticks, [f"{each:,}" for each in ticks])
    axes.set_xlabel("GPUs", color=INK)
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("what is simulated", loc="left", fontsize=10, color=INK)
    clean(axes)
    figure.suptitle(
        "Folding: ranks that provably behave alike are one class, of which one rank is simulated. "
        "Colour: class. Llama 3 70B, tensor parallel in a node, 4 pipeline stages.",
        x=0.01, ha="left", fontsize=10, color=INK,
    )  # fmt: skip
    return figure


def _folded(nodes: int, damage: dict[str, float], perturbation: dict[str, Any]) -> Lowered:
    """The step of a plan of 8 x 4 x dp ranks on so many nodes."""
    cluster = simpar.Cluster("dgx-h100", nodes=nodes).with_degraded(damage)
    plan = simpar.Plan(tp=8, pp=4, dp=nodes // 4, zero=1, micro_batch=1)
    training = simpar.Training(seq_len=4096, global_batch=8 * (nodes // 4))
    job = make_job("llama-3-70b", cluster, plan, training, "megatron")
    return lower_job(job, cluster, simpar.Perturbation(**perturbation))


def _draw_classes(axes: Axes, lowered: Lowered, title: str) -> None:
    """Nodes from top to bottom, their GPUs from left to right, coloured by class."""
    classes = lowered.quotient.class_of_rank.reshape(-1, 8)
    for (node, device), number in np.ndenumerate(classes):
        axes.add_patch(_square(device, node, CLASS_COLOURS[number % len(CLASS_COLOURS)]))
        axes.text(device, node, str(number), ha="center", va="center", color="white", fontsize=7)
    axes.set_xlim(-0.6, 7.6)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_aspect("equal")
    axes.set_xticks(range(8), [str(device) for device in range(8)])
    axes.set_yticks(range(len(classes)), [f"node {node}" for node in range(len(classes))])
    axes.set_xlabel("GPU of the node", color=INK)
    said = f"{title}:\n{classes.size} GPUs, {lowered.quotient.num_classes} classes"
    axes.set_title(said, loc="left", fontsize=10, color=INK)
    clean(axes)
    axes.spines[:].set_visible(False)


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch((x - 0.4, y - 0.4), 0.8, 0.8, boxstyle="round,pad=0,rounding_size=0.12", color=colour, lw=0)


LEVELS = {
    KERNELS: ("kernels alone", "#777777"),
    PASSES: ("passes with their communication", "#66CCEE"),
    STEP: ("whole step, any order of passes", "#4477AA"),
    TABLED: ("with the schedule's order", "#CCBB44"),
    SWEPT: ("all but contention for links", "#228833"),
}


def certificate() -> Figure:
    """Every plan of GPT-3 175B on 64 A100 that fits, by its bound when the search ended."""
    inputs = simpar.load_scenario("gpt3-175b-64-a100").inputs()
    problem = make_problem(inputs["model"], inputs["cluster"], inputs["training"], stack=inputs["stack"])
    search = BranchAndBound(fields_of(problem, [problem.cluster.nodes]), SearchProgress())
    (frontier,) = search.frontiers
    kernels_s = frontier.bound_s.copy()
    search.run()
    figure = new_figure(13, 5.6)
    axes = figure.subplots()
    _draw_bounds(axes, frontier, kernels_s, search.best)
    counts = search.counts()
    axes.set_title(
        f"The certificate: of {counts.space_size:,} plans {counts.feasible:,} may fit. The one with the lowest bound "
        f"is bounded more sharply, or simulated ({counts.simulated:,} in all),\n"
        "until no bound lies below the best simulated step. Then no other plan can be faster.",
        loc="left", fontsize=10, color=INK,
    )  # fmt: skip
    return figure


def _draw_bounds(axes: Axes, frontier: Frontier, kernels_s: Floats, best_s: float) -> None:
    """Bounds in rising order, coloured by how they were found, below them the first ones, and what was simulated."""
    order = np.argsort(frontier.bound_s, kind="stable")
    bound_s, level = frontier.bound_s[order], frontier.level[order]
    place = np.arange(1, len(order) + 1)
    style = {"ls": "", "marker": ".", "mew": 0, "rasterized": True}
    axes.plot(place, kernels_s[order], ms=4, color=BUBBLE, alpha=0.6, label="first bound: kernels alone", **style)
    for each, (name, colour) in LEVELS.items():
        mine = level == each
        if mine.any():
            axes.plot(place[mine], bound_s[mine], ms=7, color=colour, label=f"last bound: {name}", **style)
    where = {row: at for at, row in zip(place.tolist(), order.tolist(), strict=True)}
    for does, marker, name in ((True, "o", "simulated, fits"), (False, "X", "simulated, does not fit")):
        mine = [(where[row], each.step_time_s) for row, each in frontier.simulated.items() if each.fits is does]
        if mine:
            axes.plot(*zip(*mine, strict=True), marker, ms=9, color=COMM, mec="white", label=name, zorder=5)
    axes.axhline(best_s, color=UPDATE, lw=1.2)
    axes.text(1.3, best_s * 0.98, f"best simulated step: {best_s:.2f} s", ha="left", va="top", color=UPDATE)
    axes.set_xscale("log")
    axes.set_ylim(best_s * 0.75, best_s * 2)
    axes.set_xlabel("plans that may fit in memory, by their last lower bound", color=INK)
    axes.set_ylabel("step time, s", color=INK)
    axes.legend(loc="upper left", frameon=False, fontsize=9, markerscale=1.5)
    clean(axes)


PICTURES: dict[str, Callable[[], Figure]] = {"program": program, "folding": folding, "certificate": certificate}


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(PICTURES)}; default all")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    for name in asked.names or PICTURES:
        write_atomic(asked.folder / f"idea_{name}.png", render_figure(PICTURES[name](), "png"))


if __name__ == "__main__":
    main()
