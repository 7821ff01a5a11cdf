"""Writes down what the files of simpar hold (``tests/schemas``): every key, its type, and whether it must be there.

    python benchmarks/schemas.py            # write what has been added
    python benchmarks/schemas.py --check    # say what differs, write nothing

A key that is gone, of another type, or newly required breaks files or programs that read them: it is refused until the
version of the file in ``simpar/formats.py`` goes up, as ``docs/files.md`` promises. Keys of scenarios, profiles,
devices, stacks and reliabilities, which people write by hand, have no version: there such a change is always refused,
unless ``--break NAME`` says that a release does it on purpose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests" / "schemas"
REQUIRED = " (required)"
PLANS = ("plan", "asked")
"""Parts of answers that are plans, whose keys are written down as such."""
NAMED = (
    "communication", "fit_causes", "time_breakdown_s", "parts_s", "critical_path_s", "quantiles_s", "held", "searched",
    "fixed", "slow_ranks",
)  # fmt: skip
"""Parts whose keys are names of things, not of fields: of such a mapping nothing further is written down."""


def read_files() -> dict[str, dict[str, Any]]:
    """Kinds of files that simpar reads: version and keys, from the schemas that ``simpar schema`` prints."""
    from simpar import formats
    from simpar.cli.about import SCHEMAS, json_schema

    versions = {"plan": formats.PLAN.version}
    return {name: {"version": versions.get(name), "keys": _merged(_of_schema(json_schema(name)))} for name in SCHEMAS}


def answers(result: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The same of what simpar answers, from an example of each."""
    from simpar import formats

    return {
        "result": {"version": formats.RESULT.version, "keys": _merged(_of_data(result))},
        "search": {"version": formats.SEARCH.version, "keys": _merged(_of_data(search))},
    }


def examples() -> tuple[dict[str, Any], dict[str, Any]]:
    """A result of a small shipped scenario, and a search in which not every kind of layouts has a plan."""
    import simpar

    result = simpar.simulate(**simpar.load_scenario("gpt2-laptop").inputs())
    training = {"seq_len": 2048, "global_batch": 16}
    found = simpar.search("llama-3-8b", "dgx-a100-40gb", training, stack="megatron")
    return json.loads(result.to_json()), json.loads(found.to_json())


def breaks(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What of the new keys breaks those who keep to the old ones."""
    found = [f"{key}: is gone" for key in old if key not in new]
    found += [f"{key}: {old[key]} became {new[key]}" for key in old if key in new and not _keeps(old[key], new[key])]
    added = (key for key in new if key not in old and new[key].endswith(REQUIRED))
    return found + [f"{key}: is new and required" for key in added if _parent(key) in {*old, ""}]


def _keeps(old: str, new: str) -> bool:
    """Whether every value of the old type is one of the new, and no key became required."""
    if new.endswith(REQUIRED) and not old.endswith(REQUIRED):
        return False
    before, after = ({*text.removesuffix(REQUIRED).split("|")} for text in (old, new))
    return before <= after or "any" in after or before == {"null"}


def _merged(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Every key once, with all types that it has; required where it always is."""
    types: dict[str, set[str]] = {}
    needed: dict[str, bool] = {}
    for key, text in found:
        types.setdefault(key, set()).update(text.removesuffix(REQUIRED).split("|"))
        needed[key] = needed.get(key, True) and text.endswith(REQUIRED)
    return {key: "|".join(sorted(types[key])) + (REQUIRED if needed[key] else "") for key in sorted(types)}


def _parent(key: str) -> str:
    return key.rpartition(".")[0].removesuffix("[]")


def _of_schema(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of a JSON Schema as paths, each with its types."""
    yield from _properties(schema, schema.get("$defs", {}), "", ())


def _properties(
    node: Mapping[str, Any], defs: Mapping[str, Any], at: str, seen: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for part, names in _branches(node, defs, seen):
        for key, value in part.get("properties", {}).items():
            path = f"{at}.{key}".lstrip(".")
            needed = REQUIRED if key in part.get("required", ()) else ""
            yield path, "|".join(sorted(_types(value, defs))) + needed
            yield from _properties(value, defs, path, names)
        if "items" in part:
            yield from _properties(part["items"], defs, f"{at}[]", names)


def _branches(
    node: Mapping[str, Any], defs: Mapping[str, Any], seen: tuple[str, ...]
) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """A node with its references and alternatives followed, none of them into itself."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from _branches(defs[name], defs, (*seen, name))
        return
    yield node, seen
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _branches(alternative, defs, seen)


def _types(node: Mapping[str, Any], defs: Mapping[str, Any]) -> set[str]:
    if "$ref" in node:
        return _types(defs[node["$ref"].rpartition("/")[2]], defs)
    alternatives = (*node.get("anyOf", ()), *node.get("oneOf", ()))
    if alternatives:
        return {kind for each in alternatives for kind in _types(each, defs)}
    if "const" in node or "enum" in node:
        return {_type(value) for value in node.get("enum", [node.get("const")])}
    given = node.get("type", "any")
    return {"number" if kind == "integer" else kind for kind in ([given] if isinstance(given, str) else given)}


def _of_data(data: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Keys of JSON data as paths, each with its type; of a list those of all items, of a mapping of names one."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield (path := f"{at}.{key}".lstrip(".")), _type(value)
            if key not in (*NAMED, *PLANS):
                yield from _of_data(value, path)
    elif isinstance(data, list):
        for value in data:
            yield from _of_data(value, f"{at}[]")


def _type(value: Any) -> str:
    names = {bool: "boolean", str: "string", dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), "number")


def recorded(name: str) -> dict[str, Any]:
    """What is written down of a kind of file; nothing where it is new."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"version": None, "keys": {}}


def main() -> int:
    """Compare, and write unless something breaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where something differs")
    parser.add_argument("--break", dest="broken", action="append", default=[], metavar="NAME")
    asked = parser.parse_args()
    code = 0
    for name, now in (read_files() | answers(*examples())).items():
        before = recorded(name)
        faults = breaks(before["keys"], now["keys"]) if before["version"] == now["version"] else []
        if faults and before["keys"] and name not in asked.broken:
            print(f"{name}: version {now['version']} as before, but:", *faults, sep="\n  ")
            code = 1
        elif now != before:
            print(f"{name}: differs from what is written down")
            code |= asked.check
            if not asked.check:
                FOLDER.mkdir(exist_ok=True)
                (FOLDER / f"{name}.json").write_text(json.dumps(now, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
