"""NeMo 1 back to a plan: the YAML of its Megatron models, and commands with Hydra's overrides."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, get_args

from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import of_mapping
from simpar.frameworks.megatron_read import plan_of
from simpar.frameworks.overrides import assigned, command_of, is_config, laid_over, load_beside, mapping, reader_of
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported
from simpar.frameworks.words import Assumed, WordTable
from simpar.plan.choices.tuning import Projection

RENAMED = {
    "encoder_seq_length": "seq_length", "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method", "activations_checkpoint_num_layers": "recompute_num_layers",
    "ub_tp_comm_overlap": "tp_comm_overlap",
}  # fmt: skip
"""NeMo 1's names of Megatron-LM's arguments (``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml``)."""
SAME = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size",
    "num_moe_experts", "moe_ffn_hidden_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "virtual_pipeline_model_parallel_size", "sequence_parallel",
    "micro_batch_size", "global_batch_size", "rotary_base", "moe_token_dispatcher_type",
)  # fmt: skip
NEMO_PRECISIONS = {
    "bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "fp16": "fp16", "32": "", "32-true": "",
    "fp32": "",
}  # fmt: skip
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
OPTIMIZERS = (*SHARDED, "fused_adam", "adam", "adamw", "sgd")
STARTED_BY = ("megatron_gpt_pretraining", "megatron_gpt_finetuning", "megatron_gpt_sft", "megatron_gpt_peft_tuning",
              "megatron_llama_pretraining", "megatron_gpt_continue_training")  # fmt: skip
TUNED = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"), "attention_dense": ("o_proj",),
    "mlp_fc1": ("gate_proj", "up_proj"), "mlp_fc2": ("down_proj",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"), "all": get_args(Projection),
}  # fmt: skip
"""Targets of ``model.peft.lora_tuning`` (``megatron_gpt_finetuning_config.yaml``)."""
ADAPTER_DIM = 32
"""Default of ``lora_tuning.adapter_dim``."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of NeMo 1, or in a command with one. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of NeMo 1: it has sections trainer and model with parallel sizes")
    given = reader_of(data, name)
    values: dict[str, Any] = {}
    for theirs in (*SAME, *RENAMED):
        value = given.get(f"model.{theirs}")
        if value is not None:
            values[RENAMED.get(theirs, theirs)] = value
    if "num_query_groups" in values:
        values["group_query_attention"] = True
    for key, theirs in (("seq_length", "max_seq_length"), ("micro_batch_size",) * 2, ("global_batch_size",) * 2):
        tuned = given.get(f"model.data.train_ds.{theirs}")  # fine-tuning has them there
        values |= {key: tuned} if tuned is not None else {}
    values |= _nemo_numerics(given) | _nemo_optimizer(given)
    arguments = of_mapping(values, name)
    arguments.names = {flag: f"model.{key}" for flag, key in arguments.names.items()}
    result = plan_of(arguments)
    changes: dict[str, Any] = {"dp": _replicas(given, result.plan.mesh.sizes.replica_ranks)} | _nemo_adapters(given)
    if given.get("model.fsdp"):
        changes |= {"zero": 3, "kind": "fsdp"}
    assumed: tuple[Assumed, ...] = ()
    if given.get("model.megatron_amp_O2") is False and result.plan.numerics.precision != "fp32":
        changes["parameter_dtype"] = "fp32"
    elif "model.megatron_amp_O2" not in given and result.plan.numerics.precision != "fp32":
        why = "model.megatron_amp_O2 is not said; without it parameters stay in fp32"
        assumed = (Assumed("parameter_dtype", "bf16", why, ("fp32",)),)
    plan = result.plan.with_values(**{key: value for key, value in changes.items() if value is not None})
    plan = plan.model_copy(update={"stack": "nemo"})
    return replace(result, plan=plan, words=given.words(), assumed=assumed)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of NeMo 1's Megatron models."""
    model = data.get("model")
    return isinstance(data.get("trainer"), Mapping) and isinstance(model, Mapping) and any(
        key in model for key in ("tensor_model_parallel_size", "encoder_seq_length", "megatron_amp_O2", "peft")
    )  # fmt: skip


def _starts(words: Sequence[str]) -> bool:
    return any(PurePath(word).stem in STARTED_BY for word in words if word.endswith(".py"))


def _of_command(text: str, name: str) -> dict[str, Any]:
    """The config that a command of NeMo 1 names (Hydra's flags), with the command's values over it."""
    words = command_of(text, name, _starts)
    script = next(word for word in words if PurePath(word).stem in STARTED_BY)
    folder, config = value_of(words, ("--config-path", "-cp")), value_of(words, ("--config-name", "-cn"))
    whole: dict[str, Any] = {}
    if config is not None:
        file = PurePath(folder or "conf") / (config if is_config(config) else f"{config}.yaml")
        whole = load_beside(str(file if folder and file.is_absolute() else PurePath(script).parent / file), name)
    return laid_over(whole, assigned(words))


def _replicas(given: ConfigReader, inside: Any) -> int | None:
    """Data-parallel ranks of the trainer's devices; None if it does not count them."""
    devices, nodes = given.get("trainer.devices"), given.get("trainer.num_nodes", 1)
    if not isinstance(devices, int) or not isinstance(nodes, int) or devices < 1:
        return None
    count, rest = divmod(devices * nodes, int(inside))
    if rest or not count:
        raise UserError(
            f"{given.source}: trainer.devices x trainer.num_nodes = {devices * nodes}: allowed: a multiple of "
            f"tp x cp x pp = {inside}"
        )
    return count


def _nemo_numerics(given: ConfigReader) -> dict[str, Any]:
    word = str(given.get("trainer.precision", "32"))
    if word not in NEMO_PRECISIONS:
        raise UserError(f"{given.source}: trainer.precision = {word}: allowed: {', '.join(NEMO_PRECISIONS)}")
    result: dict[str, Any] = {half: True for half in [NEMO_PRECISIONS[word]] if half}
    if given.get("model.fp8"):
        e4m3 = given.get("model.fp8_e4m3") and not given.get("model.fp8_hybrid")
        result["fp8_format"] = "e4m3" if e4m3 else "hybrid"
    return result


def _nemo_optimizer(given: ConfigReader) -> dict[str, Any]:
    """Apex's distributed Adam overlaps gradients unless told not to, and parameters only if told to."""
    name = str(given.get("model.optim.name", "fused_adam"))
    if name not in OPTIMIZERS:
        raise UserError(f"{given.source}: model.optim.name = {name}: allowed: {', '.join(OPTIMIZERS)}")
    overlaps, gathers = given.get("model.optim.overlap_grad_sync"), given.get("model.optim.overlap_param_sync")
    low = str(given.get("model.optim.grad_sync_dtype", given.get("model.grad_allreduce_dtype"))) in ("bf16", "bfloat16")
    sharded = name in SHARDED
    return {
        "optimizer": "sgd" if name == "sgd" else "adam",
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": sharded and overlaps is not False,
        "overlap_param_gather": sharded and bool(gathers),
        "grad_reduce_in_bf16": low,
    }


def _nemo_adapters(given: ConfigReader) -> dict[str, Any]:
    scheme = given.get("model.peft.peft_scheme")
    if scheme in (None, "none", "null", ""):
        return {}
    if scheme != "lora":
        raise UserError(f"{given.source}: model.peft.peft_scheme = {scheme}: allowed: lora, null")
    listed = given.get("model.peft.lora_tuning.target_modules") or ["attention_qkv"]
    wanted = [str(each) for each in (listed if isinstance(listed, list) else [listed])]
    if not set(wanted) <= set(TUNED):
        key = "model.peft.lora_tuning.target_modules"
        raise UserError(f"{given.source}: {key} = {', '.join(wanted)}: allowed: {', '.join(TUNED)}")
    rank = given.whole("model.peft.lora_tuning.adapter_dim") or ADAPTER_DIM
    targets = dict.fromkeys(part for each in wanted for part in TUNED[each])
    return {"lora_rank": rank, "lora_targets": tuple(targets)}


READER = Reader(
    name="nemo-1",
    description="NeMo 1: the YAML of its Megatron models, and commands with Hydra's overrides",
    read=read,
    starts=_starts,
    owns=owns,
    spawns=True,
    words=WordTable(
        idle=(
            "name",
            "run.*",
            "restore_from_path",
            "exp_manager.*",
            "trainer.*",
            "model.data.*",
            "model.tokenizer.*",
            "model.optim.lr",
            "model.optim.betas",
            "model.optim.weight_decay",
            "model.optim.sched.*",
            "hydra.*",
            "model.optim.contiguous*",
            "model.restore_from_path",
            "model.init_method_std",
            "model.normalization",
            "model.layernorm_*",
            "model.make_vocab*",
            "model.position_embedding_type",
            "model.rotary_*",
            "model.seed",
            "model.max_position_embeddings",
            "model.mcore_gpt",
            "model.activation",
            "model.bias",
            "model.*_dropout",
            "model.kv_channels",
            "model.apply_query_key_layer_scaling",
            "model.nsys_profile.*",
            "model.resume_from*",
            "model.save_xser",
            "model.load_xser",
            "model.answer_only_loss",
            "model.peft.*",
            "model.pre_process",
            "model.post_process",
            "model.share_embeddings*",
            "model.hysteresis",
            "model.rampup_batch_size",
            "model.gradient_as_bucket_view",
            "model.persist_layer_norm",
            "model.native_amp*",
            "model.init_method*",
            "model.sync_batch_comm",
            "model.use_flash_attention",
            "model.do_layer_norm*",
            "model.openai_gelu",
            "model.transformer_block_type",
            "model.headscale",
            "model.onnx_safe",
            "model.transformer_engine",
            "model.fp8_*",
            "model.reduce_amax",
            "model.num_micro_batches_with*",
            "model.activations_checkpoint_*",
        ),
        deciding={
            "model.cpu_offloading": "activations leave the device: memory and time",
            "model.optim.bucket_cap_mb": "buckets of gradients: overlap and memory",
            "model.ub_tp_comm_overlap_cfg*": "how tensor parallelism overlaps: time",
            "model.fp8_params": "weights in 8 bits: memory",
        },
    ),
)
