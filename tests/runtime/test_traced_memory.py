"""What autograd keeps of a layer, counted on tensors without memory, beside the account of the runtime's own stack."""

import pytest

torch = pytest.importorskip("torch")

from torch.autograd.graph import saved_tensors_hooks  # noqa: E402

from simpar import simulate  # noqa: E402
from simpar.hardware.catalogue import load_cluster  # noqa: E402
from simpar.models.hf_config import read  # noqa: E402
from simpar.models.training import Training  # noqa: E402
from simpar.plan.plan import Plan  # noqa: E402
from simpar.runtime import attention, banded  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.context import Context  # noqa: E402
from simpar.runtime.context import attention as in_blocks  # noqa: E402
from simpar.runtime.decoder import Decoder, Part, Recompute  # noqa: E402

SEQ_LEN, FEW, MANY = 4096, 2, 6
LLAMA = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


def kept_bytes(layers, recompute):
    """Bytes that the forward of so many layers leaves for backward, parameters apart; attention in flash kernels."""
    graph = read({**LLAMA, "num_hidden_layers": layers}, "wide")
    with torch.device("meta"):
        part = Part(range(layers), embedding=True, head=False)
        model = Decoder(graph, part, Place(), Recompute(recompute, "attention"))
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(1, SEQ_LEN, dtype=torch.int64, device="meta"))
    return sum(storage.nbytes() for storage in kept.values())


def accounted_bytes(layers, recompute):
    """The same of the simulated peak."""
    graph = read({**LLAMA, "num_hidden_layers": layers}, "wide")
    plan = Plan(precision="fp32", dp=8, micro_batch=1, recompute=recompute, stack="simpar")
    result = simulate(graph, load_cluster("dgx-h100"), plan, Training(seq_len=SEQ_LEN, global_batch=8))
    return result.memory.stages[0].activations


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_layer_keeps_what_the_account_says(monkeypatch, recompute):
    """In fp32, where the account and the operators that tensors without memory run through agree: within 0.3 %."""
    monkeypatch.setattr(banded, "is_fused", lambda _: True)
    monkeypatch.setattr(
        attention.functional, "scaled_dot_product_attention",
        lambda query, key, value, **_: in_blocks(query, key, value, Context(), None),
    )  # fmt: skip
    traced, accounted = (
        (of(MANY, recompute) - of(FEW, recompute)) / (MANY - FEW) for of in (kept_bytes, accounted_bytes)
    )
    assert accounted == pytest.approx(traced, rel=0.003)
