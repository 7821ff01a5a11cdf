"""The pasted input: a launch command, a script, or a config of a framework, as a plan and the text it is in."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, owner_of, read, slurm
from simpar.frameworks.bridge_launch import overrides_alone
from simpar.frameworks.megatron_log import is_log, list_of, text_of
from simpar.frameworks.nanogpt_read import is_config as is_config_of_nanogpt
from simpar.frameworks.overrides import files_of_script, flagged_by_tyro, text_beside, with_texts
from simpar.frameworks.own_loops import loop_in
from simpar.frameworks.reader import ONE_PROCESS, trains_on_preferences, why_refused
from simpar.frameworks.recipes import split_name
from simpar.frameworks.script_code import code_of_notebook, has_trainer, shell_of_notebook
from simpar.frameworks.script_commands import shell_of_code, shell_of_process
from simpar.frameworks.script_environment import variables_of_code
from simpar.frameworks.shell import NO_FILE, Script
from simpar.frameworks.shell_calls import call_of, without_env
from simpar.frameworks.shell_gaps import ENVIRONMENTS
from simpar.frameworks.shell_shared import shared_scripts
from simpar.frameworks.shell_untold import OF_COMMAND, UntoldValue, how_to_give, shell_before
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.target import LAUNCHER, Imported
from simpar.frameworks.unread import unread_config, unread_text
from simpar.plain import check_digits
from simpar.preflight.build_files import is_build_file, shell_of, without_broken
from simpar.preflight.environment import with_allocator
from simpar.preflight.flags import Text
from simpar.preflight.launcher import LaunchCommand, is_launch, launch_of
from simpar.preflight.manifests import StartedCommand, manifest_of
from simpar.preflight.patch import PATCHERS, Edit
from simpar.preflight.sizes import SLICE
from simpar.preflight.templates import filled_in, suffix_of, yaml_with_values
from simpar.preflight.untold import asked_of_command, asked_of_config

COMMAND = "the command"
"""The name in errors of a command that is not in a file."""
SCRIPT = "a script that is not read: the batch, what is recomputed, the dtype of weights"
"""What a script may decide of which only the launcher's config is read."""
STDIN = "standard input"
LOG = "megatron-log"
"""The reader of lists of arguments in logs."""
OF_LOOPS = re.compile(
    r"^\s*(from|import) ((pytorch_)?lightning|transformers|trl|accelerate|peft|sagemaker|modal|ray|azure)\b",
    re.MULTILINE,
)
"""What scripts import that train in their own code."""
_ARGUMENT = re.compile(r"\$\{?[1-9@*#]|\bgetopts\b")
"""An argument of a script."""
_STARTS_MORE = re.compile(r"torchrun|torch\.distributed\.(?:run|launch)|accelerate launch|deepspeed --")
"""Launchers that the code of a script or the cells of a notebook may start."""
SYNTAX: dict[str, str | None] = {
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".py": None,
    ".ipynb": None,
}
"""The syntax of files by suffix; all others are shell."""
TITAN_SECTIONS = {"parallelism", "training", "job"}
"""Sections of a TOML of torchtitan, of which each has one."""


@dataclass(frozen=True)
class ParsedLaunch:
    """A plan from another framework's text, and how many ranks it starts (None if it does not say).

    ``where`` names the text in which edits are made.
    """

    found: Imported
    text: Text
    where: str
    launch: LaunchCommand


def given_words(words: Sequence[str], target: str | None = None) -> ParsedLaunch:
    """The plan of a launch command or a file. Raises UserError if no reader finds a plan in it."""
    if len(words) == 1 and (not any(each.isspace() for each in words[0]) or os.path.isfile(split_name(words[0])[0])):
        return given_file(words[0], target)
    if (filled := yaml_with_values(list(words))) is not None:
        return given_file(filled[0], target, filled[1])
    command = _joined(words) if len(words) > 1 else words[0]
    script = _script_of(command)
    return given_text(command, COMMAND, target) if script is None else _of_script(script, command, target)


def _joined(words: Sequence[str]) -> str:
    """Words as a command; variables before it stay such."""
    count = len(list(takewhile(lambda word: re.match(r"[A-Za-z_]\w*=", word), words)))
    given = [f"{name}={shlex.quote(value)}" for name, _, value in (word.partition("=") for word in words[:count])]
    return " ".join([*given, shlex.join(words[count:])])


@dataclass(frozen=True)
class _StartedScript:
    """A script that a command starts, with the variables and arguments that it gets."""

    path: str
    text: str
    environment: Mapping[str, str]
    arguments: Sequence[str]

    @property
    def before(self) -> str:
        """Shell text before the script's first line, so that the script runs as it is started here."""
        return shell_before(self.environment, self.arguments)


def _script_of(command: str) -> _StartedScript | None:
    """The script that is all that a command starts; None if it starts something else."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    own, rest = takewhile(lambda word: re.match(r"[A-Za-z_]\w*=", word), words), list(words)
    environment = dict(word.split("=", 1) for word in own)
    rest, further = without_env(rest[len(environment) :])
    environment |= further
    files_of = Script("", COMMAND)
    call = call_of(rest, files_of.is_script)
    if call is None or call.text is not None or (path := files_of.find(call.path)) is None:
        return None
    text = files.read_text(path)
    asked = slurm.plain_flags(call.before) if call.is_job else ()
    implied = slurm.variables_of([*asked, *slurm.directives(text)]) if call.is_job else {}
    return _StartedScript(path, text, {name: value for name, (value,) in implied.items()} | environment, call.arguments)


def _of_script(script: _StartedScript, command: str, target: str | None) -> ParsedLaunch:
    """The plan of a script, with what it was started with (``sbatch -N 4 train.sh 8``)."""
    given = given_text(script.text, script.path, target, before=script.before)
    outer = launch_of(command, COMMAND)
    return replace(given, launch=replace(outer, config=given.launch.config))


def _of_build_file(text: str, name: str, values: Mapping[str, str]) -> ParsedLaunch:
    """The plan of what a Makefile or a Dockerfile starts; of recipes that are no shell text only their lines."""
    shell, broken = without_broken(shell_of(text, name, values))
    if broken and not shell.strip():
        raise UserError(f"{name}{OF_COMMAND}:{broken[0]}: not shell text")
    notes = tuple(f"{name}:{line}: a recipe that is no shell text: it is not read." for line in broken)
    try:
        result = given_text(shell, f"{name}{OF_COMMAND}")
    except UserError as error:
        raise UserError(" ".join((f"{error}." if notes else str(error), *notes))) from None
    plan = replace(result.found, notes=(*result.found.notes, *notes))
    return replace(result, text=replace(result.text, syntax=None), found=plan)


def given_file(name: str, target: str | None = None, values: Mapping[str, str] | None = None) -> ParsedLaunch:
    """The plan of a file, of FILE.py:RECIPE, or of standard input (-); ``values`` are of variables in a YAML."""
    if name == "-":
        import sys

        text = sys.stdin.read()
        start = text.lstrip()[:1]
        if start in ("{", "["):
            kind = ".json" if start == "{" else ".toml"
            return given_text(text, STDIN, target, kind)
        return given_text(text, STDIN, target)
    path, _ = split_name(name)
    suffix = suffix_of(path)
    if target is None and is_build_file(path):
        return _of_build_file(text_of(path), name, values or {})
    text = filled_in(text_of(path), values, name) if values else text_of(path)
    try:
        return given_text(text, name, target, suffix)
    except UserError as error:
        if suffix in SYNTAX or not _ARGUMENT.search(text):
            raise
        return _without_arguments(text, name, target, error)


def _without_arguments(text: str, name: str, target: str | None, told: UserError) -> ParsedLaunch:
    """The plan of a script that is started without arguments, as most are that have defaults.

    Raises the error that was ``told`` where it is none without them either.
    """
    try:
        result = given_text(text, name, target, before="set --; ")
    except UserError:
        raise told from None
    note = f"{name} is read as started without arguments (simpar check -- {name} ARGUMENTS)."
    return replace(result, launch=replace(result.launch, notes=(note, *result.launch.notes)))


def given_text(text: str, source: str, target: str | None = None, suffix: str = "", before: str = "") -> ParsedLaunch:
    """The plan of a text by its suffix: a config, a recipe, or shell, with text to run before it. Raises UserError."""
    with shared_scripts():
        return _given_text(text, source, target, suffix, before)


def _given_text(text: str, source: str, target: str | None, suffix: str, before: str) -> ParsedLaunch:
    if target is not None and target not in READERS:
        raise UserError(f"--from {target}: nothing reads its files{files.allowed(READERS)}")
    check_digits(text, source)
    if target in (None, LOG) and suffix not in SYNTAX and (target or is_log(text)):
        ranks = list_of(text, source).number("world_size")
        return _config(text, source, LOG, None, LaunchCommand(LOG, ranks=ranks))
    if suffix in (".yaml", ".yml") and target is None and (started := manifest_of(text, source)) is not None:
        return _of_manifest(started, source)
    if suffix == ".ipynb" and target is None and "Trainer(" not in code_of_notebook(text, source):
        result = _given_text(shell_of_notebook(text, source), source, None, "", before)
        return replace(result, text=replace(result.text, syntax=None))
    is_script = suffix == ".py" and target is None and ":" not in PurePath(source).name and not has_trainer(text)
    if is_script and (shell := shell_of_code(text, source, is_launch)):
        return _of_code(shell, source, before)
    if suffix in SYNTAX:
        of_file = target or _target_of(text, source, suffix)
        try:
            launch = LaunchCommand(of_file)
            if of_file == "script":
                code = code_of_notebook(text, source) if suffix == ".ipynb" else text
                is_single, own = not _STARTS_MORE.search(text), variables_of_code(code, {})
                launch = replace(launch, is_single=is_single, environment=own)
            return _config(text, source, of_file, SYNTAX[suffix], launch)
        except UntoldValue as error:
            if suffix not in (".yaml", ".yml"):
                raise
            raise asked_of_config(error, files.read_yaml(text, source, finite=False), source, of_file) from None
    launch = launch_of(before + text, source)
    script = next((word for word in launch.words if word.endswith(".py")), None)
    beside = None if script is None or UNKNOWN.search(script) else text_beside(script, source)
    if beside is not None:  # it sets variables for itself
        own = variables_of_code(beside[1], launch.environment)
        launch = replace(launch, environment={**launch.environment, **own})
    if launch.unread and target is None:
        raise _refusal(source, f"a launch of {launch.unread}, which is not read")
    chosen = target or launch.target
    is_alone = chosen is None and not (launch.nodes or launch.per_node or launch.ranks)
    if is_alone and beside is not None and (shell := shell_of_process(before + text, source, beside, is_launch)):
        return _of_code(shell, source, "")
    if chosen is None:
        missing = [note for note in launch.notes if NO_FILE in note and not ENVIRONMENTS.search(note)]
        if beside is not None and (other := unread_text(beside[1])):
            raise _refusal(source, f"{script} is a file of {other}, which is not read")
        if beside is not None and (loop := loop_in(beside[1])):
            raise UserError(f"{source}: {script}: {loop}")
        absent = (file for file in files_of_script(launch.words) if not _is_here(file, source))
        if script and (file := next(absent, None)):
            raise UserError(
                f"{source}: {file}: no such file, and {script} is no script that is known without it; allowed: a file "
                "here, beside the text or above it, or --from and one of simpar list readers"
            )
        what = f"{script} is no script that is known here" if script else "no launch of a framework that is known here"
        raise UserError(f"{missing[0].rstrip('.')}; {what}") if missing else _refusal(source, what, text)
    try:
        return _of_launch(text, source, chosen, launch, before)
    except UntoldValue as error:
        raise asked_of_command(error, launch, source, chosen) from None


def _of_code(shell: str, source: str, before: str) -> ParsedLaunch:
    """The plan of what code starts, which is not edited."""
    result = _given_text(shell, source, None, "", before)
    told = next(line for line in shell.splitlines() if not line.startswith("export "))
    note = f"Read is what the code starts: {told[:60]}{'...' if len(told) > 60 else ''}"
    launch = replace(result.launch, notes=(note, *result.launch.notes))
    return replace(result, text=replace(result.text, syntax=None), launch=launch)


def _of_launch(text: str, source: str, target: str, launch: LaunchCommand, before: str) -> ParsedLaunch:
    """The plan of a command, with the file that it names, of the framework that it starts."""
    if (file := _file_of_script(launch, source)) is not None:
        return _with_file(text, source, target, file, launch, before)
    if launch.config is None:
        return _config(text, source, target, "shell", launch, before)
    return _of_command(text, source, target, launch, before)


def _is_here(file: str, source: str) -> bool:
    return UNKNOWN.search(file) is not None or files.look_beside(file, source) is not None


def _of_manifest(started: StartedCommand, source: str) -> ParsedLaunch:
    """The plan of the command that a manifest starts, on the nodes and devices that it asks for."""
    result = given_text(started.text, f"{source}{OF_COMMAND}")
    launch = result.launch
    if started.devices and (launch.per_node or 0) > started.devices:
        raise UserError(
            f"{source}: starts {launch.per_node} ranks of a node, for which it asks {started.devices} devices; "
            f"allowed: at most {started.devices} ranks, or more devices"
        )
    launch = replace(launch, gaps={**launch.gaps, **dict.fromkeys(started.slices, SLICE)})
    if result.found.sized.several:  # the script's own number of processes, on whichever of the nodes
        if result.found.plan.world_size:
            return replace(result, text=replace(result.text, syntax=None), launch=launch)
        launch = replace(launch, is_single=False)
    if launch.is_single and started.nodes and started.nodes > 1:
        return _of_ranks(replace(result, launch=launch), started.nodes, source)
    told = launch.ranks is not None or (launch.is_single and not (launch.nodes or launch.per_node))
    if not told:
        launch = replace(launch, nodes=launch.nodes or started.nodes, per_node=launch.per_node or started.devices)
    if (launch.nodes or 0) < (started.nodes or 1) and not launch.is_single and launch.ranks is None:
        why = f"the launcher is not told them: on each of {started.nodes} it may start a job of its own"
        launch = replace(launch, gaps={**launch.gaps, "nodes": why})
    return replace(result, text=replace(result.text, syntax=None), launch=launch)


def _of_ranks(given: ParsedLaunch, pods: int, source: str) -> ParsedLaunch:
    """One rank in every pod: an operator tells its Python how many there are, and which one it is.

    Raises UserError where the framework joins processes only by their LOCAL_RANK, which operators do not set.
    """
    imported, mesh = given.found, given.found.plan.mesh
    if mesh.dp == 1 and "LOCAL_RANK" not in given.launch.environment:
        raise UserError(
            f"{source}: python in each of {pods} pods is told no LOCAL_RANK, without which each trains alone; "
            "allowed: torchrun or accelerate launch in its place, or LOCAL_RANK in env"
        )
    if mesh.dp == 1:
        plan = imported.plan.model_copy(update={"mesh": mesh.model_copy(update={"dp": None})})
        notes = tuple(note for note in imported.notes if note != ONE_PROCESS)
        imported = replace(imported, plan=plan, notes=notes, sized=replace(imported.sized, alone=""))
    launch = replace(given.launch, nodes=pods, per_node=1, is_single=False)
    return replace(given, found=imported, text=replace(given.text, syntax=None), launch=launch)


def _refusal(source: str, what: str, text: str = "") -> UserError:
    """The error for what no reader takes; of a ``text`` that may be of one of them, those with its words are named."""
    from simpar.frameworks.alike import readers_alike

    alike = readers_alike(text) if text else []
    told = f"those of {', '.join(alike)}, which have words of it, or others" if alike else "those"
    return UserError(f"{source}: {what}; allowed: {told} of simpar list readers, or --from and one of them")


def _config(
    text: str, source: str, target: str, syntax: str | None, launch: LaunchCommand, before: str = ""
) -> ParsedLaunch:
    @cache
    def again(changed: str) -> Imported:
        return with_allocator(read(before + changed, source, target), launch.environment)

    return ParsedLaunch(again(text), Text(text, syntax, target, again), source, launch)


def _file_of_script(launch: LaunchCommand, source: str) -> str | None:
    """The only file of arguments that a command gives to its script, if that says what is trained.

    The script and its variables are read with it: they say what the file does not.
    """
    if launch.target is None or not load_reader(launch.target).takes_files:
        return None
    if launch.config is not None and launch.config_text is not None:
        return launch.config
    named = files_of_script(launch.words)
    if launch.config is not None or len(named) != 1:
        return None
    path = files.look_beside(named[0], source)
    return None if path is None else str(path)


def _with_file(text: str, source: str, target: str, file: str, launch: LaunchCommand, before: str) -> ParsedLaunch:
    """The plan of a command and of the file of arguments that it names, in which edits are made."""
    named = load_reader(target).config(launch.words) or file  # as the command says it, which may be in another folder

    @cache
    def again(changed: str) -> Imported:
        with with_texts({file: changed, named: changed}):
            return with_allocator(read(before + text, source, target), launch.environment)

    inner = files.read_text(file) if launch.config_text is None else launch.config_text
    return ParsedLaunch(again(inner), Text(inner, SYNTAX[Path(file).suffix], target, again), file, launch)


def _of_command(text: str, source: str, target: str, launch: LaunchCommand, before: str) -> ParsedLaunch:
    """The plan of a command that names a config file; torchtitan's options on the command line override the file."""
    path = str(launch.config)
    if UNKNOWN.search(path):
        raise UntoldValue(
            f"{source}: the config file is {path}: a value that the file does not say; allowed: "
            f"{how_to_give(path, launch.environment, source)}"
        )
    file, recipe = split_name(path)
    if launch.config_text is None:
        file = str(files.find_beside(file, source))
        path = f"{file}:{recipe}" if recipe else file
    inner = files.read_text(file) if launch.config_text is None else launch.config_text
    syntax = SYNTAX.get(Path(file).suffix)
    if target != "torchtitan-0.2" or syntax != "toml":
        result = _config(inner, path, target, syntax, _with_script(launch, source))
        is_one = result.found.sized.alone == LAUNCHER
        if target == "accelerate" and launch.world_size and not is_one:  # flags of the launcher win over its config
            plan = result.found.plan
            mesh = plan.mesh.model_copy(update={"dp": None})
            result = replace(result, found=replace(result.found, plan=plan.model_copy(update={"mesh": mesh})))
        return result

    @cache
    def again(command: str) -> Imported:
        laid_over: str = inner
        for name, value in _dotted(launch_of(before + command, source)).items():
            edited = PATCHERS["toml"](laid_over, Edit(name, value))
            if edited is None:
                section = name.rpartition(".")[0]
                edited = f"{laid_over.rstrip()}\n\n[{section}]\n{name.rpartition('.')[2]} = {value}\n"
            laid_over = edited
        return with_allocator(read(laid_over, path, target), launch.environment)

    return ParsedLaunch(again(text), Text(text, "shell", target, again), source, launch)


def _with_script(launch: LaunchCommand, source: str) -> LaunchCommand:
    """The launch with a note on a script whose arguments no reader knows. Raises UserError."""
    if launch.target not in ("accelerate", "deepspeed"):
        return launch
    script = next((word for word in launch.words if word.endswith(".py")), None)
    if script is None:
        return launch
    if trains_on_preferences(script):
        raise UserError(f"{source}: {script}: {why_refused(script)}; allowed: other scripts")
    note = f"{script} and its own arguments are not read, only the config of {launch.target}."
    return replace(launch, notes=(*launch.notes, note), gaps={**launch.gaps, script: SCRIPT})


def _dotted(launch: LaunchCommand) -> dict[str, str]:
    """Options of a job config on a command line, as TOML values; the config file itself is none."""
    named = load_reader(str(launch.target)).config(launch.words)
    given = {name: value for name, value in flagged_by_tyro(launch.words).items() if value != named}
    return {name: json.dumps("" if value is None else value) for name, value in given.items()}


def _of_toml(text: str, source: str) -> str:
    """torchtitan, which a TOML without one of its sections is not; its reader says what is no TOML. Raises UserError.

    Other tools have files of the same form.
    """
    import tomllib

    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):
        return "torchtitan-0.2"
    if unread := unread_config(data):
        raise _refusal(source, f"a config of {unread}, which is not read")
    if TITAN_SECTIONS.isdisjoint(data):
        raise _refusal(source, "no config that is known here", text)
    return "torchtitan-0.2"


def _target_of(text: str, source: str, suffix: str) -> str:
    """The framework whose config a file is, by its content. Raises UserError."""
    if suffix == ".ipynb":
        return "script"
    if suffix in (".py", ".toml") and (unread := unread_text(text)):
        raise _refusal(source, f"a file of {unread}, which is not read")
    if suffix == ".py":
        if is_config_of_nanogpt(text):
            return "nanogpt"
        if ":" not in PurePath(source).name and has_trainer(text):
            return "script"
        if ":" not in PurePath(source).name and (loop := loop_in(text)) is not None:
            raise UserError(f"{source}: {loop}")
        if ":" not in PurePath(source).name and OF_LOOPS.search(text) and not re.search(r"megatron|nemo", text):
            raise _refusal(source, "no recipe, and no trainer of those that are read is called in its code", text)
        return "torchtitan" if "Trainer.Config" in text else "megatron-bridge"
    if suffix == ".toml":
        return _of_toml(text, source)
    if "!include" in text and "trainer:" in text:
        raise _refusal(source, "a config of Levanter, which is not read")
    is_json = suffix == ".json"
    data: Any = files.read_json(text, source, finite=False) if is_json else files.read_yaml_of_python(text, source)[0]
    keys = set(data) if isinstance(data, Mapping) else set()
    if keys & {"mesh", "plan", "candidates"}:
        raise UserError(
            f"{source}: a plan or scenario of simpar; allowed: simpar simulate {source} --require-fit, which asks for "
            "what check asks for with --fits-with 0.5"
        )
    if isinstance(data, Mapping):
        if unread := unread_config(data):
            raise _refusal(source, f"a config of {unread}, which is not read")
        if (owner := owner_of(data)) is not None:
            return owner
        if (told := overrides_alone(data)) is not None:
            raise UserError(f"{source}: {told}")
    raise _refusal(source, "no config that is known here", text)
