"""The sizes of a job: nodes, ranks of each and ranks in all, as launchers, batch systems and variables tell them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import PurePath

from simpar import files
from simpar.errors import UserError
from simpar.frameworks import load_reader, slurm
from simpar.frameworks.named import starts_python
from simpar.frameworks.reader import USE_RAY, value_of
from simpar.frameworks.schedulers import hosts_of, ranks_of_jsrun
from simpar.frameworks.shell import Script
from simpar.frameworks.shell_calls import HOSTFILES
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.words import is_off
from simpar.hardware.instances import CORES_OF_CHIP
from simpar.preflight.launchers import (
    ALL_OF_NODE,
    ALONE,
    FILLED,
    FILLS,
    INCLUDED,
    NODES,
    OF_A_NODE,
    OF_NODE,
    OF_NODES,
    OF_ONE,
    OF_PROGRAM,
    PER_NODE,
    RANKS,
    STARTS_ITSELF,
    TASKS,
    UNTOLD,
    Flags,
)
from simpar.preflight.visible import (
    VISIBLE,
    included_devices,
    left_out,
    listed_devices,
    remaining_hosts,
    slice_lister,
    unread_list,
    visible_devices,
)

Told = Sequence[tuple[str, list[str]]]
"""Launchers of a command from the outside in, each with its own words."""
Sizes = tuple[int | None, int | None, int | None]
"""Nodes, ranks of each, and ranks in all; None for what is not told."""
_OF_BATCH = ("srun", "sbatch")
_HOSTS = ("-H", "--host", "-host", "-hosts")


SLICE = "a slice or a share of a device, whose memory and processors its name does not say"


def sizes_of(
    told: Told, environment: Mapping[str, str], words: Sequence[str], target: str | None, notes: list[str]
) -> Sizes:
    """Nodes, ranks of each, and ranks in all; what is assumed is noted. Raises UserError for ranks without devices."""
    if tuple(map(_name, words[:2])) == FILLS:
        return _of_filled(told, environment, words)
    is_of_tasks = target not in (None, *OF_ONE, *STARTS_ITSELF) and not load_reader(str(target)).devices.spawns
    nodes, per_node, ranks = _by_flags(told, words, is_of_tasks=is_of_tasks)
    nodes = nodes or first_count(environment, OF_NODES) or slurm.nodes_of(_batch(told))
    if per_node is None and (ranks is None or _of_a_node(told)):
        per_node = listed_devices(told) or slurm.devices_of_node(_batch(told), nodes)
    torchrun = next((words for launcher, words in told if launcher == "torchrun"), None)
    if torchrun is not None:
        per_node, ranks = _of_torchrun(torchrun, environment, words, per_node, ranks, notes)
    elif per_node is None and ranks is None:
        seen = visible_devices(environment, words)
        is_one = not told and (target in OF_ONE or (is_of_tasks and starts_python(words)))
        asked = first_count(environment, OF_NODE)
        if asked and seen and asked > seen:
            raise _too_few(OF_NODE[0] if OF_NODE[0] in environment else OF_NODE[1], asked, seen)
        per_node = asked or (1 if is_one and seen else seen)
    elif _takes_visible(told):
        per_node = _at_most(per_node, visible_devices(environment, words))
    if target in OF_ONE and not told and per_node is None and ranks is None:
        per_node = 1
    _check_visible(told, environment, words, per_node)
    if is_any_given(environment, OF_NODES):
        return nodes, per_node, ranks
    alone = "" if _spreads(told) else _alone(told)
    if alone and (nodes or 1) > 1:
        notes.append(f"{alone} starts one node: no number of them is given to it, and nothing starts it on {nodes}.")
    if alone in UNTOLD:
        notes.append(UNTOLD[alone])
    of_all = next(filter(None, map(OF_PROGRAM.get, map(_name, words))), None)
    if not told and per_node is None and of_all and is_off(environment.get(USE_RAY)):
        nodes = 1
        notes.append(of_all)
    if alone or (nodes is None and ranks is None and _starts_alone(told, target, per_node)):
        nodes, ranks = 1, None if alone else ranks
    return nodes, per_node, ranks


def without_batch(told: Told, environment: Mapping[str, str]) -> tuple[Told, dict[str, str]]:
    """Launchers and variables of a process that a batch script starts by itself: it sees the devices of the node.

    Batch systems list these in a variable, whatever number of tasks they are asked for.
    """
    devices = slurm.first_told(_batch(told), slurm.DEVICES_OF_NODE) or slurm.devices_of_node(_batch(told), None)
    shown = {VISIBLE[0]: ",".join(map(str, range(devices)))} if devices else {}
    return [], {**shown, **environment}


def _of_a_node(told: Told) -> Told:
    """The launchers that start the ranks of a node, so that tasks of those around them are no ranks."""
    return [each for each in told if each[0] in OF_A_NODE]


def _by_flags(told: Told, words: Sequence[str], *, is_of_tasks: bool) -> Sizes:
    """As :func:`sizes_of`, by flags alone: what starts the ranks of a node goes before what starts it.

    ``is_of_tasks``: what is started has one rank, unless a launcher starts more of it.
    """
    own = _of_a_node(told)
    per_node, own_ranks = (_first(own, flags) for flags in (PER_NODE, RANKS))
    around: list[Flags] = [PER_NODE, RANKS]
    if own:
        around = [{name: _but(flags, TASKS) for name, flags in known.items()} for known in around]
    outer = [each for each in told if each[0] not in OF_A_NODE]
    ranks = own_ranks or _first(outer, around[1])
    if per_node is None and own_ranks is None and (own or not (is_of_tasks and _tasks(told))):
        per_node = (_tasks_of_node(told) if is_of_tasks and not own else None) or _first(outer, around[0])
    nodes = _first(told, NODES)
    included = next((value for launcher, inner in own if launcher == "deepspeed"
                     if (value := value_of(inner, INCLUDED))), None)  # fmt: skip
    if included is not None:
        of_included, devices = included_devices(included)
        if _first(told, {"deepspeed": PER_NODE["deepspeed"]}) is None:
            nodes, per_node = of_included, devices
        nodes = nodes or of_included
    nodes = nodes or (1 if left_out(words, of_here=True) else None)
    if (sets := next((words for launcher, words in told if launcher == "jsrun"), None)) is not None:
        ranks = ranks or ranks_of_jsrun(sets)
    if (slices := next((words for launcher, words in told if launcher == "xpk"), None)) is not None:
        ranks = ranks or _chips(slices)
    return nodes, per_node, ranks


def _tasks(told: Told) -> int | None:
    """The ranks in all where srun's tasks are ranks, and nothing says how many of them a node has."""
    names = [launcher for launcher, _ in told]
    batch = _batch(told)
    if "srun" not in names or value_of(batch, slurm.TASKS_OF_NODE):
        return None
    return slurm.count_of(value_of(batch, slurm.TASKS))


def _tasks_of_node(told: Told) -> int | None:
    """The ranks of a node where tasks are ranks: those of MPI's mapping, or of Slurm, whatever devices it gives."""
    of_slurm = slurm.count_of(value_of(_batch(told), slurm.TASKS_OF_NODE))
    return _of_mapping(told) or (of_slurm if any(launcher == "srun" for launcher, _ in told) else None)


def _of_torchrun(
    torchrun: Sequence[str], environment: Mapping[str, str], words: Sequence[str], per_node: int | None,
    ranks: int | None, notes: list[str],
) -> tuple[int | None, int | None]:  # fmt: skip
    """Ranks of a node, and ranks in all, of torchrun. Raises UserError where it starts none on devices."""
    own = value_of(torchrun, PER_NODE["torchrun"])
    if own is None:
        variable = first_count(environment, ("PET_NPROC_PER_NODE",))
        if variable is None:
            notes.append("torchrun starts one process of a node, because --nproc-per-node is not given.")
        return variable or 1, None
    if UNKNOWN.search(own):
        per_node = _at_most(per_node, visible_devices(environment, words))
        which = "that variables show" if per_node else "of a node"
        notes.append(f"--nproc-per-node {own}: only running would tell; taken as all devices {which}.")
    elif own in ALL_OF_NODE:
        per_node = _at_most(per_node, visible_devices(environment, words))
    elif slurm.count_of(own) is None:
        raise UserError(f"--nproc-per-node {own}: allowed: a number from 1, or {', '.join(ALL_OF_NODE)}")
    return per_node, ranks


def _takes_visible(told: Told) -> bool:
    """Whether a launcher takes the devices that it sees, as it is told no number of its own."""
    own = _of_a_node(told)
    if not own or any(_first(own, flags) for flags in (PER_NODE, RANKS)):
        return False
    return not any(value_of(words, (*INCLUDED, "--exclude")) for _, words in own)


def _at_most(count: int | None, seen: int | None) -> int | None:
    """The devices of a node that are both given and seen."""
    return min(count, seen) if count and seen else count or seen


def _check_visible(told: Told, environment: Mapping[str, str], words: Sequence[str], per_node: int | None) -> None:
    """Refuse more ranks of a node than devices that it shows to the launcher. Raises UserError.

    DeepSpeed shows its ranks other devices than its own variable where it is told a number.
    """
    starts, own = next(iter(_of_a_node(told)), ("", []))
    may_be_several = value_of(own, (*NODES.get(starts, ()), "--config_file", "--config-file", "--accelerate_config"))
    if per_node is None and may_be_several is None:
        per_node = _first([(starts, own)], RANKS)
    if starts in ("", "deepspeed") or per_node is None:
        return
    seen = visible_devices(environment, words)
    if seen is not None and seen < per_node:
        raise _too_few(starts, per_node, seen)


def _too_few(starts: str, ranks: int, seen: int) -> UserError:
    return UserError(
        f"{starts} starts {ranks} ranks of a node, of which variables or its container show {seen} devices; "
        f"allowed: at most {seen} ranks, or more devices"
    )


def _of_filled(told: Told, environment: Mapping[str, str], words: Sequence[str]) -> Sizes:
    """As :func:`sizes_of`, where a program tells its launcher what the batch system or the machine has."""
    batch = _batch(told)
    nodes = first_count(environment, FILLED[:1]) or slurm.nodes_of(batch) or 1
    per_node = first_count(environment, FILLED[1:]) or slurm.devices_of_node(batch, nodes)
    return nodes, per_node or visible_devices(environment, words), None


def _batch(told: Told) -> list[str]:
    """What Slurm is asked for."""
    return [word for launcher, inner in told if launcher in _OF_BATCH for word in inner]


def _spreads(told: Told) -> bool:
    """Whether a launcher starts others on several nodes."""
    return any(launcher in ("srun", "mpirun", "jsrun", "aprun", "flux") for launcher, _ in told)


def gaps_of_sizes(told: Told, nodes: int | None) -> dict[str, str]:
    """The number of nodes, where one launcher has it and the one that it starts has not."""
    if not (alone := _alone(told) if _spreads(told) and (nodes or 1) > 1 else ""):
        return {}
    return {ALONE[alone][0]: f"{alone} is not told it: on each of {nodes} nodes it starts a job of its own"}


def gaps_of_devices(
    told: Told, environment: Mapping[str, str], words: Sequence[str], target: str | None
) -> dict[str, str]:
    """What leaves the devices of a node open, or gives it fewer than ranks."""
    own = _of_a_node(told)
    ranks, asked = _first(own, PER_NODE), slurm.first_told(_batch(told), slurm.DEVICES_OF_NODE)
    gaps = slices_told(told, words)
    if ranks and asked and asked < ranks:
        gaps["--nproc-per-node"] = f"{ranks} ranks of a node, for which the batch system is asked for {asked} devices"
    is_alone = {launcher for launcher, _ in told} <= {"sbatch"}
    is_one = is_alone and target in OF_ONE and first_count(environment, OF_NODE) is None
    if is_one and (visible_devices(environment, words) or 1) > 1:
        gaps[OF_NODE[0]] = "it is not given: one process drives all devices that it sees, answered for one"
    if (name := unread_list(environment, words)) and not (ranks or _first(own, RANKS)):
        gaps[name] = "only running would tell which devices of a node are used: taken as all"
    return gaps


def slices_told(told: Told, words: Sequence[str]) -> dict[str, str]:
    """What asks for slices or shares of devices: of Slurm, or of what starts a container."""
    flags = [*slurm.slices_of(_batch(told)), *filter(None, [slice_lister({}, words)])]
    return dict.fromkeys(flags, SLICE)


def _of_mapping(told: Told) -> int | None:
    """Ranks of a node that Open MPI maps there: ``--map-by ppr:8:node``."""
    values = (value_of(words, ("--map-by", "-map-by")) or "" for launcher, words in told if launcher == "mpirun")
    return next((int(match[1]) for value in values if (match := re.search(r"ppr:(\d+):node", value))), None)


def with_hosts(sizes: Sizes, told: Told, script: Script) -> Sizes:
    """The sizes with what the hosts of a launcher tell, listed or in a file that is here.

    Ranks fill the slots of a host before those of the next. Raises UserError for hosts with unlike numbers of them.
    """
    nodes, per_node, ranks = sizes
    for launcher, words in told:
        if launcher not in ("deepspeed", "mpirun") or (hosts := _hosts(words, script)) is None:
            continue
        if launcher == "deepspeed":
            hosts = remaining_hosts(hosts, words, script.source)
        slots = _slots_of(hosts, script.source) if per_node is None else None
        if launcher == "mpirun" and _first([(launcher, words)], RANKS):
            if slots and ranks:
                per_node = min(slots, ranks)
                nodes = _filled_hosts(ranks, slots, script.source)
            return nodes, per_node, ranks
        return nodes or len(hosts), per_node or slots, ranks
    return sizes


def _hosts(words: Sequence[str], script: Script) -> dict[str, int | None] | None:
    """The slots of every host that a launcher is given, None where nothing says; None if it is given none."""
    file, listed = value_of(words, HOSTFILES), value_of(words, _HOSTS)
    text = None if file is None or UNKNOWN.search(file) else script.text_of_file(file)
    if text is not None and UNKNOWN.search(text[1]):  # written by the script, for hosts that only running would tell
        return None
    if text is not None:
        return hosts_of(text[1], text[0]) or None
    if listed and not UNKNOWN.search(listed):
        return hosts_of("\n".join(listed.split(",")), "--host")
    return None


def _slots_of(hosts: Mapping[str, int | None], source: str) -> int | None:
    """The slots that all hosts have. Raises UserError if they have unlike numbers of them."""
    slots = {*hosts.values()}
    if len(slots) > 1:
        told = ", ".join(f"{host} {count or 'none'}" for host, count in [*hosts.items()][:4])
        raise UserError(f"{source}: hosts with unlike numbers of slots ({told}); allowed: equal nodes")
    return next(iter(slots), None)


def _filled_hosts(ranks: int, slots: int, source: str) -> int:
    """The hosts that ranks fill. Raises UserError if the last one is not full."""
    if ranks > slots and ranks % slots:
        raise UserError(
            f"{source}: {ranks} ranks leave the last host of {slots} slots with {ranks % slots}; allowed: multiples "
            f"of {slots}, or equal nodes"
        )
    return max(1, ranks // slots)


def _chips(words: Sequence[str]) -> int | None:
    """The TPU chips that xpk asks for: ``--device-type=v6e-256`` or ``tpu7x-4x4x4``, of every slice.

    Names of some kinds count cores (:data:`CORES_OF_CHIP`).
    """
    named = value_of(words, ("--device-type", "--tpu-type", "--device_type", "--tpu_type")) or ""
    slices = value_of(words, ("--num-slices", "--num_slices")) or "1"
    match = re.fullmatch(r"([\w]+)-(\d+(?:x\d+){0,2})", named)
    if match is None or not slices.isdecimal():
        return None
    chips = prod(map(int, match[2].split("x")))
    cores = 1 if "x" in match[2] else CORES_OF_CHIP.get(files.meant_by(match[1], "clusters") or "", 1)
    return chips * int(slices) // cores


def is_untold(told: Told) -> bool:
    """Whether srun starts ranks itself, and nothing says how many."""
    names = [launcher for launcher, _ in told]
    count = (*slurm.TASKS, *slurm.TASKS_OF_NODE, "--ntasks-per-gpu")
    is_told = any(value_of(words, count) for launcher, words in told if launcher in _OF_BATCH)
    return "srun" in names and not is_told and not set(names) & {*OF_A_NODE, "mpirun"}


def first_count(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first number among variables."""
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and int(value)), None)


def is_any_given(environment: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether a variable is given, even if its value is not known."""
    return any(environment.get(name) for name in names)


def _alone(told: Told) -> str:
    """The launcher that starts a single node because nothing else is asked of it; "" if none does."""
    asked = ((launcher, ALONE[launcher], words) for launcher, words in told if launcher in ALONE)
    return next((launcher for launcher, flags, words in asked if value_of(words, flags) is None), "")


def _starts_alone(told: Told, target: str | None, per_node: int | None) -> bool:
    """Whether a single node is started: nothing else is asked of a launcher, or of a front end that is one."""
    return (target in OF_ONE and not told) or (per_node is not None and target in STARTS_ITSELF)


def _name(word: str) -> str:
    return PurePath(word).name


def _but(flags: Iterable[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if flag not in others)


def _first(told: Iterable[tuple[str, list[str]]], flags: Flags) -> int | None:
    """The first number that a launcher gets by one of its flags."""
    values = (slurm.count_told(words, flag) for launcher, words in told for flag in flags.get(launcher, ()))
    return next(filter(None, values), None)
