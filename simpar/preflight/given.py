"""The pasted input: a launch command, a script, or a config of a framework, as a plan and the text it is in."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, read
from simpar.frameworks.recipes import split_name
from simpar.frameworks.target import Imported
from simpar.preflight.environment import with_allocator
from simpar.preflight.flags import Text
from simpar.preflight.launcher import LaunchCommand, launch_of
from simpar.preflight.patch import PATCHERS, Edit

COMMAND = "the command"
"""The name in errors of a command that is not in a file."""
STDIN = "standard input"
SYNTAX: dict[str, str | None] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": None}
"""The syntax of files by suffix; all others are shell."""
SHELLS = ("bash", "sh", "zsh", "sbatch")


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
    if len(words) == 1 and (words[0] == "-" or not any(each.isspace() for each in words[0])):
        return given_file(words[0], target)
    if words and Path(words[0]).name in SHELLS and Path(words[-1]).is_file():
        script = given_file(words[-1], target)
        around = launch_of(shlex.join(words), COMMAND)
        return replace(script, launch=_around(script.launch, around))
    return given_text(shlex.join(words) if len(words) > 1 else words[0], COMMAND, target)


def _around(inner: LaunchCommand, outer: LaunchCommand) -> LaunchCommand:
    """The launch of a script, with what it was started with (``sbatch -N 4 train.sh``)."""
    return replace(inner, nodes=outer.nodes or inner.nodes, per_node=outer.per_node or inner.per_node)


def given_file(name: str, target: str | None = None) -> ParsedLaunch:
    """The plan of a file, of FILE.py:RECIPE, or of standard input (-)."""
    if name == "-":
        import sys

        text = sys.stdin.read()
        start = text.lstrip()[:1]
        if start in ("{", "["):
            kind = ".json" if start == "{" else ".toml"
            return given_text(text, STDIN, target, kind)
        return given_text(text, STDIN, target)
    path, _ = split_name(name)
    text = files.read_text(path)
    suffix = Path(path).suffix
    return given_text(text, name, target, suffix)


def given_text(text: str, source: str, target: str | None = None, suffix: str = "") -> ParsedLaunch:
    """The plan of a text by its suffix: a config, a recipe, or shell. Raises UserError."""
    if target is not None and target not in READERS:
        raise UserError(f"--from {target}: nothing reads its files{files.allowed(READERS)}")
    if suffix in SYNTAX:
        of_file = target or _target_of(text, source, suffix)
        return _config(text, source, of_file, SYNTAX[suffix], LaunchCommand(of_file))
    launch = launch_of(text, source)
    chosen = target or launch.target
    if chosen is None:
        raise UserError(
            f"{source}: no launch of a framework that is known here; allowed: a command of one of "
            f"{', '.join(READERS)}, or --from and one of them"
        )
    if launch.config is None:
        return _config(text, source, chosen, "shell", launch)
    return _of_command(text, source, chosen, launch)


def _config(text: str, source: str, target: str, syntax: str | None, launch: LaunchCommand) -> ParsedLaunch:
    def again(changed: str) -> Imported:
        return with_allocator(read(changed, source, target), launch.environment)

    return ParsedLaunch(again(text), Text(text, syntax, target, again), source, launch)


def _of_command(text: str, source: str, target: str, launch: LaunchCommand) -> ParsedLaunch:
    """The plan of a command that names a config file; torchtitan's options on the command line override the file."""
    path = str(launch.config)
    inner = files.read_text(path)
    syntax = SYNTAX.get(Path(path).suffix)
    if target != "torchtitan-0.2" or syntax != "toml":
        return _config(inner, path, target, syntax, launch)

    def again(command: str) -> Imported:
        laid_over: str = inner
        for name, value in _dotted(command, path).items():
            edited = PATCHERS["toml"](laid_over, Edit(name, value))
            if edited is None:
                section = name.rpartition(".")[0]
                edited = f"{laid_over.rstrip()}\n\n[{section}]\n{name.rpartition('.')[2]} = {value}\n"
            laid_over = edited
        return with_allocator(read(laid_over, path, target), launch.environment)

    return ParsedLaunch(again(text), Text(text, "shell", target, again), source, launch)


def _dotted(command: str, config: str) -> dict[str, str]:
    """Options of a job config on a command line, as TOML values; the file ``config`` itself is none."""
    words, result = shlex.split(command, comments=True), dict[str, str]()
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or "." not in flag:
            continue
        following = words[at + 1] if at + 1 < len(words) else ""
        told = value if equals else "true" if following.startswith("--") or not following else following
        if told == config:
            continue
        result[flag.removeprefix("--")] = told if _is_plain(told) else json.dumps(told)
    return result


def _is_plain(text: str) -> bool:
    """Whether a word is a TOML number or boolean."""
    return text in ("true", "false") or text.lstrip("-").replace(".", "", 1).isdigit()


def _target_of(text: str, source: str, suffix: str) -> str:
    """The framework whose config a file is, by its content. Raises UserError."""
    if suffix == ".py":
        return "torchtitan" if "Trainer.Config" in text else "megatron-bridge"
    if suffix == ".toml":
        return "torchtitan-0.2"
    data: Any = files.read_yaml(text, source) if suffix != ".json" else _json(text, source)
    keys = set(data) if isinstance(data, Mapping) else set()
    if keys & {"mesh", "plan", "candidates"}:
        raise UserError(
            f"{source}: a plan or scenario of simpar; allowed: simpar simulate {source} --require-fit, which asks for "
            "what check asks for with --fits-with 0.5"
        )
    if isinstance(data, Mapping):
        owner = next((name for name in READERS if load_reader(name).owns(data)), None)
        if owner is not None:
            return owner
    raise UserError(f"{source}: no config that is known here; allowed: --from and one of {', '.join(READERS)}")


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{source}: not valid JSON ({str(error).splitlines()[0]})") from None
