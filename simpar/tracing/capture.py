"""From the user's function to calls with symbolic sizes: it is recorded on the meta device, at two shapes.

Nothing is allocated or computed: modules are built and run on the meta device. Two traces of
different batch and sequence tell which sizes depend on which. Only constants (masks made inside ``forward``) are
evaluated, so that causal masks and windows are known.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simpar.architectures.training import check_positions
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing.code import ALLOWED
from simpar.tracing.masks import Constants, Made
from simpar.tracing.nodes import CONSTANT, DATA, INDEX, WEIGHTS, CallNode, Mask, TracedCall, TraceShape, length, refs_of
from simpar.tracing.positions import check_tables, positions_of
from simpar.tracing.vocabulary import PRODUCTS, SORTS, base

if TYPE_CHECKING:
    from simpar.tracing.recording import ModuleRun

MAX_LINE = 200
"""Most characters that are told of an error of the user's code."""
MAX_TRACED_LENGTH = 6144
"""Most tokens of a traced sequence: masks are evaluated, and their memory grows with its square."""
_RANK = {CONSTANT: 0, INDEX: 1, WEIGHTS: 2, DATA: 3}
_CORE = "scaled_dot_product_attention"
_TABLE_OPS = ("embedding", "index", "index_select", "gather")


@dataclass(frozen=True)
class Capture:
    """Calls in order by name, and the shape of every parameter by the name of its call.

    ``module`` is the class of the module; ``masked`` are the paths of attentions whose masks could not be read;
    ``drops_layers``: it drops layers at random in training, which were all kept here.
    """

    nodes: Mapping[str, CallNode]
    parameters: Mapping[str, tuple[int, ...]]
    module: str = ""
    masked: tuple[str, ...] = ()
    drops_layers: bool = False


def capture(name: str, seq_len: int, make: Callable[[], Any]) -> Capture:
    """Trace what ``make`` returns, a module or (module, example inputs), for sequences of ``seq_len`` tokens.

    ``name`` is the model's in errors. Raises UserError where the module cannot be made or run without data, or its
    example inputs do not fit.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError(f"model = {name}: tracing needs torch; pip install '.[torch]'") from None
    with _without_collections():
        return _captured(name, seq_len, make)


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


def _captured(name: str, seq_len: int, make: Callable[[], Any]) -> Capture:
    import torch

    from simpar.tracing.recording import Construction

    with torch.device("meta"), Construction.recorded() as construction:
        made = _made(name, make)
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise UserError(f"model = {name}: returns {type(module).__name__}; {ALLOWED}")
    drops = _keeps_layers(module)
    module = _without_cache(module).to("meta").train()
    examples = _Examples.of(name, inputs, seq_len)
    joined = _joined(name, *_pair(name, module, examples), construction.buffers(module))
    return replace(joined, module=type(module).__name__, drops_layers=drops)


def _pair(name: str, module: Any, examples: _Examples) -> tuple[ModuleRun, ModuleRun, tuple[TraceShape, TraceShape]]:
    """Recordings at two shapes with the same operators, and the shapes. Raises UserError where there are none.

    Half the length comes first. One token less keeps the number of passes through loops over chunks, and one of both
    neighbours is on the same side of a window. A table of positions may end before the upper one, or be read without
    a cut at this length alone.
    """
    long, short = examples.shapes
    near = TraceShape(long.batch, long.seq - 1 or 1)
    first = _record(name, module, examples, long)
    seconds = {}
    for seq in dict.fromkeys((short.seq, near.seq, long.seq + 1)):
        shape = TraceShape(short.batch, seq)
        try:
            seconds[seq] = _record(name, module, examples, shape)
        except UserError:
            if seq > long.seq:
                continue
            raise
        if first.ops == seconds[seq].ops:
            return first, seconds[seq], (long, shape)
    if near.seq > short.seq and seconds[short.seq].ops == seconds[near.seq].ops:
        return _record(name, module, examples, near), seconds[short.seq], (near, short)
    raise UserError(
        f"model = {name}: runs other operators for {long.seq} tokens than for {short.seq}; allowed: the same at "
        "every length"
    )


def _made(name: str, make: Callable[[], Any]) -> Any:
    """The module; an error in the code that makes it becomes a UserError of one line."""
    try:
        return make()
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


def _keeps_layers(module: Any) -> bool:
    """Switch off the dropping of layers (LayerDrop, arXiv 1909.11556), which two recordings would draw differently."""
    dropping = [each for each in module.modules() if isinstance(rate := getattr(each, "layerdrop", 0), float) and rate]
    for each in dropping:
        each.layerdrop = 0.0
    return bool(dropping)


def _line(error: Exception) -> str:
    lines = [*filter(None, map(str.strip, str(error).splitlines())), ""]
    text = " ".join(lines[:2]).strip() if lines[0].endswith(":") else lines[0]  # the cause stands below its heading
    if "torch.nonzero()" in text:
        return "it picks rows by their values"
    if "Cannot copy out of meta tensor" in text:
        return "it reads values that depend on data, such as the tokens of each expert"
    return f"{type(error).__name__}: {text if len(text) <= MAX_LINE else text[:MAX_LINE] + '...'}"


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


def _record(name: str, module: Any, examples: _Examples, shape: TraceShape) -> ModuleRun:
    """The module's calls at a shape. Raises UserError where it cannot run without data."""
    from simpar.tracing.recording import record

    positional, named = examples.at(shape)
    try:
        return record(module, positional, named)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        check_positions(name, shape.seq, positions_of(module))
        raise UserError(
            f"model = {name}: cannot be traced with {shape.seq} tokens ({_line(error)}); "
            "allowed: modules that run on the meta device"
        ) from None


def _joined(name: str, long: ModuleRun, short: ModuleRun, shapes: tuple[TraceShape, TraceShape], made: Made) -> Capture:
    """The calls of both traces as one list with symbolic sizes; buffers have the values that they were made with."""
    from simpar.tracing.recording import ordinary_tokens  # late, as it imports torch

    parameters, inputs, constants = {*long.parameters}, {*long.inputs}, Constants(long.calls, made=made)
    nodes: dict[str, CallNode] = {}
    for one, two in zip(long.calls, short.calls, strict=True):
        shape, sizes, floating = _sizes(one, two, shapes)
        kind = _kind(one, nodes, parameters, inputs, floating)
        nodes[one.name] = CallNode(
            one.name, one.op, one.args, shape, sizes, kind, one.owners, floating, _seen(one, nodes, constants)
        )
    tokens = {each: nodes[each].sizes for each in long.inputs if nodes[each].kind == INDEX}
    check_tables(name, shapes[0].seq, long.calls, nodes, Constants(long.calls, ordinary_tokens(tokens), made))
    masked = (
        node.path for node in nodes.values() if node.op == _CORE and node.mask is None and [*refs_of(node.args[3:4])]
    )
    return Capture(nodes, {each: nodes[each].sizes for each in long.parameters}, masked=tuple(masked))


def _sizes(
    one: TracedCall, two: TracedCall, shapes: tuple[TraceShape, TraceShape]
) -> tuple[Any, tuple[int, ...], bool]:
    if not hasattr(one.value, "shape"):
        return None, (), True
    sizes = tuple(int(size) for size in one.value.shape)
    pairs = zip(sizes, (int(size) for size in two.value.shape), strict=True)
    shape = tuple(length(a, b, shapes) for a, b in pairs)
    return shape, sizes, bool(one.value.is_floating_point() or one.value.is_complex())


def _kind(
    call: TracedCall, nodes: Mapping[str, CallNode], parameters: set[str], inputs: set[str], floating: bool
) -> str:
    """What a call depends on: nothing, token numbers, parameters, or the batch.

    Products of parameters with each other, or with constants, are work of every pass, as those with the batch.
    """
    if call.op == "placeholder":
        if call.name in parameters:
            return WEIGHTS
        return (DATA if floating else INDEX) if call.name in inputs else CONSTANT
    kinds = {nodes[ref].kind for ref in refs_of(call.args)}
    if INDEX in kinds and WEIGHTS in kinds and call.op in _TABLE_OPS:
        return DATA
    if WEIGHTS in kinds and base(call.op) in PRODUCTS:
        return DATA
    return max(kinds or {CONSTANT}, key=_RANK.__getitem__)


def _seen(call: TracedCall, nodes: Mapping[str, CallNode], constants: Constants) -> Mask | None:
    """The keys seen under the mask among a call's arguments, where it is core attention or masks scores."""
    if call.op == _CORE:
        masks = [mask for ref in refs_of(call.args[3:4]) for mask in _masks(ref, nodes, constants)]
        return next((mask for mask in masks if mask != Mask()), next(iter(masks), None))
    if call.op in ("masked_fill", "masked_fill_", "where", "add", "add_"):
        fixed = [r for r in refs_of(call.args) if nodes[r].kind == CONSTANT]
        square = [r for r in fixed if len(nodes[r].sizes) >= 2 and min(nodes[r].sizes[-2:]) > 1]
        hides = call.op.startswith("masked_fill")
        return next((mask for ref in square if (mask := constants.mask(ref, hides=hides))), None)
    return None


def _masks(name: str, nodes: Mapping[str, CallNode], constants: Constants) -> Iterator[Mask]:
    """Masks that a mask is made of, nearest first; those of "where" and of sums are read there already.

    What lies before a choice of the largest chooses the keys, and hides none itself.
    """
    waiting, seen = [name], {name}
    while waiting:
        node = nodes[waiting.pop(0)]
        mask = constants.mask(node.name, hides=False) if node.kind == CONSTANT else node.mask
        if mask is not None:
            yield mask
        if node.kind != CONSTANT and base(node.op) not in SORTS:
            waiting += [ref for ref in node.refs if ref not in seen]
            seen.update(node.refs)
