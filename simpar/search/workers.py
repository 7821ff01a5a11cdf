"""Processes that share the work of a search: one call maps a function over plans on a joblib backend, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from simpar.errors import UserError
from simpar.files import choose

if TYPE_CHECKING:
    from joblib import Parallel

LOKY = "loky"
BACKENDS = (LOKY, "dask", "ray")
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class Workers:
    """``jobs`` processes of a joblib ``backend``, -1 for all cores; one job is this process.

    Used as a context they stay alive between calls. Who asks must get the same answer from any number of them: they
    are asked ahead of time for what is likely to be needed (:meth:`at_once` at a time), and what was not is dropped.
    Raises UserError for a number that is not allowed, an unknown backend or one that is not installed.
    """

    jobs: int = 1
    backend: str = LOKY
    _pool: Parallel | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        choose(self.backend, BACKENDS, "backend")
        if self.jobs < -1 or self.jobs == 0:
            raise UserError(f"jobs = {self.jobs}: allowed: at least 1, or -1 for all cores")

    @property
    def at_once(self) -> int:
        """How many calls run side by side."""
        if self.jobs > 0:
            return self.jobs
        from joblib import effective_n_jobs

        self._started()
        return max(int(effective_n_jobs(self.jobs)), 1)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool = None
        self._open.close()

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """What a function answers for each of some items, in their order."""
        return list(self.stream(function, items) if len(items) > 1 else map(function, items))

    def stream(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """The same, each as soon as it and those before it are there; on other backends than loky when all are."""
        if self.jobs == 1:
            yield from map(function, items)
            return
        from joblib import delayed

        yield from self._started()(delayed(function)(item) for item in items)

    def _started(self) -> Parallel:
        """The pool of processes."""
        if self._pool is None:
            from joblib import Parallel

            self._open.enter_context(backend_of(self.backend))
            lazily = "generator" if self.backend == LOKY else "list"
            pool = Parallel(n_jobs=self.jobs, return_as=lazily, batch_size=1)
            self._pool = self._open.enter_context(pool)
        return self._pool


@contextmanager
def backend_of(name: str) -> Iterator[None]:
    """The joblib backend of a name. Raises UserError for one that is not installed."""
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
