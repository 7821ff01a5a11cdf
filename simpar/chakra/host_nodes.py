"""Nodes of torch's execution traces (``torch.profiler.ExecutionTraceObserver``): JSON, one file per rank.

A trace has operators in a tree of calls, with their input and output tensors, but no times. Sources: torch 2.13,
csrc/profiler/standalone/execution_trace_observer.cpp (schema 1.1.1-chakra.0.0.4), mlcommons/chakra, pytorch_node.py
(schemas with the same fields).
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import allowed
from simpar.regular_files import check_is_file

SCHEMAS = tuple(f"{version}-chakra.0.0.4" for version in ("1.0.2", "1.0.3", "1.1.0", "1.1.1"))
GROUPS_NODE, COMMS_NODE = "## process_group:init ##", "record_param_comms"
_TENSOR_FIELDS = 6
_ARGUMENT = re.compile(r"(\w+)(?:=[^,()]*)?$")
_TYPES = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16", "c10::Float8_e4m3fn": "fp8"}
"""Names of the dtypes in which products are priced, by torch's names."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True)
class HostTensor:
    """An input or output tensor of an operator: its storage, shape, bytes and dtype ("" if not in ``_TYPES``)."""

    storage: int
    shape: tuple[int, ...]
    size_bytes: int
    dtype: str
    on_host: bool


@dataclass(frozen=True)
class HostNode:
    """An operator, or a node that encloses some: ``arguments`` by the names of its schema, ``parent`` an id."""

    id: int
    name: str
    parent: int
    schema: str
    inputs: tuple[Json, ...]
    arguments: Mapping[str, tuple[Json, tuple[HostTensor, ...]]]
    results: tuple[HostTensor, ...]
    attributes: Mapping[str, Json] = field(default_factory=dict)

    def tensors(self, *names: str) -> tuple[HostTensor, ...]:
        """Tensors of the named arguments, or of all arguments without names."""
        chosen = [self.arguments[name] for name in names] if names else self.arguments.values()
        return tuple(tensor for _, tensors in chosen for tensor in tensors)

    def value(self, name: str) -> Json:
        """The value of an argument; None where the schema has none of that name."""
        return self.arguments[name][0] if name in self.arguments else None

    @cached_property
    def gives_views(self) -> bool:
        """Whether its result is a view of an input, so that nothing is moved."""
        result = self.schema.rpartition("->")[2]
        return "(a" in result and "!" not in result


@dataclass(frozen=True)
class HostTrace:
    """The nodes of a rank in the order of their ids, and its process groups: ranks by name."""

    source: str
    nodes: tuple[HostNode, ...]
    groups: Mapping[str, tuple[int, ...]]

    @cached_property
    def children(self) -> Mapping[int, tuple[HostNode, ...]]:
        """Nodes by the id of their parent."""
        children: dict[int, list[HostNode]] = {}
        for node in self.nodes:
            if node.parent != node.id:
                children.setdefault(node.parent, []).append(node)
        return {key: tuple(nodes) for key, nodes in children.items()}

    @cached_property
    def is_of_host(self) -> bool:
        """Whether all tensors are on the host, which then is the traced device."""
        each = (tensor for node in self.nodes for tensor in (*node.tensors(), *node.results))
        return all(tensor.on_host for tensor in each)

    def inside(self, node: HostNode) -> Iterator[HostNode]:
        """All nodes that a node calls, directly or indirectly."""
        waiting = list(self.children.get(node.id, ()))
        for each in waiting:
            yield each
            waiting += self.children.get(each.id, ())


def read_host_trace(path: Path, world: int) -> HostTrace:
    """The trace in a file, gzipped or not. Raises UserError for files that are no trace or of another schema."""
    check_is_file(path, again=True)
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        result: Json = json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())[:80]})") from None
    if not isinstance(result, dict) or "schema" not in result:
        raise UserError(f"{path}: has no schema; allowed: what torch.profiler.ExecutionTraceObserver writes")
    if result["schema"] not in SCHEMAS:
        raise UserError(f"{path}: schema = {str(result['schema'])[:40]!r}{allowed(SCHEMAS)}")
    rows = result.get("nodes")
    if not isinstance(rows, list):
        raise UserError(f"{path}: nodes: allowed: a list")
    nodes = []
    for number, row in enumerate(rows):
        try:
            nodes.append(_node(row))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(
                f"{path}: nodes[{number}]: {type(error).__name__} {str(error)[:60]}; allowed: id, name, ctrl_deps, "
                "inputs, outputs and attrs"
            ) from None
    nodes.sort(key=lambda node: node.id)
    return HostTrace(str(path), tuple(nodes), _groups(nodes, world, str(path)))


def _node(row: Json) -> HostNode:
    row = _mapping(row)
    attributes: dict[str, Json] = {}
    for each in map(_mapping, _list(row["attrs"])):
        attributes[str(each["name"])] = each["value"]
    schema = str(attributes.get("op_schema", ""))
    values, inputs = _side(row["inputs"])
    names = list(_names(schema))
    arguments = {name: (value, tensors) for name, value, tensors in zip(names, values, inputs, strict=False)}
    if not names:
        arguments = {str(at): (value, tensors) for at, (value, tensors) in enumerate(zip(values, inputs, strict=True))}
    _, results = _side(row["outputs"])
    return HostNode(
        id=_int(row["id"]),
        name=str(row["name"]),
        parent=_int(row["ctrl_deps"]),
        schema=schema,
        inputs=tuple(values),
        arguments=arguments,
        results=tuple(tensor for tensors in results for tensor in tensors),
        attributes=attributes,
    )


def _side(side: Json) -> tuple[list[Json], list[tuple[HostTensor, ...]]]:
    """(Values of an operator's inputs or outputs, tensors in each of them)."""
    values, shapes, types = (_list(_mapping(side)[key]) for key in ("values", "shapes", "types"))
    tensors = [
        tuple(_tensors(value, shape, str(kind))) for value, shape, kind in zip(values, shapes, types, strict=True)
    ]
    return values, tensors


def _tensors(value: Json, shape: Json, kind: str) -> Iterator[HostTensor]:
    """The tensors in a value: itself, or those of lists of lists."""
    if "Tensor" not in kind or not isinstance(value, list):
        return
    if kind.startswith("GenericList"):
        inner = list(_split(kind.removeprefix("GenericList[").removesuffix("]")))
        for one, its_shape, its_kind in zip(
            value, _list(shape), inner * (1 + len(value) // max(len(inner), 1)), strict=False
        ):
            yield from _tensors(one, its_shape, its_kind)
        return
    if len(value) != _TENSOR_FIELDS:
        raise ValueError(f"a tensor of {len(value)} fields")
    _, storage, _, elements, width = (_int(each) for each in value[:5])
    sides = tuple(_int(side) for side in _list(shape))
    dtype = _TYPES.get(kind.removeprefix("Tensor(").removesuffix(")"), "")
    yield HostTensor(storage, sides, elements * width, dtype, value[5] == "cpu")


def _split(text: str) -> Iterator[str]:
    """Parts between commas outside brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if text[begin:]:
        yield text[begin:]


def _names(schema: str) -> Iterator[str]:
    """Names of the arguments of an operator's schema."""
    inside = schema[schema.find("(") + 1 : schema.rfind(") ->")] if "(" in schema else ""
    for part in _split(inside):
        words = part.strip()
        if words and words != "*" and (match := _ARGUMENT.search(words)):
            yield match[1]


def _groups(nodes: Sequence[HostNode], world: int, source: str) -> Mapping[str, tuple[int, ...]]:
    """Process groups by name, from the trace's first node; an empty list of ranks means all ranks."""
    result: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        if node.name == GROUPS_NODE and node.inputs:
            try:
                rows: Json = json.loads(str(node.inputs[0]))
                for row in map(_mapping, _list(rows)):
                    ranks = tuple(map(_int, _list(row["ranks"]))) or tuple(range(_int(row["group_size"])))
                    result[str(row["pg_name"])] = ranks
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{source}: {GROUPS_NODE}: {type(error).__name__} {str(error)[:60]}") from None
    for name, ranks in result.items():
        outside = [rank for rank in ranks if not 0 <= rank < world]
        if outside:
            where = f"{source}: process group {name} has rank {outside[0]}"
            raise UserError(f"{where}, there are traces of 0..{world - 1}; allowed: one of every rank")
    return result


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:20]!r} is not a list")
    return value


def _int(value: Json) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{str(value)[:20]!r} is not a whole number")
    return value


def _mapping(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:20]!r} is not a mapping")
    return value
