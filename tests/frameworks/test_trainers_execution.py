"""How steps are executed, in the options of Hugging Face's trainers."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import unsupported
from simpar.plan.plan import Plan

from .conftest import TRAINING, checked, exported

TRAINERS = {"transformers": "command.sh", "trl": "sft.yaml", "axolotl": "axolotl.yaml", "llama-factory": "train.yaml"}
WRITTEN = {
    "transformers": "--attn_implementation flash_attention_3",
    "trl": 'attn_implementation: "flash_attention_3"',
    "axolotl": 'attn_implementation: "flash_attention_3"',
    "llama-factory": 'flash_attn: "fa3"',
}


@pytest.mark.parametrize("target", TRAINERS)
def test_attention_kernels_have_the_trainers_names(target):
    """As each of them takes it."""
    plan = checked(model="llama-3.1-8b", dp=8, zero=3, master_weights=target != "axolotl", attention_kernel="flash3")
    assert WRITTEN[target] in exported(target, plan)[TRAINERS[target]]


@pytest.mark.parametrize("target", TRAINERS)
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"attention_kernel": "cudnn"}, "transformers has eager"),
        ({"attention_kernel": "flash2", "precision": "fp32"}, "takes bf16 and fp16"),
        ({"attention_kernel": "sdpa"}, None),
    ],
)
def test_kernels_that_transformers_does_not_have_are_lost(target, values, words):
    """With the reason."""
    reasons = unsupported(
        Plan(dp=8, zero=3, master_weights=target != "axolotl", **values), load_model("llama-3.1-8b"), TRAINING, target
    )
    assert (words is None) == (not reasons)
    assert words is None or any(words in reason for reason in reasons)


def test_axolotl_chunks_the_loss():
    """The number of chunks is the plan's; other trainers have no option for it."""
    plan = checked(model="llama-3.1-8b", dp=8, zero=3, master_weights=False, loss_chunks=8)
    text = exported("axolotl", plan)["axolotl.yaml"]
    assert "chunked_cross_entropy: true" in text
    assert "chunked_cross_entropy_num_chunks: 8" in text
    for target in ("transformers", "trl", "llama-factory"):
        reasons = unsupported(Plan(dp=8, zero=3, loss_chunks=8), load_model("llama-3.1-8b"), TRAINING, target)
        assert any("loss_chunks" in reason for reason in reasons)
