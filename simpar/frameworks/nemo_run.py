"""NeMo-Run: the recipe of Megatron-Bridge, and a script that starts it through an executor of NeMo-Run.

The executor is chosen at the start: on this machine, in a Docker container, under SLURM (here or through SSH) or on
Kubernetes with Kubeflow's trainer. The recipe itself does not need NeMo-Run.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simpar.frameworks import megatron, megatron_bridge
from simpar.frameworks.launch import allocator, comment
from simpar.frameworks.subject import Subject
from simpar.frameworks.target import Options, Target

LAUNCH = "launch.py"
EXECUTORS = {
    "local": "LocalExecutor",
    "docker": "DockerExecutor",
    "slurm": "SlurmExecutor",
    "kubeflow": "KubeflowExecutor",
}
"""Executors by the word that selects them, with their NeMo-Run class."""
SHARED = {"packager": "packager", "env_vars": "ENVIRONMENT", "launcher": '"torchrun"'}
GIVEN: Mapping[str, Mapping[str, str]] = {
    "local": {},
    "docker": {"container_image": "given.image", "volumes": "given.mount"},
    "slurm": {
        "account": "given.account", "partition": "given.partition", "time": "given.time",
        "container_image": "given.image", "container_mounts": "given.mount", "tunnel": "tunnel(given)",
    },
    "kubeflow": {
        "namespace": "given.namespace", "image": "given.image", "workdir_pvc": '"simpar"',
        "workdir_local_path": "str(HERE)",
    },
}  # fmt: skip
"""Arguments of executors that are given at the start, as Python source text."""
NEEDED = {"docker": ("image",), "slurm": ("account",), "kubeflow": ("image",)}
"""Arguments that an executor needs to start."""
CODE_ON_KUBEFLOW = "/nemo_run/train.py"
"""Where its pods find the files of ``workdir_local_path`` (``execution/templates/kubeflow.sh.j2``)."""

_HEAD = """import argparse
from pathlib import Path

import nemo_run as run

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {environment!r}
NEEDED = {needed!r}


def tunnel(given):
    \"\"\"To the login node of SLURM: this machine, or another through SSH.\"\"\"
    if not given.host:
        return run.LocalTunnel(job_dir=given.folder or str(HERE / "runs"))
    return run.SSHTunnel(host=given.host, user=given.user, job_dir=given.folder)

"""
_MAIN = """
def main():
    \"\"\"Start the training, or show what would be started.\"\"\"
    parser = argparse.ArgumentParser(description=\"{title}\")
    parser.add_argument("--executor", choices=sorted(EXECUTORS), default="{default}")
    parser.add_argument("--account", help="of SLURM")
    parser.add_argument("--partition", help="of SLURM")
    parser.add_argument("--time", default="04:00:00", help="limit of SLURM")
    parser.add_argument("--host", help="login node of SLURM, through SSH")
    parser.add_argument("--user", help="on the login node")
    parser.add_argument("--folder", help="where SLURM keeps the job, on the cluster; default: runs beside this file")
    parser.add_argument("--image", help="container with Megatron-Bridge")
    parser.add_argument("--mount", action="append", default=[], help="HOST:CONTAINER, as often as needed")
    parser.add_argument("--namespace", default="default", help="of Kubernetes")
    parser.add_argument("--dry-run", action="store_true", help="show what would be started")
    parser.add_argument("--detach", action="store_true", help="do not wait for the end")
    given = parser.parse_args()
    for name in NEEDED.get(given.executor, ()):
        if not getattr(given, name):
            parser.error(f"--executor {{given.executor}} needs --{{name}}")
    if given.host and not (given.user and given.folder):
        parser.error("--host needs --user and --folder")
    executor, path = EXECUTORS[given.executor](given)
    with run.Experiment("simpar") as experiment:
        experiment.add(run.Script(path=path, entrypoint="python"), executor=executor, name="train")
        if given.dry_run:
            experiment.dryrun()
        else:
            experiment.run(detach=given.detach, tail_logs=not given.detach)


if __name__ == "__main__":
    main()
"""


def options(s: Subject) -> Options:
    """Fields of the executors that the plan decides, by ``EXECUTOR.FIELD``; this machine only if there is one node."""
    nodes, devices = s.nodes, s.devices_per_node
    values: Options = {
        "local.ntasks_per_node": devices, "docker.ntasks_per_node": devices, "docker.num_gpus": devices,
        "docker.shm_size": "30g",
    } if nodes == 1 else {}  # fmt: skip
    return values | {
        "slurm.nodes": nodes, "slurm.ntasks_per_node": devices, "slurm.gpus_per_node": devices, "slurm.exclusive": True,
        "slurm.mem": "0", "kubeflow.num_nodes": nodes, "kubeflow.nprocs_per_node": devices,
        "kubeflow.gpus_per_node": devices,
    }  # fmt: skip


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """Bridge's files, and the script that starts them through NeMo-Run."""
    return {**megatron_bridge.files(s, megatron_bridge.options(s)), LAUNCH: _launch(s, given)}


def _launch(s: Subject, given: Options) -> str:
    names = [name for name in EXECUTORS if any(key.startswith(f"{name}.") for key in given)]
    environment = megatron.environment(s) | allocator(s)
    text = "\n".join(comment(s)) + "\n"
    text += _HEAD.format(environment=environment, needed={name: NEEDED[name] for name in names if name in NEEDED})
    for name in names:
        fields = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{name}.")}
        text += "\n".join([*_executor(name, fields), "", ""])
    text = text.rstrip() + "\n\n\nEXECUTORS = {" + ", ".join(f'"{name}": {name}' for name in names) + "}\n\n"
    title = f"Train {s.graph.name} on {s.world_size} devices."
    return text + _MAIN.format(title=title, default=names[0])


def _executor(name: str, fields: Mapping[str, Any]) -> Iterable[str]:
    """The function that creates one executor, and sets where its processes find the script."""
    local = name == "local"
    path = {"local": 'str(HERE / "train.py")', "kubeflow": f'"{CODE_ON_KUBEFLOW}"'}.get(name, '"train.py"')
    packager = (
        "run.Packager()"
        if name in ("local", "kubeflow")
        else 'run.PatternPackager(include_pattern=str(HERE / "*.py"), relative_path=str(HERE))'
    )
    yield from ("", f"def {name}({'_' if local else 'given'}):", '    """The executor, and its script."""')
    yield f"    return run.{EXECUTORS[name]}("
    yield from (f"        {field}={value!r}," for field, value in fields.items())
    yield from (f"        {field}={text}," for field, text in GIVEN[name].items())
    yield from (f"        {field}={packager if field == 'packager' else text}," for field, text in SHARED.items())
    yield from (f"    ), {path}", "")


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user: on NeMo-Run, then on the recipe."""
    yield "`python launch.py --dry-run` shows what NeMo-Run would submit; `--help` lists what executors are told."
    yield "Under Kubeflow the files travel through a volume claim `simpar`, and it needs `nemo-run[kubeflow]`."
    yield from megatron_bridge.notes(s)


NEMO_RUN = Target(
    name="nemo-run",
    description="NeMo-Run: Megatron-Bridge's recipe, and a script with executors for it",
    version="nemo-run 0.11.1 with megatron-bridge 0.6.2",
    losses=megatron_bridge.losses,
    options=options,
    files=files,
    notes=notes,
    features=("a part", "dispatcher", "expandable_segments", "graphs"),
    numerics=megatron.NUMERICS,
)
