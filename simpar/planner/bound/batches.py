"""Rows that are bounded together; what keys and configurations decide is evaluated once per distinct pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.planner.bound.data_parallel import BlockCollectives, Configuration
from simpar.units import Floats, Ints

if TYPE_CHECKING:
    from simpar.planner.bound.steps import StepBounds


@dataclass
class RowBatch:
    """Rows, with the quantities that keys and configurations decide, evaluated once per distinct pair of the two."""

    bounds: StepBounds
    rows: Ints
    _columns: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> Ints:
        """Key of the passes of every row."""
        return self.bounds.pipelines.blocks.key[self.rows]

    @cached_property
    def _unique(self) -> tuple[Ints, Ints]:
        return np.unique(self.bounds.configurations.index[self.rows], return_inverse=True)

    @cached_property
    def configurations(self) -> list[Configuration]:
        """The distinct configurations."""
        return [self.bounds.configurations[one] for one in self._unique[0].tolist()]

    @property
    def configuration(self) -> Ints:
        """The index of every row's configuration."""
        return self._unique[1]

    @cached_property
    def alike_updates(self) -> Ints:
        """For every configuration, the index of the first one with the same update."""
        known: dict[object, int] = {}
        names = [*(each.name for each in fields(DecidedNumerics)), "host_share", "servers", "optimizer_kernels"]
        each = [
            (*(getattr(one.sync.job.layout, name) for name in names), one.sync.arrays_host_s)
            for one in self.configurations
        ]
        return np.array([known.setdefault(one, at) for at, one in enumerate(each)], dtype=np.int64)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints, Ints]:
        """Keys and configurations of the distinct pairs, and the index of every row's pair."""
        code = self.key * len(self.configurations) + self.configuration
        unique, index = np.unique(code, return_inverse=True)
        return unique // len(self.configurations), unique % len(self.configurations), index

    def each(self, name: Any, value: Callable[[Configuration], Any]) -> Any:
        """``value`` of every configuration as an array; the result is kept under ``name``."""
        if name not in self._columns:
            self._columns[name] = self.bounds.configurations.each(name, value, self._unique[0])
        return self._columns[name]

    def moves(self, name: str, letter: str, *, boundary: bool) -> Floats:
        """A field of Moves for the passes of a letter, for every configuration, [configurations, kinds]."""
        collectives = self.each(("moves", letter, boundary), lambda one: one.moves(letter, boundary=boundary))
        return np.asarray(collectives[:, BlockCollectives._fields.index(name)])

    def pass_times(self, mine: Ints, letter: str, *, boundary: bool) -> Floats:
        """Times of passes by kind, slowed by what runs beside them, [len(mine), kinds]."""
        known = letter, boundary
        keys, configuration, index = self._pairs
        if known not in self._columns:
            blocks = self.bounds.pipelines.blocks
            busy = self.moves("occupied", letter, boundary=boundary)
            times = blocks.slowed_ns(keys, letter, busy[configuration])
            self._columns[known] = times.astype(np.float64)
        return np.asarray(self._columns[known][index[mine]])

    def inside(self, letter: str) -> Floats:
        """Seconds that collectives inside passes take of each of rank 0's links, [n, kinds, links]."""
        name = "inside", letter
        if name not in self._columns:
            self._columns[name] = self.bounds.pipelines.blocks.drains_s(self.key, letter)
        return np.asarray(self._columns[name])
