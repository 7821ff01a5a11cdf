"""Files of YAML that start a command on a cluster, as shell text: tasks of SkyPilot and dstack, jobs of Kubernetes.

Of Kubernetes these are pods and jobs, and those of operators: Kubeflow, KubeRay, Volcano. Azure ML's commands,
MosaicML's runs and the services of Docker Compose, too.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.preflight.templates import GPUS, has_devices, refuse_untold, slices_in

OF_SKYPILOT = ("resources", "num_nodes", "setup", "workdir", "file_mounts", "envs")
"""Keys that a task of SkyPilot has beside ``run``."""
OF_MOSAIC, PARAMETERS = 8, "/mnt/config/parameters.yaml"
"""Devices of a node of MosaicML, and where a run finds its parameters."""
ALONE = ("Pod", "Job", "Deployment", "StatefulSet", "ReplicaSet", "JobSet")
"""Kinds that have one pod unless they say how many."""
_LAUNCHES = re.compile(r"\b(torchrun|accelerate\s+launch|deepspeed\s|torch\.distributed\.(run|launch)|horovodrun)\b")
STARTS = re.compile(r"(?m)^[\"']?(run|apiVersion|commands|command|services)[\"']?\s*:|^\{")
"""Keys of which a file of a cluster has one, at the left or in a mapping of one line."""


@dataclass(frozen=True)
class StartedCommand:
    """What a file starts: shell text, the nodes, and the devices of each (None where it does not say).

    ``slices`` are the resources among these that are slices or shares of devices.
    """

    text: str
    nodes: int | None
    devices: int | None
    slices: tuple[str, ...] = ()


def manifest_of(text: str, source: str) -> StartedCommand | None:
    """The command that a YAML starts; None if it starts none. Raises UserError for invalid YAML.

    Of several, that of the first part that asks for devices is meant. Pods without a command are refused, for what they
    start is in their image, and counts that are left to variables, by their names.
    """
    if STARTS.search(text) is None:
        return None
    has_pods, without_devices = False, None
    for part in re.split(r"(?m)^---[ \t]*$", text):
        data = files.read_yaml_of_python(part, source)[0] if STARTS.search(part) else None
        if (
            isinstance(data, Mapping)
            and (result := next(filter(None, (each(data) for each in KINDS)), None)) is not None
        ):
            files.read_yaml(part, source)  # of a manifest no key may appear twice
            refuse_untold(data, source)
            result = replace(result, slices=slices_in(data))
            if has_devices(data) or "apiVersion" not in data:
                return result
            without_devices = without_devices or result
        has_pods = has_pods or (isinstance(data, Mapping) and "apiVersion" in data and any(_pod_containers(data)))
    if without_devices is None and has_pods:
        raise UserError(
            f"{source}: no container of it has a command: what its image starts is not in the text; allowed: that "
            "command behind --, or a manifest with command or args"
        )
    return without_devices


def _of_task(data: Mapping[str, Any]) -> StartedCommand | None:
    """A task of SkyPilot, with the variables that it sets (``skylet/constants.py``)."""
    run = data.get("run")
    if not isinstance(run, str) or not any(key in data for key in OF_SKYPILOT):
        return None
    nodes = data.get("num_nodes") if isinstance(data.get("num_nodes"), int) else 1
    resources = data.get("resources")
    asked = resources.get("accelerators") if isinstance(resources, Mapping) else None
    named = next(iter(asked.items() if isinstance(asked, Mapping) else [asked] if isinstance(asked, str) else []), None)
    count = named[1] if isinstance(named, tuple) else named.partition(":")[2] or 1 if isinstance(named, str) else None
    devices = int(count) if count is not None and str(count).isdecimal() else None
    variables = {
        **_plain(data.get("envs")), "SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NODE_RANK": 0,
        **({"SKYPILOT_NUM_GPUS_PER_NODE": devices} if devices else {}),
    }  # fmt: skip
    return StartedCommand(_with(variables, _with_local_paths(run, data.get("file_mounts"))), nodes, devices)


def _with_local_paths(text: str, mounts: Any) -> str:
    """The text of a task with the local paths of what is copied to its nodes, so that files are found that lie here."""
    for remote, local in _plain_paths(mounts).items():
        text = re.sub(rf"(?<![\w./~-]){re.escape(remote)}(?![\w.-])", local.replace("\\", r"\\"), text)
    return text


def _plain_paths(mounts: Any) -> dict[str, str]:
    """Local paths by remote ones, the longest first; what is mounted from a store of objects is not here."""
    given = mounts if isinstance(mounts, Mapping) else {}
    paths = {
        str(remote).rstrip("/"): str(local).rstrip("/")
        for remote, local in given.items()
        if isinstance(local, str) and "://" not in local
    }
    return dict(sorted(paths.items(), key=lambda pair: -len(pair[0])))


def _of_pods(data: Mapping[str, Any]) -> StartedCommand | None:
    """The first container of a pod that has a command; a job has as many pods as its replicas."""
    if "apiVersion" not in data:
        return None
    pods = list(_pod_containers(data))
    container = next((each for pod in pods for each in pod if each.get("command") or each.get("args")), None)
    if container is None:
        return None
    own = next(pod for pod in pods if container in pod)
    workers = [own, *pods] if data.get("kind") == "MPIJob" else [own]  # MPI's launcher has no devices
    devices = next(filter(None, (sum(map(_devices_of, pod)) for pod in workers)), None)
    nodes = _pods_of(data)
    named = [(each.get("name"), each.get("value")) for each in container.get("env") or [] if isinstance(each, Mapping)]
    variables = {**_of_operator(data, nodes, devices), **_plain(dict(named))}
    return StartedCommand(_with(variables, shlex.join(_words_of(container))), nodes, devices)


def _words_of(container: Mapping[str, Any]) -> list[str]:
    return [str(word) for key in ("command", "args") for word in container.get(key) or []]


def _of_operator(data: Mapping[str, Any], nodes: int | None, devices: int | None) -> dict[str, Any]:
    """Variables that the operator of a kind sets: those of torchrun, and the size of a group.

    The operator of PyTorchJob tells torchrun to start a process for every device, unless the job says a number
    (kubeflow/training-operator, ``setDefaultNprocPerNode``).
    """
    spec, kind = data.get("spec"), str(data.get("kind"))
    told: dict[str, Any] = {"LWS_GROUP_SIZE": nodes} if kind == "LeaderWorkerSet" else {}
    if "Job" in kind and nodes and nodes > 1:
        told |= {"PET_NNODES": nodes, "PET_NODE_RANK": 0}
    elastic = spec.get("elasticPolicy") if isinstance(spec, Mapping) else None
    stated = spec.get("nprocPerNode") if isinstance(spec, Mapping) else None
    each = _count(elastic.get("nProcPerNode") if isinstance(elastic, Mapping) else None) or _count(stated)
    each = each or (devices if kind == "PyTorchJob" and stated in (None, "auto", "gpu") else None)
    return told | ({"PET_NPROC_PER_NODE": each} if each else {})


def _of_trainer(data: Mapping[str, Any]) -> StartedCommand | None:
    """A job of Kubeflow's Trainer, whose command stands beside its nodes; torchrun starts it on all of them."""
    spec = data.get("spec")
    trainer = spec.get("trainer") if data.get("kind") == "TrainJob" and isinstance(spec, Mapping) else None
    if not isinstance(trainer, Mapping) or not (words := _words_of(trainer)):
        return None
    each = trainer.get("numProcPerNode")
    devices = _devices_of({"resources": trainer.get("resourcesPerNode")}) or None
    nodes = _count(trainer.get("numNodes")) or 1
    per_node = each if str(each).isdecimal() else devices
    variables = {"PET_NNODES": nodes, "PET_NODE_RANK": 0, **({"PET_NPROC_PER_NODE": per_node} if per_node else {})}
    return StartedCommand(_with(variables, shlex.join(words)), nodes, devices)


def _of_ray(data: Mapping[str, Any]) -> StartedCommand | None:
    """A job of KubeRay: its entry point, which Ray starts once, on the devices of its workers' groups."""
    spec = data.get("spec")
    entry = spec.get("entrypoint") if data.get("kind") == "RayJob" and isinstance(spec, Mapping) else None
    if not isinstance(entry, str):
        return None
    cluster = spec.get("rayClusterSpec") if isinstance(spec, Mapping) else None
    groups = cluster.get("workerGroupSpecs") if isinstance(cluster, Mapping) else None
    listed = [each for each in groups if isinstance(each, Mapping)] if isinstance(groups, list) else []
    nodes = sum(_count(each.get("replicas")) or 1 for each in listed) or None
    pods = [pod for each in listed for pod in _pod_containers(each)]
    return StartedCommand(entry, nodes, sum(map(_devices_of, pods[0])) or None if pods else None)


def _of_dstack(data: Mapping[str, Any]) -> StartedCommand | None:
    """A task of dstack, with the variables that it sets."""
    commands = data.get("commands")
    if data.get("type") != "task" or not isinstance(commands, list):
        return None
    nodes, resources = _count(data.get("nodes")) or 1, data.get("resources")
    asked = resources.get("gpu") if isinstance(resources, Mapping) else None
    count = asked.get("count") if isinstance(asked, Mapping) else str(asked or "").rpartition(":")[2]
    devices = _count(count) or (1 if asked and not re.search(r"\.\.", str(count)) else None)  # one where none is said
    variables = {
        **_plain(data.get("env")), "DSTACK_NODES_NUM": nodes, "DSTACK_NODE_RANK": 0,
        **({"DSTACK_GPUS_PER_NODE": devices, "DSTACK_GPUS_NUM": devices * nodes} if devices else {}),
    }  # fmt: skip
    return StartedCommand(_with(variables, "\n".join(map(str, commands))), nodes, devices)


def _of_azure(data: Mapping[str, Any]) -> StartedCommand | None:
    """A command job of Azure ML, which starts the processes of every instance itself."""
    command, asked = data.get("command"), data.get("distribution")
    if not isinstance(command, str) or not (isinstance(asked, Mapping) or "azureml" in str(data.get("$schema"))):
        return None
    resources = data.get("resources")
    nodes = _count(resources.get("instance_count")) or 1 if isinstance(resources, Mapping) else 1
    launches = _LAUNCHES.search(command) is not None  # one of its processes starts the ranks
    each = _count(asked.get("process_count_per_instance")) if isinstance(asked, Mapping) and not launches else None
    launcher = f"torchrun --nnodes {nodes} --nproc_per_node {each} " if each else ""
    text = command.replace("python ", launcher, 1) if launcher else command
    return StartedCommand(_with(_plain(data.get("environment_variables")), text), nodes, each)


def _of_mosaic(data: Mapping[str, Any]) -> StartedCommand | None:
    """A run of MosaicML's mcli, whose parameters lie in a file of the container; its nodes have eight devices."""
    command, parameters, compute = (data.get(key) for key in ("command", "parameters", "compute"))
    told = compute.get("gpus") if isinstance(compute, Mapping) else data.get("gpu_num")
    if not isinstance(command, str) or "image" not in data or not {"compute", "gpu_num"} & set(data):
        return None
    count = _count(told)
    each = min(count, OF_MOSAIC) if count and count % min(count, OF_MOSAIC) == 0 else None
    asked = f"--world_size {count or '$GPUS'}" + (f" -n {each}" if each else "")
    command = re.sub(r"(?m)^(\s*)composer\s", rf"\1composer {asked} ", command)  # whose size its platform tells
    file = json.dumps(parameters if isinstance(parameters, Mapping) else {}, default=str)
    text = f"cat > {PARAMETERS} <<'END'\n{file}\nEND\n{command}"
    sizes = (count // each, each) if count and each else (None, None)
    return StartedCommand(_with(_plain(data.get("env_variables")), text), *sizes)


def _of_compose(data: Mapping[str, Any]) -> StartedCommand | None:
    """A service of Docker Compose: the first that is given devices, else the first, of those that have a command.

    Compose puts in variables itself, and takes $$ for a dollar (docs.docker.com/reference/compose-file).
    """
    services = data.get("services")
    listed = services.values() if isinstance(services, Mapping) else ()
    own = [each for each in listed if isinstance(each, Mapping) and (each.get("command") or each.get("entrypoint"))]
    if not own:
        return None
    service = next((each for each in own if _asked_of_compose(each)), own[0])
    parts = (service.get(key) or [] for key in ("entrypoint", "command"))
    words = [part if isinstance(part, str) else shlex.join(map(str, part)) for part in parts if part]
    mounts = (str(each).split(":") for each in service.get("volumes") or [] if isinstance(each, str))
    paths = {pair[1]: pair[0] for pair in mounts if len(pair) > 1 and pair[0].startswith((".", "/"))}
    text = _with_local_paths(" ".join(words).replace("$$", "$"), paths)
    counts = [each for each in _asked_of_compose(service) if each]
    return StartedCommand(_with(_plain(service.get("environment")), text), 1, sum(counts) or None)


def _asked_of_compose(service: Mapping[str, Any]) -> list[int | None]:
    """The devices that a service is given, by each of its requests; None for all of a kind."""
    node: Any = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        node = node.get(key) if isinstance(node, Mapping) else None
    gpus = service.get("gpus")
    asked = [*(node if isinstance(node, list) else []), *(gpus if isinstance(gpus, list) else [])]
    result = [_count(each.get("count")) or len(each.get("device_ids") or []) or None for each in asked
              if isinstance(each, Mapping)]  # fmt: skip
    is_given = bool(gpus) and not isinstance(gpus, list)
    return [*result, *([_count(gpus)] if is_given or service.get("runtime") == "nvidia" else [])]


def _devices_of(container: Mapping[str, Any]) -> int:
    """The devices that a container may use; those of a TPU host may be shared out among its containers."""
    resources = container.get("resources") or {}
    limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return sum(int(value) for name, value in limits.items() if GPUS.fullmatch(str(name)) and str(value).isdecimal())


def _pod_containers(node: Any) -> Iterator[list[Mapping[str, Any]]]:
    """The containers of every pod anywhere in a manifest, in order."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "containers" and isinstance(value, list):
                yield [each for each in value if isinstance(each, Mapping)]
            else:
                yield from _pod_containers(value)
    elif isinstance(node, list):
        for each in node:
            yield from _pod_containers(each)


def _pods_of(data: Mapping[str, Any]) -> int | None:
    """Pods that run at a time: replicas of Kubeflow's kinds, the parallelism of a job or of a set's jobs, else one.

    None for kinds that are not known here.
    """
    spec = data.get("spec")
    if not isinstance(spec, Mapping):
        return 1
    kinds = next((value for key, value in spec.items() if str(key).endswith("ReplicaSpecs")), None)
    if isinstance(kinds, Mapping):
        roles = {role: each for role, each in kinds.items() if isinstance(each, Mapping)}
        if data.get("kind") == "MPIJob":
            roles.pop("Launcher", None)
        return sum(_count(each.get("replicas")) or 1 for each in roles.values()) or 1
    jobs = spec.get("replicatedJobs")
    if isinstance(jobs, list) and all(isinstance(each, Mapping) for each in jobs):
        counts = [(_count(each.get("replicas")) or 1) * (_pods_of(each.get("template") or {}) or 1) for each in jobs]
        return sum(counts) or 1
    if isinstance(tasks := spec.get("tasks"), list):  # Volcano's
        return sum(_count(each.get("replicas")) or 1 for each in tasks if isinstance(each, Mapping)) or 1
    if isinstance(group := spec.get("leaderWorkerTemplate"), Mapping):
        return _count(group.get("size"))
    told = _count(spec.get("parallelism")) or _count(spec.get("numNodes"))
    return told or (1 if data.get("kind") in (*ALONE, None) else None)


def _count(value: Any) -> int | None:
    """A positive number."""
    return int(value) if str(value).isdecimal() and int(value) else None


def _plain(values: Any) -> dict[str, Any]:
    """Variables with values: of a mapping, or of a list of NAME=VALUE."""
    listed = [str(each).partition("=") for each in values if "=" in str(each)] if isinstance(values, list) else []
    given = values if isinstance(values, Mapping) else {name: value for name, _, value in listed}
    return {
        str(key): value
        for key, value in given.items()
        if isinstance(value, str | int | float) and str(key).isidentifier()
    }


def _with(variables: Mapping[str, Any], text: str) -> str:
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
    return "\n".join([*lines, text, ""])


KINDS = (_of_task, _of_trainer, _of_ray, _of_dstack, _of_azure, _of_mosaic, _of_compose, _of_pods)
"""What is asked in turn whether a file starts a command."""
