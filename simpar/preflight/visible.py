"""The devices of a node that a command may use: those that a variable lists, or that its container is given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath

from simpar.errors import UserError
from simpar.frameworks.named import HUB, RUNTIMES
from simpar.frameworks.reader import value_of
from simpar.frameworks.shell_passed import passed_variables
from simpar.frameworks.shell_words import UNKNOWN

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables that list the devices of a node that a process may use, as CUDA and HIP read them."""
OF_OTHERS = ("ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES")
"""Their kin of other vendors."""
OF_CONTAINERS = ("NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES")
"""Variables by which a container's runtime takes its devices."""
ALL = ("all", "")
NONE = ("none", "void", "nodevfiles", "-1")
"""Lists of no device."""
_OF_APPTAINER = ("APPTAINERENV_", "SINGULARITYENV_")
"""What the names of variables of a container begin with outside of it."""
_CONTAINERS = (*RUNTIMES, "apptainer", "singularity")
_NODE_OF_DEVICE = re.compile(r"nvidia\.com/gpu=(?!all)|/dev/dri/renderD\d+$|/dev/davinci\d+$")
_EXCLUDED = ("--exclude", "-e")
SLICE = "MIG-"
"""How the names of slices of a device begin; a container's runtime also takes ``0:1``."""


def visible_devices(environment: Mapping[str, str], words: Sequence[str] = ()) -> int | None:
    """The number of devices of a node that a command may use; None if neither variables nor its container say.

    Raises UserError for a list of none: nothing would be trained on devices.
    """
    name, listed = _list_of(environment, words)
    if not name:
        return _given(words) or _of_machine(words)
    if UNKNOWN.search(listed):
        return None
    count = _as_driver(listed) if name in VISIBLE else _count(listed)
    if count == 0:
        raise UserError(f"{name}={listed}: no device is visible, so that processors would train; allowed: 0, 0,1, ...")
    return count or _given(words) or _of_machine(words)


def _list_of(environment: Mapping[str, str], words: Sequence[str]) -> tuple[str, str]:
    """The variable that lists devices, and its list; "" if none does. An empty list is one of CUDA's alone."""
    inner = {name.removeprefix(begin): value for begin in _OF_APPTAINER
             for name, value in environment.items() if name.startswith(begin)}  # fmt: skip
    variables = {**passed_variables(words), **inner, **environment}
    told = ((name, variables[name]) for name in (*VISIBLE, *OF_OTHERS, *OF_CONTAINERS) if name in variables)
    return next(((name, listed) for name, listed in told if listed or name in VISIBLE), ("", ""))


def last_visible(environment: Mapping[str, str]) -> tuple[str, int]:
    """The variable that lists devices by number, and the highest of these; ("", -1) if none does."""
    name, listed = _list_of(environment, ())
    numbers = [int(each) for each in listed.split(",") if each.strip().isdecimal()]
    return (name, max(numbers)) if name in VISIBLE and numbers else ("", -1)


def slice_lister(environment: Mapping[str, str], words: Sequence[str] = ()) -> str:
    """What lists slices of devices (MIG) for a command: a variable, or a container's ``--gpus``; "" if nothing does."""
    name, listed = _list_of(environment, words)
    given = listed if name else _device_list(words)
    sliced = given.startswith(SLICE) or (name not in VISIBLE and re.match(r"\d+:\d+", given) is not None)
    return (name or "--gpus") if sliced else ""


def _as_driver(listed: str) -> int:
    """The devices of a list of CUDA's or HIP's (``torch/cuda/__init__.py``, ``_parse_visible_devices``).

    Those up to the first word that is no device's; none where one stands there twice.
    """
    names = [each.strip() for each in listed.split(",")]
    begin = next((each for each in ("GPU-", SLICE) if names[0].startswith(each)), None)
    known = (each.startswith(begin) if begin else re.match(r"\d", each) for each in names)
    taken = [name for name, _ in takewhile(lambda pair: pair[1], zip(names, known, strict=True))]
    numbers = taken if begin else [re.match(r"\d+", each)[0] for each in taken]  # type: ignore[index]
    return len(numbers) if len({*numbers}) == len(numbers) else 0


def _count(listed: str) -> int | None:
    """The devices of a list of numbers, ranges of them, slices or names; None for all, or for what is no list."""
    devices = [each.strip() for each in listed.split(",") if each.strip()]
    if listed.strip().lower() in NONE:
        return 0
    if listed in ALL or not all(re.fullmatch(r"[\w:/-]+", each) for each in devices):
        return None
    ranges = (re.fullmatch(r"(\d+)-(\d+)", each) for each in devices)
    return sum(max(0, int(each[2]) - int(each[1]) + 1) if each else 1 for each in ranges)


def _of_container(words: Sequence[str]) -> Sequence[str]:
    """The words behind the program that starts a container; () for all other commands."""
    return next((words[at + 1 :] for at, word in enumerate(words) if PurePath(word).name in _CONTAINERS), ())


def _given(words: Sequence[str]) -> int | None:
    """The devices of ``docker run --gpus 2``, ``--gpus '"device=0,1"'`` or ``--device nvidia.com/gpu=0``."""
    inner = _of_container(words)
    told = _asked(words)
    if told.isdecimal():
        return int(told) or None
    if (count := _parts(told).get("count", "")).isdecimal():
        return int(count)
    if listed := _device_list(words):
        return _count(listed)
    return len({word for word in inner if _NODE_OF_DEVICE.search(word)}) or None


def _asked(words: Sequence[str]) -> str:
    """What a container is asked to have: ``--gpus 2``; "" if that is not said."""
    return (value_of(_of_container(words), ("--gpus",)) or "").strip("'\"")


def _parts(told: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in re.split(r",(?=\w+=)", told) if "=" in part)


def _device_list(words: Sequence[str]) -> str:
    """The devices that a container is given by number or name; "" if none are."""
    return _parts(_asked(words)).get("device", "").strip("'\"")


def _of_machine(words: Sequence[str]) -> int | None:
    """The devices of the machine that a service starts: ``hf jobs run --flavor a10g-largex2``, ``sky --gpus A100:2``.

    One where a name says no number; None for all other commands, and for machines without GPUs.
    """
    flavor = value_of(words, ("--flavor",)) if tuple(words[:2]) == HUB else None
    asked = value_of(words, ("--gpus",)) if words[:1] == ["sky"] else None
    named = re.fullmatch(r"[a-z][a-z-]*\d+[a-z]*(?:-?[a-z]+)?(?:x(\d+))?", flavor or "")
    match = named or re.fullmatch(r"[\w-]+(?::(\d+))?", asked or "")
    return int(match[1] or 1) if match else None


def unread_list(environment: Mapping[str, str], words: Sequence[str]) -> str:
    """The variable that lists devices as only running would tell; "" if none does."""
    name, listed = _list_of(environment, words)
    return name if UNKNOWN.search(listed) else ""


def left_out(words: Sequence[str], *, of_here: bool = False) -> dict[str, int]:
    """Devices that ``deepspeed --exclude host:0,1@host2:3`` leaves out of every host; ``of_here``: of localhost alone.

    Hosts that are left out whole are none: their number is for who says how many there are.
    """
    result = {host: len(devices) for host, devices in _excluded(_of_deepspeed(words)).items() if devices}
    return result if not of_here or {*result} == {"localhost"} else {}


def _of_deepspeed(words: Sequence[str]) -> Sequence[str]:
    return next((words[at + 1 :] for at, word in enumerate(words) if PurePath(word).name in ("deepspeed", "ds")), ())


def _excluded(words: Sequence[str]) -> dict[str, list[str]]:
    """The devices of every host that the launcher's ``--exclude`` names; none of a host that is named whole."""
    before = [*takewhile(lambda word: not word.endswith(".py"), words)]
    hosts = (each.partition(":") for each in (value_of(before, _EXCLUDED) or "").split("@"))
    return {host: [*filter(None, devices.split(","))] for host, _, devices in hosts if host}


def remaining_hosts(hosts: Mapping[str, int | None], words: Sequence[str], source: str) -> dict[str, int | None]:
    """The slots of the hosts of a file that DeepSpeed's ``--exclude`` leaves. Raises UserError if it leaves none."""
    excluded = _excluded(words)
    if unknown := [host for host in excluded if host not in hosts]:
        raise UserError(f"{source}: --exclude {unknown[0]}: allowed: hosts of the file, {', '.join(hosts)}")
    left = {host: slots if slots is None else slots - len({*excluded.get(host, ())}) for host, slots in hosts.items()
            if excluded.get(host) != []}  # fmt: skip
    left = {host: slots for host, slots in left.items() if slots is None or slots > 0}
    if not left:
        raise UserError(f"{source}: --exclude leaves no device of {', '.join(hosts)}; allowed: fewer")
    return left


def included_devices(text: str) -> tuple[int, int | None]:
    """Nodes and devices of each in DeepSpeed's ``host:0,1@host2:0,1`` (``launcher/runner.py``, parse_resource_filter).

    The number of devices is None where whole nodes are named. Raises UserError for unequal parts of them.
    """
    hosts = [host.partition(":")[2] for host in text.split("@")]
    counts = {len({*devices.split(",")}) if devices else None for devices in hosts}
    if len(counts) > 1:
        raise UserError(f"--include {text}: nodes with unlike numbers of devices; allowed: equal nodes")
    return len(hosts), counts.pop()


def listed_devices(told: Iterable[tuple[str, list[str]]]) -> int | None:
    """The devices that accelerate is given by number (``--gpu_ids 0,1``); None if it is given none, or all."""
    listed = (value_of(words, ("--gpu_ids", "--gpu-ids")) or "" for launcher, words in told if launcher == "accelerate")
    return next((len(each.split(",")) for each in listed if re.fullmatch(r"\d+(,\d+)*", each)), None)
