"""A search while it runs: wanted candidates, progress reports, time limit, workers, and a clean end."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from types import FrameType

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.interrupts import must_wait
from simpar.planner.result import Counts
from simpar.workers import Workers

Report = Callable[[str, Counts, float | None], None]
TOP = 5
"""Candidates that are shown by default; at least as many are compared."""
AGAIN_S = 0.05
"""Interval after which an alarm rings again, in case it rang where it is not heard (block entry, destructors)."""
OUTSIDE = (__file__, contextlib.__file__)
"""Files in which the block has not begun or is over: raising there would leave :meth:`SearchProgress.stoppable`."""


def in_words(phase: str, counts: Counts, best: float | None) -> str:
    """What a search is doing: the phase and number of layouts and, once these are bounded, its progress."""
    if not counts.bounded:
        return f"{phase} {counts.space_size:,} layouts" if counts.space_size else phase
    so_far = "" if best is None else f", best {best:.4g}"
    return f"{phase}: {counts.bounded:,} bounded from below, {counts.simulated:,} simulated{so_far}"


class TimeIsUp(KeyboardInterrupt):
    """The time limit of a search has passed; the search ends as if the user had stopped it."""


@dataclass
class SearchProgress:
    """Wishes and state of a running search: it returns the best ``top`` candidates and calls ``report``.

    ``report(phase, counts, best objective or None)`` is called as the search goes on. ``brief`` omits the alternatives
    to the winner; without ``whole``, only those are omitted that the short form of the answer does not show (kinds of
    layouts, points of less memory). A search ends ``time_limit_s`` seconds after this object was made.
    ``interrupted`` is set when the user stops it or the time is up (``timed_out``): the search then returns the best so
    far with its gap. Raises UserError for a limit that is not above 0.
    """

    top: int = TOP
    report: Report = lambda *_: None  # nobody watches
    interrupted: bool = False
    brief: bool = False
    whole: bool = True
    time_limit_s: float | None = None
    timed_out: bool = False
    workers: Workers = field(default_factory=Workers)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise UserError(f"time limit = {self.time_limit_s}: allowed: above 0 s")

    @property
    def stopped(self) -> str | None:
        """Why the search ended early, in words, or None."""
        return ("time limit" if self.timed_out else "interrupted") if self.interrupted else None

    @property
    def is_user_stop(self) -> bool:
        """Whether the user stopped the search."""
        return self.interrupted and not self.timed_out

    @property
    def seconds(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self.started

    def check(self) -> None:
        """Raise TimeIsUp after the limit: for threads and systems without alarms."""
        if self.time_limit_s is not None and self.seconds >= self.time_limit_s:
            raise TimeIsUp

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Turn Ctrl-C and the time limit inside the block into ``interrupted``; code after the block still runs."""
        try:
            with self._alarm():
                yield
        except (KeyboardInterrupt, RuntimeError, ValueError) as stop:
            cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__cause__
            if not isinstance(cause, KeyboardInterrupt):  # e.g. wrapped while a class was created
                raise
            self.interrupted = True
            self.timed_out = isinstance(cause, TimeIsUp)

    @contextmanager
    def _alarm(self) -> Iterator[None]:
        """Set an alarm at the time limit, which raises TimeIsUp wherever the main thread is."""
        rings = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if self.time_limit_s is None or not rings:
            yield
            return
        armed = True

        def ring(_signal: int, frame: FrameType | None) -> None:
            if armed and frame and frame.f_code.co_filename not in OUTSIDE and not must_wait(frame):
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
