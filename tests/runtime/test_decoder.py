"""Decoders built from graphs: parameters to the last one, shapes, masks and initial values."""

import pytest

torch = pytest.importorskip("torch")

from simpar.architectures.catalogue import catalogue, load_model  # noqa: E402
from simpar.architectures.graph import Block, Operator, term  # noqa: E402
from simpar.architectures.hf_config import read  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.decoder import OUTPUT, TABLE, BlockModule, Decoder, Part, Recompute  # noqa: E402
from simpar.runtime.initial import initial_value  # noqa: E402
from simpar.runtime.strategy import is_decoder  # noqa: E402
from tests.gate import some  # noqa: E402

TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def decoder(graph, **part):
    """All of a model, or a part of it, filled with initial values."""
    whole = {"layers": range(len(graph.layers)), "embedding": True, "head": True}
    model = Decoder(graph, Part(**{**whole, **part}), Place(), Recompute())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, tuple(parameter.shape), 0))
    return model


SMALLEST = (
    "distilgpt2", "tiny-llama", "mistral-7b", "qwen1.5-0.5b", "qwen3-0.6b", "gemma-2-2b", "gemma-3-270m",
    "phi-3-mini", "pythia-70m", "falcon-7b", "opt-125m", "bloom-560m", "olmo-2-1b", "mpt-125m", "mixtral-8x7b",
    "qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "tiny-mixture", "small-mixture", "moonlight-16b-a3b", "kimi-k2",
    "glm-4.5-air", "gpt-oss-20b", "llama-4-maverick", "olmoe-1b-7b", "phi-3.5-moe", "dbrx", "grok-1", "nemotron-h-4b",
    "glm-4.7-flash", "gemma-2b", "phi-1.5", "gpt-j-6b", "gpt-neo-125m", "olmo-1b", "santacoder", "starcoder2-3b",
    "smollm3-3b", "internlm3-8b", "chatglm3-6b", "glm-4-32b", "seed-oss-36b", "exaone-4.0-32b", "stablelm-2-1.6b",
    "aya-expanse-8b", "granite-3.3-2b", "minimax-m2", "ernie-4.5-21b-a3b", "mamba2-1.3b", "hunyuan-a13b",
    "ling-mini-2.0", "k-exaone-236b-a23b", "dots-llm1", "olmo-3-7b", "nemotron-4-340b", "command-a-111b",
    "ernie-4.5-0.3b", "afm-4.5b", "falcon-h1-7b", "granite-4.0-micro", "hunyuan-7b", "solar-open-100b",
)  # fmt: skip
"""The smallest model of each model_type that the runtime builds, named so that collecting tests reads no config."""
IN_GATE = (
    "distilgpt2", "tiny-llama", "gemma-3-270m", "pythia-70m", "bloom-560m", "olmo-2-1b", "qwen3-0.6b",
    "qwen1.5-moe-a2.7b", "tiny-mixture", "small-mixture", "gpt-oss-20b", "nemotron-h-4b", "mamba2-1.3b",
)  # fmt: skip
"""Small ones with learnt positions, rotations, slopes, windows, norms behind, experts of every kind, latent attention,
sinks, and state-space layers."""


def smallest_of_every_family():
    """The smallest model of each model_type that the runtime builds."""
    sizes = {}
    for name, config in catalogue().items():
        graph = load_model(name)
        size, kind = graph.num_parameters(), config["model_type"]
        both = graph.is_mixture and "mamba_heads" in graph.dims
        if both or graph.details.unbuilt or not is_decoder(graph):
            continue
        if kind not in sizes or size < sizes[kind][0]:
            sizes[kind] = (size, name)
    return [name for _, name in sizes.values()]


def test_an_activation_is_the_configs_or_an_error():
    """Hybrids name theirs otherwise; an unknown one is not taken for the family's usual."""
    sizes = {"mamba_num_heads": 4, "mamba_head_dim": 4, "ssm_state_size": 4, "n_groups": 2}
    hybrid = {**TINY, **sizes, "model_type": "nemotron_h", "hybrid_override_pattern": "M-"}
    model = decoder(read({**hybrid, "mlp_hidden_act": "relu2"}, "tiny"))
    assert model.layers["1"].activation.function(torch.tensor([-2.0, 3.0])).tolist() == [0.0, 9.0]
    with pytest.raises(UserError, match="hidden_act = cubed: the runtime knows silu"):
        decoder(read({**hybrid, "mlp_hidden_act": "cubed"}, "tiny"))


@pytest.mark.slow
def test_every_family_that_is_built_has_its_smallest():
    """A family that is new in the catalogue is tried below."""
    assert sorted(smallest_of_every_family()) == sorted(SMALLEST)


@pytest.mark.parametrize("name", some(SMALLEST, IN_GATE))
def test_the_module_has_the_parameters_of_the_graph(name):
    """Built without memory, a model has exactly as many parameters as its graph counts, and what only training has."""
    graph = load_model(name)
    with torch.device("meta"):
        model = Decoder(graph, Part(range(len(graph.layers)), embedding=True, head=True), Place(), Recompute())
    further = sum(graph.blocks[n].parameters(graph.dims) for n in graph.layers if n in graph.auxiliary)
    assert sum(parameter.numel() for parameter in model.parameters()) == graph.num_parameters() + further


@pytest.mark.parametrize("kind", some(["llama", "qwen3", "gemma2", "gpt_neox", "phi", "olmo2"], ["gemma2", "phi"]))
def test_stages_in_a_row_are_the_whole_model(kind):
    """Embedding and layer 0, then layer 1 and head give the logits of the model in one piece."""
    graph = read({"model_type": kind, "head_dim": 8, **TINY}, kind)
    tokens = torch.arange(24).view(2, 12)
    first = decoder(graph, layers=range(1), head=False)
    second = decoder(graph, layers=range(1, 2), embedding=False)
    if graph.tied_embeddings:
        with torch.no_grad():
            second.get_parameter(OUTPUT).copy_(first.get_parameter(TABLE))
    torch.testing.assert_close(second(first(tokens)), decoder(graph)(tokens))


@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_causal_and_windowed(window):
    """Changing a token changes only logits from there on, and within layers x (window - 1) + 1 tokens."""
    config = {"model_type": "mistral", **TINY, "sliding_window": window, "num_key_value_heads": 2}
    model = decoder(read(config, "mistral"))
    tokens = torch.arange(16).view(1, 16)
    changed = tokens.clone()
    changed[0, 5] = 50
    moved = (model(tokens) - model(changed)).abs().amax(-1)[0] > 0
    last = 16 if window is None else 5 + 2 * (window - 1) + 1
    assert moved.tolist() == [5 <= position < last for position in range(16)]


def test_initial_values_depend_on_seed_and_name_only():
    """Any rank can make its part of any parameter."""
    one = initial_value("layers.0.o_proj.parts.0.weight", (4, 4), 1)
    assert torch.equal(one, initial_value("layers.0.o_proj.parts.0.weight", (4, 4), 1))
    assert not torch.equal(one, initial_value("layers.0.o_proj.parts.0.weight", (4, 4), 2))
    assert not torch.equal(one, initial_value("layers.1.o_proj.parts.0.weight", (4, 4), 1))
    assert initial_value("head.final_norm.weight", (3,), 0).tolist() == [1, 1, 1]
    assert initial_value("head.final_norm.bias", (3,), 0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("recompute", ["full", "selective", "operators", "every:2"])
def test_recompute_changes_no_gradient(recompute):
    """Whatever is thrown away and computed again, gradients stay the same to the last bit."""
    graph = read({"model_type": "llama", **TINY}, "llama")
    part = Part(range(2), embedding=True, head=True)
    policy = Recompute("selective", "operators") if recompute == "operators" else Recompute(recompute)
    gradients = []
    for choice in (Recompute(), policy):
        model = Decoder(graph, part, Place(), choice)
        model.load_state_dict(decoder(graph).state_dict())
        model(torch.arange(24).view(2, 12)).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(("recompute", "kept"), [("full", 0.35), ("selective", 0.97), ("operators", 0.8)])
def test_recompute_keeps_less(recompute, kept):
    """Full recompute keeps a layer's input, selective drops attention, operators every second product."""
    graph = read({"model_type": "llama", **TINY, "num_hidden_layers": 8}, "llama")
    kind, meaning = ("selective", "operators") if recompute == "operators" else (recompute, "attention")

    def saved(policy):
        model = Decoder(graph, Part(range(8), embedding=False, head=False), Place(), policy)
        total = 0

        def count(tensor):
            nonlocal total
            total += 0 if tensor.is_leaf and tensor.requires_grad else tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(torch.randn(2, 64, 32, requires_grad=True))
        return total

    assert saved(Recompute(kind, meaning)) < kept * saved(Recompute())


def test_an_operator_that_cannot_run_is_named():
    """A graph with an operator the runtime does not know is refused by name."""
    size = term("hidden")
    block = Block("layer", (Operator("wave", "fourier", size, size, "tensor", inputs=("input",)),))
    with pytest.raises(UserError, match="wave of kind fourier"):
        BlockModule(block, {})
