"""Commands that code in Python starts as another process: ``subprocess.run(["torchrun", ...])``, ``os.system(TEXT)``.

Nothing is run: lists and texts of the call are followed as a script's arguments are, and lists that are added to.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.script_branches import branches_of
from simpar.frameworks.script_environment import variables_of_code
from simpar.frameworks.script_parser import parameters_parsed, parsed_arguments
from simpar.frameworks.script_starts import devices_of_function
from simpar.frameworks.script_values import ScriptNames, Untold, calls_in, known_of, name_of, truth_of, value_of
from simpar.frameworks.trainer_arguments import commands_of

STARTS = {
    "subprocess": ("run", "call", "check_call", "check_output", "Popen"),
    "sp": ("run", "call", "check_call", "check_output", "Popen"),
    "os": ("system", "popen"),
}
"""Functions that start a command, by the module as it is usually named."""
_IMPORTED = re.compile(r"^\s*from subprocess import (.+)$", re.MULTILINE)
_OPEN = "VALUE_THAT_ONLY_RUNNING_TELLS"
"""What stands in a command for such a value until it is known whether that command trains."""
ADDS = ("append", "extend")
INHERITED = ("os.environ", "os.environ.copy()", "dict(os.environ)", "None")
"""What stands for the variables of the process that starts a command."""


@dataclass(frozen=True)
class CodeCommand:
    """A command as shell ``text``, the ``line`` that starts it, and the first expression that is ``untold``, or ""."""

    text: str
    line: int
    untold: str


def shell_of_code(
    text: str, name: str, is_launch: Callable[[str], bool], flags: Mapping[str, Any] | None = None
) -> str:
    """The launches that a file in Python starts, as shell text with the variables that it sets; "" for none.

    ``is_launch`` tells commands that train from others, ``flags`` are those of the file's own command line, by plain
    name. Raises UserError naming the line of a launch in
    which a value is open.
    """
    if not any(f"{module}." in text for module in ("subprocess", "sp", "os")) and not _IMPORTED.search(text):
        return ""
    try:
        tree, known = _running(text, flags or {})
        commands = [*_commands(tree, text, known)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    launches = [each for each in commands if is_launch(each.text)]
    if not launches:
        return ""
    visible, asked = _devices(tree, launches[0].line, known)
    untold = next((each for each in launches if each.untold), CodeCommand("", launches[0].line, asked))
    if untold.untold:
        raise UserError(
            f"{name}:{untold.line}: {untold.untold}: only running tells, in a command that is started; allowed: "
            "values that the code writes out, or the command itself: simpar check -- COMMAND"
        )
    own = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(visible)))} if visible else {}
    sets = {**own, **variables_of_code(text, {})}
    lines = [f"export {key}={shlex.quote(value)}" for key, value in sets.items()]
    return "\n".join([*lines, *dict.fromkeys(each.text for each in launches)]) + "\n"


def _running(text: str, flags: Mapping[str, Any]) -> tuple[ast.Module, ScriptNames]:
    """A file without the branches that do not run, and what its names stand for."""
    tree = ast.parse(text)
    parsed, given = parsed_arguments(tree, flags), parameters_parsed(tree, flags)
    known = known_of(tree, parsed, given)
    tree, _ = branches_of(tree, partial(truth_of, known=known), lambda _: False)
    return tree, known_of(tree, parsed, given, known.asked)


def _devices(tree: ast.Module, line: int, known: ScriptNames) -> tuple[int, str]:
    """The devices of Modal's function that starts what stands in a line, 0 where there is none, and what is untold.

    Where no function with devices holds the line, all must have as many.
    """
    parts = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    told = [
        (node.lineno <= line <= (node.end_lineno or node.lineno), devices, ast.unparse(call)[:60])
        for node in ast.walk(tree)
        if isinstance(node, parts)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and (devices := devices_of_function(call, known)) is not None
    ]
    of_line = [each for each in told if each[0]] or told
    counts = {devices for _, devices, _ in of_line}
    return (
        (min(counts), "") if counts and len(counts) == 1 and 0 not in counts else (0, of_line[0][2] if counts else "")
    )


def shell_of_process(text: str, source: str, script: tuple[str, str], is_launch: Callable[[str], bool]) -> str:
    """The launches that a ``script`` (path, text) starts, with the variables and flags that ``text`` gives it.

    "" for none, and where a launcher starts the script.
    """
    command = next((each for each in commands_of(text, source) if each.script.endswith(".py")), None)
    if command is None or command.launched_by:
        return ""
    shell = shell_of_code(script[1], script[0], is_launch, command.flags)
    sets = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in command.environment.items())
    return shell and sets + shell


def _commands(tree: ast.Module, text: str, known: ScriptNames) -> Iterator[CodeCommand]:
    """The commands of calls, in their order."""
    imported = {each.strip() for match in _IMPORTED.findall(text) for each in match.strip("()").split(",")}
    for call in sorted(calls_in(tree), key=lambda node: (node.lineno, node.col_offset)):
        if call.args and _starts(call, imported):
            words = _words_of(call.args[0], tree, known)
            further, untold = _environment(call, tree, known)
            is_text = isinstance(words, str)
            shell = words if isinstance(words, str) else shlex.join(map(_of_word, words))
            told = next((each.text for each in words if isinstance(each, Untold)), "") if not is_text else _text_open(
                call.args[0], known)  # fmt: skip
            yield CodeCommand(f"{further}{shell}".strip(), call.lineno, told or untold)


def _starts(call: ast.Call, imported: set[str]) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in STARTS.get(name_of(call.func.value), ())
    return isinstance(call.func, ast.Name) and call.func.id in imported & {*STARTS["subprocess"]}


def _of_word(word: Any) -> str:
    return _OPEN if isinstance(word, Untold) else str(word)


def _words_of(node: ast.expr, tree: ast.AST, known: ScriptNames) -> str | list[Any]:
    """A command as its words, of which some may be :class:`Untold`, or as the text that a shell gets."""
    if isinstance(node, ast.Name):
        if (listed := _added_up(node, tree, known)) is not None:
            return listed
        meant = known.of_name(node)
        return [Untold(node)] if meant is None else _words_of(meant, tree, known)
    if (text := _split(node)) is not None:
        return _words_of(text, tree, known)
    if isinstance(node, ast.List | ast.Tuple):
        return [word for each in node.elts for word in _items(each, tree, known)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _words_of(node.left, tree, known), _words_of(node.right, tree, known)
        if isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
        if isinstance(left, str) and isinstance(right, str):
            return left + right
    return _text_of(node, known)


def _split(node: ast.expr) -> ast.expr | None:
    """What ``TEXT.split()`` and ``shlex.split(TEXT)`` take apart; None for all else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "split":
        return None
    return next(iter(node.args), None) if name_of(node.func.value) == "shlex" else node.func.value


def _items(node: ast.expr, tree: ast.AST, known: ScriptNames) -> list[Any]:
    """The words of one part of a list: itself, or what ``*NAME`` stands for."""
    if isinstance(node, ast.Starred):
        words = _words_of(node.value, tree, known)
        return words if isinstance(words, list) else [Untold(node)]
    return ["python"] if ast.unparse(node) == "sys.executable" else [value_of(node, known)]


def _parts(node: ast.expr, known: ScriptNames) -> list[Any]:
    """The values of a text's parts: one for what is no f-string."""
    if not isinstance(node, ast.JoinedStr):
        return [value_of(node, known)]
    inner = [each.value if isinstance(each, ast.FormattedValue) else each for each in node.values]
    return ["python" if ast.unparse(each) == "sys.executable" else value_of(each, known) for each in inner]


def _text_of(node: ast.expr, known: ScriptNames) -> str | list[Any]:
    value = value_of(node, known)
    if isinstance(value, list):
        return value
    return "".join(map(_of_word, _parts(node, known)))


def _text_open(node: ast.expr, known: ScriptNames) -> str:
    """The first part of a text that only running tells."""
    while (meant := known.of_name(node) if isinstance(node, ast.Name) else _split(node)) is not None:
        node = meant
    inner: list[ast.expr] = [each for each in ast.walk(node) if isinstance(each, ast.JoinedStr)] or [node]
    return next((part.text for each in inner for part in _parts(each, known) if isinstance(part, Untold)), "")


def _added_up(name: ast.Name, tree: ast.AST, known: ScriptNames) -> list[Any] | None:
    """A list that statements after each other make: ``cmd = [...]``, ``cmd += [...]``, ``cmd.append(WORD)``.

    None for names that one value stands for. What a loop or an open condition adds is :class:`Untold`.
    """
    if name.id in known.once:
        return None
    for body in _bodies(tree):
        made = [at for at, each in enumerate(body) if _assigned(each) == name.id and each.lineno < name.lineno]
        if made:
            result: list[Any] = []
            for each in body[made[-1] :]:
                if each.lineno >= name.lineno:
                    break
                result += _added_by(each, name.id, tree, known)
            return result
    return None


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for part in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, part, None), list):
                yield body


def _assigned(node: ast.stmt) -> str:
    """The only name that a statement assigns."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else (
        node.target if isinstance(node, ast.AnnAssign) else None)  # fmt: skip
    return target.id if isinstance(target, ast.Name) else ""


def _added_by(node: ast.stmt, name: str, tree: ast.AST, known: ScriptNames) -> list[Any]:
    """The words that a statement adds to a list."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and _assigned(node) == name and node.value is not None:
        return _listed(node.value, tree, known)
    if isinstance(node, ast.AugAssign) and name_of(node.target) == name:
        return _listed(node.value, tree, known)
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and name_of(call.func.value) == name:
        if call.func.attr in ADDS and len(call.args) == 1:
            one = call.func.attr == "append"
            return _items(call.args[0], tree, known) if one else _listed(call.args[0], tree, known)
        return [Untold(call)]
    changed = next((each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name and
                    not isinstance(node, ast.Expr)), None)  # fmt: skip
    return [] if changed is None or not _changes(node, name) else [Untold(_condition(node, changed))]


def _listed(node: ast.expr, tree: ast.AST, known: ScriptNames) -> list[Any]:
    words = _words_of(node, tree, known)
    return words if isinstance(words, list) else [Untold(node)]


def _changes(node: ast.AST, name: str) -> bool:
    """Whether a part of a file adds to a list, or makes it anew."""
    for each in ast.walk(node):
        if isinstance(each, ast.AugAssign) and name_of(each.target) == name:
            return True
        if isinstance(each, ast.Assign) and _assigned(each) == name:
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and name_of(each.func.value) == name:
            return each.func.attr in (*ADDS, "insert", "remove", "pop")
    return False


def _condition(node: ast.stmt, otherwise: ast.expr) -> ast.expr:
    return node.test if isinstance(node, ast.If | ast.While) else node.iter if isinstance(node, ast.For) else otherwise


def _environment(call: ast.Call, tree: ast.AST, known: ScriptNames) -> tuple[str, str]:
    """Variables that a call gives its command (``env={**os.environ, ...}``) as words before it, and what is untold."""
    given = next((each.value for each in call.keywords if each.arg == "env"), None)
    set_later = _set_in(given, call.lineno, tree, known) if isinstance(given, ast.Name) else []
    if isinstance(given, ast.Name):
        given = next((each.value for each in _made_before(given.id, call.lineno, tree)), None) or known.of_name(given)
    told: list[tuple[Any, Any]] = []
    if isinstance(given, ast.Dict):
        told += [(value_of(key, known), value_of(value, known)) for key, value in zip(given.keys, given.values,
                 strict=True) if key is not None]  # fmt: skip
    elif given is not None and ast.unparse(given) not in INHERITED:
        return "", ast.unparse(given)[:60]
    told += set_later
    if open_one := next((each.text for pair in told for each in pair if isinstance(each, Untold)), ""):
        return "", open_one
    return "".join(f"{key}={shlex.quote(str(value))} " for key, value in told), ""


def _made_before(name: str, line: int, tree: ast.AST) -> list[ast.Assign | ast.AnnAssign]:
    """The last statement before a line that makes what a name stands for; none where there is none."""
    made = [each for body in _bodies(tree) for each in body if _assigned(each) == name and each.lineno < line]
    return [each for each in made[-1:] if isinstance(each, ast.Assign | ast.AnnAssign)]


def _set_in(name: ast.Name, line: int, tree: ast.AST, known: ScriptNames) -> list[tuple[Any, Any]]:
    """What statements behind that set in a mapping: ``env["KEY"] = ...``, ``env.update(...)``, until a line."""
    result: list[tuple[Any, Any]] = []
    for body in _bodies(tree):
        made = [at for at, each in enumerate(body) if _assigned(each) == name.id and each.lineno < line]
        for each in body[made[-1] + 1 :] if made else ():
            if each.lineno < line:
                result += _entries(each, name.id, known)
    return result


def _entries(node: ast.stmt, name: str, known: ScriptNames) -> list[tuple[Any, Any]]:
    """Keys and values that a statement sets in a mapping; what a loop or an open condition sets is :class:`Untold`."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if isinstance(node, ast.Assign) and isinstance(target, ast.Subscript) and name_of(target.value) == name:
        return [(value_of(target.slice, known), value_of(node.value, known))]
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and name_of(call.func.value) == name:
        if call.func.attr == "update" and all(
            isinstance(each, ast.Dict) and None not in each.keys for each in call.args
        ):
            pairs = [pair for each in call.args if isinstance(each, ast.Dict) for pair in zip(each.keys, each.values,
                     strict=True)]  # fmt: skip
            told = [(value_of(key, known), value_of(value, known)) for key, value in pairs if key is not None]
            return told + [(each.arg, value_of(each.value, known)) for each in call.keywords]
        return [] if call.func.attr in ("get", "items", "keys", "copy") else [(Untold(call), "")]
    sets = [each for each in ast.walk(node) if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)]
    inner = isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try)
    return [(Untold(each), "") for each in sets if inner and name_of(each.value) == name]
