"""The answer of a search as terminal output: candidates, certificate, reasons, naive choices, Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simpar.hardware.part import nodes_words
from simpar.neighbours import BY_MEETING
from simpar.plan import flat
from simpar.plan.choices import OPTIONAL_AXES, SECTION_OF
from simpar.plan.mesh import AXES
from simpar.planner.certify.scope import default_axis_values, list_values
from simpar.planner.problem import BY_REGRET
from simpar.planner.result import GAINS_BY_MEETING, Candidate, SearchResult
from simpar.program.emission.emit import MOST_OPS
from simpar.report.bill import WholeRun
from simpar.report.explain import where_time_goes
from simpar.report.run_rows import run_rows
from simpar.report.table import Column, ReportTable, print_lines, print_rule, text
from simpar.report.words import interval_words, layout, probably
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from simpar.units import GIB, MEGA, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


EXTRA = {
    "cost": {"USD": "cost_usd_per_step", "nodes": "nodes"},
    "energy": {"MJ": "energy_j_per_step", "nodes": "nodes"},
    "devices": {"nodes": "nodes"},
}
"""Additional columns by objective: title and figure."""
WORTH_SAYING = 0.005
"""Share of a step below which a plan that was not simulated is not worth a word."""
SAVE = "-o plan.json saves the first for simpar export"
VERBOSE_HINT = (
    "--verbose also says why the others come after the first, what other kinds of layouts cost, which layouts take "
    "less memory, and what was searched and left out."
)
TIMES = (BY_REGRET, "time")
"""Objectives that minimise the step time."""
TITLES = {BY_REGRET: "time"}
"""Names of objectives in titles where they differ from the option's name."""


def print_search(result: SearchResult, console: Console, *, is_verbose: bool = False, saved: str | None = None) -> None:
    """Print the answer to a rich console: what to know in few lines, and below a rule what stands behind it.

    ``is_verbose`` adds what other layouts cost, and what was searched and left out. ``saved`` is the file that holds
    the best plan already.
    """
    console.print(headline(result), style="bold", soft_wrap=True)
    print_lines(console, [f"assumed: {each}" for each in result.details["model"].get("assumed", ())])
    print_lines(console, absent(result))
    console.print()
    for name, words in in_brief(result, saved):
        console.print(f"{name:8}{words}", soft_wrap=True, markup=False, highlight=False)
    console.print()
    print_rule(console)
    _print_candidates(result, console)
    print_lines(console, ties(result))
    console.print()
    print_lines(console, certificate(result))
    for title, lines in _sections(result, is_verbose=is_verbose):
        print_lines(console, lines, title, mark="- ")
    if not is_verbose:
        console.print(f"\n{VERBOSE_HINT}", soft_wrap=True)


def _sections(result: SearchResult, *, is_verbose: bool) -> Iterator[tuple[str, list[str]]]:
    """Titles and lines below the certificate."""
    yield "The whole run of the first, without failures", describe_whole_run(result.best)
    yield "Why the first wins", [line for line in result.best.why if line != _limit(result.best)]
    yield "Chosen without a search", [describe_baseline(one) for one in result.details.get("naive", ())]
    if is_verbose:
        yield "Why the others come after it", [f"{one.rank}: {'; '.join(one.why)}" for one in result.candidates[1:]]
        yield "What other kinds of layouts cost", [_kind(one, result) for one in result.details.get("kinds", ())]
        yield "Less memory", [_point(one, _asked(result)) for one in result.details.get("pareto", ())[1:]]
        yield "What the space holds", list(_scope(result))


def in_brief(result: SearchResult, saved: str | None = None) -> list[tuple[str, str]]:
    """The answer in few lines: the best plan, whether it fits, how fast it is, what limits it, what to do."""
    best, training = result.best, result.details["training"]
    rate = training["global_batch"] * training["seq_len"] / best.step_time_s
    spread = best.figures.get("step_time_interval_s")
    step = format_seconds(best.step_time_s) + (f" (90 % interval {interval_words(spread)})" if spread else "")
    reserved = format_bytes(best.figures["peak_reserved_bytes"])
    capacity = best.figures.get("capacity_bytes")
    size = f"{reserved} of {format_bytes(capacity)}" if capacity else f"{reserved} reserved"
    limit = _limit(best)
    return [
        ("best", describe(best.to_dict()["plan"], _asked(result))),
        ("memory", f"{size}, {probably(best.figures['fit_probability'])} to fit"),
        ("speed", f"{step} a step, {format_count(rate)} tokens/s, MFU {best.mfu:.1%}"),
        *([("limit", limit)] if limit else []),
        ("to do", _to_do(result, saved)),
    ]


def _limit(best: Candidate) -> str:
    """What limits the best plan; empty if its account is not known."""
    parts = best.figures.get("time_breakdown_s")
    return where_time_goes(best.step_time_s, parts) if parts else ""


def _to_do(result: SearchResult, saved: str | None) -> str:
    """What follows from the answer: search on, measure, or take it; and the command for the next step."""
    tied = result.details.get("tie", {}).get("candidates") or 0
    then = f"simpar export {saved} --to TARGET writes how to start it" if saved else SAVE
    if not result.certified_optimal:
        left = f"one up to {result.gap:.2%} better" if 0 < result.gap < 1 else "a better one"
        return f"search longer, for {left} may have been missed; {then}"
    if tied > 1:
        which = f"1 {'to' if tied > 2 else 'and'} {tied}"
        return f"measure {which}, which predictions cannot tell apart (--suggest 3); {then}"
    return f"take it: nothing of what was searched is predicted to be better; {then}"


def describe_baseline(one: Mapping[str, Any]) -> str:
    """What a layout chosen without a search loses, and the whole plan that was compared, ready to paste."""
    typed = f" ({one['flags']})" if one.get("flags") else ""
    return f"{one['name']}{typed}: {'; '.join(one['why'])}"


def describe_whole_run(best: Candidate) -> list[str]:
    """Time and cost of the whole run, if the training has a number of tokens."""
    told = best.figures.get("whole_run")
    rows = run_rows(WholeRun.model_validate(told)) if told else []
    return [f"{name}: {words}" for name, words in rows if name != "failures"]


def certificate(result: SearchResult) -> Iterator[str]:
    """Lines on how sure the answer is and how much work the search did."""
    counts, stopped = result.counts, result.details.get("stopped")
    if stopped:
        yield f"stopped early ({stopped}): the best of what was simulated so far"
    if result.certified_optimal:
        yield f"certified: no plan of the space {_unbeaten(result)}"
    elif result.gap >= 1:
        yield "not certified: a usual layout, simulated; no other plan had been bounded yet"
    elif result.gap > 0:
        first = _shortest(result)[1]
        than = f" than {first}" if result.objective == BY_REGRET and first else ""
        yield f"not certified: a plan that was not simulated may be better by up to {result.gap:.2%}{than}"
    else:
        yield "not certified: stopped before the whole space was bounded"
    yield from _next_certified(result)
    if count := result.details.get("not_built"):
        yield f"{count:,} plans that may be better have more than {MOST_OPS:,} ops a step: bounded, not simulated"
    tried_alone = result.details.get("feasible_of") == "simulated"
    fit = "" if tried_alone else f"{counts.feasible:,} fit, "
    of_tried = f", of which {counts.feasible:,} fit" if tried_alone else ""
    yield (
        f"{counts.space_size:,} plans, {fit}{counts.bounded:,} have a lower bound of their time, {counts.swept:,} a "
        f"closer one, {counts.simulated:,} simulated{of_tried}{_and_beside(result)}, in {result.search_seconds:.1f} s"
    )
    if margin := result.details.get("margin"):
        gain = f"{margin['gain']:.1%} faster" if margin["gain"] > 0 else "nothing faster that was tried"
        yield f"with --fit-probability {margin['fit_probability']:g}: {gain}"
    sure = result.best.figures["fit_probability"]
    if sure < DEFAULT_FIT_PROBABILITY and not margin:
        hint = f"--fit-probability {DEFAULT_FIT_PROBABILITY:g} finds the best that is so sure"
        yield f"the first is {probably(sure)} to fit; {hint}"
    if lost := result.details.get("not_portable"):
        target, reasons = lost["target"], "; ".join(lost["reasons"])
        yield f"{target} cannot express the first: {reasons}; --portable {target} finds the best that it can"


def _and_beside(result: SearchResult) -> str:
    """How many plans were simulated beside those that the certificate needed; empty if that is not known."""
    more = result.details.get("simulated_beside", 0)
    return f" and {more:,} for what stands beside the first" if more else ""


def _next_certified(result: SearchResult) -> Iterator[str]:
    """How far the layouts behind the first are certain to be the next ones, and why there are fewer than asked for."""
    told = result.details.get("runners_up", {})
    certified, count = told.get("certified", 0), told.get("found", 0)
    if certified:
        which = f"the {count + 1} compared" if certified == count else f"the {certified + 1} fastest of these"
        takes = f"takes less than {format_seconds(told['certified_step_time_s'])}"
        less = takes if result.objective in TIMES else f"has a better {result.objective}"
        yield f"certified: no layout beside {which} {less} (each stands for its variants, within 0.5%)"
    if certified < count:
        least_s, why = told.get("at_least_s"), told.get("why")
        words = f"one that was not simulated may take {format_seconds(least_s)}" if least_s else why
        words = f"{why}, and {words}" if least_s and result.details.get("stopped") and why else words
        yield f"not certified that {'the others' if certified else 'these'} are the next fastest layouts: {words}"
    elif "why" in told:
        yield f"{'only ' if count else ''}{count or 'no'} other {'layout' if count < 2 else 'layouts'}: {told['why']}"


def _unbeaten(result: SearchResult) -> str:
    """The certified statement: about the cost model, whichever of the tied plans is chosen."""
    if result.objective != BY_REGRET:
        return f"has a better {result.objective}"
    shortest_s, first = _shortest(result)
    rank = result.shortest.rank
    hidden = f", which --top {rank} shows" if rank > len(result.candidates) else ""
    which = f" ({first}{hidden})" if first else ""
    return f"is predicted to be faster than {format_seconds(shortest_s)}{which}"


def _shortest(result: SearchResult) -> tuple[float, str]:
    """The shortest step of all compared plans in seconds, and whose it is (empty for the first candidate).

    A saved search has only the candidates it shows, but records that step.
    """
    at_hand = result.shortest
    shortest_s = result.details.get("tie", {}).get("shortest_step_time_s", at_hand.step_time_s)
    if shortest_s < at_hand.step_time_s:
        return shortest_s, "a candidate that is not shown"
    return shortest_s, "" if at_hand.rank == 1 else f"candidate {at_hand.rank}"


def ties(result: SearchResult) -> Iterator[str]:
    """Which candidates are tied, and how many plans that were not simulated may be among the ties."""
    tie = result.details.get("tie", {})
    if tied := tie.get("candidates"):
        hidden = f" (--top {tied} shows them)" if tied > len(result.candidates) else ""
        which = f"1 {'to' if tied > 2 else 'and'} {tied}"
        yield f"{which} cannot be told apart{hidden}: predictions err by more than they differ"
    if beats := [str(one.rank) for one in result.candidates if one.figures.get(GAINS_BY_MEETING)]:
        which = f"{', '.join(beats[:-1])} and {beats[-1]} gain" if beats[1:] else f"{beats[0]} gains"
        yield f"over less recomputation, {which}{BY_MEETING.removeprefix('gains')}"
    if count := tie.get("not_simulated"):
        limit = format_seconds(tie["limit_s"])
        more = "1 plan that was" if count == 1 else f"up to {count:,} plans that were"
        yield f"{more} not simulated may be as good: bounded below {limit}"


def _scope(result: SearchResult) -> Iterator[str]:
    """What the certificate covers: axes with their values, axes held, and values left out."""
    told = result.details["scope"]
    yield "searched: " + "; ".join(f"{name} {list_values(values)}" for name, values in told["searched"].items())
    yield from told.get("meanings", ())
    usual = default_axis_values()
    held = [name if value == usual.get(name, name) else f"{name} {value}" for name, value in told["held"].items()]
    if held:
        yield f"held as the plan has it: {', '.join(held)}"
    if decided := told.get("decided_by"):
        yield _decided(decided, result.details["stack"])
    if told["restricted"]:
        yield f"by --fix: {', '.join(told['restricted'])}"
    for words in told["left_out"]:
        yield f"left out: {words}"


def _decided(told: Mapping[str, Any], stack: str) -> str:
    """Which framework restricts the plans, which values it left out, and how to search without it."""
    by = f"by --portable {told['target']}" if told["asked"] else f"by {told['target']}, the framework of stack {stack}"
    gone = "; ".join(f"{name} {list_values(values)}" for name, values in told["left_out"].items())
    return f"{by}: without {gone or 'layouts that it does not have'} (--portable any searches them, too)"


def describe(plan: Mapping[str, Any], asked: Iterable[str] = ()) -> str:
    """A plan in a few words, with choices that the short layout omits; axes in ``asked`` always appear."""
    data, tensor, mesh = (plan.get(name, {}) for name in ("data_parallel", "tensor_parallel", "mesh"))
    words = [layout(dict(plan))]
    if (mesh.get("tp") or 1) > 1:
        words.append("sequence parallel" if tensor.get("sequence_parallel") else "no sequence parallel")
        words += ["tp overlap"] * bool(tensor.get("overlap"))
    words += [f"HSDP of {data['hsdp']} replicas"] * ((data.get("hsdp") or 1) > 1)
    if (mesh.get("dp") or 1) > 1:
        words += ["no overlap of gradient reduction"] * (data.get("overlap_grad_reduce") is False)
        words += ["no overlap of parameter gathers"] * (
            data.get("overlap_param_gather") is False and bool(data.get("zero"))
        )
    words += _requested(plan, asked)
    layers = plan.get("pipeline", {}).get("layers") or ()
    words += [f"layers {'+'.join(map(str, layers))}"] * (len(set(layers)) > 1)
    order = [axis for axis in mesh if axis not in ("ep", "etp")]
    return ", ".join([*words, *([f"ranks ordered {'-'.join(order)}"] if order[-1] != AXES[-1] else [])])


def _requested(plan: Mapping[str, Any], asked: Iterable[str]) -> Iterator[str]:
    """Choices that are searched on request only, where they are not the default."""
    usual, wanted = default_axis_values(), set(asked)
    for axis in OPTIONAL_AXES:
        value = plan.get(SECTION_OF[axis.name], {}).get(axis.name, usual[axis.name])
        if axis.label is not None and value != usual[axis.name]:
            yield (axis.label or f"{axis.name} {{}}").format(value)
    for name in (axis.name for axis in OPTIONAL_AXES if axis.is_decided and axis.name in wanted):
        if (value := flat.get_flat(plan, name)) is not None:
            yield f"{name} {value}"


def absent(result: SearchResult) -> Iterator[str]:
    """Values that were asked for and that the first plan does not have, because they change nothing in it."""
    told, plan = result.details["scope"], result.best.to_dict()["plan"]
    values, usual = {name: [value] for name, value in told["held"].items()} | told["searched"], default_axis_values()
    for axis in OPTIONAL_AXES:
        asked = values[axis.name] if axis.name in told["restricted"] else ()
        value = plan.get(SECTION_OF[axis.name], {}).get(axis.name, usual[axis.name])
        if asked and value == usual[axis.name] and value not in asked:
            yield f"{axis.name} {list_values(asked)}: makes no difference to the first plan, which is without it"


def _asked(result: SearchResult) -> Iterable[str]:
    """Axes whose values were given."""
    asked: Iterable[str] = result.details.get("constraints", {}).get("fixed", ())
    return asked


def headline(result: SearchResult) -> str:
    """Model, cluster, step time and objective in one line."""
    model, cluster = result.details["model"], result.details["cluster"]
    size = f" ({format_count(model['parameters'])})" if model.get("parameters") else ""
    training, best = result.details["training"], TITLES.get(result.objective, result.objective)
    return (
        f"{model['name']}{size} on {nodes_words(cluster['nodes'], cluster['hardware'])} ({cluster['devices']:,} "
        f"{cluster['device']}), {training['global_batch']} x {training['seq_len']} tokens, "
        f"{result.details['stack']} stack: best {best}"
    )


def _print_candidates(result: SearchResult, console: Console) -> None:
    extra = EXTRA.get(result.objective, {})
    compared = "best_probability" in result.best.figures
    columns: list[Column | str] = [
        "", "step", Column("slower by", spare=2), *[Column("is best", spare=4)] * compared,
        Column("MFU", spare=1), Column("reserved GiB", spare=3), Column("fits", least=9), *extra,
        text("plan", least=24),
    ]  # fmt: skip
    rows = []
    for one in result.candidates:
        lost = one.step_time_s - result.shortest.step_time_s
        likely = one.figures.get("best_probability")
        odds = ["" if likely is None else f"{likely:.0%}"] if compared else []
        rows.append((
            str(one.rank), format_seconds(one.step_time_s), format_seconds(lost) if lost else "", *odds,
            f"{one.mfu:.1%}", f"{one.figures['peak_reserved_bytes'] / GIB:.1f}",
            probably(one.figures["fit_probability"]),
            *(_figure(one, name) for name in extra.values()), describe(one.to_dict()["plan"], _asked(result)),
        ))  # fmt: skip
    console.print(ReportTable(columns, rows))


def _figure(one: Candidate, name: str) -> str:
    value = one.figures.get(name)
    if value is None:
        return "-"
    return f"{value / MEGA:.3g}" if name == "energy_j_per_step" else f"{value:.4g}"


def _point(one: Mapping[str, Any], asked: Iterable[str]) -> str:
    size, step = format_bytes(one["needed_bytes"]), format_seconds(one["step_time_s"])
    return f"{size}: {step}, {describe(one['plan'], asked)}"


def _kind(one: Mapping[str, Any], result: SearchResult) -> str:
    """What the best plan of a kind of layouts costs, or the least that it can, or why it has none."""
    best_s = result.shortest.step_time_s

    def slower(step_s: float) -> str:
        return f"{step_s / best_s - 1.0:+.1%}"

    if one["plan"] is None:
        least_s = one.get("at_least_s")
        words = f"at least {slower(least_s)}, {one['why']}" if least_s else one["why"]
        return f"{one['kind']}: {words}"
    step_s, least_s = one["step_time_s"], one["at_least_s"]
    open_to = f", at least {slower(least_s)}" if least_s < step_s * (1.0 - WORTH_SAYING) else ""
    said = describe(one["plan"], _asked(result))
    return f"{one['kind']}: {slower(step_s)} ({format_seconds(step_s)}{open_to}), {said}"


def print_grid(grid: Mapping[str, Any], console: Console) -> None:
    """Print the best layout of every cell of a grid of searches to a rich console."""
    columns: list[Column | str] = [
        *map(text, grid["axes"]), "step", Column("90 % interval", spare=3), Column("MFU", spare=1),
        Column("reserved GiB", spare=2), Column("fits", least=9), text("plan", least=24),
    ]  # fmt: skip
    rows = []
    for cell in grid["cells"]:
        best = cell["best"]
        at = [str(cell[axis]) for axis in grid["axes"]]
        figures = ["-", "-", "-", "-", "-", cell["reason"]]
        if best:
            figures = [
                format_seconds(best["step_time_s"]), interval_words(best["step_time_interval_s"]), f"{best['mfu']:.1%}",
                f"{best['peak_reserved_bytes'] / GIB:.1f}", probably(best["fit_probability"]), describe(best["plan"]),
            ]  # fmt: skip
        rows.append((*at, *figures))
    console.print(f"Best layouts, {grid['title']}", style="italic", soft_wrap=True)
    console.print(ReportTable(columns, rows))
    done = [cell for cell in grid["cells"] if cell["best"]]
    certified = sum(cell["certified_optimal"] for cell in done)
    console.print(f"{len(done)} of {len(grid['cells'])} have a plan that fits, {certified} certified", soft_wrap=True)
