"""Change one operator or number of the code at a time, run tests, and print the changes that no test notices.

A survivor is either equivalent (no result can differ) or shows a number that no test pins down. Run from the root:

    python benchmarks/mutate.py simpar/cost --tests tests/cost --number 40 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

OPPOSITES = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
"""By kind of node: how the operator is written, and what is put in its place."""
COPIED = ("simpar", "tests", "benchmarks", "docs", "hardware_profiles", "scenarios", "pyproject.toml", "README.md")


def mutants(path: Path) -> Iterator[tuple[str, bytes]]:
    """All changes to a file, as (where and what, the changed text): operators become opposites, numbers one more."""
    source = path.read_bytes()
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def extent(node: ast.expr) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def changed(old: str, new: str, begin: int, end: int) -> Iterator[tuple[str, bytes]]:
        at = source.find(old.encode(), begin, end) if old else -1
        if at >= 0:
            line = source.splitlines()[number := source.count(b"\n", 0, at)].decode().strip()
            yield (
                f"{path}:{number + 1}: {old} -> {new}   {line}",
                source[:at] + new.encode() + source[at + len(old) :],
            )

    for node in ast.walk(ast.parse(source)):
        operators: list[tuple[ast.expr, ast.AST, ast.expr]] = []
        match node:
            case ast.BinOp(left, op, right):
                operators = [(left, op, right)]
            case ast.Compare(left, ops, others):
                operators = [(a, op, b) for (a, b), op in zip(pairwise([left, *others]), ops, strict=True)]
            case ast.BoolOp(op, values):
                operators = [(a, op, b) for a, b in pairwise(values)]
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                begin, end = extent(node)
                yield from changed(source[begin:end].decode(), repr(value + 1), begin, end)
        for left, op, right in operators:
            yield from changed(*OPPOSITES.get(type(op), ("", "")), extent(left)[1], extent(right)[0])


def passes(root: Path, tests: list[str]) -> bool:
    """Whether all tests pass on the copy of the repository at ``root``, in ten minutes: some changes never end."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def main() -> None:
    """Print the survivors of a random sample, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", type=Path, nargs="+", help="files or folders to change")
    parser.add_argument("--tests", nargs="+", required=True, help="tests to run against each change")
    parser.add_argument("--number", type=int, default=40, help="changes to try; all, if there are fewer")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    given = parser.parse_args()
    paths = [path for each in given.code for path in ([each] if each.is_file() else sorted(each.rglob("*.py")))]
    every = [(path, *mutant) for path in paths for mutant in mutants(path)]
    chosen, survivors = random.Random(given.seed).sample(every, min(given.number, len(every))), 0
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            (shutil.copytree if Path(name).is_dir() else shutil.copy)(name, Path(folder) / name)
        if not passes(Path(folder), given.tests):
            raise SystemExit(f"{' '.join(given.tests)}: tests fail, or are not there, before anything is changed")
        for path, what, changed in chosen:
            copy = Path(folder) / path
            copy.write_bytes(changed)
            if passes(Path(folder), given.tests):
                survivors += 1
                print(what, flush=True)
            shutil.copy(path, copy)
    print(f"{survivors} of {len(chosen)} changes survive ({len(every)} are possible)")


if __name__ == "__main__":
    main()
