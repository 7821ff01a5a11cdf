"""A forward and a backward that run together: order kept, communication hidden, bubbles as published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from simpar.architectures.training import Training
from simpar.engine import reference
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.blocks.phases import COMPUTE, EXPERT, TENSOR, BlockStep, CollectiveUse, Phase
from simpar.program.blocks.segments import make_segment
from simpar.program.lower import Lowered, lower
from simpar.program.structure.pairs import AHEAD, merge, merge_phases
from simpar.simulation import make_job
from simpar.units import NS_PER_S
from tests.gate import assert_law, some

MESSAGE = CollectiveUse("tp", "all_reduce", 1.0)


def steps_of(*texts: str) -> Phase:
    """A chain of steps: "k3" is a kernel of 3 s, "c2" a collective of 2 s; each waits for the one before."""
    steps = [
        BlockStep(text, "forward" if text[0] == "k" else "tp", COMPUTE if text[0] == "k" else TENSOR, float(text[1:]),
             None if text[0] == "k" else MESSAGE, (index - 1,) if index else ())
        for index, text in enumerate(texts)
    ]  # fmt: skip
    return Phase(tuple(steps), issue_s=0.0)


def seconds(step: BlockStep) -> float:
    """Duration of a step of these tests."""
    return step.duration_s


def length(phase: Phase) -> float:
    """Seconds of a phase from idle streams to its end."""
    collectives = iter([step.duration_s for step in phase.steps if step.collective])
    return make_segment(phase, lambda _: int(next(collectives) * 1e9)).duration_ns / 1e9


def test_kernels_of_one_hide_messages_of_the_other() -> None:
    """Two chains of kernel, message, kernel need the four kernels and no more, where each alone waits."""
    one = steps_of("k1", "c1", "k1")
    together = merge(one, one, seconds)
    assert length(one) == 3
    assert length(together) == 4
    assert merge_phases(one, one, lambda _: NS_PER_S) == (together, 0.5)


def test_without_messages_there_is_nothing_to_hide() -> None:
    """Kernels share the device: together they take the sum."""
    assert length(merge(steps_of("k2", "k1"), steps_of("k3"), seconds)) == 6


chains = st.lists(st.tuples(st.sampled_from("kc"), st.integers(1, 9)), min_size=1, max_size=8).map(
    lambda items: steps_of(*(f"{kind}{size}" for kind, size in items))
)


@pytest.mark.parametrize("examples", some([50, 500], 1))
def test_a_pair_takes_less_than_both_in_turn_and_more_than_its_busiest_stream(examples: int) -> None:
    """Each pass keeps its order; together they are bounded by their sum, by each alone, and by every stream."""
    assert_law(assert_bounded, examples, forward=chains, backward=chains)


def assert_bounded(forward: Phase, backward: Phase) -> None:
    """A pair keeps both orders and is as long as it can be."""
    together = merge(forward, backward, seconds)
    for which, phase in ((True, forward), (False, backward)):
        mine = [step.name for step in together.steps if (step.layer == AHEAD) == which]
        assert mine == [step.name for step in phase.steps]
    assert all(before < at for at, step in enumerate(together.steps) for before in step.after)
    busiest = max(
        sum(step.duration_s for step in together.steps if step.stream == stream) for stream in (COMPUTE, TENSOR)
    )
    found = length(together)
    assert max(busiest, length(forward), length(backward)) <= found <= length(forward) + length(backward)


def exchanging(*texts: str, floating: bool = False) -> Phase:
    """The same chains where "e2" is an exchange of tokens of 2 s and "w3" a gradient of weights.

    Exchanges that are ``floating`` wait for each other only, as under ``ep_overlap``, and nothing waits for them.
    """
    kinds = {"k": ("forward", COMPUTE), "w": ("weight_gradient", COMPUTE), "e": ("ep", EXPERT)}
    steps: list[BlockStep] = []
    frontier: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    for index, text in enumerate(texts):
        kind, stream = kinds[text[0]]
        exchange = stream == EXPERT
        after = running if exchange and floating else frontier
        message = MESSAGE if exchange else None
        steps.append(BlockStep(text, kind, stream, float(text[1:]), message, after))
        frontier = frontier if exchange and floating else (index,)
        running = (index,) if exchange else running
    return Phase(tuple(steps), issue_s=0.0)


def names(phase: Phase) -> list[str]:
    """Names of the steps of a pair, those of the forward with a dash."""
    return [step.name + "'" * (step.layer == AHEAD) for step in phase.steps]


@pytest.mark.parametrize("floating", [False, True])
def test_exchanges_hide_behind_the_other_pass_in_the_published_order(floating: bool) -> None:
    """DeepSeek-V3, figure 4: each exchange runs beside compute of the other pass, gradients of weights fill in."""
    forward = exchanging("k4", "e2", "k3", "e4", "k1", floating=floating)
    backward = exchanging("k1", "e3", "k5", "w2", "e4", "k6", "w3", floating=floating)
    together = merge(forward, backward, seconds)
    kernels = [name for name in names(together) if name[0] != "e"]
    assert kernels == ["k1", "k4'", "k5", "k3'", "w2", "k6", "k1'", "w3"]
    assert [name for name in names(together) if name[0] == "e"] == ["e3", "e2'", "e4", "e4'"]
    assert length(together) == 25


def test_what_no_kernel_is_left_for_is_exposed() -> None:
    """An exchange of 9 s beside 3 s of the other pass and 2 s of weights' gradients; the next one waits behind it."""
    together = merge(exchanging("k3", "e1", "k1"), exchanging("k1", "w2", "e9", "k1"), seconds)
    assert length(together) == 1 + 9 + 1 + 1


def test_without_exchanges_gradients_of_weights_stay_where_they_are() -> None:
    """Tensor-parallel passes are what they were."""
    backward = exchanging("k1", "w9", "k1")
    assert names(merge(exchanging("k2"), backward, seconds)) == ["k2'", "k1", "w9", "k1"]


exchanging_chains = st.lists(st.tuples(st.sampled_from("kwe"), st.integers(1, 9)), min_size=1, max_size=10).map(
    lambda items: exchanging(*(f"{kind}{size}" for kind, size in items))
)


@pytest.mark.parametrize("examples", some([50, 500], 1))
def test_pairs_that_exchange_keep_their_order_and_are_never_idle(examples: int) -> None:
    """Steps wait for earlier ones only; a pair takes no more than all its steps, no less than its busiest stream."""
    assert_law(assert_never_idle, examples, forward=chains, backward=exchanging_chains)


def assert_never_idle(forward: Phase, backward: Phase) -> None:
    """A pair that exchanges keeps both orders and is as long as it can be."""
    together = merge(forward, backward, seconds)
    assert sorted(names(together)) == sorted([f"{s.name}'" for s in forward.steps] + [s.name for s in backward.steps])
    assert all(before < at for at, step in enumerate(together.steps) for before in step.after)
    chain = [step.name for step in together.steps if step.layer != AHEAD and step.kind != "weight_gradient"]
    assert chain == [step.name for step in backward.steps if step.kind != "weight_gradient"]
    took = [step.duration_s for step in together.steps]
    busiest = max(
        sum(step.duration_s for step in together.steps if step.stream == stream) for stream in (COMPUTE, TENSOR, EXPERT)
    )
    assert max(busiest, length(forward)) <= length(together) <= sum(took)


def dualpipe(**changes: object) -> Lowered:
    """Llama 2 7B on one DGX H100 in a V of four ranks, tensor-parallel pairs, without contention."""
    cluster = load_cluster("dgx-h100", 1)
    training = Training(seq_len=4096, global_batch=16)
    plan = Plan(**{"tp": 2, "pp": 4, "vpp": 2, "dp": 1, "schedule": "dualpipev", **changes})
    job = make_job("llama-2-7b", cluster, plan, training)
    return lower(job, cluster, schedule_of(job.layout, training), contention=False)


def durations(entry: Lowered) -> dict[tuple[str, int, bool], int]:
    """Nanoseconds of a pass by (letter, stage, whether it runs in a pair, then of both together)."""
    found = {}
    for class_id, actions in enumerate(entry.actions):
        rank = int(entry.stage_of_class[class_id])
        letters, stages, _ = entry.maker.schedule.letters(rank)
        joined = entry.maker.schedule.ranks[rank].overlap
        for at, (letter, stage) in enumerate(zip(letters, stages.tolist(), strict=True)):
            template = actions.templates[actions.template[at]]
            found[letter, stage, bool(joined[at])] = template.nodes[0].duration_ns
    return found


def test_the_engine_runs_pairs_as_an_executor_of_the_table_does() -> None:
    """Finish of every action equals that of a plain walk over the table, pairs as units, messages added."""
    entry = dualpipe()
    timing = reference.run(entry.program)
    took, table = durations(entry), entry.maker.schedule
    message = {
        (letter, stage): _message_ns(entry, letter, stage) for letter in "FB" for stage in range(table.num_stages)
    }
    done: dict[tuple[str, int, int], int] = {}
    clock, position = [0] * table.num_ranks, [0] * table.num_ranks
    while any(at < len(rank) for at, rank in zip(position, table.ranks, strict=True)):
        before = list(position)
        for rank, columns in enumerate(table.ranks):
            at = position[rank]
            if at == len(columns):
                continue
            unit = table.actions[rank][at : at + 1 + int(columns.overlap[at])]
            ready = [_ready(table, done, message, action) for action in unit]
            if None in ready:
                continue
            clock[rank] = max([clock[rank], *ready]) + took[unit[0].kind, unit[0].stage, len(unit) > 1]
            for action in unit:
                done[action.kind if action.kind != "I" else "B", action.stage, action.microbatch] = clock[rank]
            position[rank] += len(unit)
        assert position != before
    ends = timing.finish_ns[entry.op_of_slot]
    ops = entry.program.ops
    kinds = np.array([label.kind for label in entry.program.labels])[ops.label]
    passes = (np.isin(kinds, ["pp", "join"], invert=True) & (ops.stage >= 0))[entry.op_of_slot]
    last = {c: int(ends[passes & (entry.slots.class_id == c)].max()) for c in range(4)}
    assert last == dict(enumerate(clock))


def _message_ns(entry: Lowered, letter: str, stage: int) -> int:
    """Nanoseconds that the result of a pass travels, 0 where it stays."""
    target = stage + 1 if letter == "F" else stage - 1
    ranks = entry.maker.schedule.rank_of_stage
    if not 0 <= target < len(ranks) or ranks[target] == ranks[stage]:
        return 0
    node = next(
        template.nodes[-1]
        for actions in entry.actions
        for template in actions.templates
        if template.nodes[-1].collective and template.nodes[-1].collective.op == "send"
    )
    return entry.maker.network.solo_ns(0, replace(node.collective, group=f"pp+{(ranks[target] - ranks[stage]) % 4}"))


def _ready(table, done, message, action) -> int | None:
    """When the input of an action is there, None while unknown."""
    if action.kind == "W" or (action.kind == "F" and action.stage == 0):
        return 0
    last = table.num_stages - 1
    key = ("F", action.stage - 1) if action.kind == "F" else ("B", action.stage + 1)
    key = ("F", last) if action.kind != "F" and action.stage == last else key
    found = done.get((*key, action.microbatch))
    return None if found is None else found + message[key] * (key[1] != action.stage)


@pytest.mark.parametrize("p", [2, 4])
def test_the_bubble_is_the_published_one(p: int) -> None:
    """(p - 1)(FB + B - 3W) for chunks of equal duration; ends and messages of this model add a few percent."""
    cluster = load_cluster("dgx-h100", 1)
    training = Training(seq_len=4096, global_batch=4 * p)
    plan = Plan(tp=8 // p, pp=p, vpp=2, dp=1, schedule="dualpipev")
    job = make_job("gpt3-175b", cluster, plan, training)
    entry = lower(job, cluster, schedule_of(job.layout, training), contention=False)
    took = durations(entry)
    middle = range(1, 2 * p - 1)
    both = np.mean([took[key] for key in took if key[2] and key[1] in middle])
    backward = np.mean([took["B", stage, False] for stage in middle])
    weight = np.mean([ns for (letter, _, _), ns in took.items() if letter == "W"])
    timing = reference.run(entry.program)
    kinds = np.array([label.kind for label in entry.program.labels])[entry.program.ops.label]
    passes = np.isin(kinds, ["forward", "backward", "input_gradient", "weight_gradient", "forward_backward"])
    busy = np.bincount(entry.program.ops.class_id[passes], (timing.finish_ns - timing.start_ns)[passes])
    window = int(timing.finish_ns[passes].max())
    assert window - busy.mean() == pytest.approx((p - 1) * (both + backward - 3 * weight), rel=0.15)


def test_pairs_with_reductions_in_them_run_in_turn() -> None:
    """ZeRO-2 reduces after every backward: the table's pairs stay two passes."""
    plain = dualpipe(tp=1, dp=2, zero=1)
    reducing = dualpipe(tp=1, dp=2, zero=2)
    kinds = [{node.kind for a in e.actions for t in a.templates for node in t.nodes} for e in (plain, reducing)]
    assert "forward_backward" in kinds[0]
    assert "forward_backward" not in kinds[1]
