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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from simpar.architectures.graph import Block, ModelGraph, Operator, evaluate
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
from simpar.posttraining.replica import ReplicaLimits
from simpar.posttraining.served import (
    IMAGES,
    TOWERS,
    CachedLayer,
    cached_layer,
    check_served,
    image_tokens,
    layers_of,
    left_out,
)
from simpar.posttraining.serving_stack import serving_stack
from simpar.posttraining.states import LayerState, has_state, layer_state, prompt_s, update_s
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import COMPUTE, EXPERT, TENSOR
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import block_steps
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.job import TrainingJob
from simpar.simulation import make_job
from simpar.units import DTYPE_BYTES, NS_PER_S, Floats, Ints, Numbers, format_bytes, to_ns

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
CALL_US = 4.1
"""Launch and rendezvous of a collective in a captured graph, microseconds: what measured all-reduces of 512 bytes on 2
to 8 H100 and H200 take beyond the predicted hops (benchmarks/serving_kernels.py --call)."""


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
        """How many layers the decoder has of each kind."""
        return layers_of(self.graph, towers=False)

    @cached_property
    def towers(self) -> dict[str, int]:
        """The same of towers before it."""
        return layers_of(self.graph, towers=True)

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
        """The cache of every kind of layer that has keys."""
        known = {name: cached_layer(self.graph.blocks[name], self.dims) for name in self.layers}
        return {name: layer for name, layer in known.items() if layer is not None}

    @cached_property
    def layer_states(self) -> dict[str, LayerState]:
        """The state of every kind of layer that has one."""
        blocks = {name: self.graph.blocks[name] for name in self.layers if has_state(self.graph.blocks[name])}
        states, width = self.rollout.states, self.kernels.activation_bytes
        return {
            name: layer_state(block, self.dims.of_block(block).tensor, states, width) for name, block in blocks.items()
        }

    def _of_fullest(self, each: Mapping[str, float]) -> float:
        """The most that layers of one stage have together of something by kind of layer; stages follow each other."""
        auxiliary = self.graph.auxiliary
        names = [name for name in self.graph.layers if name in self.layers and name not in auxiliary]
        size = -(-len(names) // self.rollout.stages)
        stages = (names[first : first + size] for first in range(0, len(names), size))
        return max(sum(each.get(name, 0.0) for name in stage) for stage in stages)

    @cached_property
    def token_bytes(self) -> float:
        """Bytes of one token in the cache of one device; 0 for a model without attention."""
        return self._of_fullest({name: each.elements * self.cache_bytes for name, each in self.cached_layers.items()})

    @cached_property
    def state_bytes(self) -> float:
        """Bytes of the states of one sequence on one device, whatever its length."""
        return self._of_fullest({name: each.kept_bytes for name, each in self.layer_states.items()})

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
        each = {name: self._weight_bytes(graph.blocks[name]) for name in (*self.layers, *self.towers)}
        layers, towers = self._of_fullest(each), sum(count * each[name] for name, count in self.towers.items())
        first, last = self._weight_bytes(graph.embedding), self._weight_bytes(graph.head)
        if self.rollout.stages > 1:
            return layers + max(first + towers, last)
        return layers + towers + last + (0.0 if graph.tied_embeddings else first)

    @cached_property
    def workspace_bytes(self) -> float:
        """Bytes of an iteration's tensors: the stream twice, in and out of the widest product; what sampling holds.

        Towers make as many tokens at a time as the budget has, and what they made is kept until it is read [vLLM 0.11,
        v1/core/encoder_cache_manager.py].
        """
        choice, width = self.rollout.engine, self.kernels.activation_bytes
        rows = choice.token_budget / self.rollout.attention_ranks
        held = SAMPLED_BYTES + SCORED_BYTES * choice.logprobs
        stream = rows * self._stream_elements(self.layers, float(self.dims.tensor["hidden"]))
        if self.towers:
            own = self.dims.tensor
            made = {name: rows * float(own[f"{name}.seq"] / own[of]) for name, of in IMAGES.items() if of in own}
            towers = (
                each * self._stream_elements(self.towers, float(own[f"{name}.hidden"]), name)
                for name, each in made.items()
            )
            stream = max(stream, *towers) + rows * float(own["hidden"])
        return stream * width + choice.max_sequences * float(self.graph.dims["vocab"]) * held

    def _stream_elements(self, layers: Iterable[str], hidden: float, scope: str = "") -> float:
        """Elements of a row in layers of a scope: the stream twice, and the widest product."""
        blocks = (block for name in layers if scope in ("", (block := self.graph.blocks[name]).scope))
        return 2.0 * hidden + max(
            float(evaluate(op.columns, self.dims.of_block(block).of(op)))
            for block in blocks
            for op in block.operators
            if op.kind == "matmul"
        )

    @property
    def room_bytes(self) -> float:
        """Bytes of a device that the engine may take, whatever else lies there [vLLM 0.11, v1/worker/gpu_worker.py]."""
        return self.kernels.device.memory_bytes * self.rollout.engine.memory_fraction

    @property
    def block(self) -> int:
        """Tokens of a block; without keys a sequence has one block, its states."""
        return self.rollout.engine.block if self.token_bytes else NO_WINDOW

    @property
    def block_bytes(self) -> float:
        """Bytes of a block on one device."""
        return self.block * self.token_bytes if self.token_bytes else self.state_bytes

    @cached_property
    def limits(self) -> ReplicaLimits:
        """What the replica may do at a time. Raises UserError where not even one sequence of the context fits."""
        engine, states = self.rollout.engine, self.rollout.states
        held = -(-self.state_bytes // self.block_bytes)
        shares = engine.prefix_sharing and (states.shared or not held)
        limits = ReplicaLimits(
            engine.token_budget, engine.max_sequences, self.block, 0, shares,
            int(held) if self.token_bytes else 0, int(held) if shares else 0, engine.block,
        )  # fmt: skip
        free = self.room_bytes - self.weights_bytes - self.workspace_bytes
        each = max(0, int(free // self.block_bytes))
        needed = -(-self.context // self.block) + limits.states + limits.prompt_states
        if each < needed:
            raise UserError(
                f"post_training.rollout: a device has {format_bytes(max(free, 0.0))} for the cache beside "
                f"{format_bytes(self.weights_bytes)} of weights and {format_bytes(self.workspace_bytes)} "
                f"of others, one sequence of {self.context} tokens takes "
                f"{format_bytes(needed * self.block_bytes)}; "
                f"allowed: more tp or {PIPELINE}, a larger engine.memory_fraction, a narrower precision or "
                "cache_dtype, a shorter training.seq_len"
            )
        return replace(limits, blocks=each * self.rollout.attention_ranks)

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
        """Seconds of a block, for every case of the view: of a tower whole, else without core mixers and loss."""
        inner = replace(block, operators=tuple(op for op in block.operators if op.kind != "loss"))
        phase = block_steps(RankBlock.of(inner, view.of_block(inner))).forward
        attention = frozenset[str]() if block.scope in TOWERS else left_out(inner)
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
        stages = self.rollout.stages
        inside = self._once(self._inside_s, np.maximum(-(-tokens // stages), 1))
        total = inside + stages * self._once(self._end_s, np.maximum(-(-sequences // stages), 1))
        if stages > 1:
            rows = np.ceil(np.ceil(tokens / stages) / self.rollout.attention_ranks)
            moved = rows * float(self.dims.tensor["hidden"]) * self.kernels.activation_bytes
            total = total + stages * self._price(TENSOR, "send").time_ns(moved) / NS_PER_S
        return np.asarray(total, dtype=np.float64)

    def _inside_s(self, tokens: Ints) -> Floats:
        """Seconds of the embedding and of all layers for tokens."""
        view, graph = self._rows_view(tokens), self.graph
        layers = sum(count * self._block_s(graph.blocks[name], view) for name, count in self.layers.items())
        return np.asarray(self._block_s(graph.embedding, view) + layers, dtype=np.float64)

    def _end_s(self, sequences: Ints) -> Floats:
        """Seconds of the head and of sampling for sequences."""
        return self._block_s(self.graph.head, self._rows_view(sequences)) + self._sampled_s(sequences)

    @cached_property
    def _known_s(self) -> dict[tuple[str, int], Floats]:
        return {}

    def _once(self, cost: Callable[[Ints], Floats], size: Ints) -> Floats:
        """What something costs; that of a single size is kept."""
        if size.size != 1:
            return cost(size)
        key = cost.__name__, int(size.item())
        if key not in self._known_s:
            self._known_s[key] = cost(size)
        return self._known_s[key]

    def key_s(self, layer: CachedLayer) -> float:
        """Seconds of a device to read one cached key of one layer: its bytes, or its FLOP if they take longer."""
        rate = (
            self.kernels.rate(self.kernels.activation_dtype) * self.kernels.parameters["attention_forward_efficiency"]
        )
        return max(layer.elements * self.cache_bytes / self.kernels.bandwidth, layer.flop / rate)

    @cached_property
    def _launched_s(self) -> float:
        """Fixed time of the kernels that decoding sequences' attention and recurrences take in all layers."""
        kernels = [(name, each.kernels) for name, each in self.cached_layers.items()]
        kernels += [(name, each.kernels) for name, each in self.layer_states.items()]
        return sum(self.layers[name] * count for name, count in kernels) * self.kernels.latency_s

    @cached_property
    def state_s(self) -> float:
        """Seconds that the states of one decoding sequence add to an iteration."""
        each = sum(self.layers[name] * update_s(state, self.kernels) for name, state in self.layer_states.items())
        return each / (self.rollout.stages * self.rollout.attention_ranks)

    def tower_s(self, prompts: int) -> float:
        """Seconds of the towers for the images and sounds of so many prompts, launched kernel by kernel."""
        if not self.towers or not prompts:
            return 0.0
        made, of = image_tokens(self.graph), {"batch": max(1.0, prompts / self.rollout.attention_ranks)}
        dims = RankDims(
            {**self.dims.tensor, **of, "seq": made}, {**self.dims.sequence, **of, "seq": made}, whole=self.dims.whole
        )
        eager = self.eager
        view = RankView(eager.job, dims)
        each = (count * eager._block_s(self.graph.blocks[name], view) for name, count in self.towers.items())
        return float(sum(each))

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
        seconds = self._passed_s(sequences, sequences) + self._launched_s + sequences * self.state_s
        return np.maximum.accumulate(np.concatenate([[0], np.asarray(to_ns(seconds))]))

    @cached_property
    def rates(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(Windows, integer rates): parts of a nanosecond that all layers with a window take for one key."""
        by_window: dict[int, float] = {}
        divided = self.rollout.stages * self.rollout.attention_ranks
        for name, layer in self.cached_layers.items():
            read_s = self.layers[name] * self.key_s(layer) / divided
            by_window[layer.window] = by_window.get(layer.window, 0.0) + read_s
        return tuple(by_window), tuple(max(1, round(each * NS_PER_S * SCALE)) for each in by_window.values())

    def _prompt_states_s(self, pieces: Sequence[Piece]) -> float:
        """Seconds of recurrences over pieces of prompts, each of which begins with a state and leaves one."""
        divided, total = self.rollout.stages * self.rollout.attention_ranks, 0.0
        for name, state in self.layer_states.items():
            block = self.graph.blocks[name]
            own = self.dims.of_block(block).tensor
            moved_s = len(pieces) / divided * 2.0 * state.kept_bytes / self.kernels.bandwidth
            total += self.layers[name] * (prompt_s(block, own, self.kernels, pieces, divided) + moved_s)
        return total

    def _prompt_attention_s(self, pieces: Sequence[Piece]) -> float:
        """Seconds of core attention of pieces of prompts: one kernel a layer, whose queries see what is before them."""
        tokens = sum(piece.tokens for piece in pieces)
        if not tokens:
            return 0.0
        longest = max(piece.before + piece.tokens for piece in pieces)
        pairs = sum(piece.tokens * (piece.before + (piece.tokens + 1) / 2) for piece in pieces)
        divided = self.rollout.stages * self.rollout.attention_ranks
        total = 0.0
        for name, layer in self.cached_layers.items():
            block = self.graph.blocks[name]
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
            total += self.layers[name] * layer.kernels * float(each)
        return total

    def with_prompts_ns(self, sequences: int, pieces: Sequence[Piece]) -> int:
        """Nanoseconds of an iteration of decoding sequences and pieces of prompts; cached keys left out."""
        tokens = sequences + sum(piece.tokens for piece in pieces)
        passed = self._passed_s(np.array([tokens]), np.array([sequences + len(pieces)]))
        mixed = self._prompt_attention_s(pieces) + self._prompt_states_s(pieces)
        mixed += self.tower_s(sum(piece.before == 0 for piece in pieces))
        mixed += (self._launched_s if sequences else 0.0) + sequences * self.state_s
        return int(to_ns(float(passed[0]) + mixed))

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
