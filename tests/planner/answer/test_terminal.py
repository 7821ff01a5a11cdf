"""How sure an answer is, in words."""

from dataclasses import replace
from functools import partial
from io import StringIO

import pytest
from rich.console import Console

import simpar
from simpar.plan.plan import Plan
from simpar.planner.answer.explanations import CAUSES
from simpar.planner.answer.terminal import absent, certificate, headline, in_brief, print_search
from simpar.planner.problem import Constraints
from simpar.planner.result import Candidate, Counts, SearchResult
from simpar.units import GIB

COUNTS = Counts(1000, 400, 400, 20, 3)


def answer(*, certified=False, gap=0.0, fit_probability=0.99, objective="time", **details):
    """An answer with one candidate."""
    best = Candidate(1, Plan(), 1.0, 0.4, 1e9, figures={"fit_probability": fit_probability})
    return SearchResult((best,), COUNTS, objective, certified, gap, 2.5, details)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"certified": True}, "certified: no plan of the space "),
        ({"gap": 0.05}, "not certified: a plan that was not simulated may be better by up to 5.00%"),
        ({"gap": 1.0}, "not certified: a usual layout, simulated; no other plan had been bounded yet"),
        ({}, "not certified: stopped before the whole space was bounded"),
    ],
)
def test_a_certificate_says_how_much_is_left(options, words):
    """In its first line; its last but others counts what was done."""
    first, counted, *_ = certificate(answer(**options))
    assert first.startswith(words)
    assert (
        counted == "1,000 plans, 400 fit, 400 have a lower bound of their time, 20 a closer one, 3 simulated, in 2.5 s"
    )
    _, counted, *_ = certificate(answer(**options, simulated_beside=7))
    assert "3 simulated and 7 for what stands beside the first, in" in counted


def test_what_stands_against_an_answer_is_said():
    """That it was stopped, plans too large to simulate, a first that may not fit, a target that cannot have it."""
    said = list(
        certificate(
            answer(
                fit_probability=0.6,
                stopped="time limit",
                not_built=12,
                not_portable={"target": "megatron", "reasons": ["one", "two"]},
            )
        )
    )
    assert said[0].startswith("stopped early (time limit)")
    assert any(line.startswith("12 plans that may be better have more than ") for line in said)
    assert any("--fit-probability 0.95 finds the best that is so sure" in line for line in said)
    assert any("megatron cannot express the first: one; two; --portable megatron" in line for line in said)


def test_the_margin_stands_in_place_of_the_warning():
    """What another probability of fitting would gain."""
    said = list(certificate(answer(fit_probability=0.6, margin={"fit_probability": 0.5, "gain": 0.031})))
    assert "with --fit-probability 0.5: 3.1% faster" in said
    assert not any("finds the best that is so sure" in line for line in said)
    none = certificate(answer(margin={"fit_probability": 0.5, "gain": 0.0}))
    assert "with --fit-probability 0.5: nothing faster that was tried" in list(none)


PARTS = dict.fromkeys(["compute", *CAUSES], 0.0) | {"compute": 0.9, "bubble": 0.1}


def whole(**details):
    """An answer with all figures of its candidate."""
    scope = {"searched": {"tp": [1, 2]}, "held": {}, "restricted": [], "left_out": ["cp 8"]}
    result = answer(
        model={"name": "tiny"}, stack="fsdp", scope=scope, training={"global_batch": 8, "seq_len": 128},
        cluster={"hardware": "dgx-h100", "nodes": 1, "devices": 8, "device": "h100"}, **details,
    )  # fmt: skip
    figures = {"peak_reserved_bytes": 2 * GIB, "capacity_bytes": 4 * GIB, "step_time_interval_s": (0.9, 1.2)}
    best = replace(result.best, figures={**result.best.figures, **figures, "time_breakdown_s": PARTS})
    return replace(result, candidates=(best,))


def test_an_answer_leads_with_few_lines():
    """The plan, whether it fits, its speed, what limits it, what to do."""
    lead = dict(in_brief(whole(certified=True, tie={"candidates": 3})))
    assert list(lead) == ["best", "memory", "speed", "limit", "to do"]
    assert lead["memory"] == "2.00 GiB of 4.00 GiB, 99 % sure to fit"
    # 8 x 128 tokens in 1 s
    assert lead["speed"] == "1.00 s (90 % interval 900 ms to 1.20 s) a step, 1.02 K tokens/s, MFU 40.0%"
    assert lead["limit"] == "compute takes 90.0% of the step; lost to pipeline bubble 100 ms (10.0%)"


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"certified": True, "tie": {"candidates": 3}}, "measure 1 to 3, which predictions cannot tell apart"),
        ({"certified": True}, "take it: nothing of what was searched is predicted to be better"),
        ({"gap": 0.05}, "search longer, for one up to 5.00% better may have been missed"),
        ({"gap": 1.0}, "search longer, for a better one may have been missed"),
    ],
)
def test_what_to_do_follows_from_the_answer(details, words):
    """And from whether the plan is saved already."""
    assert dict(in_brief(whole(**details)))["to do"].startswith(words)
    assert "-o plan.json saves the first" in dict(in_brief(whole(**details)))["to do"]
    saved = dict(in_brief(whole(**details), "best.json"))["to do"]
    assert saved.endswith("; simpar export best.json --to TARGET writes how to start it")


def test_details_are_below_a_rule_or_behind_a_flag():
    """What other layouts cost and what was left out, on request only."""
    texts = []
    for verbose in (False, True):
        text = StringIO()
        print_search(
            whole(kinds=[{"kind": "tp 2", "plan": None, "why": "-"}]), Console(file=text, width=200), is_verbose=verbose
        )
        texts.append(text.getvalue())
    brief, long = texts
    assert brief.index("to do") < brief.index("--- details ---") < brief.index("slower by")
    assert "left out: cp 8" in long
    assert "tp 2" in long
    assert "tp 2" not in brief
    assert "--verbose" in brief


def test_the_headline_names_the_problem():
    """Model and cluster, in one line."""
    cluster = {"hardware": "dgx-h100", "nodes": 2, "devices": 16, "device": "h100"}
    shape = {"global_batch": 8, "seq_len": 128}
    found = answer(model={"name": "tiny"}, cluster=cluster, training=shape, stack="fsdp", objective="regret")
    assert headline(found) == "tiny on 2 x dgx-h100 (16 h100), 8 x 128 tokens, fsdp stack: best time"


def test_what_was_asked_for_and_the_first_plan_lacks_is_said():
    """Experts over two ranks of tensor parallelism, and a plan without tensor parallelism."""
    held = {"tp": 1, "pp": 1, "ep": 8, "zero": 3, "micro_batch": 1, "capacity_factor": 1.5}
    cluster, training = simpar.Cluster("dgx-h100", nodes=2), simpar.Training(seq_len=2048, global_batch=16)
    search = partial(simpar.search, "mixtral-8x7b", cluster, training)
    found = search(constraints=Constraints(fixed={**held, "etp": 2}, fit_probability=0.5))
    assert list(absent(found)) == ["etp 2: makes no difference to the first plan, which is without it"]
    found = search(constraints=Constraints(fixed=held, fit_probability=0.5))
    assert list(absent(found)) == []
