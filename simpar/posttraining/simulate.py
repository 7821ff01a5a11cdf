"""The front door: a model, a cluster, a plan and a section become the answer for a step of reinforcement learning."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.calls import coerce, refuses_unknown_keywords
from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.inputs import as_cluster, as_model, as_plan, as_training, with_units
from simpar.plan.plan import Plan
from simpar.plan.post_training import PostTraining
from simpar.plan.sync import replicas_are_independent
from simpar.posttraining.answer import PostTrainingResult
from simpar.posttraining.engine import ServingEngine, engine_cluster
from simpar.posttraining.lengths import StepLengths, check_context, draw_step
from simpar.posttraining.moves import Resharding, host_rate
from simpar.posttraining.pools import Durations, History, Pools
from simpar.posttraining.program import program_of
from simpar.posttraining.replica import Replica, ReplicaLimits
from simpar.posttraining.served import image_tokens
from simpar.posttraining.summary import summarise_history
from simpar.posttraining.trained import TrainingSide
from simpar.posttraining.weight_flows import NewWeights, updates_of
from simpar.program.ir.program import Timing
from simpar.stacks.stack import Stack
from simpar.units import Ints, to_ns


@refuses_unknown_keywords
def post_train(
    model: ModelGraph | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan | Mapping[str, Any] | str | Path,
    training: Training | Mapping[str, Any],
    post_training: PostTraining | Mapping[str, Any],
    *,
    stack: Stack | str | None = None,
    engine: str = "auto",
) -> PostTrainingResult:
    """Simulate steps of reinforcement learning: generation, scoring, training, and new weights.

    ``model``, ``cluster``, ``plan`` and ``training`` are those of the training side, as :func:`simpar.simulate` takes
    them: ``training.seq_len`` is the context of prompt and response, ``training.global_batch`` the responses of an
    optimizer update. ``post_training`` is the section of a scenario. Raises UserError.

    >>> lengths = {"prompt": {"fixed": 512}, "response": {"mean": 1000, "p99": 4000}}
    >>> section = {"prompts": 16, "samples": 8, "lengths": lengths, "steps": 1}
    >>> plan, training = {"zero": 3, "micro_batch": 1}, {"seq_len": 8192, "global_batch": 128}
    >>> result = post_train("qwen2.5-1.5b", "dgx-h100", plan, training, section)
    >>> result.fits, result.figures.staleness.largest
    (True, 0)
    """
    return simulate_setting(make_setting(model, cluster, plan, training, post_training, stack=stack), engine)


def simulate_setting(setting: "PostTrainingSetting", engine: str = "auto") -> PostTrainingResult:
    """The answer for both sides of a step. Raises UserError for an unknown engine, and where a sequence cannot fit."""
    history = setting.run()
    steps = program_of(history.intervals, setting.num_replicas, setting.new_weights, setting.beside)
    timing: Timing = choose_engine(engine, steps.program)(steps.program)
    return summarise_history(setting, history, steps, timing)


def as_section(post_training: Any) -> PostTraining:
    """A section, or a dict of its fields. Raises UserError."""
    return coerce(post_training, PostTraining, "post_training", {Mapping: lambda keys: PostTraining(**keys)})


def make_setting(
    model: ModelGraph | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan | Mapping[str, Any] | str | Path,
    training: Training | Mapping[str, Any],
    post_training: PostTraining | Mapping[str, Any],
    *,
    stack: Stack | str | None = None,
    pool: Cluster | None = None,
) -> "PostTrainingSetting":
    """Both sides of a step, checked. Raises UserError.

    ``pool`` stands for whole nodes that only generate: a part of a node, of the one that trains if both fit there.
    """
    cluster, plan, training = as_cluster(cluster), as_plan(plan), as_training(training)
    section = as_section(post_training)
    plan, assumed = with_units(plan, cluster)
    graph = as_model(model, training.seq_len)
    section = _with_images(section, graph)
    check_section(cluster, plan, training, section)
    shares_node = pool is not None and _fit_together(cluster, pool)
    if not section.has_pool:
        pool = cluster
    elif pool is None:
        pool = load_cluster(section.rollout.hardware or cluster.profile, section.rollout.nodes)
    served = ServingEngine.of(graph, pool, section.rollout, training.seq_len)
    side = TrainingSide(graph, cluster, plan, training, section, stack)
    return PostTrainingSetting(section, side, served, pool, (assumed,) if assumed else (), shares_node)


def _with_images(section: PostTraining, graph: ModelGraph) -> PostTraining:
    """The section with prompts that are no shorter than what stands for their images and sounds."""
    made = image_tokens(graph)
    if not made or section.lengths.least_prompt is not None:
        return section
    return section.model_copy(update={"lengths": section.lengths.model_copy(update={"least_prompt": made + 1})})


def _fit_together(cluster: Cluster, pool: Cluster) -> bool:
    """Whether the devices of two pools are those of one node."""
    return cluster.nodes == pool.nodes == 1 and (
        cluster.world_size + pool.world_size <= cluster.profile.devices_per_node
    )


def check_section(cluster: Cluster, plan: Plan, training: Training, section: PostTraining) -> None:
    """Raise UserError for what no RL step has."""
    if cluster.is_mixed:
        raise UserError(
            f"hardware {cluster.profile.name}: has several kinds of nodes; allowed with post_training: one kind, and "
            "another one for the rollout pool (post_training.rollout.hardware)"
        )
    if training.documents is not None:
        raise UserError("training.documents: lengths of post-training are post_training.lengths; allowed: none of both")
    if replicas_are_independent(plan):
        raise UserError("plan.sync: replicas that step on their own; allowed with post_training: bsp without servers")
    if section.weights.changed < 1.0 and section.weights.method == "gathered":
        raise UserError(
            f"post_training.weights.changed = {section.weights.changed:g}: allowed with method = resharded, by which a "
            "device receives what it keeps"
        )
    if section.weights.senders == "rank" and (section.weights.method != "gathered" or not section.has_pool):
        raise UserError("post_training.weights.senders = rank: allowed with method = gathered and placement split or "
                        "hybrid, where whole tensors are broadcast")  # fmt: skip
    engine = section.rollout.engine
    if engine.max_sequences > engine.token_budget:
        raise UserError(
            f"post_training.rollout.engine.max_sequences = {engine.max_sequences}: allowed: up to token_budget = "
            f"{engine.token_budget}, for each takes a token an iteration"
        )
    check_context(section, training.seq_len)


@dataclass(frozen=True)
class PostTrainingSetting:
    """Both sides of a step: how each works, and what moves between them; ``shares_node``: both are on one node."""

    section: PostTraining
    trained: TrainingSide
    served: ServingEngine
    pool: Cluster
    assumed: tuple[str, ...] = ()
    shares_node: bool = False

    @property
    def num_joined(self) -> int:
        """Replicas on devices that also train: the first ones. Raises UserError where they do not fill these."""
        if not self.section.takes_turns:
            return 0
        cluster, devices = self.trained.cluster, self.section.rollout.devices
        _ = engine_cluster(cluster, devices)
        return cluster.world_size // devices

    @property
    def num_replicas(self) -> int:
        """Replicas of the rollout engine."""
        apart = self.pool.world_size // self.section.rollout.devices if self.section.has_pool else 0
        return self.num_joined + apart

    @cached_property
    def kept_bytes(self) -> float:
        """Bytes of training on a device while it generates."""
        if not self.section.takes_turns or self.section.weights.offload:
            return 0.0
        return self.trained.states_bytes

    @cached_property
    def asleep_bytes(self) -> float:
        """Bytes of generation on a device while it trains."""
        if not self.section.takes_turns or self.section.weights.sleep:
            return 0.0
        return self.served.room_bytes

    @cached_property
    def limits(self) -> ReplicaLimits:
        """What a replica may do at a time. Raises UserError where it cannot hold one sequence."""
        return self.served.limits

    @cached_property
    def reshardings(self) -> tuple[Resharding, ...]:
        """How weights go from the layout that trains to replicas there, and to a pool of their own."""
        layout, cluster, section = self.trained.usual.layout, self.trained.cluster, self.section
        targets = [(cluster, True)] * section.takes_turns + [(self.pool, False)] * section.has_pool
        near = self.shares_node
        return tuple(
            Resharding(layout, self.served, cluster, to, section.weights, same, near and not same)
            for to, same in targets
        )  # fmt: skip

    @cached_property
    def new_weights(self) -> NewWeights:
        """The flows of new weights, to all pools at once."""
        moved = self.reshardings
        on_trainers = tuple(each.is_same_pool for each in moved)
        return NewWeights(updates_of(moved), on_trainers, self.num_joined, self.section.weights.overhead)

    @cached_property
    def switch_s(self) -> float:
        """Seconds to move training states between a device and its host, one way; 0 where they stay."""
        if not self.section.takes_turns or not self.section.weights.offload:
            return 0.0
        return self.trained.states_bytes / host_rate(self.trained.cluster)

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of the pools of other models' own devices."""
        return tuple(" and ".join(models) for models, _ in self.section.passes.pools)

    @cached_property
    def durations(self) -> Durations:
        """What everything but generation takes."""

        def taken_ns(side: TrainingSide, lengths: Ints) -> tuple[int, int]:
            update = side.batch(lengths)
            return int(to_ns(float(sum(update.passes_s.values())))), int(to_ns(float(update.training_s)))

        def batch_ns(lengths: Ints) -> tuple[int, int]:
            return taken_ns(self.trained, lengths)

        def beside_ns(lengths: Ints) -> tuple[tuple[int, int], ...]:
            return tuple(taken_ns(side, lengths) for side in self.trained.apart)

        switch_ns = int(to_ns(float(self.switch_s)))
        return Durations(batch_ns, self.new_weights.time_ns, switch_ns, switch_ns, beside_ns)

    def run(self, *, skips: bool = True) -> History:
        """Simulate the section's steps; without ``skips`` every iteration by itself."""
        times = self.served.times
        replicas = [Replica(times, self.limits, skips) for _ in range(self.num_replicas)]
        context = self.trained.training.seq_len

        def lengths(step: int) -> StepLengths:
            return draw_step(self.section, context, step)

        return Pools(self.section, replicas, lengths, self.durations, self.num_joined).run()
