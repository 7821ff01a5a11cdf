"""The time of one collective by size and number of nodes: what nccl-tests would print, from the model's own prices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.cost.collectives.algorithm import bus_factor
from simpar.cost.collectives.algorithms import ALGORITHMS, OPS
from simpar.cost.collectives.choice import choose_fastest, offers
from simpar.cost.collectives.lines import Line
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.catalogue import load_cluster
from simpar.report.table import ReportTable
from simpar.units import GIGA, format_seconds, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simpar.hardware.cluster import Cluster
    from simpar.units import Ints

TIMED = tuple(op for op in OPS if op != "dispatch")
"""What is timed: a dispatch is of a routing, which a size alone does not say."""
MESSAGES = ("send", "permute")
"""Operations in which a rank sends all of its buffer; a send is between the two ranks that are farthest apart."""


@dataclass(frozen=True)
class TimedCollective:
    """One collective of ``ranks`` ranks on ``nodes`` nodes, alone on the network.

    ``size_bytes`` is the whole tensor, as ``nccl-tests`` has it: what an all-gather produces, what a reduce-scatter
    consumes. ``sent_bytes`` is what a rank sends by the ring's count, 2 (N - 1) / N of it for an all-reduce, whatever
    ``algorithm`` is the fastest; ``bus_bytes_per_s`` is that over the time.
    """

    op: str
    nodes: int
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    time_s: float

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in a ring."""
        return self.size_bytes * (1.0 if self.op in MESSAGES else bus_factor(self.op, self.ranks))

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth; 0 where nothing is sent."""
        return self.sent_bytes / self.time_s if self.time_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units."""
        return {**vars(self), "sent_bytes": self.sent_bytes, "bus_bytes_per_s": self.bus_bytes_per_s}


def time_collectives(
    op: str, hardware: str, sizes_bytes: Sequence[float], nodes: Sequence[int], *, algorithm: str = "auto"
) -> list[TimedCollective]:
    """Every size on every number of nodes, all devices of them taking part.

    Raises UserError for unknown names, and for an algorithm that cannot run the operation there.

    >>> [one] = time_collectives("all_reduce", "dgx-h100", [256e6], [1])
    >>> one.ranks, one.sent_bytes
    (8, 448000000.0)
    """
    choose(op, TIMED, "collective")
    if algorithm != "auto":
        choose(algorithm, ALGORITHMS, "algorithm")
    rows = []
    for count in nodes:
        cluster = load_cluster(hardware, count)
        group = _group(op, cluster)
        lines = [line for line in offers(op, group, cluster) if algorithm in ("auto", line.algorithm)]
        if not lines:
            offered = dict.fromkeys(line.algorithm for line in offers(op, group, cluster))
            raise UserError(
                f"--algorithm {algorithm}: does not run {op} over {count} x {hardware}; allowed: {', '.join(offered)}"
            )
        rows += [_timed(op, count, len(group), size, choose_fastest(lines, size)) for size in sizes_bytes]
    return rows


def _group(op: str, cluster: Cluster) -> Ints:
    """The ranks that take part. Raises UserError for one device."""
    if cluster.world_size < 2:
        raise UserError(f"--nodes {cluster.nodes}: {op} of one device sends nothing; allowed: 2 devices or more")
    every = np.arange(cluster.world_size)
    return every[[0, -1]] if op == "send" else every


def _timed(op: str, nodes: int, ranks: int, size_bytes: float, line: Line) -> TimedCollective:
    seconds = float(line.time_s(size_bytes))
    return TimedCollective(op, nodes, ranks, float(size_bytes), line.algorithm, line.protocol, seconds)


def collective_table(rows: Sequence[TimedCollective]) -> ReportTable:
    """A row a size and number of nodes."""
    table = ReportTable(["nodes", "GPUs", "size", "sent per rank", "time", "bus GB/s", "algorithm", "protocol"])
    for row in rows:
        sizes = (with_unit(size, "bytes", digits=3) for size in (row.size_bytes, row.sent_bytes))
        speed = format_seconds(row.time_s), f"{row.bus_bytes_per_s / GIGA:.3g}"
        table.add(str(row.nodes), str(row.ranks), *sizes, *speed, row.algorithm, row.protocol)
    return table


def save_collective_plot(rows: Sequence[TimedCollective], path: str | Path) -> None:
    """Draw bus bandwidth by size, a line a number of nodes, as .png, .svg, .pdf or .html. Raises UserError."""
    from simpar.report.figures import save_figure

    save_figure(lambda: plot_collectives(rows), path, rows[0].op)


def plot_collectives(rows: Sequence[TimedCollective]) -> Figure:
    """Bus bandwidth over size; over nodes, if there is one size only."""
    from simpar.report.figures import canvas
    from simpar.report.palette import INK, SERIES

    figure, axes = canvas(4.2, width=8.0)
    sizes = dict.fromkeys(row.size_bytes for row in rows)
    if len(sizes) == 1:
        axes.plot([row.ranks for row in rows], [row.bus_bytes_per_s / GIGA for row in rows], "o-", color=SERIES[0])
        axes.set_xlabel(f"GPUs ({with_unit(rows[0].size_bytes, 'bytes', digits=3)})", color=INK)
        axes.set_xscale("log", base=2)
        axes.set_xticks([row.ranks for row in rows], [str(row.ranks) for row in rows])
    else:
        marks = "osD^v<>P"
        for number, nodes in enumerate(dict.fromkeys(row.nodes for row in rows)):
            mine = [row for row in rows if row.nodes == nodes]
            axes.plot(
                [row.size_bytes for row in mine],
                [row.bus_bytes_per_s / GIGA for row in mine],
                f"{marks[number % len(marks)]}-",
                color=SERIES[number % len(SERIES)],
                label=f"{nodes} node{'s' * (nodes > 1)}, {mine[0].ranks} GPUs",
            )
        axes.set_xlabel("size", color=INK)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(sizes), [with_unit(size, "bytes", digits=3) for size in sizes], rotation=30)
        axes.legend(frameon=False)
    axes.set_ylabel("bus bandwidth, GB/s", color=INK)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(rows[0].op, loc="left", fontsize=10, color=INK)
    return figure
