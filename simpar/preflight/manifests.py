"""Files of YAML that start a command on a cluster, as shell text: SkyPilot's tasks, and pods and jobs of Kubernetes."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simpar import files

OF_SKYPILOT = ("resources", "num_nodes", "setup", "workdir", "file_mounts", "envs")
"""Keys that a task of SkyPilot has beside ``run``."""
GPUS = re.compile(r"(nvidia|amd)\.com/(gpu|mig-.*)|google\.com/tpu")
"""Resources of a container that are devices."""
STARTS = re.compile(r"(?m)^[\"']?(run|apiVersion)[\"']?\s*:|^\{")
"""Keys of which a file of a cluster has one, at the left or in a mapping of one line."""


@dataclass(frozen=True)
class StartedCommand:
    """What a file starts: shell text, the nodes, and the devices of each (None where it does not say)."""

    text: str
    nodes: int | None
    devices: int | None


def manifest_of(text: str, source: str) -> StartedCommand | None:
    """The command that a YAML starts; None if it starts none. Raises UserError for invalid YAML."""
    if STARTS.search(text) is None:
        return None
    for part in re.split(r"(?m)^---[ \t]*$", text):
        data = files.read_yaml(part, source) if STARTS.search(part) else None
        if isinstance(data, Mapping) and (result := _of_task(data) or _of_pods(data)) is not None:
            return result
    return None


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
    devices = int(count) if count is not None and str(count).isdigit() else None
    variables = {
        **_plain(data.get("envs")), "SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NODE_RANK": 0,
        **({"SKYPILOT_NUM_GPUS_PER_NODE": devices} if devices else {}),
    }  # fmt: skip
    return StartedCommand(_with(variables, run), nodes, devices)


def _of_pods(data: Mapping[str, Any]) -> StartedCommand | None:
    """The first container of a pod that has a command; a job of Kubeflow has as many pods as its replicas."""
    if "apiVersion" not in data:
        return None
    every = (each for pod in _pod_containers(data) for each in pod)
    container = next((each for each in every if each.get("command") or each.get("args")), None)
    if container is None:
        return None
    words = [str(word) for key in ("command", "args") for word in container.get(key) or []]
    pod = next(each for each in _pod_containers(data) if container in each)
    devices, nodes = sum(map(_devices_of, pod)) or None, _pods_of(data)
    named = [(each.get("name"), each.get("value")) for each in container.get("env") or [] if isinstance(each, Mapping)]
    of_kubeflow = {"PET_NNODES": nodes, "PET_NODE_RANK": 0} if "Job" in str(data.get("kind")) and nodes > 1 else {}
    return StartedCommand(_with({**of_kubeflow, **_plain(dict(named))}, shlex.join(words)), nodes, devices)


def _devices_of(container: Mapping[str, Any]) -> int:
    """The devices that a container may use; those of a TPU host may be shared out among its containers."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return sum(int(value) for name, value in limits.items() if GPUS.fullmatch(str(name)) and str(value).isdigit())


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


def _pods_of(data: Mapping[str, Any]) -> int:
    """Pods that run at a time: replicas of Kubeflow's kinds, the parallelism of a job or of a set's jobs, else one."""
    spec = data.get("spec")
    if not isinstance(spec, Mapping):
        return 1
    kinds = next((value for key, value in spec.items() if str(key).endswith("ReplicaSpecs")), None)
    if isinstance(kinds, Mapping):
        return sum(int(each.get("replicas") or 1) for each in kinds.values() if isinstance(each, Mapping)) or 1
    jobs = spec.get("replicatedJobs")
    if isinstance(jobs, list) and all(isinstance(each, Mapping) for each in jobs):
        return sum(int(each.get("replicas") or 1) * _pods_of(each.get("template") or {}) for each in jobs) or 1
    told = spec.get("parallelism") or spec.get("numNodes") or (spec.get("trainer") or {}).get("numNodes")
    return told if isinstance(told, int) and told > 0 else 1


def _plain(values: Any) -> dict[str, Any]:
    """Variables with values."""
    given = values if isinstance(values, Mapping) else {}
    return {
        str(key): value
        for key, value in given.items()
        if isinstance(value, str | int | float) and str(key).isidentifier()
    }


def _with(variables: Mapping[str, Any], text: str) -> str:
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
    return "\n".join([*lines, text, ""])
