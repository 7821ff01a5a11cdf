"""The return value of a function in a Python file, worked out without running it: recipes that are code.

A recipe is a function without required arguments that creates configs and sets their fields. Constants, other functions
of the file, decided conditions, and fields that are set later are followed, and so are imports of other recipes' files
where they lie beside it. A value that only running would tell is an :class:`Unresolved` with its text and line.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.recipe_values import (
    NOT_KNOWN,
    OF_TEXT,
    ORDERS,
    PLAIN,
    SIGNS,
    ConfigCall,
    Mark,
    Unresolved,
    as_key,
    find_import,
    is_tested,
    known_items,
    known_of,
)
from simpar.frameworks.target import misspelt
from simpar.frameworks.words import ReadWords, WordTable
from simpar.plain import MAX_LISTED

AUTO = "auto"
"""A value that the program which starts DeepSpeed or Accelerate fills in."""
MAX_DEPTH = 20
MAX_ITEMS = 10_000
CONFIGS = ("run.Config", "run.Partial")
"""Calls whose first argument is the class to configure (NeMo-Run)."""
Known = Mapping[str, Callable[..., Any]]


class ConfigReader(Mapping[str, Any]):
    """Values by dotted name.

    Asking for a value that is not known raises UserError; values that were never asked for can be listed.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values_, self.source = dict(values), source
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        value = self.values_[key]
        if isinstance(value, Unresolved | ConfigCall):
            text = value.text if isinstance(value, Unresolved) else f"{value.called}()"
            short = " ".join(text.split())[:40]
            raise UserError(f"{self.source}:{value.line}: {key} = {short}: allowed: a value, no code")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def whole(self, key: str, least: int = 1) -> int | None:
        """A whole number, None if there is none. Raises UserError if it is not one."""
        value = self.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            allowed = "a positive integer" if least > 0 else f"an integer of {least} or more"
            raise UserError(f"{self.source}: {key} = {value!r}: allowed: {allowed}")
        return value

    def size(self, key: str, usual: Mapping[str, Any]) -> int:
        """A positive whole number; that of a framework's ``usual`` values where there is none. Raises UserError."""
        return int(self.whole(key) or usual[key])

    def words(self) -> ReadWords:
        """The names that were asked for, and those that were not and have a value."""
        left = {key: value for key, value in self.values_.items() if key not in self.used and value is not None}
        return ReadWords(tuple(key for key in self.values_ if key in self.used), left)

    def misspelt(self, known: WordTable | None = None) -> tuple[str, ...]:
        """Notes on unused names that look like misspelt ones; those that a table has are none."""
        left = self.words().unread
        return misspelt(known.sort((), left).unknown if known else left, self.used - set(self.values_))


def without_auto(data: Mapping[str, Any], source: str) -> tuple[ConfigReader, list[str]]:
    """A config by dotted name, and the names whose value is "auto"."""
    whole = flat(data)
    said = {key: value for key, value in whole.items() if value != AUTO}
    return ConfigReader(said, source), [key for key in whole if key not in said]


def flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections as dotted names; a section without entries is a value."""
    return dict(_sections(data).flat())


def nest_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested sections: the inverse of :func:`flat`."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        part = result
        *sections, name = key.split(".")
        for section in sections:
            part = part.setdefault(section, {})
        part[name] = value
    return result


def _sections(data: Mapping[str, Any]) -> ConfigCall:
    fields = {str(key): _sections(value) if isinstance(value, dict) and value else value for key, value in data.items()}
    return ConfigCall("", [], fields)


class _RaisedError(Exception):
    """A ``raise`` that is reached."""


class Recipes:
    """The functions of a Python file; ``notes`` tell which calls were not followed.

    ``known`` are functions of other files by name, for where these files are not at hand: they get the arguments of a
    call. ``importer`` is the file that imports this one.
    """

    def __init__(self, text: str, source: str, known: Known | None = None, importer: "Recipes | None" = None) -> None:
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise UserError(f"{source}:{error.lineno or 1}: not Python ({error.msg})") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise UserError(f"{source}: not Python ({(str(error).splitlines() or ['nested too deeply'])[0]})") from None
        self.source = source
        self.first: Recipes = importer.first if importer else self
        self.known: Known = self.first.known if importer else known or {}
        self.notes: list[str] = importer.notes if importer else []
        self.modules: dict[Path, Recipes] = importer.modules if importer else {}
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imports = {
            name.asname or name.name: (node, name.name)
            for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names
        }  # fmt: skip
        self.constants: dict[str, Any] = {}
        self.depth = 0
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self._statement(node, self.constants)

    def _module(self, node: ast.ImportFrom) -> "Recipes | None":
        """The file that an import names, if it is one of recipes and lies where imports of this file find it."""
        result = find_import(node, Path(self.source))
        if result is None:
            return None
        if result not in self.modules:
            self.modules[result] = Recipes(files.read_text(result), str(result), importer=self)
        return self.modules[result]

    def _owner(self, name: str, steps: int = 0) -> "tuple[Recipes, str] | None":
        """The file that defines a function or a constant of a name here, and its name there."""
        if name in self.functions or name in self.constants:
            return self, name
        if steps > MAX_DEPTH:
            return None
        for node, theirs in [self.imports[name]] if name in self.imports else []:
            inner = self._module(node)
            if inner is not None and (result := inner._owner(theirs, steps + 1)):
                return result
        for node, theirs in self.imports.values():
            if theirs == "*" and (inner := self._module(node)) and (result := inner._owner(name, steps + 1)):
                return result
        return None

    def _callee(self, name: str) -> Callable[..., Any] | None:
        """What a call of a function of this file, or of an imported one, does; None if it is not followed."""
        owner = self._owner(name)
        if owner is not None and (node := owner[0].functions.get(owner[1])):
            return lambda *args, **keywords: owner[0].call(node, args, keywords)
        return self.known.get(self.imports[name][1] if name in self.imports else name.rpartition(".")[2])

    def result_of(self, name: str, *args: Any) -> Any:
        """What a function returns that this file, or one that it imports, defines, or a known one. Raises UserError."""
        callee = next(filter(None, (each._callee(name) for each in (self, *self.modules.values()))), None)
        try:
            return callee(*args) if callee else None
        except _RaisedError as error:
            raise UserError(f"{self.source}: {name} raises {error}") from None

    def choices(self) -> list[str]:
        """The recipes that can be named: those of the file, and those that it imports under a public name."""
        imported = (name for name in self.imports if not name.startswith("_") and self._callee(name))
        return [*dict.fromkeys((*self.names(), *imported))]

    def names(self) -> list[str]:
        """Public functions without required arguments that return something."""
        return [
            name for name, node in self.functions.items()
            if not name.startswith("_") and len(node.args.args) == len(node.args.defaults)
            and None not in node.args.kw_defaults
            and any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(node))
        ]  # fmt: skip

    def made(self, recipe: str, wanted: Callable[[ConfigCall], bool]) -> tuple[str, ConfigCall]:
        """A recipe's name and its result; ``recipe`` selects one of several ("" for the only one).

        ``wanted`` tells configs from other results. Raises UserError.
        """
        if recipe:
            name = files.choose(recipe, self.choices(), f"recipe of {self.source}")
            value = self.result_of(name)
            if isinstance(value, ConfigCall) and wanted(value):
                return name, value
            raise UserError(f"{self.source}: {recipe} returns no config that is written out")
        results = {name: self.result_of(name) for name in self.names() or self.choices()}
        configs = {name: made for name, made in results.items() if isinstance(made, ConfigCall) and wanted(made)}
        if not configs:
            raise UserError(f"{self.source}: no function returns a config with parallel sizes that are written out")
        if len(configs) > 1:
            named = ", ".join(list(configs)[:MAX_LISTED])
            raise UserError(f"{self.source}: has {len(configs)} recipes: name one, FILE:RECIPE; allowed: {named}")
        self.notes.clear()
        (name,) = configs
        value = self.result_of(name)
        return name, value if isinstance(value, ConfigCall) else configs[name]

    def call(self, node: ast.FunctionDef, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """The return value of a function of the file. Raises UserError for one that calls itself."""
        if self.first.depth > MAX_DEPTH:
            raise UserError(f"{self.source}:{node.lineno}: {node.name}: functions that call each other without end")
        arguments = node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        scope: dict[str, Any] = {}
        usual = [None] * (len(names) - len(arguments.defaults)) + list(arguments.defaults)
        given = dict(zip(names, usual, strict=True))
        given |= dict(zip([each.arg for each in arguments.kwonlyargs], arguments.kw_defaults, strict=True))
        for name, default in given.items():
            scope[name] = Unresolved(name, node.lineno) if default is None else self.value(default, {})
        scope |= dict(zip(names, args, strict=False)) | dict(keywords)
        if arguments.kwarg is not None:
            scope[arguments.kwarg.arg] = {name: value for name, value in keywords.items() if name not in given}
        self.first.depth += 1
        try:
            return self._block(node.body, scope)
        finally:
            self.first.depth -= 1

    def _block(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> Any:
        """The return value of a block; :data:`_ON` if it ends without one."""
        for node in body:
            if isinstance(node, ast.Return):
                return None if node.value is None else self.value(node.value, scope)
            done = self._statement(node, scope)
            if done is not _ON:
                return done
        return _ON

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, scope)
            for target in node.targets:
                self._set(target, value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._set(node.target, self.value(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            self._set(node.target, Unresolved(ast.unparse(node), node.lineno), scope)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._effect(node.value, scope)
        elif isinstance(node, ast.If):
            test = self.value(node.test, scope)
            if isinstance(test, Unresolved) or (isinstance(test, ConfigCall) and isinstance(node.test, ast.Call)):
                self._undecided(node, scope)
                return _ON
            return self._block(node.body if test else node.orelse, scope)
        elif isinstance(node, ast.With):
            return self._block(node.body, scope)
        elif isinstance(node, ast.Raise):
            raise _RaisedError(ast.unparse(node.exc or node)[:60])
        elif isinstance(node, ast.Try):
            try:
                return self._block(node.body, scope)
            except _RaisedError:
                return self._block(node.handlers[0].body, scope) if node.handlers else _ON
        elif isinstance(node, ast.For):
            return self._loop(node, scope)
        elif isinstance(node, ast.While | ast.Match):
            self._undecided(node, scope)
        return _ON

    def _loop(self, node: ast.For, scope: dict[str, Any]) -> Any:
        """A loop over known items, without a way out of its own."""
        items = self.value(node.iter, scope)
        leaves = any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))
        if not isinstance(items, list) or leaves or len(items) > MAX_ITEMS:
            self._undecided(node, scope)
            return _ON
        for item in items:
            self._set(node.target, item, scope)
            done = self._block(node.body, scope)
            if done is not _ON:
                return done
        return _ON

    def _undecided(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        """Values that branches set become unknown; a return among them ends what can be read.

        What a branch switches off that runs only where it is on is off in any case.
        """
        asked = {ast.unparse(each) for each in _needed(node)}
        for part in ast.walk(node):
            if isinstance(part, ast.Return):
                raise UserError(f"{self.source}:{part.lineno}: a return that only running would tell")
            if isinstance(part, ast.Assign):
                is_off = isinstance(part.value, ast.Constant) and not part.value.value
                for target in part.targets:
                    is_sure = is_off and ast.unparse(target) in asked
                    value = self.value(part.value, scope) if is_sure else None
                    self._set(target, value if is_sure else Unresolved(ast.unparse(part.value), part.lineno), scope)

    def _effect(self, node: ast.Call, scope: dict[str, Any]) -> None:
        """A call for its effect; the file's own functions are followed."""
        holder = self.value(node.func.value, scope) if isinstance(node.func, ast.Attribute) else None
        if isinstance(holder, list) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            holder.extend(self.value(arg, scope) for arg in node.args)
            return
        value = self.value(node, scope)
        own = isinstance(node.func, ast.Name) and self._callee(node.func.id) is not None
        touched = [self.value(arg, scope) for arg in node.args]
        touched.append(holder)
        if not own and isinstance(value, ConfigCall) and any(isinstance(each, ConfigCall) for each in touched):
            self.notes.append(f"Line {node.lineno}: what {ast.unparse(node)[:60]} changes is not read.")

    def _set(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            made = self._place(target.value, scope)
            if made is not None:
                made.fields[target.attr] = value
        elif isinstance(target, ast.Tuple | ast.List):
            known = isinstance(value, list) and len(value) == len(target.elts)
            for at, each in enumerate(target.elts):
                self._set(each, value[at] if known else Unresolved(ast.unparse(each), target.lineno), scope)

    def _place(self, node: ast.expr, scope: dict[str, Any]) -> ConfigCall | None:
        """The config whose field is set; it is created if it does not exist yet."""
        if isinstance(node, ast.Name):
            value = scope.get(node.id)
            return value if isinstance(value, ConfigCall) else None
        if not isinstance(node, ast.Attribute):
            return None
        holder = self._place(node.value, scope)
        if holder is None:
            return None
        inner = holder.fields.setdefault(node.attr, ConfigCall(""))
        return inner if isinstance(inner, ConfigCall) else None

    def value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        """The value of an expression, :class:`Unresolved` if only running would tell."""
        try:
            value = self._value(node, scope)
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
            value = None if isinstance(node, ast.Constant) and node.value is None else NOT_KNOWN
        return Unresolved(ast.unparse(node), node.lineno) if value is NOT_KNOWN else value

    def _value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope[node.id] if node.id in scope else self._constant(node.id)
        if isinstance(node, ast.Attribute):
            base = self.value(node.value, scope)
            return base.fields.get(node.attr, NOT_KNOWN) if isinstance(base, ConfigCall) else NOT_KNOWN
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self.value(each, scope) for each in node.elts]
        if isinstance(node, ast.Dict):
            return self._dict(node, scope)
        if isinstance(node, ast.Call):
            return self._called(node, scope)
        if isinstance(node, ast.ListComp | ast.SetComp) and len(node.generators) == 1:
            return self._listed(node, node.generators[0], scope)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, scope)
            return NOT_KNOWN if isinstance(test, Unresolved) else self.value(node.body if test else node.orelse, scope)
        return self._operation(node, scope)

    def _dict(self, node: ast.Dict, scope: Mapping[str, Any]) -> dict[Any, Any]:
        """A dict; what it takes over from one that is not known has that one's name, as it is written."""
        result: dict[Any, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each, scope)
            if key is not None:
                result[as_key(self.value(key, scope))] = value
            else:
                result |= value if isinstance(value, dict) else {f"**{ast.unparse(each)}": value}
        return result

    def _listed(self, node: ast.ListComp | ast.SetComp, each: ast.comprehension, scope: Mapping[str, Any]) -> Any:
        items = known_of(self.value(each.iter, scope))
        if each.ifs or not isinstance(each.target, ast.Name) or len(items) > MAX_ITEMS:
            return NOT_KNOWN
        return [self.value(node.elt, {**scope, each.target.id: item}) for item in items]

    def _constant(self, name: str) -> Any:
        owner = self._owner(name)
        return owner[0].constants.get(owner[1], NOT_KNOWN) if owner else NOT_KNOWN

    def _operation(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.BoolOp):
            return self._joined(node, scope)
        if isinstance(node, ast.UnaryOp):
            inner = known_of(self.value(node.operand, scope))
            return (
                (not inner) if isinstance(node.op, ast.Not) else -inner if isinstance(node.op, ast.USub) else NOT_KNOWN
            )
        if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            left, right = (known_of(self.value(each, scope)) for each in (node.left, node.right))
            sizes = [len(each) if isinstance(each, list | str) else each for each in (left, right)]
            if isinstance(node.op, ast.Mult) and list in (type(left), type(right)) and max(sizes) > MAX_ITEMS:
                return NOT_KNOWN
            return SIGNS[type(node.op)](left, right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = (self.value(each, scope) for each in (node.left, node.comparators[0]))
            if isinstance(left, ConfigCall) and right is None:  # a call for a config returns one
                return isinstance(node.ops[0], ast.IsNot | ast.NotEq)
            left, right = known_of(left), known_of(right)
            left = as_key(left) if isinstance(right, dict) else left
            return ORDERS[type(node.ops[0])](left, known_items(right) if isinstance(right, list) else right)
        if isinstance(node, ast.Subscript):
            base, key = self.value(node.value, scope), known_of(self.value(node.slice, scope))
            return base[as_key(key)] if isinstance(base, list | dict) else NOT_KNOWN
        return NOT_KNOWN

    def _joined(self, node: ast.BoolOp, scope: Mapping[str, Any]) -> Any:
        wanted = isinstance(node.op, ast.Or)
        result: Any = not wanted
        for each in node.values:
            result = self.value(each, scope)
            if isinstance(result, Unresolved) or bool(result) is wanted:
                return result
        return result

    def _called(self, node: ast.Call, scope: Mapping[str, Any]) -> Any:
        name = ast.unparse(node.func)
        args = [self.value(arg, scope) for arg in node.args]
        keywords: dict[str, Any] = {}
        for each in node.keywords:
            value = self.value(each.value, scope)
            keywords |= {each.arg: value} if each.arg else value if isinstance(value, dict) else {}
        made = scope.get(name)
        if isinstance(made, ConfigCall) and made.name == "partial" and isinstance(made.args[0], Unresolved):
            name, args, keywords = made.args[0].text, [*made.args[1:], *args], made.fields | keywords
        if (callee := self._callee(name)) is not None:
            value = callee(*args, **keywords)
            return None if value is _ON else value
        if name in ("isinstance", "hasattr") and len(args) == 2:
            return is_tested(name, args[0], node.args[1])
        if isinstance(node.func, ast.Attribute) and node.func.attr in OF_TEXT:
            text = self.value(node.func.value, scope)
            if isinstance(text, str):
                return getattr(text, node.func.attr)(*map(known_of, args))
        if name in PLAIN:
            return PLAIN[name](*map(known_of, args), **keywords)
        if name == "getattr" and len(args) > 1 and isinstance(args[0], ConfigCall):
            return args[0].fields.get(args[1], args[2] if len(args) > 2 else NOT_KNOWN)
        if name in CONFIGS and node.args:
            made = self.value(node.args[0].slice, scope) if isinstance(node.args[0], ast.Subscript) else None
            return ConfigCall(made if isinstance(made, str) else ast.unparse(node.args[0]), args[1:], keywords)
        if name.rpartition(".")[2] == "replace" and args and isinstance(args[0], ConfigCall):
            return ConfigCall(args[0].called, args[0].args, args[0].fields | keywords)
        if isinstance(node.func, ast.Attribute) and isinstance(inner := self.value(node.func.value, scope), ConfigCall):
            args = [inner, *args]  # the object of the method call
            name = node.func.attr
        return ConfigCall(name, args, keywords, node.lineno)


_ON = Mark()
"""A block that ends without a return."""


def _needed(node: ast.stmt) -> list[ast.expr]:
    """What has to be true for the body of a branch without another to run."""
    if not isinstance(node, ast.If) or node.orelse or any(isinstance(each, ast.If) for each in node.body):
        return []
    is_all = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
    return node.test.values if is_all and isinstance(node.test, ast.BoolOp) else [node.test]


def split_name(name: str) -> tuple[str, str]:
    """A file's name and the recipe after it: ``recipes.py:llama3_8b``; "" for none."""
    path, colon, recipe = name.rpartition(".py:")
    return (f"{path}.py", recipe) if colon else (name, "")
