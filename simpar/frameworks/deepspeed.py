"""DeepSpeed: the JSON config, and a script that trains a Hugging Face model with it; the config back in."""

import json
from collections.abc import Iterator, Mapping

from simpar.frameworks import hugging_face, placeholders, rules
from simpar.frameworks.deepspeed_read import PARTS
from simpar.frameworks.launch import launchers
from simpar.frameworks.recipes import nest_names
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import CHECKPOINTING, OF_TORCH, Options, Target
from simpar.units import DTYPE_BYTES

CONFIG = "ds_config.json"
_SHARDED = """    from transformers.integrations import HfDeepSpeedConfig

    keeper = HfDeepSpeedConfig(given.deepspeed)  # while it lives, models are built in shards: deepspeed.zero.Init
"""
NVME = "/local_nvme"
_MAIN = '''

def main():
    """Build the model, let DeepSpeed shard it, train."""
    import deepspeed

    given = arguments()
    deepspeed.init_distributed()
{sharded}    config = AutoConfig.from_pretrained(given.model_name_or_path)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, given.dtype))
    if given.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=given.deepspeed
    )
    group = engine.mpu.get_data_parallel_rank() if engine.mpu is not None else torch.distributed.get_rank()
    data = microbatches(given, group, engine.device)
    for step in range(STEPS):
        start = time.perf_counter()
        for _ in range(given.gradient_accumulation_steps):
            loss = engine(**next(data)).loss
            engine.backward(loss)
            engine.step()
        if torch.distributed.get_rank() == 0:
            print(f"step {{step}}: loss {{loss.item():.4f}}, {{time.perf_counter() - start:.3f}} s", flush=True)
'''


def losses(s: Subject) -> Iterator[Loss]:
    """What a DeepSpeed config cannot say."""
    yield from hugging_face.losses(s)
    yield from rules.no_axis(s, "cp", "Ulysses is set up in code, no option")
    if (kernels := s.plan.execution.optimizer_kernels) == "single":
        yield Loss("optimizer_kernels", kernels, "Adam is DeepSpeed's fused one, or torch's over all arrays")
    data = s.plan.data_parallel
    if data.hsdp > 1:
        yield Loss("hsdp", data.hsdp, "states are sharded over all ranks; hpZ keeps a second copy of parameters only")
    if s.chose("kind") and data.kind == "fsdp" and data.zero == 2:
        yield Loss("kind", "fsdp", "stage 2 keeps whole parameters on every rank")
    if s.chose("overlap_grad_reduce") and not data.zero:
        yield Loss("overlap_grad_reduce", data.overlap_grad_reduce, "overlap_comm is there with zero 1, 2, 3")
    if s.chose("bucket_bytes") and not data.zero:
        yield Loss("bucket_bytes", data.bucket_bytes, "without zero a bucket has 500,000,000 elements")
    yield from _gradient_losses(s)
    yield from _offload_losses(s)
    yield from rules.chosen_losses(
        s,
        master_weights="bf16 and fp16 train with fp32 master weights",
        overlap_param_gather="parameters are fetched ahead always",
        reshard_after_forward="stage 3 frees parameters after forward",
    )


def _gradient_losses(s: Subject) -> Iterator[Loss]:
    """Mixes of dtypes that ``DeepSpeedEngine`` refuses."""
    numerics = s.plan.numerics
    if numerics.precision not in ("bf16", "fp16"):
        if s.chose("grad_dtype") and numerics.grad_dtype != "fp32":
            yield Loss("grad_dtype", numerics.grad_dtype, "gradients of fp32 parameters are fp32")
        return
    if numerics.grad_dtype == "fp32" and not s.plan.data_parallel.zero:
        yield Loss("grad_dtype", "fp32", "without zero gradients have the dtype of parameters")
    if numerics.precision == "fp16" and numerics.grad_dtype == "bf16" and s.chose("grad_dtype"):
        yield Loss("grad_dtype", "bf16", "gradients of fp16 are fp16 or fp32")


def _gradients(s: Subject) -> str:
    """The dtype in which gradients accumulate: that of the parameters, or fp32 if they are sharded."""
    numerics = s.plan.numerics
    is_wide = numerics.grad_dtype == "fp32" and s.plan.data_parallel.zero
    return "fp32" if is_wide else numerics.precision


def _offload_losses(s: Subject) -> Iterator[Loss]:
    offload, zero = s.plan.offload, s.plan.data_parallel.zero
    for name, stages in (("offload_optimizer", (1, 2, 3)), ("offload_parameters", (3,))):
        home = getattr(offload, name)
        stages = (3,) if home == "nvme" else stages
        if home != "none" and zero not in stages:
            yield Loss(name, home, f"is there with zero {', '.join(map(str, stages))}")
    if offload.offload_ratio < 1 and zero != 3:
        yield Loss("offload_ratio", offload.offload_ratio, "a part is offloaded with zero 3 only")
    if offload.offload_gradients is False and offload.ratio and zero > 1:
        yield Loss("offload_gradients", False, "gradients go to the host with the states")
    if offload.offload_delayed:
        yield Loss("offload_delayed", True, "updates are not delayed")
    if offload.offload_activations:
        yield Loss("offload_activations", offload.offload_activations, "torch's checkpointing is what the script uses")


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    numerics, data = s.plan.numerics, s.plan.data_parallel
    result: Options = {
        "train_batch_size": s.training.global_batch,
        "train_micro_batch_size_per_gpu": s.plan.micro_batch,
        "gradient_accumulation_steps": s.microbatches,
        "gradient_clipping": 1.0,
        "steps_per_print": 10,
        "zero_optimization.stage": data.zero,
        **_optimizer(s),
    }
    if data.zero:
        result["zero_optimization.overlap_comm"] = bool(data.overlap_grad_reduce)
        result["zero_optimization.contiguous_gradients"] = True
    for name, part in PARTS.items():
        if (home := getattr(s.plan.offload, name)) != "none":
            result[f"zero_optimization.{part}.device"] = home
            result[f"zero_optimization.{part}.pin_memory"] = True
            if home == "nvme":
                result[f"zero_optimization.{part}.nvme_path"] = NVME
    if s.plan.offload.offload_ratio < 1:
        result["zero_optimization.offload_optimizer.ratio"] = s.plan.offload.offload_ratio
    if numerics.precision in ("bf16", "fp16"):
        result[f"{numerics.precision}.enabled"] = True
        result["data_types.grad_accum_dtype"] = _gradients(s)
    if s.chose("bucket_bytes") and data.zero:
        elements = int(float(data.bucket_bytes or 0) // DTYPE_BYTES[numerics.grad_dtype or "fp32"])
        result["zero_optimization.reduce_bucket_size"] = elements
        result["zero_optimization.allgather_bucket_size"] = elements
    if s.plan.mesh.tp > 1:
        result["tensor_parallel.autotp_size"] = s.plan.mesh.tp
    return result


def _optimizer(s: Subject) -> Options:
    """Adam that a config names is DeepSpeed's fused one, unless it asks for torch's (``runtime/engine.py``)."""
    name = s.plan.numerics.optimizer
    options: Options = {"optimizer.type": OF_TORCH[name], "optimizer.params.lr": placeholders.LEARNING_RATE}
    if (momentum := placeholders.momentum(name)) is None:
        on_device = s.plan.offload.offload_optimizer in (None, "none")
        own = s.plan.execution.optimizer_kernels == "fused"
        of_torch = {"optimizer.params.torch_adam": True} if on_device and not own else {}
        return options | {
            "optimizer.params.betas": list(placeholders.BETAS),
            "optimizer.params.weight_decay": placeholders.WEIGHT_DECAY,
            **of_torch,
        }
    return options | {"optimizer.params.momentum": momentum, "zero_allow_untested_optimizer": True}


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The config, the model's config, the script and the launchers."""
    main = _MAIN.format(sharded=_SHARDED if _builds_shards(s) else "")
    recomputes = s.plan.memory.recompute == "full"
    return {
        CONFIG: json.dumps(nest_names(given), indent=2) + "\n",
        "config.json": hugging_face.config_json(s),
        hugging_face.SCRIPT: hugging_face.script(s, main, {"deepspeed": 'required=True, help="its config"'}),
        **launchers(s, hugging_face.command(s, f"--deepspeed {CONFIG}", recomputes=recomputes)),
    }


def _builds_shards(s: Subject) -> bool:
    """Whether no rank ever holds the whole model, not even during construction."""
    return s.plan.data_parallel.zero == 3 and s.plan.mesh.tp == 1


def notes(s: Subject) -> Iterator[str]:
    """What to know about the files."""
    yield from hugging_face.notes(s)
    if _builds_shards(s):
        yield "The model is built in shards (zero.Init), which transformers does with `accelerate` installed."
    if "nvme" in (s.plan.offload.offload_optimizer, s.plan.offload.offload_parameters):
        yield f"`nvme_path` is a placeholder, {NVME}: a folder on the drives of every node."


DEEPSPEED = Target(
    name="deepspeed",
    description="DeepSpeed: the JSON config and a script for a Hugging Face model",
    version="DeepSpeed 0.19.8",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    features=("offload", "expandable_segments", "optimizer_kernels"),
    in_code=CHECKPOINTING,
)
