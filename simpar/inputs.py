"""What a call may give as a model, a cluster, a plan, a training and a perturbation: objects, names, files, dicts."""

from abc import ABC
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.calls import coerce, refuses_unknown_keywords
from simpar.hardware import cluster as clusters
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.profile import ClusterProfile
from simpar.plan.plan import Plan
from simpar.program.perturbation import Perturbation
from simpar.tracing.load import DEFAULT_SEQ_LEN, load_model


class Model(ABC):  # noqa: B024 - stands for a class that its room cannot load by name
    """A model by name, by config.json or by ``module:function`` of yours, traced with sequences of ``seq_len`` tokens.

    A call gives a :class:`simpar.ModelGraph`, and every one is an instance. Raises UserError for an unknown name, a
    file that cannot be read and a module that cannot be traced.

    >>> model = Model("llama-3-8b")
    >>> model
    <Model llama-3-8b: 32 layers, 8,030,261,248 parameters>
    >>> isinstance(model, Model), model.dims["hidden"]
    (True, 4096)
    """

    @refuses_unknown_keywords
    def __new__(cls, name: str | Path, *, seq_len: int = DEFAULT_SEQ_LEN) -> ModelGraph:  # type: ignore[misc]
        """The graph."""
        return as_model(name, seq_len)


class Cluster(ABC):  # noqa: B024 - as above
    """``nodes`` nodes of a hardware profile, which is a shipped name or the path of a YAML.

    Without ``nodes`` it has one node, or those of a profile with groups of several kinds. ``devices`` is the number of
    devices in all: fewer than a node has are a part of one. Raises UserError.

    >>> cluster = Cluster("dgx-h100", nodes=2)
    >>> cluster
    <Cluster 2 x dgx-h100: 16 h100-sxm-80gb>
    >>> isinstance(cluster, Cluster), cluster.world_size
    (True, 16)
    """

    @refuses_unknown_keywords
    def __new__(  # type: ignore[misc]
        cls, profile: str | Path | ClusterProfile, nodes: int | None = None, *, devices: int | None = None
    ) -> clusters.Cluster:
        """The nodes, their devices and the fabric that joins them."""
        load = partial(load_cluster, nodes=nodes, devices=devices)
        return coerce(profile, clusters.Cluster, "profile", {ClusterProfile: load, str: load, Path: load})


Model.register(ModelGraph)
Cluster.register(clusters.Cluster)


def as_model(model: Any, seq_len: int) -> ModelGraph:
    """A model, its name or its file. Raises UserError."""

    def load(name: str | Path) -> ModelGraph:
        return load_model(str(name), seq_len=seq_len)

    return coerce(model, ModelGraph, "model", {str: load, Path: load})


def as_cluster(cluster: Any) -> clusters.Cluster:
    """A cluster, or a profile's name or file for the nodes that it has alone. Raises UserError."""
    return coerce(cluster, clusters.Cluster, "cluster", dict.fromkeys((ClusterProfile, str, Path), load_cluster))


def as_plan(plan: Any) -> Plan:
    """A plan, a dict of its flat keys and sections, or its file. Raises UserError."""
    return coerce(plan, Plan, "plan", {Mapping: lambda keys: Plan(**keys), str: Plan.load, Path: Plan.load})


def with_units(plan: Plan, cluster: clusters.Cluster) -> tuple[Plan, str]:
    """The plan in 16 bits that devices have units for, where it states no precision; and what is assumed, or "".

    Devices before Ampere (V100, T4) have no units for bf16 and run it at the fp32 rate: nobody trains like this.
    """
    if "precision" in plan.numerics.model_fields_set:
        return plan, ""
    asked = plan.numerics.precision
    for device in cluster.devices:
        if (instead := device.computes_instead(asked)) is not None:
            return plan.with_values(precision=instead), f"{instead}, as {device.name} has no units for {asked}"
    return plan, ""


def as_training(training: Any) -> Training:
    """A training, or a dict of its fields. Raises UserError."""
    return coerce(training, Training, "training", {Mapping: lambda fields: Training(**fields)})


def as_perturbation(perturbation: Any) -> Perturbation:
    """A perturbation, a dict of its fields, or None for equal ranks. Raises UserError."""
    if perturbation is None:
        return Perturbation()
    return coerce(perturbation, Perturbation, "perturbation", {Mapping: lambda fields: Perturbation(**fields)})
