"""The check before a launch: whether it fits, how long a step takes, what limits it, and which flags do better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from simpar import files, formats
from simpar.architectures.catalogue import config_of
from simpar.architectures.dropout import with_dropout
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read as read_config
from simpar.architectures.training import Documents, Training
from simpar.cost.memory.widths import holds_whole
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import load_reader
from simpar.frameworks.match import differing_sizes
from simpar.frameworks.shell_gaps import gaps_of_command
from simpar.frameworks.target import PYTHON, WAITS, Imported
from simpar.frameworks.words import Account, Assumed, WordTable
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.hardware.price import set_price
from simpar.inputs import as_model, with_units
from simpar.layout.deciders import state_choices
from simpar.plan.plan import Plan
from simpar.plan.routing import ROUTING_BY_BALANCE
from simpar.planner.problem import Constraints, Problem, make_problem
from simpar.preflight.checkpoint import account_of_checkpoint
from simpar.preflight.devices import cluster_of, contradicted
from simpar.preflight.environment import account_of, account_of_words
from simpar.preflight.flags import Patched, make_patch
from simpar.preflight.given import ParsedLaunch
from simpar.preflight.launcher import without_launchers
from simpar.preflight.meeting import without_beats
from simpar.preflight.near import layouts_near
from simpar.report.result import Result
from simpar.simulation import simulate
from simpar.stacks.stack import load_stack
from simpar.uncertainty.memory import AS_PREDICTED, DEFAULT_FIT_PROBABILITY

if TYPE_CHECKING:
    from simpar.planner.nearby import Nearby
    from simpar.preflight.whole_step import WholeStep

WORTH = 0.999
"""A neighbour whose step takes more than this part of the launch's gains nothing."""


@dataclass(frozen=True)
class WholeRunFlags:
    """Flags about the whole run: its tokens ("15T"), dollars per device and hour, and its reliability profile."""

    tokens: str | None = None
    usd_per_device_hour: float | None = None
    reliability: str | None = None


@dataclass(frozen=True)
class TextFlags:
    """Lengths of prompts and responses, as flags say them; None where they do not."""

    prompts: str | None = None
    responses: str | None = None


@dataclass(frozen=True)
class CheckFlags:
    """Flags beside the text, and the wanted probability of fitting; None if a flag is not given.

    Flags may repeat what the text says but not contradict it: the text is what runs, so the answer would be about
    another job.
    """

    hardware: str | None = None
    nodes: int | None = None
    devices: int | None = None
    model: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    stack: str | None = None
    fits_with: float = DEFAULT_FIT_PROBABILITY
    run: WholeRunFlags = WholeRunFlags()
    texts: TextFlags | None = None


@dataclass(frozen=True)
class Neighbour:
    """A layout one or two choices away, simulated, and its changes of the text."""

    result: Result
    change: Patched


@dataclass(frozen=True)
class Supposed:
    """What the text leaves open, and the results at the other likely values; those that are not allowed have none."""

    assumed: Assumed
    others: Mapping[Any, Result]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in SI units."""
        others = [{"value": value, **_figures(result)} for value, result in self.others.items()]
        told = self.assumed
        return {"key": told.key, "value": told.value, "why": told.why, "others": others}


@dataclass(frozen=True)
class Checked:
    """A checked launch: its simulated step, and nearby layouts that fit with the wanted probability, fastest first.

    ``looked_at`` counts the nearby layouts that were bounded. ``least_s`` is the lowest bound of the steps that were
    not simulated, None if there are none. ``account`` sorts the words of the text, ``supposed`` is what it leaves open.
    ``whole`` is the step of reinforcement learning around the update, if it was asked for.
    """

    given: ParsedLaunch
    result: Result
    fits_with: float
    neighbours: tuple[Neighbour, ...] = ()
    looked_at: int = 0
    least_s: float | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
    account: Account = field(default_factory=Account)
    supposed: tuple[Supposed, ...] = ()
    whole: WholeStep | None = None

    @property
    def fits_surely(self) -> bool:
        """Whether the launch, as it was understood, fits with the wanted probability."""
        known = self.result.certainty
        return self.result.fits and (known is None or known.fit_probability >= self.fits_with)

    @property
    def is_sure(self) -> bool:
        """Whether it fits with the wanted probability, and no word decides, or may decide, that was not understood."""
        return self.fits_surely and self.account.is_understood and (self.whole is None or self.whole.result.fits)

    @property
    def listed(self) -> tuple[Neighbour, ...]:
        """Neighbours that change the text or its framework's code, and gain, or fit where the launch does not."""
        step_s = WORTH * self.result.step_time_s
        return tuple(
            one
            for one in self.neighbours
            if one.change.is_offered
            and (one.change.edits or one.change.unsaid)
            and (not self.fits_surely or one.result.step_time_s < step_s)
        )

    @property
    def best(self) -> Neighbour | None:
        """The neighbour to take; None if none is faster than a launch that fits with the wanted probability.

        It is the fastest whose flags have a place in the text, or else the fastest.
        """
        better = self.listed
        return next((one for one in better if one.change.text is not None), next(iter(better), None))

    @property
    def patch(self) -> str:
        """The unified diff of the text to the one with the best neighbour's flags; "" if there is none to write."""
        from simpar.preflight.patch import unified

        best = self.best
        text = None if best is None else best.change.text
        return "" if text is None else unified(self.given.text.text, text, self.given.where)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in SI units."""
        best = self.best
        return {
            formats.CHECK.key: formats.CHECK.version,
            "from": self.given.text.target,
            "where": self.given.where,
            "is_sure": self.is_sure,
            "fits_with": self.fits_with,
            **_figures(self.result),
            "plan": self.result.setup.plan,
            "cluster": self.result.setup.cluster,
            "binds": list(self.result.why.binds),
            "neighbours": [
                {**_figures(one.result), "edits": [str(edit) for edit in one.change.edits],
                 "unsaid": list(one.change.unsaid),
                 "patched": one.change.text, "plan": one.result.setup.plan}
                for one in self.neighbours if one.change.is_offered
            ],
            "looked_at": self.looked_at,
            "least_s": self.least_s,
            "patched": None if best is None else best.change.text,
            "words": self.account.to_dict(),
            "assumed": [each.to_dict() for each in self.supposed],
            **({"whole_step": self.whole.to_dict()} if self.whole else {}),
            "ignored": list(self.given.found.ignored),
            "notes": list(self.notes),
        }  # fmt: skip


def _figures(result: Result) -> Mapping[str, Any]:
    known = result.certainty
    return {
        "fits": result.fits,
        "fit_probability": known and known.fit_probability,
        "step_time_s": result.step_time_s,
        "step_time_interval_s": known and list(known.step_time_interval_s),
        "mfu": result.mfu,
        "tokens_per_s": result.tokens_per_s,
        "peak_reserved_bytes": result.memory.peak_reserved_bytes,
        "capacity_bytes": result.memory.capacity_bytes,
        **({"whole_run": result.whole_run.model_dump(mode="json")} if result.whole_run else {}),
    }


def check_launch(given: ParsedLaunch, facts: CheckFlags) -> Checked:
    """Simulate what a text would start, and the best layouts near it.

    Raises UserError if something is missing, if a flag contradicts the text, or if the launch is not possible.
    """
    if not AS_PREDICTED <= facts.fits_with < 1:
        raise UserError(f"--fits-with {facts.fits_with:g}: allowed: from {AS_PREDICTED} (as predicted) to below 1")
    given = _as_counted(_as_started(given, facts), facts.hardware)
    notes = list(dict.fromkeys((*given.found.notes, *given.launch.notes)))
    if facts.model is not None:
        for what in given.found.asks:
            if what.startswith("model"):
                _answered(what, given, notes)
    plan = given.found.plan
    plan = plan.model_copy(update={"stack": facts.stack or plan.stack})
    model = _model(given, plan, facts, notes)
    cluster = set_price(cluster_of(given, plan, facts, notes), facts.run.usd_per_device_hour)
    plan = _with_units(plan, cluster, notes)
    training = _training(given, facts, cluster.world_size, notes)
    if cluster.world_size == 1 and given.found.sized.stack_of_one and facts.stack is None:
        plan = plan.model_copy(update={"stack": given.found.sized.stack_of_one})
    if (most := _most(given, plan, cluster.world_size, training.global_batch)) is not None:
        plan = plan.model_copy(update={"micro_batch": most})
        notes.append(f"The micro-batch is {most}, all sequences of a rank's step: the text says more.")
    if given.found.microbatches:
        placed = given.found.placed(cluster.world_size, training.global_batch)
        plan = plan.model_copy(update={"micro_batch": placed.micro_batch})
        _answered("micro_batch", given, notes)
        notes.append(f"The micro-batch is {plan.micro_batch}: the step has {given.found.microbatches} of them.")
    graph = with_dropout(as_model(model, training.seq_len), **given.found.dropout)  # the problem's has its adapters
    with _in_text(given):
        plan = given.found.in_copies(plan, cluster.world_size, cluster.nodes)
        problem = make_problem(
            graph, cluster, training, stack=plan.stack, base=plan,
            constraints=Constraints(fit_probability=facts.fits_with),
        )  # fmt: skip
    if facts.model is not None:
        _check_sizes(given, facts.model, problem.graph)
    if problem.graph.is_mixture:
        plan = _with_routing(given, plan, notes)
        problem = replace(problem, base=plan)
    notes += [f"Assumed of the model: {what}." for what in problem.graph.assumed]
    with _in_text(given):
        result = simulate(problem.graph, cluster, plan, training, stack=problem.stack, with_timeline=False)
    if result.whole_run is not None:
        result = _with_failures(result, problem, facts.run.reliability)
    settled = result.plan
    if (result.setup.num_microbatches or 1) > 1 and holds_whole(result.layout, problem.stack):
        notes.append(WAITS)
    reader = load_reader(given.text.target)
    target = given.text.written_as
    account = _account(given, reader.words, cluster) + account_of_checkpoint(given, problem)
    if cluster.world_size == 1 and 1 in (facts.devices, given.launch.per_node):  # where else could layers be
        account = account.without(("device_map",))
    left = (each for each in given.found.assumed if each.key != "model" or facts.model is None)
    supposed = tuple(Supposed(each, dict(_at_others(problem, graph, plan, each, given.found.dropout))) for each in left)
    whole = None
    if facts.texts is not None:
        from simpar.preflight.whole_step import whole_step

        whole = whole_step(given, problem, plan, str(facts.hardware), facts.texts)
        account = account.without(whole.answers)
    checked = Checked(given, result, facts.fits_with, notes=tuple(notes), account=account, supposed=supposed,
                      whole=whole)  # fmt: skip
    if not target:
        return checked
    near = layouts_near(problem, settled, target, fits=checked.fits_surely)
    told: tuple[str, ...] = ()
    if checked.fits_surely:
        near, told = without_beats(problem, result, near)
    better = tuple(_better(given, problem, plan, near, settled))
    told = (*checked.notes, *told)
    return replace(checked, notes=told, neighbours=better, looked_at=near.count, least_s=near.least_s)


@contextmanager
def _in_text(given: ParsedLaunch) -> Iterator[None]:
    """Name the text in errors about the plan that it gives."""
    try:
        yield
    except UserError as error:
        start = next(
            (told for own, told in (("plan.", "gives "), ("global batch = ", "")) if str(error).startswith(own)), None
        )
        raise error if start is None else type(error)(f"{given.where}: {start}{error}") from None


def _as_started(given: ParsedLaunch, facts: CheckFlags) -> ParsedLaunch:
    """What was read, without the replicas of the ranks that a file is usually for where other words say how many."""
    launch, plan = given.launch, given.found.plan
    told = facts.nodes or facts.devices or launch.nodes or launch.per_node or launch.ranks
    if not told or given.found.sized.usual_ranks is None:
        return given
    plan = plan.model_copy(update={"mesh": plan.mesh.model_copy(update={"dp": None})})
    return replace(given, found=replace(given.found, plan=plan))


def _as_counted(given: ParsedLaunch, hardware: str | None) -> ParsedLaunch:
    """What was read, in devices as they are counted here: a framework may count several of one.

    The text is not edited then. Raises UserError.
    """
    devices = load_reader(given.text.target).devices
    count = devices.shown.get(load_cluster(hardware).device.name) if hardware and devices.shown else None
    if count is None:
        return given

    @cache
    def again(text: str) -> Imported:
        return devices.merged(given.text.read(text), count)

    return replace(given, found=devices.merged(given.found, count), text=replace(given.text, syntax=None, read=again))


def _account(given: ParsedLaunch, table: WordTable, cluster: Cluster) -> Account:
    """Every word of the text and variable of its command, and what it takes from where it cannot be read."""
    words, launch = given.found.words, given.launch
    gaps = {**launch.gaps, **gaps_of_command(launch.words, without_launchers(words)[0].used)}
    return account_of_words(
        words, table, gaps, account_of(launch.environment, cluster, is_alone=given.found.sized.alone == PYTHON)
    )


def _at_others(
    problem: Problem, graph: ModelGraph, plan: Plan, assumed: Assumed, dropout: Mapping[str, float]
) -> Iterator[tuple[Any, Result]]:
    """The results at the other likely values of what is assumed, without those that are not allowed."""
    for value in (each for each in assumed.others if each != assumed.value):
        training, stack = problem.training, problem.stack
        try:
            if assumed.key == "model":
                graph = with_dropout(read_config(assumed.together[value], value), **dropout)
                yield value, simulate(graph, problem.cluster, plan, training, stack=stack, with_timeline=False)
                continue
            changed = plan.with_values(**assumed.together.get(value, {}))
            if assumed.key in Training.model_fields:
                training = training.model_copy(update={assumed.key: value})
            elif assumed.key == "documents.mean":
                whole = value >= training.seq_len
                training = training.model_copy(update={"documents": None if whole else Documents(mean=value)})
            elif assumed.key == "stack":
                stack = load_stack(value)
                changed = changed.model_copy(update={"stack": value})
            elif assumed.key in Plan.model_fields:
                changed = changed.model_copy(update={assumed.key: value})
            else:
                changed = state_choices(changed, {assumed.key: value})
            yield value, simulate(graph, problem.cluster, changed, training, stack=stack, with_timeline=False)
        except UserError:
            continue


def _with_units(plan: Plan, cluster: Cluster, notes: list[str]) -> Plan:
    """The plan with 16 bits that devices have units for, where the text does not say which 16 bits."""
    plan, assumed = with_units(plan, cluster)
    if assumed:
        notes.append(f"{plan.numerics.precision} is assumed: the text does not say a dtype ({assumed}).")
    return plan


def _with_routing(given: ParsedLaunch, plan: Plan, notes: list[str]) -> Plan:
    """The plan with tokens spread over experts as what balances them leaves it: a launch trains a model."""
    balance = given.found.expert_balance
    routing = ROUTING_BY_BALANCE[balance]
    padded = plan.experts.capacity_factor is not None
    if padded or plan.experts.expert_imbalance or not routing:
        return plan
    imbalance = routing["expert_imbalance"]
    spread = {
        "loss": f"to spread by {imbalance:g} of their mean, as an auxiliary loss leaves them",
        "bias": f"to spread by {imbalance:g} of their mean, as biases of the router leave them",
        "tuned": f"to follow a power law with exponent {imbalance:g}, as of a trained router on documents of one kind",
    }[balance]
    if plan.mesh.ep > 1:
        notes.append(
            f"Experts' loads are assumed {spread} (plan.experts.expert_imbalance); a benchmark that forces balance "
            "takes less time."
        )
    return state_choices(plan, routing)


def _with_failures(result: Result, problem: Problem, reliability: str | None) -> Result:
    """The result with failures in its whole run, if a flag or the hardware gives a reliability profile."""
    from simpar.hardware.operation import Operation
    from simpar.operate.whole_run import add_operation

    inputs = {"cluster": problem.cluster, "model": problem.graph}
    return add_operation(result, inputs, Operation(reliability=reliability) if reliability else None)


def _better(given: ParsedLaunch, problem: Problem, plan: Plan, near: Nearby, settled: Plan) -> list[Neighbour]:
    """The simulated neighbours that fit, with their changes of the text."""
    said = given.found.plan.experts
    routed = {"expert_imbalance": said.expert_imbalance, "expert_distribution": said.expert_distribution}
    # what is assumed has no flag
    before = state_choices(_with_dp(plan, settled), routed)
    listed = []
    for chosen, result in near.simulated:
        after = state_choices(_with_dp(chosen, result.plan), routed)
        listed.append(Neighbour(result, make_patch(given.text, problem, before, after)))
    return listed


def _with_dp(plan: Plan, settled: Plan) -> Plan:
    """A plan with its data-parallel degree filled in."""
    return plan.model_copy(update={"mesh": plan.mesh.model_copy(update={"dp": settled.mesh.dp})})


def _answered(what: str, given: ParsedLaunch, notes: list[str]) -> None:
    """Drop the note in which the text's reader asked for ``what``."""
    if (note := given.found.asks.get(what)) in notes:
        notes.remove(note)


def _model(given: ParsedLaunch, plan: Plan, facts: CheckFlags, notes: list[str]) -> str | ModelGraph:
    """The model of a flag, with the vocabulary of the text; else that of the text, by name or as it states it."""
    model, config = facts.model or plan.model, given.found.config
    words = given.found.sizes.get("vocab")
    if facts.model is not None and words is not None:
        own = config_of(facts.model)
        if own.get("vocab_size") not in (None, words):
            notes.append(f"The vocabulary is that of the text, {words} words; {facts.model} has {own['vocab_size']}.")
            return read_config({**own, "vocab_size": words}, facts.model)
    if model is None and config is not None:
        return read_config(config, f"{given.where} (its model)")  # the file itself is no config of a model
    if model is None:
        told = given.found.asks.get("model") or "names no model: give --model NAME"
        raise UserError(f"{given.where}: {told}")
    return model


def _check_sizes(given: ParsedLaunch, name: str, graph: ModelGraph) -> None:
    """Raise UserError for a model with other sizes than the text gives."""
    sizes = differing_sizes(graph, given.found.sizes, given.found.plan.model)
    if sizes:
        said, own = (", ".join(f"{key} {pair[at]}" for key, pair in sizes.items()) for at in (0, 1))
        raise contradicted(given, f"--model {name}", f"has {own}", said)


def _most(given: ParsedLaunch, plan: Plan, world_size: int, global_batch: int) -> int | None:
    """The sequences of a rank's step, where the text has a larger micro-batch and its framework takes these; None."""
    sequences, rest = divmod(global_batch, world_size // int(plan.mesh.sizes.replica_ranks) or 1)
    is_less = not rest and 0 < sequences < plan.micro_batch
    return sequences if is_less and load_reader(given.text.target).devices.caps else None


def _training(given: ParsedLaunch, facts: CheckFlags, world_size: int, notes: list[str]) -> Training:
    """The shape of a step from flags or the text, or from the sequences of every data-parallel rank."""
    told = given.found.plan.training or {}
    for flag, name, value in (
        ("--seq-len", "seq_len", facts.seq_len),
        ("--global-batch", "global_batch", facts.global_batch),
    ):
        if value is not None and told.get(name, value) != value:
            raise contradicted(given, f"{flag} {value}", "", told[name])
    seq_len = facts.seq_len or told.get("seq_len")
    with _in_text(given):
        ruled = given.found.global_batch(world_size)
    if ruled != (usual := told.get("global_batch", ruled)):
        notes.append(
            f"The global batch is {ruled} sequences: the runner scales the {usual} of the recipe with the ranks."
        )
    batch = facts.global_batch or ruled
    if batch:
        _answered("global_batch", given, notes)
    if ruled and "global_batch" not in told:
        rule = f"{ruled} sequences: {given.found.per_replica} of every data-parallel rank"
        if batch == ruled:
            notes.append(f"The global batch is {rule}.")
        else:
            notes.append(f"The global batch is {batch} sequences; the text as it is would train {rule}.")
    if given.found.per_replica and not batch and seq_len:
        needed = int(given.found.plan.mesh.sizes.replica_ranks)
        what = f"{needed} devices share a sequence or its layers, and the job has {world_size}"
        raise UserError(f"{given.where}: {what}; allowed: a multiple of {needed} (--nodes, --gpus)")
    missing = [
        flag for flag, value in (("--seq-len TOKENS", seq_len), ("--global-batch SEQUENCES", batch)) if not value
    ]
    if missing:
        raise UserError(f"{given.where}: does not say the whole shape of a step: give {' and '.join(missing)}")
    shape = {"seq_len": seq_len, "global_batch": batch, "documents": told.get("documents"), "tokens": facts.run.tokens}
    return files.parse(Training, shape, source=files.COMMAND_LINE)
