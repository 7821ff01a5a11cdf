"""The commands that a shell script would start, with variables, arrays and decided conditions substituted.

Nothing is run. A script is read as in an empty environment without arguments: ``${NAME:-default}`` is the default, a
variable that the script does not set stays in the words as ``${NAME}``, and so does anything that only running would
tell, such as ``$(command)``, unless the command only works on words and paths (:mod:`~simpar.frameworks.shell_output`).
A function is read with the arguments of its call. If the script alone does not decide a condition, none of its branches
is read, and a note says so. Scripts that it starts or sources are read in their places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from simpar import files
from simpar.errors import UserError
from simpar.frameworks import schedulers, slurm
from simpar.frameworks.shell_built_in import BUILT_IN, run_built_in, set_by_words, unset
from simpar.frameworks.shell_calls import (
    KNOWN,
    Call,
    begins_as_script,
    call_of,
    dropped_by_env,
    is_script_name,
    without_env,
    without_submitter,
)
from simpar.frameworks.shell_conditions import holds, value_in_test
from simpar.frameworks.shell_gaps import (
    asks,
    gap_of_source,
    gaps_of_output,
    leave_options_out,
    leave_undecided,
    read_maybe,
)  # fmt: skip
from simpar.frameworks.shell_loops import ENDS, MaybeEnd, end_turn, may_end_turn, run_counted, run_for, run_while
from simpar.frameworks.shell_output import output_of, printed, refusing_endless, tree_of
from simpar.frameworks.shell_passed import set_by_job
from simpar.frameworks.shell_pipes import hand_over, run_pipeline
from simpar.frameworks.shell_words import (
    UNKNOWN,
    Variables,
    descendants,
    elements_of,
    ends_line,
    is_argument,
    names_of,
    text_of,
)  # fmt: skip

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 60
MAX_STEPS = 100_000
MAX_CALLS = 10  # scripts that start or source one another
ASSIGNING = ("variable_assignment", "variable_assignments", "declaration_command")
NO_FILE = "no such file here"
"""What a note says of a script that is not found."""
_WRITERS = ("cat", "tee", "echo", "printf")
_NESTED = ("program", "subshell", "do_group", "else_clause", "variable_assignments")


class Script:
    """A script as it would run: ``commands`` are the words of each, in order; ``notes`` tell what was not read.

    ``environments`` has the variables of every command: those that the script set by then, and those before its words.
    A command of another script has the launcher before it that started that script (``srun -N 4 bash other.sh``).
    ``directives`` are the words of the ``#SBATCH`` lines of each text, or those of another batch system as Slurm's;
    ``further_parts`` those of later parts of a job.
    ``written`` are the texts of files that the script writes. ``gaps`` map what it takes from where it cannot be read
    to what that may do.

    ``variables`` have a list of words for every name; a value that only running would tell is the name itself,
    ``${NAME}``. The arguments of a function exist while it is read: as ``1``, ``@`` and, if all are known, ``#``.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.directives, self.further_parts = list[list[str]](), list[list[str]]()
        self.written: dict[str, str] = {}
        self.variables = Variables(lambda text: output_of(text, self.variables, self.folder))
        self.notes: list[str] = []
        self.gaps: dict[str, str] = {}
        self.functions: dict[str, Node] = {}
        self.outside: list[dict[str, list[str] | None]] = []  # hidden by each call
        self.exported: set[str] = set()
        self.exports_all = False
        self.folder = ""  # since the last cd; empty where the script is started
        self.before: list[str] = []  # the launchers of what is read
        self.stack: list[str] = []  # of the files that are read
        self.called: set[str] = set()
        self.steps = self.depth = self.line = self.loops = 0
        self.ends: list[MaybeEnd] = []  # of turns of the innermost loop, by conditions that are not decided
        self._begin(text, source, [])
        with refusing_endless(lambda: f"{self.source}:{max(self.line, 1)}"):
            self.run(text)
            for path in [path for path in self.written if is_script_name(path) and path not in self.called]:
                self.read_child(Call([], path, [], text=self.written[path]))

    def _begin(self, text: str, source: str, asked: Sequence[str]) -> None:
        """What a file implies before its first line; ``asked`` are Slurm's flags on the command line."""
        known = self.variables.implied
        is_file = os.path.isfile(source)
        known |= {"0": [source if is_file else "bash"], "BASH_SOURCE": [source if is_file else ""],
                  "PWD": [os.path.abspath(self.folder)]}  # fmt: skip
        own, *others = slurm.parts_of(text)
        self.further_parts += others
        self.directives += [asked for asked in (own, schedulers.directives(text)) if asked]
        known |= slurm.variables_of([*slurm.plain_flags(asked), *own])
        set_by_job(self, text)
        self.stack.append(os.path.realpath(source) if is_file else source)

    def run(self, text: str) -> None:
        """Read a text, keeping what was read before. Raises UserError if it is not a shell script."""
        text = re.sub(r"\\[ \t]*\s*\Z", "\n", text)  # a line that goes on behind the end of the file
        root = tree_of(text)
        if root.has_error:
            wrong = next(descendants(root, lambda node: node.is_error or node.is_missing), root)
            raise UserError(f"{self.source}:{wrong.start_point.row + 1}: not shell text")
        self.read_statement(root)

    def find(self, name: str) -> str | None:
        """The path of a file that the script names: from where it is, is started, or lies; None if there is none."""
        beside = [folder for path in reversed(self.stack) if os.path.isdir(folder := os.path.dirname(path))]
        paths = dict.fromkeys(os.path.join(folder, name) for folder in (self.folder, "", *beside))
        return next((path for path in paths if os.path.isfile(path)), None) or files.look_above(name, *self.stack[:1])

    def text_of_file(self, name: str) -> tuple[str, str] | None:
        """(Path, text) of a file that the script writes, or that exists; None if there is none. Raises UserError."""
        if name in self.written:
            return name, self.written[name]
        path = self.find(name)
        return None if path is None else (path, files.read_text(path))

    def read_statement(self, node: Node) -> bool | None:
        """Read a statement; returns whether it succeeds, None if only running would tell."""
        self.steps += 1
        if self.steps > MAX_STEPS or self.depth > MAX_DEPTH:
            raise UserError(f"{self.source}:{node.start_point.row + 1}: a script that goes on without end")
        kind = node.type
        reader = _READ.get(kind)
        if reader is None:
            return self._all(node.named_children) if kind in _NESTED else None
        self.depth += 1
        self.line = node.start_point.row + 1
        try:
            return reader(self, node)
        finally:
            self.depth -= 1

    def _all(self, nodes: Sequence[Node]) -> bool | None:
        done: bool | None = True
        for node in nodes:
            done = self.read_statement(node)
        return done

    def _variable_assignment(self, node: Node) -> bool:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        words = [""] if value is None else self.variables.value(value)
        if name is not None and name.type == "subscript":
            index = name.child_by_field_name("index")
            whole = name.child_by_field_name("name")
            key = "" if index is None else " ".join(self.variables.value(index))
            self.variables[f"{'' if whole is None else text_of(whole)}[{key}]"] = words
            return True
        if name is None:
            return True
        if value is not None and value.type == "array" and (elements := elements_of(text_of(name), words)):
            self.variables |= elements
            return True
        adds = any(child.type == "+=" for child in node.children)
        if self.exports_all:
            self.exported.add(text_of(name))
        self._set(text_of(name), words, adds=adds, is_list=value is not None and value.type == "array")
        return True

    def _set(self, name: str, words: list[str], *, adds: bool = False, is_list: bool = False) -> None:
        old = self.variables.get(name, []) if adds else []
        if not adds or is_list:
            self.variables[name] = [*old, *words]
        else:
            self.variables[name] = ["".join([*old[:1], *words]), *old[1:]]

    def _declaration_command(self, node: Node) -> bool:
        is_own = self.outside and node.children[0].type in ("local", "declare", "typeset")
        for child in node.named_children:
            name = child.child_by_field_name("name") if child.type == "variable_assignment" else child
            if child.type in ("string", "concatenation", "simple_expansion", "expansion"):  # export "$NAME=$VALUE"
                self.exported |= set_by_words(self, self.variables.words(child), text_of(node.children[0]))
            hidden = self.variables.get(text_of(name)) if name is not None else None
            if child.type == "variable_assignment":
                self.read_statement(child)
            if is_own and name is not None and name.type == "variable_name":
                self.outside[-1].setdefault(text_of(name), hidden)
            if name is not None and name.type == "command_substitution":  # export $(cat .env)
                self.gaps |= gaps_of_output([text_of(name)])
            if name is not None and (node.children[0].type == "export" or text_of(node.named_children[0]) == "-x"):
                self.exported.add(text_of(name))
        return True

    def _function_definition(self, node: Node) -> bool:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[text_of(name)] = body
        return True

    def _command(self, node: Node) -> bool | None:
        parts = [child for child in node.named_children if "redirect" not in child.type]
        before = [part for part in parts if part.type == "variable_assignment"]
        if len(before) == len(parts):
            return self._all(before)
        lines = [i + 1 for i, part in enumerate(before) if ends_line(part)]
        own = lines[-1] if lines else 0  # the grammar gives the command the preceding lines' assignments, too
        self._all(before[:own])
        words = [word for part in parts[len(before) :] for word in self.variables.words(part)]
        if not words:
            return True
        if words[0] in self.functions:
            return self._call(self.functions[words[0]], words[1:], before[own:])
        if words[0] in BUILT_IN:
            return run_built_in(self, words, self._input(node), before[own:])
        if words[0] == "eval":
            return self._evaluated(words[1:])
        if words[0] in ("source", ".") and len(words) > 1:
            return self._sourced(words[1:])
        if words[0] in ENDS and self.loops:
            end_turn(words)
        self._launched(words, before[own:])
        return {"true": True, ":": True, "false": False}.get(words[0])

    def _launched(self, words: list[str], given: Sequence[Node] = ()) -> None:
        """Keep a command, or what the script does that it starts; ``given`` are variables for it alone."""
        known, exported = self.variables, set(self.exported)
        names, dropped = names_of(given), dropped_by_env(words)
        outside = {name: known.get(name) for name in (*names, *dropped)}
        self._all(given)
        for name in dropped:
            known.pop(name, None)
        words, own = without_env(words)
        outside |= {name: known.get(name) for name in own if name not in outside}
        known |= {name: [value] for name, value in own.items()}
        self.exported |= {*names, *own}
        words, submitter = without_submitter(words)
        self.notes += [f"{submitter} starts what stands after --: its own options are not read."] if submitter else []
        call = call_of(words, self.is_script)
        if call is None or not self.read_child(call):
            self.commands.append([*self.before, *words])
            self.environments.append({name: " ".join(each) for name, each in known.items() if name.isidentifier()})
        self.exported = exported
        known.restore(outside)

    def is_script(self, name: str) -> bool:
        """Whether a word names a script: by its name, or a file that begins as one."""
        if is_script_name(name) or name in self.written:
            return True
        path = None if UNKNOWN.search(name) else self.find(name)
        return path is not None and begins_as_script(path)

    def read_child(self, call: Call) -> bool:
        """Read what another shell would do; False if that is not known, and the command is kept as it is."""
        called = self._called(call)
        if called is None:
            return False
        path, text = called
        kept = (self.source, self.variables, self.functions, self.exported, self.folder, self.before, self.line)
        count = len(self.commands)
        inherited = {name: words for name, words in self.variables.items() if call.is_text or name in self.exported}
        self.variables = Variables(lambda text: output_of(text, self.variables, self.folder))
        self.variables |= {name: words for name, words in inherited.items() if not is_argument(name)}
        self.variables.implied = dict(kept[1].implied)
        self.source, self.functions, self.before = path, dict(self.functions), [*self.before, *call.before]
        try:
            self._begin(text, path, call.before)
            self.variables.bind(call.arguments)
            self.run(text)
        except UserError:
            if not call.is_text:
                raise
            del self.commands[count:], self.environments[count:]
            return False
        finally:
            self.stack.pop()
            self.source, self.variables, self.functions, self.exported, self.folder, self.before, self.line = kept
        return True

    def _called(self, call: Call) -> tuple[str, str] | None:
        """(Name, text) of what a call reads; None, with a note, if it is not there. Raises UserError in a cycle."""
        if call.text is not None:
            return (self.source if call.is_text else call.path), call.text
        self.called.add(call.path)
        place = f"{self.source}:{self.line}"
        result = None if UNKNOWN.search(call.path) else self.text_of_file(call.path)
        name = os.path.basename(call.path)
        if result is None and name in KNOWN:
            self.notes.append(f"{place}: {call.path} is not here, and is taken for that of {KNOWN[name].of}.")
            return call.path, KNOWN[name].text
        if result is None:
            self.notes.append(f"{place}: {call.path}: {NO_FILE}: what it does is not read.")
            return None
        whole = os.path.realpath(result[0])
        if whole in self.stack and call.is_job:
            self.notes.append(f"{place}: {call.path} submits itself again; the first job is read.")
            return result[0], ""
        if whole in self.stack:
            raise UserError(f"{place}: {call.path} leads back to itself; allowed: scripts that do not call themselves")
        if len(self.stack) > MAX_CALLS:
            raise UserError(f"{place}: {call.path}: more than {MAX_CALLS} scripts inside one another")
        return result

    def _sourced(self, words: list[str]) -> bool | None:
        """Read another file as if its text stood here."""
        called = self._called(Call([], words[0], words[1:]))
        if called is None:
            self.gaps |= gap_of_source(words[0])
            return None
        source, line, arguments = self.source, self.line, self.variables.arguments
        self.source = called[0]
        self.stack.append(os.path.realpath(called[0]))
        hidden = self.variables.implied.get("BASH_SOURCE", [])
        self.variables.implied["BASH_SOURCE"] = [called[0]]
        if words[1:]:
            self.variables.bind(words[1:])
        try:
            self.run(called[1])
        finally:
            self.stack.pop()
            self.source, self.line = source, line
            self.variables.implied["BASH_SOURCE"] = hidden
            if words[1:]:
                self.variables.unbind()
                self.variables |= arguments
        return True

    def _evaluated(self, words: list[str]) -> bool | None:
        """Read words as a text of their own."""
        self.gaps |= gaps_of_output(words)
        count = len(self.commands)
        try:
            self.run(" ".join(words))
        except UserError:
            del self.commands[count:], self.environments[count:]
            self._launched(words)
        return None

    def _call(self, body: Node, words: list[str], given: Sequence[Node]) -> bool | None:
        """Read a function's body with its arguments; afterwards these and its local variables are gone.

        ``given`` are variables that are set for this call only.
        """
        arguments = self.variables.arguments
        names = names_of(given)
        self.outside.append({name: self.variables.get(name) for name in names})
        self._all(given)
        self.variables.bind(words)
        try:
            return self.read_statement(body)
        finally:
            self.variables.restore(self.outside.pop())
            self.variables.unbind()
            self.variables |= arguments

    def _input(self, node: Node) -> str | None:
        """The input of a command, if it is written beside it; None if not."""
        parent = node.parent
        around = parent.named_children if parent is not None and parent.type == "redirected_statement" else []
        for child in (*node.named_children, *around):
            if child.type == "heredoc_redirect":
                return self.variables.here_text(child)
            if child.type == "herestring_redirect":
                return " ".join(self.variables.value(child.named_children[0]))
        return None

    def _redirected_statement(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        here = next(descendants(node, lambda child: child.type == "heredoc_redirect"), None)
        words = self.words_of(body)
        if words[:1] and words[0] in _WRITERS and self._writes(node, words, here):
            return True
        text = None if here is None else self.variables.here_text(here)
        if text is None or (words and (words[0] in BUILT_IN or words[0] in self.functions)):
            return self.read_statement(body) if body is not None else None
        if words and os.path.basename(words[0]) == "cat" and (node.parent is None or node.parent.type != "pipeline"):
            return True  # it only prints
        if hand_over(self, words, text):
            return None
        done = self.read_statement(body) if body is not None else None
        self._launched([word for line in text.splitlines() for word in line.replace("\\", " ").split()])
        return done

    def words_of(self, body: Node | None) -> list[str]:
        """The words of a command, without keeping it; empty for other statements."""
        if body is None or body.type != "command":
            return []
        parts = [child for child in body.named_children if child.type != "variable_assignment"]
        return [word for part in parts if "redirect" not in part.type for word in self.variables.words(part)]

    def _writes(self, node: Node, words: list[str], here: Node | None) -> bool:
        """Keep the text that a command writes to a file; False if it writes none that is known."""
        to, is_added = self.variables.redirected(node, words)
        text = self.variables.here_text(here) if here is not None else printed(words)
        if not to or to.startswith("/dev/") or text is None:
            return False
        self.written[to] = (self.written.get(to, "") if is_added else "") + text
        return True

    def _list(self, node: Node) -> bool | None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), ";")
        done = self.read_statement(left)
        if done is (operator == "||"):
            return done
        if done is None and operator == "||":
            return None  # the alternative after a failure
        if done is None and right.type == "compound_statement" and asks(left):
            return read_maybe(self, right, text_of(left))
        if done is None and left.type == "test_command" and right.type in ASSIGNING:
            return self.leave_undecided(right, text_of(left))
        if done is None and text_of(right).split()[0] in ENDS:
            may_end_turn(self, text_of(right).split())
            return None
        return self.read_statement(right)

    def _negated_command(self, node: Node) -> bool | None:
        done = self.read_statement(node.named_children[0])
        return None if done is None else not done

    def _if_statement(self, node: Node) -> bool | None:
        condition: list[Node] = []
        body: list[Node] = []
        further: list[Node] = []
        has_begun = False
        for child in node.children:
            has_begun |= child.type == "then"
            if child.type in ("elif_clause", "else_clause"):
                further.append(child)
            elif child.is_named:
                (body if has_begun else condition).append(child)
        decided = self._all(condition)
        if decided is None:
            return self.leave_undecided(node, " ".join(text_of(part) for part in condition))
        leave_options_out(self, node)
        if decided:
            return self._all(body)
        for clause in further:
            if clause.type == "else_clause":
                return self.read_statement(clause)
            then = next(i for i, child in enumerate(clause.children) if child.type == "then")
            asked = [child for child in clause.children[:then] if child.is_named]
            decided = self._all(asked)
            if decided is None:
                return self.leave_undecided(node, " ".join(text_of(part) for part in asked))
            if decided:
                return self._all([child for child in clause.children[then:] if child.is_named])
        return True

    def _case_statement(self, node: Node) -> bool | None:
        value = node.child_by_field_name("value")
        word = None if value is None else value_in_test(value, self.variables)
        if word is None:
            return self.leave_undecided(node, f"case {'' if value is None else text_of(value)}")
        leave_options_out(self, node)
        for item in node.named_children:
            patterns = item.children_by_field_name("value") if item.type == "case_item" else []
            if any(fnmatchcase(word, text_of(pattern).strip("\"'")) for pattern in patterns):
                return self._all([child for child in item.named_children if child not in patterns])
        return True

    def leave_undecided(self, node: Node, condition: str) -> bool | None:
        """Leave out a statement whose ``condition`` the script alone does not decide."""
        return leave_undecided(self, node, condition)

    def _compound_statement(self, node: Node) -> bool | None:
        if node.children[0].type != "((":
            return self._all(node.named_children)
        value = self.variables.calculate(text_of(node).removeprefix("((").removesuffix("))"))
        return None if value is None else bool(value)

    def _test_command(self, node: Node) -> bool | None:
        inner = node.named_children
        return holds(inner[0], self.variables) if len(inner) == 1 else None


_READ: dict[str, Callable[[Script, Node], bool | None]] = {
    "variable_assignment": Script._variable_assignment, "declaration_command": Script._declaration_command,
    "function_definition": Script._function_definition, "command": Script._command,
    "redirected_statement": Script._redirected_statement, "list": Script._list,
    "negated_command": Script._negated_command, "if_statement": Script._if_statement,
    "case_statement": Script._case_statement, "for_statement": run_for,
    "while_statement": run_while, "c_style_for_statement": run_counted, "test_command": Script._test_command,
    "compound_statement": Script._compound_statement, "pipeline": run_pipeline,
    "unset_command": unset,
}  # fmt: skip
