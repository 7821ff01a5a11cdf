"""Pai-Megatron-Patch: Megatron-LM's arguments with its own for models, tokenizers and data.

Source: alibaba/Pai-Megatron-Patch a098ca5 (``megatron_patch/arguments.py``, ``megatron_patch/tokenizer``).
"""

from dataclasses import replace

from simpar.architectures.catalogue import load_model
from simpar.frameworks.match import is_telling, models_with
from simpar.frameworks.megatron_arguments import Arguments, read_arguments, renamed
from simpar.frameworks.megatron_kin import asks_for
from simpar.frameworks.megatron_layers import refuse_other_models
from simpar.frameworks.megatron_layers_said import FREQUENCY, NEAR
from simpar.frameworks.megatron_model import kind_asked, sizes_asked
from simpar.frameworks.megatron_read import of_arguments
from simpar.frameworks.megatron_words import MEGATRON_WORDS, WINDOWS
from simpar.frameworks.reader import Reader
from simpar.frameworks.target import Imported
from simpar.frameworks.words import WordTable

HYBRID = {"hybridadam": "adam", "hybridsgd": "sgd"}
"""Pai-Megatron-Patch's optimizers on the host, by what they are."""
OF_PAI = ("--patch-tokenizer-type", "--extra-vocab-size", "--max-padding-length")
TOKENIZER, FURTHER_WORDS, PADDED = "--patch-tokenizer-type", "--extra-vocab-size", "--padded-vocab-size"
SAME_AS = {
    "--intermediate-size": "--ffn-hidden-size", "--n-head-kv": "--num-query-groups",
    "--use-llama2-rotary-position-embeddings": "--use-rotary-position-embeddings",
    "--use-mistral-rotary-position-embeddings": "--use-rotary-position-embeddings",
}  # fmt: skip
"""Pai-Megatron-Patch's names, in its models of 2023, of what Megatron-LM has by another name."""
WHOLE_VOCABULARIES = {
    "BloomTokenizerFromHF": 250880, "ChatGLMTokenizerFromHF": 130528, "GLM10BZHTokenizerFromHF": 50048,
    "IcetkGLM130BTokenizer": 150528, "BloomTokenizerFromCustom": 134298, "StarcoderTokenizerFromHF": 49152,
    "VicunaTokenizerFromHF": 32000,
}  # fmt: skip
"""Words of a model by its tokenizer, as Pai-Megatron-Patch sets them (``megatron_patch/tokenizer/__init__.py``)."""
WORDS_OF_TOKENIZERS = {
    "FalconTokenizer": 65024, "OPTTokenizer": 50265, "LLama2Tokenizer": 32000, "MixtralTokenizer": 32000,
    "MistralTokenizer": 32000, "LLama3Tokenizer": 128000, "QwenTokenizer": 151851, "Qwen2Tokenizer": 151643,
    "Qwen3Tokenizer": 151643, "YiTokenizer": 64000,
}  # fmt: skip
"""The same, to which ``--extra-vocab-size`` adds: those of the checkpoints that the tokenizers are named after."""
WHOLE_BY_FURTHER = {("DeepSeekV2Tokenizer", 2400): 102400, ("DeepSeekV2Tokenizer", 467): 129280}
"""Words of a model where one tokenizer serves several: DeepSeek-V2 and DeepSeek-V3 add different numbers to theirs."""
WORDS = MEGATRON_WORDS | WordTable(
    idle=("patch_tokenizer_type", "max_padding_length", "dataset", "train_mode", "epochs", "keep_last",
          "rotary_scaling_factor", "use_alibi_mask", "padded_dataset", "train_data", "valid_data", "task_list",
          "huggingface_model_path", "megatron_path", "rotary_scale_factor", "disable_bias_*_fc", "embed_layernorm",
          "use_llama2_rotary*", "use_mistral_rotary*", "shared_moe_ffn_hidden_size", "enable_shared_expert",
          # Megatron-LM's own --qk-head-dim and --qk-pos-emb-head-dim are what its layers read
          "qk_nope_head_dim", "qk_rope_head_dim"),
    deciding={
        "sliding_window": WINDOWS,
        "extra_vocab_size": "words beside the model's vocabulary: memory of tables and logits",
        "optimizer_offload_policy": "what of the optimizer is on the host: memory and time",
        "use_normhead": "a normalised head: time",
        "train_data_packing": "documents in a sequence: attention's time",
    },
)  # fmt: skip


def read(text: str, name: str) -> Imported:
    """The plan of arguments of Pai-Megatron-Patch: Megatron-LM's, its own Adam on the host, and its tokenizers."""
    given = read_arguments(text, name)
    given = renamed(given, {own: theirs for own, theirs in SAME_AS.items() if theirs not in given.values})
    if "--n-head-kv" in given.names.values():
        given = replace(given, values={**given.values, "--group-query-attention": []})
    refuse_other_models(given)
    given = _with_dense_layers(_with_shared_expert(_with_vocabulary(given)))
    if given.text("--optimizer") in HYBRID:
        own = {"--optimizer": [HYBRID[str(given.text("--optimizer"))]], "--optimizer-cpu-offload": []}
        given = replace(
            given, values={**given.values, **own}, names={**given.names, **dict.fromkeys(own, "--optimizer")}
        )
    return of_arguments(given)


def _with_vocabulary(given: Arguments) -> Arguments:
    """The arguments with the words that its own tokenizer gives a model, which are padded no further.

    Of tokenizers whose checkpoints differ in them, only the name: the words are a shipped model's, or are asked for.
    """
    kind = given.values.get(TOKENIZER, [""])[:1]
    if not any(kind):
        return given
    values, names = dict(given.values), dict(given.names)
    values["--tokenizer-type"], names["--tokenizer-type"] = kind, TOKENIZER
    told = (values.get(FURTHER_WORDS) or ["0"])[0]
    further = int(told) if told.isascii() and told.isdecimal() else None
    whole = WHOLE_VOCABULARIES.get(kind[0])
    if whole is None and further is not None:
        own = WORDS_OF_TOKENIZERS.get(kind[0])
        whole = WHOLE_BY_FURTHER.get((kind[0], further)) if own is None else own + further
        whole = None if whole is not None and _differs(given, whole) else whole
    is_padded = values.get(PADDED, ["0"]) != ["0"]  # which leaves further words out
    if whole is not None and not is_padded:
        values[PADDED], names[PADDED] = [str(whole)], TOKENIZER
    if whole is not None or is_padded:
        given.used.add(FURTHER_WORDS)
    return replace(given, values=values, names=names)


def _differs(given: Arguments, words: int) -> bool:
    """Whether the sizes are those of shipped models, none of which has about so many words.

    A tokenizer's class reads the words of any checkpoint: Yi is trained with Mistral's.
    """
    sizes = {name: size for name, size in sizes_asked(given).items() if name != "vocab"}
    known = models_with(sizes, kind_asked(given)) if is_telling(sizes) else []
    return bool(known) and all(abs(load_model(each).dims["vocab"] - words) > NEAR for each in known)


def _with_shared_expert(given: Arguments) -> Arguments:
    """The arguments with the shared expert of Qwen1.5's and Qwen2's mixtures by Megatron-LM's names."""
    own, switch = "--shared-moe-ffn-hidden-size", "--enable-shared-expert"
    if switch not in given.values:
        return given
    return renamed(given, {own: "--moe-shared-expert-intermediate-size", switch: "--moe-shared-expert-gate"})


def _with_dense_layers(given: Arguments) -> Arguments:
    """The arguments with the dense layers of its DeepSeek-V2, which its ``--moe-layer-freq N`` counts, as a pattern.

    Source: ``megatron_patch/model/deepseek_v2/transformer_layer.py``: the layers behind the N-th have experts.
    """
    told, layers = ("".join(given.values.get(flag, [])) for flag in (FREQUENCY, "--num-layers"))
    if not (told.isdecimal() and layers.isdecimal() and "--kv-lora-rank" in given.values):
        return given
    dense = min(int(told), int(layers))
    return replace(given, values={**given.values, FREQUENCY: [f"[0]*{dense}+[1]*{int(layers) - dense}"]})


READER = Reader(
    name="pai-megatron-patch",
    description="Pai-Megatron-Patch: Megatron-LM's arguments with its own for models and data",
    read=read,
    starts=asks_for(OF_PAI),
    words=WORDS,
    written_as="megatron",
)
