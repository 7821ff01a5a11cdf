"""The launcher of a job: the nodes and ranks that a launch command or a batch script asks for, and what it starts.

Words are those of :class:`~simpar.frameworks.shell.Script`: a value that only running would tell counts as not given.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from pathlib import PurePath

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, owner_of, slurm
from simpar.frameworks.bridge_launch import recipe_in
from simpar.frameworks.named import names_other, starts_python
from simpar.frameworks.overrides import files_of_script, mapping
from simpar.frameworks.reader import value_of
from simpar.frameworks.schedulers import hosts_of, ranks_of_jsrun
from simpar.frameworks.shell import Script
from simpar.frameworks.shell_calls import PRINTING
from simpar.frameworks.shell_devices import note_of_count
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shell_untold import how_to_give
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.unread import unread_command
from simpar.frameworks.words import ReadWords, matches
from simpar.hardware.instances import CORES_OF_CHIP
from simpar.preflight.launchers import (
    ALIASES,
    ALL_OF_NODE,
    ALONE,
    FILLED,
    FILLS,
    GENERAL,
    IDLE,
    INCLUDED,
    MODULES,
    NAMING,
    NODES,
    OF_A_NODE,
    OF_NODE,
    OF_NODES,
    OF_ONE,
    OF_ONE_NODE,
    OF_PROGRAM,
    OF_RAY,
    PER_NODE,
    RANKS,
    STARTS_ITSELF,
    TASKS,
    UNTOLD,
    Flags,
)
from simpar.preflight.visible import included_devices, left_out, listed_devices, visible_devices


@dataclass(frozen=True)
class LaunchCommand:
    """What a command starts: the reader of it, the config file it names, nodes, and ranks of each.

    ``target`` is None if no framework is recognised; numbers are None if they are not given. ``environment`` are the
    variables of the command, ``words`` its words. ``config_text`` is the text of the config file if that was found.
    ``is_single`` is a command that nothing starts more than once, as far as the text says. ``unread`` is the front end
    that it starts if that is known and not read. ``gaps`` map what the text takes from where it cannot be read to what
    that may do.
    """

    target: str | None
    config: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    ranks: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    config_text: str | None = None
    notes: tuple[str, ...] = ()
    is_single: bool = False
    unread: str | None = None
    gaps: Mapping[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int | None:
        """The total number of ranks, None if the command does not give it."""
        if self.nodes and self.per_node:
            return self.nodes * self.per_node
        return self.ranks


def launch_of(text: str, source: str) -> LaunchCommand:
    """What a command or a shell script starts. Raises UserError if it is not shell text."""
    script = script_of(text, source)
    _refuse_broken_lines(script, text)
    target, config, started = None, None, list[str]()
    environment = {name: " ".join(words) for name, words in script.variables.items()}
    pairs = zip(script.commands, script.environments, strict=True)
    for words, given in sorted(pairs, key=lambda pair: _prints(pair[0])):  # what is printed is the last to ask
        if unread := unread_command(words):
            return LaunchCommand(None, words=tuple(words), notes=tuple(script.notes), unread=unread)
        before = [f"{name}={given[name]}" for name in NAMING if given.get(name)]
        told_target = _started([*before, *words] if _wrapper(words) else words)
        if told_target is None or told_target[0] in GENERAL:
            told_target = _named(words, script) or told_target
        if told_target is not None:
            trains = load_reader(told_target[0]).trains(words)
            if trains or target is None:
                (target, config), started, environment = told_target, words, given
            if trains:
                break
    told = [each for words in ([started] if started else script.commands) for each in _launchers(words)]
    told += [("sbatch", words) for words in _asked(script, told)]
    notes = [*script.notes, *filter(None, [note_of_count()]), *_others(script, target, started)]
    nodes, per_node, ranks = _sizes(told, environment, started, target, notes)
    if (hosts := _hosts(told, script)) is not None:
        nodes, per_node = nodes or hosts[0], per_node or hosts[1]
    of_ray = {key: slurm.count_of(value_of(started, names)) for key, names in OF_RAY.items()}
    if any(of_ray.values()):
        nodes, per_node, ranks = of_ray["nodes"], of_ray["each"], None
    if wrapper := _wrapper(started):
        nodes, per_node = nodes or 1, per_node or OF_ONE_NODE[wrapper]
    if per_node is not None and ranks is None and _is_untold(told):
        notes.append(
            "srun starts one task of a node unless --ntasks-per-node says more: taken as one for every device."
        )
    is_single = not told and target is not None and starts_python(started) and not load_reader(target).devices.spawns
    if is_single and (of_all := environment.get("WORLD_SIZE")):
        ranks, is_single = ranks or _of_environment(environment, ("WORLD_SIZE",)), False
        notes.append(f"WORLD_SIZE={of_all}: python is started as one of {of_all} ranks.")
    text_of = None if config is None else script.text_of_file(config)
    config, config_text = (config, None) if text_of is None else text_of
    started = started or next((words for words in script.commands if _is_start(words)), [])
    return LaunchCommand(
        target, config, nodes, per_node, ranks, environment, tuple(started), config_text, tuple(dict.fromkeys(notes)),
        is_single, gaps={**script.gaps, **({} if _any(environment, OF_NODES) else _gaps(told, nodes))},
    )  # fmt: skip


def untold_size(launch: LaunchCommand, source: str) -> str:
    """How to give the nodes and ranks that launchers take from variables nobody has set; "" where they take none."""
    asked = {
        flag: value
        for launcher, words in _launchers(launch.words)
        for flag in (flag for flags in (NODES, RANKS, PER_NODE) for flag in flags.get(launcher, ()))
        if (value := value_of(words, (flag,))) and UNKNOWN.search(value)
    }
    if not asked:
        return ""
    told = ", ".join(f"{flag} is {value}" for flag, value in asked.items())
    return f"; {told}: allowed: {how_to_give(' '.join(asked.values()), launch.environment, source)}"


_BROKEN = re.compile(r"\\[ \t]*\n(?:[ \t]*#[^\n]*\n)+[ \t]*(?=--?[A-Za-z])|\\[ \t]+\n[ \t]*(?=--?[A-Za-z])")
"""A line that goes on, to a comment or to nothing: the command ends there."""


def _refuse_broken_lines(script: Script, text: str) -> None:
    """Refuse a command that ends where the next line begins with a flag. Raises UserError naming that line."""
    if not any(words and re.match(r"--?[A-Za-z]", words[0]) for words in script.commands[1:]):
        return
    if match := _BROKEN.search(text):
        line = text.count("\n", 0, match.end()) + 1
        what = "a comment behind \\" if "#" in match[0] else "a blank behind \\"
        raise UserError(
            f"{script.source}:{line}: {what} ends the command, and what follows is none of its words; allowed: lines "
            "that go on, one after another"
        )


def _others(script: Script, target: str | None, started: Sequence[str]) -> Iterator[str]:
    """A note where a script starts several trainings of a framework that differ: the first one is read."""
    if target is None:
        return
    reader = load_reader(target)
    own = (words for words in script.commands if not _prints(words) and reader.starts(words) and reader.trains(words))
    count = len({tuple(words) for words in own} | {tuple(started)})
    if count > 1:
        yield f"{count} commands of {target} that differ are started: the first is read (simpar check -- COMMAND)."


def _asked(script: Script, told: Sequence[tuple[str, list[str]]]) -> list[list[str]]:
    """What a script asks of its batch system, for the part of the job that a step is started on. Raises UserError."""
    step = next((words for launcher, words in told if launcher == "srun"), [])
    part = slurm.part_named(step, script.source)
    if part > len(script.further_parts):
        raise UserError(
            f"{script.source}: {slurm.PARTS[0]} = {part}: the job has {1 + len(script.further_parts)} "
            f"parts; allowed: 0 to {len(script.further_parts)}"
        )
    return [script.further_parts[part - 1]] if part else script.directives


def _is_start(words: Sequence[str]) -> bool:
    """Whether a command that no reader knows starts a script by Python or a launcher."""
    return not _prints(words) and any(word.endswith(".py") for word in words)


def _prints(words: Sequence[str]) -> bool:
    return bool(words) and PurePath(words[0]).name in PRINTING


def _sizes(
    told: Sequence[tuple[str, list[str]]],
    environment: Mapping[str, str],
    words: Sequence[str],
    target: str | None,
    notes: list[str],
) -> tuple[int | None, int | None, int | None]:
    """Nodes, ranks of each, and ranks in all, as launchers and variables tell them; what is assumed is noted."""
    if tuple(map(_name, words[:2])) == FILLS:
        return _of_filled(told, environment, words)
    of_ranks, is_of_node = [PER_NODE, RANKS], any(launcher in OF_A_NODE for launcher, _ in told)
    if is_of_node:
        of_ranks = [
            {name: flags if name in OF_A_NODE else _but(flags, TASKS) for name, flags in known.items()}
            for known in of_ranks
        ]
    nodes, per_node, ranks = (_first(told, flags) for flags in (NODES, *of_ranks))
    nodes = nodes or _of_environment(environment, OF_NODES)
    batch = [word for launcher, words in told if launcher in ("srun", "sbatch") for word in words]
    nodes = nodes or slurm.nodes_of(batch)
    included = next((value for launcher, words in told if launcher == "deepspeed"
                     if (value := value_of(words, INCLUDED))), None)  # fmt: skip
    if included is not None:
        of_included, devices = included_devices(included)
        if _first(told, {"deepspeed": PER_NODE["deepspeed"]}) is None:
            nodes, per_node = of_included, devices
        nodes = nodes or of_included
    nodes = nodes or (1 if left_out(words, of_here=True) else None)
    if (sets := next((words for launcher, words in told if launcher == "jsrun"), None)) is not None:
        ranks = ranks or ranks_of_jsrun(sets)
    if per_node is None and (ranks is None or is_of_node):
        per_node = _of_mapping(told) or listed_devices(told) or slurm.devices_of_node(batch, nodes)
    if (slices := next((words for launcher, words in told if launcher == "xpk"), None)) is not None:
        ranks = ranks or _chips(slices)
    torchrun = next((words for launcher, words in told if launcher == "torchrun"), None)
    if torchrun is not None:
        own = value_of(torchrun, PER_NODE["torchrun"])
        variable = _of_environment(environment, ("PET_NPROC_PER_NODE",))
        if own is None:
            ranks, per_node = None, variable or 1
            if variable is None:
                notes.append("torchrun starts one process of a node, because --nproc-per-node is not given.")
        elif UNKNOWN.search(own):
            per_node = per_node or visible_devices(environment, words)
            which = "that variables show" if per_node else "of a node"
            notes.append(f"--nproc-per-node {own}: only running would tell; taken as all devices {which}.")
        elif own in ALL_OF_NODE:
            per_node = per_node or visible_devices(environment, words)
    elif per_node is None and ranks is None:
        per_node = _of_environment(environment, OF_NODE) or visible_devices(environment, words)
    if target in OF_ONE and not told and per_node is None and ranks is None:
        per_node = 1
    if _any(environment, OF_NODES):
        return nodes, per_node, ranks
    alone = "" if _spreads(told) else _alone(told)
    if alone and (nodes or 1) > 1:
        notes.append(f"{alone} starts one node: no number of them is given to it, and nothing starts it on {nodes}.")
    if alone in UNTOLD:
        notes.append(UNTOLD[alone])
    if not told and per_node is None and (of_all := next(filter(None, map(OF_PROGRAM.get, map(_name, words))), None)):
        nodes = 1
        notes.append(of_all)
    if alone or (nodes is None and ranks is None and _starts_alone(told, target, per_node)):
        nodes, ranks = 1, None if alone else ranks
    return nodes, per_node, ranks


def _of_filled(
    told: Sequence[tuple[str, list[str]]], environment: Mapping[str, str], words: Sequence[str]
) -> tuple[int, int | None, None]:
    """As :func:`_sizes`, where a program tells its launcher what the batch system or the machine has."""
    batch = [word for launcher, inner in told if launcher in ("srun", "sbatch") for word in inner]
    nodes = _of_environment(environment, FILLED[:1]) or slurm.nodes_of(batch) or 1
    per_node = _of_environment(environment, FILLED[1:]) or slurm.devices_of_node(batch, nodes)
    return nodes, per_node or visible_devices(environment, words), None


def _spreads(told: Iterable[tuple[str, list[str]]]) -> bool:
    """Whether a launcher starts others on several nodes."""
    return any(launcher in ("srun", "mpirun", "jsrun", "aprun", "flux") for launcher, _ in told)


def _gaps(told: Sequence[tuple[str, list[str]]], nodes: int | None) -> dict[str, str]:
    """The number of nodes, where one launcher has it and the one that it starts has not."""
    if not (alone := _alone(told) if _spreads(told) and (nodes or 1) > 1 else ""):
        return {}
    return {ALONE[alone][0]: f"{alone} is not told it: on each of {nodes} nodes it starts a job of its own"}


def _of_mapping(told: Iterable[tuple[str, list[str]]]) -> int | None:
    """Ranks of a node that Open MPI maps there: ``--map-by ppr:8:node``."""
    values = (value_of(words, ("--map-by", "-map-by")) or "" for launcher, words in told if launcher == "mpirun")
    return next((int(match[1]) for value in values if (match := re.search(r"ppr:(\d+):node", value))), None)


def _hosts(told: Iterable[tuple[str, list[str]]], script: Script) -> tuple[int, int | None] | None:
    """Nodes and slots of each of a launcher's hosts, listed or in a file that is here; None if it tells none."""
    for launcher, words in told:
        if launcher not in ("deepspeed", "mpirun") or any(value_of(words, (flag,)) for flag in RANKS.get(launcher, ())):
            continue
        file = value_of(words, ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f"))
        listed = value_of(words, ("-H", "--host", "-host", "-hosts"))
        text = None if file is None or UNKNOWN.search(file) else script.text_of_file(file)
        if text is not None:
            return hosts_of(text[1])
        if listed and not UNKNOWN.search(listed):
            return hosts_of("\n".join(listed.split(",")))
    return None


def _chips(words: Sequence[str]) -> int | None:
    """The TPU chips that xpk asks for: ``--device-type=v6e-256`` or ``tpu7x-4x4x4``, of every slice.

    Names of some kinds count cores (:data:`CORES_OF_CHIP`).
    """
    named = value_of(words, ("--device-type", "--tpu-type", "--device_type", "--tpu_type")) or ""
    slices = value_of(words, ("--num-slices", "--num_slices")) or "1"
    match = re.fullmatch(r"([\w]+)-(\d+(?:x\d+){0,2})", named)
    if match is None or not slices.isdigit():
        return None
    chips = prod(map(int, match[2].split("x")))
    cores = 1 if "x" in match[2] else CORES_OF_CHIP.get(files.meant_by(match[1], "clusters") or "", 1)
    return chips * int(slices) // cores


def _is_untold(told: Sequence[tuple[str, list[str]]]) -> bool:
    """Whether srun starts ranks itself, and nothing says how many."""
    names = [launcher for launcher, _ in told]
    count = (*slurm.TASKS, *slurm.TASKS_OF_NODE, "--ntasks-per-gpu")
    is_told = any(value_of(words, count) for launcher, words in told if launcher in ("srun", "sbatch"))
    return "srun" in names and not is_told and not set(names) & {*OF_A_NODE, "mpirun"}


def without_launchers(words: ReadWords) -> tuple[ReadWords, tuple[str, ...]]:
    """The words of a command without its launchers' flags that only start it, and the names of these.

    Flags for nodes and ranks, which this module reads, count as used.
    """
    known = {flag.replace("_", "-") for flags in (NODES, PER_NODE, RANKS) for each in flags.values() for flag in each}
    spelt = {word: word.replace("_", "-") for word in words.unread}
    used = tuple(word for word in spelt if spelt[word] in known)
    idle = tuple(word for word in spelt if any(matches(spelt[word], each) for each in IDLE))
    left = {word: value for word, value in words.unread.items() if word not in (*used, *idle)}
    return ReadWords((*words.used, *used), left), idle


def _wrapper(words: Sequence[str]) -> str | None:
    """The script of :data:`OF_ONE_NODE` that a command starts."""
    return next((name for word in words if (name := PurePath(word).name) in OF_ONE_NODE), None)


def _started(words: Sequence[str]) -> tuple[str, str | None] | None:
    """The reader and config file of one command; None if it starts no known framework."""
    for name in READERS:
        reader = load_reader(name)
        if reader.starts(words):
            return name, reader.config(words)
    return None


def _named(words: Sequence[str], script: Script) -> tuple[str, str | None] | None:
    """The reader of the file of arguments that a command gives to its script, or of the recipe that this trains.

    None if that is none's, or not here.
    """
    for file in files_of_script(words):
        text = None if UNKNOWN.search(file) else script.text_of_file(file)
        owner = None if text is None else owner_of(mapping(text[1], text[0]))
        if owner is not None and load_reader(owner).takes_files:
            return owner, load_reader(owner).config(words)
    script_name = next((word for word in words if word.endswith(".py") and not UNKNOWN.search(word)), None)
    text = None if script_name is None else script.text_of_file(script_name)
    recipe = None if text is None else recipe_in(text[1])
    return None if recipe is None else ("megatron-bridge", recipe)


def _of_environment(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first number among variables."""
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdigit() and int(value)), None)


def _any(environment: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether a variable is given, even if its value is not known."""
    return any(environment.get(name) for name in names)


def _launchers(words: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
    """Launchers of a command, each with its own flags: everything up to the next launcher or the script."""
    result: list[tuple[str, list[str]]] = []
    for at, word in enumerate(words):
        name = PurePath(word).name
        launcher = MODULES.get(word) or ALIASES.get(name, name)
        starts = launcher != "fabric" or "run" in words[at + 1 : at + 2]  # others are environments and packages
        is_other = names_other(words, at) and words[at - 1] not in ("-m", "--module")  # the module is the launcher
        if starts and launcher in (*NODES, *PER_NODE, *RANKS) and not is_other:
            result.append((launcher, []))
        elif word.endswith(".py") and launcher not in RANKS:
            break
        elif result:
            result[-1][1].extend(slurm.plain_flags([word]))
    return result


def _alone(told: Sequence[tuple[str, list[str]]]) -> str:
    """The launcher that starts a single node because nothing else is asked of it; "" if none does."""
    asked = ((launcher, ALONE[launcher], words) for launcher, words in told if launcher in ALONE)
    return next((launcher for launcher, flags, words in asked if value_of(words, flags) is None), "")


def _starts_alone(told: Sequence[tuple[str, list[str]]], target: str | None, per_node: int | None) -> bool:
    """Whether a single node is started: nothing else is asked of a launcher, or of a front end that is one."""
    return (target in OF_ONE and not told) or (per_node is not None and target in STARTS_ITSELF)


def _name(word: str) -> str:
    return PurePath(word).name


def _but(flags: Iterable[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if flag not in others)


def _first(told: Iterable[tuple[str, list[str]]], flags: Flags) -> int | None:
    """The first number that a launcher gets by one of its flags."""
    values = (value_of(words, (flag,)) for launcher, words in told for flag in flags.get(launcher, ()))
    return next((count for value in values if (count := slurm.count_of(value))), None)
