"""Turns the simulated results of a search into its answer: ranked candidates with reasons, and the problem."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from simpar.architectures.graph import ModelGraph
from simpar.errors import UserError
from simpar.neighbours import BY_MEETING
from simpar.plan.plan import Plan, Searched
from simpar.plan.torch_roles import refuse_roles
from simpar.plan.uniform_stages import as_uniform
from simpar.planner.answer.explanations import explain_loser, explain_winner
from simpar.planner.answer.ties import RankedResults, rank_results
from simpar.planner.certify.scope import not_portable
from simpar.planner.problem import BY_REGRET, Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import GAINS_BY_MEETING, Candidate, Counts, SearchResult
from simpar.report.result import Result
from simpar.scenario import to_cluster_section, to_perturbation_section
from simpar.units import format_seconds


def answer_of(
    problem: Problem, progress: SearchProgress, results: Sequence[Result], counts: Counts, gap: float, whole: bool
) -> SearchResult:
    """The answer of a search from its results, fastest first; the objective may put another one in front.

    ``gap`` is the share of the objective by which an unseen plan may be better than the first result. ``whole`` says
    that the search ran to its end.
    """
    return answer_with(problem, progress, rank_results(problem, results), counts, (gap, whole))


def answer_with(
    problem: Problem, progress: SearchProgress, choice: RankedResults, counts: Counts, proof: tuple[float, bool]
) -> SearchResult:
    """As :func:`answer_of`, of results that are ranked already; ``proof`` is the gap, and whether the search ended."""
    gap, whole = proof
    best, *others = choice.results
    reasons = [choice.why + explain_winner(best, others), *(explain_loser(other, best) for other in others)]
    candidates = tuple(
        _candidate(problem, rank, result, figures, why)
        for rank, (result, figures, why) in enumerate(
            zip(choice.results, choice.figures, reasons, strict=True), start=1
        )
    )
    details = {
        "model": best.setup.model,
        "cluster": best.setup.cluster,
        "training": problem.training.model_dump(),
        "perturbation": best.setup.perturbation,
        "stack": problem.stack.name,
        "constraints": asdict(problem.constraints),
        "node_counts": [problem.cluster.nodes],
        "simpar_version": best.setup.simpar_version,
        "not_portable": not_portable(problem, candidates[0].plan),
        "stopped": progress.stopped,
    }
    if problem.objective == BY_REGRET:
        tied = sum(bool(one.figures.get("tied")) for one in candidates)
        shortest_s = min(one.step_time_s for one in candidates)
        details["tie"] = {"candidates": tied, "shortest_step_time_s": shortest_s, "limit_s": choice.limit_s}
    certified = gap <= 0 and whole
    shown, others_compared = candidates[: progress.top], candidates[progress.top :]
    return SearchResult(shown, counts, problem.objective, certified, gap, progress.seconds, details, others_compared)


def _candidate(
    problem: Problem, rank: int, result: Result, standing: Mapping[str, object], why: tuple[str, ...]
) -> Candidate:
    """A candidate: its resolved plan, its predicted figures, and its standing among the others."""
    plan, bill = plan_of(problem, result), result.bill
    figures = {
        "tokens_per_s": result.tokens_per_s,
        "bubble_fraction": result.bubble_fraction,
        "peak_reserved_bytes": result.memory.peak_reserved_bytes,
        "capacity_bytes": result.memory.capacity_bytes,
        "time_breakdown_s": result.time_breakdown_s.model_dump(),
        "cost_usd_per_step": bill.cost_usd_per_step,
        "energy_j_per_step": bill.energy_j_per_step,
        "nodes": int(result.setup.cluster["nodes"]),
        **({"whole_run": bill.whole_run.model_dump(mode="json")} if bill.whole_run else {}),
        **(result.certainty.model_dump(mode="json") if result.certainty else {}),
        **standing,
    }
    ran_s = figures.get("measured_step_time_s")
    measured = () if ran_s is None else (f"measured: {format_seconds(float(ran_s))}",)
    meets = (f"over less recomputation it {BY_MEETING}",) if standing.get(GAINS_BY_MEETING) else ()
    why = (*measured, *why, *meets, *_takers(plan, problem.graph))
    return Candidate(rank, plan, **_predicted(result), figures=figures, why=why)


def plan_of(problem: Problem, result: Result) -> Plan:
    """The resolved plan of a result, with its predicted figures, the cluster, and what was asked for."""
    said = {
        "predicted": _predicted(result),
        "cluster": to_cluster_section(result.setup.cluster),
        "perturbation": to_perturbation_section(vars(result.setup)) or None,
        "search": Searched(fit_probability=problem.constraints.fit_probability),
    }
    return result.plan.model_copy(update=said)


def _predicted(result: Result) -> dict[str, float]:
    return {"step_time_s": result.step_time_s, "mfu": result.mfu, "peak_memory_bytes": result.peak_memory_bytes}


def _takers(plan: Plan, graph: ModelGraph) -> tuple[str, ...]:
    """Whether `simpar run` can run the stages of a plan and exports can write them; empty without such stages."""
    if not plan.pipeline.stages:
        return ()
    try:
        refuse_roles(plan.pipeline.stages, graph)
        run = "`simpar run` runs its stages as they are"
    except UserError as error:
        run = f"`simpar run` does not run its stages: {error}"
    try:
        one = as_uniform(plan, graph).mesh
        export = f"exports write its stages as one layout: tp {one.tp}, pp {one.pp}, dp {one.dp}"
    except UserError as error:
        export = f"exports do not write its stages: {error}"
    return run, export
