"""From the user's function to calls with symbolic sizes: torch.export on the meta device, at two shapes.

Nothing is allocated or computed: modules are built on the meta device and traced with fake tensors. Two traces of
different batch and sequence tell which sizes depend on which. Only constants (masks made inside ``forward``) are
evaluated, so that causal masks and windows are known.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simpar.errors import UserError
from simpar.tracing.code import ALLOWED, call_user_function
from simpar.tracing.masks import Constants
from simpar.tracing.nodes import CONSTANT, DATA, INDEX, WEIGHTS, CallNode, Mask, Ref, TraceShape, length

MAX_TRACED_LENGTH = 6144
"""Most tokens of a traced sequence: masks are evaluated, and their memory grows with its square."""
_RANK = {CONSTANT: 0, INDEX: 1, WEIGHTS: 2, DATA: 3}
_TABLE_OPS = ("embedding", "index", "index_select", "gather")


@dataclass(frozen=True)
class Capture:
    """Calls in order by name, and the shape of every parameter by the name of its call."""

    nodes: Mapping[str, CallNode]
    parameters: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TracedCall:
    """One call of one trace, nested graphs inlined: ``args`` in the order of its schema, and as ``given``."""

    name: str
    op: str
    args: tuple[Any, ...]
    value: Any
    owners: tuple[tuple[str, str], ...]
    target: Any
    given: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})


def capture(name: str, seq_len: int) -> Capture:
    """Trace the module that ``module:function`` returns, for sequences of ``seq_len`` tokens.

    Raises UserError where it cannot be made or exported, or its example inputs do not fit.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError(f"model = {name}: tracing needs torch; install simpar-planner[torch]") from None
    with _without_collections():
        return _captured(name, seq_len)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without garbage collection, which takes a quarter of a trace's time and can free none of its graph."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _captured(name: str, seq_len: int) -> Capture:
    import torch

    with torch.device("meta"):
        made = _made(name)
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise UserError(f"model = {name}: returns {type(module).__name__}; {ALLOWED}")
    module = _without_cache(module).to("meta").train()
    examples = _Examples.of(name, inputs, seq_len)
    traces = [_Trace.of(name, module, examples, shape) for shape in examples.shapes]
    return _joined(name, traces, examples, _identities(module))


def _made(name: str) -> Any:
    """The user's module; an error in their code becomes a UserError of one line."""
    try:
        return call_user_function(name)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raise UserError(f"model = {name}: cannot be built without weights ({_line(error)})") from None


def _without_cache(module: Any) -> Any:
    """The module with the caches of its configs switched off: training keeps no keys and values of earlier calls."""
    for each in module.modules():
        if getattr(getattr(each, "config", None), "use_cache", False) is True:
            each.config.use_cache = False
    return module


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


@dataclass(frozen=True)
class _Examples:
    """Inputs of ``forward``, and the two shapes to trace: (tensors by position, tensors by name)."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    shapes: tuple[TraceShape, TraceShape]
    reads_tokens: bool
    tokens: int

    @staticmethod
    def of(name: str, inputs: Any, seq_len: int) -> _Examples:
        """From the user's inputs: a tensor, a tuple, or a dict by name; without any, tokens int64[batch, seq]."""
        import torch

        if inputs is None:
            inputs = torch.zeros(1, min(seq_len, MAX_TRACED_LENGTH), dtype=torch.int64, device="meta")
        named = dict(inputs) if isinstance(inputs, Mapping) else {}
        positional = () if named else tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
        tensors = [*positional, *named.values()]
        if not tensors or not all(isinstance(each, torch.Tensor) and each.dim() for each in tensors):
            raise UserError(
                f"model = {name}: example inputs = {inputs!r}; allowed: a tensor, a tuple of tensors or a dict of "
                "them by name, each with the batch as its first dim"
            )
        if len({each.shape[0] for each in tensors}) > 1:
            sizes = sorted({int(each.shape[0]) for each in tensors})
            raise UserError(
                f"model = {name}: example inputs have first dims {sizes}; allowed: one batch for all of them"
            )
        tokens = next((t.shape[1] for t in tensors if t.dim() == 2 and not t.is_floating_point()), 0)
        long = min(seq_len, MAX_TRACED_LENGTH) if tokens else 1
        short = 1 if not tokens else long // 2 if long % 2 == 0 else max(long - 1, 1)
        return _Examples(positional, named, (TraceShape(2, long), TraceShape(3, short)), bool(tokens), int(tokens))

    def at(self, shape: TraceShape) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs at a shape: integer tensors [batch, seq] get its length, the others keep their sizes."""
        return tuple(self._at(t, shape) for t in self.positional), {
            key: self._at(t, shape) for key, t in self.named.items()
        }

    def _at(self, tensor: Any, shape: TraceShape) -> Any:
        import torch

        sizes = [shape.batch, *tensor.shape[1:]]
        if self.reads_tokens and tensor.dim() == 2 and not tensor.is_floating_point():
            sizes[1] = shape.seq if tensor.shape[1] == self.tokens else tensor.shape[1]
        return torch.zeros(sizes, dtype=tensor.dtype, device="meta")


@dataclass
class _Trace:
    """Calls of one export; its placeholders are parameters, buffers and inputs."""

    program: Any
    calls: list[TracedCall] = field(default_factory=list)

    @staticmethod
    def of(name: str, module: Any, examples: _Examples, shape: TraceShape) -> _Trace:
        """The export at a shape. Raises UserError where torch cannot export the module."""
        import logging

        import torch

        positional, named = examples.at(shape)
        logging.getLogger("torch.export").setLevel(logging.ERROR)
        try:
            program = torch.export.export(module, positional, named, strict=False)
        except Exception as error:  # noqa: BLE001 - whatever the user's code or the exporter raises
            raise UserError(
                f"model = {name}: cannot be traced with {shape.seq} tokens ({_line(error)}); "
                "allowed: modules that torch.export takes"
            ) from None
        trace = _Trace(program)
        trace._walk(program.graph_module, {}, "")
        return trace

    def _walk(self, module: Any, bound: dict[str, Any], prefix: str) -> Any:
        """Add the calls of a graph, nested graphs (of autocast, no_grad) in place of their wrapper; its result."""
        here = dict(bound)
        result: Any = None
        for node in module.graph.nodes:
            if node.op == "placeholder" and node.name in here:
                continue
            if node.op == "output":
                result = self._argument(node.args[0], here)
            elif node.op == "get_attr":
                here[node.name] = getattr(module, node.target, None)
            elif node.op == "call_function" and _wraps(node):
                at = next(i for i, arg in enumerate(node.args) if _is_graph(here.get(getattr(arg, "name", ""))))
                inner = here[node.args[at].name]
                names = [each.name for each in inner.graph.nodes if each.op == "placeholder"]
                given = [self._argument(arg, here) for arg in node.args[at + 1 :]]
                here[node.name] = self._walk(inner, dict(zip(names, given, strict=True)), f"{node.name}.")
            elif _picks(node, here):
                here[node.name] = here[node.args[0].name][node.args[1]]
            else:
                here[node.name] = self._add(node, here, prefix)
        return result

    def _add(self, node: Any, here: dict[str, Any], prefix: str) -> Ref:
        name = prefix + node.name
        stack = node.meta.get("nn_module_stack") or {}
        owners = tuple((str(path), str(kind).rpartition(".")[2]) for path, kind in stack.values())
        given = tuple(self._argument(arg, here) for arg in node.args)
        named = {key: self._argument(arg, here) for key, arg in node.kwargs.items()}
        args = _in_order(node.target, given, named)
        op = node.op if node.op == "placeholder" else _op_name(node.target)
        self.calls.append(TracedCall(name, op, args, node.meta.get("val"), owners, node.target, (given, named)))
        if op.endswith("_") and not op.endswith("__") and args and isinstance(node.args[0], type(node)):
            here[node.args[0].name] = Ref(name)  # changed in place: later readers read this
        return Ref(name)

    def _argument(self, value: Any, here: Mapping[str, Any]) -> Any:
        if hasattr(value, "op") and hasattr(value, "name"):
            return here.get(value.name)
        if isinstance(value, list | tuple):
            return [self._argument(item, here) for item in value]
        return value


def _in_order(target: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments in the order of the schema, with its defaults for those not given."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return (*given, *named.values())
    rest = schema.arguments[len(given) :]
    return (*given, *(named.get(each.name, each.default_value) for each in rest))


def _wraps(node: Any) -> bool:
    return str(getattr(node.target, "__name__", node.target)).startswith("wrap_with_")


def _is_graph(value: Any) -> bool:
    return hasattr(value, "graph") and hasattr(value, "forward")


def _picks(node: Any, here: Mapping[str, Any]) -> bool:
    """Whether a call picks one of the results of an inlined graph."""
    if node.op != "call_function" or getattr(node.target, "__name__", "") != "getitem":
        return False
    return isinstance(here.get(node.args[0].name), list)


def _op_name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[1] if schema is not None else str(getattr(target, "__name__", target))


def _joined(name: str, traces: list[_Trace], examples: _Examples, identities: Mapping[str, int]) -> Capture:
    """The calls of both traces as one list with symbolic sizes."""
    long, short = traces
    if [call.op for call in long.calls] != [call.op for call in short.calls]:
        raise UserError(
            f"model = {name}: runs other operators for {examples.shapes[0].seq} tokens than for "
            f"{examples.shapes[1].seq}; allowed: the same at every length"
        )
    signature = long.program.graph_signature
    parameters = set(signature.inputs_to_parameters)
    inputs = set(signature.user_inputs)
    constants = Constants(long.calls)
    nodes: dict[str, CallNode] = {}
    for one, two in zip(long.calls, short.calls, strict=True):
        shape, sizes, floating = _sizes(name, one, two, examples.shapes)
        kind = _kind(one, nodes, parameters, inputs, floating)
        nodes[one.name] = CallNode(
            one.name, one.op, one.args, shape, sizes, kind, one.owners, floating, _seen(one, nodes, constants)
        )
    used = {ref for node in nodes.values() for ref in node.refs}
    names: dict[int, str] = {}  # a tied parameter has several names; the graph reads one of them
    for each, path in sorted(signature.inputs_to_parameters.items(), key=lambda item: item[0] not in used):
        names.setdefault(identities[path], each)
    return Capture(nodes, {each: nodes[each].sizes for each in names.values()})


def _identities(module: Any) -> dict[str, int]:
    return {path: id(parameter) for path, parameter in module.named_parameters(remove_duplicate=False)}


def _sizes(
    name: str, one: TracedCall, two: TracedCall, shapes: tuple[TraceShape, TraceShape]
) -> tuple[Any, tuple[int, ...], bool]:
    if not hasattr(one.value, "shape"):
        return None, (), True
    sizes = tuple(int(size) for size in one.value.shape)
    pairs = zip(sizes, (int(size) for size in two.value.shape), strict=True)
    try:
        shape = tuple(length(a, b, shapes) for a, b in pairs)
    except UserError as error:
        raise UserError(f"model = {name}: {one.op} in {one.owners[-1:]}: {error}") from None
    return shape, sizes, bool(one.value.is_floating_point() or one.value.is_complex())


def _kind(
    call: TracedCall, nodes: Mapping[str, CallNode], parameters: set[str], inputs: set[str], floating: bool
) -> str:
    """What a call depends on: nothing, token numbers, parameters, or the batch."""
    if call.op == "placeholder":
        if call.name in parameters:
            return WEIGHTS
        return (DATA if floating else INDEX) if call.name in inputs else CONSTANT
    kinds = {nodes[ref].kind for ref in CallNode("", "", call.args, None, (), "").refs}
    if INDEX in kinds and WEIGHTS in kinds and call.op in _TABLE_OPS:
        return DATA
    return max(kinds or {CONSTANT}, key=_RANK.__getitem__)


def _seen(call: TracedCall, nodes: Mapping[str, CallNode], constants: Constants) -> Mask | None:
    """The keys seen under the mask among a call's arguments, where it is core attention or masks scores."""
    if call.op == "scaled_dot_product_attention":
        refs = CallNode("", "", call.args[3:4], None, (), "").refs
        return next((mask for ref in refs for mask in _masks(ref, nodes, constants)), None)
    if call.op in ("masked_fill", "masked_fill_", "where", "add", "add_"):
        fixed = [r for r in CallNode("", "", call.args, None, (), "").refs if nodes[r].kind == CONSTANT]
        square = [r for r in fixed if len(nodes[r].sizes) >= 2 and min(nodes[r].sizes[-2:]) > 1]
        hides = call.op.startswith("masked_fill")
        return next((mask for ref in square if (mask := constants.mask(ref, hides=hides))), None)
    return None


def _masks(ref: str, nodes: Mapping[str, CallNode], constants: Constants) -> Iterator[Mask]:
    """Masks that a mask is made of, nearest first; those of "where" and of sums are read there already."""
    node = nodes[ref]
    if node.kind == CONSTANT:
        mask = constants.mask(ref, hides=False)
        if mask is not None:
            yield mask
        return
    if node.mask is not None:
        yield node.mask
    for inner in node.refs:
        yield from _masks(inner, nodes, constants)
