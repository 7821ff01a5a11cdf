"""The rules of the house, as tests: sizes, names, units, docstrings, and a README that is true."""

import ast
import gc
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import median

import simpar

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "simpar").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE, MAX_FUNCTION, MEDIAN_FUNCTION, MAX_FIELDS, MAX_PARAMETERS = 500, 80, 10, 12, 6
GRAMMAR = re.compile(r"^(every|layers|modules|full):|(full|none|selective)\*")
SCALES_AS_WRITTEN = {"1e-9", "1e-6", "1e-3", "1e3", "1e6", "1e9", "1e12", "1e15"}
SCALES = {repr(float(text)) for text in SCALES_AS_WRITTEN}
POWERS = {"10 ** 3", "10 ** 6", "10 ** 9", "10 ** 12", "2 ** 10", "2 ** 20", "2 ** 30", "2 ** 40"}
BINARY = {"1024", "1024.0"}  # only where something is multiplied or divided by it: it is a size of tensors, too
FILES_NAMING_PP, USES_OF_FOUND = 24, 2
"""Ceilings, to be lowered with every change that renames: files that spell out an axis of the mesh outside of
declarations, runtime and exports, uses of a name that says nothing."""
SHARED_CLASS_NAMES = {"Cluster", "Model"}
"""Names in Python of what users give, and of what is made of it."""
MIRRORED = ("planner", "tracing")
"""Rooms of which every module has a test module of its own; others are tested by what they do together."""


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    gc.disable()  # nothing of a tree is garbage; looking for some takes twice as long as parsing
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of the syntax tree of a file."""
    return list(ast.walk(tree(path)))


@cache
def functions(path: Path) -> list[ast.FunctionDef]:
    """All functions and methods of a file."""
    return [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]


def lines_of(function: ast.FunctionDef) -> int:
    """Lines of code in a function's body, its docstring aside."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def where(path: Path, line: int) -> str:
    """A clickable place."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_files_are_short():
    """No file has more than 500 lines."""
    sizes = {where(path, 1): len(path.read_text().splitlines()) for path in (*PACKAGE, *TESTS)}
    assert {place: size for place, size in sizes.items() if size > MAX_FILE} == {}


def test_functions_are_short():
    """Half of all functions have at most ten lines and none has more than eighty."""
    sizes = {where(path, f.lineno): lines_of(f) for path in PACKAGE for f in functions(path)}
    assert [place for place, size in sizes.items() if size > MAX_FUNCTION] == []
    assert median(sizes.values()) <= MEDIAN_FUNCTION


def test_functions_take_few_parameters():
    """At most six by position, self aside; a keyword-only one is named wherever it is given."""
    many = []
    for path in PACKAGE:
        for function in functions(path):
            arguments = [*function.args.posonlyargs, *function.args.args]
            if len([a for a in arguments if a.arg not in ("self", "cls")]) > MAX_PARAMETERS:
                many.append(f"{where(path, function.lineno)} {function.name}")
    assert many == []


def test_no_keyword_is_ignored():
    """What a function takes as ``**keywords`` it passes on or goes through, and never looks up one by one.

    Looked up one by one, a misspelt keyword changes nothing; such parameters are spelt out instead.
    """
    looked_up = []
    for path in PACKAGE:
        for function in functions(path):
            rest = function.args.kwarg
            if rest and f"{rest.arg}.get(" in ast.unparse(function):
                looked_up.append(f"{where(path, function.lineno)} {function.name}")
    assert looked_up == []


def test_what_users_call_spells_its_keywords_out():
    """No public function takes ``**keywords``."""
    verbs = [function for name in simpar.__all__ if inspect.isfunction(function := getattr(simpar, name))]
    assert len(verbs) >= 17
    kinds = {v.__name__: {p.kind for p in inspect.signature(v).parameters.values()} for v in verbs}
    assert [name for name, found in kinds.items() if inspect.Parameter.VAR_KEYWORD in found] == []


def test_classes_have_few_fields():
    """At most twelve annotated fields a class, but for what declares or decides choices: more should be composed."""
    large = []
    for path in PACKAGE:
        if {"choices", "layout", "plan.py"} & {*path.parts}:
            continue
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                if len(fields) > MAX_FIELDS:
                    large.append(f"{where(path, node.lineno)} {node.name}: {len(fields)}")
    assert large == []


def test_unit_literals_live_in_units():
    """Powers of 1,000 and 1,024 are spelled by name everywhere but in units.py."""
    found = []
    for path in PACKAGE:
        for node in nodes(path) if path.name != "units.py" else ():
            text = ast.unparse(node) if isinstance(node, ast.Constant | ast.BinOp) else ""
            scaled = isinstance(node, ast.BinOp) and {ast.unparse(node.left), ast.unparse(node.right)} & BINARY
            written = ast.get_source_segment(path.read_text(), node) if text in SCALES else ""
            if scaled or text in POWERS or (written or "").lower() in SCALES_AS_WRITTEN:
                found.append(f"{where(path, node.lineno)} {text}")
    assert found == []


def test_public_names_are_documented():
    """Every public module, class, function and method has a docstring."""
    silent = []
    for path in PACKAGE:
        if ast.get_docstring(tree(path)) is None:
            silent.append(str(path.relative_to(ROOT)))
        silent += [where(path, node.lineno) for node in public(tree(path)) if ast.get_docstring(node) is None]
    assert silent == []


def public(scope: ast.Module | ast.ClassDef) -> list[ast.FunctionDef | ast.ClassDef]:
    """Public functions and classes of a module, and public methods of those classes."""
    found = []
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found.append(node)
            found += public(node) if isinstance(node, ast.ClassDef) else []
    return found


def test_tests_say_what_they_check():
    """Every test has a docstring that states the law."""
    silent = [
        where(path, f.lineno)
        for path in TESTS
        for f in functions(path)
        if f.name.startswith("test_") and ast.get_docstring(f) is None
    ]
    assert silent == []


def test_every_module_of_a_mirrored_room_has_its_tests():
    """Those of ``simpar/room/module.py`` are in ``tests/room/test_module.py``, and there are some."""
    for room in MIRRORED:
        modules = [path for path in PACKAGE if path.is_relative_to(ROOT / "simpar" / room)]
        homes = [
            ROOT / "tests" / path.relative_to(ROOT / "simpar").with_name(f"test_{path.name}")
            for path in modules
            if path.name != "__init__.py"
        ]
        assert len(homes) > 1, room
        found = {home: [f for f in functions(home) if f.name.startswith("test_")] for home in homes if home.exists()}
        assert [str(home.relative_to(ROOT)) for home in homes if not found.get(home)] == []


def test_nothing_is_left_undone():
    """No TODO, no stub, no print in the library, no global state declared with global."""
    found = []
    for path in PACKAGE:
        text = path.read_text()
        found += [f"{path.name}: {word}" for word in ("TODO", "FIXME", "XXX", "NotImplementedError") if word in text]
        found += [where(path, n.lineno) for n in nodes(path) if isinstance(n, ast.Global)]
    assert [place for place in found if place != "files.py: NotImplementedError"] == []


def test_no_junk_drawer():
    """Files are named for what they hold."""
    assert [path for path in PACKAGE if path.stem in ("utils", "util", "helpers", "misc", "common")] == []


def test_no_machine_paths():
    """Tracked text names no folder of a particular machine."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "simpar/__init__.py" in listed
    pattern = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/")
    found = []
    for name in listed.split():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".json", "") and path.is_file() and path != Path(__file__):
            found += [name] if pattern.search(path.read_text(encoding="utf-8", errors="ignore")) else []
    assert found == []


def test_every_schedule_is_in_the_table():
    """A file in the folder of schedules declares what is in its table, or is the table's machinery."""
    from simpar.plan.schedules import SCHEDULES

    paths = {path.stem: path for path in (ROOT / "simpar/plan/schedules").glob("*.py")}
    silent = {name for name, path in paths.items() if "\nPRODUCERS = (" not in path.read_text()}
    assert silent == {"__init__", "actions", "producer"}
    homes = {Path(inspect.getfile(inspect.unwrap(each.make))).stem for each in SCHEDULES.values()}
    assert homes == paths.keys() - silent


def test_nothing_downstream_knows_the_name_of_a_schedule_an_optimizer_or_a_precision():
    """No text of the code has one as a word, but where they are declared and where targets say it in their own words.

    "naive" is also the key of what people choose without a search. Precisions are those that are no dtype of storage;
    tables of measured runs and a model's recipe have some.
    """
    from simpar.plan.optimizers import OPTIMIZERS
    from simpar.plan.schedules import SCHEDULES
    from simpar.precisions import PRECISIONS
    from simpar.units import DTYPE_BYTES

    homes = [ROOT / "simpar" / home for home in ("plan/schedules", "plan/optimizers", "frameworks")]
    homes += [
        ROOT / "simpar" / home
        for home in ("precisions.py", "validation", "architectures/hybrid.py", "plan/__init__.py")
    ]
    names, found = {*SCHEDULES, *OPTIMIZERS, *PRECISIONS} - DTYPE_BYTES.keys(), []
    for path in PACKAGE:
        texts = () if any(home in (path, *path.parents) for home in homes) else set(texts_of(path))
        for text in texts - {"naive"} if texts else ():
            found += [f"{path.name}: {word}" for word in set(re.findall(r"[a-z0-9][a-z0-9_-]*", text)) & names]
    assert found == []


def test_nothing_but_its_declaration_knows_a_family_of_models():
    """No text of the code is a model_type, but where families are declared and where targets say it in their words.

    Tables of measured runs name models, "gpt2" is also a model's name, and a calibration writes configs of its own.
    """
    from simpar.architectures.families import DECLARED
    from simpar.architectures.families.unmodelled import UNMODELLED

    named = ("architectures/families", "frameworks", "validation", "calibrate/request.py")
    homes = [ROOT / "simpar" / home for home in named]
    layers = {"mamba"}  # a kind of layer, too
    names, found = {*DECLARED, *UNMODELLED} - layers, []
    for path in PACKAGE:
        if not any(home in (path, *path.parents) for home in homes):
            found += [f"{path.relative_to(ROOT)}: {text}" for text in set(texts_of(path)) & names]
    assert found == []


def test_policies_of_recomputation_are_written_and_read_in_one_file():
    """No other text of the code has a piece of their grammar, but words for people."""
    found = []
    for path in PACKAGE:
        if path != ROOT / "simpar/architectures/recompute.py":
            found += [f"{path.name}: {each}" for each in texts_of(path) if GRAMMAR.search(each)]
    assert found == []


@cache
def texts_of(path: Path) -> list[str]:
    """Texts of a file's code that are no docstrings."""
    alone = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    constants = [node for node in nodes(path) if isinstance(node, ast.Constant) and id(node) not in alone]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_the_package_lists_itself():
    """__all__, the table of contents and the docstring name the same things, and each can be imported."""
    names = [name for name, _, _ in simpar._CONTENTS]
    assert sorted([*names, "__version__"]) == sorted(simpar.__all__)
    assert len(simpar.__all__) <= 40
    for name in names:
        assert f"    {name} " in simpar.__doc__
        assert getattr(simpar, name) is not None


def test_the_version_is_the_same_everywhere():
    """Package, metadata and changelog agree."""
    import tomllib

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == simpar.__version__
    assert f"## {simpar.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {simpar.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_python_that_is_supported_is_tried():
    """The hosts' workflows run the gate on the oldest Python of the metadata and on those after it."""
    import tomllib

    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for name in (".github/workflows/ci.yml", ".gitlab-ci.yml"):
        text = (ROOT / name).read_text()
        pythons = re.findall(r'"(3\.\d+)"', re.search(r"(?:python|PYTHON): (\[.*\])", text)[1])
        assert f">={pythons[0]}" == oldest
        assert pythons == [f"3.{minor}" for minor in range(int(pythons[0][2:]), int(pythons[0][2:]) + len(pythons))]
        assert ".ci/run" in text


def test_contributing_names_only_what_exists():
    """Files, folders and modules of its walks are there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:simpar|tests|docs|benchmarks|\.ci)/[\w./-]*?)(?::[^`]*)?`", text)
    assert len(named) > 12
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_importing_the_package_is_free():
    """Import simpar loads no third-party package, and of its own only the finder of paths that have moved."""
    code = "import simpar, sys; print(*(name for name in sys.modules if name.startswith(('simpar.', 'numpy'))))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["simpar.deprecated"]


def readme() -> str:
    """The text of README.md."""
    return (ROOT / "README.md").read_text()


def test_the_readme_is_short():
    """At most 170 lines."""
    assert len(readme().splitlines()) <= 170


def test_the_gate_runs_what_the_readme_says():
    """The first two commands of README are the ones that .ci/run greps and executes."""
    blocks = re.findall(r"```bash\n(.*?)```", readme(), flags=re.DOTALL)
    first, second = (block.strip() for block in blocks[:2])
    assert first.startswith("pip install . && simpar simulate ")
    assert re.fullmatch(r'pip install "\.\[dev\]" && python -m pytest -n 2', second)
    gate = (ROOT / ".ci/run").read_text()
    patterns = re.findall(r"grep -m1 '([^']*)' README\.md", gate)
    found = [next(line for line in readme().splitlines() if re.match(pattern, line)) for pattern in patterns]
    assert found == [first, second]


def test_the_readme_names_the_other_ways_to_test():
    """What is slow and what is covered, by commands whose marker and plugin are there."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (marker,) = project["tool"]["pytest"]["ini_options"]["markers"]
    assert "`python -m pytest -n 2 -m slow`" in readme()
    assert marker.startswith("slow: ")
    assert "`python -m pytest -n 2 --cov`" in readme()
    assert any(each.startswith("pytest-cov") for each in project["project"]["optional-dependencies"]["dev"])


def test_the_readme_names_only_what_exists():
    """Scenarios, files and commands that README mentions are there."""
    from simpar.cli import app
    from simpar.files import bundled

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.typer_instance.info.name for group in app.registered_groups}
    for command, argument in re.findall(r"(?:^|`|&& )simpar (\w+) ?([\w.-]*)", readme(), re.MULTILINE):
        assert command in commands
        if command == "simulate" and argument and not argument.startswith("-"):
            assert argument in bundled("scenarios")
    for name in re.findall(r"`((?:docs|benchmarks|scenarios)/[\w./]*)`", readme()):
        assert (ROOT / name).exists(), name


def test_the_readme_python_runs(tmp_path, monkeypatch):
    """The Python block of README runs as it stands."""
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", readme(), flags=re.DOTALL):
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "MFU" in done.stdout


@cache
def class_files() -> dict[str, list[Path]]:
    """The files that define classes of a name, by that name."""
    files: dict[str, list[Path]] = {}
    for path in PACKAGE:
        for name in sorted({node.name for node in nodes(path) if isinstance(node, ast.ClassDef)}):
            files.setdefault(name, []).append(path)
    return files


def test_every_class_has_a_name_of_its_own():
    """One name, one class."""
    assert {name for name, files in class_files().items() if len(files) > 1} == SHARED_CLASS_NAMES


def test_words_of_the_glossary_name_one_class():
    """A class that is called after a word of the glossary is what that word means, so there is one of them."""
    entries = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)[2:]
    words = {re.sub(r"\W", "", word).lower(): word.strip() for entry in entries for word in entry.split(",")}
    assert "microbatch" in words
    called: dict[str, list[Path]] = {}
    for name, files in class_files().items():
        if word := words.get(name.lstrip("_").lower()):
            called.setdefault(word, []).extend(files)
    several = {word: files for word, files in called.items() if len(files) > 1}
    assert several == {}


def test_few_files_spell_out_an_axis_of_the_mesh():
    """What lists choices of a plan asks their declarations; pp stands for all axes."""
    homes = [ROOT / "simpar" / home for home in ("plan", "layout", "runtime", "frameworks")]
    naming = [
        path
        for path in PACKAGE
        if not any(path.is_relative_to(home) for home in homes) and re.search(r"\bpp\b", path.read_text())
    ]
    assert len(naming) <= FILES_NAMING_PP


def test_results_have_names():
    """What a function returns is called after what it is."""
    names = (node.id for path in PACKAGE for node in nodes(path) if isinstance(node, ast.Name))
    assert sum(name == "found" for name in names) <= USES_OF_FOUND


def test_digits_are_those_that_int_reads():
    """``"²".isdigit()`` holds, and int refuses it: a traceback where a number was checked."""
    names = (node.attr for path in PACKAGE for node in nodes(path) if isinstance(node, ast.Attribute))
    assert "isdigit" not in names
