"""Megatron-Bridge (NeMo's launcher of Megatron-Core): a Python module with one function that returns the config.

The options are Megatron-LM's arguments, as fields of Bridge's config classes.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from simpar.architectures.recompute import period
from simpar.frameworks import megatron
from simpar.frameworks.architecture import architecture
from simpar.frameworks.bridge_models import model_losses, own_fields, provider_of, without_own
from simpar.frameworks.bridge_names import PLAIN, REDUCES_IN_FP32, SWITCHES
from simpar.frameworks.hub import HUB, as_shipped
from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.megatron_arguments import BESIDE
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target

MODULE, FUNCTION = "simpar_recipe", "plan"
QUICK = "from megatron.core.fusions.fused_bias_geglu import quick_gelu"
PRECISIONS = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_blockwise": "bf16_with_fp8_subchannel_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
}  # fmt: skip
GATHERED = ("fp8", "mxfp8")
"""Those of 8 bits whose precisions keep weights in 8 bits, unless told otherwise."""
BRIDGES = ("gpt_oss", "deepseek_v2", "deepseek_v3", "kimi_k2")
"""Families of mixtures that Megatron-Bridge builds from the hub's config, so that their options are not written."""
OWN_CODE = {"kimi-k2": "moonshotai/Kimi-K2-Instruct"}
"""Models whose config is code on the hub, which a run trusts, as Bridge's recipes for them do (recipes/kimi)."""
RELEASED = {**HUB, **OWN_CODE}
OF_A_PLAN = (
    "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--expert-tensor-parallel-size",
    "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity", "--overlap-moe-expert-parallel-comm", BESIDE,
    "--moe-grouped-gemm", "--moe-permute-fusion",
)  # fmt: skip
"""Arguments about experts that belong to the plan, not to the model."""
CLASSES = {
    "train": "TrainingConfig",
    "validation": "ValidationConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dataset": "MockGPTDatasetConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "dist": "DistributedInitConfig",
    "rng": "RNGConfig",
}
"""Config classes by section, behind the model's own (:func:`~simpar.frameworks.bridge_models.provider_of`)."""


class Code(str):
    """A value that is Python source text, not data."""

    __slots__ = ()


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: Megatron-Core's limits, and Bridge's own."""
    if (graphs := s.plan.execution.graphs) == "step":
        yield Loss("graphs", graphs, "it switches off checks whose settings the exporter does not write")
    if is_by_name(s):
        yield from megatron.parallel_losses(s)
        return
    if "qk_dim" in s.graph.dims:
        yield Loss("model", s.graph.name, "latent attention has providers of its own; --to megatron says it")
    yield from model_losses(s)
    positions = s.graph.dims.get("positions")
    if positions and positions > s.training.seq_len:
        yield Loss("seq_len", s.training.seq_len, f"the table of learned positions has as many rows; here {positions}")


def is_by_name(s: Subject) -> bool:
    """Whether Bridge takes a model by its name on the hub: released mixtures for which it has a bridge."""
    known = s.graph.name in RELEASED and s.config.get("model_type") in BRIDGES
    return known and as_shipped(s.graph)


def _arguments(s: Subject) -> Options:
    """Megatron-LM's arguments; for a model that is named, without those of its architecture."""
    result = megatron.options(without_own(s))
    if not is_by_name(s):
        return result
    known = set(megatron.model_arguments(s)) - set(OF_A_PLAN)
    return {flag: value for flag, value in result.items() if flag not in known}


def options(s: Subject) -> Options:
    """Fields by their dotted names."""
    arguments = _arguments(s)
    result: Options = {PLAIN[flag]: value for flag, value in arguments.items() if flag in PLAIN}
    for flag, fields in SWITCHES.items():
        result |= fields if flag in arguments else {}
    if s.graph.dims.get("shared_ffn"):  # providers of several families have it on
        result["model.moe_shared_expert_overlap"] = BESIDE in arguments
    if not is_by_name(s):
        result["model.share_embeddings_and_output_weights"] = "--untie-embeddings-and-output-weights" not in arguments
    if "--swiglu" in arguments:
        result |= {"model.gated_linear_unit": True, "model.activation_func": Code("functional.silu")}
    if "--quick-geglu" in arguments:
        result |= {"model.gated_linear_unit": True, "model.activation_func": Code("quick_gelu")}
    if "--moe-layer-freq" in arguments:
        result["model.moe_layer_freq"] = [int(has) for has in architecture(s.graph).experts]
    if "--window-size" in arguments:
        result["model.window_size"] = tuple(int(size) for size in arguments["--window-size"].split(","))
    if "--recompute-modules" in arguments:
        result["model.recompute_modules"] = arguments["--recompute-modules"]
    if not is_by_name(s):
        result = own_fields(s, result, Code)
    if s.plan.mesh.pp > 1:
        result["model.pipeline_dtype"] = Code(_dtype(s))
    result["ddp.grad_reduce_in_fp32"] = s.plan.numerics.grad_dtype == "fp32"
    result.setdefault("ddp.use_distributed_optimizer", False)
    return _sorted(result | _fixed(s))


def _dtype(s: Subject) -> str:
    return {"fp32": "torch.float32", "fp16": "torch.float16"}.get(s.plan.numerics.precision, "torch.bfloat16")


def _fixed(s: Subject) -> Options:
    result: Options = {
        "model.seq_length": s.training.seq_len,
        "model.make_vocab_size_divisible_by": 128,
        "dataset.seq_length": s.training.seq_len,
        "dataset.random_seed": 1234,
        "dataset.reset_position_ids": False,
        "dataset.reset_attention_mask": False,
        "dataset.eod_mask_loss": False,
        "dataset.dataloader_type": "single",
        "tokenizer.tokenizer_type": "NullTokenizer",
        "tokenizer.vocab_size": s.graph.dims["vocab"],
        "scheduler.lr_decay_style": "cosine",
        "scheduler.lr_warmup_iters": 2,
        "validation.eval_iters": 0,
        "rng.seed": 1234,
    }
    if s.plan.numerics.precision in PRECISIONS:
        result["mixed_precision"] = PRECISIONS[s.plan.numerics.precision]
        kind = s.plan.execution.quantized_weights
        if kind and s.plan.numerics.products.is_cast and (kind == "stored") != (s.plan.numerics.precision in GATHERED):
            result["mixed_precision.fp8_param_gather"] = kind == "stored"
    return result


def _sorted(options: Options) -> Options:
    order = ["model", *CLASSES, "mixed_precision"]
    return dict(sorted(options.items(), key=lambda item: order.index(item[0].split(".")[0]) if "." in item[0] else 99))


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The module, a script that trains it, and the launchers."""
    train = [
        *comment(s),
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training.pretrain import pretrain",
        f"from {MODULE} import {FUNCTION}",
        "",
        'if __name__ == "__main__":',
        f"    pretrain({FUNCTION}(), forward_step)",
    ]
    return {
        f"{MODULE}.py": _module(s, given),
        "train.py": "\n".join(train) + "\n",
        **launchers(s, ["train.py"], megatron.environment(s)),
    }


def _module(s: Subject, given: Options) -> str:
    configs = ",\n    ".join(sorted({*CLASSES.values(), "ConfigContainer"}))
    provider = provider_of(s)
    precision = given.get("mixed_precision")
    reduces = given["ddp.grad_reduce_in_fp32"]
    told = {key.partition(".")[2]: value for key, value in given.items() if key.startswith("mixed_precision.")}
    if precision and reduces != REDUCES_IN_FP32[precision.partition("_")[0]]:
        told["grad_reduce_in_fp32"] = reduces
    changed = bool(precision and told)
    lines = [
        *comment(s),
        *(["from dataclasses import replace", ""] if changed else []),
        "import torch",
        "from megatron.bridge import AutoBridge"
        if is_by_name(s)
        else f"from megatron.bridge.models.{provider.module} import {provider.name}",
        *([QUICK] if given.get("model.activation_func") == "quick_gelu" else provider.imports),
        f"from megatron.bridge.training.config import (\n    {configs},\n)",
        *(["from megatron.bridge.training.mixed_precision import get_mixed_precision_config"] if changed else []),
        "from torch.nn import functional",
        "",
        "",
        f"def {FUNCTION}() -> ConfigContainer:",
        '    """The plan."""',
        "    return ConfigContainer(",
    ]
    sections = [(key, value) for key, value in given.items() if "." in key and _of(key) != "mixed_precision"]
    if is_by_name(s):
        trusted = ", trust_remote_code=True" if s.graph.name in OWN_CODE else ""
        source = f"AutoBridge.from_hf_pretrained({RELEASED[s.graph.name]!r}{trusted})"
        made = f"{source}.to_megatron_provider(load_weights=False)"
        own = [f"    model.{key.partition('.')[2]} = {_text(value)}" for key, value in sections if _of(key) == "model"]
        lines[-1:] = [f"    model = {made}", *own, lines[-1], "        model=model,"]
        sections = [(key, value) for key, value in sections if _of(key) != "model"]
    for section, fields in groupby(sections, key=lambda item: _of(item[0])):
        lines.append(f"        {section}={provider.name if section == 'model' else CLASSES[section]}(")
        lines += [f"            {key.split('.', 1)[1]}={_text(value)}," for key, value in fields]
        lines.append("        ),")
    lines += [
        f"        {section}={CLASSES[section]}()," for section in CLASSES
        if not any(key.startswith(f"{section}.") for key, _ in sections)
    ]  # fmt: skip
    if precision:
        name = f'get_mixed_precision_config("{precision}")'
        changes = ", ".join(f"{field}={value}" for field, value in told.items())
        value = f"replace({name}, {changes})" if changed else repr(precision)
        lines.append(f"        mixed_precision={value},")
    return "\n".join([*lines, "    )"]) + "\n"


def _of(key: str) -> str:
    return key.partition(".")[0]


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Code) else repr(value)


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    if s.config.get("model_type") == "gemma2":
        yield "Gemma 2's attention is a kernel that torch compiles there, or plain products: not predicted as such."
    if is_by_name(s):
        name = RELEASED[s.graph.name]
        yield f"The model is built from the config of {name} on the hub, which is fetched at the start."
    if s.graph.name in OWN_CODE:
        yield "That config is code of the hub's, which the run trusts (trust_remote_code)."
    yield "Mock data and a null tokenizer, learning rate and number of iterations are placeholders."
    if "--tp-comm-overlap" in megatron.options(s):
        yield "Overlap of tensor parallelism takes its buffers from `comm_overlap`: set it for your sizes."
    if period(s.plan.memory.recompute):
        yield f"{s.plan.memory.recompute} becomes `block`: as many layers a stage, but the first ones."


MEGATRON_BRIDGE = Target(
    name="megatron-bridge",
    description="Megatron-Bridge, the launcher of NeMo: a Python module that returns the ConfigContainer",
    version="megatron-bridge 0.6.2 with megatron-core 0.19.2",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    features=(
        "dispatcher",
        "empty_cache_steps",
        "expandable_segments",
        "gradient_accumulation_fusion",
        "graphs",
        "quantized_weights",
        "segments",
        "shared_expert_overlap",
    ),
    numerics=megatron.NUMERICS,
)
