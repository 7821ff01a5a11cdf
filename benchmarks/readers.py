"""Writes docs/readers.md: which launches and configs are read, and of which versions public files were tried.

    python benchmarks/readers.py            # write the page
    python benchmarks/readers.py --check    # exit with 1 if it is not current

What is read is what the readers declare; versions are those of the files whose facts are in the corpus of the tests.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "readers.md"
CORPUS = ROOT / "tests" / "frameworks" / "corpus.yaml"
LAUNCHES = ROOT / "tests" / "preflight" / "launches.yaml"
OF_FORM = {"shell": "megatron", "megatron-yaml": "megatron", "toml": "torchtitan-0.2", "bridge": "megatron-bridge",
           "nemo": "nemo-run"}  # fmt: skip
"""Readers of the forms in which the corpus writes files that are not called like their reader."""
GITHUB = re.compile(r"github\.com/([^/]+/[^/]+)/blob/([^/]+)/")
PACKAGE = re.compile(r"/project/([^/]+)/([^/ ]+)")
SHORT = 7  # letters of a commit
HEAD = """# What is read

`simpar check` and `simpar import` read what follows. `--from` takes the names of the first column where a text alone
does not tell whose it is; they are asked in this order. "Versions" are those of the public files whose flags and values
are held by tests (a commit, or a release); files of other versions are read too, and words that are new to simpar are
named. Proposals are written for frameworks that have a name in the last column. `benchmarks/readers.py` makes the page.

| `--from` | what is read | versions of files that were tried | proposals as |
|---|---|---|---|
"""


def versions() -> dict[str, tuple[int, list[str]]]:
    """Number of files in the corpus and among the launches, and the versions that they are of, by reader."""
    from simpar import files

    entries: list[Mapping[str, Any]] = [*files.load(CORPUS).data, *files.load(LAUNCHES).data]
    count: dict[str, int] = defaultdict(int)
    told: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in entries:
        form = entry["form"] if "form" in entry else entry["gives"]["from"]
        reader = OF_FORM.get(form, form)
        count[reader] += 1
        match = GITHUB.search(entry["source"]) or PACKAGE.search(entry["source"])
        if match is None:
            raise SystemExit(f"{CORPUS.name}: {entry['name']}: source = {entry['source']}: names no version")
        version = match[2][:SHORT] if re.fullmatch(r"[0-9a-f]{7,40}", match[2]) else match[2]
        told[reader][f"{match[1]} {version}"] = None
    return {name: (count[name], list(told[name])) for name in count}


def rows() -> Iterator[str]:
    """The lines of the table, in the order in which readers are asked."""
    from simpar.frameworks import READERS, load_reader

    tried = versions()
    if unknown := set(tried) - set(READERS):
        raise SystemExit(f"{CORPUS.name}: forms of no reader: {', '.join(sorted(unknown))}")
    for name in READERS:
        reader = load_reader(name)
        number, listed = tried.get(name, (0, []))
        tested = f"{number} file{'s' * (number != 1)}: {', '.join(listed)}" if number else "no public file"
        yield f"| `{name}` | {reader.description} | {tested} | {reader.written_as or 'none'} |"


SHIPPED = """
## Configs by their path

Launches name configs of DeepSpeed and Accelerate that their trainer ships in its repository. Where such a file is not
here, what it sets at the named revision is taken, and a note says so; a file that is here is read.

| whose | at | paths |
|---|---|---|
"""


def shipped() -> Iterator[str]:
    """The lines of the table of configs that are known by their path."""
    from simpar.frameworks.shipped_configs import FOLDERS, REVISIONS

    for folder, (owner, known) in FOLDERS.items():
        yield f"| {owner} | {REVISIONS[owner]} | {', '.join(f'`{folder}/{name}`' for name in known)} |"


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(rows()) + "\n" + SHIPPED + "\n".join(shipped()) + "\n"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if the page is not current")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
