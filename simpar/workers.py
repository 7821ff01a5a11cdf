"""Processes that share work, such as that of a search: copies of this one, or the workers of a dask cluster."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import choose

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

LOCAL, DASK = "local", "dask"
BACKENDS = (LOCAL, DASK)
MOST_USUAL = 8
"""The default limit of processes: the further ahead a simulation runs, the less likely it is needed."""
SOON_ENOUGH_S = 0.3
"""Seconds of simulation before a search uses other processes: roughly the cost of forking."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Workers:
    """``jobs`` processes (-1: all cores) of a ``backend``, this process included; with 1 only this process works.

    "local" processes are forks of this one on Linux and started anew elsewhere; "dask" ones are those of the cluster at
    DASK_SCHEDULER_ADDRESS, or else of one on this machine. ``patience_s`` are the seconds of shareable work that a
    search does alone first. The number of processes must not change an answer: they are asked ahead of time for what
    will probably be needed, and what was not needed is dropped. Raises UserError for a number that is not allowed and
    for an unknown or uninstalled backend.
    """

    jobs: int = 1
    backend: str = LOCAL
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        choose(self.backend, BACKENDS, "backend")
        if self.jobs < -1 or self.jobs == 0:
            raise UserError(f"jobs = {self.jobs}: allowed: at least 1, or -1 for all cores")

    @staticmethod
    def usual() -> Workers:
        """As many processes as cores, up to MOST_USUAL, if processes can be forked; otherwise this one alone."""
        return Workers(min(num_cores(), MOST_USUAL), patience_s=SOON_ENOUGH_S) if can_fork() else Workers()

    def pool(self, function: Callable[[Item], Answer], *, beside: bool = False) -> Pool[Item, Answer]:
        """Processes that call a function; ``beside`` this process, which works as well, there is one less."""
        if self.backend == DASK:
            return DaskWorkers(function, self.jobs)
        return Processes(function, max((num_cores() if self.jobs < 0 else self.jobs) - beside, 1))

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The results of a function for items, in their order."""
        return list(self.stream(function, items) if len(items) > 1 else map(function, items))

    def stream(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """:meth:`map`, yielding each result as soon as it and those before it are there.

        Items that a killed process leaves, as when memory runs out, are done by this one.
        """
        left, alone_s = deque(items), 0.0
        while left and (self.jobs == 1 or alone_s < self.patience_s):
            began = perf_counter()
            answer = function(left.popleft())
            alone_s += perf_counter() - began
            yield answer
        if not left:
            return
        from concurrent.futures import BrokenExecutor

        with suppress(BrokenExecutor), self.pool(function) as pool:
            for future in [pool.submit(item) for item in left]:
                answer = future.result()
                left.popleft()
                yield answer
        yield from map(function, left)


class Pool(ABC, Generic[Item, Answer]):
    """Processes that call one function for items, a context manager.

    ``size`` calls run at once. ``tells_begun``: a call that has begun cannot be cancelled, so that cancelling tells.
    """

    size: int
    tells_begun: bool

    def __enter__(self) -> Pool[Item, Answer]:
        return self

    @abstractmethod
    def __exit__(self, *_error: object) -> None: ...

    @abstractmethod
    def submit(self, item: Item) -> Future[Answer]:
        """A future of the answer for an item."""


class Processes(Pool[Item, Answer]):
    """Processes of this machine, started at the first call. On Linux they are forks, which inherit the function.

    Only items and answers are sent. When the context ends the processes are gone, whatever they were doing.
    """

    tells_begun = True

    def __init__(self, function: Callable[[Item], Answer], size: int) -> None:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        self.size = size
        context = get_context("fork" if can_fork() else "spawn")
        self._executor = ProcessPoolExecutor(size, context, _begin, (function,))

    def submit(self, item: Item) -> Future[Answer]:
        """A future of the answer for an item."""
        return self._executor.submit(_call_own, item)

    def __exit__(self, *_error: object) -> None:
        """End the processes, also one that is writing an answer: the end of what it wrote is the end of reading it.

        The reader of answers waits for all of one that has begun, as long as anybody might still write, and this
        process holds an end to write to itself. A shutdown waits for that reader.
        """
        for process in list((self._executor._processes or {}).values()):
            process.kill()
        self._executor._result_queue._writer.close()  # type: ignore[attr-defined]
        self._executor.shutdown(cancel_futures=True)


class _Own:
    """The function of this process: calls that are sent to it can only name attributes of a module."""

    function: Callable[[Any], Any]


def _begin(function: Callable[[Any], Any]) -> None:
    """Set the function of a new process, and leave Ctrl-C to the process that started it."""
    _Own.function = staticmethod(function)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _call_own(item: Any) -> Any:
    return _Own.function(item)


class DaskWorkers(Pool[Item, Answer]):
    """The workers of a dask cluster, to each of which the function is sent once; at most ``jobs`` calls (-1: any)."""

    tells_begun = False

    def __init__(self, function: Callable[[Item], Answer], jobs: int) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise UserError(f"backend {DASK}: not installed ({error}); pip install distributed") from None
        self._client = Client(set_as_default=False)
        self._function = self._client.scatter(function, broadcast=True)
        self._executor: Executor = self._client.get_executor()
        self.size = jobs if jobs > 0 else max(sum(self._client.ncores().values()), 1)

    def submit(self, item: Item) -> Future[Answer]:
        """A future of the answer for an item."""
        return self._executor.submit(_call, self._function, item)

    def __exit__(self, *_error: object) -> None:
        self._client.close()


def _call(function: Callable[[Item], Answer], item: Item) -> Answer:
    return function(item)


def can_fork() -> bool:
    """Whether forking a process that has already used its libraries is safe: on Linux."""
    return sys.platform == "linux"


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if can_fork() else os.cpu_count() or 1
