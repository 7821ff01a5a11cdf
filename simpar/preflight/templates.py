"""YAML with variables that a program puts in before it is used, as envsubst does: ``$NAME`` and ``${NAME}``."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.shell_untold import how_to_give
from simpar.preflight.build_files import is_build_file

_TEMPLATE = re.compile(r"(\.ya?ml)[-_.](template|tmpl|tpl|envsubst|in)$", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_GIVEN = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
GPUS = re.compile(
    r"(nvidia|amd)\.com/(gpu(\.shared)?|mig-.*)|google\.com/tpu|habana\.ai/gaudi|huawei\.com/Ascend\w*|"
    r"aws\.amazon\.com/neuron(device)?|gpu\.intel\.com/(i915|xe)"
)
"""Resources of a container that are devices, or slices and shares of them."""
SLICES = re.compile(r"nvidia\.com/(mig-.*|gpu\.shared)")
COUNTS = (
    "replicas", "parallelism", "size", "nprocPerNode", "nProcPerNode", "numProcPerNode", "numNodes", "num_nodes",
    "nodes", "instance_count", "process_count_per_instance", "accelerators",
)  # fmt: skip
"""Keys of files of clusters whose values are nodes, pods or processes of each."""


def suffix_of(path: str) -> str:
    """The suffix of what a file is: a template of a YAML is one.

    >>> suffix_of("jobs/fsdp.yaml-template"), suffix_of("job.yml.tpl"), suffix_of("run.sh")
    ('.yaml', '.yml', '.sh')
    """
    template = _TEMPLATE.search(path)
    return template[1].lower() if template else Path(path).suffix


def yaml_with_values(words: list[str]) -> tuple[str, dict[str, str]] | None:
    """The YAML, Makefile or Dockerfile that is all of a command but the variables before it, and these.

    None for other commands.
    """
    *before, name = words or [""]
    values = [match for word in before if (match := _GIVEN.fullmatch(word))]
    if not before or len(values) < len(before) or not (suffix_of(name) in (".yaml", ".yml") or is_build_file(name)):
        return None
    return name, {match[1]: match[2] for match in values}


def filled_in(text: str, values: Mapping[str, str], source: str) -> str:
    """A text with values in place of its variables. Raises UserError for one that the text does not have."""
    names = {match[1] or match[2] for match in _VARIABLE.finditer(text)}
    if unknown := next((name for name in values if name not in names), None):
        listed = f"allowed: {', '.join(sorted(names))}" if names else "it has none"
        raise UserError(f"{source}: {unknown} = {values[unknown]}: no variable of the file; {listed}")
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), text)


def refuse_untold(data: Any, source: str) -> None:
    """Raise UserError, naming the variables, where counts of nodes, pods, processes or devices are left to them."""
    untold = {key: value for key, value in _counts(data) if _VARIABLE.search(value)}
    if not untold:
        return
    told = ", ".join(f"{key} = {value}" for key, value in untold.items())
    how = how_to_give(" ".join(untold.values()), {}, source)
    raise UserError(f"{source}: {told}: values that the file leaves to what fills it in; allowed: {how}")


def has_devices(data: Any) -> bool:
    """Whether a file of a cluster asks for devices."""
    return any(GPUS.fullmatch(key) for key, _ in _counts(data))


def slices_in(data: Any) -> tuple[str, ...]:
    """The resources of a file of a cluster that are slices or shares of devices."""
    return tuple(dict.fromkeys(key for key, _ in _counts(data) if SLICES.fullmatch(key)))


def _counts(node: Any) -> Iterator[tuple[str, str]]:
    """The counts anywhere in a file, by key, as text."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if str(key) in COUNTS or GPUS.fullmatch(str(key)):
                yield str(key), str(value)
            if not isinstance(value, str):
                yield from _counts(value)
    elif isinstance(node, list):
        for each in node:
            yield from _counts(each)
