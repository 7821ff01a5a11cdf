"""Builds the graph of sharding choices from the blocks of a model and a mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np

from simpar.architectures.graph import INPUT, Block, Dims, ModelGraph, Operator, saved_tensors
from simpar.cost.sharded import tensor_elements
from simpar.dataclass import dataclass
from simpar.plan.placement import count_slices
from simpar.plan.stages import MEMORY, WORDS, BlockSharding
from simpar.planner.stages.alpa.graph import BlockTensor, ChoiceGraph, Unary, Variable
from simpar.planner.stages.alpa.operators import CHEAP_KINDS, Metric, OperatorChoices, OperatorCosts
from simpar.planner.stages.alpa.roles import AGAIN, SERIAL, SUMMED, Pricer, codes, moves, states_of
from simpar.program.job import TrainingJob
from simpar.program.structure.stage_builder import StageView
from simpar.units import Floats, Ints

STREAM_STATES = "RBS"


@dataclass(frozen=True)
class Chain:
    """Kinds of blocks of a model in order, each once or more; ``embedding`` names the kind that reads data."""

    blocks: tuple[Block, ...]
    embedding: str

    @staticmethod
    def of(graph: ModelGraph) -> Chain:
        """All blocks of a model."""
        layers = [graph.blocks[name] for name in graph.layers]
        return Chain((graph.embedding, *layers, graph.head), graph.embedding.name)

    @cached_property
    def kinds(self) -> dict[str, Block]:
        """Blocks by name, in order of first appearance."""
        return {block.name: block for block in self.blocks}

    @cached_property
    def kind_of_block(self) -> Ints:
        """The kind of every block, as an index: int64[K]."""
        number = {name: index for index, name in enumerate(self.kinds)}
        return np.array([number[block.name] for block in self.blocks], dtype=np.int64)

    @cached_property
    def streams(self) -> dict[str, tuple[int, int]]:
        """Numbers of the streams before and after each kind: the stream that ends one block begins the next."""
        from networkx.utils import UnionFind

        joined = UnionFind((name, end) for name in self.kinds for end in (0, 1))
        for one, two in pairwise(block.name for block in self.blocks):
            joined.union((one, 1), (two, 0))
        number: dict[object, int] = {}
        ends = {key: number.setdefault(joined[key], len(number)) for key in joined.parents}
        return {name: (ends[name, 0], ends[name, 1]) for name in self.kinds}


def build_graph(job: TrainingJob, pricer: Pricer, chain: Chain) -> ChoiceGraph:
    """The choices of a chain of blocks on a mesh. Raises Infeasible if an operator has no legal role."""
    graph = ChoiceGraph(pricer, Counter(block.name for block in chain.blocks))
    dims = {name: StageView(job, pricer.stage, 0).dims(block) for name, block in chain.kinds.items()}
    beside = [name for name, block in chain.kinds.items() if _has_memory(block)]
    memory = graph.add(_stream(MEMORY, pricer.mesh, [dims[name] for name in beside], "memory")) if beside else -1
    known: dict[int, int] = {}
    for name, ends in chain.streams.items():
        for stream in ends:
            if stream not in known:
                users = [dims[other] for other, each in chain.streams.items() if stream in each]
                known[stream] = graph.add(_stream(f"stream {stream}", pricer.mesh, users, "seq"))
        graph.streams[name] = known[ends[0]], known[ends[1]], memory if name in beside else -1
    for name, block in chain.kinds.items():
        costs = OperatorCosts(job, pricer, dims[name])
        _BlockBuilder(graph, costs, block, name == chain.embedding).add()
    return graph


def _has_memory(block: Block) -> bool:
    return any(op.name == MEMORY or MEMORY in op.inputs for op in block.operators)


def _stream(name: str, mesh: tuple[int, ...], users: Sequence[Dims], rows: str) -> Variable:
    """States that shard batch and rows evenly in all blocks at a stream; ``users`` are the dims of these blocks."""
    names = []
    for states in product(STREAM_STATES, repeat=len(mesh)):
        parts = dict.fromkeys(STREAM_STATES, 1)
        for letter, size in zip(states, mesh, strict=True):
            parts[letter] *= size
        if all(dims["batch"] % parts["B"] == 0 and dims[rows] % parts["S"] == 0 for dims in users):
            names.append(states)
    return Variable(name, codes(names))


@dataclass
class _BlockBuilder:
    """Adds variables and terms of one kind of block; ``is_data``: every rank loads the input it needs."""

    graph: ChoiceGraph
    costs: OperatorCosts
    block: Block
    is_data: bool
    follows: dict[str, int] = field(default_factory=dict)
    pending: dict[str, list[tuple[int, Ints]]] = field(default_factory=dict)

    @cached_property
    def _saved(self) -> set[str]:
        return {key for key, _, what in saved_tensors(self.block) if what in ("output", "input")}

    @cached_property
    def _users(self) -> Mapping[str, list[Operator]]:
        result: dict[str, list[Operator]] = {}
        for op in self.block.operators:
            for name in op.inputs if op.kind != "embedding" else ():
                result.setdefault(name, []).append(op)
        return result

    @cached_property
    def _names(self) -> set[str]:
        return {op.name for op in self.block.operators}

    @property
    def _streams(self) -> tuple[int, int, int]:
        return self.graph.streams[self.block.name]

    def add(self) -> None:
        """Variables of heavy operators first, then everything that follows them."""
        for op in self.block.operators:
            if op.kind not in CHEAP_KINDS:
                self._own_variable(op)
        for op in self.block.operators:
            if op.kind in CHEAP_KINDS:
                self._follow(op)
        for op in self.block.operators:
            self._terms(op)
        self._read_ends()
        for name, readings in self.pending.items():
            self._tensor(name, readings)
        self._saved_input()

    def _own_variable(self, op: Operator) -> None:
        index, gathered = self.costs.choices(op)
        variable = Variable(f"{self.block.name}.{op.name}", index, self.costs.table(op), gathered)
        self.follows[op.name] = self.graph.add(variable)

    def _follow(self, op: Operator) -> None:
        leader = self._leader(op, set())
        if leader is None or not self._restrict(op, leader):
            self._own_variable(op)
        else:
            self.follows[op.name] = leader

    def _leader(self, op: Operator, seen: set[str]) -> int | None:
        """The stream that an operator works on, or else the variable of the operator that reads its output."""
        seen.add(op.name)
        for name in op.inputs:
            stream = self._stream_of(name, seen)
            if stream is not None:
                return stream
        users = self._users.get(op.name, [])
        if not users and op is self.block.operators[-1]:
            return self._streams[1]
        if len(users) != 1 or users[0].name in seen:
            return None
        known = self.follows.get(users[0].name)
        return self._leader(users[0], seen) if known is None else known

    def _stream_of(self, name: str, seen: set[str]) -> int | None:
        if name == INPUT:
            return None if self.is_data else self._streams[0]
        if name == MEMORY and name not in self._names:
            return self._streams[2]
        source = self.block.operator(name)
        if source.kind not in CHEAP_KINDS or source.name in seen:
            return None
        leader = self.follows[name] if name in self.follows else self._leader(source, seen)
        return leader if leader is not None and self.graph.variables[leader].table is None else None

    def _restrict(self, op: Operator, leader: int) -> bool:
        """Drop the leader's choices for which the follower has no role; False if that is not possible."""
        variable = self.graph.variables[leader]
        possible = self.costs.table(op).within[variable.reads] >= 0
        if possible.all():
            return True
        if variable.table is None or not possible.any():
            return False  # blocks that share the stream are already laid out
        index, gathered = variable.index[possible], variable.gathered[possible]
        self.graph.variables[leader] = replace(variable, index=index, gathered=gathered)
        return True

    def _chosen(self, op: Operator) -> tuple[int, OperatorChoices]:
        """The variable of an operator, and the operator under each of its choices."""
        key = self.block.name, op.name
        if key not in self.graph.operators:
            number = self.follows[op.name]
            variable = self.graph.variables[number]
            index, gathered = variable.index, variable.gathered
            if variable.name != f"{self.block.name}.{op.name}":  # another operator's
                index = self.costs.table(op).within[variable.reads]
                gathered = np.zeros(len(index), dtype=bool)
            self.graph.operators[key] = number, self.costs.chosen(op, index, gathered)
        return self.graph.operators[key]

    def _terms(self, op: Operator) -> None:
        number, chosen = self._chosen(op)
        metrics = self.costs.metrics(chosen, saved=op.name in self._saved)
        self.graph.unary.append(Unary(self.block.name, number, metrics))
        needs = chosen.table.reads[chosen.index]
        for name in op.inputs if op.kind != "embedding" else ():
            if name == INPUT and self.is_data:
                continue
            known = self.pending.setdefault(name, [])
            if not any(reader == number and np.array_equal(each, needs) for reader, each in known):
                known.append((number, needs))

    def _read_ends(self) -> None:
        """The block's output is read in the states of the stream after it, a memory in its own stream's states."""
        last = self.block.operators[-1]
        ends = {last.name: self._streams[1]} if last.kind != "loss" else {}
        if MEMORY in self._names:
            ends[MEMORY] = self._streams[2]
        for name, number in ends.items():
            self.pending.setdefault(name, []).append((number, self.graph.variables[number].index))

    def _written(self, name: str) -> tuple[int, Ints]:
        """The variable of the operator that writes a tensor, and the code of its states for every choice."""
        if name not in self._names:
            number = self._streams[0] if name == INPUT else self._streams[2]
            return number, self.graph.variables[number].index
        number, chosen = self._chosen(self.block.operator(name))
        return number, chosen.table.writes[chosen.index]

    def _tensor(self, name: str, readings: list[tuple[int, Ints]]) -> None:
        writer, writes = self._written(name)
        others = [(r, needs) for r, needs in readings if r != writer or not np.array_equal(needs, writes)]
        if others:
            tensor = BlockTensor(self.block.name, writer, writes, tuple(others), self._pass_s(name))
            self.graph.tensors.append(tensor)

    def _pass_s(self, name: str) -> Floats:
        """Seconds of every change of a tensor, less what runs beside the kernels of its first reader.

        Summands of one sum are reduced over ranks together, so each of them counts its share of that.
        """
        overlap, known = self.costs.job.stack.overlap, moves(self.costs.pricer.mesh)
        changes = self.costs.pricer.changes_s(self._bytes(name))
        weight, inputs = self._hidden(name, len(known.legal))
        again = changes[AGAIN] if overlap.regather_input and weight.any() else np.zeros(known.legal.shape)
        summed = changes[SUMMED]
        if overlap.tensor_backward:
            summed = np.maximum(summed - weight[None, :], 0.0)
            again = np.maximum(again - inputs[None, :], 0.0)
        result = np.where(known.legal, changes[SERIAL] + summed + again, np.inf)

        def is_summand(tensor: str) -> bool:
            """Whether some choice leaves summands of a tensor of the block."""
            return tensor in self._names and bool(known.summands[self._written(tensor)[1]].any())

        if is_summand(name):
            readers = self._users.get(name, ())
            result[known.summands] /= max((sum(map(is_summand, op.inputs)) for op in readers), default=1)
        return result

    def _hidden(self, name: str, states: int) -> tuple[Floats, Floats]:
        """For the states read, the most seconds of the first reader's weight and input gradients."""
        result = (np.zeros(states), np.zeros(states))
        for op in [op for op in self._users.get(name, []) if op.kind == "matmul"][:1]:
            _, chosen = self._chosen(op)
            needs, whole = chosen.table.reads[chosen.index], np.ones(len(chosen.index))
            np.maximum.at(result[0], needs, chosen.time.backward_weight_s * whole)
            np.maximum.at(result[1], needs, chosen.time.backward_input_s * whole)
        return result

    def _bytes(self, name: str) -> float:
        """Bytes of a whole tensor: an output, or an input from outside the block."""
        reader = next(iter(self._users.get(name, ())), None)
        return tensor_elements(self.block, name, reader, self.costs.dims) * self.costs.job.kernels.activation_bytes

    def _saved_input(self) -> None:
        """The block's input is saved for the backward in the states of its stream."""
        if INPUT not in self._saved or self.is_data:
            return
        number, mesh = self._streams[0], self.costs.pricer.mesh
        index, states = self.graph.variables[number].index, states_of(len(mesh))
        metrics = np.zeros((len(Metric), len(index)))
        metrics[Metric.SAVED] = [self._bytes(INPUT) / count_slices(states[code], mesh) for code in index.tolist()]
        self.graph.unary.append(Unary(self.block.name, number, metrics))


def shardings(graph: ChoiceGraph, chain: Chain, assignment: Sequence[int]) -> dict[str, BlockSharding]:
    """The shardings of every kind of block under an assignment, as a plan writes them."""
    return {name: _sharding(graph, block, chain, assignment) for name, block in chain.kinds.items()}


def _sharding(graph: ChoiceGraph, block: Block, chain: Chain, assignment: Sequence[int]) -> BlockSharding:
    states = states_of(len(graph.pricer.mesh))
    operators, gathered = dict[str, tuple[str, ...]](), []
    for op in block.operators:
        number, chosen = graph.operators[block.name, op.name]
        at = int(chosen.index[assignment[number]])
        operators[op.name] = tuple(role.name for role in chosen.table.combinations[at])
        if chosen.gathered[assignment[number]]:
            gathered.append(op.name)
    ends = [states[graph.variables[n].index[assignment[n]]] if n >= 0 else () for n in graph.streams[block.name]]
    if block.name == chain.embedding:  # its input is data: every rank loads what it needs
        ends[0] = ("R",) * len(graph.pricer.mesh)
    if block.operators[-1].kind == "loss":
        ends[1] = states[chosen.table.writes[at]]
    source, target, memory = (tuple(WORDS[letter] for letter in each) for each in ends)
    return BlockSharding(
        input=source, output=target, memory=memory or None, operators=operators, gathered=tuple(gathered)
    )
