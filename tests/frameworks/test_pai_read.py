"""What Pai-Megatron-Patch's own arguments are read as."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

MEGATRON = "pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16"


def test_pai():
    """Its Adam on the host; words of its own are known."""
    text = f"torchrun {MEGATRON} --patch-tokenizer-type LLama3Tokenizer --optimizer hybridadam --extra-vocab-size 256"
    result = read(text, "train.sh", "pai-megatron-patch")
    assert (result.plan.optimizer, result.plan.offload_optimizer) == ("adamw", "cpu")
    account = load_reader("pai-megatron-patch").words.sort((), result.words.unread)
    assert (account.is_understood, account.idle) == (True, ("--patch-tokenizer-type",))


PAI_DECODER = (
    "torchrun pretrain.py --num-layers 6 --hidden-size 4096 --num-attention-heads 32 --swiglu --normalization RMSNorm "
    "--use-llama2-rotary-position-embeddings --disable-bias-linear --untie-embeddings-and-output-weights "
    "--seq-length 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --intermediate-size 11264 "
)


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ("BloomTokenizerFromHF", 250880), ("IcetkGLM130BTokenizer", 150528), ("FalconTokenizer", 65024),
        ("Qwen2Tokenizer --extra-vocab-size 293", 151936), ("LLama3Tokenizer --extra-vocab-size 256", 128256),
        ("DeepSeekV2Tokenizer --extra-vocab-size 2400", 102400), ("DeepSeekV2Tokenizer --extra-vocab-size 467", 129280),
        # set by itself, it is the whole vocabulary
        ("Qwen3Tokenizer --extra-vocab-size 293 --padded-vocab-size 151680", 151680),
    ],
)  # fmt: skip
def test_words_of_tokenizers_of_pai(tokenizer, words):
    """As ``megatron_patch/tokenizer/__init__.py`` sets them: they were GPT-2's 50,432, and its MLP a wide one."""
    result = read(f"{PAI_DECODER} --patch-tokenizer-type {tokenizer}", "train.sh", "pai-megatron-patch")
    assert (result.config["vocab_size"], result.config["intermediate_size"]) == (words, 11264)
    assert load_reader("pai-megatron-patch").words.sort((), result.words.unread).is_understood


def test_words_of_a_checkpoint_of_pai():
    """A tokenizer that reads any checkpoint's words has those of the model, or they are asked for."""
    result = read(f"{PAI_DECODER} --patch-tokenizer-type LLamaTokenizer", "train.sh", "pai-megatron-patch")
    assert (result.config, result.asks["model"]) == (
        None, "The vocabulary of LLamaTokenizer is not known: give --vocab-size N in the text, or --model.",
    )  # fmt: skip
    yi = PAI_DECODER.replace("--num-layers 6", "--num-layers 32").replace("11264", "11008")
    yi += "--group-query-attention --num-query-groups 4 --patch-tokenizer-type MistralTokenizer"
    assert read(yi, "train.sh", "pai-megatron-patch").plan.model == "yi-6b"


def test_experts_of_pai():
    """The shared expert of its own mixtures is Megatron-LM's by another name: no mixture without one is built."""
    text = f"{PAI_DECODER} --patch-tokenizer-type Qwen2Tokenizer --num-experts 4 --moe-router-topk 2"
    plain, shared = (
        read(f"{text} {more}", "train.sh", "pai-megatron-patch")
        for more in (
            "--moe-shared-expert-intermediate-size 5632 --moe-shared-expert-gate",
            "--shared-moe-ffn-hidden-size 5632 --enable-shared-expert",
        )
    )
    assert (shared.config, shared.asks) == (None, plain.asks)
    assert read(text, "train.sh", "pai-megatron-patch").config["model_type"] == "mixtral"


@pytest.mark.parametrize(
    "more",
    ["--disable-vision-class-token", "--mm-projector-type linear", "finetune_megatron_qwen_vl.py", "pretrain_llava.py"],
)
def test_models_of_images_of_pai(more):
    """Their decoders have a text model's sizes: Qwen2-VL 7B was answered as Qwen2.5 7B."""
    text = f"{PAI_DECODER} --patch-tokenizer-type Qwen2VLTokenizer"
    text = text.replace("pretrain.py", more) if more.endswith(".py") else f"{text} {more}"
    with pytest.raises(UserError, match="a model of images and text: not modelled"):
        read(text, "train.sh", "pai-megatron-patch")
