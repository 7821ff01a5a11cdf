"""Hugging Face Accelerate: the config of ``accelerate launch`` and a script for a Hugging Face model."""

from collections.abc import Iterator, Mapping

from simpar.frameworks import hugging_face, rules
from simpar.frameworks.launch import IN_POD, LOCAL_HEAD, SLURM_HEAD, job, scripts
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import CHECKPOINTING, Options, Target
from simpar.frameworks.yaml_text import yaml_file
from simpar.plan.choices.execution import split_parts

CONFIG = "accelerate.yaml"
_MAIN = '''

OPTIMIZERS = {{
    "{name}": lambda parameters: {optimizer},
}}


def main():
    """Build the model, let Accelerate shard it, train."""
    from accelerate import Accelerator, GradientAccumulationPlugin

    given = arguments()
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=given.gradient_accumulation_steps, sync_each_batch=given.sync_each_batch
        )
    )
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(given.model_name_or_path),
        attn_implementation=given.attn_implementation,
        dtype=getattr(torch, given.dtype),
    )
    if given.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={{"use_reentrant": False}})
    model, optimizer = accelerator.prepare(model, OPTIMIZERS[given.optim](model.parameters()))
    data = microbatches(given, accelerator.process_index // {model_ranks}, accelerator.device)
    for step in range(STEPS):
        start = time.perf_counter()
        for _ in range(given.gradient_accumulation_steps):
            batch = next(data)
            with accelerator.accumulate(model):
{forward}
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        if accelerator.is_main_process:
            print(f"step {{step}}: loss {{loss.item():.4f}}, {{time.perf_counter() - start:.3f}} s", flush=True)
'''
_MORE = {
    "attn_implementation": 'required=True, help="kernel of attention, as transformers names it"',
    "optim": "choices=OPTIMIZERS, required=True",
    "sync_each_batch": 'action="store_true", help="reduce gradients of every microbatch, not whole ones at the end"',
}
_FORWARD = """                loss = model(**batch).loss
                accelerator.backward(loss)"""
_CONTEXT_FORWARD = """                labels = batch.pop("labels")
                batch["shift_labels"] = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
                buffers = list(batch.values())
                with accelerator.maybe_context_parallel(
                    buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers)
                ):
                    loss = model(**batch).loss
                    accelerator.backward(loss)"""


def _started(s: Subject) -> dict[str, str]:
    """The launchers of the script, with its arguments."""
    recomputes = s.plan.data_parallel.zero < 2 and s.plan.memory.recompute == "full"  # else FSDP does
    own = ["--attn_implementation sdpa", f"--optim {hugging_face.optimizer_name(s)}"]
    own += ["--sync_each_batch"] if rules.reduces_each(s) else []
    script = " \\\n    ".join(hugging_face.command(s, *own, recomputes=recomputes))
    launch = f"accelerate launch --config_file {CONFIG}"
    local = f'{LOCAL_HEAD}exec {launch} "$@" {script}\n'
    slurm = f"""{SLURM_HEAD}export HEAD_NODE
# shellcheck disable=SC2016 # expanded on every node
exec srun bash -c '{launch} --machine_rank "$SLURM_NODEID" \\
    --main_process_ip "$HEAD_NODE" --main_process_port 29500 {script}'
"""
    pod = f"""exec {launch} --machine_rank "$RANK" \\
    --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" {script}"""
    return scripts(s, local, slurm, job(s, pod.replace("\n", "\n" + " " * IN_POD)))


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what Accelerate has no option for."""
    yield from hugging_face.losses(s)
    yield from rules.no_axis(s, "tp", "tensor parallelism starts from a checkpoint that is loaded shard by shard")
    yield from rules.context_parallel(s, rules.ROTATIONS, ("zigzag",), hybrid=False)
    data = s.plan.data_parallel
    if data.zero == 1:
        yield Loss("zero", 1, "FSDP shards gradients with the optimizer states: zero 2 or 3")
    if s.plan.mesh.cp > 1 and data.zero < 2:
        yield Loss("cp", s.plan.mesh.cp, "context parallelism comes with FSDP: zero 2 or 3")
    if split_parts(fused := s.plan.execution.fused_kernels) and fused != "compiled":
        yield Loss("fused_kernels", fused, "the target has torch.compile or none")
    yield from rules.offload_of_shards(s)
    yield from rules.chosen_losses(
        s,
        bucket_bytes="a layer is the unit of communication",
        overlap_grad_reduce="gradients overlap always",
        overlap_param_gather="parameters are fetched ahead always",
        master_weights="parameters are fp32",
        grad_dtype="gradients are reduced as they are computed",
    )


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    sharded = s.plan.data_parallel.zero >= 2
    precision = s.plan.numerics.precision
    options: Options = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if s.world_size > 1 else "NO",
        "mixed_precision": precision if precision in ("bf16", "fp16") else "no",
        "num_machines": s.nodes,
        "num_processes": s.world_size,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }
    if s.plan.execution.fused_kernels == "compiled":
        options |= {"dynamo_config.dynamo_backend": "INDUCTOR"}
    return options | (_sharding(s) if sharded else {})


def _sharding(s: Subject) -> Options:
    data, mesh = s.plan.data_parallel, s.plan.mesh
    result: Options = {
        "fsdp_config.fsdp_version": 2,
        "fsdp_config.fsdp_reshard_after_forward": data.reshards,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_activation_checkpointing": s.plan.memory.recompute == "full",
        "fsdp_config.fsdp_offload_params": s.plan.offload.offload_parameters == "cpu",
        "fsdp_config.fsdp_cpu_ram_efficient_loading": False,
        "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "parallelism_config.parallelism_config_dp_replicate_size": data.hsdp,
        "parallelism_config.parallelism_config_dp_shard_size": s.dp // data.hsdp,
        "parallelism_config.parallelism_config_tp_size": 1,
        "parallelism_config.parallelism_config_cp_size": mesh.cp,
        "parallelism_config.parallelism_config_sp_size": 1,
    }
    if mesh.cp > 1:
        method = s.plan.context_parallel.cp_method or "all_gather"
        result["parallelism_config.parallelism_config_cp_backend"] = "torch"
        result["parallelism_config.parallelism_config_cp_comm_strategy"] = rules.ROTATIONS.get(method, "allgather")
    return result


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The config, the model's config, the script and the launchers."""
    main = _MAIN.format(
        name=hugging_face.optimizer_name(s),
        optimizer=hugging_face.optimizer(s),
        model_ranks=s.plan.mesh.cp,
        forward=_CONTEXT_FORWARD if s.plan.mesh.cp > 1 else _FORWARD,
    )
    return {
        CONFIG: yaml_file(s, given),
        "config.json": hugging_face.config_json(s),
        hugging_face.SCRIPT: hugging_face.script(s, main, _MORE),
        **_started(s),
    }


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    yield from hugging_face.notes(s)
    if s.plan.data_parallel.zero == 2:
        yield "zero 2 becomes FSDP that keeps gathered parameters until the backward pass."


ACCELERATE = Target(
    name="accelerate",
    description="Hugging Face Accelerate: the config of accelerate launch and a script",
    version="Accelerate 1.15.0",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    features=("offload", "defer_grad_reduce", "fused_kernels", "optimizer_kernels"),
    in_code={**CHECKPOINTING, "micro_batch": "DataLoader(batch_size={value})"},
)
