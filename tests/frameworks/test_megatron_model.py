"""The model that Megatron-LM's arguments state."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.architecture import architecture
from simpar.frameworks.megatron_arguments import flags_of
from simpar.frameworks.megatron_layers import allocated
from simpar.frameworks.megatron_words import MEGATRON_WORDS

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
GLM_FLASH = (
    "--num-layers 47 --hidden-size 2048 --ffn-hidden-size 10240 --num-attention-heads 20 --normalization RMSNorm "
    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 154880 --num-experts 64 "
    "--multi-latent-attention --q-lora-rank 768 --kv-lora-rank 512 --qk-head-dim 192 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 256 --qk-layernorm --moe-layer-freq '([0]*1+[1]*46)' --moe-ffn-hidden-size 1536 "
    "--moe-shared-expert-intermediate-size 1536 --moe-router-topk 4"
)
SMALL = (
    "--hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 8 --ffn-hidden-size 3072 "
    "--vocab-size 32000 --untie-embeddings-and-output-weights --disable-bias-linear"
)
DEEPSEEK_V3 = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --normalization RMSNorm "
    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 129280 --num-experts 256 "
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-layernorm --moe-layer-freq '([0]*3+[1]*58)' "
    "--moe-ffn-hidden-size 2048 --moe-router-topk 8 --moe-shared-expert-intermediate-size 2048 "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
)
HYBRID = "--hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 8 --num-layers 28"


def imported(arguments, script="pretrain_gpt.py"):
    """What is read of a command."""
    return read(f"torchrun {script} --micro-batch-size 1 {arguments}\n", "train.sh", "megatron")


def test_experts_without_a_gate():
    """Megatron-LM's default has two matrices in an expert: it is not answered as Mixtral's three."""
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --num-experts 16 --bf16"
    launch = f"torchrun pretrain_gpt.py {sizes} --micro-batch-size 1 --tokenizer-type GPT2BPETokenizer"
    found = read(launch, "train.sh", "megatron")
    assert found.config is None
    assert any("no config is built of experts without a gate" in note for note in found.notes)
    assert read(f"{launch} --swiglu", "train.sh", "megatron").config["model_type"] == "mixtral"


def test_a_vocabulary_of_a_mock_is_no_contradiction():
    """All else is that of a shipped model: its layers with the vocabulary of the text, padded."""
    found = imported(f"{QWEN_235B} --vocab-size 32001 --tensor-model-parallel-size 2 --tokenizer-type NullTokenizer")
    assert found.plan.model is None
    own, shipped = read_config(found.config), load_model("qwen3-235b-a22b")
    assert own.dims["vocab"] == 32256
    assert own.num_parameters() == shipped.num_parameters() - 2 * (151936 - 32256) * 4096
    assert "qwen3-235b-a22b with the vocabulary that the text gives, 32256 words" in found.notes[0]


def test_layers_that_predict_further_tokens_are_those_of_the_text():
    """Megatron-LM has none by default: the released DeepSeek V3 has one of 11.6 B, which a text must ask for."""
    asked = imported(f"{DEEPSEEK_V3} --mtp-num-layers 1")
    assert (asked.plan.model, asked.config) == ("deepseek-v3", None)
    found, shipped = imported(DEEPSEEK_V3), load_model("deepseek-v3")
    own = read_config(found.config)
    assert found.plan.model is None
    assert own.layers == shipped.layers[:-1]
    assert [note for note in found.notes if "--mtp-num-layers (none by default)" in note]
    trained = {kind for kind in shipped.layers if kind in shipped.auxiliary}
    assert not trained & set(own.layers)


def test_layers_that_predict_further_tokens_decide_where_a_family_has_none():
    """Megatron-LM gives them to any model; here some families may have them, Llama may not, which is said."""
    found = imported(f"{LLAMA_8B} --vocab-size 128256 --mtp-num-layers 1")
    assert "llama-3-8b" in found.plan.model
    told = MEGATRON_WORDS.sort(found.words.used, found.words.unread)
    assert "layers that predict further tokens" in told.deciding["--mtp-num-layers"]
    without = imported(f"{LLAMA_8B} --vocab-size 128256")
    assert "--mtp-num-layers" not in without.words.unread


def test_layers_that_predict_further_tokens_are_added_where_a_family_may_have_them():
    """GLM 4.7 Flash is shipped without; a stage with the text's prediction layer has one layer more."""
    ends = "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 23 --mtp-num-layers 1"
    found, shipped = imported(f"{GLM_FLASH} {ends}"), load_model("glm-4.7-flash")
    own = read_config(found.config)
    assert (len(own.layers), len(shipped.layers)) == (48, 47)
    assert own.auxiliary
    assert tuple(found.plan.pipeline.layers) == (24, 24)
    assert "--mtp-num-layers" in found.words.used


@pytest.mark.parametrize(("more", "last"), [("", 13), (" --mtp-num-layers 1", 14)])
def test_the_last_stage_has_the_prediction_layers_too(more, last):
    """``--decoder-last-pipeline-num-layers`` counts the decoder's alone; three stages share the 48 others."""
    ends = " --pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 13"
    assert tuple(imported(DEEPSEEK_V3 + ends + more).plan.pipeline.layers) == (16, 16, 16, last)


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        (f"{LLAMA_8B} --vocab-size 128256", None),  # shipped
        (f"{LLAMA_8B.replace('14336', '8192')} --vocab-size 32000", 4.83),
        # 12 x layers x width^2, tables of words and positions, biases and norms
        ("--num-layers 79 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048", 143.8),
        (MIXTURE, 5.37),
        (LATENT, 0.1434),
        # tables of 32,000 words, a mixer of 32 heads, an MLP and attention
        (f"{SMALL} --hybrid-override-pattern M-* --num-layers 3 --normalization RMSNorm --spec a b", 0.08343),
        (f"{SMALL} --num-layers 4 --position-embedding-type alibi --disable-bias-linear", 0.1033),
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
    for words in ("--hybrid-layer-pattern MG", "--experimental-attention-variant gated_delta_net"):
        found = imported(f"{HYBRID} --ffn-hidden-size 3072 --vocab-size 151936 {words}")
        assert (found.plan.model, found.config) == (None, None)
        assert "give --model" in found.asks["model"]
    for words, script in (("--is-hybrid-model", "train.py"), ("", "pretrain_mamba.py")):  # no layer is said to be other
        found = imported(f"{HYBRID} --ffn-hidden-size 3072 --vocab-size 151936 {words}", script)
        assert set(found.config["hybrid_override_pattern"]) == {"M"}


@pytest.mark.parametrize(
    ("layers", "attention", "mlps", "pattern"),
    [
        (8, 0.0, 0.0, "MMMMMMMM"),
        (10, 0.1, 0.0, "MMMMM*MMMM"),
        (10, 0.1, 0.5, "M-M--*M-M-"),
        (56, 0.08, 0.5, "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-"),
        (6, 0.5, 0.5, "-*-**-"),
    ],
)
def test_hybrids_by_ratios(layers, attention, mlps, pattern):
    """Attention lies evenly between pieces of state space, MLPs among what is left, at its end."""
    assert allocated(layers, attention, mlps) == pattern
    assert pattern.count("*") == round(layers * attention)
    assert pattern.count("-") == round(layers * mlps)


def test_a_hybrid_that_says_ratios_only_is_built():
    """Megatron-LM's example of 800M: every layer by letter; more than all layers is refused."""
    words = f"{SMALL} --num-layers 10 --hybrid-attention-ratio 0.1 --hybrid-mlp-ratio {{}} --vocab-size 32000"
    found = imported(words.format(0.5), "pretrain_mamba.py")
    assert found.config["hybrid_override_pattern"] == allocated(10, 0.1, 0.5)
    assert {"--hybrid-attention-ratio", "--hybrid-mlp-ratio"} <= set(found.words.used)
    with pytest.raises(UserError, match=r"--hybrid-attention-ratio .* = 1\.05: allowed: 1 at most"):
        imported(words.format(0.95), "pretrain_mamba.py")


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
    none = "--recompute-granularity full --recompute-method block --recompute-num-layers 0 --num-layers 4"
    assert imported(none).plan.recompute == "none"
    assert imported("--pipeline-model-parallel-size 4 --virtual-pipeline-model-parallel-size 2").plan.vpp == 2
    found = imported("--optimizer dist_muon")
    assert found.plan.optimizer == "muon"
    assert any("read as muon" in note for note in found.notes)
    assert imported("--optimizer muon --muon-tp-mode duplicated").plan.matrix_layout == "duplicated"
    with pytest.raises(UserError, match="--muon-tp-mode = all: allowed: blockwise, duplicated, distributed, layer_sh"):
        imported("--optimizer muon --muon-tp-mode all")
    assert any("in fp32, its default" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "windows"),
    [
        ("--window-size 127,0", (128,) * 4),
        ("--window-size '(127,0)' --window-attn-skip-freq 2", (128, None, 128, None)),
        ("--window-size 127 0 --window-attn-skip-freq [1,0,0,1]", (128, None, None, 128)),
        ("--window-size 127,0 --window-attn-skip-freq '([1]*1+[0]*1)*2'", (128, None, 128, None)),
        ("--window-size -1,-1", (None,) * 4),
    ],
)
def test_windows_are_those_of_the_layers(words, windows):
    """Of a model of the text's own; a shipped one without windows is another model."""
    found = imported(f"{SMALL} --num-layers 4 --swiglu --normalization RMSNorm {words}")
    assert architecture(read_config(found.config)).windows == windows
    assert imported(f"{LLAMA_8B} --vocab-size 128256").plan.model == "llama-3-8b"
    mistral = imported(f"{LLAMA_8B} --vocab-size 32000 --window-size 4095,0")
    assert mistral.plan.model == "mistral-7b"
    assert "--window-size" in mistral.words.used


def test_windows_without_a_family_are_named():
    """Learned positions and windows: no config says them, and the word decides."""
    found = imported("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 32000 --window-size 9,0")
    assert (found.config, "--window-size" in found.ignored) == (None, True)
    for words in ("--window-size 9", "--window-size 9,0 --window-attn-skip-freq [1]"):
        with pytest.raises(UserError, match=r"allowed: (tokens before|a number)"):
            imported(f"{SMALL} --num-layers 4 --swiglu --normalization RMSNorm {words}")


@pytest.mark.parametrize(
    ("script", "words", "what"),
    [
        ("pretrain_t5.py", "", "T5"),
        ("pretrain_gpt.py", "--encoder-num-layers 12", "T5"),
        ("examples/multimodal/train.py", "", "images and text"),
        ("train.py", "--language-model-type mistral_7b", "images and text"),
        ("train_rl.py", "", "reinforcement"),
        ("tools/run_text_generation_server.py", "", "inference"),
        ("pretrain_retro.py", "", "retrieval"),
        ("quantize.py", "", "no training"),
        ("tools/hf2megads_weight_converter.py", "", "no training"),
        ("tools/create_doc_index.py", "", "retrieval beside a language model"),
        ("tools/checkpoint/look.py", "", "a tool, no training"),
        ("tasks/main.py", "--task RACE", "a task other than the next token"),
        ("generate_samples_gpt.py", "", "inference"),
    ],
)
def test_other_models_are_refused_by_name(script, words, what):
    """Their sizes would be those of a language model."""
    with pytest.raises(UserError, match="not modelled; allowed: language models") as error:
        imported(f"{LLAMA_8B} --vocab-size 128256 {words}", script)
    assert what in str(error.value)
    harmless = "--enable-hf2mg-convert --vision-backbone-type vit --task-list a"  # of MindSpeed, Megatron-LM, Pai
    assert imported(f"{LLAMA_8B} --vocab-size 128256 {harmless}").plan.model == "llama-3-8b"


def test_what_is_trained_is_told_by_the_command_with_the_arguments():
    """Not by one that prepares data before it; a module says it as a script does."""
    words = f"{LLAMA_8B} --vocab-size 128256 --micro-batch-size 1"
    before = "python tools/preprocess_data.py --input x\npython tools/checkpoint/convert.py --load-dir a\n"
    found = read(f"{before}torchrun pretrain_gpt.py {words}", "train.sh", "megatron")
    assert found.plan.model == "llama-3-8b"
    with pytest.raises(UserError, match="examples/inference/gpt/static: inference: not modelled"):
        read(f"torchrun -m examples.inference.gpt.static {words}", "train.sh", "megatron")
    launched = read(f"python -m torch.distributed.run pretrain_gpt.py {words}", "train.sh", "megatron")
    assert launched.plan.model == "llama-3-8b"


def test_arguments_of_megatron_llama():
    """Alibaba's fork: its norm and its optimizer by Megatron-LM's names, and what it does not change."""
    own = "--RMSNorm --overlapped-distributed-optimizer --causal-lm --reduce-bucket-size 500000000"
    plain = LLAMA_8B.replace("--normalization RMSNorm", "")
    found = imported(f"{plain} --vocab-size 128256 {own}")
    values = found.plan.flat_values()
    assert (found.plan.model, values["zero"]) == ("llama-3-8b", 1)
    assert (values["overlap_grad_reduce"], values["overlap_param_gather"]) == (True, True)
    account = MEGATRON_WORDS.sort(found.words.used, found.words.unread)
    assert (list(account.deciding), account.unknown) == (["--reduce-bucket-size"], ())
    assert {"--RMSNorm", "--overlapped-distributed-optimizer"} <= set(found.words.used)


def test_experts_of_a_dense_model_split_nothing():
    """As Megatron-LM takes the argument and has no use for it."""
    assert imported(f"{LLAMA_8B} --vocab-size 128256 --expert-tensor-parallel-size 8").plan.mesh.etp is None


def test_a_tokenizer_of_a_known_model_has_its_vocabulary():
    """Others are asked for."""
    words = LLAMA_8B.replace("14336", "8192")
    found = imported(f"{words} --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B")
    assert found.config["vocab_size"] == 128256
    for path in ("/fsx/llama2/tokenizer.model", "data/llama-7b/tokenizer.model", "/x/Llama-2-70b-hf/tokenizer.model"):
        found = imported(f"{words} --tokenizer-type Llama2Tokenizer --tokenizer-model {path}")
        assert (found.config["vocab_size"], found.notes[1][:41]) == (32000, "The vocabulary is not said: 32000 words, ")
    found = imported(f"{words} --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/Qwen3-8B/")
    assert found.config["vocab_size"] == 151936
    found = imported(f"{words} --tokenizer-type Llama2Tokenizer --tokenizer-model /data/tokenizer.model")
    variable = imported(f"{words} --tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOKENIZER")
    assert variable.asks["model"].startswith("The vocabulary of ${TOKENIZER} is not known: give --vocab-size N")
    asked = "The vocabulary of /data/tokenizer.model is not known: give --vocab-size N in the text, or --model."
    assert (found.asks["model"], found.notes[0], found.config) == (asked, asked, None)
    assert [note for note in found.notes if "No shipped model" in note] == []


def test_uneven_ends_of_a_pipeline():
    """Layers of the ends are shared among the chunks of their rank; without all layers, that is what is asked for."""
    words = "--hidden-size 512 --num-attention-heads 8 --pipeline-model-parallel-size 4"
    ends = "--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 4"
    chunks = "--num-virtual-stages-per-pipeline-rank 2"
    assert imported(f"{words} --num-layers 14 {ends}").plan.pipeline.layers == (2, 4, 4, 4)
    assert imported(f"{words} --num-layers 14 {ends} {chunks}").plan.pipeline.layers == (1, 2, 2, 2) * 2
    with pytest.raises(UserError, match="needs the number of all layers"):
        imported(f"{words} {ends}")
    with pytest.raises(UserError, match="allowed: a multiple of 4"):
        imported(f"{words} --num-layers 16 {ends} {chunks}")


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("--num-layers 30 --hidden-size 4096 --position-embedding-type alibi --embed-layernorm", "bloom-7b1"),
        ("--num-layers 24 --hidden-size 2048 --num-attention-heads 16", "gpt3-1.3b"),
        ("--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --position-embedding-type alibi", "mpt-1b"),
        ("--num-layers 32 --hidden-size 4096 --swiglu --normalization RMSNorm --ffn-hidden-size 11008", "llama-7b"),
    ],
)
def test_of_models_of_equal_sizes_the_likest_is_taken(words, model):
    """By positions, norms, gates and the width of an MLP that is not said."""
    heads = "" if "attention-heads" in words else "--num-attention-heads 32"
    assert imported(f"{words} {heads}").plan.model == model


@pytest.mark.parametrize(
    ("words", "width"),
    [
        ("--swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights", 21824),
        ("--swiglu", 21824),
        ("", 32768),
    ],
)
def test_a_width_that_is_not_said_is_megatrons(words, width):
    """Llama 2 70B has 28672, and 69 billion parameters; a script of its sizes without a width trains 55 billion."""
    sizes = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8"
    rope = "--position-embedding-type rope --vocab-size 32000 --tensor-model-parallel-size 4"
    found = imported(f"{sizes} {rope} {words}")
    assert (found.plan.model, found.config["intermediate_size"]) == (None, width)
    assert any(f"{width}, as Megatron-LM takes where no --ffn-hidden-size" in note for note in found.notes)
    assert imported(f"{sizes} {rope} {words} --ffn-hidden-size 28672").plan.model == "llama-2-70b"


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("--ffn-hidden-size 4096", "mpt-350m"),
        ("--ffn-hidden-size 4096 --position-embedding-type alibi", "mpt-350m"),
        ("--ffn-hidden-size 4096 --swiglu", None),
        ("--ffn-hidden-size 4096 --use-rotary-position-embeddings", None),
        ("--ffn-hidden-size 4096 --normalization RMSNorm", None),
    ],
)
def test_a_model_of_other_layers_is_not_taken_for_its_sizes(words, model):
    """A public script of 24 gated and rotary layers of 1024 was MPT 350M, whose layers have neither."""
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --disable-bias-linear"
    assert imported(f"{sizes} --tokenizer-type GPT2BPETokenizer {words}").plan.model == model


QWEN_SIZED = (
    "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 5504 --num-attention-heads 16 --swiglu "
    "--normalization RMSNorm --untie-embeddings-and-output-weights"
)


def test_a_model_with_biases_is_that_of_a_text_that_has_them():
    """Of Qwen 1.5's sizes: without biases it is another model, whose vocabulary nothing says."""
    asked = imported(f"{QWEN_SIZED} --disable-bias-linear --add-qkv-bias")
    assert (asked.plan.model, asked.config) == ("qwen1.5-1.8b", None)
    assert any("The vocabulary is not said: 151936 words, as qwen1.5-1.8b has" in note for note in asked.notes)
    other = imported(f"{QWEN_SIZED} --disable-bias-linear --tokenizer-type SentencePieceTokenizer")
    assert (other.plan.model, other.config) == (None, None)
    assert any("The vocabulary of SentencePieceTokenizer is not known" in note for note in other.notes)


def test_a_vocabulary_that_the_text_says_needs_no_note():
    """By itself, padded, or by the name of a tokenizer."""
    hub = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B"
    for told in ("--vocab-size 128256", "--padded-vocab-size 128256", hub):
        assert not any("vocabulary" in note for note in imported(f"{LLAMA_8B} {told}").notes)


def test_the_tokenizer_of_gpt_2_has_its_vocabulary_whatever_the_layers():
    """Llama's layers with a mock's tokenizer: 50,257 words, padded to 128."""
    mock = imported(f"{LLAMA_8B} --tokenizer-type GPT2BPETokenizer")
    assert (mock.plan.model, mock.config["vocab_size"]) == (None, 50304)


def test_one_head_of_keys_by_its_name_in_bigcode():
    """``--attention-head-type multiquery``, as StarCoder's scripts have it."""
    one = imported("--num-layers 40 --hidden-size 6144 --num-attention-heads 48 --attention-head-type multiquery")
    assert (one.sizes["kv_heads"], "--attention-head-type" in one.words.used) == (1, True)


def test_a_variable_behind_a_value_is_no_further_value():
    """Scripts put optional arguments into variables, whose values they alone know."""
    words = ["--moe-layer-freq", "([1]*8)", "${offload_option}", "--save", "$OUT", "--recompute-modules", "mlp", "moe"]
    assert flags_of(words) == {
        "--moe-layer-freq": ["([1]*8)"], "--save": ["$OUT"], "--recompute-modules": ["mlp", "moe"]
    }  # fmt: skip


def test_a_longer_sequence_is_another_model():
    """GPT-2's sizes with 2,048 positions are GPT-3's, not a table that ends before the sequence does."""
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 --seq-length"
    found = [imported(f"{sizes} {length} --max-position-embeddings {length}").plan.model for length in (1024, 2048)]
    assert found == ["gpt2-medium", "gpt3-350m"]
    longer = imported(f"{sizes} 4096 --max-position-embeddings 4096")
    assert longer.config["n_positions"] == 4096
    words = sizes.partition(" --vocab-size")[0]
    for more in ("", " --max-position-embeddings 4096"):  # without a vocabulary it is no MPT, whose layers are others
        found = imported(f"{words} --seq-length 4096{more}")
        assert {key: found.config[key] for key in ("model_type", "n_positions")} == {
            "model_type": "gpt2", "n_positions": 4096,
        }  # fmt: skip
        assert "gpt2-medium with a table of 4,096 positions, as the text has." in found.notes


def test_a_table_of_positions_is_no_bias_of_scores():
    """30 layers of 4,096 are BLOOM's alone, which has ALiBi: with a table of positions it is a model of its own."""
    sizes = "--num-layers 30 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048"
    assert imported(f"{sizes} --position-embedding-type alibi").plan.model == "bloom-7b1"
    own = imported(f"{sizes} --max-position-embeddings 2048")
    assert own.plan.model is None
    assert own.config["n_positions"] == 2048
