"""Amazon SageMaker's model parallelism library v2: its JSON parameters, a training script and a job starter."""

import json
from collections.abc import Iterator, Mapping

from simpar.frameworks import hugging_face, rules
from simpar.frameworks.launch import comment
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics

CONFIG = "smp.json"
SDK, TRANSFORMERS = "sagemaker>=2.232,<3", "transformers>=4.56,<5"
INSTANCES = {8: "ml.p5.48xlarge", 1: "ml.p5.4xlarge"}
TENSOR_PARALLEL = ("llama", "gpt_neox", "mistral", "mixtral")
_MAIN = '''

def first_layer(model):
    """Where the first layer is: of a class whose modules stay on one device, as transformers says."""
    return next(name for name, module in model.named_modules() if type(module).__name__ in model._no_split_modules)


def main():
    """Build the model, let the library shard it, train."""
    import torch.sagemaker as tsm
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    given = arguments()
    torch.distributed.init_process_group("nccl")
    tsm.init()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    config = AutoConfig.from_pretrained(given.model_name_or_path)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, given.dtype))
    place = first_layer(model)
    model = tsm.transform(model)
    layer = type(model.get_submodule(place))
    model = FSDP(
        model,
        sharding_strategy=ShardingStrategy.{strategy},
        auto_wrap_policy=lambda module, recurse, nonwrapped_numel: transformer_auto_wrap_policy(
            module, recurse, nonwrapped_numel, transformer_layer_cls={{layer}}
        ),
        mixed_precision={mixed},
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
        limit_all_gathers=True,
    )
{recompute}    parameters = model.parameters()
    optimizer = {optimizer}
    data = microbatches(given, torch.distributed.get_rank() // {model_ranks}, torch.cuda.current_device())
    for step in range(STEPS):
        start = time.perf_counter()
        for _ in range(given.gradient_accumulation_steps):
            loss = model(**next(data)).loss / given.gradient_accumulation_steps
            loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if torch.distributed.get_rank() == 0:
            whole = loss.item() * given.gradient_accumulation_steps
            print(f"step {{step}}: loss {{whole:.4f}}, {{time.perf_counter() - start:.3f}} s")
    torch.distributed.destroy_process_group()
'''
_RECOMPUTE = """    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    checkpoint_wrapper.apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, layer))
"""
_JOB = '''"""Start the training job: python job.py ROLE_ARN. Needs credentials, and version 2 of SageMaker's Python SDK.

That is pip install "{sdk}": version 3 has no estimators.
"""

import json
import sys
from pathlib import Path

from sagemaker.pytorch import PyTorch

HERE = Path(__file__).parent
estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(HERE),
    role=sys.argv[1],
    instance_type="{instance}",
    instance_count={nodes},
    framework_version="2.5.1",
    py_version="py311",
    distribution={{
        "torch_distributed": {{"enabled": True}},
        "smdistributed": {{
            "modelparallel": {{"enabled": True, "parameters": json.loads((HERE / "{config}").read_text())}}
        }},
    }},
)
estimator.fit()
'''


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what the library has no parameter for."""
    yield from hugging_face.losses(s)
    data, mesh = s.plan.data_parallel, s.plan.mesh
    if mesh.cp > 1:
        yield Loss("cp", mesh.cp, "the script does not split sequences for the library's context parallelism")
    if mesh.tp > 1 and s.config.get("model_type") not in TENSOR_PARALLEL:
        yield Loss("tp", mesh.tp, f"tensor parallelism knows {', '.join(TENSOR_PARALLEL)}")
    if data.zero < 2:
        yield Loss("zero", data.zero, "the library shards with FSDP: zero 2 or 3")
    if s.devices_per_node not in INSTANCES:
        yield Loss("devices_per_node", s.devices_per_node, "instances have 1 or 8 H100")
    if data.defer_grad_reduce:
        yield Loss("defer_grad_reduce", True, "the script reduces gradients of every microbatch")
    yield from rules.chosen_losses(
        s,
        bucket_bytes="a layer is the unit of communication",
        overlap_grad_reduce="FSDP overlaps always",
        overlap_param_gather="FSDP overlaps always",
        master_weights="FSDP keeps parameters in the dtype they have",
        grad_dtype="the script reduces gradients in fp32",
    )


def options(s: Subject) -> Options:
    """The library's parameters."""
    return {
        "hybrid_shard_degree": s.dp // s.plan.data_parallel.hsdp,
        "tensor_parallel_degree": s.plan.mesh.tp,
        "context_parallel_degree": 1,
        "expert_parallel_degree": 1,
        "sm_activation_offloading": False,
        "random_seed": 42,
    }


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """Parameters, model config, script, and the starter of the job."""
    low = s.plan.numerics.precision != "fp32"
    reduce = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    main = _MAIN.format(
        strategy="HYBRID_SHARD" if s.plan.data_parallel.zero == 3 else "_HYBRID_SHARD_ZERO2",
        mixed=reduce if low else "None",
        recompute=_RECOMPUTE if s.plan.memory.recompute == "full" else "",
        optimizer=hugging_face.optimizer(s),
        model_ranks=s.plan.mesh.tp,
    )
    instance = INSTANCES.get(s.devices_per_node, INSTANCES[8])
    job = _JOB.format(instance=instance, nodes=s.nodes, config=CONFIG, sdk=SDK)
    return {
        CONFIG: json.dumps(given, indent=2) + "\n",
        "config.json": hugging_face.config_json(s),
        "train.py": hugging_face.script(s, main, {}, alone=True),
        "job.py": "\n".join(comment(s)) + "\n" + job,
        "requirements.txt": f"{TRANSFORMERS}\n",
    }


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    yield from hugging_face.notes(s)
    yield (
        "Trained on CPUs with a stand-in for the library, whose container is not public; version 2.257 of its SDK took "
        "`job.py` and picked that container."
    )
    yield "Instance type and container version in job.py are placeholders."


SAGEMAKER = Target(
    name="sagemaker",
    description="Amazon SageMaker model parallelism library v2: parameters, script and job",
    version="SMP v2 (parameters as in the SageMaker AI developer guide)",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    numerics=TargetNumerics(precisions=("bf16", "fp32")),
    features=("defer_grad_reduce", "optimizer_kernels"),
    how=(
        f"`pip install '{SDK}'`, then `python job.py ROLE_ARN` starts the job; on HyperPod run `train.py` with "
        "torchrun and the library's init."
    ),
)
