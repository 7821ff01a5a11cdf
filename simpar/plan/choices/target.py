"""What a layout is checked against, and what its rules are made of."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.units import Flags


@dataclass(frozen=True)
class Workload:
    """What a layout is checked against."""

    graph: ModelGraph
    training: Training
    world_size: int
    devices_per_node: int


Refusal = tuple[Any, Callable[[], str]]
"""Whether a layout (a bool), or each of many (bool[n]), breaks a rule, and what to say of one that does."""
Refusals = Iterator[Refusal]


def refuse(refusals: Iterable[Refusal]) -> None:
    """Raise UserError for the first rule that one layout breaks."""
    for is_broken, reason in refusals:
        if is_broken:
            raise UserError(reason())


def select_kept(refusals: Iterable[Refusal]) -> Flags:
    """Which layouts break none of the rules: bool of the shape of their columns, 0-dimensional for one layout."""
    result: Flags = np.ones((), dtype=bool)
    for is_broken, _ in refusals:
        result = result & np.logical_not(is_broken)
    return result


def fixed_reason(reason: str) -> Callable[[], str]:
    """A reason that is worded already."""
    return lambda: reason


def format_divisors(number: int) -> str:
    """The divisors of a number up to 64, separated by commas."""
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)
