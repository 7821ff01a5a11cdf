"""From the blocks of a model and a mesh to the graph of choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.models.flops import shape_dims
from simpar.models.graph import INPUT, Block, Dims, ModelGraph, Operator, evaluate, saved_tensors
from simpar.plan.placement import roles_of, sharding
from simpar.plan.sharding import context_dims
from simpar.plan.stages import MEMORY, WORDS, BlockSharding
from simpar.program.blocks.rank_view import Job
from simpar.search.stages.alpa.graph import ChoiceGraph, Metric, Tensor, Unary, Variable
from simpar.search.stages.alpa.operators import LIGHT, Chosen, OperatorCosts
from simpar.search.stages.alpa.roles import (
    AGAIN,
    SERIAL,
    SUMMED,
    Pricer,
    codes,
    moves,
    role_table,
    state_codes,
    summands,
)  # fmt: skip

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STREAM_STATES = "RBS"
OWN, STATE, READS = "own", "state", "reads"


@dataclass(frozen=True)
class Chain:
    """Kinds of blocks of a model in order, each once or more; ``embedding`` names the one that reads data."""

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
        """Number of the kind of every block: int64[K]."""
        number = {name: index for index, name in enumerate(self.kinds)}
        return np.array([number[block.name] for block in self.blocks], dtype=np.int64)

    @cached_property
    def streams(self) -> dict[str, tuple[int, int]]:
        """Streams in front of and behind each kind, numbered: what ends one block begins the next."""
        from networkx.utils import UnionFind

        joined = UnionFind((name, end) for name in self.kinds for end in (0, 1))
        for one, two in pairwise(block.name for block in self.blocks):
            joined.union((one, 1), (two, 0))
        number: dict[object, int] = {}
        ends = {key: number.setdefault(joined[key], len(number)) for key in joined.parents}
        return {name: (ends[name, 0], ends[name, 1]) for name in self.kinds}


def build_graph(job: Job, pricer: Pricer, chain: Chain) -> ChoiceGraph:
    """The choices of a chain of blocks on a mesh. Raises Infeasible where an operator has no legal role."""
    return _Builder(job, pricer, chain).graph()


def global_dims(job: Job, block: Block) -> Dims:
    """Dims of a block with the shape of a whole microbatch."""
    shape = shape_dims(job.graph, job.training.seq_len, batch=job.plan.micro_batch)
    return block.view({**shape, **context_dims(job.plan.context_parallel, 1)})


@dataclass
class _Builder:
    """Collects variables and terms."""

    job: Job
    pricer: Pricer
    chain: Chain
    variables: list[Variable] = field(default_factory=list)
    unary: list[Unary] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    follows: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def graph(self) -> ChoiceGraph:
        """Everything at once."""
        streams = self._streams()
        for name, block in self.chain.kinds.items():
            _BlockBuilder(self, block, streams[name]).add()
        terms = tuple(self.variables), tuple(self.unary), tuple(self.tensors)
        counts = Counter(block.name for block in self.chain.blocks)
        return ChoiceGraph(*terms, counts, self.pricer.mesh, self.follows, streams)

    def add_variable(self, variable: Variable) -> int:
        """A variable's number. Raises Infeasible without choices."""
        if not len(variable):
            raise Infeasible(f"{variable.name} cannot be sharded on mesh {self.pricer.mesh}")
        self.variables.append(variable)
        return len(self.variables) - 1

    def _streams(self) -> dict[str, tuple[int, int, int]]:
        """Variables of the streams between blocks, and of the memory that travels past them."""
        known: dict[int, int] = {}
        memory = -1
        if any(_has_memory(block) for block in self.chain.kinds.values()):
            users = [block for block in self.chain.kinds.values() if _has_memory(block)]
            memory = self.add_variable(Variable(MEMORY, self._states(users, "memory")))
        found = {}
        for name, ends in self.chain.streams.items():
            for stream in ends:
                if stream not in known:
                    users = [self.chain.kinds[n] for n, each in self.chain.streams.items() if stream in each]
                    known[stream] = self.add_variable(
                        Variable(f"stream {stream}", self._states(users, "seq"))
                    )
            own = memory if _has_memory(self.chain.kinds[name]) else -1
            found[name] = (known[ends[0]], known[ends[1]], own)
        return found

    def _states(self, users: Sequence[Block], rows: str) -> Ints:
        """Codes of states that slice batch and rows of all blocks beside a stream evenly."""
        mesh, dims = self.pricer.mesh, [global_dims(self.job, block) for block in users]
        found = []
        for states in product(STREAM_STATES, repeat=len(mesh)):
            parts = dict.fromkeys(STREAM_STATES, 1)
            for letter, size in zip(states, mesh, strict=True):
                parts[letter] *= size
            if all(d["batch"] % parts["B"] == 0 and d[rows] % parts["S"] == 0 for d in dims):
                found.append(states)
        return codes(found, len(mesh))


def _has_memory(block: Block) -> bool:
    return any(op.name == MEMORY or MEMORY in op.inputs for op in block.operators)


@dataclass
class _BlockBuilder:
    """Variables and terms of one kind of block."""

    parent: _Builder
    block: Block
    streams: tuple[int, int, int]
    pending: dict[str, list[tuple[int, Ints]]] = field(default_factory=dict)
    chosen: dict[str, tuple[int, Chosen]] = field(default_factory=dict)

    @cached_property
    def costs(self) -> OperatorCosts:
        """Prices of this block's operators."""
        return OperatorCosts(self.parent.job, self.parent.pricer, global_dims(self.parent.job, self.block))

    @cached_property
    def _saved(self) -> set[str]:
        return {key for key, _, what in saved_tensors(self.block) if what in ("output", "input")}

    @cached_property
    def _users(self) -> Mapping[str, list[Operator]]:
        found: dict[str, list[Operator]] = {}
        for op in self.block.operators:
            for name in op.inputs if op.kind != "embedding" else ():
                found.setdefault(name, []).append(op)
        return found

    def add(self) -> None:
        """Variables of heavy operators first, then everything that follows them."""
        for op in self.block.operators:
            if op.kind not in LIGHT:
                self._own_variable(op)
        for op in self.block.operators:
            if op.kind in LIGHT:
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
        self.parent.follows[self.block.name, op.name] = (self.parent.add_variable(variable), OWN)

    def _follow(self, op: Operator) -> None:
        key = (self.block.name, op.name)
        if key in self.parent.follows:
            return
        found = self._leader(op, set())
        if found is None or not self._restrict(op, found):
            self._own_variable(op)
        else:
            self.parent.follows[key] = found

    def _leader(self, op: Operator, seen: set[str]) -> tuple[int, str] | None:
        """The stream that an operator works on, else whoever reads it."""
        seen.add(op.name)
        for name in op.inputs:
            stream = self._stream_of(name, seen)
            if stream is not None:
                return stream
        users = self._users.get(op.name, [])
        if not users and op is self.block.operators[-1]:
            return (self.streams[1], STATE)
        if len(users) != 1 or users[0].name in seen:
            return None
        user = users[0]
        if user.kind in LIGHT:
            return self.parent.follows.get((self.block.name, user.name)) or self._leader(user, seen)
        return (self.parent.follows[self.block.name, user.name][0], READS)

    def _stream_of(self, name: str, seen: set[str]) -> tuple[int, str] | None:
        if name == INPUT:
            return None if self._is_data else (self.streams[0], STATE)
        if name == MEMORY and name not in self._names:
            return (self.streams[2], STATE)
        source = self.block.operator(name)
        if source.kind not in LIGHT or source.name in seen:
            return None
        found = self.parent.follows.get((self.block.name, name)) or self._leader(source, seen)
        return found if found is not None and found[1] == STATE else None

    @cached_property
    def _names(self) -> set[str]:
        return {op.name for op in self.block.operators}

    @property
    def _is_data(self) -> bool:
        """Whether the block's input is data that every rank can load as it needs it."""
        return self.block.name == self.parent.chain.embedding

    def _restrict(self, op: Operator, leader: tuple[int, str]) -> bool:
        """Drop the leader's choices that the follower has no roles for; False where that cannot be."""
        variable = self.parent.variables[leader[0]]
        possible = self.costs.table(op).within[variable.reads] >= 0
        if possible.all():
            return True
        if variable.table is None or not possible.any():
            return False  # streams are shared with blocks that are already laid out
        gathered = variable.gathered[possible] if len(variable.gathered) else variable.gathered
        self.parent.variables[leader[0]] = replace(
            variable, index=variable.index[possible], gathered=gathered
        )
        return True

    def _chosen(self, op: Operator) -> tuple[int, Chosen]:
        """The variable of an operator, and the operator under every choice of it."""
        if op.name not in self.chosen:
            number, mode = self.parent.follows[self.block.name, op.name]
            variable = self.parent.variables[number]
            index = variable.index if mode == OWN else self.costs.table(op).within[variable.reads]
            gathered = variable.gathered if mode == OWN else None
            self.chosen[op.name] = (number, self.costs.chosen(op, index, gathered))
        return self.chosen[op.name]

    def _terms(self, op: Operator) -> None:
        number, chosen = self._chosen(op)
        metrics = self.costs.metrics(chosen, saved=op.name in self._saved)
        self.parent.unary.append(Unary(self.block.name, number, metrics))
        needs = chosen.table.reads[chosen.index]
        for name in op.inputs if op.kind != "embedding" else ():
            if name == INPUT and self._is_data:
                continue
            known = self.pending.setdefault(name, [])
            if not any(reader == number and np.array_equal(each, needs) for reader, each in known):
                known.append((number, needs))

    def _read_ends(self) -> None:
        """The block's output is wanted in the states of the stream behind it, a memory in its own."""
        last = self.block.operators[-1]
        ends = {last.name: self.streams[1]} if last.kind != "loss" else {}
        if MEMORY in self._names:
            ends[MEMORY] = self.streams[2]
        for name, number in ends.items():
            self.pending.setdefault(name, []).append((number, self.parent.variables[number].index))

    def _written(self, name: str) -> tuple[int, Ints]:
        """Who writes a tensor, and the code of states for every choice."""
        if name not in self._names:
            number = self.streams[0] if name == INPUT else self.streams[2]
            return number, self.parent.variables[number].index
        number, chosen = self._chosen(self.block.operator(name))
        return number, chosen.table.writes[chosen.index]

    def _tensor(self, name: str, readings: list[tuple[int, Ints]]) -> None:
        writer, writes = self._written(name)
        others = [(r, needs) for r, needs in readings if r != writer or not np.array_equal(needs, writes)]
        if others:
            tensor = Tensor(self.block.name, name, writer, writes, tuple(others), self._pass_s(name))
            self.parent.tensors.append(tensor)

    def _pass_s(self, name: str) -> Floats:
        """Seconds of every change of a tensor, less what runs beside its first reader's kernels.

        Summands that a reader adds up are summed over ranks as one, so each of them has its share of that.
        """
        overlap, legal = self.parent.job.stack.overlap, moves(self.parent.pricer.mesh).legal
        changes = self.parent.pricer.changes_s(self._bytes(name))
        weight, inputs = self._hidden(name, len(legal))
        again = changes[AGAIN] if overlap.regather_input and weight.any() else np.zeros(legal.shape)
        summed = changes[SUMMED]
        if overlap.tensor_backward:
            summed = np.maximum(summed - weight[None, :], 0.0)
            again = np.maximum(again - inputs[None, :], 0.0)
        found = np.where(legal, changes[SERIAL] + summed + again, np.inf)
        added = [sum(map(self._is_summand, op.inputs)) for op in self._users.get(name, ())]
        found[summands(self.parent.pricer.mesh)] /= max(added, default=1) if self._is_summand(name) else 1
        return found

    def _is_summand(self, name: str) -> bool:
        """Whether some choice leaves summands of a tensor of the block."""
        inside = name in self._names
        return inside and bool(summands(self.parent.pricer.mesh)[self._written(name)[1]].any())

    def _hidden(self, name: str, states: int) -> tuple[Floats, Floats]:
        """By the states read: most seconds of the first reader's weight and input gradients."""
        found = (np.zeros(states), np.zeros(states))
        for op in [op for op in self._users.get(name, []) if op.kind == "matmul"][:1]:
            _, chosen = self._chosen(op)
            needs, whole = chosen.table.reads[chosen.index], np.ones(len(chosen.index))
            np.maximum.at(found[0], needs, chosen.time.backward_weight_s * whole)
            np.maximum.at(found[1], needs, chosen.time.backward_input_s * whole)
        return found

    def _bytes(self, name: str) -> float:
        """Bytes of a whole tensor: an output, or what comes from outside the block."""
        dims, width = self.costs.dims, self.parent.job.kernels.activation_bytes
        op = self.block.operator(name) if name in self._names else self._users[name][0]
        columns = op.columns if name in self._names else op.contraction or op.columns
        return float(evaluate(op.rows, dims)) * float(evaluate(columns, dims)) * width

    def _saved_input(self) -> None:
        """A block's input is kept in the states of its stream."""
        if INPUT not in self._saved or self._is_data:
            return
        number, mesh = self.streams[0], self.parent.pricer.mesh
        table = list(state_codes(len(mesh)))
        variable, whole = self.parent.variables[number], self._bytes(INPUT)
        metrics = np.zeros((len(Metric), len(variable)))
        for index, code in enumerate(variable.index.tolist()):
            metrics[Metric.SAVED, index] = whole / sharding(table[code], mesh)
        self.parent.unary.append(Unary(self.block.name, number, metrics))


def shardings(graph: ChoiceGraph, chain: Chain, assignment: Sequence[int]) -> dict[str, BlockSharding]:
    """What an assignment means for every kind of block, in a plan's words."""
    found = {name: _sharding(graph, block, assignment) for name, block in chain.kinds.items()}
    if chain.embedding in found:  # what it reads is data: every rank loads it as it needs it
        whole = (WORDS["R"],) * len(graph.mesh)
        found[chain.embedding] = found[chain.embedding].model_copy(update={"input": whole})
    return found


def _sharding(graph: ChoiceGraph, block: Block, assignment: Sequence[int]) -> BlockSharding:
    operators: dict[str, tuple[str, ...]] = {}
    gathered = []
    for op in block.operators:
        number, mode = graph.follows[block.name, op.name]
        variable, value = graph.variables[number], assignment[number]
        roles = role_table(roles_of(op), graph.mesh)
        at = variable.index[value] if mode == OWN else roles.within[variable.reads[value]]
        operators[op.name] = tuple(role.name for role in roles.combinations[int(at)])
        if mode == OWN and len(variable.gathered) and variable.gathered[value]:
            gathered.append(op.name)
    streams = graph.streams[block.name]
    ends = [_words(graph, graph.variables[n].index[assignment[n]]) if n >= 0 else None for n in streams]
    last = block.operators[-1]
    if last.kind == "loss":
        number, _ = graph.follows[block.name, last.name]
        ends[1] = _words(graph, graph.variables[number].writes[assignment[number]])
    return BlockSharding(
        input=ends[0] or (),
        output=ends[1] or (),
        memory=ends[2],
        operators=operators,
        gathered=tuple(gathered),
    )


def _words(graph: ChoiceGraph, code: int) -> tuple[str, ...]:
    return tuple(WORDS[letter] for letter in list(state_codes(len(graph.mesh)))[int(code)])
