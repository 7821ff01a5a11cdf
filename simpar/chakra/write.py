"""The files of an export for ASTRA-sim: a trace per rank, process groups, system, network, and instructions."""

import json
from collections.abc import Iterator

import simpar
from simpar.chakra.fabric import dimensions, list_unexpressed, network_text, system_text
from simpar.chakra.messages import trace_files
from simpar.chakra.step import StepTraces, step_traces
from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.choices.mesh import DEGREES
from simpar.program.ir.program import check_countable
from simpar.program.job import TrainingJob
from simpar.program.lower import outline
from simpar.program.perturbation import Perturbation
from simpar.units import NS_PER_S, format_seconds, to_ns

NAME, DESCRIPTION = "chakra", "execution traces (mlcommons/chakra) that ASTRA-sim and simpar replay"
PREFIX = "trace"
GROUPS, SYSTEM, NETWORK, MEMORY, PLAN, PAGE = (
    "comm_groups.json", "system.json", "network.yml", "memory.json", "plan.json", "README.md",
)  # fmt: skip
MOST_RANKS, MOST_OPS = 1024, 1_000_000
"""Limits of an export: there is one file per rank, and an op takes about 90 bytes and 0.06 ms."""


@dataclass(frozen=True)
class ExportedTraces:
    """Files by name, sentences on what was lost, and notes for the user."""

    files: dict[str, bytes]
    step_time_s: float
    lost: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def said(self) -> str:
        """The step in words."""
        return f"One step, {format_seconds(self.step_time_s)} as simulated."


def export_traces(job: TrainingJob, cluster: Cluster, *, lossy: bool = False) -> ExportedTraces:
    """The files of one step of a job.

    ``job`` is made by :func:`simpar.simulation.make_job`. Raises UserError for more ranks or ops than MOST_RANKS and
    MOST_OPS, for replicas that do not step together, and, unless ``lossy``, for operations for which execution traces
    have no node.
    """
    step, time_ns = simulate_step(job, cluster)
    lost = tuple(
        f"{name.replace('_', ' ')}: no node for it in traces that ASTRA-sim replays; written as work of the "
        "host that takes as long and waits for no other rank"
        for name in step.unwritten
    )
    if lost and not lossy:
        raise UserError(
            f"{NAME} cannot express {', '.join(step.unwritten)}: ASTRA-sim replays all-reduces, all-gathers, "
            "reduce-scatters, all-to-alls, broadcasts and messages (--lossy writes the others as work of the host)"
        )
    notes = tuple(_notes(job, cluster, step))
    dims = dimensions(cluster)
    files = trace_files(step.ranks, PREFIX)
    groups = {name: list(members) for name, members in step.groups.items()}
    texts = {
        GROUPS: json.dumps(groups) + "\n",
        SYSTEM: system_text(cluster, len(dims or ())),
        MEMORY: json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}) + "\n",
        PLAN: json.dumps(job.layout.to_plan().model_dump(mode="json"), indent=2) + "\n",
    }
    if dims:
        texts[NETWORK] = network_text(dims)
    texts[PAGE] = _page(job, cluster, time_ns / NS_PER_S, lost, notes)
    files |= {name: text.encode() for name, text in texts.items()}
    return ExportedTraces(files, time_ns / NS_PER_S, lost, notes)


def simulate_step(job: TrainingJob, cluster: Cluster) -> tuple[StepTraces, int]:
    """(Traces of a step, its duration in ns), simulated with every rank as its own class."""
    world, layout = cluster.world_size, job.layout
    if layout.replicas_are_independent:
        raise UserError(
            "plan.sync: replicas that do not step together (servers among them) have no step to trace; allowed: bsp "
            "without servers"
        )
    if world > MOST_RANKS:
        raise UserError(
            f"{world:,} ranks: execution traces are a file a rank; allowed: {MOST_RANKS:,} (fewer nodes and a smaller "
            "plan.dp keep what one replica does)"
        )
    planned = outline(
        job, cluster, schedule_of(layout, job.training), perturbation=Perturbation(fold=False), collapse=False
    )
    if len(planned) > MOST_OPS:
        raise UserError(
            f"{len(planned):,} ops on {world:,} ranks: execution traces write all of them; allowed: {MOST_OPS:,} "
            "(fewer microbatches, that is a smaller training.global_batch, or fewer ranks)"
        )
    lowered = planned.lowered()
    check_countable(lowered.program)
    timing = choose_engine("auto", lowered.program)(lowered.program)
    return step_traces(lowered, timing), timing.makespan_ns + int(to_ns(job.stack.launch.step_overhead_s))


def _notes(job: TrainingJob, cluster: Cluster, step: StepTraces) -> Iterator[str]:
    joined = "kernels shorter than 50 us are joined with the next ones; times are whole microseconds"
    yield f"{step.num_nodes:,} nodes; {joined}"
    if job.graph.is_mixture and job.layout.mesh.ep > 1 and job.layout.token_dispatch == "per_node":
        yield "a dispatch of tokens by node is written as the all-to-all of its copies of tokens by rank"
    yield from list_unexpressed(cluster)


def _page(job: TrainingJob, cluster: Cluster, step_time_s: float, lost: tuple[str, ...], notes: tuple[str, ...]) -> str:
    """The text on how to run the files, and on what they do not express."""
    network = NETWORK if dimensions(cluster) else "YOUR_NETWORK.yml"
    layout = ", ".join(f"{name} {getattr(job.layout.mesh, name)}" for name in DEGREES)
    devices = f"{cluster.world_size} x {cluster.devices[0].name}"
    files = f"`{PREFIX}.RANK.et` are nodes of mlcommons/chakra (protocol buffers, each with its length before it)"
    lines = [
        f"# {job.graph.name} as execution traces",
        "",
        f"- Written by simpar {simpar.__version__}: a step on {devices} ({layout}), stack {job.stack.name}.",
        f"- simpar takes {format_seconds(step_time_s)} for it. A replay with the durations in the traces ends there.",
        f"- {files}, `{GROUPS}` the ranks of every `pg_name`.",
        "",
        "ASTRA-sim (analytical network) takes durations of kernels from the traces and times communication itself:",
        "",
        "    AstraSim_Analytical_Congestion_Unaware \\",
        f"        --workload-configuration={PREFIX} --comm-group-configuration={GROUPS} \\",
        f"        --system-configuration={SYSTEM} --network-configuration={network} \\",
        f"        --remote-memory-configuration={MEMORY}",
    ]
    for title, rows in (("Lost", lost), ("Notes", notes)):
        if rows:
            lines += ["", f"## {title}", "", *(f"- {row}" for row in rows)]
    return "\n".join(lines) + "\n"
