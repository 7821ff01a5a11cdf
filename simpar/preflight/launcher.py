"""The launcher of a job: the nodes and ranks that a launch command or a batch script asks for, and what it starts.

Words are those of :class:`~simpar.frameworks.shell.Script`: a value that only running would tell counts as not given.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePath

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, owner_of, slurm
from simpar.frameworks.bridge_launch import recipe_in
from simpar.frameworks.named import names_other, starts_python
from simpar.frameworks.overrides import files_of_script, mapping
from simpar.frameworks.reader import value_of
from simpar.frameworks.script_code import has_trainer
from simpar.frameworks.shell import Script
from simpar.frameworks.shell_calls import PRINTING
from simpar.frameworks.shell_devices import note_of_count
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shell_untold import how_to_give
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.unread import unread_command
from simpar.frameworks.words import ReadWords, TableNames
from simpar.preflight.launchers import (
    ALIASES,
    GENERAL,
    IDLE,
    MODULES,
    NAMING,
    NODES,
    OF_NODES,
    OF_ONE,
    OF_ONE_NODE,
    OF_RAY,
    PER_NODE,
    RANKS,
)
from simpar.preflight.sizes import (
    Told,
    first_count,
    gaps_of_devices,
    gaps_of_sizes,
    is_any_given,
    is_untold,
    sizes_of,
    with_hosts,
    without_batch,
)


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
    asked: Told = told
    is_started_alone = {launcher for launcher, _ in told} <= {"sbatch"}
    is_single = is_started_alone and _is_process(started, target)
    if is_single or (is_started_alone and target in OF_ONE):
        asked, environment = without_batch(told, environment)
    nodes, per_node, ranks = sizes_of(asked, environment, started, target, notes)
    nodes, per_node, ranks = with_hosts((nodes, per_node, ranks), asked, script)
    of_ray = {key: slurm.count_of(value_of(started, names)) for key, names in OF_RAY.items()}
    if any(of_ray.values()):
        nodes, per_node, ranks = of_ray["nodes"], of_ray["each"], None
    if wrapper := _wrapper(started):
        nodes, per_node = nodes or 1, per_node or OF_ONE_NODE[wrapper]
    if per_node is not None and ranks is None and is_untold(asked):
        notes.append(
            "srun starts one task of a node unless --ntasks-per-node says more: taken as one for every device."
        )
    if is_single and (of_all := environment.get("WORLD_SIZE")):
        ranks, is_single = ranks or first_count(environment, ("WORLD_SIZE",)), False
        notes.append(f"WORLD_SIZE={of_all}: python is started as one of {of_all} ranks.")
    text_of = None if config is None else script.text_of_file(config)
    config, config_text = (config, None) if text_of is None else text_of
    started = started or next((words for words in script.commands if _is_start(words)), [])
    return LaunchCommand(
        target, config, nodes, per_node, ranks, environment, tuple(started), config_text, tuple(dict.fromkeys(notes)),
        is_single,
        gaps={**script.gaps, **gaps_of_devices(told, environment, started, target),
              **({} if is_any_given(environment, OF_NODES) else gaps_of_sizes(asked, nodes))},
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


_IDLE = TableNames.of(IDLE)
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


def _is_process(words: Sequence[str], target: str | None) -> bool:
    """Whether a command is one process of Python that starts no others."""
    return target is not None and starts_python(words) and not load_reader(target).devices.spawns


def _is_start(words: Sequence[str]) -> bool:
    """Whether a command that no reader knows starts a script by Python or a launcher."""
    return not _prints(words) and any(word.endswith(".py") for word in words)


def _prints(words: Sequence[str]) -> bool:
    return bool(words) and PurePath(words[0]).name in PRINTING


def without_launchers(words: ReadWords) -> tuple[ReadWords, tuple[str, ...]]:
    """The words of a command without its launchers' flags that only start it, and the names of these.

    Flags for nodes and ranks, which this module reads, count as used.
    """
    known = {flag.replace("_", "-") for flags in (NODES, PER_NODE, RANKS) for each in flags.values() for flag in each}
    spelt = {word: word.replace("_", "-") for word in words.unread}
    known |= {*slurm.DEVICES_OF_TASK, *slurm.DEVICES_OF_SOCKET, *slurm.RESOURCES, *slurm.DEVICES}
    used = tuple(word for word in spelt if spelt[word] in known)
    idle = tuple(word for word in spelt if _IDLE.first(spelt[word]) is not None)
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
    """The reader of the file of arguments that a command gives to its script, or of what that has in its code.

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
    if recipe is not None:
        return "megatron-bridge", recipe
    return ("script", None) if text is not None and has_trainer(text[1]) else None


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


def is_launch(command: str) -> bool:
    """Whether a command starts a framework that is known, read or not."""
    try:
        launch = launch_of(command, "a command")
    except UserError:
        return False
    return launch.target is not None or launch.unread is not None
