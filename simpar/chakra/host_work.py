"""Costs of operators in torch's execution traces on a device, by the same kernel model as everything else.

Products and attention are priced by their shapes; all other kernels move their tensors through memory. Operators that
return views, allocate tensors or hand a number to the host do nothing on the device.
"""

import re
from collections.abc import Callable, Iterable
from math import prod

from simpar.chakra.host_nodes import HostNode, HostTensor
from simpar.cost.kernels import KernelModel
from simpar.errors import UserError
from simpar.hardware.device import Device
from simpar.units import to_ns

Shape = tuple[int, ...]
_ROOM = re.compile(r"aten::(new_)?empty")
_FILLED = re.compile(r"aten::(new_)?(zeros|ones|full)(_like)?")
"""Operators that make a tensor filled with one number, which an operator inside them writes."""
_BEGINS = ("fill_", "zero_")
_WRITES_ONLY = (*_BEGINS, "copy_", "normal_", "uniform_", "random_", "bernoulli_")
"""Operators that do not read the tensor that they write; the first are those with which other operators begin."""
_UNKNOWN = re.compile(r"conv|_lstm|_gru|_rnn|grouped_mm|flash_attn|scaled_mm|cudnn_rnn|fft|linalg")
"""Operators that are bound by compute and have no price here."""
_ATTENTION = re.compile(r"aten::_scaled_dot_product_\w*attention\w*|aten::_(flash|efficient)_attention_\w+")


def _mm(a: Shape, b: Shape) -> tuple[int, int, int, int]:
    return a[0], b[1], a[1], 1


def _bmm(a: Shape, b: Shape) -> tuple[int, int, int, int]:
    return a[1], b[2], a[2], a[0]


def _linear(a: Shape, b: Shape) -> tuple[int, int, int, int]:
    return prod(a[:-1]), b[0], a[-1], 1


PRODUCTS: dict[str, tuple[tuple[str, str], Callable[[Shape, Shape], tuple[int, int, int, int]]]] = {
    "aten::mm": (("self", "mat2"), _mm),
    "aten::addmm": (("mat1", "mat2"), _mm),
    "aten::addmm_": (("mat1", "mat2"), _mm),
    "aten::bmm": (("self", "mat2"), _bmm),
    "aten::baddbmm": (("batch1", "batch2"), _bmm),
    "aten::baddbmm_": (("batch1", "batch2"), _bmm),
    "aten::mkldnn_linear": (("input", "weight"), _linear),
}
"""Products of matrices: names of their operands, and (rows, columns, contraction, batch) from the operands' shapes."""


def is_whole(node: HostNode) -> bool:
    """Whether an operator is priced as a whole, whatever it calls."""
    return node.name in PRODUCTS or bool(_ATTENTION.fullmatch(node.name))


def works(node: HostNode) -> bool:
    """Whether an operator may write anything: its result is neither a view of an input nor merely allocated."""
    return bool(node.schema and node.results and not node.gives_views and not _ROOM.match(node.name))


def works_itself(node: HostNode, inside: Iterable[HostNode]) -> bool:
    """Whether an operator writes a tensor that no operator ``inside`` it writes, except to initialise it."""
    if not works(node) or _FILLED.fullmatch(node.name):
        return False
    others = (each for each in inside if works(each) and each.name.rpartition("::")[2] not in _BEGINS)
    written = {tensor.storage for each in others for tensor in each.results}
    return any(tensor.storage not in written for tensor in node.results)


class HostPricer:
    """Prices operators on a device; ``source`` names their file in errors."""

    def __init__(self, device: Device, source: str) -> None:
        self.device, self.source = device, source
        self._models: dict[str, KernelModel] = {}

    def duration_ns(self, node: HostNode) -> int | None:
        """Nanoseconds of an operator; None where it does nothing on the device. Raises UserError without a price."""
        if node.name in PRODUCTS:
            return self._product(node)
        if _ATTENTION.fullmatch(node.name):
            return self._attention(node)
        if not works(node):
            return None
        if _UNKNOWN.search(node.name):
            raise UserError(
                f"{self.source}: node {node.id} {node.name}: has no price; allowed: products, attention, and operators "
                "that move memory"
            )
        moved = sum(tensor.size_bytes for tensor in (*node.tensors(), *node.results))
        if node.name.rpartition("::")[2] in _WRITES_ONLY:
            moved -= sum(tensor.size_bytes for tensor in node.tensors()[:1])
        return int(to_ns(self._any.memory_time_s(float(moved)))) if moved else None

    @property
    def _any(self) -> KernelModel:
        """The model for kernels whose precision does not matter."""
        return self._model(next(iter(self.device.peak_flop_per_s)))

    def _model(self, dtype: str) -> KernelModel:
        if dtype not in self._models:
            self._models[dtype] = KernelModel(self.device, dtype)
        return self._models[dtype]

    def _precise(self, node: HostNode, tensor: HostTensor) -> KernelModel:
        """The kernel model for a tensor's dtype; TF32 is not considered. Raises UserError where there is none."""
        if tensor.dtype not in self.device.peak_flop_per_s:
            dtype = tensor.dtype or "another type"
            raise UserError(
                f"{self.source}: node {node.id} {node.name} computes in {dtype}; device {self.device.name} has "
                f"{', '.join(self.device.peak_flop_per_s)}"
            )
        return self._model(tensor.dtype)

    def _product(self, node: HostNode) -> int:
        names, sizes = PRODUCTS[node.name]
        try:
            a, b = (node.tensors(name)[0] for name in names)
            rows, columns, depth, batch = sizes(a.shape, b.shape)
        except (KeyError, IndexError, ValueError):
            raise UserError(f"{self.source}: node {node.id} {node.name}: has no shapes of two matrices") from None
        return int(to_ns(self._precise(node, a).gemm_time_s(rows, columns, depth, batch=batch)))

    def _attention(self, node: HostNode) -> int:
        try:
            query, key = node.tensors("query")[0], node.tensors("key")[0]
            batch, heads, queries, dim = query.shape
            keys = key.shape[2]
        except (KeyError, IndexError, ValueError):
            raise UserError(f"{self.source}: node {node.id} {node.name}: has no shapes of query and key") from None
        seen = (keys + 1) / 2 if node.value("is_causal") is True else float(keys)
        model, shape = self._precise(node, query), (batch, queries, heads, dim)
        kv_heads, backward = key.shape[1], "backward" in node.name
        took = model.attention_time_s(shape, context=keys, seen=seen, kv_heads=kv_heads, backward=backward)
        return int(to_ns(took))
