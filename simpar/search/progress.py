"""How a search talks while it runs: how many candidates are wanted, progress, its time, its workers, a polite end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from simpar.errors import UserError
from simpar.interrupts import imports
from simpar.search.result import Counts
from simpar.search.workers import Workers

Report = Callable[[str, Counts, float | None], None]
TOP = 5
"""Candidates that are shown, unless more or fewer are asked for; as many are compared where fewer are shown."""
AGAIN_S = 0.05
"""An alarm that rang while nobody could hear it (on the way into or out of the block, in a destructor) rings again."""
OUTSIDE = (__file__, contextlib.__file__)
"""Where the block has not begun yet or is over: what is raised there would leave :meth:`Progress.stoppable` itself."""


def in_words(phase: str, counts: Counts, best: float | None) -> str:
    """What a search does just now: to how many layouts, and once they are bounded how far it is."""
    if not counts.bounded:
        return f"{phase} {counts.space_size:,} layouts" if counts.space_size else phase
    so_far = "" if best is None else f", best {best:.4g}"
    return (
        f"{phase}: {counts.bounded:,} bounded, {counts.swept:,} swept, {counts.simulated:,} simulated{so_far}"
    )


class TimeIsUp(KeyboardInterrupt):
    """The time limit of a search has passed; it ends as if the user had asked for it."""


@dataclass
class Progress:
    """``top`` candidates are wanted; ``report(phase, counts, best objective or None)`` hears about progress.

    ``brief`` leaves out what stands beside the winner (naive choices, the front of time and memory). A search ends
    after ``time_limit_s`` seconds from when this was made. ``interrupted`` is set when the user asked to stop or the
    time is up (``timed_out``): a search then returns the best so far with its gap. Raises UserError for a limit
    that is not above 0.
    """

    top: int = TOP
    report: Report = lambda *_: None  # nobody watches
    interrupted: bool = False
    brief: bool = False
    time_limit_s: float | None = None
    timed_out: bool = False
    workers: Workers = field(default_factory=Workers)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise UserError(f"time limit = {self.time_limit_s}: allowed: above 0 s")

    @property
    def stopped(self) -> str | None:
        """What ended the search early, in words, or None."""
        return ("time limit" if self.timed_out else "interrupted") if self.interrupted else None

    @property
    def is_user_stop(self) -> bool:
        """Whether the user asked to stop."""
        return self.interrupted and not self.timed_out

    @property
    def seconds(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self.started

    def check(self) -> None:
        """Raises TimeIsUp behind the limit: for threads, and systems, in which no alarm rings."""
        if self.time_limit_s is not None and self.seconds >= self.time_limit_s:
            raise TimeIsUp

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Turn Ctrl-C and the time limit inside the block into ``interrupted``; what follows the block still runs."""
        try:
            with self._alarm():
                yield
        except (KeyboardInterrupt, RuntimeError, ValueError) as stop:
            cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__cause__
            if not isinstance(cause, KeyboardInterrupt):  # wrapped: a class was made, a plan written
                raise
            self.interrupted = True
            self.timed_out = isinstance(cause, TimeIsUp)

    @contextmanager
    def _alarm(self) -> Iterator[None]:
        """An alarm at the time limit, which raises TimeIsUp wherever the main thread is."""
        rings = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if self.time_limit_s is None or not rings:
            yield
            return
        armed = True

        def ring(_signal: int, frame: FrameType | None) -> None:
            if armed and frame and frame.f_code.co_filename not in OUTSIDE and not imports(frame):
                raise TimeIsUp

        before = signal.signal(signal.SIGALRM, ring)
        left = self.time_limit_s - self.seconds
        signal.setitimer(signal.ITIMER_REAL, max(left, AGAIN_S), AGAIN_S)
        try:
            yield
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
