"""Which rank is where: its node, its coordinates, and the process groups that it communicates in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from simpar.report.table import ReportTable, text

if TYPE_CHECKING:
    from simpar.plan.mesh import Mesh

MOST_RANKS, MOST_GROUPS = 64, 8


def rank_table(mesh: Mesh, devices_per_node: int) -> ReportTable:
    """A row a rank, of the first MOST_RANKS ones: node, device on it, coordinate along every axis of several ranks."""
    shown = np.arange(min(mesh.world_size, MOST_RANKS))
    axes = [axis for axis in mesh.order if getattr(mesh, axis) not in (None, 1)]
    places = mesh.coordinates(shown)
    table = ReportTable(["rank", "node", "device", *axes])
    for rank in shown.tolist():
        node, device = divmod(rank, devices_per_node)
        table.add(*map(str, (rank, node, device, *(int(places[axis][rank]) for axis in axes))))
    return table


def group_table(mesh: Mesh) -> ReportTable:
    """A row a kind of groups of several ranks: how many there are, their size, and the first MOST_GROUPS of them."""
    kinds = [*mesh.order, *(("ep", "edp") if mesh.ep > 1 else ())]
    table = ReportTable([text("groups"), "number", "ranks of each", text("the first of them")])
    for kind in kinds:
        groups = mesh.groups(kind)
        if groups.shape[1] > 1:
            listed = [*(run_words(group) for group in groups[:MOST_GROUPS].tolist()), *_more(len(groups))]
            table.add(kind, str(len(groups)), str(groups.shape[1]), "  ".join(listed))
    return table


def _more(number: int) -> Iterator[str]:
    if number > MOST_GROUPS:
        yield "..."


def run_words(ranks: Sequence[int]) -> str:
    """Ranks as short as they can be said: "0-3", "0,4,8" or "0,8..56".

    >>> run_words([0, 1, 2, 3]), run_words([0, 4]), run_words([0, 8, 16, 24, 32])
    ('0-3', '0,4', '0,8..32')
    """
    steps = {b - a for a, b in pairwise(ranks)}
    if steps == {1} and len(ranks) > 2:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(steps) == 1 and len(ranks) > 4:
        return f"{ranks[0]},{ranks[1]}..{ranks[-1]}"
    return ",".join(map(str, ranks))
