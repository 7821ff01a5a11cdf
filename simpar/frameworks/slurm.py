"""What Slurm asks for in a batch script or on a command line, and the variables that a job gets from it."""

import re
import shlex
from collections.abc import Iterator, Sequence

from simpar.errors import UserError
from simpar.frameworks.reader import value_of

NODES = ("--nodes", "-N")
PARTS = ("--het-group", "--pack-group")
TASKS, TASKS_OF_NODE = ("--ntasks", "-n"), ("--ntasks-per-node", "--tasks-per-node")
RESOURCES = ("--gres", "--tres-per-node", "--tres-per-task")
"""Flags for resources of all kinds, of which devices are one."""
DEVICES, DEVICES_OF_NODE = ("--gpus", "-G"), ("--gpus-per-node", "--gres", "--tres-per-node")
DEVICES_OF_TASK, DEVICES_OF_SOCKET = ("--gpus-per-task", "--tres-per-task"), ("--gpus-per-socket",)
_GLUED = re.compile(r"(-[NnGc])(\d\S*)")
_COUNT = re.compile(r"(?:gpu:|[\w.-]+:)*(\d+)(?:\(.*\))?")
_OF_DEVICES = re.compile(
    r"(?:gres[/:])?gpu(?P<kind>[:=](?:[A-Za-z_][\w.-]*|\d+[a-z]\.[\w.]+))?(?:[:=](?P<count>\d+))?(?:\(.*\))?"
)
"""Devices among resources: ``gpu``, ``gpu:a100``, ``gpu:h100:8``, ``gres/gpu=2``."""
_PRODUCT = re.compile(r"\d|pascal|volta|turing|ampere|hopper|blackwell|tesla", re.IGNORECASE)
_SLICE = re.compile(r"(?<!\d)\d+g\.\d+gb\b|(?<![\w-])(?:shard|mps)(?=[:=])", re.IGNORECASE)
"""A slice of a device (MIG), or a share of one, among resources."""


def directives(text: str) -> list[str]:
    """The words of the ``#SBATCH`` lines of a script; of a job of several parts, those of the first one."""
    return parts_of(text)[0]


def parts_of(text: str) -> list[list[str]]:
    """The words of the ``#SBATCH`` lines before the first command of a script, by part of the job.

    Slurm reads no others. A step that names no part runs on the first one.
    """
    parts: list[list[str]] = [[]]
    for at, line in enumerate(text.splitlines()):
        if line.startswith("#SBATCH"):
            words = _split(line.removeprefix("#SBATCH"))
            if words in (["hetjob"], ["packjob"]):
                parts.append([])
            else:
                parts[-1] += words
        elif at and line.strip() and not line.startswith("#"):
            break
    return [list(plain_flags(words)) for words in parts]


def part_named(words: Sequence[str], source: str) -> int:
    """The number of the part of a job that srun's ``words`` start a step on. Raises UserError for several parts."""
    told = value_of(words, PARTS) or "0"
    if not told.isdecimal():
        raise UserError(f"{source}: {PARTS[0]} = {told}: a step on several parts of a job; allowed: one part")
    return int(told)


def plain_flags(words: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Words in which a flag and its value are apart (``-N4`` is ``-N 4``)."""
    for word in words:
        glued = _GLUED.fullmatch(word)
        yield from glued.groups() if glued else (word,)


def count_of(value: str | None) -> int | None:
    """A number of nodes, tasks or devices: ``8``, or of a kind (``gpu:h100:8``); None if it is not one number."""
    parts = (value or "").split(",")  # of several kinds of resources
    if range_ := re.fullmatch(r"(\d+):(\d+)", parts[0]):  # from so many nodes to so many
        return int(range_[1]) or None if range_[1] == range_[2] else None
    last = _COUNT.fullmatch(next((part for part in parts if part.startswith("gpu")), parts[0]))
    return int(last[1]) or None if last else None


def devices_among(value: str) -> int | None:
    """The devices among resources of all kinds (``gpu:a100:2,nvme:1``): one where no number is said; None if none are.

    Devices of several kinds add up. A kind that is no product may be a number that somebody has yet to fill in.
    """
    devices = [match for part in value.split(",") if (match := _OF_DEVICES.fullmatch(part.strip()))]
    if any(not each["count"] and each["kind"] and not _PRODUCT.search(each["kind"]) for each in devices):
        return None
    return sum(int(each["count"] or 1) for each in devices) or None


def count_told(words: Sequence[str], flag: str) -> int | None:
    """The number of nodes, tasks or devices that ``flag`` asks for; None if it asks for none."""
    value = value_of(words, (flag,))
    return devices_among(value) if value and flag in RESOURCES else count_of(value)


def first_told(words: Sequence[str], flags: Sequence[str]) -> int | None:
    """The number that the first of ``flags`` with one asks for."""
    return next(filter(None, (count_told(words, flag) for flag in flags)), None)


def slices_of(words: Sequence[str]) -> list[str]:
    """The flags that ask for slices or shares of devices."""
    flags = (*RESOURCES, *DEVICES, "--gpus-per-node", *DEVICES_OF_TASK)
    return [flag for flag in dict.fromkeys(flags) if _SLICE.search(value_of(words, (flag,)) or "")]


def nodes_of(words: Sequence[str]) -> int | None:
    """The nodes that flags ask for; without a number of them, as few as hold the tasks, or the devices of one.

    None if nothing of that is said.
    """
    told = value_of(words, NODES)
    if told is not None:
        least, _, most = told.partition("-")
        return count_of(told) if not most else count_of(least) if least == most else None
    tasks, each = (count_of(value_of(words, names)) for names in (TASKS, TASKS_OF_NODE))
    if tasks and each:
        return -(-tasks // each)
    is_of_node = value_of(words, DEVICES_OF_NODE) is not None
    return 1 if is_of_node and tasks is None else None


def devices_of_node(words: Sequence[str], nodes: int | None) -> int | None:
    """Devices of a node that are asked for by task, or in all; None if they are not.

    ``nodes`` are those that something else says; one where nothing does.
    """
    of_task, of_node = (first_told(words, names) for names in (DEVICES_OF_TASK, TASKS_OF_NODE))
    of_socket, sockets = (first_told(words, names) for names in (DEVICES_OF_SOCKET, ("--sockets-per-node",)))
    tasks, nodes = count_of(value_of(words, TASKS)), count_of(value_of(words, NODES)) or nodes
    each = of_node or (tasks and nodes and tasks // nodes) or 1
    if of_task or of_socket:
        return of_task * each if of_task else of_socket and of_socket * (sockets or 1)
    whole = count_of(value_of(words, DEVICES))
    return whole and max(1, whole // (nodes or 1))


def variables_of(words: Sequence[str]) -> dict[str, list[str]]:
    """The variables of a job that asks for ``words``, as far as these tell them (sbatch(1), OUTPUT ENVIRONMENT)."""
    if not words:
        return {}
    nodes = nodes_of(words)
    tasks, of_node = (count_of(value_of(words, names)) for names in (TASKS, TASKS_OF_NODE))
    devices, whole, of_task = (first_told(words, names) for names in (DEVICES_OF_NODE, DEVICES, DEVICES_OF_TASK))
    asked = count_of(value_of(words, ("--gpus-per-node",)))
    ranks = tasks or (nodes and nodes * (of_node or 1))
    on_node = (
        devices or (whole and nodes and whole // nodes) or (of_task and ranks and nodes and of_task * ranks // nodes)
    )
    values = {
        "SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes, "SLURM_NTASKS": ranks, "SLURM_NPROCS": ranks,
        "SLURM_NTASKS_PER_NODE": of_node, "SLURM_GPUS_PER_NODE": asked, "SLURM_GPUS_ON_NODE": on_node,
        "SLURM_GPUS": whole, "SLURM_GPUS_PER_TASK": of_task, "SLURM_TASKS_PER_NODE": ranks and nodes and ranks // nodes,
        "SLURM_CPUS_PER_TASK": count_of(value_of(words, ("--cpus-per-task", "-c"))),
        "SLURM_JOB_NODELIST": nodes and ("node1" if nodes == 1 else f"node[1-{nodes}]"),
    }  # fmt: skip
    known = {name: [str(value)] for name, value in values.items() if value}
    if "SLURM_JOB_NODELIST" in known:
        known["SLURM_NODELIST"] = known["SLURM_JOB_NODELIST"]
    return {"SLURM_JOB_ID": ["1"], "SLURM_JOBID": ["1"], **known}


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()
