"""The processes that a script starts itself: workers of Ray Train, those of notebook_launcher and of mp.spawn.

One process that is given several devices (Modal's ``gpu="H100:4"``) drives all of them.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass
from simpar.frameworks.script_values import ScriptNames, calls_in, name_of, value_of

SCALES = "ScalingConfig"
"""Ray Train's class of how many workers there are (``ray.train``): one, without a device, where it says nothing."""
LAUNCHES = "notebook_launcher"
"""Accelerate's function that starts ``num_processes`` on each of ``num_nodes`` (``launchers.py``)."""
SPAWNS = "spawn"
"""torch's function that starts ``nprocs`` (``torch.multiprocessing``)."""
NO_DEVICE, DRIVES_ALL = "use_gpu", "gpu"
OF_STARTS = {
    NO_DEVICE: "workers of Ray are given no device unless it is on: training runs on processors",
    DRIVES_ALL: "one process is given all of them and drives them (DataParallel, or layers spread by device_map), "
    "answered for one: the batch, memory and time",
}
"""What the words that stand for such devices could change."""
_OF_MODAL = re.compile(r"[\w!-]+:(\d+)")


@dataclass(frozen=True)
class Starts:
    """How many ``processes`` a script's code starts: None where only running tells; ``is_any``: it starts some.

    ``words`` are those of :data:`OF_STARTS` that hold, with the code of each.
    """

    is_any: bool = False
    processes: int | None = None
    words: Mapping[str, str] = field(default_factory=dict)


def starts_of(tree: ast.AST, value: Callable[[ast.expr], Any]) -> Starts:
    """What a file in Python starts; ``value`` is what an expression of it stands for."""
    calls = [*calls_in(tree)]
    shared = next((each for each in calls if (_devices_of(each, value) or 1) > 1), None)
    words = {} if shared is None else {DRIVES_ALL: ast.unparse(shared)[:60]}
    for call in calls:
        called = name_of(call.func)
        told = {each.arg: value(each.value) for each in call.keywords if each.arg}
        third = value(call.args[2]) if len(call.args) > 2 else None
        if called == SCALES:
            if told.get(NO_DEVICE, False) is False:
                words[NO_DEVICE] = ast.unparse(call)[:60]
            return Starts(is_any=True, processes=_count(told.get("num_workers", 1)), words=words)
        if called == LAUNCHES:
            each = _count(told.get("num_processes", third))
            nodes = _count(told.get("num_nodes", 1))
            return Starts(is_any=True, processes=each * nodes if each and nodes else None, words=words)
        if called == SPAWNS and ("nprocs" in told or third is not None):
            return Starts(is_any=True, processes=_count(told.get("nprocs", third)), words=words)
    return Starts(words=words)


def _count(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_whole else None


def _devices_of(call: ast.Call, value: Callable[[ast.expr], Any]) -> int | None:
    """The devices of a function of Modal's (``gpu="A100:8"``, ``gpu=modal.gpu.A100(count=8)``); None for others."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("function", "cls"):
        return None
    asked = next((each.value for each in call.keywords if each.arg == "gpu"), None)
    if isinstance(asked, ast.Call):
        return _count(next((value(each.value) for each in asked.keywords if each.arg == "count"), 1))
    named = None if asked is None else value(asked)
    match = _OF_MODAL.fullmatch(named) if isinstance(named, str) else None
    return int(match[1]) if match else None


def devices_of_function(call: ast.Call, known: ScriptNames) -> int | None:
    """The devices that Modal gives a function (``gpu="H100:8"``); 0 where only running tells, None for no function."""
    is_function = isinstance(call.func, ast.Attribute) and call.func.attr in ("function", "cls")
    asked = next((each.value for each in call.keywords if each.arg == "gpu"), None) if is_function else None
    if isinstance(asked, ast.Name):
        asked = known.of_name(asked) or asked
    if asked is None or (told := value_of(asked, known)) is None:
        return None
    if isinstance(told, str) and ":" not in told:
        return 1
    named = ast.Call(call.func, [], [ast.keyword("gpu", asked)])
    return _devices_of(named, lambda node: value_of(node, known)) or 0
