"""What a block keeps between forward and backward: the distinct tensors its operators save, in bytes.

With flash attention and fused kernels a Llama layer keeps 8h + 2(q + 2kv) + 2q + 6f + 4a bytes a token; a GPT
layer with dropout and unfused attention s b h (34 + 5 a s / h) [Korthikanti et al. 2022, arXiv 2205.05198].
Sizes may be numpy arrays: everything broadcasts.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from simpar.architectures.graph import (
    INPUT,
    PRODUCTS,
    Block,
    Operator,
    evaluate,
    is_column_parallel,
    is_row_parallel,
    saved_tensors,
)
from simpar.architectures.recompute import is_full, operators, segment
from simpar.cost.context import exchange_elements
from simpar.dataclass import dataclass
from simpar.layout.sharding import RankDims
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.precisions import PRECISIONS
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Flags, Numbers

_FLOAT = DTYPE_BYTES["fp32"]


@dataclass(frozen=True)
class BlockActivations:
    """Bytes of one block and microbatch on one rank.

    ``saved`` live until backward; ``recomputed`` only while this block's backward runs; workspaces are the
    largest temporaries of the passes.
    """

    saved_bytes: Numbers
    recomputed_bytes: Numbers
    forward_workspace_bytes: Numbers
    backward_workspace_bytes: Numbers


def block_activations(
    block: Block, dims: RankDims, stack: Stack, numerics: DecidedNumerics, recompute: str = "none"
) -> BlockActivations:
    """Saved and transient bytes of one block and microbatch on the rank of ``dims``; arrays where ``dims`` has them.

    ``recompute`` is the choice for this layer: none, selective, full (or a place in a segment), or modules. What was
    worked out is kept with the dims: stages, and questions about memory, share them.
    """
    width = activation_bytes(numerics)
    cast = numerics.products.is_cast and stack.memory.transformer_engine
    kept = numerics.products.operand_bytes if cast else width
    key = id(block), id(stack), numerics.precision, width, kept
    if key not in dims.known:  # the sizes keep the block and the stack alive
        dims.known[key] = _Sizes(block, dims.of_block(block), stack, numerics.precision, width, kept)
    if (*key, recompute) not in dims.known:
        dims.known[*key, recompute] = dims.known[key].activations(recompute)
    result: BlockActivations = dims.known[*key, recompute]
    return result


def reads_narrow(op: Operator, precision: str) -> bool:
    """Whether a product reads its operands in fewer than 16 bits; the output projection does not."""
    return op.name != "lm_head" and PRECISIONS[op.computes_in(precision)].is_cast


def activation_bytes(numerics: DecidedNumerics) -> float:
    """Bytes of an activation element: 8-bit and 4-bit products hand each other bf16."""
    return numerics.products.handed_bytes


def _largest(sizes: Iterable[Numbers]) -> Numbers:
    """Elementwise maximum, 0 of nothing."""
    largest: Numbers = 0.0
    for size in sizes:
        largest = np.maximum(largest, size)
    return largest


@dataclass(frozen=True)
class _Sizes:
    """Tensor sizes of one block; ``width`` is bytes of an activation element, ``kept`` of one a product keeps."""

    block: Block
    dims: RankDims
    stack: Stack
    precision: str
    width: float
    kept: float

    def activations(self, recompute: str) -> BlockActivations:
        """Sizes under one recompute choice; where nothing runs backward, nothing is kept for it."""
        result = self._for_policy(recompute)
        if self.block.has_no_backward:
            return BlockActivations(0.0 * result.saved_bytes, 0.0, result.forward_workspace_bytes, 0.0)
        return result

    def _for_policy(self, recompute: str) -> BlockActivations:
        total, forward, backward = self._without_recomputation
        if is_full(recompute):
            # While layer ``at`` of a segment runs backward, the tensors of the layers 0..at are held; the input of
            # the segment is kept from forward on, by its first layer.
            at, _ = segment(recompute)
            inputs = self.boundary * self._checkpoints
            kept = inputs if at == 0 else 0.0 * inputs
            return BlockActivations(kept, (at + 1) * total - inputs, self._discard_workspace(), backward)
        if chosen := operators(recompute):
            # outputs of these operators are dropped, but for attention's: the product behind it keeps that as its input
            dropped = sum(
                self._tensor(key, op, what)
                for key, op, what in saved_tensors(self.block)
                if op and op.name in chosen and (op.kind, what) != ("attention", "output")
            )
            if chosen & {op.name for op in self._all("attention")}:  # unfused, its scores as well
                dropped = dropped + self._scores()
                forward = np.maximum(forward, self._scores())
            return BlockActivations(total - dropped, dropped, forward, backward)
        if recompute == "selective":
            kept = self._chosen() if self.stack.memory.selective == "operators" else total - self._core_attention()
            kept = np.minimum(kept, total)
            return BlockActivations(kept, total - kept, np.maximum(forward, self._scores()), backward)
        return BlockActivations(total, 0.0 * total, forward, backward)

    @cached_property
    def _without_recomputation(self) -> tuple[Numbers, Numbers, Numbers]:
        """Saved bytes, and the workspace of forward and of backward."""
        peak_loss = _largest(np.maximum(peak - saved, 0.0) for saved, peak in self._loss_bytes())
        head = _largest(self._empty_gradient(op) for op in self.block.operators if op.name == "lm_head")
        backward = np.maximum(self._backward_workspace(), peak_loss + head)
        return self._saved(), np.maximum(self._forward_workspace(), peak_loss), backward

    @property
    def boundary(self) -> Numbers:
        """The residual stream between two blocks."""
        local = self.dims.sequence
        return local["batch"] * local["seq"] * evaluate(self.block.stream, local) * self.width

    @property
    def _checkpoints(self) -> int:
        """How many inputs full recomputation keeps of a layer: its own, or those of its norms and of what they feed.

        NeMo Automodel wraps self_attn, mlp and both norms apart [components/distributed/parallelizer.py], but layers of
        mixtures whole [components/moe/parallelizer.py, apply_ac].
        """
        norms = sum(op.kind == "norm" and op.region == "sequence" for op in self.block.operators)
        apart = self.stack.memory.checkpoints == "modules" and not self._all("router")
        return max(1, 2 * norms) if apart else 1

    @property
    def _whole_rows(self) -> bool | Flags:
        """Whether sequence parallelism is on: the residual stream has fewer rows than the tensor region."""
        return not self.dims.is_whole and self.dims.tensor["seq"] > self.dims.sequence["seq"]

    def _saved(self) -> Numbers:
        """Bytes of all saved tensors, logits as the loss keeps them, scores of unfused attention, and habits."""
        tensors = sum(self._tensor(key, op, what) for key, op, what in saved_tensors(self.block))
        losses = sum(saved for saved, _ in self._loss_bytes())
        return tensors + losses + self._scores() + self._framework_copies() + self._experts() + self._dropped()

    def _tensor(self, key: str, op: Operator | None, what: str) -> Numbers:
        if op is not None and what in ("mask", "stats", "lse"):
            return self._own(op, what)
        if op is not None and any(key in loss.inputs for loss in self._all("loss")):
            return 0.0  # logits are counted with their loss, which has a width of its own
        if op is not None and self._is_recomputed_in_backward(op):
            return 0.0
        size = self._residual(key, op) if op is None or op.region == "sequence" else self._output(op)
        return size * self._as_kept(key)

    def _as_kept(self, key: str) -> float:
        """Bytes kept of a tensor over its own: 1 for readers of the tensor itself, more for a cast that products keep.

        Products that cast their input and keep the cast do not keep the input.
        """
        savers = [op for op in self.block.operators if key in op.saves]
        if self.stack.memory.gate_inputs == "fp8" and [op.kind for op in savers] == ["gated_activation"]:
            return DTYPE_BYTES["fp8"] / self.width
        if self.kept == self.width:
            return 1.0
        casts = [op.kind in ("matmul", "grouped_matmul") and self._is_cast(op) for op in savers]
        return float(not all(casts)) + any(casts) * self.kept / self.width

    def _is_cast(self, op: Operator) -> bool:
        """Whether a product reads its input in less than 16 bits."""
        return reads_narrow(op, self.precision)

    def _own(self, op: Operator, what: str) -> Numbers:
        """An operator's own mask (1 byte an element), statistics (fp32 a row) or lse (fp32 a row and head)."""
        local = self.dims.of(op)
        rows, fusion = evaluate(op.rows, local), self.stack.fusion
        if what == "mask":
            return rows * evaluate(op.columns, local)
        if what == "stats":
            return 0.0 if fusion.norm else rows * _FLOAT
        return 0.0 if fusion.attention == "unfused" else rows * local["heads"] * _FLOAT

    def _residual(self, key: str, op: Operator | None) -> Numbers:
        """A tensor of the residual stream: its shard, or whole rows where a product keeps what it gathered.

        The shard is kept beside the whole rows where an operator other than these products saves it.
        """
        shard = self.boundary if op is None else self._output(op)
        savers = [other for other in self.block.operators if key in other.saves]
        products = [other for other in savers if other.kind == "matmul" and other.region == "tensor"]
        if not products or self.stack.overlap.regather_input:
            return shard
        tensor, sequence = self.dims.tensor, self.dims.sequence
        whole = shard * tensor["seq"] / sequence["seq"]
        alone = 1.0 if len(savers) > len(products) else 0.0
        return np.where(self._whole_rows, whole + alone * shard, shard)

    def _output(self, op: Operator) -> Numbers:
        if op.kind == "clamp" and op.region == "expert" and self.stack.fusion.expert_epilogues:
            return 0.0
        local = self.dims.of(op)
        width = _FLOAT if op.kind == "router" else self.width  # logits of experts stay in fp32
        return evaluate(op.rows, local) * evaluate(op.columns, local) * width

    def _all(self, kind: str) -> list[Operator]:
        return [op for op in self.block.operators if op.kind == kind]

    def _loss_bytes(self) -> list[tuple[Numbers, Numbers]]:
        """(saved, peak) bytes of the logits of every loss."""
        sizes = ((op.rows, op.columns) for op in self._all("loss"))
        dims = self.dims.tensor
        if self.stack.memory.whole_vocabulary or self.stack.memory.whole_logits:
            dims = {**dims, "vocab": dims["whole_vocab"]}
        logits = (evaluate(rows, dims) * evaluate(columns, dims) for rows, columns in sizes)
        return [self.stack.memory.loss_bytes(number) for number in logits]

    def _scores(self) -> Numbers:
        """Scores of unfused attention: softmax output, dropout mask (1 byte) and dropout output: 5 a s^2 b."""
        if self.stack.fusion.attention != "unfused":
            return 0.0
        local = self.dims.tensor
        scores = local["batch"] * local["heads"] * local["seq"]
        each = (
            local[op.attention.context] * (2 * self.width + 1.0 if op.attention.dropout else self.width)
            for op in self._all("attention")
            if op.attention
        )
        return sum(scores * size for size in each)

    def _core_attention(self) -> Numbers:
        """What recomputing core attention drops: the scores, or the statistics of flash attention."""
        if self.stack.fusion.attention == "unfused":
            return self._scores()
        return sum(self._own(op, "lse") for op in self._all("attention"))

    def _chosen(self) -> Numbers:
        """What torchtitan's selective recomputation keeps: input, attention output and every other product.

        Query, key and value count as three products, gate and up as two.
        """
        if not self._all("attention"):
            return self._saved()
        kept, count = self.boundary, 0
        for op in self.block.operators:
            if op.kind == "attention":
                kept = kept + self._output(op) + self._own(op, "lse")
            for part in self._products(op):
                kept, count = kept + (part if count % 2 == 0 else 0.0), count + 1
        return kept

    def _products(self, op: Operator) -> list[Numbers]:
        """Bytes of the outputs of the separate products that a fused one stands for."""
        if op.kind != "matmul":
            return []
        local = self.dims.of(op)
        each = [evaluate((size,), local) for size in op.columns]
        parts = [part for part, (times, _) in zip(each, op.columns, strict=True) for part in [part / times] * times]
        rows = evaluate(op.rows, local) * self.width
        scattered = is_row_parallel(op) and not self.dims.is_whole
        sequence = self.dims.sequence["seq"] / self.dims.tensor["seq"] if scattered else 1.0
        return [rows * part * sequence for part in parts]

    def _framework_copies(self) -> Numbers:
        """Bytes that a stack keeps in a layer with attention beyond the tensors that its gradients need."""
        if not self._all("attention"):
            return 0.0
        tensor, sequence, habits = self.dims.tensor, self.dims.sequence, self.stack.memory
        rows, tokens = sequence["batch"] * sequence["seq"], tensor["batch"] * tensor["seq"]
        total: Numbers = habits.extra_saved * rows * sequence["hidden"]
        if habits.pins_packed_qkv and self._pins_packed:
            total = total + tokens * (tensor["heads"] + tensor["kv_heads"]) * tensor["head_dim"] * self.width
        if habits.eager_copies:
            norms = sum(1 for op in self.block.operators if op.kind == "norm" and op.region == "sequence")
            total = total + norms * rows * sequence["hidden"] * _FLOAT
        if habits.gate == "all":
            total = total + sum(self._output(op) for op in self.block.operators if op.kind == "gated_activation")
        return total

    @property
    def _pins_packed(self) -> bool:
        """Whether values are views of a product whose queries and keys are copies: behind rotations or norms.

        Without these all three are views, or all are copied. Latent attention has products of its own for queries and
        for keys with values, and copies the latter apart.
        """
        packed = {op.name for op in self._all("matmul") if sum(times for times, _ in op.columns) >= 3}
        return bool(packed) and not any(packed & set(op.inputs) for op in self._all("attention"))

    def _dropped(self) -> Numbers:
        """Bytes that dropout in front of adapters adds: for each projection a copy of its input and a byte of mask.

        Nothing reads the input itself in backward then, unless another operator keeps it [PEFT, tuners/lora/layer.py].
        """
        if not self.stack.fusion.adapter_dropout:
            return 0.0
        adapters = [op for op in self.block.operators if op.name.endswith(".lora_a")]
        kept = {key for op in self.block.operators if op not in adapters for key in op.saves}
        total: Numbers = 0.0
        for op in adapters:
            local, key = self.dims.of(op), op.inputs[0]
            size = evaluate(op.rows, local) * evaluate(op.contraction, local)
            total = total + size * (len(op.columns) * (self.width + 1.0) - self.width * (key not in kept))
            kept.add(key)
        return total

    def _experts(self) -> Numbers:
        """Bytes that ``keeps_outputs`` adds for a mixture: outputs of experts, and inputs of routers in fp32."""
        if not self.stack.experts.keeps_outputs:
            return 0.0
        outputs = sum(self._output(self.block.operator(name)) for op in self._all("combine") for name in op.inputs)
        local = self.dims.sequence
        read = (evaluate(op.rows, local) * evaluate(op.contraction, local) for op in self._all("router"))
        return outputs + _FLOAT * sum(read)

    def _forward_workspace(self) -> Numbers:
        """The largest output that nobody saves, with the gathered rows its product reads."""
        saved = {key for key, _, _ in saved_tensors(self.block)}
        return _largest(
            (0.0 if op.name in saved else self._output(op)) + self._gathered(op) + self._exchanged(op)
            for op in self.block.operators
            if op.kind not in ("loss", "add") and op.name != "lm_head"
        )

    def _gathered(self, op: Operator) -> Numbers:
        """Whole rows that a column-parallel product gathers and does not keep."""
        if not is_column_parallel(op) or not self.stack.overlap.regather_input:
            return 0.0
        local = self.dims.tensor
        return np.where(self._whole_rows, local["batch"] * local["seq"] * local["hidden"] * self.width, 0.0)

    def _backward_workspace(self) -> Numbers:
        """Gradients of one operator's output and inputs, what it gathers again, and the residual's gradient.

        An adapter's sum hands its gradient on to both of its inputs as it is, and makes none of its own.
        """
        inner = [
            op
            for op in self.block.operators
            if op.kind != "loss" and op.name != "lm_head" and not op.name.endswith(".lora_add")
        ]
        return self.boundary + _largest(
            (1.0 + self._is_recomputed_in_backward(op)) * self._output(op) + self._input(op) + self._gathered(op)
            + self._query_sum(op) + self._exchanged(op, backward=True) + self._empty_gradient(op)
            for op in inner
        )  # fmt: skip

    def _exchanged(self, op: Operator, *, backward: bool = False) -> Numbers:
        """Bytes of exchange buffers: keys, values and heads for attention; tokens sent and received for experts."""
        if op.kind == "dispatch":
            return self._output(op)
        if op.kind == "combine":
            return 2.0 * sum(self._output(self.block.operator(name)) for name in op.inputs)
        if op.kind != "attention":
            return 0.0
        return exchange_elements(op, self.dims.tensor, backward=backward) * self.width

    def _empty_gradient(self, op: Operator) -> Numbers:
        """Bytes of the empty gradient that autograd gets from a product that adds into fp32 buffers itself."""
        if op.kind != "matmul" or not self.stack.numerics.gradient_accumulation_fusion:
            return 0.0
        if not op.is_trained:
            return 0.0
        if self.stack.memory.transformer_engine and op.name != "lm_head":
            return 0.0
        return sum(evaluate(weight.size, self.dims.tensor) for weight in op.weights) * self.width

    def _is_recomputed_in_backward(self, op: Operator) -> bool:
        """Whether an operator's output is not kept because the kernel of its backward computes it once more."""
        return op.kind == "gated_activation" and self.stack.memory.gate == "inputs"

    def _query_sum(self, op: Operator) -> Numbers:
        """Bytes of the fp32 sum in which flash attention collects the query's gradient."""
        if op.kind != "attention" or self.stack.fusion.attention == "unfused":
            return 0.0
        return self._output(op) * _FLOAT / self.width

    def _input(self, op: Operator) -> Numbers:
        if op.kind in PRODUCTS:
            local = self.dims.tensor if op.region == "tensor" else self.dims.of(op)
            return evaluate(op.rows, local) * evaluate(op.contraction, local) * self.width
        made = {other.name: other for other in self.block.operators}
        return sum(self.boundary if name == INPUT else self._output(made[name]) for name in op.inputs)

    def _discard_workspace(self) -> Numbers:
        """Workspace of a forward that keeps its input alone: the residual, and one operator's input and output."""
        inner = (op for op in self.block.operators if op.kind != "loss")
        return self.boundary + _largest(self._output(op) + self._input(op) + self._exchanged(op) for op in inner)
