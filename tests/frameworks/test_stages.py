"""Plans whose stages have devices of their own: exported where they are one layout, else refused by operator."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks import export, unsupported
from simpar.layout.decide import complete_plan
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.plan.uniform_stages import as_uniform
from tests.as_stages import as_stages
from tests.frameworks.conftest import TRAINING

GRAPH = load_model("llama-3-8b")
LAYOUTS = {
    "dp": {"dp": 8},
    "tp": {"tp": 4, "dp": 2, "sequence_parallel": False},
    "tp, sequence": {"tp": 8, "dp": 1, "sequence_parallel": True, "recompute": "full"},
    "pp": {"pp": 4, "dp": 2, "layers": (7, 9, 9, 7), "schedule": "1f1b"},
    "3d": {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True, "recompute": "full", "micro_batch": 2},
}


def whole(stack="megatron", **values):
    """A checked plan of eight devices with ZeRO-1 where there is data parallelism."""
    zero = int(values.get("dp", 1) > 1)
    plan = Plan(**{"zero": zero, "kind": "ddp", "stack": stack, **values})
    return complete_plan(plan, Workload(GRAPH, TRAINING, 8, 8))


def staged(*, changes=(), **values):
    """The same written as stages; ``changes`` are (stage, field, value)."""
    plan = as_stages(whole(**values), GRAPH)
    stages = list(plan.pipeline.stages)
    for index, field, value in changes:
        stages[index] = stages[index].model_copy(update={field: value})
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": tuple(stages)})})


def with_word(plan, block, name, words, *, stage=0):
    """The plan with other words for one operator, or end, of a block of a stage."""
    found = plan.pipeline.stages[stage].model_dump()
    own = found["sharding"][block]
    (own if name in own else own["operators"])[name] = words
    stages = list(plan.pipeline.stages)
    stages[stage] = type(stages[stage]).model_validate(found)
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": tuple(stages)})})


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, target) for name in LAYOUTS for target in ("torch", "megatron")), ("tp, sequence", "torchtitan")],
)
def test_a_layout_written_as_stages_is_exported_as_the_layout(name, target):
    """The same files as from the plan that has no stages of its own, but for the plan beside them."""
    plan = whole(**LAYOUTS[name])
    one, *others = (
        export(each, GRAPH, TRAINING, target)
        for each in (plan, as_stages(plan, GRAPH), as_stages(plan, GRAPH, roles=False))
    )
    for two in others:
        assert one.lost == two.lost == ()
        for file in one.files.keys() - {"plan.json"}:
            assert one.files[file] == two.files[file], file


def test_axes_of_the_other_order_become_a_rank_order():
    """Data parallelism on the fastest axis; two axes of data are one."""
    plan = staged(tp=2, dp=4)
    (stage,) = plan.pipeline.stages
    turned = {
        name: block.model_copy(
            update={
                "input": block.input[::-1], "output": block.output[::-1],
                "operators": {op: words[::-1] for op, words in block.operators.items()},
            }
        )
        for name, block in stage.sharding.items()
    }  # fmt: skip
    swapped = stage.model_copy(update={"mesh": (2, 4), "sharding": turned})
    found = as_uniform(
        plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": (swapped,)})}), GRAPH
    )
    assert (found.mesh.tp, found.mesh.dp, found.mesh.order) == (2, 4, ("dp", "tp", "cp", "pp"))


def test_recomputation_stage_by_stage_is_one_layer_by_layer():
    """What no target has a word for is lost in a line, not the layout."""
    plan = staged(pp=4, dp=2, layers=(7, 9, 9, 7), changes=[(0, "recompute", "full")])
    assert as_uniform(plan, GRAPH).memory.recompute == "layers:full*7,none*25"
    assert [reason.split(" =")[0] for reason in unsupported(plan, GRAPH, TRAINING, "megatron")] == ["recompute"]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            with_word(staged(dp=8), "embedding", "token_embedding", ("features", "replicate")),
            "plan.stages[0].sharding.embedding.token_embedding as features on axis 0 of mesh (8, 1)",
        ),
        (
            with_word(staged(pp=2, dp=4), "layer", "gathered", ("o_proj",), stage=1),
            "plan.stages[1].sharding.layer.o_proj with gathered weights on axis 0 of mesh (4, 1)",
        ),
        (
            with_word(staged(tp=2, dp=4), "layer", "mlp_down", ("batch", "replicate")),
            "layer.mlp_down as replicate on axis 1 of mesh (4, 2), where one layout for all stages has tensor",
        ),
        (
            staged(pp=2, dp=4, changes=[(0, "first_device", 4), (1, "first_device", 0)]),
            "plan.stages[0]: first_device = 4",
        ),
        (
            staged(pp=2, dp=4, changes=[(1, "mesh", (1, 4))]),
            "plan.stages[1]: mesh (1, 4) of data parallelism x tensor parallelism",
        ),
    ],
)
def test_what_is_no_single_layout_is_refused_by_stage_and_operator(plan, words):
    """Also where losses are allowed: there is nothing to write."""
    for lossy in (False, True):
        with pytest.raises(UserError) as caught:
            export(plan, GRAPH, TRAINING, "megatron", lossy=lossy)
        assert words in str(caught.value)
        assert "allowed outside of stages of their own" in str(caught.value)
    assert words in unsupported(plan, GRAPH, TRAINING, "torch")[0]


def test_durations_that_a_schedule_is_made_for_are_no_loss():
    """A table is made from them; the targets write it or have their own."""
    plan = whole(pp=4, dp=2, schedule="1f1b")
    timed = plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"pass_costs": (1.0, 1.2, 0.8)})})
    for target in ("torch", "megatron"):
        assert unsupported(timed, GRAPH, TRAINING, target) == unsupported(plan, GRAPH, TRAINING, target)
