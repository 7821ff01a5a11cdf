"""The front door: one call for every space of plans.

A space is a function of a Problem and a Progress that returns a SearchResult; it stands in SPACES under the name that
users type and is imported when asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Unpack

from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.models.graph import ModelGraph
from simpar.models.training import Training
from simpar.search.problem import Problem, StackOptions, make_problem
from simpar.search.progress import Progress
from simpar.search.result import SearchResult
from simpar.search.workers import LOKY, Workers

SPACES = {
    "uniform": "uniform:search_runnable",
    "alpa": "stages.alpa.optimize:search_alpa",
    "uneven": "stages.uneven:search_uneven",
}
Searcher = Callable[[Problem, Progress], SearchResult]


def search(
    model: ModelGraph | str,
    cluster: Cluster,
    training: Training,
    *,
    space: str | None = None,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
    jobs: int = 1,
    backend: str = LOKY,
    **options: Unpack[StackOptions],
) -> SearchResult:
    """The best plans for a model on a cluster, with a certificate.

    ``space`` "uniform" holds what Megatron-like launchers express, "alpa" stages with meshes and shardings of their
    own, "uneven" cuts into stages of different numbers of layers, also over several kinds of nodes; left out it is
    "uniform", or "uneven" where nodes differ. Of the uniform space what nobody asked for has values alone that the
    framework of the stack has, unless ``constraints.portable`` says what plans may be. ``options`` are ``stack`` and
    the fields of :class:`simpar.search.Problem`: ``objective``, ``constraints``, ``base``, ``perturbation``.

    After ``time_limit_s`` seconds the answer is the best plan so far with its gap, not certified. ``jobs`` processes
    (-1: all cores) of a ``backend`` ("fork", on Linux; joblib's "loky", "dask", "ray") simulate plans side by side: the
    answer is the same with any number of them. ``progress`` has a limit and workers of its own. Raises UserError for
    bad input and Infeasible where no plan meets the constraints.

    >>> import simpar
    >>> from simpar.search.problem import Constraints
    >>> few = Constraints(fixed={"tp": 1, "cp": 1, "pp": 1, "micro_batch": 8})
    >>> training = simpar.Training(seq_len=1024, global_batch=64)
    >>> found = search("gpt2", simpar.Cluster("dgx-h100"), training, constraints=few)
    >>> found.certified_optimal, found.best.plan.mesh.dp
    (True, 8)
    """
    searcher = find_space(space, cluster)
    problem = make_problem(model, cluster, training, **options)
    return searcher(problem, progress or Progress(time_limit_s=time_limit_s, workers=Workers(jobs, backend)))


def find_space(space: str | None, cluster: Cluster) -> Searcher:
    """The function that searches a space, or that of the cluster's kind. Raises UserError for one that is not."""
    name = space or ("uneven" if cluster.is_mixed else "uniform")
    module, _, function = SPACES[choose(name, SPACES, "space")].partition(":")
    if cluster.is_mixed and name != "uneven":
        raise UserError(f"space {name}: nodes of {cluster.profile.name} differ; allowed: uneven")
    found: Searcher = getattr(import_module(f"simpar.search.{module}"), function)
    return found
