"""torchtitan 0.2: a TOML job config, written and read."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from simpar.architectures.recompute import module_names, period
from simpar.frameworks import placeholder_data, placeholders, rules, titan
from simpar.frameworks.architecture import architecture
from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics

HEAD = "output"
FILE = "torchtitan.toml"


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what the job config of torchtitan 0.2 cannot express."""
    yield from titan.losses(s, methods=rules.ROTATIONS)
    family = titan.family(architecture(s.graph))
    if family and titan.flavor(s, family) in (None, "1B", "3B"):
        yield Loss(
            "model", s.graph.name, "models come in the sizes of their flavours only, with the rotary base and "
            "scaling of Llama 3.1 or Qwen3"
        )  # fmt: skip
    mesh = s.plan.mesh
    if mesh.tp > 1 and s.plan.tensor_parallel.sequence_parallel is False:
        yield Loss("sequence_parallel", False, "tensor parallelism brings sequence parallelism")
    if not s.plan.data_parallel.zero and s.dp > 1 and s.dp < s.world_size:
        yield Loss("zero", 0, "replicated parameters are not combined with other parallelism: zero 2 or 3")


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    family = titan.family(architecture(s.graph)) or "llama3"
    values: Options = {"model.name": family, "model.flavor": titan.flavor(s, family) or "debugmodel"}
    values |= {
        "model.hf_assets_path": f"./{placeholder_data.TOKENIZER}",
        "training.dataset": "c4_test",
        "training.dataset_path": f"./{placeholder_data.TEXT}",
    }
    if s.plan.numerics.products.is_cast:
        values["model.converters"] = ["quantize.linear.float8"]
    if s.plan.numerics.products.by_row:
        values["quantize.linear.float8.recipe_name"] = titan.BY_ROW
    values |= titan.parallelism(s, HEAD) | titan.training(s)
    if s.plan.tensor_parallel.overlap and s.plan.mesh.tp > 1:
        values["parallelism.enable_async_tensor_parallel"] = True
    if s.plan.mesh.cp > 1 and (method := s.plan.context_parallel.cp_method) in rules.ROTATIONS:
        values[titan.ROTATION] = rules.ROTATIONS[method]
    kind = s.plan.memory.recompute
    count = period(kind)
    values["activation_checkpoint.mode"] = "selective" if count else "none" if module_names(kind) else kind
    if values["activation_checkpoint.mode"] == "selective":
        values["activation_checkpoint.selective_ac_option"] = str(count or "op")
    return values | {
        "compile.enable": titan.is_compiled(s),
        **_update(s),
        "optimizer.name": titan.OPTIMIZERS[s.plan.numerics.optimizer],
        "optimizer.lr": placeholders.LEARNING_RATE,
    }


def _update(s: Subject) -> Options:
    """How the optimizer runs, where the plan says so."""
    execution = s.plan.execution
    kernels = {"optimizer.implementation": titan.IMPLEMENTATIONS[name]} if (name := execution.optimizer_kernels) else {}
    early = execution.update_in_backward
    return kernels if early is None else {**kernels, "optimizer.early_step_in_backward": early}


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The TOML file, the schedule's action table if needed, and the launchers."""
    lines = comment(s)
    sections = list(dict.fromkeys(key.split(".")[0] for key in given))  # TOML declares each section once
    together = sorted(given.items(), key=lambda entry: sections.index(entry[0].split(".")[0]))
    for section, entries in groupby(together, key=lambda entry: entry[0].split(".")[0]):
        lines += ["", f"[{section}]"]
        lines += [f"{key.split('.', 1)[1]} = {_toml(value)}" for key, value in entries]
    command = ["-m torchtitan.train", f"--job.config_file {FILE}"]
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    return {
        FILE: "\n".join(lines) + "\n",
        **titan.schedule_file(s),
        **launchers(s, command, environment),
        **placeholder_data.files(),
    }


def _toml(value: Any) -> str:
    """A TOML value; JSON strings, numbers, booleans and lists are valid TOML."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"    {json.dumps(part)},\n" for part in value) + "]"
    return json.dumps(value)


TORCHTITAN_TOML = Target(
    name="torchtitan-0.2",
    description="torchtitan 0.2: a TOML job config",
    version="torchtitan 0.2.2",
    losses=losses,
    options=options,
    files=files,
    notes=titan.notes,
    features=("offload", "expandable_segments", "fused_kernels", "optimizer_kernels", "update_in_backward"),
    numerics=TargetNumerics(titan.OPTIMIZERS, tuple(titan.PRECISIONS)),
)
