"""The model that Megatron-LM's arguments state."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.frameworks import read
from simpar.frameworks.megatron_model import dense_layers

LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights"
)
QWEN_235B = (
    "--num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64 --group-query-attention "
    "--num-query-groups 4 --kv-channels 128 --qk-layernorm --num-experts 128 --moe-ffn-hidden-size 1536 "
    "--moe-router-topk 8 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear"
)
MIXTURE = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --swiglu --vocab-size 32000 --disable-bias-linear "
    "--normalization RMSNorm --untie-embeddings-and-output-weights --num-experts 8 --moe-router-topk 2 "
    "--ffn-hidden-size 4096"
)
LATENT = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --swiglu --multi-latent-attention --kv-lora-rank 512 "
    "--num-experts 16 --moe-ffn-hidden-size 512 --moe-router-topk 4 --moe-layer-freq '([0]*1+[1]*3)' "
    "--ffn-hidden-size 2816 --vocab-size 32000 --moe-shared-expert-intermediate-size 1024"
)
HYBRID = "--hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 8 --num-layers 28"


def imported(arguments, script="pretrain_gpt.py"):
    """What is read of a command."""
    return read(f"torchrun {script} --micro-batch-size 1 {arguments}\n", "train.sh", "megatron")


def test_a_vocabulary_of_a_mock_is_no_contradiction():
    """All else is that of a shipped model: its layers with the vocabulary of the text, padded."""
    found = imported(f"{QWEN_235B} --vocab-size 32001 --tensor-model-parallel-size 2 --tokenizer-type NullTokenizer")
    assert found.plan.model is None
    own, shipped = read_config(found.config), load_model("qwen3-235b-a22b")
    assert own.dims["vocab"] == 32256
    assert own.num_parameters() == shipped.num_parameters() - 2 * (151936 - 32256) * 4096
    assert "qwen3-235b-a22b with the vocabulary that the text gives, 32256 words" in found.notes[0]


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        (f"{LLAMA_8B} --vocab-size 128256", None),  # shipped
        (f"{LLAMA_8B.replace('14336', '8192')} --vocab-size 32000", 4.83),
        # 12 x layers x width^2, tables of words and positions, biases and norms
        ("--num-layers 79 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048", 143.8),
        (MIXTURE, 5.37),
        (LATENT, 0.1434),
    ],
)  # fmt: skip
def test_what_arguments_state_in_full_needs_no_shipped_model(arguments, parameters):
    """The parameters of the model, worked out by hand."""
    found = imported(arguments)
    if parameters is None:
        assert (found.plan.model, found.config) == ("llama-3-8b", None)
        return
    assert found.plan.model is None
    assert read_config(found.config).num_parameters() / 1e9 == pytest.approx(parameters, rel=0.01)
    assert any("built from the arguments" in note for note in found.notes)


def test_hybrids_are_told_by_their_layers():
    """Width and heads of Qwen3-0.6B are those of another model where the layers are of another kind."""
    assert imported(f"{HYBRID} --ffn-hidden-size 3072 --vocab-size 151936").plan.model == "qwen3-0.6b"
    for words in ("--hybrid-layer-pattern M*-M*-", "--hybrid-override-pattern M*-M*-", "--is-hybrid-model"):
        found = imported(f"{HYBRID} --ffn-hidden-size 3072 --vocab-size 151936 {words}")
        assert (found.plan.model, found.config) == (None, None)
        assert "give --model" in found.asks["model"]
    for words in ("--vision-model-type clip", "--experimental-attention-variant gated_delta_net"):
        assert imported(f"{HYBRID} --ffn-hidden-size 3072 --vocab-size 151936 {words}").plan.model is None
    script = imported(f"{HYBRID} --ffn-hidden-size 3072 --vocab-size 151936", "pretrain_mamba.py")
    assert (script.plan.model, script.config) == (None, None)


@pytest.mark.parametrize(
    ("text", "first"),
    [(None, 0), ("1", 0), ("([0]*3+[1]*5)", 3), ("[0]*3+[1]*5", 3), ("([0,0,1,1,1,1,1,1])", 2), ("2", None)],
)
def test_layers_without_experts(text, first):
    """Those at the start are dense; other patterns have no config here."""
    assert dense_layers(text, 8) == first


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        ("--transformer-impl local", "eager"),
        ("--transformer-impl local --use-flash-attn", None),
        ("--attention-backend unfused", "eager"),
        ("--attention-backend fused", "cudnn"),
        ("--attention-backend flash", None),
    ],
)
def test_attention_kernels(words, kernel):
    """What runs attention, by the implementation of layers or by name."""
    assert imported(words).plan.execution.attention_kernel == kernel


def test_older_names_are_read():
    """Recomputation, virtual stages, and muon by its several names."""
    assert imported("--checkpoint-activations --checkpoint-num-layers 1").plan.recompute == "full"
    assert imported("--pipeline-model-parallel-size 4 --virtual-pipeline-model-parallel-size 2").plan.vpp == 2
    found = imported("--optimizer dist_muon")
    assert found.plan.optimizer == "muon"
    assert any("read as muon" in note for note in found.notes)
    assert any("in fp32, its default" in note for note in found.notes)
