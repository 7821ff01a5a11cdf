"""Which projections of a model have adapters, by the names that trainers give them, and what PEFT does with experts.

PEFT (huggingface/peft 5d602fd, ``utils/transformers_weight_conversion.py`` and ``ParamWrapper`` of
``tuners/lora/layer.py``) turns targets that were every expert's Linear until transformers 4 into
``target_parameters``, and adds the product of an adapter's two matrices to all experts' weights before they are used.
Front ends that look for Linear modules themselves (LLaMA-Factory, ms-swift) find none in experts.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.frameworks.trainer_arguments import TrainerArguments, words_of
from simpar.frameworks.words import Assumed, WordTable, is_off
from simpar.plan.choices.tuning import Tuning

TARGETS = ("lora_target_modules", "lora_target", "target_modules", "lora_target_linear", "lora_target_module",
           "lora_modules", "trainable", "lora_target_all_linear_layers")  # fmt: skip
USUAL_TARGETS = ("q_proj", "v_proj")
"""What PEFT adapts of most families if it is not told (peft, ``utils/constants.py``)."""
USUAL_DROPOUT = 0.05  # of TRL's, Qwen's and ms-swift's arguments
QKV, GATED = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
PROJECTIONS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in Tuning().lora_targets},
    **dict.fromkeys(("query_key_value", "qkv_proj", "c_attn", "w_pack", "wqkv"), QKV),
    **dict.fromkeys(("gate_up_proj", "dense_h_to_4h", "w1"), GATED),
    **dict.fromkeys(("dense", "out_proj", "wo"), ("o_proj",)),
    **dict.fromkeys(("dense_4h_to_h", "w2", "fc2"), ("down_proj",)),
    "w3": ("up_proj",),
    "fc1": ("up_proj",),
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "o": ("o_proj",),
}
"""Targets of adapters by the names that families give their projections."""
MLP = ("gate_proj", "up_proj", "down_proj")
HOMES = ("model.", "model.language_model.", "language_model.model.", "model.text_model.", "llm.model.")
"""Where models keep the layers of their decoder."""
ALL_LINEAR = ("all-linear", "all_linear", "all", "default", "true", "auto")
ADAPTS = ("use_peft", "use_lora", "lora_enable", "lora", "use_peft_lora", "peft", "enable_lora", "train_lora",
          "low_rank_training", "with_lora", "is_lora", "lora_training", "use_llm_lora")  # fmt: skip
"""Switches of adapters, by the names that scripts give them."""
IN_FOUR = ("load_in_4bit", "use_4bit", "qlora", "use_qlora", "q_lora", "use_4bit_quantization", "use_4bit_quantisation",
           "use_bnb_4bit")  # fmt: skip
IN_EIGHT = ("load_in_8bit", "use_8bit", "use_8bit_quantization", "use_8bit_qunatization", "use_int8")
BITS = ("quantization_bit", "bits", "quant_bit", "load_in_kbits", "bit", "load_in_bits")
"""Bits of frozen weights."""
KIND = ("finetuning_type", "adapter", "tuner_type", "train_type", "peft_method")
"""Options that name what is trained."""
PERHAPS_KIND = ("train_mode", "adapter_name", "peft_type", "finetune_type", "tuning_type", "sft_type", "tuning_mode",
                "training_recipe")  # fmt: skip
"""Options that name it in some scripts, by their values, and in others something else."""
KINDS, OTHER_KINDS = ("lora", "qlora", "full", "freeze", "none"), (
    "adalora", "adapterh", "adapterp", "bottleneck", "ia3", "loha", "lokr", "oft", "p_tuning", "parallel", "prefix",
    "prefix_tuning", "prompt", "prompt_tuning", "ptuning", "vera",
)  # fmt: skip
"""What is trained, and what PEFT trains besides."""
PREFIXES = ("pre_seq_len", "num_virtual_tokens", "prefix_length", "prompt_tuning_num_tokens")
SPEAKS = re.compile(r"(?:^|_)(?:q?lora|dora|peft|adapters?|low_rank|prefix_tuning|prompt_tuning|p_?tuning)(?:_|$)")
"""Names of options that only adapters have."""
FREEZES = ("freeze_llm", "freeze_language_model", "freeze_llm_backbone", "tune_mm_mlp_adapter",
           "only_tune_projector")  # fmt: skip
"""Switches by which models that see leave the decoder as it is (LLaVA's ``tune_mm_mlp_adapter``: and train that)."""
TUNES = ("tune_language_model", "tune_mm_llm", "tune_llm", "train_llm")
"""Switches of what of such a model is trained: off, or beside others and untold, they leave the decoder as it is."""
TUNES_OTHERS = ("tune_mm_projector", "tune_vision_tower")
"""Those of VILA, where a part is frozen unless it is told."""
PARTS_TUNED = "mm_tunable_parts"
PARAMETERS = ("lora_target_parameters", "target_parameters")
WORD = "adapters of fused experts"
WHAT = (
    "transformers 5 keeps a layer's experts in one parameter, to which PEFT adds whole products of adapters (W + BA of "
    "all experts, dense gradients), timed here as products beside every expert: memory and time"
)
FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Projections in the parameters of experts."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LOOKS_FOR_LINEAR = ("llama-factory", "swift")


OF_VOCABULARY = ("resize_vocab", "new_special_tokens")
"""Options of LLaMA-Factory by which tables of the vocabulary grow, and are trained whole (``model/adapter.py``)."""
OF_FOLDERS = ("adapter_name_or_path", "lora_model_dir", "adapters")
"""Adapters that training goes on with, whose rank and targets are in their folder."""
BESIDE: Mapping[str, str] = {
    **dict.fromkeys(OF_VOCABULARY, "tables of the vocabulary, which are trained whole beside adapters: memory"),
    **dict.fromkeys(OF_FOLDERS, "adapters of a folder, whose rank and targets it says: memory and time"),
    "lora_r": "whether adapters are trained: TRL's use_peft, which is not said, is off; a script may have it on",
    "quantization_method": "weights of layers that another library stores in 4 bits: memory and time",
    "load_in_4bit": "weights of layers in 4 bits, of which nothing can be trained: memory and time",
}
"""What options beside adapters could change."""
BITSANDBYTES = ("bnb", "bitsandbytes", "none", "")


def take_beside_adapters(given: TrainerArguments, *, adapts: bool) -> None:
    """Take what only decides beside adapters as read where there are none; else leave it to the table."""
    for name in (*OF_VOCABULARY, *OF_FOLDERS):
        value, is_new = given.told(name), name in OF_FOLDERS and given.on("create_new_adapter")
        if adapts and value and not is_new:
            given.leave(name)
    if str(given.told("quantization_method") or "").lower() not in BITSANDBYTES:
        given.leave("quantization_method")


def kind_of(given: TrainerArguments) -> str:
    """What the arguments say is trained: adapters of a kind, "full", "freeze"; "" for nothing. Raises UserError."""
    if prefix := next((key for key in PREFIXES if given.number(key)), None):
        raise given.refused(
            prefix, "none: prefixes before keys and values are not modelled; adapters are those of LoRA"
        )
    told = str(given.one(*KIND) or "").lower()
    if told:
        return told
    for key in PERHAPS_KIND:
        value = str(given.told(key) or "").lower().replace("-", "_")
        if value in OTHER_KINDS:
            raise given.refused(key, ", ".join(KINDS))
        if value in KINDS:
            return value
    return ""


def assume_qlora(given: TrainerArguments, names: Iterable[str]) -> tuple[Assumed, ...]:
    """Suppose 4 bits beside adapters where the name of a file or script says QLoRA, and no argument says how many."""
    says = next((name for name in (PurePath(each).name for each in names) if "qlora" in name.lower()), None)
    told = given.on(*IN_FOUR, *IN_EIGHT) is not None or given.number(*BITS) or given.on(*ADAPTS) is False
    if says is None or told or kind_of(given) not in ("", "qlora"):
        return ()
    given.suppose(load_in_4bit=True)
    return (Assumed("frozen_dtype", "nf4", f"{says} is named after QLoRA, and no argument says bits", ("bf16",)),)


def refuse_unknown_adapters(given: TrainerArguments, table: WordTable) -> None:
    """Refuse to take a launch as the training of all parameters where a word that is new speaks of adapters.

    Raises UserError.
    """
    for word, value in given.new_words(table, SPEAKS):
        if not is_off(value):
            how = f"{', '.join(ADAPTS[:2])} or {KIND[0]} beside it (lora, qlora; full for none)"
            raise given.refused_as_new(word, "adapters", how)


def refuse_frozen_decoder(given: TrainerArguments) -> None:
    """Refuse a launch that trains a tower or a projector beside a decoder that stays as it is. Raises UserError."""
    what = "the decoder's training: what is trained of models that see without it is not modelled"
    parts = given.get(PARTS_TUNED)
    if parts and "mm_language_model" not in str(parts):
        raise given.refused(PARTS_TUNED, what)
    for key in FREEZES:
        if given.on(key):
            raise given.refused(key, f"false: {what}")
    told = [(key, given.on(key)) for key in TUNES]
    if off := next((key for key, on in told if on is False), None):
        raise given.refused(off, f"true: {what}")
    if all(on is None for _, on in told):
        other = next((key for key in TUNES_OTHERS if given.values_.get(key) is not None), None)
        if other is not None:
            raise given.refused(other, f"{TUNES[0]} beside it: {what}")


def projections_of(parameters: Iterable[Any]) -> tuple[str, ...]:
    """The projections in parameters by name, such as ``mlp.experts.gate_up_proj``; () where one is no expert's."""
    named = [str(each).rpartition(".")[2] for each in parameters]
    return tuple(part for name in named for part in FUSED[name]) if all(name in FUSED for name in named) else ()


def adapts_experts(model: str | None, values: Mapping[str, Any]) -> bool:
    """Whether adapters are beside the projections of experts of a shipped mixture."""
    if model is None or values.get("lora_rank") is None or set(values["lora_targets"]) <= set(ATTENTION):
        return False
    return load_model(model).is_mixture


def assumed_targets(name: str, targets: tuple[str, ...], *, said: bool) -> Iterable[Assumed]:
    """What "all" means to a front end that looks for Linear modules; ``said``: the text names projections."""
    if name in LOOKS_FOR_LINEAR and not said:
        why = (
            "every expert's matrices, Linear modules until transformers 4; of version 5 they are none, and are left out"
        )
        yield Assumed("lora_targets", targets, why, (tuple(each for each in targets if each in ATTENTION),))


def targets_of(given: TrainerArguments, usual: tuple[str, ...], parameters: list[str]) -> tuple[str, ...]:
    """Projections with adapters, in a layer's order; the embedding and the head are left to the table of words.

    ``usual`` are those where the text names none, ``parameters`` those of experts that are named beside them or alone.
    Raises UserError for others.
    """
    if given.number("lora_dim"):
        return _of_chat(given)
    chosen, further = given.one(*TARGETS), projections_of(parameters)
    if parameters and not further:
        given.leave(*PARAMETERS)
    if chosen in (None, False, []) and further:
        return further
    if chosen in (None, False):
        return usual
    names = [word.rpartition(".")[2].lower() for word in words_of(chosen)]
    if any(name in ALL_LINEAR for name in names):
        return Tuning().lora_targets
    own = {target for name in names for target in PROJECTIONS.get(name, ())} or _matched(chosen)
    own |= set(further)
    if not own:
        key = next(key for key in TARGETS if given.get(key) is not None)
        raise given.refused(key, f"{', '.join(Tuning().lora_targets)}, or all-linear")
    if any(name not in PROJECTIONS for name in names) and not _matched(chosen):
        given.leave(*TARGETS)
    return tuple(target for target in Tuning().lora_targets if target in own)


def _of_chat(given: TrainerArguments) -> tuple[str, ...]:
    """The projections whose names contain one of those that are told, as DeepSpeed-Chat asks. Raises UserError."""
    parts = words_of(given.one("lora_module_name") or "decoder.layers.")
    chosen = tuple(
        name for name in Tuning().lora_targets
        if any(part in f"decoder.layers.0.{'mlp' if name in MLP else 'self_attn'}.{name}" for part in parts)
        or any(name in PROJECTIONS.get(part, ()) for part in parts)
    )  # fmt: skip
    if not chosen:
        raise given.refused("lora_module_name", "a part of the names of layers, such as layers. or self_attn")
    return chosen


def _matched(chosen: Any) -> set[str]:
    """The projections of a decoder's layer whose whole names a pattern matches, as PEFT asks."""
    if not isinstance(chosen, str):
        return set()
    try:
        pattern = re.compile(chosen)
    except re.error:
        return set()
    return {
        name for name in Tuning().lora_targets for home in HOMES
        if pattern.fullmatch(f"{home}layers.0.{'mlp' if name in MLP else 'self_attn'}.{name}")
    }  # fmt: skip
