"""A search problem: model, cluster, training, objective, and the constraints that a plan must satisfy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from simpar.architectures.documents import with_documents
from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import OPTIMAL, says_layers, says_segments
from simpar.architectures.training import Training
from simpar.calls import coerce, refuses_unknown_keywords
from simpar.dataclass import dataclass
from simpar.errors import BadCall, UserError
from simpar.files import allowed, choose, suggest
from simpar.hardware.catalogue import recorded
from simpar.hardware.cluster import Cluster
from simpar.inputs import as_cluster, as_model, as_perturbation, as_plan, as_training, with_units
from simpar.layout.layout import apply_execution_choices
from simpar.plan.choices import BY_NAME, CHOICES, name_of
from simpar.plan.choices.context_parallel import suit
from simpar.plan.choices.pipeline import SLICING
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.program.perturbation import Perturbation
from simpar.scenario import to_cluster_section
from simpar.simulation import apply_tuning
from simpar.stacks.stack import Stack, load_stack
from simpar.uncertainty.memory import AS_PREDICTED, DEFAULT_FIT_PROBABILITY

ANY = "any"
"""Value of ``portable`` if no framework has to be able to run the plan."""
AxisValue = int | float | str | None
"""A value of an axis, or several as comma-separated text."""
RECORDED_KEYS = {"predicted", "cluster", "perturbation", "search"}
"""Keys of the record of a plan that are those of another search."""
BY_REGRET = "regret"
"""The default objective."""
OBJECTIVES = {
    BY_REGRET: "the step with the least expected regret among those tied with the shortest",
    "time": "the shortest step, as predicted",
    "cost": "the fewest dollars a step, over numbers of nodes",
    "energy": "the least energy a step, over numbers of nodes",
    "devices": "the fewest devices that meet the deadline",
}


@dataclass(frozen=True)
class Constraints:
    """Constraints on every candidate.

    ``fit_probability`` is the least probability that the plan fits in memory (0.5: fits as predicted), ``headroom`` the
    fraction of device memory to leave free in addition. ``fixed`` maps axes of the space to the values they must have.
    ``portable`` names an export target that must be able to express the plan ("any": no target restricts plans; None:
    see ``Problem.framework``). ``schedules`` restricts pipeline schedules, ``deadline_s`` bounds the step time. Raises
    UserError for values that are not allowed.

    >>> Constraints(fixed={"tp": (1, 2)}, portable="megatron").fit_probability
    0.95
    """

    headroom: float = 0.0
    fixed: Mapping[str, AxisValue | Sequence[AxisValue]] = field(default_factory=dict)
    portable: str | None = None
    schedules: tuple[str, ...] | None = None
    deadline_s: float | None = None
    fit_probability: float = DEFAULT_FIT_PROBABILITY

    @staticmethod
    def of(given: Any) -> Constraints:
        """Constraints, None for none of them, or a dict of fields and of axes to fix. Raises UserError.

        >>> Constraints.of({"tp": 1, "headroom": 0.1})
        Constraints(headroom=0.1, fixed={'tp': 1}, portable=None, schedules=None, deadline_s=None, fit_probability=0.95)
        """
        return Constraints() if given is None else coerce(given, Constraints, "constraints", {Mapping: _of_keys})

    @property
    def sure_words(self) -> str:
        """The wanted probability in words, to follow a need in bytes; empty if it is as predicted."""
        return "" if self.fit_probability == AS_PREDICTED else f" to be {100 * self.fit_probability:g} % sure"

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1:
            raise UserError(f"headroom = {self.headroom}: allowed: a fraction from 0 to below 1")
        if not AS_PREDICTED <= self.fit_probability < 1:
            raise UserError(
                f"fit_probability = {self.fit_probability}: allowed: from {AS_PREDICTED} (as predicted) to below 1"
            )
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise UserError(f"deadline = {self.deadline_s}: allowed: above 0 s")
        wanted = self.fixed.get("recompute", ())
        for policy in wanted if isinstance(wanted, list | tuple) else (wanted,):
            if says_segments(str(policy)):
                raise UserError(
                    f"plan.recompute = {policy}: is not searched, for not every layout has stages of whole segments; "
                    f"allowed: none, selective, full, every:C, and {OPTIMAL}, which tries segments of all lengths"
                )
            if says_layers(str(policy)):
                raise UserError(
                    f"plan.recompute = {policy}: is a choice for one layout, not searched; allowed: none, selective, "
                    f"full, every:C, and {OPTIMAL}, which makes that choice for every layout"
                )


Constraints.__init__ = refuses_unknown_keywords(Constraints.__init__)  # type: ignore[method-assign]


def _of_keys(keys: Mapping[str, Any]) -> Constraints:
    """Constraints of a dict: keys that are none of their fields are axes, which are named as keys of plans are."""
    own = [each.name for each in fields(Constraints)]
    axes = {name: value for name, value in keys.items() if name not in own}
    for name in axes:
        if name_of(name) not in BY_NAME:
            raise BadCall(f"constraints: unknown key {name}{suggest(name, (*own, *BY_NAME)) or allowed(own)}")
    rest = {name: value for name, value in keys.items() if name in own}
    return Constraints(**rest | {"fixed": {**rest.get("fixed", {}), **axes}})


@dataclass(frozen=True)
class Framework:
    """The framework behind a stack, by its export target; values on ``axes`` are restricted to those it supports."""

    target: str
    axes: frozenset[str]


@dataclass(frozen=True)
class Problem:
    """Everything a search needs; ``base`` gives what is not an axis, such as optimizer, precision, bucket sizes.

    ``perturbation`` makes ranks differ, as in a scenario: bounds know the slowest rank, exact times all of
    them. ``framework`` restricts axes that were not asked for.
    """

    graph: ModelGraph
    cluster: Cluster
    training: Training
    stack: Stack
    base: Plan = field(default_factory=Plan)
    objective: str = BY_REGRET
    constraints: Constraints = Constraints()
    perturbation: Perturbation = field(default_factory=Perturbation)
    framework: Framework | None = None

    @property
    def is_of_time(self) -> bool:
        """Whether the search minimises step time on all nodes; so does "regret", which then chooses among ties."""
        return self.objective in (BY_REGRET, "time")

    @property
    def export_target(self) -> str | None:
        """The export target that plans must be expressible for, if one was asked for."""
        return None if self.constraints.portable == ANY else self.constraints.portable

    @property
    def target(self) -> str | None:
        """The export target that restricts plans: the one asked for, or that of the framework."""
        if self.constraints.portable is not None:
            return self.export_target
        return self.framework.target if self.framework else None

    @cached_property
    def checked_base(self) -> Plan:
        """The base plan without what it records, all of its values stated."""
        return Plan.model_validate(self.base.model_dump(exclude=RECORDED_KEYS))

    @cached_property
    def sections(self) -> dict[tuple[Any, ...], Any]:
        """Sections of plans of the space that were made, by name and values."""
        return {}

    @cached_property
    def cluster_record(self) -> dict[str, Any]:
        """The cluster, as plans that are found for it record it."""
        return to_cluster_section(recorded(self.cluster))

    @cached_property
    def workload(self) -> Workload:
        """What plans are checked against."""
        cluster = self.cluster
        return Workload(self.graph, self.training, cluster.world_size, cluster.profile.devices_per_node)

    @property
    def memory_limit_bytes(self) -> float:
        """The most memory that a plan may reserve on a device."""
        return self.cluster.device.memory_bytes * (1.0 - self.constraints.headroom)


def make_problem(
    model: ModelGraph | str | Path,
    cluster: Cluster | str | Path,
    training: Training | Mapping[str, Any],
    *,
    stack: Stack | str | None = None,
    objective: str = BY_REGRET,
    constraints: Constraints | Mapping[str, Any] | None = None,
    base: Plan | Mapping[str, Any] | str | Path | None = None,
    perturbation: Perturbation | Mapping[str, Any] | None = None,
) -> Problem:
    """A problem from names, files and dicts, as :func:`simpar.simulate` takes them.

    The fields are those of :class:`Problem`. The default stack is that of the export target asked for, else the
    usual one. Raises UserError for unknown names and values that are not allowed.
    """
    choose(objective, OBJECTIVES, "objective")
    base, constraints = Plan() if base is None else as_plan(base), Constraints.of(constraints)
    cluster, training, perturbation = (as_cluster(cluster), as_training(training), as_perturbation(perturbation))
    base, assumed = (base, "") if "precision" in constraints.fixed else with_units(base, cluster)
    if base.pipeline.slices:
        raise UserError(
            f"plan.slices: slices are chosen for every layout; allowed: none of them, and --fix schedule={SLICING}"
        )
    if base.pipeline.encoder_in_bubbles:
        raise UserError(
            "plan.encoder_in_bubbles = true: layouts are searched with encoders in the first stages; allowed: false, "
            "and `simpar simulate PLAN --set plan.encoder_in_bubbles=true` for the plans found"
        )
    if perturbation.jitter_sigma > 0:
        raise UserError(
            "perturbation.jitter: layouts are searched by their steps without jitter; allowed: none of it, and "
            "`simpar simulate PLAN --jitter SIGMA` for the plans found"
        )
    graph = apply_tuning(base, as_model(model, training.seq_len))
    if assumed:
        graph = graph.assuming(assumed)
    habits = stack if isinstance(stack, Stack) else load_stack(stack or _stack_of(constraints.portable, base))
    graph = with_documents(graph, training)
    asked = {name_of(name) for name in constraints.fixed}
    open_again: dict[str, Any] = {
        each.name: None for each in CHOICES if each.in_stack is not None and each.name in asked
    }
    held = base.with_values(**open_again)
    habits = suit(apply_execution_choices(habits, held), graph)
    return Problem(graph, cluster, training, habits, base, objective, constraints, perturbation)


def _stack_of(portable: str | None, base: Plan) -> str:
    """The stack of an export target; the usual one without a target. Raises UserError for an unknown target."""
    if portable in (None, ANY):
        return base.usual_stack
    from simpar.frameworks import load_target

    return load_target(str(portable)).stack
