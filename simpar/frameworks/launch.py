"""Launchers that all targets share, and the README of an export: what it is, for what, and how to start it."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import simpar
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Target
from simpar.units import format_bytes, format_seconds

LOCAL_HEAD = """#!/usr/bin/env bash
# Start on this machine: {devices} processes.
set -euo pipefail
cd "$(dirname "$0")"
"""
SLURM_HEAD = """#!/usr/bin/env bash
# Start under SLURM: sbatch slurm.sh, from this folder.
#SBATCH --job-name=simpar
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices}
#SBATCH --exclusive
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:-.}}"
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
"""
_LOCAL = (
    LOCAL_HEAD
    + """source ./command.sh
exec torchrun --standalone --nproc-per-node {devices} "${{COMMAND[@]}}" "$@"
"""
)
_SLURM = (
    SLURM_HEAD
    + """source ./command.sh
exec srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {devices} --rdzv-backend c10d \\
    --rdzv-endpoint "$HEAD_NODE:29500" --rdzv-id "$SLURM_JOB_ID" "${{COMMAND[@]}}" "$@"
"""
)

_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: simpar
spec:
  nprocPerNode: "{devices}"
  pytorchReplicaSpecs:
"""
_NODES = """    {role}:
      replicas: {replicas}
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: {image}
              workingDir: /simpar
              command: [bash, -c]
              args:
                - |
                  {start}
              resources:
                limits:
                  nvidia.com/gpu: {devices}
              volumeMounts:
                - {{name: simpar, mountPath: /simpar}}
                - {{name: memory, mountPath: /dev/shm}}
          volumes:
            - name: simpar
              persistentVolumeClaim: {{claimName: simpar}}
            - name: memory
              emptyDir: {{medium: Memory}}
"""
IMAGE = "pytorch/pytorch:latest"
IN_POD = 18
"""Spaces before what a pod starts."""
_TORCHRUN = """source ./command.sh
                  exec torchrun --nnodes {nodes} --nproc-per-node {devices} --node-rank "$RANK" \\
                    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "${{COMMAND[@]}}\""""
STARTS = {
    "launch.py": "`python launch.py` starts it through NeMo-Run",
    "local.sh": "`./local.sh` starts it on this machine",
    "slurm.sh": "`sbatch slurm.sh` under SLURM",
    "pytorchjob.yaml": (
        "`kubectl apply -f pytorchjob.yaml` on Kubernetes with Kubeflow's trainer, once a volume claim named `simpar` "
        f"holds this folder and `{IMAGE}` is replaced by an image with the framework"
    ),
}
"""How each launcher is started, by file."""


def job(s: Subject, start: str = _TORCHRUN) -> dict[str, str]:
    """A PyTorchJob of Kubeflow with one pod per node; ``start`` is shell text with ``nodes`` and ``devices``.

    The operator sets MASTER_ADDR, MASTER_PORT, and RANK to the number of the node [Kubeflow Training Operator,
    PyTorchJob].
    """
    shape = {"nodes": s.nodes, "devices": s.devices_per_node}
    text, given = start.format(**shape), {"image": IMAGE, "devices": s.devices_per_node}
    roles = {"Master": 1, "Worker": s.nodes - 1}
    nodes = [_NODES.format(role=role, replicas=n, start=text, **given) for role, n in roles.items() if n]
    return {"pytorchjob.yaml": "\n".join([*comment(s), _JOB.format(**given) + "".join(nodes)])}


def allocator(s: Subject) -> dict[str, str]:
    """What torch's caching allocator is told, unless the plan leaves that to the stack [PyTorch, CUDA semantics]."""
    expandable = s.plan.execution.expandable_segments
    return {} if expandable is None else {"PYTORCH_ALLOC_CONF": f"expandable_segments:{expandable}"}


def launchers(s: Subject, command: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """``command.sh`` (environment and command), ``slurm.sh``, ``pytorchjob.yaml``, and ``local.sh`` for one node.

    The words of ``command`` are used unquoted: quote user input with :func:`words`.
    """
    exports = [f"export {name}={value}" for name, value in {**(environment or {}), **allocator(s)}.items()]
    lines = [*comment(s), *exports, "COMMAND=(", *(f"    {word}" for word in command), ")"]
    return {"command.sh": "\n".join(lines) + "\n", **scripts(s, _LOCAL, _SLURM, job(s))}


def scripts(s: Subject, local: str, slurm: str, others: Mapping[str, str] | None = None) -> dict[str, str]:
    """``slurm.sh``, other launchers, and ``local.sh`` for one node, from texts with ``nodes`` and ``devices``."""
    shape = {"nodes": s.nodes, "devices": s.devices_per_node}
    own = {"local.sh": local.format(**shape)} if s.nodes == 1 else {}
    return {"slurm.sh": slurm.format(**shape), **(others or {}), **own}


def words(option: str, value: Any = None) -> str:
    """An option and its value or values, quoted for a shell, on one line."""
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return " ".join([option, *(shlex.quote(str(item)) for item in values)])


def plan_hash(s: Subject) -> str:
    """Twelve hexadecimal digits that identify the plan."""
    text = json.dumps(s.plan.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def comment(s: Subject, prefix: str = "#") -> list[str]:
    """The comment at the start of every exported file."""
    mesh = s.plan.mesh
    shape = f"tp {mesh.tp}, cp {mesh.cp}, dp {s.dp}, pp {mesh.pp}, ep {mesh.ep}"
    passes = f"{s.microbatches} microbatch{'es' * (s.microbatches > 1)} of {s.plan.micro_batch}"
    lines = [
        f"Written by simpar {simpar.__version__} from plan {plan_hash(s)}.",
        f"{s.graph.name} on {s.world_size} devices: {shape}; {passes}.",
    ]
    lines += [f"Predicted under {s.predicted}."] if s.predicted else []
    return [f"{prefix} {line}" for line in lines]


def describe_prediction(facts: Mapping[str, Any]) -> str:
    """The prediction that a plan records, in words; "" if it records none."""
    result = []
    if isinstance(facts.get("step_time_s"), int | float):
        result.append(f"{format_seconds(facts['step_time_s'])} a step")
    if isinstance(facts.get("mfu"), int | float):
        result.append(f"MFU {facts['mfu']:.1%}")
    if isinstance(facts.get("peak_memory_bytes"), int | float):
        result.append(f"{format_bytes(facts['peak_memory_bytes'])} allocated at the peak")
    return ", ".join(result)


def readme(s: Subject, target: Target, files: Iterable[str], lost: Iterable[Loss], notes: Iterable[str]) -> str:
    """The page beside the files: version, how to start it with which launcher, losses, and notes."""
    there = [text for name, text in STARTS.items() if name in set(files)]
    start = f"{'; '.join(there)}." if there else ""
    lines = [
        f"# {s.graph.name} for {target.name}",
        "",
        *comment(s, "-"),
        f"- Checked against {target.version}.",
        "",
        " ".join(filter(None, (target.how.strip(), start))),
    ]
    gone = [f"- {loss}" for loss in lost]
    if gone:
        lines += ["", "## Lost", "", "The plan says these, the files do not:", "", *gone]
    told = [f"- {note}" for note in notes]
    if told:
        lines += ["", "## Notes", "", *told]
    return "\n".join(lines) + "\n"
