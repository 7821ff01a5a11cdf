"""One run of a module on the meta device, recorded: the ATen operators that it calls, and the modules around them.

Nothing is allocated or computed. Modules run in inference mode, where torch hands over composite operators (linear,
layer_norm, scaled_dot_product_attention) whole instead of their parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing import vocabulary as known
from simpar.tracing.expert_loops import grouped_experts
from simpar.tracing.fused import whole_kernels
from simpar.tracing.lightning_loops import whole_lightning
from simpar.tracing.masks import Constants, Made
from simpar.tracing.nodes import Ref, TracedCall, refs_of
from simpar.tracing.time_loops import whole_scans

PLACEHOLDER = "placeholder"
A_TOKEN = 5
"""The number of an ordinary token, which no tokenizer keeps for padding or for ends of sequences."""
_READS_VALUE = ("_local_scalar_dense", "is_nonzero", "item", "equal", "allclose")


@dataclass(frozen=True)
class ModuleRun:
    """The calls in order, and the names among them of parameters (each once) and of inputs."""

    calls: list[TracedCall]
    parameters: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def ops(self) -> list[str]:
        """Names of all operators; a slice of everything counts as a slice."""
        return ["slice" if call.op == "alias" else call.op for call in self.calls]


def ordinary_tokens(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Token numbers on the CPU, int64 of every shape, all of them ``A_TOKEN``."""
    return {name: torch.full(shape, A_TOKEN, device="cpu") for name, shape in shapes.items()}


def record(module: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> ModuleRun:
    """What the module calls for inputs, all of it on the meta device. Raises whatever the module raises."""
    recorder = _Recorder()
    parameters = [recorder.place(f"p_{path}", each) for path, each in module.named_parameters()]
    for path, each in module.named_buffers():
        recorder.place(f"b_{path}", each)
    given = {f"in_{at}": each for at, each in enumerate([*positional, *named.values()])}
    inputs = [recorder.place(name, each) for name, each in given.items()]
    recorder.unknown.update(parameters, (name for name, each in given.items() if each.is_floating_point()))
    recorder.tokens = {name: each for name, each in given.items() if not each.is_floating_point()}
    eager = torch.compiler.set_stance("force_eager")
    whole = whole_kernels(module, recorder.note_kernel)
    torch.distributions.Distribution.set_default_validate_args(False)  # its checks ask for values
    known_as, loops = recorder.knowing_modules(module), grouped_experts(module)
    pieces, scans = whole_lightning(module, recorder.note_kernel), whole_scans(module, recorder.note_kernel)
    with torch.device("meta"), torch.inference_mode(), eager, known_as, whole, loops, pieces, scans, recorder:
        module(*positional, **named)
    return ModuleRun(recorder.calls, tuple(parameters), tuple(inputs))


class Construction:
    """Calls that made a module's tensors, for the values of those buffers that depend on nothing else."""

    def __init__(self) -> None:
        self._recorder = _Recorder(reads=True)

    @staticmethod
    @contextmanager
    def recorded() -> Iterator[Construction]:
        """While it lasts, calls are added to what it gives."""
        result = Construction()
        with result._recorder:
            yield result

    def buffers(self, module: Any) -> Made:
        """The calls, and by the name that a buffer has in recordings, the call that made it."""
        names = {f"b_{path}": self._recorder.name_of(each) for path, each in module.named_buffers()}
        return Made(self._recorder.calls, {own: name for own, name in names.items() if name})


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Adds a call for each operator. Tensors are known by identity, so all are kept alive.

    With ``reads``, Python gets the numbers that it asks for from tensors that have some.
    """

    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self._reads = reads
        self.calls: list[TracedCall] = []
        self.unknown: set[str] = set()
        self.tokens: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._by_name: dict[str, Tensor] = {}
        self._alive: list[Tensor] = []
        self._owners: list[tuple[str, str]] = []
        self._whole: dict[int, Tensor] = {}
        self._changes: dict[int, list[str]] = {}
        self._made_before = _MadeBefore()
        self._packed: dict[str, tuple[int, tuple[Ref, ...], tuple[int, ...]]] = {}

    def place(self, name: str, tensor: Tensor) -> str:
        """Add a tensor that no call makes; its name."""
        if id(tensor) not in self._names:
            self._add(TracedCall(name, PLACEHOLDER, (), tensor, (), None), tensor)
        return self._names[id(tensor)]

    def name_of(self, tensor: Tensor) -> str:
        """The call that made a tensor, or changed all of it last ("" where none is known, or parts were changed)."""
        whole = self._whole.get(tensor.untyped_storage()._cdata)
        if whole is None or id(whole) in self._changes:
            return ""
        alike = whole.shape == tensor.shape and whole.stride() == tensor.stride()
        return self._names.get(id(whole if alike else tensor), "")

    @contextmanager
    def knowing_modules(self, module: Any) -> Iterator[None]:
        """Note which modules of ``module`` are running, as (path, class)."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        paths = {id(each): path for path, each in module.named_modules()}

        def enter(each: Any, _: Any) -> None:
            outer = self._owners[-1][0] if self._owners else ""
            self._owners.append((paths.get(id(each), outer), type(each).__name__))

        def leave(*_: Any) -> None:
            self._owners.pop()

        handles = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on the meta device and record it; a sum of products by its parts."""
        kwargs = kwargs or {}
        op = func._schema.name.split("::")[1]
        given = tuple(self._argument(arg) for arg in args)
        named = {key: self._argument(arg) for key, arg in kwargs.items()}
        call = TracedCall(
            f"{op}_{len(self.calls)}",
            op,
            _in_order(func, given, named),
            None,
            tuple(self._owners),
            func,
            (given, named),
        )
        if op in _READS_VALUE and not self._reads:
            return self._value(call)
        if op == "copy_" and _is_same(args[0], args[1]):  # t[i] += x ends with a copy of the changed part onto itself
            return args[0]
        if op in known.SUMS_OF_PRODUCTS:
            with self:
                return func.decompose(*args, **kwargs)
        if op == "index":
            args = (args[0], self._positions(args[1], call.args[1]))
        result = _grouped(*args) if op in known.GROUPED else self._made_before.of(func, args, kwargs)
        self._note(call, result)
        if op.endswith("_") and not op.endswith("__") and args and isinstance(args[0], Tensor):
            self._changed(args[0], call.name)
        return result

    def note_kernel(self, op: str, given: tuple[Any, ...], like: Tensor) -> Tensor:
        """Add the call of a fused kernel, whose output is like a tensor; the output."""
        args = tuple(self._argument(each) for each in given)
        result = torch.empty(like.shape, dtype=like.dtype, device="meta")
        self._note(TracedCall(f"{op}_{len(self.calls)}", op, args, None, tuple(self._owners), None), result)
        return result

    def _value(self, call: TracedCall) -> Any:
        """A number that Python asks for, where it depends on constants and on token numbers, all of them ``A_TOKEN``.

        Raises UserError where it depends on parameters or on other inputs.
        """
        result = None if self.unknown.intersection(refs_of(call.args)) else self._constants(call).value(call.name)
        if result is None:
            raise UserError(f"{call.op} in {call.owners[-1][0] if call.owners else 'forward'} depends on data")
        return result

    def _positions(self, picks: Any, named: Any) -> list[Any]:
        """What an index picks, with as many positions on the meta device as a mask has places that are true.

        A mask stays where it depends on data: torch then says that it picks rows by their values.
        """
        result: list[Any] = []
        for pick, name in zip(picks, named, strict=True):
            is_mask = isinstance(pick, Tensor) and pick.dtype == torch.bool and name.name not in self.unknown
            mask = self._constants().value(name.name) if is_mask else None
            if mask is None:
                result.append(pick)
            else:
                result += [torch.empty(int(mask.sum()), dtype=torch.int64, device="meta")] * pick.dim()
        return result

    def _constants(self, *further: TracedCall) -> Constants:
        """The calls so far, evaluated where they depend on constants and on token numbers, all of them ``A_TOKEN``."""
        tokens = {name: tuple(each.shape) for name, each in self.tokens.items()}
        return Constants([*self.calls, *further], ordinary_tokens(tokens))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Ref(self._up_to_date(value))
        return [self._argument(item) for item in value] if isinstance(value, list | tuple) else value

    def _note(self, call: TracedCall, result: Any) -> None:
        """Add a call and, where it makes several tensors, one more for each of these."""
        several = isinstance(result, list | tuple)
        self._add(replace(call, value=result), None if several else result)
        if call.op == "cat" and not several and all(isinstance(each, Ref) for each in call.args[0]):
            self._pack(call, result)
        parts = self._parts(call, result) if several else None
        for at, each in enumerate(result if several else ()):
            if isinstance(each, Tensor):
                name, picked = f"{call.name}.{at}", (Ref(call.name), at)
                made = TracedCall(name, "getitem", picked, each, call.owners, _pick, (picked, {}))
                if parts is not None:
                    made = replace(made, op="alias", args=(parts[at],), target=_same, given=((parts[at],), {}))
                self._add(made, each)

    def _pack(self, call: TracedCall, result: Tensor) -> None:
        """Note what was joined, and along which dim, where nothing changed its type (torch joins empty rows of any)."""
        tensors = [self._by_name[each.name] for each in call.args[0]]
        dim = int(call.args[1]) % result.dim()
        if all(each.dtype == result.dtype and each.dim() == result.dim() for each in tensors):
            self._packed[call.name] = dim, tuple(call.args[0]), tuple(int(each.shape[dim]) for each in tensors)

    def _parts(self, call: TracedCall, result: Any) -> tuple[Ref, ...] | None:
        """What had been joined, where a call takes it apart again at the same places; else None."""
        source = call.args[0].name if call.args and isinstance(call.args[0], Ref) else ""
        if not call.op.startswith(("split", "chunk")) or source not in self._packed:
            return None
        dim, parts, sizes = self._packed[source]
        along = call.args[2] if len(call.args) > 2 else 0
        same = int(along) % result[0].dim() == dim and tuple(int(each.shape[dim]) for each in result) == sizes
        return parts if same else None

    def _add(self, call: TracedCall, result: Any) -> None:
        self.calls.append(call)
        if self.unknown.intersection(refs_of(call.args)):
            self.unknown.add(call.name)
        if isinstance(result, Tensor):
            self._names[id(result)] = call.name
            self._by_name[call.name] = result
            self._alive.append(result)
            self._whole.setdefault(result.untyped_storage()._cdata, result)

    def _changed(self, tensor: Tensor, name: str) -> None:
        """A tensor changed in place: later readers of it, and of the tensor that it is a view of, read this call."""
        self._names[id(tensor)] = name
        whole = self._whole[tensor.untyped_storage()._cdata]
        if whole.shape == tensor.shape:
            self._names[id(whole)] = name
        else:
            self._changes.setdefault(id(whole), []).append(name)

    def _up_to_date(self, tensor: Tensor) -> str:
        """The name of a tensor; where views of it were changed in place, that of a copy with the changes."""
        if id(tensor) not in self._names:
            return self.place(f"c_{len(self.calls)}", tensor)
        if changes := self._changes.pop(id(tensor), None):
            name = f"{changes[-1]}.whole"
            parts = (Ref(self._names[id(tensor)]), [Ref(each) for each in changes])
            self._add(TracedCall(name, "copy", parts, tensor, tuple(self._owners), None), tensor)
        return self._names[id(tensor)]


class _MadeBefore:
    """Results of operators by the shapes of what they read, as layers repeat: torch's own rules for them are slow.

    Only operators that make one new tensor are kept, none that return a view or change an argument.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, ...]] = {}

    def of(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What an operator makes of arguments."""
        if any(each.alias_info is not None for each in (*func._schema.arguments, *func._schema.returns)):
            return func(*args, **kwargs)
        key = (func, _shapes(args), _shapes(tuple(kwargs.items())))
        if key in self._known:
            size, stride, dtype = self._known[key]
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.device.type == "meta" and not _shares(result, (args, kwargs)):
            self._known[key] = (tuple(result.shape), result.stride(), result.dtype)
        return result


def _shapes(value: Any) -> Any:
    """Arguments as a key: tensors by sizes, strides and type, numbers with their type."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device.type)
    if isinstance(value, list | tuple):
        return tuple(_shapes(each) for each in value)
    return (type(value), str(value))


def _shares(result: Tensor, given: Any) -> bool:
    """Whether a tensor has the memory of one among arguments."""
    if isinstance(given, Tensor):
        return bool(result.untyped_storage()._cdata == given.untyped_storage()._cdata)
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ()
    return any(_shares(result, each) for each in parts)


def _is_same(one: Tensor, two: Any) -> bool:
    """Whether two tensors are the same elements of one memory."""
    if not isinstance(two, Tensor) or one.untyped_storage()._cdata != two.untyped_storage()._cdata:
        return False
    return (one.storage_offset(), one.shape, one.stride()) == (two.storage_offset(), two.shape, two.stride())


def _grouped(rows: Tensor, matrices: Tensor, *_: Any) -> Tensor:
    """The shape of a grouped product; torch's own takes one dtype only."""
    return rows.new_empty(rows.shape[0], matrices.shape[-1])


def _same(value: Any) -> Any:
    return value


def _pick(values: Any, at: int) -> Any:
    return values[at]


def _in_order(target: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments in the order of the schema, with its defaults for those not given."""
    rest = target._schema.arguments[len(given) :]
    return (*given, *(named.get(each.name, each.default_value) for each in rest))
