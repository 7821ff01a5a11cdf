"""How a search talks while it runs: how many candidates are wanted, progress, and a polite end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from simpar.search.result import Counts

Report = Callable[[str, Counts, float | None], None]


def _silent(_phase: str, _counts: Counts, _best: float | None) -> None:
    """Nobody watches."""


@dataclass
class Watch:
    """``top`` candidates are wanted; ``report(phase, counts, best objective or None)`` hears about progress.

    ``brief`` leaves out what stands beside the winner (naive choices, the front of time and memory).
    ``interrupted`` is set when the user asked to stop: a search then returns the best so far with its gap.
    """

    top: int = 5
    report: Report = _silent
    interrupted: bool = False
    brief: bool = False

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Turn Ctrl-C inside the block into ``interrupted``; what follows the block still runs."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
