"""The devices of a node that a command may use: those that a variable lists, or that its container is given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath

from simpar.errors import UserError
from simpar.frameworks.named import HUB, RUNTIMES
from simpar.frameworks.reader import value_of

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
"""Variables that list the devices of a node that a job may use."""
OF_CONTAINERS = ("NVIDIA_VISIBLE_DEVICES",)
"""Variables by which a container's runtime takes its devices."""
ALL = ("all", "")
NONE = ("-1", "NoDevFiles", "none", "void")
"""Lists of no device."""
_VARIABLES = ("-e", "--env")
_EXCLUDED = ("--exclude", "-e")
SLICE = "MIG-"
"""How the names of slices of a device begin."""


def visible_devices(environment: Mapping[str, str], words: Sequence[str] = ()) -> int | None:
    """The number of devices of a node that a command may use; None if neither variables nor its container say.

    Raises UserError for a list of none: nothing would be trained on devices.
    """
    variables = {**_passed(words), **environment}
    names = (*VISIBLE, *OF_CONTAINERS)
    name, listed = next(((name, variables[name]) for name in names if variables.get(name)), ("", ""))
    if listed.strip() in NONE:
        raise UserError(f"{name}={listed}: no device is visible, so that processors would train; allowed: 0, 0,1, ...")
    return _count(listed) or _given(words) or _of_machine(words)


def is_slice(environment: Mapping[str, str]) -> bool:
    """Whether what a command may use is a slice of a device (MIG)."""
    return any(environment.get(name, "").startswith(SLICE) for name in VISIBLE)


def _count(listed: str) -> int | None:
    """The devices of a list of numbers or names; None for all of them, or for what only running would tell."""
    devices = [each for each in listed.split(",") if each.strip()]
    if listed in ALL or not all(re.fullmatch(r"\s*[\w/-]+\s*", each) for each in devices):
        return None
    return len(devices)


def _of_container(words: Sequence[str]) -> Sequence[str]:
    """The words behind the program that starts a container; () for all other commands."""
    return next((words[at + 1 :] for at, word in enumerate(words) if PurePath(word).name in RUNTIMES), ())


def _given(words: Sequence[str]) -> int | None:
    """The devices of ``docker run --gpus 2``, ``--gpus '"device=0,1"'`` or ``--device nvidia.com/gpu=0``."""
    inner = _of_container(words)
    told = (value_of(inner, ("--gpus",)) or "").strip("'\"")
    if told.isdigit():
        return int(told) or None
    parts = dict(part.split("=", 1) for part in re.split(r",(?=\w+=)", told) if "=" in part)
    if parts.get("count", "").isdigit():
        return int(parts["count"])
    if listed := parts.get("device", "").strip("'\""):
        return _count(listed)
    named = [word for word in inner if re.search(r"nvidia\.com/gpu=(?!all)", word)]
    return len(named) or None


def _of_machine(words: Sequence[str]) -> int | None:
    """The devices of the machine that a service starts: ``hf jobs run --flavor a10g-largex2``, ``sky --gpus A100:2``.

    One where a name says no number; None for all other commands, and for machines without GPUs.
    """
    flavor = value_of(words, ("--flavor",)) if tuple(words[:2]) == HUB else None
    asked = value_of(words, ("--gpus",)) if words[:1] == ["sky"] else None
    named = re.fullmatch(r"[a-z][a-z-]*\d+[a-z]*(?:-?[a-z]+)?(?:x(\d+))?", flavor or "")
    match = named or re.fullmatch(r"[\w-]+(?::(\d+))?", asked or "")
    return int(match[1] or 1) if match else None


def _passed(words: Sequence[str]) -> dict[str, str]:
    """Variables that a container is given: ``-e NAME=VALUE``."""
    inner = _of_container(words)
    pairs = ((inner[at + 1] if word in _VARIABLES else word.partition("=")[2])
             for at, word in enumerate(inner[:-1]) if word.partition("=")[0] in _VARIABLES)  # fmt: skip
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def left_out(words: Sequence[str], *, of_here: bool = False) -> dict[str, int]:
    """Devices that ``deepspeed --exclude host:0,1@host2:3`` leaves out of every host; ``of_here``: of localhost alone.

    Hosts that are left out whole are none: their number is for who says how many there are.
    """
    inner = next((words[at + 1 :] for at, word in enumerate(words) if PurePath(word).name == "deepspeed"), ())
    before = [*takewhile(lambda word: not word.endswith(".py"), inner)]
    hosts = (each.partition(":") for each in (value_of(before, _EXCLUDED) or "").split("@"))
    result = {host: len(devices.split(",")) for host, _, devices in hosts if devices}
    return result if not of_here or {*result} == {"localhost"} else {}


def included_devices(text: str) -> tuple[int, int | None]:
    """Nodes and devices of each in DeepSpeed's ``host:0,1@host2:0,1`` (``launcher/runner.py``, parse_resource_filter).

    The number of devices is None where whole nodes are named, or unequal parts of them.
    """
    hosts = [host.partition(":")[2] for host in text.split("@")]
    counts = {len(devices.split(",")) if devices else None for devices in hosts}
    return len(hosts), counts.pop() if len(counts) == 1 else None


def listed_devices(told: Iterable[tuple[str, list[str]]]) -> int | None:
    """The devices that accelerate is given by number (``--gpu_ids 0,1``); None if it is given none, or all."""
    listed = (value_of(words, ("--gpu_ids", "--gpu-ids")) or "" for launcher, words in told if launcher == "accelerate")
    return next((len(each.split(",")) for each in listed if re.fullmatch(r"\d+(,\d+)*", each)), None)
