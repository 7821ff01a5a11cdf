"""A scenario: one file (or the same as flags) that says what is trained, on what, and how it is split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field

from simpar import files
from simpar.architectures.training import Training
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.formats import HOW_MANY, SEARCH, check_answer, is_simulated
from simpar.hardware.network import split_network
from simpar.hardware.operation import Operation
from simpar.hardware.profile import ClusterProfile, MixedProfile
from simpar.layout.moves import dependent_choices
from simpar.plan.choices import SYNONYMS
from simpar.plan.plan import Plan
from simpar.plan.post_training import PostTraining
from simpar.profiles import is_file
from simpar.program.perturbation import Perturbation, Rank, Seeds, Sigma, SlowFactor
from simpar.settings import INSTEAD, PARTS, REMEDY, _has, check_key, parse_setting, require, with_value
from simpar.tracing.code import class_of, is_code, require_consent
from simpar.units import Bytes, Count, Fraction, UsdPerHour

if TYPE_CHECKING:
    from simpar.architectures.graph import ModelGraph
    from simpar.hardware.cluster import Cluster

Read = TypeVar("Read", bound=BaseModel)
MOST_CLUSTERS = 4
"""Clusters that scenarios simulated one after the other share at a time; each keeps what was worked out for it."""


class ClusterChoice(Strict):
    """Which hardware profile, and how many nodes of it."""

    hardware: str | MixedProfile | ClusterProfile = Field(
        description="name of a shipped profile, a profile file, a profile itself, or groups of several kinds of nodes"
    )
    nodes: Count | None = Field(default=None, description="number of nodes; default 1, or those of the groups")
    devices: Count | None = Field(
        default=None,
        description="number of devices in all, equally many of every node; fewer than a node has: a part of one",
    )
    nvls: bool | None = Field(default=None, description="reduce in the scale-up switch (default: from the profile)")
    sharp: bool | None = Field(default=None, description="reduce in the network's switches (default: from the profile)")
    scale_out: dict[str, Any] | None = Field(
        default=None, description="fields of the network between nodes (scale_out of a profile), in place of its own"
    )
    price_per_device_hour: UsdPerHour | None = Field(
        default=None, description="what a device costs an hour (default: from the profile)"
    )

    def load(self) -> Cluster:
        """The cluster as its profile and ``scale_out`` describe it, without the other fields. Raises UserError."""
        cluster = self._of_profile()
        if not self.scale_out:
            return cluster
        from simpar.hardware.cluster import make_cluster
        from simpar.hardware.network import with_fields

        if cluster.is_mixed:
            raise UserError(f"cluster.scale_out: {cluster.profile.name} has several kinds of nodes; allowed: one kind")
        return make_cluster(with_fields(cluster.profile, self.scale_out), cluster.nodes)

    def _of_profile(self) -> Cluster:
        from simpar.hardware.catalogue import load_cluster, make_mixed

        if isinstance(self.hardware, MixedProfile):
            return make_mixed(self.hardware, self.nodes, devices=self.devices)
        if isinstance(self.hardware, str):
            _check_hardware(self.hardware, ": --hardware FILE")
        return load_cluster(self.hardware, self.nodes, self.devices)

    def build(self, degraded: Mapping[str, float]) -> Cluster:
        """The cluster with its switches, its price and its ``degraded`` links (link: share left). Raises UserError."""
        from simpar.hardware.price import set_price

        cluster = self.load().reducing(nvls=self.nvls, sharp=self.sharp)
        return set_price(cluster, self.price_per_device_hour).with_degraded(degraded)


class Jitter(Strict):
    """Independent lognormal factors on the kernels of every pass of every rank."""

    sigma: Sigma
    seed: int = Field(default=0, description="the first seed")
    seeds: Seeds = 1


class Perturbations(Strict):
    """What makes ranks and links differ from the nominal cluster."""

    slow_ranks: dict[Rank, SlowFactor] = Field(default_factory=dict, description="rank: factor on its kernel times")
    degraded_links: dict[str, Fraction] = Field(default_factory=dict, description="link: share of capacity left")
    jitter: Jitter | None = None

    def of_ranks(self) -> Perturbation:
        """Slow ranks and jitter as :func:`simpar.simulate` takes them."""
        jitter = self.jitter or Jitter(sigma=0)
        return Perturbation(slow_ranks=self.slow_ranks, jitter_sigma=jitter.sigma, seed=jitter.seed, seeds=jitter.seeds)


class Published(Strict):
    """A published figure for the same run, shown beside the prediction, and its source."""

    source: str = Field(description="citation: paper and table, or repository, commit and file")
    step_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tokens_per_s_per_device: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tflops_per_device: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    mfu: Fraction | None = None
    peak_memory_bytes: Bytes | None = None
    note: str = ""


class Scenario(Strict):
    """What is trained (``model``, ``training``), on what (``cluster``) and how it is split (``plan``).

    >>> import simpar
    >>> inputs = simpar.load_scenario("gpt2-laptop").inputs()
    >>> sorted(inputs)  # what simpar.simulate takes
    ['cluster', 'model', 'noise_scale_tokens', 'perturbation', 'plan', 'stack', 'training']
    """

    description: str = ""
    model: str | dict[str, Any] = Field(
        description="shipped name, config.json or its folder, transformers:CLASS, module:function, or a config inline"
    )
    cluster: ClusterChoice
    training: Training
    plan: Plan = Plan()
    stack: str | None = Field(default=None, description="software stack profile; default by hardware and plan")
    perturbation: Perturbations = Perturbations()
    noise_scale_tokens: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="batch below which gradients are mostly noise"
    )
    published: Published | None = None
    operation: Operation | None = Field(default=None, description="a campaign of days, with interruptions")
    post_training: PostTraining | None = Field(
        default=None, description="reinforcement learning: generation beside training"
    )

    def inputs(self, clusters: SharedClusters | None = None) -> dict[str, Any]:
        """What simulate takes: ``simulate(**scenario.inputs())``; with one of ``clusters``, if they are given.

        Raises UserError, also for a step of reinforcement learning, which is more than that.
        """
        self.require_update()
        return self.training_inputs(clusters)

    def require_update(self) -> None:
        """Raise UserError where it describes a step of reinforcement learning, not one update."""
        if self.post_training is not None:
            raise UserError(
                "the scenario has a section post_training, and this knows single updates alone; allowed: simpar "
                "simulate, simpar search --rl, simpar export to verl or nemo-rl, or the scenario without the section"
            )

    def training_inputs(self, clusters: SharedClusters | None = None) -> dict[str, Any]:
        """The inputs of the training side, whatever generates beside it. Raises UserError."""
        return {
            "model": self.graph(),
            "cluster": clusters.of(self) if clusters else self.build_cluster(),
            "plan": self.plan,
            "training": self.training,
            "stack": self.stack,
            "perturbation": self.perturb(),
            "noise_scale_tokens": self.noise_scale_tokens,
        }

    def graph(self) -> ModelGraph:
        """The model as a graph of operators. Raises UserError."""
        from simpar.tracing.load import load_config, load_model

        if isinstance(self.model, str):
            return load_model(self.model, seq_len=self.training.seq_len)
        name = str(self.model.get("name", self.model.get("model_type", "inline")))
        return load_config(self.model, name, seq_len=self.training.seq_len)

    def build_cluster(self) -> Cluster:
        """The cluster with its degraded links. Raises UserError."""
        return self.cluster.build(self.perturbation.degraded_links)

    def perturb(self) -> Perturbation:
        """Slow ranks and jitter as :func:`simpar.simulate` takes them."""
        return self.perturbation.of_ranks()


@dataclass
class SharedClusters:
    """The last few clusters that scenarios described: scenarios of one share what was worked out for it."""

    _built: dict[str, Cluster] = field(init=False, default_factory=dict)

    def of(self, scenario: Scenario) -> Cluster:
        """The cluster of a scenario with its degraded links, built if it is not among the last. Raises UserError."""
        key = f"{scenario.cluster.model_dump_json()} {sorted(scenario.perturbation.degraded_links.items())}"
        built = self._built.pop(key, None) or scenario.build_cluster()
        self._built[key] = built  # the last one again
        for oldest in [*self._built][:-MOST_CLUSTERS]:
            del self._built[oldest]
        return built


def load_scenario(
    name: str | Path | None, flags: Mapping[str, Any] | None = None, settings: Iterable[str] = ()
) -> Scenario:
    """Read a scenario and lay flags over it; flags win over the file, ``settings`` over both.

    ``name`` is a shipped scenario, a scenario file, a plan file, or None for flags alone. ``flags`` maps
    dotted keys ("plan.tp") to values; ``settings`` are texts "dotted.key=value" whose value is a YAML scalar.
    A model that is code is taken from flags only, never from a file. Published figures are left out where flags
    or settings make it another run. Raises UserError.

    >>> scenario = load_scenario("llama-3.1-405b-16384-h100", {"cluster.nodes": 1024}, ["training.seq_len=4096"])
    >>> scenario.build_cluster().world_size, scenario.training.seq_len
    (8192, 4096)
    """
    settings = list(settings)
    result = read_as(Scenario, name, flags, settings)
    require_consent(result.model, str(name or "--set"), flags or {})
    if result.published and (flags or settings) and _differs(result, read_as(Scenario, name)):
        return result.model_copy(update={"published": None})
    return result


def _differs(scenario: Scenario, other: Scenario) -> bool:
    """Whether two scenarios are different runs, so that figures published for one say nothing about the other."""
    parts = ("model", "cluster", "training", "plan", "stack")
    return any(getattr(scenario, part) != getattr(other, part) for part in parts)


def read_as(
    kind: type[Read],
    name: str | Path | None,
    flags: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    *,
    needs: Iterable[str] | None = None,
) -> Read:
    """Like :func:`load_scenario`, but read as a ``kind`` of model; ``needs`` are the dotted keys that it requires."""
    document, settings = _Document.of(name), list(settings)
    for text in settings:
        check_key(kind, text)
    data = _without_replaced(document.data, flags or {})
    laid_over = [*(flags or {}).items(), *map(parse_setting, settings)]
    data = _left_open(data, dict(laid_over))
    for key, value in laid_over:
        data = with_value(data, key, value)
    if isinstance(data.get("model"), str):
        data = {**data, "model": _in_folder(data["model"])}
    required = (
        *(REMEDY if needs is None else needs),
        *(key for key in PARTS if _has(data, key.rpartition(".")[0]) and not _has(data, INSTEAD.get(key, ""))),
    )
    carrying = document.carrying(data, laid_over)
    try:
        result = files.parse(kind, carrying, source=document.source)
    except UserError as error:
        if "unknown key" not in str(error):  # a key that is spelt wrongly is missing too
            require(data, document.source, required)
        raise
    require(data, document.source, required)
    if isinstance(carrying, files.Document):
        carrying.check_name(("model",), _check_model)
        carrying.check_name(("cluster", "hardware"), _check_hardware)
        carrying.check_name(("stack",), _check_stack)
    return result


def _check_model(name: str) -> None:
    """Raises UserError for a name that no model has; files and code are read where they are used."""
    from simpar.architectures import catalogue

    if not catalogue.is_file(name) and not is_code(name) and not class_of(name)[1]:
        catalogue.load_shipped(name)


def _check_hardware(name: str, by: str = "") -> None:
    """Raises UserError for a name that no hardware profile has; ``by`` says which flag takes a user's own file."""
    name, _ = split_network(name)
    if is_file(name):
        return
    try:
        files.find(name, "clusters", "hardware")
    except UserError as error:
        raise UserError(f"{error}; a profile of your own is named by its file{by}") from None


def _check_stack(name: str) -> None:
    """Raises UserError for a name that no stack has."""
    if not is_file(name):
        files.find(name.partition("@")[0], "stacks", "stack")


REPLACED = {"cluster.hardware": ("nvls", "sharp"), "cluster.devices": ("nodes",), "cluster.nodes": ("devices",)}
"""Keys of a file's cluster that a flag replaces with its own: switches are the file's hardware's, and a size is said in
nodes or in devices."""


def _without_replaced(data: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The data without what flags replace of the file's cluster (:data:`REPLACED`)."""
    cluster = data.get("cluster")
    if not isinstance(cluster, dict):
        return data
    gone = {key for flag, keys in REPLACED.items() if flag in flags for key in keys}
    return data | {"cluster": {key: value for key, value in cluster.items() if key not in gone}}


def _left_open(data: dict[str, Any], laid_over: Mapping[str, Any]) -> dict[str, Any]:
    """The data with those fields of a settled plan left open again that follow from a choice laid over it."""
    plan = data.get("plan")
    if not isinstance(plan, dict) or not plan.get("cluster"):
        return data
    change = {}
    for key, value in laid_over.items():
        section, _, name = key.rpartition(".")
        if section.split(".")[0] in ("plan", "cluster"):
            change[SYNONYMS.get(name, name)] = value
    for name in dependent_choices(change, before=plan["mesh"] if isinstance(plan.get("mesh"), dict) else {}):
        data = with_value(data, f"plan.{name}", None)
    return data


@dataclass(frozen=True)
class _Document:
    """The file behind a scenario, where there is one, and what it says."""

    data: dict[str, Any]
    source: str
    file: files.Document | None = None

    @staticmethod
    def of(name: str | Path | None) -> _Document:
        if name is None:
            return _Document({}, files.COMMAND_LINE)
        file = files.load(path := find_scenario(name))
        if not isinstance(file.data, dict):
            raise UserError(f"{file.source}: a scenario is a mapping with model, cluster, training and plan")
        check_answer(file.data, str(file.source))
        data = _beside(_wrapped(_chosen(file.data, str(file.source))), path.parent)
        return _Document(data, str(file.source), file)

    def carrying(self, data: dict[str, Any], laid_over: Iterable[tuple[str, Any]]) -> Any:
        """The data with the file's line numbers and what was laid over, for error messages."""
        keys = frozenset(tuple(key.split(".")) for key, _ in laid_over)
        return data if self.file is None else replace(self.file, data=data, laid_over=keys)


def find_scenario(name: str | Path) -> Path:
    """The file of a scenario by shipped name or path. Raises UserError, also where the name is a model's."""
    from simpar.architectures.catalogue import catalogue

    try:
        return files.find(str(name), "scenarios", "scenario")
    except UserError:
        if str(name).lower() not in catalogue():
            raise
        rest = " ".join(remedy for key, remedy in REMEDY.items() if key != "model")
        raise UserError(f"{name}: is a model, not a scenario: use --model {str(name).lower()} {rest}") from None


def _chosen(data: dict[str, Any], source: str) -> dict[str, Any]:
    """Of an answer by number of nodes, the plan for the chosen number; other data unchanged. Raises UserError."""
    if HOW_MANY.key not in data:
        return data
    rows = data.get("rows")
    plans = [
        row.get("plan")
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and row.get("nodes") == data.get("chosen")
    ]
    if not plans or not isinstance(plans[0], dict):
        raise UserError(f"{source}: no number of nodes meets the limits, so there is no plan")
    return plans[0]


def _wrapped(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario that a file stands for.

    That of a plan file is the plan, with what it names of the model, training, stack, cluster and perturbation that it
    was made for. That of a result or a checked launch is the one that it was made from; that of a search has the best
    plan.
    """
    if (is_simulated(data) and "plan" in data) or SEARCH.key in data:
        return _simulated(data)
    if "plan" in data or not {"mesh", "version"} & data.keys():
        return data
    known = {key: data.get(key) for key in ("model", "training", "stack", "cluster", "perturbation")}
    return {"plan": data} | {key: value for key, value in known.items() if value is not None}


def _simulated(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario of a saved result: its plan and cluster, with its perturbation."""
    candidates = data.get("candidates")
    best = candidates[0] if isinstance(candidates, list) and candidates else data
    plan, cluster = (
        part if isinstance(part, dict) else {} for part in (best.get("asked") or best.get("plan"), data.get("cluster"))
    )
    nodes = {"nodes": best["nodes"]} if "nodes" in best else {}
    result = _wrapped(plan) | {"cluster": to_cluster_section(cluster) | nodes}
    return result | {"perturbation": to_perturbation_section(data)}


def to_perturbation_section(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The perturbation of a recorded ``cluster``, ``perturbation`` and ``engine``, as a scenario writes it."""
    cluster, ran, engine = (
        part if isinstance(part := recorded.get(name), dict) else {} for name in ("cluster", "perturbation", "engine")
    )
    section = {"slow_ranks": ran.get("slow_ranks"), "degraded_links": cluster.get("degraded")}
    seed = engine.get("seed", 0)
    if ran.get("jitter_sigma") or seed:  # loads of experts are drawn from the seed, too
        jitter = {"sigma": ran.get("jitter_sigma", 0.0), "seeds": ran.get("jitter_seeds", 1)}
        section["jitter"] = jitter | {"seed": seed}
    return {key: value for key, value in section.items() if value}


def to_cluster_section(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster that a result records, as a scenario writes it: a profile, its name, or groups of several kinds."""
    kept = [key for key in ClusterChoice.model_fields if key != "devices"]  # these follow from the profile and nodes
    result = {key: recorded[key] for key in kept if key in recorded}
    if "profile" in recorded:
        result["hardware"] = recorded["profile"]
    if "groups" not in recorded:
        return result
    units = {"bandwidth": "B/s", "latency": "s"}
    between = {
        name: f"{value!r} {units[name]}" for name, value in recorded.get("between", {}).items() if value is not None
    }
    hardware = {"name": recorded["hardware"], "groups": recorded["groups"], "between": between}
    return {"hardware": hardware, "nodes": recorded["nodes"]}


def _beside(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The data with the files that a scenario names looked up in its own folder."""
    result = dict(data)
    if isinstance(data.get("model"), str):
        result["model"] = _relative(_in_folder(data["model"], folder), folder)
    cluster = data.get("cluster")
    if isinstance(cluster, dict) and "hardware" in cluster:
        result["cluster"] = cluster | {"hardware": _hardware_beside(cluster["hardware"], folder)}
    return result


def _in_folder(name: str, folder: Path = Path()) -> str:
    """The config in a downloaded folder that is named, relative to ``folder``; any other name as it is."""
    from simpar.architectures.catalogue import in_folder

    return in_folder(name, folder)


def _hardware_beside(hardware: Any, folder: Path) -> Any:
    """The hardware with its files looked up in a folder.

    It is a profile's name, groups that name profiles, or a profile, which may name the file of its device.
    """
    if isinstance(hardware, str):
        return _relative(hardware, folder)
    if isinstance(hardware, dict) and isinstance(device := hardware.get("device"), str):
        return hardware | {"device": _relative(device, folder)}
    if not isinstance(hardware, dict) or not isinstance(hardware.get("groups"), list):
        return hardware
    groups = [
        group | {"hardware": _hardware_beside(group.get("hardware"), folder)} if isinstance(group, dict) else group
        for group in hardware["groups"]
    ]
    return hardware | {"groups": groups}


def _relative(name: str, folder: Path) -> str:
    return str(folder / name) if Path(name).suffix in (".yaml", ".yml", ".json") else name
