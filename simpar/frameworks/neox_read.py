"""GPT-NeoX back to a plan: its YAML, and commands of ``deepy.py`` with one or more of them.

Source: EleutherAI/gpt-neox ea7aefd (``megatron/neox_arguments``, ``megatron/model/transformer.py``). It trains by
DeepSpeed, whose options stand among its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.deepspeed_read import WORDS as DEEPSPEED_WORDS
from simpar.frameworks.deepspeed_read import values_of
from simpar.frameworks.deepspeed_stages import HEADS, layers_by_method
from simpar.frameworks.deepspeed_states import as_run
from simpar.frameworks.match import model_note, models_with
from simpar.frameworks.overrides import choice, command_of, is_config, load_beside, mapping, real
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipes import ConfigReader, flat
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.words import ReadWords, WordTable, rate_of

STARTED_BY = ("deepy.py",)
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "cpu_adam": "adamw", "cpu_torch_adam": "adamw", "lion": "lion",
              "sgd": "sgd"}  # fmt: skip
GATED = ("geglu", "swiglu", "reglu", "bilinear", "glu")
OTHERS = ("mamba", "rwkv", "gmlp", "amlp", "sparse")
PRECISIONS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
WORDS_OF = {"gpt2bpetokenizer": 50257, "hftokenizer": 50277, "hfgpt2tokenizer": 50257, "tiktokentokenizer": 100277}
"""Vocabularies by tokenizer: of GPT-2, and of GPT-NeoX-20B, which its configs have."""
METHOD = "type:transformer|mlp"
"""Default of ``pipe_partition_method``."""
DIVISOR = 128
"""Default of ``make_vocab_size_divisible_by``."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of GPT-NeoX, or in a command with several. Raises UserError naming file, option, value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    data = {str(key).replace("-", "_"): value for key, value in data.items()}
    if not owns(data):
        raise UserError(f"{name}: no config of GPT-NeoX: it has num_layers and model_parallel_size")
    given = ConfigReader(flat(data), name)
    if other := next((each for each in OTHERS if each in str(given.get("attention_config"))), None):
        raise UserError(f"{name}: attention_config: layers of {other}: not modelled; allowed: flash, global")
    kind = str(given.get("optimizer.type") or "adam").lower()
    given.values_ = {**given.values_, "optimizer.type": "Adam"}  # its optimizers are not DeepSpeed's
    values = values_of(given, [])
    if kind not in OPTIMIZERS:
        raise UserError(f"{name}: optimizer.type = {kind}: allowed: {', '.join(OPTIMIZERS)}")
    tp, pp = given.whole("model_parallel_size") or 1, max(given.whole("pipe_parallel_size", 0) or 0, 1)
    precision = choice(given, "precision", PRECISIONS) or values["precision"]
    values |= {
        "stack": "megatron-deepspeed",
        "tp": tp,
        "pp": pp,
        "sequence_parallel": bool(given.get("sequence_parallel")) if tp > 1 else None,
        "precision": precision,
        "optimizer": OPTIMIZERS[kind],
        "optimizer_kernels": None,
        "grad_dtype": "fp32" if given.get("fp32_allreduce") and precision != "fp32" else values["grad_dtype"],
        "recompute": _recompute(given),
        "attention_kernel": None if "flash" in str(given.get("attention_config")) else "eager",
        "micro_batch": values["micro_batch"] or 1,
    }
    if given.get("zero_optimization.cpu_offload"):
        values["offload_optimizer"] = "cpu"
    if tp == 1:
        given.used.add("partition_activations")  # there is nothing to split over
    values["layers"] = _stages(given, pp)
    values, own = as_run(values, precision)
    sizes, config = _model(given, tp)
    models = models_with(sizes) if sizes else []
    values["model"] = models[0] if models else None
    seq_len = given.whole("seq_length")
    values["training"] = {**({"seq_len": seq_len} if seq_len else {}), **(values["training"] or {})} or None
    steps = given.whole("gradient_accumulation_steps") or given.whole("gas") or 1
    local = None if "train_batch_size" in given else values["micro_batch"] * steps
    config = None if models else config
    note = "" if config else _note(given, models, sizes)
    notes = [*([note] if note else []), *own]
    if precision == "fp32":
        notes.append("Neither fp16 nor bf16 is said: GPT-NeoX trains in fp32, its default.")
    if "train_micro_batch_size_per_gpu" not in given:
        notes.append("The micro-batch is not said: the plan has 1.")
    if config:
        notes.append(f"The model is built of the config (model_type {config['model_type']}).")
    result = Imported(plan_said(values), given.words(), tuple(notes), local, sizes=sizes, asks={"model": note})
    rates = {"attention": given.get("attention_dropout"), "hidden": given.get("hidden_dropout")}
    drops = {name: rate_of(rate) or 0.0 for name, rate in rates.items()}  # 0 where none is said (neox_args.py)
    return replace(result, config=config, dropout=drops, words=_words(given))


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of GPT-NeoX."""
    keys = {str(key).replace("-", "_") for key in data}
    return "model_parallel_size" in keys and bool(
        keys & {"pipe_parallel_size", "train_micro_batch_size_per_gpu", "pos_emb"}
    )


def _starts(words: Sequence[str]) -> bool:
    return any(PurePath(word).name in STARTED_BY for word in words)


def _of_command(text: str, name: str) -> dict[str, Any]:
    """What the configs of a command say together: ``deepy.py train.py [-d FOLDER] A.yml B.yml``."""
    words = command_of(text, name, _starts)
    at = next(at for at, word in enumerate(words) if _starts([word]))
    script = next((word for word in words[at + 1 :] if word.endswith(".py")), "")
    if script and PurePath(script).name != "train.py":
        raise UserError(f"{name}: {script}: not training; allowed: deepy.py train.py")
    folder, files, rest = "", list[str](), iter(words[at + 1 :])
    for word in rest:
        if word in ("-d", "--conf_dir"):
            folder = next(rest, "")
        elif not word.startswith("-") and not word.endswith(".py"):
            files.append(word if word.endswith((".yml", ".yaml")) else f"{word}.yml")
    if not files:
        raise UserError(f"{name}: {STARTED_BY[0]}: no config; allowed: one or more YAML files")
    whole: dict[str, Any] = {}
    for file in files:
        whole |= load_beside(str(PurePath(folder) / file), name)
    return whole


def _stages(given: ConfigReader, pp: int) -> tuple[int, ...] | None:
    """The layers of every stage as DeepSpeed's pipeline spreads them; None where they are equal, or it is not known."""
    key, layers = "pipe_partition_method", given.whole("num_layers")
    head = HEADS["gpt-neox" if given.values_.get("no_weight_tying") else "tied"]
    stages = layers_by_method(str(given.values_.get(key) or METHOD), layers, pp, head) if layers else None
    if pp == 1 or stages is not None:
        given.used |= {key} & set(given.values_)
    return None if stages is None or len(set(stages)) == 1 else stages


def _recompute(given: ConfigReader) -> str:
    if not given.get("checkpoint_activations"):
        given.used |= {"checkpoint_num_layers", "partition_activations"}
        return "none"
    if given.values_.get("checkpoint_num_layers") == 1:
        given.used.add("checkpoint_num_layers")
    return "full"


def _model(given: ConfigReader, tp: int) -> tuple[dict[str, int], dict[str, Any] | None]:
    """The sizes of the model, and its config where it is not a shipped one; None if no family has its layers."""
    told = {key: given.whole(key) for key in ("num_layers", "hidden_size", "num_attention_heads")}
    if None in told.values():
        return {}, None
    layers, hidden, heads = (told[key] or 0 for key in told)
    gated = str(given.get("activation", "gelu")) in GATED
    ffn = _ffn(given, hidden, gated)
    words = _vocabulary(given)
    kv = given.whole("num_kv_heads") or heads
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "ffn": ffn}
    if (given.whole("moe_num_experts") or 1) > 1:
        return {}, None
    sizes |= {"num_experts": 0, "expert_ffn": 0}
    if words is None:
        return sizes, None
    step = (given.whole("make_vocab_size_divisible_by") or DIVISOR) * tp
    base = {
        "vocab_size": -(-words // step) * step, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": ffn, "tie_word_embeddings": not given.get("no_weight_tying"),
    }  # fmt: skip
    sizes["vocab"] = base["vocab_size"]
    return sizes, _family(given, base, gated=gated, kv=kv)


def _family(given: ConfigReader, base: dict[str, Any], *, gated: bool, kv: int) -> dict[str, Any] | None:
    """The config of a family with the layers that are said; None if none has them."""
    positions, norm = str(given.get("pos_emb", "learned")), str(given.get("norm", "layernorm"))
    parallel = bool(given.get("gpt_j_residual"))
    biased = given.get("use_bias_in_attn_linear", True)
    window = given.whole("sliding_window_width")
    if gated and norm == "rmsnorm" and positions == "rotary" and not parallel:
        mlp = given.get("use_bias_in_mlp", True)
        if window:
            windows = {"sliding_window": window, "use_sliding_window": True}
            return {**base, **windows, "num_key_value_heads": kv, "model_type": "mistral"}
        return {**base, "num_key_value_heads": kv, "model_type": "llama", "attention_bias": biased, "mlp_bias": mlp}
    if gated or norm != "layernorm" or window or kv != base["num_attention_heads"]:
        return None
    if positions == "rotary":
        rotary = real(given, "rotary_pct")
        return {**base, "model_type": "gpt_neox", "use_parallel_residual": parallel, "attention_bias": biased,
                "rotary_pct": 1.0 if rotary is None else rotary}  # fmt: skip
    plain = base["intermediate_size"] == 4 * base["hidden_size"] and base["tie_word_embeddings"] and not parallel
    if positions != "learned" or not plain:
        return None
    return {"model_type": "gpt2", "vocab_size": base["vocab_size"], "n_embd": base["hidden_size"],
            "n_layer": base["num_hidden_layers"], "n_head": base["num_attention_heads"],
            "n_positions": given.whole("max_position_embeddings") or 1024,
            "attn_pdrop": given.get("attention_dropout") or 0.0, "resid_pdrop": given.get("hidden_dropout") or 0.0,
            "embd_pdrop": given.get("hidden_dropout") or 0.0}  # fmt: skip


def _ffn(given: ConfigReader, hidden: int, gated: bool) -> int:
    """The width of an MLP: gated ones have a third of what is said, rounded up (ParallelMLP)."""
    factor = real(given, "expansion_factor")
    said = given.whole("intermediate_size") or (int(factor * hidden) if factor else 4 * hidden)
    width, multiple = (int(said * 2 / 3) // 2 if gated else said), given.whole("mlp_multiple_of") or 1
    return -(-width // multiple) * multiple


def _vocabulary(given: ConfigReader) -> int | None:
    kind = str(given.get("tokenizer_type", "GPT2BPETokenizer")).lower()
    return given.whole("padded_vocab_size") or WORDS_OF.get(kind)


def _note(given: ConfigReader, models: list[str], sizes: dict[str, int]) -> str:
    """What is missing of the model: the vocabulary, where a tokenizer of the user's own has it."""
    if models or not sizes or "vocab" in sizes:
        return model_note(models, sizes)
    tokenizer = given.get("tokenizer_type")
    return f"The vocabulary of {tokenizer} is not known: give padded_vocab_size in the config, or --model."


def _words(given: ConfigReader) -> ReadWords:
    """The words of a config; of DeepSpeed's, its own table knows what they do."""
    told = given.words()
    return ReadWords(told.used, {key: value for key, value in told.unread.items() if value not in ("", [])})


WORDS = DEEPSPEED_WORDS | WordTable(
    idle=(
        "data_*", "*_data_path*", "*_data_weights", "vocab_file", "merge_file", "save*", "load*", "checkpoint_factor",
        "checkpoint_validation*", "extra_save_iters", "keep_last*", "eval_*", "log_*", "tensorboard*", "wandb*",
        "split", "seed", "train_iters", "lr_*", "min_lr", "warmup", "weight_decay*", "hysteresis", "loss_scale*",
        "init_method*", "output_layer_init_method", "rms_norm_epsilon", "layernorm_epsilon", "max_position_embeddings",
        "rotary_*", "tokenizer_type", "norm", "pos_emb", "activation", "distributed_backend", "launcher", "hostfile",
        "deepspeed*", "steps_per_print", "use_bias_in_norms", "output_layer_parallelism", "synchronize_each_layer",
        "gradient_clipping", "make_vocab_size_divisible_by", "comment",
        "num_workers", "finetune", "config_files*", "iteration", "master_*", "num_gpus", "user_script", "no_ssh*",
        "tensorboard_dir", "s3_*", "git_hash", "char_level_ppl", "exit_interval", "dataset_impl", "use_shared_fs",
        "weight_by_num_documents", "weighted_sampler_alpha", "no_weight_decay*", "override_lr*", "use_checkpoint_lr*",
        "scaled_upper_triang_masked_softmax_fusion", "mup_*", "use_mup", "coord_check", "precision",
        "memory_profiling*", "bias_gelu_fusion", "layernorm_fusion", "rmsnorm_fusion", "rope_fusion",
        "attention_config", "gpt_j_tied", "opt_pos_emb_offset", "data_parallel_size", "world_size", "is_pipe_parallel",
        "use_wandb", "decay_lr_to", "warmup_iters", "use_bias_in_attn_linear",
    ),
    deciding={
        "partition_activations": "inputs of recomputed layers are split over tensor-parallel ranks: memory",
        **dict.fromkeys(
            ("dpo_*", "kto_*", "kl_*", "fp32_reinforce", "reinforce*", "online_*", "serve_model_weights"),
            "another loss than the next token's: further passes, sequences and models",
        ),
        **dict.fromkeys(("pack_impl", "allow_chopped"), "how full sequences are: time"),
        "pipe_partition_method": "which layers a stage has: time and memory",
        "gpt_j_residual": "attention and MLP beside each other: time",
        "no_weight_tying": "whether the head has a table of its own: memory",
        "checkpoint_num_layers": "how many layers are recomputed together: memory",
        "checkpoint_in_cpu": "what is kept waits on the host: memory and time",
        "use_flashattn_swiglu": "kernels that are fused: time and memory",
        "gradient_accumulation_fusion": "sums of gradients inside of products: time",
        "te_*": "layers of Transformer Engine: time and memory",
        "fp8_*": "products in 8 bits: time and memory",
        "fp16_lm_cross_entropy": "the loss in 16 bits: memory of the logits",
        "moe_*": "experts: time and memory",
        "sparsity_config*": "sparse attention: time and memory",
        "gmlp_attn_dim": "layers of another kind: time and memory",
        "mamba_*": "layers of another kind: time and memory",
        "rwkv*": "layers of another kind: time and memory",
        "zero_quantized*": "communication in fewer bits: time",
        "curriculum_learning*": "shorter sequences at first: time",
        "autotuning*": "what DeepSpeed tries out: all of it",
        "lion_*": "the optimizer: time",
        "compression_training*": "weights that are pruned or quantised: time",
        "sliding_window_width": "attention in windows: time",
        "train_impl": "preference or reward training: time and memory",
    },
)  # fmt: skip

READER = Reader(
    name="gpt-neox",
    description="GPT-NeoX: its YAML, and commands of deepy.py with one or more",
    read=read,
    starts=_starts,
    owns=owns,
    words=WORDS,
)
