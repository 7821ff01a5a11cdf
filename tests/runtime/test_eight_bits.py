"""Products in 8 bits: refused in one line where they cannot be, else close to those in 16 bits."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.architectures.training import Training  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.plan.plan import Plan  # noqa: E402
from simpar.runtime import strategy  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.decoder import Decoder, Part, Recompute  # noqa: E402
from simpar.runtime.model import Dtypes, fill  # noqa: E402
from simpar.runtime.prepare import prepare  # noqa: E402

LLAMA = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
TRAINING = Training(seq_len=32, global_batch=8)


@pytest.fixture
def installed(monkeypatch):
    """A torchao that can be found."""
    monkeypatch.setattr(strategy.importlib.util, "find_spec", lambda _: True)


@pytest.mark.parametrize(
    ("config", "values", "words"),
    [
        (MIXTRAL, {"dp": 2}, "products of experts"), (LLAMA, {"tp": 2, "dp": 1}, "tp = 2: "),
        (LLAMA, {"dp": 2, "lora_rank": 4}, "adapters and frozen layers"),
        (LLAMA, {"pp": 2, "dp": 1, "schedule": "zb-h1"}, "a backward in I and W"),
        (LLAMA, {"dp": 2, "kind": "single_process"}, "kind = single_process"),
    ],
)  # fmt: skip
def test_what_has_no_such_products_is_refused(installed, config, values, words):
    """One line that names what and what is allowed."""
    with pytest.raises(UserError, match=f"plan.precision = fp8: {words}"):
        prepare(Plan(precision="fp8", **values), read(config, "tiny"), TRAINING, 2)


def test_without_torchao_it_says_how_to_install_it(monkeypatch):
    """Before torch starts."""
    monkeypatch.setattr(strategy.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="is not installed: pip install torchao"):
        prepare(Plan(precision="fp8", dp=2), read(LLAMA, "tiny"), TRAINING, 2)


def test_the_rest_is_computed_in_16_bits(installed):
    """Weights in fp32 where the plan keeps such, what is between products in bf16."""
    prepared = prepare(Plan(precision="fp8", dp=2), read(LLAMA, "tiny"), TRAINING, 2)
    dtypes = Dtypes.of(prepared.plan)
    assert (dtypes.storage, dtypes.compute) == (torch.float32, torch.bfloat16)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
@pytest.mark.filterwarnings("ignore")
def test_products_are_close_to_those_in_16_bits():
    """Names and values of weights stay; losses and gradients differ by what 8 bits round away, and do differ."""
    from simpar.runtime.eight_bits import convert

    graph = read(LLAMA, "tiny")
    found = []
    for eight in (False, True):
        with torch.device("meta"):
            model = Decoder(graph, Part(range(2), embedding=True, head=True), Place(), Recompute())
            if eight:
                convert(model, torch.device("cpu"))
        model.embedding.token_embedding.compute_dtype = torch.bfloat16
        model.to_empty(device="cpu")
        fill(model, 0)
        loss = model(torch.arange(32).view(1, 32)).float().square().mean()
        loss.backward()
        found.append((float(loss), {name: each.grad for name, each in model.named_parameters()}))
    (wide, expected), (narrow, gradients) = found
    assert list(gradients) == list(expected)
    assert narrow == pytest.approx(wide, rel=0.05)
    assert narrow != wide
    for name, gradient in gradients.items():
        assert float((gradient - expected[name]).norm() / expected[name].norm()) < 0.2, name


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
def test_sizes_that_tensor_cores_do_not_take_are_refused():
    """The product and its sizes are named."""
    from simpar.runtime.eight_bits import convert

    graph = read({**LLAMA, "intermediate_size": 120}, "tiny")
    model = Decoder(graph, Part(range(2), embedding=True, head=True), Place(), Recompute())
    with pytest.raises(UserError, match="is 64 x 120; allowed: multiples of 16"):
        convert(model, torch.device("cpu"))
