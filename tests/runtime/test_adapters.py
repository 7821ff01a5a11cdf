"""Adapters and frozen layers: as many trained parameters as simulated, and a product that starts as it was."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from simpar.architectures.catalogue import load_model  # noqa: E402
from simpar.architectures.families import DECLARED  # noqa: E402
from simpar.architectures.graph import evaluate  # noqa: E402
from simpar.architectures.hf_config import read  # noqa: E402
from simpar.architectures.training import Training  # noqa: E402
from simpar.architectures.tuning import add_adapters  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.plan.choices.tuning import Tuning  # noqa: E402
from simpar.plan.plan import Plan  # noqa: E402
from simpar.runtime.adapters import AdaptedLinear, Adapter, num_still, tune  # noqa: E402
from simpar.runtime.decoder import Part  # noqa: E402
from simpar.runtime.operators import CastingLinear  # noqa: E402
from simpar.runtime.prepare import prepare  # noqa: E402
from simpar.simulation import apply_tuning  # noqa: E402
from tests.runtime.test_decoder import TINY, decoder  # noqa: E402
from tests.runtime.tiny_models import MODELS  # noqa: E402

TRAINING = Training(seq_len=64, global_batch=16)


def trained_and_simulated(graph, tuning):
    """How many parameters of the decoder are trained, and how many of the simulated graph."""
    model = decoder(graph)
    tune(model, Tuning(**tuning), torch.float32)
    simulated = apply_tuning(Plan(**tuning), graph)
    blocks = [simulated.embedding, *(simulated.blocks[name] for name in simulated.layers), simulated.head]
    weights = [w for block in blocks for op in block.operators for w in op.weights if w.trainable]
    expected = sum(int(evaluate(weight.size, simulated.dims)) for weight in weights)
    return sum(p.numel() for p in model.parameters() if p.requires_grad), expected


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "tuning",
    [
        {"lora_rank": 4},
        {"lora_rank": 3, "lora_targets": ["q_proj", "v_proj"]},
        {"lora_rank": 2, "lora_targets": ["up_proj"], "frozen_layers": 1},
        {"frozen_layers": 1},
    ],
)
def test_as_many_parameters_are_trained_as_simulated(tuning, tied):
    """The trainable weights of the simulated graph, layer for layer."""
    config = {"model_type": "llama", **TINY, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    trained, expected = trained_and_simulated(read(config, "tiny"), tuning)
    assert trained == expected


def test_an_adapter_adds_nothing_until_it_is_trained():
    """With its outer half zero the product is the frozen one; with values it is the sum of both."""
    torch.manual_seed(0)
    plain = CastingLinear(6, 5)
    adapted = AdaptedLinear(plain, Adapter(2))
    with torch.no_grad():
        adapted.weight.copy_(plain.weight)
        adapted.bias.copy_(plain.bias)
        adapted.lora_down.normal_()
        adapted.lora_up.zero_()
    x = torch.randn(3, 6)
    assert torch.equal(adapted(x), plain(x))
    with torch.no_grad():
        adapted.lora_up.normal_()
    merged = plain.weight + adapted.lora_up @ adapted.lora_down
    torch.testing.assert_close(adapted(x), torch.nn.functional.linear(x, merged, plain.bias))


@pytest.mark.parametrize(
    ("tuning", "tied", "still"),
    [
        ({}, False, 0),
        ({"lora_rank": 2}, False, 1),
        ({"lora_rank": 2, "frozen_layers": 2}, False, 2),
        ({"frozen_layers": 3}, False, 3),
        ({"frozen_layers": 4}, False, 3),
        ({"frozen_layers": 2}, True, 2),
    ],
)
def test_stages_below_everything_trained_have_no_backward(tuning, tied, still):
    """Embedding alone, two layers, one layer, one layer with the head: what is frozen from below has no gradient."""
    parts = [Part(range(0), True, False), Part(range(2), False, False)]
    parts += [Part(range(2, 3), False, False), Part(range(3, 4), False, True)]
    graph = load_model("tiny-llama")
    assert num_still(parts, Tuning(**tuning), replace(graph, tied_embeddings=tied)) == still


def test_layers_without_a_target_have_no_backward_below_the_first():
    """Of a hybrid, the mixers of state spaces have no product that adapters stand beside."""
    graph = read({"model_type": "nemotron_h", **MODELS["nemotron_h"]}, "tiny")  # mamba, MLP, attention, MLP, mamba
    parts = [Part(range(at, at + 1), at == 0, at == 4) for at in range(5)]
    assert num_still(parts, Tuning(lora_rank=2), graph) == 1
    assert num_still(parts, Tuning(lora_rank=2, lora_targets=("q_proj",)), graph) == 2
    assert num_still(parts, Tuning(frozen_layers=1), graph) == 1


@pytest.mark.parametrize(
    ("kind", "tuning", "allowed"),
    [
        ("mamba2", {}, "no lora_rank, for it has no product"),
        ("nemotron_h", {"lora_targets": ("gate_proj",)}, "q_proj, k_proj, v_proj, o_proj, up_proj, down_proj$"),
        ("nemotron_h", {"lora_targets": ("q_proj",), "frozen_layers": 3}, "up_proj, down_proj$"),
    ],
)
def test_a_model_without_any_target_is_refused(kind, tuning, allowed):
    """Nothing would be trained; a part of the targets is enough."""
    graph = read({"model_type": kind, **MODELS[kind]}, "tiny")
    asked = Tuning(lora_rank=2, **tuning)
    with pytest.raises(UserError, match=f"tiny has none of these products .*; allowed: {allowed}"):
        add_adapters(graph, rank=2, targets=asked.lora_targets, frozen_layers=asked.frozen_layers, frozen_dtype="bf16")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lora_rank": 4, "dp": 4, "frozen_dtype": "nf4", "zero": 3}, "plan.frozen_dtype = nf4 with zero = 3"),
        ({"lora_rank": 4, "tp": 4, "frozen_dtype": "nf4"}, "plan.frozen_dtype = nf4 with tp = 4"),
        ({"lora_rank": 4, "dp": 4, "frozen_dtype": "fp32", "precision": "bf16"}, "plan.frozen_dtype = fp32"),
        ({"lora_rank": 4, "dp": 4, "sync": "local-sgd"}, "plan.lora_rank with sync = local-sgd"),
        ({"frozen_layers": 99, "dp": 4}, "plan.frozen_layers = 99: the model has"),
    ],
)
def test_what_cannot_be_tuned_is_refused(values, words):
    """One line, before torch starts."""
    with pytest.raises(UserError, match=words):
        prepare(Plan(**{"precision": "fp32", **values}), load_model("tiny-llama"), TRAINING, 4)


MIXED = {"model_type": "mixtral", **TINY, "num_key_value_heads": 2, "num_local_experts": 4}


@pytest.mark.parametrize(
    "tuning",
    [{"lora_rank": 4}, {"lora_rank": 2, "lora_targets": ["down_proj"]}, {"lora_rank": 2, "lora_targets": ["q_proj"]},
     {"lora_rank": 2, "frozen_layers": 1}, {"frozen_layers": 1}],
)  # fmt: skip
def test_as_many_are_trained_in_a_mixture(tuning):
    """Of every expert, whose router is frozen."""
    trained, expected = trained_and_simulated(read(MIXED, "tiny"), tuning)
    assert trained == expected


@pytest.mark.parametrize("targets", [["q_proj"], ["v_proj"], ["k_proj", "v_proj", "o_proj"]])
@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_as_many_are_trained_beside_latents(name, targets):
    """One adapter beside each product into a latent and out of it, whatever its number of outputs."""
    trained, expected = trained_and_simulated(
        read({"model_type": name, **MODELS[name]}, "tiny"), {"lora_rank": 3, "lora_targets": targets}
    )
    assert trained == expected


@pytest.mark.parametrize(
    ("name", "plan", "words"),
    [
        ("mixtral", {"lora_targets": ["up_proj"]}, "lora_targets = up_proj: experts have gates and ups as one"),
        ("mixtral", {"lora_dropout": 0.1}, "lora_dropout = 0.1 with adapters of experts: PEFT has none there either"),
        ("mixtral", {"frozen_dtype": "nf4"}, "frozen_dtype = nf4: grouped products of experts read no 4 bits"),
        ("mixtral", {"etp": 2, "tp": 2}, "etp = 2 with adapters of experts: are not cut; allowed: 1"),
    ],
)
def test_what_adapters_of_experts_do_not_go_with(name, plan, words):
    """One line with what is allowed."""
    graph = read({**MIXED, **DECLARED[name].tiny, "model_type": name}, "tiny")
    with pytest.raises(UserError, match=words):
        prepare(Plan(lora_rank=2, **plan), graph, TRAINING, 2)
