"""What one replica of a serving engine costs: weights, cache and workspace in memory, and the time of iterations.

The kernels and collectives of an iteration are those of a forward pass of training for rows of one token each
(:func:`simpar.program.blocks.steps.block_steps`): weights, products, norms and tensor- or expert-parallel collectives
have one source. Three things differ. Products of few rows split their contraction. Attention of a decoding sequence
reads its cached keys and values: it takes the longer of their bytes over the memory's bandwidth and their FLOP over the
rate of attention kernels. And of a mixture only the experts are read to which some token goes: with T tokens of k out
of E experts, each is touched with probability 1 - (1 - k / E)^T.

Pipeline stages work on parts of the sequences in turn, so that an iteration of all is a pass of one part through all
stages, and what the last stage has more than the others once for each part but one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from simpar.architectures.graph import AttentionPattern, Block, ModelGraph, Operator, evaluate
from simpar.architectures.training import Training
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.part import part_of_node
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.plan import Plan
from simpar.plan.post_training import Rollout
from simpar.posttraining.iterations import NO_WINDOW, SCALE, IterationTimes, Piece
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import COMPUTE, EXPERT, TENSOR
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import block_steps
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.job import TrainingJob
from simpar.simulation import make_job
from simpar.stacks.stack import ExpertHabits, Fusion, Launch, Stack, StackNumerics
from simpar.units import DTYPE_BYTES, NS_PER_S, US, Floats, Ints, Numbers, format_bytes, to_ns

SAMPLER_BYTES = 50.0
"""Bytes that sampling moves for a logit where no token is excluded: widened to fp32 (6), divided by the temperature
(8), softmax in three passes (16), random numbers (4), their quotient (12), the largest (4) [vLLM 0.11, v1/sample,
forward_native; the softmax reads logits for their maximum, their sum and the result]."""
LOGPROB_BYTES = 20.0
"""Bytes more where log-probabilities come back: another softmax (16), and the sampled token's rank (4)."""
SAMPLER_KERNELS = 8
"""Kernels of both."""
SAMPLED_BYTES, SCORED_BYTES = 14.0, 4.0
"""Bytes that are held meanwhile for a logit: in 16 bits and fp32, its probability, a random number; and where they come
back, its log-probability."""
HOST_PER_KERNEL_S = 12 * US
"""Time of the host to launch a kernel where nothing is captured: that of the default training stack."""
CALL_US = 4.1
"""Launch and rendezvous of a collective in a captured graph, microseconds: what measured all-reduces of 512 bytes on 2
to 8 H100 and H200 take beyond the predicted hops (benchmarks/serving_kernels.py --call)."""
EXPERT_OVERHEAD = 1.3
"""Time of fused kernels of experts over that of their operands' way through caches and memory: fitted to 512 to 16,384
tokens of H100, H200, B200, GB200 and GB300 together (benchmarks/serving_kernels.py --experts)."""
USUAL_TILES = ((16, 32), (64, 64))
"""Tiles of fused kernels of experts for shapes that nobody tuned, few tokens and more [SGLang 0.5,
fused_moe_triton_config.py, get_default_config]."""
TUNED_TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
"""Those of shapes that the engine has a tuned file for, by device, experts and width [SGLang and vLLM, configs of
fused_moe]."""


def serving_stack(*, graphs: bool, tuned: bool = False) -> Stack:
    """What serving engines do: fused norms with the residual's sum, experts that gather their tokens, no gradients.

    The kernel that writes the input of an 8-bit product casts it, except where blocks have scales.
    """
    launch = Launch(graphs=("step",)) if graphs else Launch(host_time_per_kernel_s=HOST_PER_KERNEL_S)
    tiles = TUNED_TILES if tuned else USUAL_TILES
    experts = ExpertHabits(overhead=EXPERT_OVERHEAD, row_s=0.0, sync_s=0.0, exchange_host_s=0.0)
    return Stack(
        name="serving",
        description="an engine that serves a model",
        fusion=Fusion(residual=True, expert_tiles=tiles),
        launch=launch,
        experts=experts,
        numerics=StackNumerics(casts_apart=True),
    )


def engine_cluster(cluster: Cluster, devices: int) -> Cluster:
    """The part of a cluster that one replica has. Raises UserError where replicas do not fill nodes."""
    profile, whole = cluster.profile, cluster.profile.devices_per_node
    if cluster.is_mixed:
        raise UserError(f"hardware {profile.name}: has several kinds of nodes; allowed for rollouts: nodes of one kind")
    if cluster.world_size % devices or max(devices, whole) % min(devices, whole):
        raise UserError(
            f"post_training.rollout: a replica of {devices} devices: allowed: parts or multiples of a node of {whole} "
            f"that divide the pool of {cluster.world_size}"
        )
    if devices >= whole:
        return make_cluster(profile, devices // whole)
    return make_cluster(part_of_node(profile, devices), 1)


def check_served(graph: ModelGraph) -> None:
    """Raise UserError for a model whose decoding is not modelled."""
    for block in (graph.blocks[name] for name in dict.fromkeys(graph.layers)):
        if block.scope:
            raise UserError(f"model {graph.name}: has towers beside the decoder; allowed for rollouts: text decoders")
        mixers = [op for op in block.operators if op.kind in ("scan", "linear_attention", "indexer")]
        masks = [op.attention for op in block.operators if op.attention]
        odd = any(m.chunked or m.selection or m.context != "context" or not m.causal for m in masks)
        if mixers or odd or len(masks) != 1:
            raise UserError(
                f"model {graph.name}: layers {block.name} decode in a way that is not modelled; allowed for rollouts: "
                "causal attention to all keys, to a sliding window or to latents"
            )


@dataclass(frozen=True)
class CachedLayer:
    """The cache of one layer on one device: ``elements`` a token, which ``heads`` heads read with ``flop`` each key."""

    elements: float
    flop: float
    window: int


def cached_layer(block: Block, dims: RankDims) -> CachedLayer:
    """What a token of a layer leaves in the cache, and what reading it takes: FLOP 2 a (d_k + d_v) a key for a heads.

    Latents are kept on every tensor-parallel rank, and heads read them with products into and out of the latent, whose
    weights are those of the layer's product that would widen latents (DeepSeek-AI 2024, arXiv 2405.04434, section
    2.1.2).
    """
    own = dims.of_block(block).tensor
    mask: AttentionPattern = next(op.attention for op in block.operators if op.attention)
    window = mask.window or NO_WINDOW
    if any(op.name == "kv_down" for op in block.operators):
        latent = float(own["kv_rank"]) + float(own["rotary_dim"])
        return CachedLayer(latent, 2.0 * float(own["heads"]) * (latent + float(own["kv_rank"])), window)
    widths = float(evaluate(mask.key_dim, own)) + float(evaluate(mask.value_dim, own))
    return CachedLayer(float(evaluate(mask.kv_heads, own)) * widths, 2.0 * float(own["heads"]) * widths, window)


@dataclass(frozen=True)
class ServingEngine:
    """One replica: its ``job`` (a layout of its devices alone), the collectives' prices, and the section's choices."""

    job: TrainingJob
    cluster: Cluster
    rollout: Rollout
    context: int

    @staticmethod
    def of(graph: ModelGraph, pool: Cluster, rollout: Rollout, context: int) -> "ServingEngine":
        """A replica of a model on its share of a pool. Raises UserError where it cannot be laid out so."""
        check_served(graph)
        cluster = engine_cluster(pool, rollout.devices)
        spread = rollout.ep > 1
        if spread and not graph.is_mixture:
            raise UserError(f"post_training.rollout.ep = {rollout.ep}: model {graph.name} has no experts; allowed: 1")
        choices: dict[str, Any] = {"tp": rollout.tp, PIPELINE: rollout.stages, "ep": rollout.ep}
        choices |= {"precision": rollout.precision, "sequence_parallel": spread and rollout.tp > 1}
        if spread:
            choices["etp"] = 1
        training = Training(seq_len=context, global_batch=rollout.attention_ranks * rollout.stages)
        stack = serving_stack(graphs=rollout.engine.graphs, tuned=rollout.engine.tuned_experts)
        try:
            plan = Plan(**choices)
            job = make_job(graph, cluster, plan, training, stack)
        except UserError as error:
            told = str(error).replace("Plan: ", "plan.", 1)
            raise type(error)(told.replace("plan.", "post_training.rollout.", 1)) from None
        return ServingEngine(replace(job, kernels=replace(job.kernels, splits_k=True)), cluster, rollout, context)

    @property
    def graph(self) -> ModelGraph:
        """The model."""
        return self.job.graph

    @property
    def kernels(self) -> KernelModel:
        """The device's kernels."""
        return self.job.kernels

    @cached_property
    def layers(self) -> dict[str, int]:
        """How many layers there are of each kind; those that only training has are left out."""
        names = [name for name in self.graph.layers if name not in self.graph.auxiliary]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    @cached_property
    def dims(self) -> RankDims:
        """The dims of a rank for one sequence of the context's length."""
        return rank_dims(self.graph, self.job.layout, self.job.training)

    # memory

    @property
    def cache_bytes(self) -> float:
        """Bytes of an element of the cache."""
        return DTYPE_BYTES[self.rollout.engine.cache_dtype or "bf16"]

    @cached_property
    def cached_layers(self) -> dict[str, CachedLayer]:
        """The cache of every kind of layer."""
        return {name: cached_layer(self.graph.blocks[name], self.dims) for name in self.layers}

    @property
    def stage_share(self) -> float:
        """Layers of the fullest stage over all layers."""
        total = sum(self.layers.values())
        return -(-total // self.rollout.stages) / total

    @cached_property
    def token_bytes(self) -> float:
        """Bytes of one token in the cache of one device."""
        elements = sum(count * self.cached_layers[name].elements for name, count in self.layers.items())
        return elements * self.cache_bytes * self.stage_share

    def _weight_bytes(self, block: Block) -> float:
        """Bytes of a block's weights on one device."""
        own, products = self.dims.of_block(block).tensor, self.kernels.products
        narrow, wide = products.operand_bytes, products.handed_bytes
        total = 0.0
        for op in block.operators:
            cast = op.kind in ("matmul", "grouped_matmul") and op.name != "lm_head"
            for weight in op.weights:
                width = narrow if cast and weight.kind in ("matrix", "expert") else wide
                total += float(evaluate(weight.size, own)) * width
        return total

    @cached_property
    def weights_bytes(self) -> float:
        """Bytes of weights on the fullest device: its layers, and the tables at the ends of the pipeline."""
        graph = self.graph
        layers = sum(count * self._weight_bytes(graph.blocks[name]) for name, count in self.layers.items())
        first, last = self._weight_bytes(graph.embedding), self._weight_bytes(graph.head)
        if self.rollout.stages > 1:
            return layers * self.stage_share + max(first, last)
        return layers + last + (0.0 if graph.tied_embeddings else first)

    @cached_property
    def workspace_bytes(self) -> float:
        """Bytes of an iteration's tensors: the stream twice, in and out of the widest product; what sampling holds."""
        own, choice = self.dims.tensor, self.rollout.engine
        rows = choice.token_budget / self.rollout.attention_ranks
        widest = max(
            float(evaluate(op.columns, self.dims.of(op)))
            for name in self.layers
            for op in self.graph.blocks[name].operators
            if op.kind == "matmul"
        )
        stream = rows * (2.0 * float(own["hidden"]) + widest) * self.kernels.activation_bytes
        held = SAMPLED_BYTES + SCORED_BYTES * choice.logprobs
        return stream + choice.max_sequences * float(self.graph.dims["vocab"]) * held

    @property
    def room_bytes(self) -> float:
        """Bytes of a device that the engine may take, whatever else lies there [vLLM 0.11, v1/worker/gpu_worker.py]."""
        return self.kernels.device.memory_bytes * self.rollout.engine.memory_fraction

    def blocks(self) -> int:
        """Blocks of the replica's cache. Raises UserError where not even one sequence of the context fits."""
        block = self.rollout.engine.block
        free = self.room_bytes - self.weights_bytes - self.workspace_bytes
        each = max(0, int(free // (block * self.token_bytes)))
        needed = -(-self.context // block)
        if each < needed:
            raise UserError(
                f"post_training.rollout: a device has {format_bytes(max(free, 0.0))} for the cache beside "
                f"{format_bytes(self.weights_bytes)} of weights and {format_bytes(self.workspace_bytes)} "
                f"of others, one sequence of {self.context} tokens takes "
                f"{format_bytes(needed * block * self.token_bytes)}; "
                f"allowed: more tp or {PIPELINE}, a larger engine.memory_fraction, a narrower precision or "
                "cache_dtype, a shorter training.seq_len"
            )
        return each * self.rollout.attention_ranks

    # time

    @cached_property
    def _prices(self) -> dict[tuple[str, str], Price]:
        return {}

    def _price(self, group: str, op: str) -> Price:
        """The price of a collective on the replica's first group of a kind."""
        if (group, op) not in self._prices:
            cluster, etp = self.cluster, int(self.job.layout.expert_tensor_parallel)
            if self.rollout.engine.graphs:
                cluster = replace(cluster, state={**cluster.state, "base_us": CALL_US})
            size = {TENSOR: self.rollout.tp, EXPERT: self.rollout.ep, "etp": etp}[group]
            ranks = np.arange(2) * self.rollout.tp if op == "send" else np.arange(size)
            self._prices[group, op] = Prices(cluster).of(op, ranks)
        return self._prices[group, op]

    def _rows_view(self, tokens: Ints) -> RankView:
        """A rank that works on so many tokens, of sequences of their own; an array stands for many iterations."""
        rollout, dims = self.rollout, self.dims
        rows = -(-tokens // rollout.attention_ranks)
        ranks = rollout.tp if self.job.layout.sequence_parallel else 1
        one = {name: 1 for name in ("seq", "text.seq") if name in dims.tensor}
        tensor = {**dims.tensor, **one, "batch": rows}
        sequence = {**dims.sequence, **one, "batch": rows / ranks}
        if dims.expert is None:
            return RankView(self.job, RankDims(tensor, sequence))
        own, whole = float(dims.expert["experts"]), float(self.graph.dims["num_experts"])
        spread = tokens if rollout.ep > 1 else rows
        touched = own * (1.0 - (1.0 - float(self.graph.dims["topk"]) / whole) ** np.maximum(spread, 1))
        sharers = int(self.job.layout.expert_tensor_parallel)
        expert = {**dims.expert, **one, "batch": rows * min(1.0, sharers / ranks), "experts": touched}
        return RankView(self.job, RankDims(tensor, sequence, expert))

    def _block_s(self, block: Block, view: RankView) -> Floats:
        """Seconds of a block without core attention and loss, for every case of the view."""
        kept = tuple(op for op in block.operators if op.kind != "loss")
        inner = replace(block, operators=kept)
        phase = block_steps(RankBlock.of(inner, view.of_block(inner))).forward
        attention = {op.name for op in kept if op.kind == "attention"}
        device: Numbers = 0.0
        for step in phase.steps:
            if step.collective is not None:
                use = step.collective
                device = device + self._price(use.group, use.op).time_ns(use.size_bytes, use.count) / NS_PER_S
            elif step.stream == COMPUTE and step.name not in attention:
                device = device + step.duration_s
        return np.maximum(np.asarray(device, dtype=np.float64), np.asarray(phase.issue_s, dtype=np.float64))

    @cached_property
    def eager(self) -> "ServingEngine":
        """The same replica in iterations that no graph was captured for."""
        choice = self.rollout.engine.model_copy(update={"graphs": False})
        stack = serving_stack(graphs=False, tuned=choice.tuned_experts)
        job, rollout = replace(self.job, stack=stack), self.rollout.model_copy(update={"engine": choice})
        return replace(self, job=job, rollout=rollout)

    def _sampled_s(self, sequences: Ints) -> Floats:
        """Seconds to sample a token of each sequence: every tensor-parallel rank does, with the logits of all."""
        rows = np.ceil(sequences / self.rollout.attention_ranks)
        logits = rows * float(self.graph.dims["vocab"])
        each = SAMPLER_BYTES + LOGPROB_BYTES * self.rollout.engine.logprobs
        seconds = self.kernels.memory_time_s(logits * each, kernels=SAMPLER_KERNELS)
        if self.rollout.tp > 1:
            gathered = self._price(TENSOR, "all_gather").time_ns(logits * self.kernels.activation_bytes)
            seconds = seconds + gathered / NS_PER_S
        return np.asarray(seconds, dtype=np.float64)

    def rows_s(self, tokens: Ints, sequences: Ints) -> Floats:
        """Seconds of a whole pass of ``tokens``, of which ``sequences`` reach the output; core attention left out."""
        stages, graph = self.rollout.stages, self.graph
        view = self._rows_view(np.maximum(-(-tokens // stages), 1))
        ending = np.maximum(-(-sequences // stages), 1)
        head = self._block_s(graph.head, self._rows_view(ending)) + self._sampled_s(ending)
        layers = sum(count * self._block_s(graph.blocks[name], view) for name, count in self.layers.items())
        total = self._block_s(graph.embedding, view) + layers + stages * head
        if stages > 1:
            rows = np.ceil(np.ceil(tokens / stages) / self.rollout.attention_ranks)
            moved = rows * float(self.dims.tensor["hidden"]) * self.kernels.activation_bytes
            total = total + stages * self._price(TENSOR, "send").time_ns(moved) / NS_PER_S
        return np.asarray(total, dtype=np.float64)

    def key_s(self, layer: CachedLayer) -> float:
        """Seconds of a device to read one cached key of one layer: its bytes, or its FLOP if they take longer."""
        rate = (
            self.kernels.rate(self.kernels.activation_dtype) * self.kernels.parameters["attention_forward_efficiency"]
        )
        return max(layer.elements * self.cache_bytes / self.kernels.bandwidth, layer.flop / rate)

    @cached_property
    def _launched_s(self) -> float:
        """Fixed time of the attention kernels of all layers."""
        return sum(self.layers.values()) * self.kernels.latency_s

    def _passed_s(self, tokens: Ints, sequences: Ints) -> Floats:
        """Seconds of an iteration without core attention: from a graph or kernel by kernel, and what the host adds."""
        choice = self.rollout.engine
        seconds = [self.rows_s(tokens, sequences)]
        if choice.graphs and np.any(tokens > choice.graph_tokens):
            seconds.append(np.where(tokens > choice.graph_tokens, self.eager.rows_s(tokens, sequences), 0.0))
        added = choice.overhead + sequences * choice.sequence_overhead
        return np.asarray(np.maximum.reduce(seconds) + added, dtype=np.float64)

    def base_ns(self, most: int) -> Ints:
        """Nanoseconds of iterations of 0 to ``most`` decoding sequences, cached keys left out.

        One more sequence never makes an iteration shorter: it could be padded with.
        """
        sequences = np.arange(1, most + 1, dtype=np.int64)
        seconds = self._passed_s(sequences, sequences) + self._launched_s
        return np.maximum.accumulate(np.concatenate([[0], np.asarray(to_ns(seconds))]))

    @cached_property
    def rates(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(Windows, integer rates): parts of a nanosecond that all layers with a window take for one key."""
        by_window: dict[int, float] = {}
        divided = self.rollout.stages * self.rollout.attention_ranks
        for name, count in self.layers.items():
            layer = self.cached_layers[name]
            by_window[layer.window] = by_window.get(layer.window, 0.0) + count * self.key_s(layer) / divided
        return tuple(by_window), tuple(max(1, round(each * NS_PER_S * SCALE)) for each in by_window.values())

    def _prompt_attention_s(self, pieces: Sequence[Piece]) -> float:
        """Seconds of core attention of pieces of prompts: one kernel a layer, whose queries see what is before them."""
        tokens = sum(piece.tokens for piece in pieces)
        if not tokens:
            return 0.0
        longest = max(piece.before + piece.tokens for piece in pieces)
        pairs = sum(piece.tokens * (piece.before + (piece.tokens + 1) / 2) for piece in pieces)
        divided = self.rollout.stages * self.rollout.attention_ranks
        total = 0.0
        for name, count in self.layers.items():
            block, layer = self.graph.blocks[name], self.cached_layers[name]
            op: Operator = next(op for op in block.operators if op.attention)
            assert op.attention is not None, "chosen by it"
            own = self.dims.of_block(block).tensor
            width = self.kernels.head_dim(
                evaluate(op.attention.key_dim, own), evaluate(op.attention.value_dim, own), backward=False
            )
            shape = (1.0, max(1.0, tokens / divided), own["heads"], width)
            seen = min(pairs / tokens, float(layer.window))
            heads = evaluate(op.attention.kv_heads, own)
            each = self.kernels.attention_time_s(shape, context=longest, seen=seen, backward=False, kv_heads=heads)
            total += count * float(each)
        return total

    def with_prompts_ns(self, sequences: int, pieces: Sequence[Piece]) -> int:
        """Nanoseconds of an iteration of decoding sequences and pieces of prompts; cached keys left out."""
        tokens = sequences + sum(piece.tokens for piece in pieces)
        passed = self._passed_s(np.array([tokens]), np.array([sequences + len(pieces)]))
        attention = self._prompt_attention_s(pieces) + (self._launched_s if sequences else 0.0)
        return int(to_ns(float(passed[0]) + attention))

    @cached_property
    def times(self) -> IterationTimes:
        """What iterations take."""
        windows, rates = self.rates
        most = self.rollout.engine.max_sequences
        base_ns = self.base_ns(most)
        known: dict[tuple[int, tuple[Piece, ...]], int] = {}

        def with_prompts_ns(sequences: int, pieces: Sequence[Piece]) -> int:
            key = sequences, tuple(pieces)
            if key not in known:
                least_ns = int(base_ns[min(sequences + len(pieces), most)])
                known[key] = max(least_ns, self.with_prompts_ns(sequences, pieces))
            return known[key]

        return IterationTimes(base_ns, windows, rates, with_prompts_ns)
