"""What one rank sees of the job: local sizes, kernel times and habits of the stack, resolved from the layout.

The layout of a job may stand for a batch of layouts that differ in sizes only (tensor- and expert-parallel degrees,
sequences per microbatch): it then holds these sizes as arrays, and everything computed from them here is an array too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from simpar.architectures.graph import Block, Dims, Operator, evaluate
from simpar.dataclass import dataclass
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.routing import Routing, max_rank_arrivals, max_rank_load
from simpar.program.job import TrainingJob
from simpar.units import DTYPE_BYTES, Numbers, floats, scalar_truth

ANY = -1


@dataclass(frozen=True)
class RankView:
    """Sizes and times of one tensor-parallel rank. Bytes are per microbatch.

    ``late_s`` is the time for which every tensor-parallel collective holds up the host on disturbed nodes.
    ``fullest_load`` is the load of the expert rank with the most tokens, over the mean. ``context_rank`` is the
    context-parallel coordinate where ranks differ by it (contiguous chunks under a causal mask), else ANY.
    """

    job: TrainingJob
    dims: RankDims
    late_s: Numbers = 0.0
    fullest_load: Numbers = 1.0
    context_rank: int = ANY

    @staticmethod
    def of(job: TrainingJob, *, late_per_member_s: Numbers = 0.0) -> RankView:
        """The view of a rank of the job; all ranks of a mesh are alike up to stage and speed."""
        layout, graph = job.layout, job.graph
        fullest: Numbers = 1.0
        if graph.is_mixture:
            fullest = floats(max_rank_load(Routing.of_dims(graph.dims), layout, layout.ep))
        dims = rank_dims(graph, layout, job.training)
        return RankView(job, dims, late_s=late_per_member_s * layout.tp, fullest_load=fullest)

    def of_block(self, block: Block) -> RankView:
        """The view with dims as a block of another tower names them."""
        return replace(self, dims=self.dims.of_block(block))

    @property
    def tensor(self) -> Dims:
        """Dims of operators of region "tensor"."""
        return self.dims.tensor

    @property
    def sequence(self) -> Dims:
        """Dims of operators of region "sequence"."""
        return self.dims.sequence

    def with_load(self, load: float, fullest: float) -> RankView:
        """The view of an expert rank with its own share of tokens, where the fullest has ``fullest``."""
        dims = rank_dims(self.job.graph, self.job.layout, self.job.training, load=load)
        return replace(self, dims=dims, fullest_load=fullest)

    @cached_property
    def routing(self) -> Routing:
        """How a token chooses its experts."""
        return Routing.of_dims(self.job.graph.dims)

    @property
    def exchange_op(self) -> str:
        """The operation that brings tokens to their experts, and back."""
        return self.routing.op if self.job.layout.token_dispatch == "per_node" else "all_to_all"

    @cached_property
    def routed_bytes(self) -> Numbers:
        """Bytes of all copies of the rank's own tokens, scaled up to what the fullest rank receives."""
        tokens = self.sequence["batch"] * self.sequence["seq"] * self._copies
        return floats(tokens) * self.job.graph.expert_hidden * self.compute_bytes * self._fullest_share

    @cached_property
    def sent_bytes(self) -> Numbers:
        """Bytes of these copies on their way to the experts: some stacks cast them to the dtype of products first."""
        products = self.job.layout.products
        if not products.scales or not self.job.stack.experts.sends_cast:
            return self.routed_bytes
        return self.routed_bytes * products.operand_bytes / self.compute_bytes

    @property
    def scores_bytes(self) -> Numbers:
        """Bytes of the fp32 scores of these copies."""
        return self.routed_bytes / self.compute_bytes / self.job.graph.expert_hidden * DTYPE_BYTES["fp32"]

    @property
    def gathered_bytes(self) -> Numbers:
        """Bytes of the tokens of all expert-parallel ranks, one copy each."""
        tokens = self.sequence["batch"] * self.sequence["seq"]
        return floats(tokens) * self.job.graph.expert_hidden * self.compute_bytes * self.job.layout.ep

    @property
    def _fullest_share(self) -> Numbers:
        """Tokens that the fullest rank receives over the mean; padding to a capacity is sent as well as computed."""
        layout = self.job.layout
        if layout.token_dispatch == "per_expert" or layout.capacity_factor is not None:
            return self.fullest_load
        return floats(max_rank_arrivals(self.routing, self.fullest_load, self.job.layout.ep))

    @property
    def _copies(self) -> Numbers:
        """Copies of a token that travel: one for each of its experts, or for each rank expected to hold some."""
        if self.job.layout.token_dispatch == "per_expert":
            return int(self.sequence["topk"])

        def expected(ranks: int) -> float:
            return ranks * self.routing.holds(1 / ranks)

        return floats(np.vectorize(expected, otypes=[float])(self.job.layout.ep))

    @property
    def token_bytes(self) -> Numbers:
        """Bytes of the tokens of all ranks that share an expert."""
        assert self.dims.expert is not None, "only mixtures route tokens"
        tokens = self.dims.expert["batch"] * self.dims.expert["seq"]
        return floats(tokens) * self.job.graph.expert_hidden * self.compute_bytes

    @property
    def tensor_parallel(self) -> Numbers:
        """Tensor-parallel degree."""
        return self.job.layout.tp

    @property
    def has_tensor_ranks(self) -> bool:
        """Whether other ranks hold slices of its tensors."""
        return scalar_truth(self.tensor_parallel > 1)

    @property
    def sequence_parallel(self) -> bool:
        """Whether the residual stream is sharded over the sequence."""
        return bool(self.job.layout.sequence_parallel) and self.has_tensor_ranks

    @property
    def uneven_context(self) -> bool:
        """Whether later context ranks have more to do: contiguous chunks under a causal mask."""
        layout = self.job.layout
        if layout.cp_balance != "contiguous" or not scalar_truth(layout.cp > layout.ulysses_ranks):
            return False
        masks = (op.attention for block in self.job.graph.blocks.values() for op in block.operators if op.attention)
        return any(mask.causal and mask.window is None and mask.selection is None for mask in masks)

    @property
    def first(self) -> RankView:
        """The view of the first context rank, where they differ: it has least to do."""
        return replace(self, context_rank=0) if self.uneven_context else self

    @property
    def table_elements(self) -> Numbers:
        """Parameters of the token table on this rank, which the output projection may share."""
        return floats(evaluate(self.job.graph.embedding.operators[0].weights[0].size, self.tensor))

    @property
    def compute_bytes(self) -> float:
        """Bytes of one activation element."""
        return self.job.layout.products.handed_bytes

    def elements(self, op: Operator) -> Numbers:
        """Elements of all rows of an operator's output that this rank has."""
        return floats(evaluate(op.rows, self.tensor)) * floats(evaluate(op.columns, self.tensor))
