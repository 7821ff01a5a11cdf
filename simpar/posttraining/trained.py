"""The training side of a step: updates on packed responses, and passes that score them, by today's simulation.

Responses of an update are packed into rows of ``training.seq_len`` tokens, in which they attend to themselves only, and
rows are filled up to a multiple of what the data-parallel ranks take at a time; or each has a padded row. A pass over
finished responses is a step of a model that has nothing to train: the forward passes of the same layout, with its
collectives and its pipeline.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from simpar.architectures.graph import Block, ModelGraph
from simpar.architectures.training import Documents, Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.part import part_of_node
from simpar.inputs import as_model
from simpar.layout.layout import Layout
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.plan import Plan
from simpar.plan.post_training import PostTraining
from simpar.posttraining.lengths import StepLengths, draw_step
from simpar.posttraining.served import image_tokens
from simpar.report.result import Result
from simpar.simulation import apply_tuning, make_job, simulate
from simpar.stacks.stack import Stack
from simpar.units import Ints

EVEN_TOKENS = 64
"""Padded rows are a multiple of so many tokens long."""
SHOWN_STEPS = 8
"""Steps whose lengths stand for the distribution in a packed row's attention."""
MOST_LENGTHS = 4096


def frozen(graph: ModelGraph) -> ModelGraph:
    """The model with nothing trained: a step of it is a forward pass."""

    def without_training(block: Block) -> Block:
        operators = tuple(
            replace(op, weights=tuple(replace(weight, trainable=False) for weight in op.weights))
            for op in block.operators
        )
        return replace(block, operators=operators, has_no_backward=True)

    return replace(
        graph,
        blocks={name: without_training(block) for name, block in graph.blocks.items()},
        embedding=without_training(graph.embedding),
        head=without_training(graph.head),
    )


def with_images(graph: ModelGraph, responses: float) -> ModelGraph:
    """The model with the images and sounds of so many responses in a row; towers of padded rows have one's."""
    lengths = {name: size for name, size in graph.dims.items() if name.endswith(".seq") and name != "text.seq"}
    if responses <= 1.0 or not image_tokens(graph):
        return graph
    more = {name: max(size, int(size * responses) // EVEN_TOKENS * EVEN_TOKENS) for name, size in lengths.items()}
    return replace(graph, dims={**graph.dims, **more})


def _devices_of(cluster: Cluster, devices: int, field_name: str) -> Cluster:
    """So many devices of the kind of a cluster: a part of a node, or whole nodes. Raises UserError."""
    whole = cluster.profile.devices_per_node
    if devices < whole:
        return make_cluster(part_of_node(cluster.profile, devices), 1)
    if devices % whole:
        raise UserError(f"{field_name} = {devices}: allowed: up to {whole}, or a multiple of the {whole} of a node")
    return make_cluster(cluster.profile, devices // whole)


def _plan_of(plan: Plan, graph: ModelGraph) -> Plan:
    """The policy's plan for a model of its step: one without experts is data-parallel where experts would be spread."""
    if graph.is_mixture or (plan.mesh.ep == 1 and plan.mesh.etp is None):
        return plan
    return plan.model_copy(update={"mesh": plan.mesh.model_copy(update={"ep": 1, "etp": None})})


@dataclass(frozen=True)
class BatchCost:
    """What a batch takes on the training devices, in seconds: passes by name, and updates of all its mini-batches.

    ``rows`` are those of an update, ``padding`` the share of their tokens that is none of a response or prompt.
    """

    passes_s: Mapping[str, float]
    training_s: float
    rows: int
    padding: float

    @property
    def total_s(self) -> float:
        """All of it, one after the other."""
        return sum(self.passes_s.values()) + self.training_s


@dataclass(frozen=True)
class TrainingSide:
    """The devices that train: what a batch takes on them, and the memory of their fullest rank.

    ``only`` are the models of devices of their own, on which the policy is not; () are the devices of the policy.
    """

    graph: ModelGraph
    cluster: Cluster
    plan: Plan
    training: Training
    section: PostTraining
    stack: Stack | str | None = None
    only: tuple[str, ...] = ()
    _steps: dict[tuple[str, int, int], Result] = field(init=False, default_factory=dict)

    @cached_property
    def apart(self) -> "tuple[TrainingSide, ...]":
        """Devices of their own that some models have. Raises UserError for impossible numbers."""
        result, plan = [], self.plan.model_copy(update={"mesh": self.plan.mesh.model_copy(update={"dp": None})})
        for models, devices in self.section.passes.pools:
            pool = _devices_of(self.cluster, devices, f"post_training.passes.{models[0]}_devices")
            result.append(TrainingSide(self.graph, pool, plan, self.training, self.section, self.stack, models))
        return tuple(result)

    def has(self, model: str) -> bool:
        """Whether a model is on these devices."""
        if self.only:
            return model in self.only
        return not any(model in models for models, _ in self.section.passes.pools)

    @cached_property
    def updates(self) -> int:
        """Optimizer updates of a step. Raises UserError where responses do not fill them."""
        responses, batch = self.section.responses, self.training.global_batch
        if responses % batch:
            raise UserError(
                f"training.global_batch = {batch}: allowed: divisors of the {responses} responses of a step "
                f"(post_training.prompts x samples)"
            )
        return responses // batch

    @cached_property
    def documents(self) -> Documents:
        """Lengths of prompt and response together, as a distribution."""
        steps = [draw_step(self.section, self.training.seq_len, step).total for step in range(SHOWN_STEPS)]
        lengths = np.sort(np.concatenate(steps))
        if len(lengths) > MOST_LENGTHS:
            lengths = lengths[np.linspace(0, len(lengths) - 1, MOST_LENGTHS).astype(np.int64)]
        return Documents(lengths=tuple(lengths.tolist()), packing="pack" if self.is_packed else "pad")

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several responses."""
        return self.section.lengths.padding == "none"

    @cached_property
    def at_a_time(self) -> int:
        """Sequences that all data-parallel ranks take in one microbatch each; with chunks, in one for every stage."""
        layout = self.layout
        groups = int(getattr(layout, PIPELINE)) if int(layout.vpp) > 1 else 1
        return int(layout.dp) * int(layout.micro_batch) * groups

    @cached_property
    def layout(self) -> Layout:
        """What is decided of the plan, whatever the number of rows."""
        enough = self.cluster.world_size * self.plan.micro_batch  # for any number of replicas
        training = self.training.model_copy(update={"global_batch": enough})
        return make_job(self.graph, self.cluster, self.plan, training, self.stack).layout

    def rows_of(self, tokens: int) -> int:
        """Rows of an update with so many tokens: packed ones, or one of each response."""
        if not self.is_packed:
            return self.training.global_batch
        rows = -(-tokens // self.training.seq_len)
        return -(-rows // self.at_a_time) * self.at_a_time

    def row_tokens(self, lengths: Ints) -> int:
        """Tokens of a row; of one as long as the longest response, a multiple of what its ranks divide evenly."""
        context = self.training.seq_len
        if self.section.lengths.padding != "longest":
            return context
        even = lcm(EVEN_TOKENS, 2 * int(self.layout.cp) * int(self.layout.tp))
        return min(context, -(-int(lengths.max()) // even) * even)

    def shared_rows(self) -> Training:
        """An update of the first step's lengths, in rows that any number of replicas of the cluster can share."""
        tokens = int(draw_step(self.section, self.training.seq_len, 0).total.sum())
        world = self.cluster.world_size
        rows = -(-tokens // self.updates // self.training.seq_len) if self.is_packed else self.training.global_batch
        return self.training.model_copy(
            update={"global_batch": -(-rows // world) * world, "documents": self.documents}
        )  # fmt: skip

    def batch(self, lengths: Ints) -> BatchCost:
        """What responses of ``lengths`` (with their prompts) take."""
        tokens = int(lengths.sum())
        rows, row = self.rows_of(-(-tokens // self.updates)), self.row_tokens(lengths)
        padding = 1.0 - tokens / (rows * self.updates * row)
        scored = self._pass_rows(rows * self.updates)
        passes = {name: self._simulated(name, scored, row).step_time_s for name in self.passes}
        training_s = 0.0 if self.only else self.step(rows, row).step_time_s
        if self.trains_critic:
            training_s += self._simulated("critic update", rows, row).step_time_s
        training_s *= self.updates * self.section.epochs
        if self.section.passes.reward_s and not self.only:
            passes["reward rules"] = self.section.passes.reward_s * -(-len(lengths) // self.cluster.world_size)
        return BatchCost(passes, training_s, rows, padding)

    @cached_property
    def critic(self) -> str | None:
        """The critic's model: that of the section, under PPO the policy's own; None for algorithms without one."""
        given = self.section.passes.critic
        return given or (self.graph.name if self.section.algorithm == "ppo" else None)

    @property
    def trains_critic(self) -> bool:
        """Whether a critic is trained on these devices."""
        return self.critic is not None and self.has("critic")

    @property
    def critic_layout(self) -> Layout:
        """The layout of a critic that is trained: the policy's, but for experts where it has none."""
        return self._simulated("critic update", self.usual_rows, self.usual_row).layout

    @cached_property
    def passes(self) -> dict[str, str | None]:
        """Scoring passes and their models; None is the policy's own."""
        chosen = self.section.passes
        wanted = {
            "old log-probabilities": (chosen.old_policy and not self.only, None),
            "reference": (chosen.reference and self.has("reference"), None),
            "reward": (chosen.reward is not None and self.has("reward"), chosen.reward),
            "teacher": (chosen.teacher is not None and self.has("teacher"), chosen.teacher),
            "values": (self.trains_critic, chosen.critic),
        }
        return {name: model for name, (is_wanted, model) in wanted.items() if is_wanted}

    def _graph_of(self, name: str) -> ModelGraph:
        model = self.section.passes.critic if name == "critic update" else self.passes.get(name)
        graph = self.graph if model is None else as_model(model, self.training.seq_len)
        if name in ("update", "critic update"):
            return graph
        return frozen(apply_tuning(self.plan, graph) if model is None else graph)

    def _pass_rows(self, rows: int) -> int:
        """Rows of passes, filled up to a multiple of what the data-parallel ranks take at a time there."""
        wide = self.section.passes.micro_batch
        if wide is None:
            return rows
        together = self.at_a_time // int(self.layout.micro_batch) * wide
        return -(-rows // together) * together

    def _simulated(self, name: str, rows: int, row: int) -> Result:
        """A step of one kind over so many rows of ``row`` tokens; passes of one model are one step."""
        is_pass = name not in ("update", "critic update")
        own = is_pass and self.passes[name] is None
        key = ("policy" if own else name), rows, row
        if key not in self._steps:
            values = {"seq_len": row, "global_batch": rows, "documents": self.documents}
            responses = self.training.global_batch * (self.updates if is_pass else 1)
            graph = with_images(self._graph_of(name), responses / rows)
            plan, wide = _plan_of(self.plan, graph), self.section.passes.micro_batch
            if is_pass and wide is not None:
                plan = plan.model_copy(update={"micro_batch": wide})
            inputs: dict[str, Any] = {"stack": self.stack, "with_timeline": False}
            training = self.training.model_copy(update=values)
            self._steps[key] = simulate(graph, self.cluster, plan, training, **inputs)
        return self._steps[key]

    def step(self, rows: int, row: int) -> Result:
        """The simulated update of the policy, on rows of ``row`` tokens."""
        return self._simulated("update", rows, row)

    @cached_property
    def usual_rows(self) -> int:
        """Rows of an update of the first step's lengths."""
        lengths: StepLengths = draw_step(self.section, self.training.seq_len, 0)
        return self.rows_of(-(-int(lengths.total.sum()) // self.updates))

    @cached_property
    def usual_row(self) -> int:
        """Tokens of the longest row of the steps that are simulated."""
        count = self.section.measured_steps + self.section.synchrony.steps_off
        return max(
            self.row_tokens(draw_step(self.section, self.training.seq_len, step).total) for step in range(count)
        )  # fmt: skip

    @cached_property
    def usual(self) -> Result:
        """The update of the first step's rows."""
        return self.step(self.usual_rows, self.usual_row)

    @cached_property
    def states_bytes(self) -> float:
        """Bytes of a device that stay between updates: parameters, gradients, states; those of other models too."""
        held = 0.0 if self.only else self.usual.memory.static_memory_bytes
        if self.trains_critic:
            held += self._simulated("critic update", self.usual_rows, self.usual_row).memory.static_memory_bytes
        others = [name for name in self.passes if name not in ("old log-probabilities", "values")]
        return held + sum(self._scored(name).memory.static_memory_bytes for name in others)

    def _scored(self, name: str) -> Result:
        """A pass over the rows of the first step."""
        return self._simulated(name, self._pass_rows(self.usual_rows * self.updates), self.usual_row)

    @cached_property
    def peak_bytes(self) -> float:
        """The most bytes of a device while it trains: the update's peak, beside what other models keep there.

        A pass of wider micro-batches may take more than the update's tensors; its parameters are among the states.
        """
        results = [] if self.only else [self.usual]
        if self.only and self.trains_critic:
            results.append(self._simulated("critic update", self.usual_rows, self.usual_row))
        if self.only or self.section.passes.micro_batch is not None:
            results += [self._scored(name) for name in self.passes]
        tensors = [each.memory.peak_reserved_bytes - each.memory.static_memory_bytes for each in results]
        return self.states_bytes + max(tensors)

    @cached_property
    def capacity_bytes(self) -> float:
        """Bytes that a device may take."""
        shown = self._scored(next(iter(self.passes))) if self.only else self.usual
        return float(shown.memory.capacity_bytes)
