"""Traced graphs against torch's own counts and against the graphs of the same models by config."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path

import pytest

import simpar
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from simpar.planner import Constraints
from simpar.tracing.code import call_user_function
from tests.gate import some

torch = pytest.importorskip("torch")

SEQ = 32
NAMES = ("gpt", "llama", "vision", "pair", "short_pair", "stock", "perceptron", "diffusion", "twofold")
TRAINING = simpar.Training(seq_len=SEQ, global_batch=16)
CONFIGS = {
    "gpt": {
        "model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256,
        "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
    },
    "llama": {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 176,
        "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@cache
def traced(name: str, seq_len: int = SEQ) -> ModelGraph:
    """The graph of one of the small models, traced once for all tests."""
    return simpar.Model(f"traced_models:{name}", seq_len=seq_len)


def counted(name: str) -> tuple[int, int, int]:
    """What torch counts: parameters, FLOP of one forward of 2 sequences, their number of tokens."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    made = call_user_function(f"traced_models:{name}")
    module, given = made if isinstance(made, tuple) else (made, torch.zeros(1, SEQ, dtype=torch.int64))
    inputs = list(given.values()) if isinstance(given, dict) else list(given) if isinstance(given, tuple) else [given]
    first = inputs[0].shape[1] if not inputs[0].is_floating_point() else 0
    sized = []
    for each in inputs:
        shape = [2, *each.shape[1:]]
        if each.dim() == 2 and not each.is_floating_point() and each.shape[1] == first:
            shape[1] = SEQ
        sized.append(torch.zeros(shape, dtype=each.dtype))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        module(*sized)
    return sum(each.numel() for each in module.parameters()), counter.get_total_flops(), 2 * SEQ


@pytest.mark.parametrize("name", some(NAMES, 3))
def test_parameters_and_flop_are_torchs_own(name: str) -> None:
    """Exactly, for every model: numel of all parameters, and the FLOP that torch counts while it runs forward."""
    graph = traced(name)
    parameters, flop, tokens = counted(name)
    assert graph.num_parameters() == parameters
    ours = tokens * (matmul_flop_per_token(graph, SEQ) + attention_flop_per_token(graph, SEQ))
    assert ours == pytest.approx(flop, rel=1e-12)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize(
    "plan",
    some([{"tp": 2, "sequence_parallel": True}, {"zero": 3}, {"pp": 2, "tp": 2}, {"pp": 2, "recompute": "full"}], 1),
    ids=str,
)
def test_a_traced_decoder_is_the_built_in_one(name: str, plan: dict[str, object]) -> None:
    """Parameters, FLOP, memory and step time of the same model by config, in layouts of every kind."""
    ours, theirs = traced(name), read(CONFIGS[name], name)
    assert ours.num_parameters() == theirs.num_parameters()
    assert matmul_flop_per_token(ours, SEQ) == matmul_flop_per_token(theirs, SEQ)
    for convention in ("full", "causal"):
        assert attention_flop_per_token(ours, SEQ, convention) == attention_flop_per_token(theirs, SEQ, convention)
    cluster, whole = simpar.Cluster("dgx-h100"), simpar.Plan(micro_batch=1, **plan)
    one, two = (simpar.simulate(graph, cluster, whole, TRAINING, with_timeline=False) for graph in (ours, theirs))
    assert one.speed.step_time_s == pytest.approx(two.speed.step_time_s, rel=1e-3)
    assert one.memory.peak_memory_bytes == pytest.approx(two.memory.peak_memory_bytes, rel=2e-3)


def test_attention_to_keys_of_no_sequence_is_written_out() -> None:
    """Its two products and its softmax, which every tensor-parallel rank repeats; answers say so."""
    graph = traced("twofold")
    kinds = [(op.name, op.kind) for op in graph.blocks["layers"].operators if op.kind != "copy"]
    assert ("softmax", "activation") in kinds
    assert [name for name, kind in kinds if kind == "attention"] == []
    counted_so = "layers: an attention counts as its products and its softmax: its keys are no sequence's"
    assert counted_so in graph.facts["notes"]
    result = simpar.simulate(graph, "dgx-h100", simpar.Plan(zero=3), TRAINING, with_timeline=False)
    assert result.step_time_s > 0


def test_repeated_blocks_are_one() -> None:
    """Layers that are alike share a block; those that differ in a window do not; an encoder is no decoder."""
    assert list(traced("gpt").layers) == ["layers"] * 4
    assert list(traced("llama").layers) == ["layers"] * 2
    windowed = traced("windowed")
    assert list(windowed.layers) == ["layers", "layers_1", "layers", "layers_1"]
    masks = [windowed.blocks[name].operator("attention").attention for name in ("layers", "layers_1")]
    assert [(mask.causal, mask.window) for mask in masks if mask] == [(True, None), (True, 16)]
    pair = traced("short_pair")
    assert list(pair.layers) == ["encoder"] * 3 + ["between"] + ["decoder"] * 2


def test_encoder_output_travels_past_the_decoder() -> None:
    """Cross-attention reads the memory, which every decoder layer lets pass and which counts the encoder's tokens."""
    graph = traced("short_pair")
    cross = graph.blocks["decoder"].operator("cross_attention")
    assert cross.attention is not None
    assert cross.attention.context == "memory"
    assert not cross.attention.causal
    dims = {"batch": 2, "seq": SEQ, "context": SEQ, "memory": SEQ, **graph.dims}
    assert graph.blocks["decoder"].output_elements(dims) == 2 * 16 * 64 + 2 * SEQ * 64


def test_masks_and_heads_are_read_off_the_graph() -> None:
    """Grouped key-value heads, written-out causal softmax, a class token's tower of fixed length."""
    llama = traced("llama")
    assert [llama.dims[name] for name in ("heads", "kv_heads", "head_dim", "ffn")] == [8, 2, 8, 176]
    mask = traced("gpt").blocks["layers"].operator("attention").attention
    assert mask is not None
    assert mask.causal
    vision = traced("vision")
    assert [dims["seq"] for dims in vision.scopes] == [17]


@pytest.mark.slow
def test_search_finds_a_plan_that_simulates_again(tmp_path: Path) -> None:
    """The plan of a search names the function; it simulates again to the same time, with consent only."""
    name = "traced_models:llama"
    held = Constraints(fixed={"recompute": "none", "zero": 1})
    found = simpar.search(traced("llama"), simpar.Cluster("dgx-h100"), TRAINING, constraints=held)
    assert found.certified_optimal
    path = tmp_path / "plan.json"
    found.best.plan.save(path)
    with pytest.raises(UserError, match=r"is code, which a file may not run.*--model traced_models:llama"):
        simpar.load_scenario(path, {"cluster.hardware": "dgx-h100"})
    loaded = simpar.load_scenario(path, {"cluster.hardware": "dgx-h100", "model": name})
    result = simpar.simulate(**loaded.inputs())
    assert result.speed.step_time_s == pytest.approx(found.best.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", r"fft_fft in layers\.0\.attention: has no rule; allowed: "),
        ("headless", r"no product stands behind its last layer; allowed: a module that ends in a projection"),
        ("number", r"returns int; allowed: module:function that returns a torch module"),
        ("failing", r"cannot be built without weights \(ValueError: no such width\)"),
        ("missing", r"cannot be imported"),
    ],
)
def test_bad_models_are_one_line(name: str, message: str) -> None:
    """What cannot be costed is named, never free."""
    with pytest.raises(UserError, match=message) as raised:
        traced(name)
    assert "\n" not in str(raised.value)


def test_products_of_two_activations_are_products() -> None:
    """With the FLOP that torch counts; no role is known for them, which is said."""
    graph = traced("loose")
    parameters, flop, tokens = counted("loose")
    assert graph.num_parameters() == parameters
    assert tokens * matmul_flop_per_token(graph, SEQ) == pytest.approx(flop, rel=1e-12)
    assert any("without a role" in note for note in graph.facts["notes"])


def test_models_without_a_vocabulary() -> None:
    """A diffusion transformer answers, in layouts of every kind, and says what stands for its loss."""
    graph = traced("diffusion")
    assert graph.layers == ("blocks",) * 3
    assert [graph.blocks["blocks"].operator(name).region for name in ("qkv", "mlp_up")] == ["tensor"] * 2
    assert graph.facts["notes"][-1] == "its loss is not in it: a cross entropy over its 32 outputs stands for it"
    plan = simpar.Plan(tp=2, pp=2, micro_batch=1, sequence_parallel=False)
    result = simpar.simulate(graph, simpar.Cluster("dgx-h100"), plan, TRAINING, with_timeline=False)
    assert result.speed.step_time_s > 0


def test_nothing_is_allocated() -> None:
    """A model of many billion parameters is traced in place: its tensors have no memory."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = simpar.Model("traced_models:giant", seq_len=SEQ)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert graph.num_parameters() > 10**10
    assert grown < graph.num_parameters() // 10


@pytest.fixture(scope="module")
def families() -> Iterator[dict[str, ModelGraph]]:
    """Models that others wrote, from their configs without weights."""
    pytest.importorskip("transformers")
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    yield {name: simpar.Model(f"hub_models:{name}", seq_len=SEQ) for name in ("gpt2", "llama", "vit", "t5", "bert")}
    sys.path.pop(0)


@pytest.mark.slow
def test_models_of_transformers(families: dict[str, ModelGraph]) -> None:
    """Parameters are those that the library counts, for five families of it."""
    for name, graph in families.items():
        with torch.device("meta"):
            made = call_user_function(f"hub_models:{name}")
        module = made[0] if isinstance(made, tuple) else made
        assert graph.num_parameters() == sum(prod(each.shape) for each in module.parameters()), name
        assert "no_tensor_parallel" not in graph.facts, name


@pytest.mark.slow
def test_gpt2_and_llama_of_transformers_are_the_built_in_ones(families: dict[str, ModelGraph]) -> None:
    """Step time and memory equal those of the catalogue's graphs."""
    cluster, plan = simpar.Cluster("dgx-h100"), simpar.Plan(tp=2, pp=2, micro_batch=1)
    for name, known in (("gpt2", "gpt2"), ("llama", "llama-3-8b")):
        one, two = (simpar.simulate(graph, cluster, plan, TRAINING) for graph in (families[name], simpar.Model(known)))
        assert one.speed.step_time_s == pytest.approx(two.speed.step_time_s, rel=1e-3)
        assert one.memory.peak_memory_bytes == pytest.approx(two.memory.peak_memory_bytes, rel=2e-3)
