"""Which ranks may change places: a layout's symmetry, found in its group lists and proved before it is used.

Ranks are numbers of mixed radix whose digits are the coordinates of mesh and fabric at once: device in a node,
node under a leaf, leaf, pipeline rank, and so on. Where any two values of a digit may be exchanged (in all
ranks at once) without a change of groups, links, colours and loads, ranks that differ in that digit alone
behave alike. Colour refinement then needs only one rank of each orbit, and the partition that it finds on the
orbits is the coarsest equitable partition of all ranks: exchanges keep the graph, hence the colours of each round.

Symmetry is not declared. A digit is *regular* if every step along it either stays within a block of the fabric or
moves whole blocks, and *free* if every kind of group is mapped to itself as well. Values are exchanged only within
*cells*: values whose ranks have the same colours and link capacities. A slow device puts its digit values into a cell
of their own, and changes nothing else. That loads are symmetric is checked where they are evaluated
(:mod:`simpar.program.fold.incidence`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.units import Flags, Ints, unique


@dataclass(frozen=True)
class GroupPattern:
    """Groups of one kind that are translates of each other: group ``index[i]`` is ``first[i] + offset``.

    ``directed`` groups tell their members apart by position.
    """

    index: Ints
    first: Ints
    offset: Ints
    directed: bool


def patterns(groups: Ints, *, directed: bool) -> list[GroupPattern]:
    """The groups int64[G, N] of a kind by their offsets from the first member."""
    first = groups[:, 0]
    return _alike(np.arange(len(groups)), first, groups.T - first, directed=directed)


def _alike(index: Ints, first: Ints, columns: Ints, *, directed: bool) -> list[GroupPattern]:
    """A pattern for each distinct column of ``columns`` int64[n, G], whose first rows are offsets of the members."""
    result: list[GroupPattern] = []
    while len(index):
        same = (columns == columns[:, :1]).all(axis=0)
        result.append(GroupPattern(index[same], first[same], columns[:, 0], directed))
        index, first, columns = index[~same], first[~same], columns[:, ~same]
    return result


@dataclass(frozen=True)
class Digits:
    """Digit d of rank r is ``r // stride[d] % size[d]``, fastest varying first."""

    stride: tuple[int, ...]
    size: tuple[int, ...]

    @staticmethod
    def cut(world: int, wanted: Sequence[int]) -> Digits:
        """Digits that begin at as many of the wanted strides as fit together; earlier ones take precedence.

        The greatest common divisors of pairs are tried too: strides that do not divide each other still share blocks.
        """
        every = [*wanted, *(math.gcd(a, b) for a in wanted for b in wanted)]
        chain = {1, world}
        for stride in every:
            if world % stride == 0 and all(stride % c == 0 or c % stride == 0 for c in chain):
                chain.add(stride)
        strides = sorted(chain)
        sizes = [after // before for before, after in pairwise(strides)]
        return Digits(tuple(strides[:-1]), tuple(sizes))

    def __len__(self) -> int:
        return len(self.size)

    def of(self, ranks: Ints) -> Ints:
        """int64[digits, n] for ranks int64[n]."""
        strides, sizes = (np.array(column)[:, None] for column in (self.stride, self.size))
        return np.asarray(ranks // strides % sizes, dtype=np.int64)


@dataclass(frozen=True)
class Symmetry:
    """Permutations of digit values that leave a layout as it is.

    ``regular`` bool[digits]: a group whose members share such a digit costs the same when it is moved along it.
    ``first[d]`` int64[size]: for every value of digit d, the smallest value with which it may be exchanged.
    """

    digits: Digits
    regular: Flags
    first: tuple[Ints, ...]

    @cached_property
    def free(self) -> Flags:
        """Which digits have values that may be exchanged: bool[digits]."""
        return np.array([len(unique(first)) < len(first) for first in self.first], dtype=bool)

    @cached_property
    def orbits(self) -> Ints:
        """The lowest rank of every rank's orbit, int64[world]."""
        lowest = np.zeros(1, dtype=np.int64)
        for stride, first in zip(self.digits.stride, self.first, strict=True):
            lowest = (first[:, None] * stride + lowest[None, :]).ravel()
        return lowest

    @cached_property
    def is_lowest(self) -> Flags:
        """Whether a rank is the lowest of its orbit, which it stands for: bool[world]."""
        lowest: Flags = self.orbits == np.arange(len(self.orbits))
        return lowest

    def representative_groups(self, pattern: GroupPattern) -> Ints:
        """Indices of groups of a pattern, one of each orbit."""
        varying = self.free & ~fixed_digits(pattern, self.digits)
        origin = self.digits.of(pattern.first[:1])[:, 0]
        within = int((np.array(self.digits.stride) * origin)[varying].sum())
        return np.flatnonzero(self.is_lowest[pattern.first - within])

    def num_like(self, ranks: Ints, which: Flags) -> Ints:
        """How many ranks each of ``ranks`` int64[n] stands for along digits ``which``, bool[digits] or [digits, n]."""
        which = which if which.ndim == 2 else which[:, None]
        number = np.ones(len(ranks), dtype=np.int64)
        for d in np.flatnonzero(self.free & which.any(axis=1)):
            value, first = ranks // self.digits.stride[d] % self.digits.size[d], self.first[d]
            cell = np.bincount(first, minlength=len(first))[first]  # values that one may be exchanged with
            number *= np.where(which[d], cell[value], 1)
        return number

    def fix(self, digits: Flags) -> Symmetry:
        """The symmetry with all values of some digits kept apart."""
        pairs = zip(self.first, digits, strict=True)
        return replace(self, first=tuple(np.arange(len(first)) if fixed else first for first, fixed in pairs))


def no_symmetry(world: int) -> Symmetry:
    """No symmetry: every rank is its own orbit."""
    return Symmetry(Digits((1,), (world,)), np.zeros(1, dtype=bool), (np.arange(world),))


def find_symmetry(
    world: int, kinds: Sequence[Sequence[GroupPattern]], cluster: Cluster, colours: Sequence[NDArray[np.generic]]
) -> tuple[Symmetry, list[list[GroupPattern]]]:
    """The symmetry of group kinds on a cluster, and the patterns of each kind by the digits that they change.

    ``colours`` (each of shape [world]) tell ranks apart.
    """
    every = [pattern for kind in kinds for pattern in kind]
    periods = [period for period in cluster.periods if period < world]
    largest_first = sorted((p for p in every if not p.directed), key=lambda p: -len(p.offset))
    wanted = [stride for pattern in largest_first for stride in _strides(pattern.offset)]
    digits = Digits.cut(world, [*dict.fromkeys([*wanted, *periods])])
    split = [[part for pattern in kind for part in _without_carries(pattern, digits)] for kind in kinds]
    regular = _regular(digits, periods, cluster.rigid_ranks)
    free = regular.copy()
    for pattern in (pattern for kind in split for pattern in kind):
        free &= _kept(pattern, digits, free)
    first = tuple(_cells(colours, digits, d) if free[d] else np.arange(size) for d, size in enumerate(digits.size))
    return Symmetry(digits, regular, first), split


def _strides(offset: Ints) -> list[int]:
    """For offsets that are a sum of arithmetic progressions, the stride and the length in ranks of each of them."""
    offset, result, covered = np.sort(offset), [], 1
    while covered < len(offset):
        every = offset[::covered]
        stride = int(every[1] - every[0])
        uneven = np.flatnonzero(np.diff(every) != stride)
        many = int(uneven[0]) + 1 if len(uneven) else len(every)
        result += [stride, stride * many]
        covered *= many
    return result


def _without_carries(pattern: GroupPattern, digits: Digits) -> list[GroupPattern]:
    """The pattern in parts; within a part, groups turn into each other digit by digit, without carries."""
    members, first = digits.of(pattern.first[0] + pattern.offset), digits.of(pattern.first)
    low = members.min(axis=1) + first.min(axis=1) - first[:, 0]
    high = members.max(axis=1) + first.max(axis=1) - first[:, 0]
    if (low >= 0).all() and (high < np.array(digits.size)).all():
        return [pattern]
    size = len(pattern.offset)
    ranks = pattern.first + pattern.offset[:, None]
    change = digits.of(ranks.ravel()).reshape(len(digits), *ranks.shape) - first[:, None]
    rows = np.concatenate([ranks - pattern.first, change.reshape(-1, ranks.shape[1])])
    parts = _alike(pattern.index, pattern.first, rows, directed=pattern.directed)
    return [replace(part, offset=part.offset[:size]) for part in parts]


def _regular(digits: Digits, periods: Sequence[int], rigid: int) -> Flags:
    """Digits that move whole blocks of the fabric or stay inside one, for every kind of block: bool[digits]."""
    return np.array(
        [
            stride >= rigid and all(stride % block == 0 or block % (stride * size) == 0 for block in periods)
            for stride, size in zip(digits.stride, digits.size, strict=True)
        ],
        dtype=bool,
    )


def fixed_digits(pattern: GroupPattern, digits: Digits) -> Flags:
    """Digits that all members of a group share, the same ones in every group of the pattern: bool[digits]."""
    members = digits.of(pattern.first[0] + pattern.offset)
    same: Flags = (members == members[:, :1]).all(axis=1)
    return same


def _kept(pattern: GroupPattern, digits: Digits, asked: Flags) -> Flags:
    """Digits among ``asked`` whose values may be permuted so that every group maps to a group of the pattern."""
    fixed = fixed_digits(pattern, digits)
    members = pattern.first[0] + pattern.offset
    if _num_distinct(pattern.first) < len(pattern.first):
        return np.zeros(len(digits), dtype=bool)
    kept = asked.copy()
    for d in np.flatnonzero(asked):
        size, stride = digits.size[d], digits.stride[d]
        if fixed[d]:
            rest = pattern.first - pattern.first // stride % size * stride
            kept[d] = _num_distinct(rest) * size == len(pattern.first)
        else:
            rest = members - members // stride % size * stride
            kept[d] = not pattern.directed and _num_distinct(rest) * size == len(members)
    return kept


def _num_distinct(ranks: Ints) -> int:
    return int(np.count_nonzero(np.bincount(ranks)))


def _cells(colours: Sequence[NDArray[np.generic]], digits: Digits, d: int) -> Ints:
    """For every value of digit ``d`` the smallest value whose ranks have the same colours: int64[size]."""
    size, stride = digits.size[d], digits.stride[d]
    cell = np.zeros(size, dtype=np.int64)
    for colour in colours:
        slices = colour.reshape(-1, size, stride)
        if not (slices == slices[:, :1]).all():
            rows = np.ascontiguousarray(np.moveaxis(slices, 1, 0)).reshape(size, -1)
            cell = np.stack([cell, np.unique(rows, axis=0, return_inverse=True)[1].ravel()])
            cell = np.unique(cell, axis=1, return_inverse=True)[1].ravel()
    first = np.unique(cell, return_index=True)[1]
    return first[cell]
