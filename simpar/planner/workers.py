"""Processes that share the work of a search: forked ones, which inherit this one's memory, or a joblib backend's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from simpar.errors import UserError
from simpar.files import choose

if TYPE_CHECKING:
    from joblib import Parallel

FORK, LOKY = "fork", "loky"
BACKENDS = (FORK, LOKY, "dask", "ray")
MOST_USUAL = 8
"""The default limit of processes: the further ahead a simulation runs, the less likely it is needed."""
SOON_ENOUGH_S = 0.3
"""Seconds of simulation before a search uses other processes: roughly the cost of forking."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class Workers:
    """``jobs`` processes (-1: all cores) of a ``backend``, this process included; with 1 only this process works.

    "fork" copies this process quickly (Linux); the other backends are joblib's. Used as a context manager, joblib's
    processes stay alive between calls. ``patience_s`` are the seconds of shareable work that a search does alone first.
    The number of processes must not change an answer: they are asked ahead of time for what will probably be needed,
    and what was not needed is dropped. Raises UserError for a number that is not allowed and for an unknown or
    uninstalled backend.
    """

    jobs: int = 1
    backend: str = LOKY
    patience_s: float = 0.0
    _pool: Parallel | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        choose(self.backend, BACKENDS, "backend")
        if self.jobs < -1 or self.jobs == 0:
            raise UserError(f"jobs = {self.jobs}: allowed: at least 1, or -1 for all cores")
        if self.backend == FORK and not can_fork():
            raise UserError(f"backend fork: not on {sys.platform}; allowed: {', '.join(BACKENDS[1:])}")

    @staticmethod
    def usual() -> Workers:
        """As many processes as cores, up to MOST_USUAL, if processes can be forked; otherwise this one alone."""
        return Workers(min(num_cores(), MOST_USUAL), FORK, SOON_ENOUGH_S) if can_fork() else Workers()

    @property
    def at_once(self) -> int:
        """The number of calls that run in parallel."""
        if self.jobs > 0:
            return self.jobs
        if self.backend == FORK:
            return num_cores()
        from joblib import effective_n_jobs

        self._started()
        return max(int(effective_n_jobs(self.jobs)), 1)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool = None
        self._open.close()

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The results of a function for items, in their order."""
        return list(self.stream(function, items) if len(items) > 1 else map(function, items))

    def stream(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """:meth:`map`, yielding each result as soon as it and those before it are there; on dask and ray at the end."""
        if self.jobs == 1:
            yield from map(function, items)
        elif self.backend == FORK:
            with Forks(function, self.at_once) as forks:
                yield from forks.map(items)
        else:
            from joblib import delayed

            yield from self._started()(delayed(function)(item) for item in items)

    def _started(self) -> Parallel:
        """The pool of joblib's processes."""
        if self._pool is None:
            from joblib import Parallel

            self._open.enter_context(backend_of(self.backend))
            lazily = "generator" if self.backend == LOKY else "list"
            pool = Parallel(n_jobs=self.jobs, return_as=lazily, batch_size=1)
            self._pool = self._open.enter_context(pool)
        return self._pool


class Forks(Generic[Item, Answer]):
    """Copies of this process, forked at the first call, that inherit a function and everything it refers to.

    Only items and answers are sent. When the context ends the copies are gone, whatever they were doing.
    """

    def __init__(self, function: Callable[[Item], Answer], processes: int) -> None:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        self._pool = ProcessPoolExecutor(processes, get_context("fork"), _inherit, (function,))
        self._mine: list[Any] = []

    def __enter__(self) -> Forks[Item, Answer]:
        return self

    def submit(self, item: Item) -> Future[Answer]:
        """A future of the answer for an item."""
        from multiprocessing import active_children

        if self._mine:
            return self._pool.submit(_answer, item)
        others = set(active_children())
        found: Future[Answer] = self._pool.submit(_answer, item)
        self._mine = [each for each in active_children() if each not in others]
        return found

    def map(self, items: Iterable[Item]) -> Iterator[Answer]:
        """The answers for items, in their order."""
        for future in [self.submit(item) for item in items]:
            yield future.result()

    def __exit__(self, *_error: object) -> None:
        for each in self._mine:
            each.kill()
        self._pool.shutdown(cancel_futures=True)


class _Inherited:
    """The function in a forked process: calls sent to that process can only name attributes of a module."""

    function: Callable[[Any], Any]


def _inherit(function: Callable[[Any], Any]) -> None:
    """Set the function in a forked process, and leave Ctrl-C to the process that forked it."""
    _Inherited.function = staticmethod(function)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answer(item: Any) -> Any:
    return _Inherited.function(item)


def can_fork() -> bool:
    """Whether forking a process that has already used its libraries is safe: on Linux."""
    return sys.platform == "linux"


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if can_fork() else os.cpu_count() or 1


@contextmanager
def backend_of(name: str) -> Iterator[None]:
    """Use the joblib backend of a name in a context. Raises UserError for one that is not installed."""
    from joblib import parallel_config

    with ExitStack() as around:
        try:
            if name == "dask":
                from distributed import Client

                around.enter_context(Client(set_as_default=True))
            elif name == "ray":
                import ray
                from ray.util.joblib import register_ray

                ray.init(ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
                register_ray()
        except ImportError as error:
            raise UserError(f"backend {name}: not installed ({error}); pip install {name}") from None
        around.enter_context(parallel_config(backend=name))
        yield
