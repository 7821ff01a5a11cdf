"""What a script takes from where it cannot be read: files that are not here, output of programs, open conditions."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from simpar.frameworks.shell_calls import is_script_name
from simpar.frameworks.shell_loops import ENDS, TurnEnd, may_end_turn
from simpar.frameworks.shell_words import descendants, text_of
from simpar.frameworks.words import MODEL, Account, WordTable, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tree_sitter import Node

    from simpar.frameworks.shell import Script

ENVIRONMENTS = re.compile(
    r"(^|[^\w])(activate|\.?(ba|z)shrc|(\.bash_)?profile|modules?|lmod|spack|(micro)?mamba|(mini)?conda\d?|venv|pyenv|brew"
    r"|ssh-agent|set_env|setvars)\b"
)
"""Names of files and programs that only set up what programs run in."""
ASKING = ("grep", "egrep", "fgrep", "pgrep", "which", "hash", "type")
"""Programs that are asked whether something is there."""
OPTION = re.compile(r"--[a-zA-Z][\w-]*")
OF_ARGUMENTS = re.compile(r"(^|[^a-z])(args?|arguments?|opts?|options?|flags?|extras?|overrides?)([^a-z]|$)")
"""Names, in lower case, of variables that hold arguments."""
MISSING = "a file that is not here: it may set what decides"
PRINTED = "only running would tell what it prints: it may set what decides"
UNTOLD = "only running would tell what stands there: arguments that may decide"
ARGUMENTS = "a file of arguments that is not read"
LAUNCHER_SWITCHES = ("--standalone", "--no_python", "--no-python", "--multi_gpu")
"""Flags of launchers that take no value."""
OPEN = "the file alone does not decide whether it is given"
WRAPPED = "a script that is not here starts the launch: it may set what decides"


def gap_of_source(name: str) -> dict[str, str]:
    """The gap of a file that is sourced and is not here; none for those that set up an environment."""
    return {} if ENVIRONMENTS.search(name) else {name: MISSING}


def gaps_of_output(words: Sequence[str]) -> dict[str, str]:
    """The gaps of words that are read as text of the script, and that begin with what a program prints."""
    whole = " ".join(words)
    return {whole: PRINTED} if bool(re.match(r"\$[({]", whole)) and not ENVIRONMENTS.search(whole) else {}


def gaps_of_command(words: Sequence[str], used: Sequence[str]) -> dict[str, str]:
    """The gaps of a command: loose words that only running would tell, and files of variables.

    What follows a flag is its value, unless it is one of the ``used`` flags, which ask for known values and are
    switches else, or a variable whose name says that it holds arguments. Models have names beside those of the text. A
    script's own arguments are left out: it is read as started without any.
    """
    result, flag, read = dict[str, str](), "", set(map(plain, used)).difference(MODEL)
    at = next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
    result |= {word: WRAPPED for word in words[:at] if is_script_name(word)}
    pairs = [(before, word) for before, word in pairwise(words[:at]) if _is_untold(word)]
    result |= {word: UNTOLD for before, word in pairs if not before.startswith("-") or before in LAUNCHER_SWITCHES}
    for word in words[at + 1 :]:
        if word.startswith("-"):
            flag = plain(word)
        elif re.fullmatch(r"@[\w./-]+\.\w+", word):
            result[word] = ARGUMENTS
        elif _is_untold(word) and (not flag or flag in read or OF_ARGUMENTS.search(word.lower())):
            result[word] = UNTOLD
    files = (after for word, after in pairwise(words) if word in ("--env-file", "--export-file"))
    return result | dict.fromkeys(files, MISSING)


def _is_untold(word: str) -> bool:
    """Whether all of a word is one expansion that is no argument of the script."""
    return re.fullmatch(r"\$(\{[A-Za-z_].*\}|\(.*\))", word, re.DOTALL) is not None


def leave_undecided(script: Script, node: Node, condition: str) -> bool | None:
    """Variables that branches set become unknown; arguments that they add are listed."""
    assigned = list(descendants(node, lambda child: child.type == "variable_assignment"))
    listed = _options_alone(script, assigned)
    for each in assigned:
        name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
        adds = any(child.type == "+=" for child in each.children) or _adds_to_itself(name, value)
        if name is not None and text_of(name) in listed:
            script.variables[text_of(name)] = []
        elif name is not None and not adds:
            script.variables[text_of(name)] = [f"${{{text_of(name)}}}"]
        elif name is not None and value is not None and not OPTION.search(text_of(value)) and "$" in text_of(value):
            script.gaps[f"${{{text_of(name)}}}"] = UNTOLD
    for each in descendants(node, lambda child: child.type == "command"):
        program, *words = map(text_of, each.named_children[:2])
        if program in ENDS:
            may_end_turn(script, [program, *words])
        if program in ("source", ".") and words and script.find(words[0].strip("\"'")) is None:
            script.gaps |= gap_of_source(words[0])
    flags = list(dict.fromkeys(flag for each in assigned for flag in OPTION.findall(text_of(each))))
    if flags:
        script.gaps |= dict.fromkeys(flags, OPEN)
        line, short = node.start_point.row + 1, " ".join(condition.split())[:60]
        script.notes.append(f"Line {line}: the file alone does not decide {short}: not read: {', '.join(flags)}.")
    return None


def asks(node: Node) -> bool:
    """Whether a statement asks whether something is there, instead of doing something that may fail."""
    return node.type == "test_command" or text_of(node).split()[0] in ASKING


def read_maybe(script: Script, node: Node, condition: str) -> bool | None:
    """Read statements for what they start where the ``condition`` is not decided: what they set becomes unknown."""
    with suppress(TurnEnd):
        script.read_statement(node)
    return leave_undecided(script, node, condition)


def leave_options_out(script: Script, node: Node) -> None:
    """Variables that branches of a decided condition fill with options are empty before, where nothing has set them.

    Their names are in lower case: those in upper case may come from the environment.
    """
    for each in descendants(node, lambda child: child.type == "variable_assignment"):
        name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
        told = "" if value is None else re.sub(r"[\\\s\"'(]+", " ", text_of(value)).lstrip()
        own = "" if name is None else text_of(name)
        if own.islower() and not script.variables.is_set(own) and re.match(r"--[a-zA-Z]", told):
            script.variables[own] = []


def _options_alone(script: Script, assigned: Sequence[Node]) -> set[str]:
    """Variables that were empty and get nothing but options, all of which are listed: they stay empty."""
    values: dict[str, list[str]] = {}
    for each in assigned:
        if (name := each.child_by_field_name("name")) is not None:
            value = each.child_by_field_name("value")
            values.setdefault(text_of(name), []).append("" if value is None else text_of(value).strip("\"'( \n"))
    return {name for name, told in values.items() if any(told) and all(re.match(r"--[a-zA-Z]|$", each) for each in told)
            and not any(script.variables.get(name, []))}  # fmt: skip


def _adds_to_itself(name: Node | None, value: Node | None) -> bool:
    """Whether an assignment adds options to what its variable has: ``CMD="${CMD} --bf16"``."""
    if name is None or value is None:
        return False
    own = rf"\$(\{{{re.escape(text_of(name))}\}}|{re.escape(text_of(name))}\b)"
    return re.fullmatch(rf'"?({own}(\s.*)?|.*\s{own})"?', text_of(value), re.DOTALL) is not None


def account_of_gaps(gaps: Mapping[str, str], table: WordTable) -> Account:
    """Gaps as words that decide; flags of an open condition do unless the ``table`` says that they have no effect."""
    flags = [name for name, what in gaps.items() if what == OPEN]
    idle = table.sort((), dict.fromkeys(flags, True)).idle
    return Account(deciding={name: what for name, what in gaps.items() if name not in idle})
