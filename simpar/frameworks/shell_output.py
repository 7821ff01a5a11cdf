"""The output of commands of a shell that only work on words and paths; no program is run, no file is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.frameworks.shell_devices import count_of
from simpar.frameworks.shell_words import MAX_WORD, UNKNOWN, TooLong, Variables, text_of

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MOST_WORDS = 100_000
Output = Callable[[list[str], str], str | None]
PLACEHOLDER = re.compile(r"(?<=[=\s])(<[A-Za-z][^<>\n()|;&'\"$]*>)(?=[\s;)/_.\w-]|\Z)")
"""What a public script leaves to its reader, such as <path to data>."""
SAID = re.compile(
    r"(?<=\s)()(<[A-Za-z][\w./-]*(?: [\w./-]+)+>)(?=\s|\Z)"
    r"|(?<=\s)(--?[A-Za-z][\w.-]*[= ])(<[A-Za-z][\w./-]*>)(?=\s|\Z)"
    r"|()(\$?\{\{[^{}\n]*\}\})"
)
"""The same in several words, or as the value of a flag, and the fields of templates ({{ nodes }}, ${{inputs.data}}):
each is a word, where a shell would see redirections, braces or nothing that it can read."""
_SETS = {"[:space:]": " \t\n", "\\n": "\n", "\\t": "\t", "\\0": "\0"}


@cache
def parser() -> Parser:
    """The parser of shell text."""
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    return Parser(Language(language()))


BEHIND_BRACKET = re.compile(r"(?<=\]\*)\$([A-Za-z_]\w*)")
"""A variable whose name the grammar takes for a word of its own: ``[0]*$DENSE+[1]*$MOE``."""
COMMENT = re.compile(r"(?<!\\)`[ \t]*#[^`\n]*`")
"""A comment between the lines of one command: a substitution of nothing."""


NESTED = re.compile(
    r"(:?[-=+])(\$\(\( *\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\))\}"
)
"""Arithmetic that begins with a parenthesis, which the grammar only takes inside of ``${...}`` if it is quoted."""


OFFSET = re.compile(r"(\$\{\w+):(?![-=+?])([$\w]*[$+*-][$\w+* -]*|\w+)(?::([$\w+* -]+))?\}")
"""Letters of a variable from a place that is worked out, as in ``${ARGUMENT:$LENGTH+1}``, which the grammar lacks."""


def _worked_out(match: re.Match[str]) -> str:
    place, count = (f":$(({part}))" if part else "" for part in match.group(2, 3))
    return f"{match[1]}{place}{count}}}"


def tree_of(text: str) -> Node:
    """The tree of a shell text, where placeholders (<your path>) are words.

    Those of several words, and values of flags, would be read as redirections; another one of a single word is one, if
    the text has a tree with it.
    """
    text = BEHIND_BRACKET.sub(r"${\1}", COMMENT.sub(" ", text))
    root = parser().parse(text.encode()).root_node
    if root.has_error and OFFSET.search(text):
        text = OFFSET.sub(_worked_out, text)
        root = parser().parse(text.encode()).root_node
    if root.has_error and NESTED.search(text):
        text = NESTED.sub(r'\1"\2"}', text)
        root = parser().parse(text.encode()).root_node
    if SAID.search(text):
        text = _without_redirections(text, root)
        root = parser().parse(text.encode()).root_node
    filled = PLACEHOLDER.sub(r"'\1'", text) if root.has_error else text
    return root if filled == text else parser().parse(filled.encode()).root_node


def _without_redirections(text: str, root: Node) -> str:
    """The text with placeholders quoted that are no words as they stand, but for those inside of quotes."""

    def quoted(match: re.Match[bytes]) -> bytes:
        node = root.descendant_for_byte_range(match.start(), match.end())
        is_text = node is not None and ("string" in node.type or "heredoc" in node.type or node.type == "comment")
        if is_text:
            return match[0]
        before, word = (part for part in match.groups() if part is not None)
        return before + b"'" + word + b"'"

    return re.sub(SAID.pattern.encode(), quoted, text.encode()).decode()


def output_of(text: str, variables: Variables, folder: str) -> str | None:
    """What a command substitution gives in a folder; None if only running would tell."""
    if (count := count_of(text, variables, variables.implied)) is not None:
        return count
    root = parser().parse(text.encode()).root_node
    if root.has_error:
        return None
    if (here := _here_document(root)) is not None:
        script = variables.here_text(here)  # for another shell, which sets what is not known here
        return None if script is None else script.rstrip("\n")
    printed_text = _Working(variables, folder).output(root, "")
    return None if printed_text is None or UNKNOWN.search(printed_text) else printed_text.rstrip("\n")


def _here_document(root: Node) -> Node | None:
    """The here-document that is all that a substitution gives: ``$(cat <<EOF ... EOF)``."""
    nodes = [node for node in root.named_children if node.type != "comment"]
    if len(nodes) != 1 or nodes[0].type != "redirected_statement":
        return None
    body, *redirects = nodes[0].named_children
    is_plain = body.type == "command" and (body.text or b"").strip() == b"cat" and len(redirects) == 1
    return redirects[0] if is_plain and redirects[0].type == "heredoc_redirect" else None


def printed(words: Sequence[str]) -> str | None:
    """What ``echo`` or ``printf`` prints; None for other commands."""
    return _OUTPUT[words[0]](list(words[1:]), "") if words[0] in ("echo", "printf") else None


def hosts_in(text: str) -> Iterator[str]:
    """The hosts of a list as Slurm writes it: ``node[1-3,7],gpu2``."""
    for one in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        before, bracket, inside = one.partition("[")
        if not bracket:
            yield one
            continue
        for part in inside.partition("]")[0].split(","):
            first, _, last = part.partition("-")
            if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) - int(first) > MOST_WORDS:
                return
            yield from (f"{before}{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1))


class _Working:
    """Works commands out; ``cd`` holds for those that follow."""

    def __init__(self, variables: Variables, folder: str) -> None:
        self.variables, self.folder, self.separator = variables, folder, " "

    def output(self, node: Node, given: str) -> str | None:
        """What a statement prints, given the output of the one before it in a pipeline; None if it is not known."""
        kind = node.type
        if kind in ("program", "subshell", "compound_statement"):
            return self._joined(node.named_children, given)
        if kind == "list":
            left, right = node.named_children[0], node.named_children[-1]
            is_other = any(child.type == "||" for child in node.children)
            return self.output(left, given) if is_other else self._joined((left, right), given)
        if kind == "pipeline":
            said: str | None = given
            for child in node.named_children:
                said = None if said is None else self.output(child, said)
            return said
        if kind == "redirected_statement":
            body = node.child_by_field_name("body")
            is_read = any(child.type == "heredoc_redirect" for child in node.named_children)
            return None if body is None or is_read else self.output(body, self._here(node, given))
        if kind == "variable_assignment" and text_of(node).startswith("IFS="):
            self.separator = "".join(self.variables.words(node.named_children[-1]))[:1]
            return ""
        return self._command(node, given) if kind == "command" else None

    def _joined(self, nodes: Sequence[Node], given: str) -> str | None:
        said = [self.output(node, given) for node in nodes if node.type != "comment"]
        return None if None in said else "".join(filter(None, said))

    def _words(self, node: Node) -> list[str]:
        """The words of a part of a command; elements of an array in quotes are joined by the separator."""
        words, whole = self.variables.words(node), re.fullmatch(r'"\$\{(\w+)\[\*\]\}"', text_of(node))
        return [self.separator.join(self.variables.get(whole[1], []))] if whole else words

    def _here(self, node: Node, given: str) -> str:
        for child in node.named_children:
            if child.type == "herestring_redirect":
                return " ".join(self.variables.value(child.named_children[0])) + "\n"
        return given

    def _command(self, node: Node, given: str) -> str | None:
        parts = [child for child in node.named_children if "redirect" not in child.type]
        if any(part.type == "variable_assignment" for part in parts):
            return None
        name, *words = [word for part in parts for word in self._words(part)] or [""]
        if any(map(UNKNOWN.search, words)):
            return None
        given = self._here(node, given)
        if name == "cd":
            folders = [word for word in words if word not in ("--", "-P", "-L")]
            if len(folders) != 1 or folders[0].startswith("-"):
                return None
            self.folder = os.path.join(self.folder, folders[0])
            return ""
        if name == "pwd":
            return os.path.abspath(self.folder) + "\n"
        if name in ("realpath", "readlink"):
            paths = [word for word in words if not word.startswith("-")]
            is_whole = name == "realpath" or any(re.fullmatch(r"-\w*[fem]\w*", word) for word in words)
            joined = os.path.join(self.folder, paths[0]) if len(paths) == 1 and is_whole else None
            return None if joined is None else os.path.realpath(joined) + "\n"
        return _OUTPUT[name](words, given) if name in _OUTPUT else None


def _echo(words: list[str], _: str) -> str | None:
    while words and re.fullmatch(r"-[neE]+", words[0]):
        words = words[1:]
    return " ".join(words) + "\n"


def _printf(words: list[str], _: str) -> str | None:
    form, *values = words or [""]
    if re.sub(r"%[sd]", "", form).count("%") or form.count("%") != len(values):
        return None
    return re.sub(r"%[sd]", "{}", form.replace("{", "{{").replace("}", "}}")).format(*values).replace("\\n", "\n")


def _dirname(words: list[str], _: str) -> str | None:
    return str(PurePosixPath(words[-1]).parent) + "\n" if words else None


def _basename(words: list[str], _: str) -> str | None:
    paths = [word for word in words if word != "--"]
    if not paths or paths[0].startswith("-"):
        return None
    name = PurePosixPath(paths[0]).name
    end = paths[1] if len(paths) > 1 else ""
    return (name.removesuffix(end) if name != end else name) + "\n"


def _wc(words: list[str], given: str) -> str | None:
    counts = {"-l": given.count("\n"), "-w": len(given.split()), "-c": len(given.encode()), "-m": len(given)}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


def _tr(words: list[str], given: str) -> str | None:
    if len(words) != 2:
        return None
    if words[0] == "-d":
        return "".join(each for each in given if each not in _SETS.get(words[1], words[1]))
    if words[0] in ("-cd", "-dc"):
        return "".join(each for each in given if each in _SETS.get(words[1], words[1]))
    cases = {("[:lower:]", "[:upper:]"): str.upper, ("a-z", "A-Z"): str.upper,
             ("[:upper:]", "[:lower:]"): str.lower, ("A-Z", "a-z"): str.lower}  # fmt: skip
    if change := cases.get((words[0], words[1])):
        return change(given)
    old, new = (_SETS.get(word, word) for word in words)
    return given.replace(old, new) if len(old) == len(new) == 1 else None


def _cut(words: list[str], given: str) -> str | None:
    told = re.fullmatch(r"(?:-d\s?(.)\s-f\s?(\d+)|-f\s?(\d+)\s-d\s?(.))", " ".join(words), re.DOTALL)
    if told is None:
        return None
    mark, at = told[1] or told[4], int(told[2] or told[3]) - 1
    lines = [line.split(mark) for line in given.splitlines()]
    return "".join(f"{parts[at] if 0 <= at < len(parts) else parts[0] if len(parts) == 1 else ''}\n" for parts in lines)


def _awk(words: list[str], given: str) -> str | None:
    told = re.fullmatch(r"(?:-F\s?(\S)\s)?\{\s*print \$?(NF|\d+);?\s*\}", " ".join(words))
    if told is None or "$NF" in words[-1]:
        return None
    rows = [line.split(told[1]) for line in given.splitlines()]
    if told[2] == "NF":
        return "".join(f"{len(row)}\n" for row in rows)
    at = int(told[2]) - 1
    return "".join(f"{row[at] if at < len(row) else ''}\n" for row in rows) if at >= 0 else None


def _first_lines(words: list[str], given: str) -> str | None:
    count = re.fullmatch(r"(?:-n\s?|-)(\d+)", " ".join(words or ["-10"]))
    return "".join(given.splitlines(keepends=True)[: int(count[1])]) if count else None


def _last_lines(words: list[str], given: str) -> str | None:
    count = re.fullmatch(r"(?:-n\s?|-)(\d+)", " ".join(words or ["-10"]))
    return "".join(given.splitlines(keepends=True)[-int(count[1]) :]) if count and int(count[1]) else None


def _calculated(words: list[str], given: str) -> str | None:
    value = Variables().arithmetic((" ".join(words) or given).replace("\\*", "*").strip())
    return None if value is None else f"{value}\n"


def _seq(words: list[str], _: str) -> str | None:
    between = "\n"
    if words and (apart := re.fullmatch(r"(?:-s|--separator=)(.+)", words[0])):  # seq -s, 0 3
        between, words = apart[1], words[1:]
    elif words[:1] == ["-s"] and len(words) > 1:
        between, words = words[1], words[2:]
    if not words or not all(re.fullmatch(r"-?\d{1,6}", word) for word in words) or len(words) > 3:
        return None
    numbers = [int(word) for word in words]
    first, step, last = (1, 1, *numbers) if len(numbers) == 1 else (numbers[0], 1, numbers[1])
    if len(numbers) == 3:
        first, step, last = numbers
    if not step:
        return None
    return between.join(map(str, range(first, last + (1 if step > 0 else -1), step))) + "\n"


def _scontrol(words: list[str], _: str) -> str | None:
    if words[:2] not in (["show", "hostnames"], ["show", "hostname"]) or len(words) != 3:
        return None
    return "".join(f"{host}\n" for host in hosts_in(words[2]))


_OUTPUT: dict[str, Output] = {
    "echo": _echo, "printf": _printf, "dirname": _dirname, "basename": _basename, "wc": _wc, "tr": _tr, "cut": _cut,
    "awk": _awk, "head": _first_lines, "tail": _last_lines, "expr": _calculated, "bc": _calculated, "seq": _seq,
    "scontrol": _scontrol,
}  # fmt: skip


@contextmanager
def refusing_endless(place: Callable[[], str]) -> Iterator[None]:
    """Refuse, with the ``place`` where that is, what is nested or repeated without end. Raises UserError."""
    try:
        yield
    except RecursionError:
        raise UserError(f"{place()}: nested too deeply to be read") from None
    except TooLong:
        raise UserError(f"{place()}: a word of more than {MAX_WORD} characters") from None
