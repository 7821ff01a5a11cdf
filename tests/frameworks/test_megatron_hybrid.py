"""Hybrids as Megatron-LM arguments: the pattern with stages, what stands beside it, and back."""

import dataclasses

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import load_target, read
from simpar.frameworks.megatron_hybrid import hybrid_losses, layers_of_pattern, pattern
from simpar.frameworks.subject import subject

from .conftest import TRAINING, checked, exported
from .test_contract import table

PLANS = {
    "experts": {"dp": 8, "ep": 8, "zero": 1, "etp": 1},
    "experts-tp": {"tp": 2, "dp": 4, "ep": 4, "etp": 1, "zero": 1, "sequence_parallel": True},
    "pipeline": {"pp": 4, "dp": 2, "ep": 2, "etp": 1, "zero": 1},
    "interleaved": {"pp": 2, "vpp": 2, "dp": 4, "ep": 4, "etp": 1, "zero": 1},
}
MODELS = ("nemotron-3-nano", "nemotron-3-super")
CASES = [(model, label) for model in MODELS for label in PLANS]


def of(model, **values):
    """What an export of a plan is made of."""
    plan = checked(model, **values)
    return subject(plan, load_model(model), TRAINING, "megatron")


@pytest.mark.parametrize(("model", "label"), CASES)
def test_options_exist_and_come_back(model, label):
    """Every option is one of Megatron-LM's, and the arguments read back as the model, its stages and experts."""
    plan = checked(model, **PLANS[label])
    found = load_target("megatron")
    given = found.options(subject(plan, load_model(model), TRAINING, found.stack))
    for name, value in given.items():
        kind = table("megatron")[name]
        assert (kind == "flag") == (value is None)
        assert not isinstance(kind, list) or str(value) in kind
    text = exported("megatron", plan)["command.sh"]
    assert "pretrain_hybrid.py" in text
    back = read(text, "command.sh", "megatron").plan
    assert load_model(back.model).dims == load_model(model).dims
    assert (back.mesh.pp, back.pipeline.vpp, back.mesh.ep) == (plan.mesh.pp, plan.pipeline.vpp, plan.mesh.ep)


def test_layers_that_recompute_come_back():
    """Half the layers of a hybrid, of which no option says how many there are."""
    text = exported("megatron", checked("nemotron-h-8b", dp=8, recompute="every:2"))["command.sh"]
    assert "--num-layers" not in text
    assert read(text, "command.sh", "megatron").plan.memory.recompute == "every:2"
    plan = checked("nemotron-3-super", dp=8, ep=8, etp=1, recompute="every:3")  # 88 layers and 2 that predict
    again = read(exported("megatron", plan)["command.sh"], "command.sh", "megatron").plan
    assert again.memory.recompute == "every:3"
    arguments = "--pipeline-model-parallel-size 2 --hybrid-layer-pattern 'MEM|EM/*E'"  # three layers a stage
    text = f"{arguments} --recompute-granularity full --recompute-method block --recompute-num-layers 2"
    assert read(text, "train.sh", "megatron").plan.memory.recompute == "layers:full*2,none*1,full*2,none*1"


def test_a_pattern_has_bars_between_stages_and_passes_behind():
    """Stages spell the model's pattern; prediction layers are on the last."""
    one = of("nemotron-3-super", dp=8, ep=8, etp=1)
    assert pattern(one) == load_model("nemotron-3-super").facts["pattern"] + "/*E/*E"
    four = of("nemotron-3-super", pp=4, dp=2, ep=2, etp=1)
    assert pattern(four).replace("|", "") == pattern(one)
    assert layers_of_pattern(pattern(four)) == four.layers
    assert sum(layers_of_pattern("MEM*|EME/*E/*E")) == 9


def test_a_dense_hybrid_has_no_experts():
    """Nemotron-H: squared ReLU, no positions, eight groups."""
    found = load_target("megatron").options(of("nemotron-h-8b", tp=4, dp=2, sequence_parallel=True))
    assert found["--ffn-hidden-size"] == 21504
    assert (found["--mamba-num-groups"], found["--position-embedding-type"]) == (8, "none")
    assert "--squared-relu" in found
    assert not any("moe" in name or "expert" in name for name in found if name != "--expert-model-parallel-size")
    assert "--mtp-use-repeated-layer" not in found


def test_what_mixers_have_built_in_is_told():
    """Chunks and convolutions have one size in Megatron-Core, and every stage has layers of the pattern."""
    given = of("nemotron-h-8b", dp=8)
    other = dataclasses.replace(given.graph, dims={**given.graph.dims, "chunk": 256})
    said = [str(loss) for loss in hybrid_losses(dataclasses.replace(given, graph=other))]
    assert said == ["model.chunk = 256: Megatron-Core's mixers have 128"]
    empty = of("nemotron-h-8b", pp=4, dp=2, layers=(0, 20, 20, 12))
    assert "every stage has layers" in str(next(iter(hybrid_losses(empty))))
