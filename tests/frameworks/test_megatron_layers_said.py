"""What Megatron-LM's arguments say of layers beside the sizes by which models are recognised."""

import json

import pytest

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.architecture import architecture
from simpar.frameworks.megatron_config import dense_layers
from simpar.frameworks.megatron_words import MEGATRON_WORDS
from simpar.translate import save_imported

from .test_megatron_model import DEEPSEEK_V3, LLAMA_8B, QWEN_235B, imported

MIXTRAL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 32000 --num-experts 8 --moe-router-topk 2"
)
RELEASED = f"{DEEPSEEK_V3} --mtp-num-layers 1"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (None, 0),
        ("1", 0),
        ("([1]*8)", 0),
        ("([0]*3+[1]*5)", 3),
        ("[0]*3+[1]*5", 3),
        ("([0,0,1,1,1,1,1,1])", 2),
        ("([0]+[1]*7)", 1),
        ("[0, 0] + [1] * 6", 2),
        ("([1]*3+[0]*1)*2", None),
        ("[1]*7", None),
        ("[1]*100000000000", None),
        ("__import__('os')", None),
        ("2", None),
    ],
)
def test_layers_without_experts(text, first):
    """Those at the start are dense; other patterns have no config here."""
    assert dense_layers(text, 8) == first


@pytest.mark.parametrize(
    ("arguments", "words", "size", "value"),
    [
        (MIXTRAL, "--moe-router-topk 1", "topk", 1),
        (MIXTRAL, "--moe-shared-expert-intermediate-size 14336", "shared_ffn", 14336),
        (f"{LLAMA_8B} --vocab-size 128256", "--kv-channels 256", "head_dim", 256),
        (f"{LLAMA_8B} --vocab-size 131072", "--kv-channels 64", "head_dim", 64),
        (RELEASED, "--moe-router-topk 4", "topk", 4),
        (RELEASED, "--q-lora-rank 768", "q_rank", 768),
        (RELEASED, "--kv-lora-rank 256", "kv_rank", 256),
        (RELEASED, "--qk-head-dim 64", "plain_dim", 64),
        (RELEASED, "--qk-pos-emb-head-dim 32", "rotary_dim", 32),
        (RELEASED, "--v-head-dim 192", "value_dim", 192),
        (RELEASED, "--moe-shared-expert-intermediate-size 4096", "shared_ffn", 4096),
        (RELEASED, "--moe-router-num-groups 4 --moe-router-group-topk 2", "expert_groups", 4),
        (RELEASED, "--moe-router-num-groups 8 --moe-router-group-topk 2", "chosen_groups", 2),
    ],
)
def test_layers_are_as_the_text_says_where_all_sizes_are_a_models(arguments, words, size, value):
    """A model is recognised by other sizes: Mixtral's with one expert of a token was answered as Mixtral, under OK."""
    found = imported(f"{arguments} {words}")
    assert found.plan.model is None
    assert read_config(found.config).dims[size] == value
    flag = words.split()[-2]
    assert flag in found.words.used
    assert any(f"where the text says {flag} {words.split()[-1]}" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "dense"), [("--moe-layer-freq '([0]*1+[1]*60)'", 1), ("--moe-layer-freq 1", 0), ("--moe-layer-freq 0", 3)]
)
def test_dense_layers_are_as_the_text_says(words, dense):
    """DeepSeek-V3's first three layers are dense; a frequency that Megatron-LM refuses is left to decide."""
    found = imported(f"{RELEASED} {words}")
    graph = load_model(found.plan.model) if found.plan.model else read_config(found.config)
    assert architecture(graph).experts[:61] == (False,) * dense + (True,) * (61 - dense)
    assert ("--moe-layer-freq" in found.words.unread) == (words[-1] == "0")


def test_what_a_model_has_as_the_text_says_changes_nothing():
    """The released models' own sizes, and groups that limit nothing."""
    assert imported(MIXTRAL).plan.model == "mixtral-8x7b"
    whole = "--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --moe-router-num-groups 8"
    assert imported(f"{RELEASED} {whole}").plan.model == "deepseek-v3"
    assert imported(f"{RELEASED} {whole} --moe-router-group-topk 4").plan.model == "deepseek-v3"
    assert imported(f"{LLAMA_8B} --vocab-size 128256 --kv-channels 128").plan.model == "llama-3-8b"
    dense = imported(f"{LLAMA_8B} --vocab-size 128256 --moe-router-topk 4 --kv-lora-rank 512")
    assert (dense.plan.model, MEGATRON_WORDS.sort(dense.words.used, dense.words.unread).deciding) == ("llama-3-8b", {})


def test_normed_heads_are_as_the_text_says():
    """Llama has none: the model is built of the arguments, with a norm of queries and one of keys."""
    found = imported(f"{LLAMA_8B} --vocab-size 128256 --qk-layernorm")
    assert architecture(read_config(found.config)).qk_norm == "head"
    assert read_config(found.config).dims["vocab"] == 128256
    note = "llama-3-8b has no such norms where the text says --qk-layernorm: the model is built from the arguments."
    assert note in found.notes


@pytest.mark.parametrize(
    ("words", "told"),
    [("--kv-channels $CHANNELS", "CHANNELS=VALUE before the command"), ("--kv-channels 0", "a positive integer")],
)
def test_sizes_of_layers_that_are_no_numbers_are_refused(words, told):
    """They were passed over where all other sizes are a model's."""
    with pytest.raises(UserError, match=told):
        imported(f"{LLAMA_8B} --vocab-size 128256 {words}")


def test_layers_that_no_config_has_decide():
    """Every second layer of experts, in Mixtral's sizes: no family here has these, and the word is not read."""
    pattern = "'([0,1]*16)'"
    found = imported(f"{MIXTRAL} --moe-ffn-hidden-size 14336 --moe-layer-freq {pattern}", "pretrain_gpt.py")
    assert (found.plan.model, found.config) == (None, None)
    latent = imported(f"{RELEASED} --moe-layer-freq '([0]*3+[1]*57+[0])'")
    assert latent.plan.model == "deepseek-v3"
    assert MEGATRON_WORDS.sort(latent.words.used, latent.words.unread).deciding.keys() == {"--moe-layer-freq"}


@pytest.mark.parametrize(
    ("sizes", "unsaid"),
    [
        (QWEN_235B.replace(" --moe-router-topk 8", ""), "--moe-router-topk 8"),
        (DEEPSEEK_V3.replace(" --moe-shared-expert-intermediate-size 2048", ""),
         "--moe-shared-expert-intermediate-size 2048"),
        (DEEPSEEK_V3.replace(" --moe-layer-freq '([0]*3+[1]*58)'", " --vocab-size 129280"), "--moe-layer-freq"),
    ],
)  # fmt: skip
def test_what_decides_of_a_mixture_and_is_not_said(sizes, unsaid):
    """Megatron-LM would train two experts of a token, no shared experts, and experts in every layer."""
    found = imported(sizes)
    told = next(each for each in found.assumed if each.key == "model")
    assert f"without {unsaid}, which the text does not have" in told.why
    assert told.others == ("as the arguments state it",)
    assert unlike_in(told.together[told.others[0]]) != unlike_in(found.config or config_of(found.plan.model))


def unlike_in(config):
    """What Megatron-LM's absent arguments decide, of a config."""
    graph = read_config(config)
    style, dims = architecture(graph), graph.dims
    return style.gated, style.tied, dims.get("topk"), dims.get("shared_ffn"), style.experts


@pytest.mark.parametrize(
    ("absent", "words", "at", "runs"),
    [
        ("--swiglu", LLAMA_8B, 0, False),
        ("--untie-embeddings-and-output-weights", LLAMA_8B, 1, True),
        ("--moe-router-topk 8", QWEN_235B, 2, 2),
        ("--untie-embeddings-and-output-weights", MIXTRAL, 1, True),
    ],
)
def test_a_whole_launch_is_answered_with_megatrons_defaults(absent, words, at, runs):
    """What runs is built of the arguments, the known model is the other reading; of part of a launch the reverse."""
    rest = "--max-position-embeddings 4096 --seq-length 4096 --train-iters 10"
    part = f"{words.replace(absent, '')} --vocab-size 32000"
    whole = imported(f"{part} {rest}")
    told = whole.assumed[0]
    assert (whole.plan.model, told.key, told.value) == (None, "model", "as the arguments state it")
    assert absent in told.why
    assert unlike_in(whole.config)[at] == runs
    assert unlike_in(told.together[told.others[0]])[at] != runs
    open_part = imported(part)
    assert unlike_in(open_part.config or config_of(open_part.plan.model))[at] != runs
    assert unlike_in(open_part.assumed[0].together["as the arguments state it"])[at] == runs
    assert [each.key for each in imported(f"{words} {rest} --vocab-size 32000").assumed] == ["dropout"]


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        ("--num-layers 62 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
         (1, *([2] * 30), 1)),
        ("--num-layers 63 --account-for-loss-in-pipeline-split", (*([2] * 31), 1)),
        ("--num-layers 64", None),
    ],
)  # fmt: skip
def test_the_embedding_and_the_loss_count_as_layers_of_chunks(words, stages):
    """64 of them on 8 ranks, 2 a chunk: 4 chunks a rank (validate_args of megatron/training/arguments.py)."""
    axes = "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2 --micro-batch-size 1"
    plan = read(f"torchrun pretrain_gpt.py {axes} {words}\n", "a.sh", "megatron").plan
    assert (plan.pipeline.vpp, plan.pipeline.layers) == (4, stages)


def test_chunks_that_do_not_divide_are_refused_with_what_counts():
    """62 layers and a loss are 63."""
    axes = "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2 --micro-batch-size 1"
    with pytest.raises(UserError, match=r"--num-layers \+ 1 / pp = 63 / 8"):
        read(f"torchrun p.py {axes} --num-layers 62 --account-for-loss-in-pipeline-split\n", "a.sh", "megatron")


def test_an_output_that_shares_no_table():
    """GPT-3's sizes with --untie-embeddings-and-output-weights have two tables; they were answered with one."""
    sizes = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 50257"
    tied, found = load_model(imported(sizes).plan.model), imported(f"{sizes} --untie-embeddings-and-output-weights")
    assert "--untie-embeddings-and-output-weights" in found.words.used
    assert read_config(found.config).num_parameters() - tied.num_parameters() == 50257 * 2048
    assert any("a table that the output shares where the text says --untie-" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "deciding", "note"),
    [
        ("--context-parallel-size 2 --cp-comm-type a2a", set(), ""),
        ("--context-parallel-size 2 --cp-comm-type p2p p2p a2a a2a", {"--cp-comm-type"}, ""),
        ("--no-async-tensor-model-parallel-allreduce", set(), ""),
        ("--tensor-model-parallel-size 2 --sequence-parallel --no-async-tensor-model-parallel-allreduce", set(), ""),
        ("--tensor-model-parallel-size 2 --no-async-tensor-model-parallel-allreduce",
         {"--no-async-tensor-model-parallel-allreduce"}, ""),
        ("--num-experts 8 --moe-router-load-balancing-type none", set(), "nothing keeps experts evenly loaded"),
        ("--num-experts 8 --moe-router-load-balancing-type none --moe-router-enable-expert-bias", set(), ""),
        ("--num-experts 8 --moe-router-load-balancing-type aux_loss", set(), ""),
        (f"{MIXTRAL} --moe-latent-size 1024", {"--moe-latent-size"}, ""),
        (f"{LLAMA_8B} --vocab-size 128256 --moe-latent-size 1024", set(), ""),
        ("--disable-jit-fuser --batch-invariant-mode", {"--disable-jit-fuser", "--batch-invariant-mode"}, ""),
    ],
)  # fmt: skip
def test_words_that_decide_or_are_said(words, deciding, note):
    """Exchanges that differ by layer; a collective that sequence parallelism does not have; experts without a loss."""
    found = imported(words)
    assert MEGATRON_WORDS.sort(found.words.used, found.words.unread).deciding.keys() == deciding
    assert any("nothing keeps" in each for each in found.notes) == bool(note)


def test_a_tokenizer_that_only_running_tells():
    """The model is told by its sizes, and so is its vocabulary; a model of its own asks for one."""
    sizes = MIXTRAL.replace(" --vocab-size 32000", "")
    found = imported(f"{sizes} --tokenizer-type $TYPE --tokenizer-model $TOKENIZER")
    assert (found.plan.model, found.config) == ("mixtral-8x7b", None)
    assert any(note.startswith("The vocabulary is not said: 32000 words") for note in found.notes)
    other = imported(f"{sizes.replace('14336', '8192')} --tokenizer-type $TYPE")
    assert other.asks["model"].startswith("The vocabulary of ${TYPE} is not known: give --vocab-size N")


@pytest.mark.parametrize("words", ["--num-tokens-to-generate 512", "--incoming-requests-per-sec 100"])
def test_what_generates_text_trains_nothing(words):
    """Megatron-LM's configs of inference have the sizes of models and the axes of launches."""
    with pytest.raises(UserError, match="inference: not modelled"):
        imported(f"{MIXTRAL} {words}")


def test_words_that_one_another_leave_out():
    """Gradients in 16 bits, named twice; a strategy of Megatron-FSDP without it; a list as its tests write one."""
    found = imported("--bf16 --grad-reduce-in-bf16 --main-grads-dtype fp32 --data-parallel-sharding-strategy optim")
    account = MEGATRON_WORDS.sort(found.words.used, found.words.unread)
    assert (account.unknown, dict(account.deciding)) == ((), {})
    axes = {"--context-parallel-size": 4, "--cp-comm-type": "a2a+p2p", "--hierarchical-context-parallel-sizes": "[2 2]"}
    text = json.dumps({"MODEL_ARGS": {"--micro-batch-size": 1, **axes}})
    assert read(text, "model_config.yaml", "megatron").plan.context_parallel.ulysses == 2


GPT3_13B = (
    "--num-layers 40 --hidden-size 5120 --num-attention-heads 40 --max-position-embeddings 2048 --seq-length 2048"
)


@pytest.mark.parametrize("model", [GPT3_13B, LLAMA_8B, DEEPSEEK_V3])
def test_dropout_is_that_of_the_launch(model):
    """Megatron-LM's default where none is said, and told; else what is said, whatever the model's own is."""
    usual = imported(model)
    assert (usual.dropout, usual.assumed[-1].key) == ({"attention": 0.1, "hidden": 0.1}, "dropout")
    none = imported(f"{model} --attention-dropout 0 --hidden-dropout 0.0")
    assert (none.dropout, none.assumed) == ({"attention": 0.0, "hidden": 0.0}, ())
    one = imported(f"{model} --hidden-dropout 0.2")
    assert one.dropout == {"attention": 0.1, "hidden": 0.2}
    assert one.assumed[0].why == "the default of --attention-dropout"
    with pytest.raises(UserError, match=r"train.sh:1: --hidden-dropout = 2: allowed: "):
        imported(f"{model} --hidden-dropout 2")


def test_a_dropout_in_a_variable_decides():
    """It is not taken for the default."""
    found = imported(f"{GPT3_13B} --hidden-dropout $RATE")
    assert "hidden" not in found.dropout
    assert "--hidden-dropout" in MEGATRON_WORDS.sort(found.words.used, found.words.unread).deciding


def test_an_imported_model_has_the_dropout_of_its_launch(tmp_path):
    """Beside the plan is the model's config with it, if it is not the shipped model's own."""
    found = imported(GPT3_13B)
    assert save_imported(found, tmp_path / "plan.yaml")[1:] == (str(tmp_path / "plan.model.json"),)
    graph = load_model(str(tmp_path / "plan.model.json"))
    assert graph.details.dropout.residual == graph.details.dropout.attention == 0.1
    none = imported(f"{GPT3_13B} --attention-dropout 0 --hidden-dropout 0")
    assert save_imported(none, tmp_path / "none.yaml") == (str(tmp_path / "none.yaml"),)


@pytest.mark.parametrize(
    ("text", "name", "target", "rates"),
    [
        (
            "deepspeed pretrain_gpt.py --micro-batch-size 1 --zero-stage 1 --deepspeed",
            "a.sh",
            "megatron-deepspeed",
            0.1,
        ),
        (
            "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2",
            "a.sh",
            "megatron-swift",
            0.0,
        ),
    ],
)
def test_defaults_of_other_front_ends(text, name, target, rates):
    """Each framework has its own."""
    assert set(read(f"{text} {GPT3_13B if target == 'megatron-deepspeed' else ''}", name, target).dropout.values()) == {
        rates
    }


def test_windows_that_a_text_does_not_say_are_no_windows():
    """GPT-Neo's sizes are GPT-3's, and Mistral's without its window are another model in longer sequences."""
    sizes = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16"
    for length in (2048, 32768):
        found = imported(f"{sizes} --seq-length {length} --max-position-embeddings {length}")
        config = found.config or config_of(found.plan.model)
        assert config["model_type"] == "gpt2"
    long = f"{LLAMA_8B} --vocab-size 32000 --max-position-embeddings 32768 --train-iters 9"
    assert imported(f"{long} --seq-length 4096").assumed[0].key == "dropout"
    told = imported(f"{long} --seq-length 32768")
    assert (told.plan.model, told.config["model_type"], told.assumed[0].others) == (None, "llama", ("mistral-7b",))
    assert "without --window-size 4095,0, which the text does not have" in told.assumed[0].why
