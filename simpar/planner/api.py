"""The front door: one call that searches any space of plans.

A space is a function of a Problem and a Progress that returns a SearchResult. SPACES lists it under the name that users
type; its module is imported when it is first needed.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.calls import refuses_unknown_keywords
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.inputs import as_cluster
from simpar.plan.plan import Plan
from simpar.planner.problem import BY_REGRET, Constraints, Problem, make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import SearchResult
from simpar.program.perturbation import Perturbation
from simpar.stacks.stack import Stack
from simpar.workers import LOCAL, Workers

SPACES = {
    "uniform": "uniform:search_runnable",
    "alpa": "stages.alpa.optimize:search_alpa",
    "uneven": "stages.uneven:search_uneven",
}
Searcher = Callable[[Problem, SearchProgress], SearchResult]


@refuses_unknown_keywords
def search(
    model: ModelGraph | str | Path,
    cluster: Cluster | str | Path,
    training: Training | Mapping[str, Any],
    *,
    stack: Stack | str | None = None,
    objective: str = BY_REGRET,
    constraints: Constraints | Mapping[str, Any] | None = None,
    base: Plan | Mapping[str, Any] | str | Path | None = None,
    perturbation: Perturbation | Mapping[str, Any] | None = None,
    space: str | None = None,
    progress: SearchProgress | None = None,
    time_limit_s: float | None = None,
    jobs: int = 1,
    backend: str = LOCAL,
) -> SearchResult:
    """The best plans for a model on a cluster, with a certificate.

    Models, clusters and trainings are taken as :func:`simpar.simulate` takes them; ``constraints`` may be a dict of
    fields of :class:`simpar.Constraints` and of axes to fix, such as ``{"tp": (1, 2), "headroom": 0.1}``.
    ``space`` is "uniform" (what Megatron-like launchers can express), "alpa" (stages with meshes and operator
    shardings of their own) or "uneven" (stages with different numbers of layers, also over several kinds of nodes).
    The default is "uniform", or "uneven" if the nodes differ. In the uniform space, axes that were not asked for take
    only values that the framework of the stack supports, unless ``constraints.portable`` decides that.

    ``stack`` is the training software (default: that of the export target in ``constraints``, else Megatron),
    ``objective`` what is minimised ("regret", "time", "cost", "energy", "devices"), ``base`` the plan that gives what
    is no axis (optimizer, precision, bucket sizes), ``perturbation`` which ranks are slow.

    After ``time_limit_s`` seconds the answer is the best plan so far with its gap, and is not certified. ``jobs``
    processes (-1: all cores) of a ``backend`` ("local" or "dask") simulate plans in
    parallel; their number does not change the answer. If ``progress`` is given, its own limit and workers apply.
    Raises UserError for bad input and Infeasible if no plan meets the constraints.

    >>> few = {"tp": 1, "cp": 1, "pp": 1, "micro_batch": 8}
    >>> result = search("gpt2", "dgx-h100", {"seq_len": 1024, "global_batch": 64}, constraints=few)
    >>> result.certified_optimal, result.best.plan.dp
    (True, 8)
    """
    cluster = as_cluster(cluster)
    searcher = find_space(space, cluster)
    problem = make_problem(
        model,
        cluster,
        training,
        stack=stack,
        objective=objective,
        constraints=constraints,
        base=base,
        perturbation=perturbation,
    )
    return searcher(problem, progress or SearchProgress(time_limit_s=time_limit_s, workers=Workers(jobs, backend)))


def find_space(space: str | None, cluster: Cluster) -> Searcher:
    """The function that searches a space; by default the one for the cluster's kind. Raises UserError if unknown."""
    name = space or ("uneven" if cluster.is_mixed else "uniform")
    module, _, function = SPACES[choose(name, SPACES, "space")].partition(":")
    if cluster.is_mixed and name != "uneven":
        raise UserError(f"space {name}: nodes of {cluster.profile.name} differ; allowed: uneven")
    result: Searcher = getattr(import_module(f"simpar.planner.{module}"), function)
    return result
