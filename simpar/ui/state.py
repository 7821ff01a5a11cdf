"""The state of the page: a scenario as plain data, and changes of its plan.

A state may come from a link that somebody else made, so it may name only shipped models and hardware, or those that the
command line named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any

from simpar import files
from simpar.architectures.catalogue import catalogue
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster
from simpar.hardware.profile import ClusterProfile, MixedProfile
from simpar.layout.moves import reset_dependents
from simpar.plain import printable
from simpar.plan.choices import choice, made_for
from simpar.plan.plan import Plan
from simpar.posttraining.trained import TrainingSide
from simpar.profiles import EXACT, as_written
from simpar.scenario import ClusterChoice, Perturbations, Scenario, to_cluster_section
from simpar.settings import with_value
from simpar.stacks.stack import Stack, load_stack
from simpar.ui.section import FILES, HARDWARE, KEYS, MODELS, SECTION, value_at, with_section

SOURCE = "the page"
STATE_SECTIONS = (
    "model", "cluster", "training", "plan", "stack", "perturbation", "noise_scale_tokens", SECTION,
)  # fmt: skip
"""Parts of a scenario that the page supports; campaigns and published figures belong to other commands."""


JOB = (
    "model", "cluster.hardware", "cluster.nodes", "training.seq_len", "training.global_batch", "training.tokens",
    "cluster.price_per_device_hour", "stack",
)  # fmt: skip
"""Dotted keys of the model, training and cluster."""


@dataclass(frozen=True)
class Allowed:
    """Names in addition to the shipped ones: those that the command line named."""

    models: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # files with lengths

    @staticmethod
    def by(scenario: Scenario) -> Allowed:
        """The names in a scenario that the user gave."""
        section = scenario.post_training

        def names(*given: object, keys: Iterable[str] = ()) -> tuple[str, ...]:
            inner = () if section is None else (value_at(section, key) for key in keys)
            return tuple(each for each in (*given, *inner) if isinstance(each, str))

        return Allowed(
            names(scenario.model, keys=MODELS),
            names(scenario.cluster.hardware, keys=(HARDWARE,)),
            names(scenario.stack or None, scenario.plan.stack or None),
            names(keys=FILES),
        )


@dataclass(frozen=True)
class ResolvedRequest:
    """A scenario with its loaded model, cluster and stack, as :func:`simpar.simulation.make_job` takes them."""

    scenario: Scenario
    graph: ModelGraph = field(repr=False)
    cluster: Cluster = field(repr=False)
    stack: Stack = field(repr=False)

    @property
    def plan(self) -> Plan:
        """The layout as it was asked for, with open choices left open."""
        return self.scenario.plan

    @property
    def update(self) -> Training:
        """What the plan splits: the training of the scenario, or of a step of reinforcement learning an update's rows.

        Raises UserError where responses do not fill updates.
        """
        training, section = self.scenario.training, self.scenario.post_training
        if section is None:
            return training
        return TrainingSide(self.graph, self.cluster, self.plan, training, section, self.stack).shared_rows()

    def inputs(self) -> dict[str, Any]:
        """The inputs of simulate."""
        return {
            "model": self.graph,
            "cluster": self.cluster,
            "plan": self.plan,
            "training": self.scenario.training,
            "stack": self.stack,
            "perturbation": self.scenario.perturb(),
            "noise_scale_tokens": self.scenario.noise_scale_tokens,
        }


def as_state(scenario: Scenario) -> dict[str, Any]:
    """A scenario as the page keeps it: plain data, with the plan in flat keys and without open values."""
    cluster = scenario.cluster.model_dump(mode="json", exclude_none=True)
    if (price := scenario.cluster.price_per_device_hour) is not None:
        cluster["price_per_device_hour"] = f"{price!r} USD/h"
    hardware = scenario.cluster.hardware
    if isinstance(hardware, MixedProfile):
        nodes = scenario.cluster.nodes or hardware.nodes
        groups = [{"hardware": _plain(group.hardware), "nodes": group.nodes} for group in hardware.groups]
        between = hardware.between.model_dump(mode="json")
        recorded = {"hardware": hardware.name, "groups": groups, "between": between, "nodes": nodes}
        cluster = cluster | to_cluster_section(recorded)
    else:
        cluster["hardware"] = _plain(hardware)
    data: dict[str, Any] = {
        "model": scenario.model,
        "cluster": {"nodes": 1, **cluster},
        "training": scenario.training.model_dump(mode="json", exclude_none=True),
        "plan": _said(scenario.plan),
        "stack": scenario.stack or scenario.plan.stack,
        "perturbation": scenario.perturbation.model_dump(mode="json", exclude_defaults=True),
        "noise_scale_tokens": scenario.noise_scale_tokens,
        SECTION: None if scenario.post_training is None else as_written(scenario.post_training, EXACT),
    }
    return {key: value for key, value in data.items() if value not in (None, {})}


def _plain(hardware: str | ClusterProfile) -> str | dict[str, Any]:
    """The name of a profile, or a profile in the form of a file."""
    return hardware if isinstance(hardware, str) else as_written(hardware, EXACT)


def _said(plan: Plan) -> dict[str, Any]:
    """Values of a plan that differ from the default; chunks also if its schedule has another usual number of them."""
    usual, said = Plan().flat_values(), plan.flat_values()
    return {
        name: value
        for name, value in said.items()
        if usual.get(name) != value or (name == "vpp" and "schedule" in said)
    }


def with_job(data: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """A state with dotted keys outside of the plan replaced; plan values that depend on the old ones are left open.

    Raises UserError for other keys.
    """
    own = {key: value for key, value in job.items() if key in KEYS}
    result, job = with_section(data, own), {key: value for key, value in job.items() if key not in own}
    for key, value in job.items():
        if key not in JOB:
            raise UserError(f"{SOURCE}: unknown key {key}{files.suggest(key, (*JOB, *KEYS)) or files.allowed(JOB)}")
        result = with_value(result, key, value)
    if not job or not isinstance(result.get("plan", {}), dict):
        return result
    result["plan"] = {key: value for key, value in result.get("plan", {}).items() if key not in made_for(choice.JOB)}
    if "cluster.hardware" in job and isinstance(result.get("cluster"), dict):
        result["cluster"] = {key: value for key, value in result["cluster"].items() if key not in ("nvls", "sharp")}
    return result


def read_state(data: Any, allowed: Allowed) -> Scenario:
    """The scenario of a state. Raises UserError for invalid data, and for files that the command line did not name."""
    if not isinstance(data, Mapping):
        raise UserError(f"{SOURCE}: a {type(data).__name__}: a state is a mapping with model, cluster, training, plan")
    for key in data:
        if key not in STATE_SECTIONS:
            raise UserError(
                f"{SOURCE}: unknown key {key}{files.suggest(str(key), STATE_SECTIONS) or files.allowed(STATE_SECTIONS)}"
            )
    scenario = files.parse(Scenario, data, source=SOURCE)
    _known("model", scenario.model, (*catalogue(), *allowed.models))
    hardware = scenario.cluster.hardware
    named = [group.hardware for group in hardware.groups] if isinstance(hardware, MixedProfile) else [hardware]
    for each in named:
        _known("cluster.hardware", each, (*files.bundled("clusters"), *allowed.hardware))
        if isinstance(each, ClusterProfile):  # otherwise files that it names would be opened
            _known("cluster.hardware.device", each.device, tuple(files.bundled("devices")))
            _known("cluster.hardware.reliability", each.reliability, tuple(files.bundled("reliability")))
    if (section := scenario.post_training) is not None:
        wanted = {
            **dict.fromkeys(MODELS, (*catalogue(), *allowed.models)),
            HARDWARE: (*files.bundled("clusters"), *allowed.hardware),
            **dict.fromkeys(FILES, allowed.texts),
        }
        for key, names in wanted.items():
            _known(f"{SECTION}.{key}", value_at(section, key), names)
    for name in (scenario.stack, scenario.plan.stack):
        _known("stack", name, (*files.bundled("stacks"), *allowed.stacks))
    return scenario


def _known(key: str, name: object, names: tuple[str, ...]) -> None:
    """Refuse a name that is neither shipped nor given on the command line; values that are not names pass."""
    if not isinstance(name, str) or name in names:
        return
    own = "; files and code of yours are given on the command line: simpar ui --help"
    raise UserError(f"{SOURCE}: {key} = {printable(name)}: is not shipped{files.suggest(name, names)}{own}")


def ask(scenario: Scenario) -> ResolvedRequest:
    """A scenario with its parts loaded; recently used parts are cached. Raises UserError."""
    model = json.dumps(scenario.model, sort_keys=True)
    cluster = (scenario.cluster.model_dump_json(), json.dumps(scenario.perturbation.degraded_links, sort_keys=True))
    stack = load_stack(scenario.stack or scenario.plan.usual_stack)
    return ResolvedRequest(scenario, _graph(model, scenario.training), _cluster(*cluster), stack)


@lru_cache(maxsize=16)
def _graph(model: str, training: Training) -> ModelGraph:
    return Scenario(model=json.loads(model), cluster=ClusterChoice(hardware=""), training=training).graph()


@lru_cache(maxsize=16)
def _cluster(choice: str, degraded: str) -> Cluster:
    cluster, links = (ClusterChoice.model_validate_json(choice), Perturbations(degraded_links=json.loads(degraded)))
    training = Training(seq_len=1, global_batch=1)  # not used by the cluster
    return Scenario(model="", cluster=cluster, training=training, perturbation=links).build_cluster()


def apply_change(scenario: Scenario, change: Mapping[str, Any]) -> Scenario:
    """A scenario with flat values of its plan replaced, and values that depend on them left open. Raises UserError."""
    whole = {**change, **reset_dependents(change, scenario.plan)}
    data = {**scenario.plan.model_dump(), **whole}
    return scenario.model_copy(update={"plan": files.parse(Plan, data, source=SOURCE)})
