"""An encoder in the bubbles of a pipeline: what a step of it takes, holds and sends, beside other places."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.encoders import encoded_elements, encoder_layers
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.cost.memory.terms import StaticMemory
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.layout.action_table import schedule_of
from simpar.layout.sharding import rank_dims
from simpar.plan.schedules.actions import F
from simpar.program.lower import Lowered
from simpar.program.perturbation import Perturbation
from simpar.simulation import lower_job, make_job
from tests.architectures.test_vision import CLUSTER, PATCHES, STACKED, TEXT, VISION, stacked
from tests.gate import some

TRAINING = simpar.Training(seq_len=1024, global_batch=16)
OTHERS: list[dict[str, object]] = [
    {}, {"tp": 2, "zero": 1}, {"schedule": "zb-h1"}, {"zero": 1}, {"pp": 2, "vpp": 2}, {"cp": 2},
]  # fmt: skip
PLAN = {"pp": 4, "micro_batch": 1, "encoder_in_bubbles": True}


def seeing(**more: object) -> ModelGraph:
    """A small vision tower of three layers before a Llama of sixteen."""
    text = {**TEXT, "num_hidden_layers": 16}
    return read({"model_type": "llava", "vision_config": VISION, "text_config": text, **more}, "seeing")


def lowered(graph: ModelGraph, plan: dict[str, object]) -> Lowered:
    """The Program of a step."""
    return lower_job(make_job(graph, CLUSTER, simpar.Plan.model_validate(plan), TRAINING), CLUSTER)


def step_ns(one: Lowered, engine: str = "auto") -> int:
    """The step."""
    return int(choose_engine(engine, one.program)(one.program).makespan_ns)


@pytest.mark.parametrize("frozen", [0, 4, 5])
def test_a_step_takes_the_text_and_one_pass_of_the_encoder_each_way(frozen: int) -> None:
    """Bubbles of 3 (f + b) a rank hold all other passes; what comes on top are messages and sums of gradients.

    Frozen up to the connector (4) its backward is the connector's; frozen with it (5), there is none. The table of
    tokens is frozen with them, which makes the rest of the step a little shorter.
    """
    one = lowered(seeing(), {**PLAN, "frozen_layers": frozen})
    forward_ns, backward_ns, _ = one.job.layout.encoder_costs
    text = lowered(seeing(images_per_sequence=0), {"pp": 4, "micro_batch": 1})
    assert (backward_ns == 0) == (frozen == 5)
    more_ns = step_ns(one) - step_ns(text) - forward_ns - max(1, _of_first(one)) * backward_ns
    assert frozen or more_ns > 0
    assert abs(more_ns) < 0.1 * (forward_ns + backward_ns)


def _of_first(one: Lowered) -> int:
    return schedule_of(one.job.layout, TRAINING).ranks_of_first.count(0)


@pytest.mark.parametrize("plan", some(OTHERS, OTHERS[:3]))
def test_engines_agree_and_ranks_may_be_folded(plan: dict[str, object]) -> None:
    """One representative a class of ranks gives the step of every rank by itself."""
    one = lowered(seeing(), {**PLAN, **plan})
    assert step_ns(one, "reference") == step_ns(one, "plain") == step_ns(one, "event")
    apart = lower_job(one.job, CLUSTER, Perturbation(fold=False))
    assert step_ns(apart) == step_ns(one)


def test_it_is_faster_than_an_encoder_in_the_first_stage() -> None:
    """Whose stage every microbatch passes; both train the same, so parameters and FLOP agree."""
    first, inside = (
        simpar.simulate(seeing(), CLUSTER, {**PLAN, "encoder_in_bubbles": at}, TRAINING) for at in (False, True)
    )
    assert inside.step_time_s < first.step_time_s
    assert inside.speed.mfu * inside.step_time_s == pytest.approx(first.speed.mfu * first.step_time_s)


def states(graph: ModelGraph, plan: dict[str, object]) -> list[StaticMemory]:
    """What each pipeline rank holds whatever runs."""
    one = lowered(graph, plan)
    return [builder.static_memory(stage) for stage, builder in enumerate(one.maker.builders)]


@pytest.mark.parametrize("zero", [0, 1])
def test_every_pipeline_rank_holds_the_encoder(zero: int) -> None:
    """2 bytes of weights a parameter, and 12 of states, which 8 ranks of pipelines and replicas share in ZeRO-1."""
    graph = seeing()
    inside = states(graph, {**PLAN, "zero": zero})
    text = states(seeing(images_per_sequence=0), {"pp": 4, "micro_batch": 1, "zero": zero})
    count = sum(graph.blocks[name].parameters(graph.dims) for name in graph.layers[: encoder_layers(graph)])
    shared = 8 if zero else 1
    for with_encoder, alone in zip(inside, text, strict=True):
        for category, size in (("parameters", 2 * count), ("optimizer_states", 12 * count / shared)):
            more = with_encoder.bytes_of(category) - alone.bytes_of(category)
            assert more == pytest.approx(size, abs=12 * 128 * shared)


def test_what_is_sent_is_what_the_encoder_made() -> None:
    """576 visual tokens of 128 features in 2 bytes, not the 1,024 of text that travel past a tower in a stage."""
    graph = seeing()
    one = lowered(graph, PLAN)
    dims = rank_dims(graph, one.job.layout, TRAINING).tensor
    assert encoded_elements(graph, dims) == PATCHES * 128
    messages = one.maker.messages
    (sent,) = messages.sends("F", 0, 3)
    assert (sent.collective.size_bytes, sent.collective.group) == (PATCHES * 128 * 2, "pp+3")
    assert messages.sends("F", 0, 0) == ()  # its own rank's
    (back,) = messages.sends("B", 1, 2)
    assert (back.collective.size_bytes, back.collective.group) == (PATCHES * 128 * 2, "pp+2")
    assert {f"pp+{hop}" for hop in (1, 2, 3)} <= {kind.name for kind in one.maker.network.kinds}


def test_features_that_are_tapped_travel_with_the_tokens() -> None:
    """Qwen 3 adds outputs of two layers of its tower behind the first layers of the text."""
    graph = stacked(text_config={**STACKED["text_config"], "num_hidden_layers": 8})
    one = lowered(graph, {**PLAN, "pp": 2})
    dims = rank_dims(graph, one.job.layout, TRAINING).tensor
    assert encoded_elements(graph, dims) == 3 * dims["visual.seq"] * 128
    assert step_ns(one) > 0


def test_memory_counts_messages_that_wait() -> None:
    """Outputs on the first rank until its forwards read them."""
    one = lowered(seeing(), PLAN)
    table = schedule_of(one.job.layout, TRAINING)
    builder = one.maker.builders[0]
    assert builder.waiting_bytes == tuple(count * PATCHES * 128 * 2 for count in table.waiting)
    entered = [table.ranks[0].code.tolist().index(F)]
    assert table.waiting[0] >= 3
    assert entered == [0]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"pp": 1}, "nothing is pipelined"), ({"kind": "fsdp", "zero": 3}, "kind = fsdp"),
        ({"schedule": "dualpipe"}, "passes that overlap"), ({"micro_batch": 8}, "1 microbatches on 4 pipeline ranks"),
        ({"optimizer": "muon"}, "whole matrices"), ({"recompute": "optimal"}, "recompute = optimal"),
        ({"zero": 2}, "zero = 2"),
    ],
)  # fmt: skip
def test_where_it_cannot_be_is_refused(plan: dict[str, object], words: str) -> None:
    """In one line that says what is allowed."""
    with pytest.raises(UserError, match=f"^plan.encoder_in_bubbles = true: .*{words}.*allowed there"):
        lowered(seeing(), {**PLAN, **plan})


def test_models_without_an_encoder_in_front_are_refused() -> None:
    """Text alone; and searches, which leave encoders where they are."""
    with pytest.raises(UserError, match="tiny-llama has no encoder in front of its text"):
        simpar.simulate("tiny-llama", CLUSTER, PLAN, TRAINING)
    with pytest.raises(UserError, match="searched with encoders in the first stages"):
        simpar.search(seeing(), CLUSTER, TRAINING, base=PLAN)
    few = {"tp": 1, "pp": 2, "micro_batch": 1, "zero": 0, "schedule": "1f1b"}
    found = simpar.search(seeing(), CLUSTER, TRAINING, constraints=few)
    assert found.to_dict()["scope"]["held"]["encoder_in_bubbles"] is False
