"""A plan in another framework's words, and back.

An export is predicted under its target's stack first; the nearest plan that the target can express is offered where it
cannot express the plan itself.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.dropout import FIELD, with_dropout
from simpar.architectures.hf_config import read as read_config
from simpar.calls import refuses_unknown_keywords
from simpar.chakra.write import NAME as TRACES
from simpar.chakra.write import export_traces
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import check_writable, choose, write_atomic
from simpar.frameworks import TARGETS, ExportDraft, Inexpressible, draft, load_target, read
from simpar.frameworks.megatron_log import text_of
from simpar.frameworks.nearest import ExportJob, Near, find_nearest, find_saving
from simpar.frameworks.recipes import split_name
from simpar.frameworks.shell_untold import shell_before
from simpar.frameworks.source import ExportSource, SourceFlags, load_source
from simpar.frameworks.target import Imported
from simpar.plan.plan import Plan
from simpar.report.result import Result
from simpar.report.words import memory_state, step_and_memory
from simpar.scenario import Scenario
from simpar.simulation import make_job, simulate
from simpar.stacks.stack import Stack, load_stack
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from simpar.units import format_seconds

CONFIGS = (".toml", ".yaml", ".yml", ".json", ".py")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
MISSING_CLUSTER = "the plan names no cluster"


@dataclass(frozen=True)
class Files:
    """The files of an export by name, what of the plan is lost in them, and notes for the user."""

    target: str
    files: Mapping[str, str | bytes]
    lost: tuple[str, ...]
    notes: tuple[str, ...]

    def save(self, folder: str | Path) -> None:
        """Write the files to a folder, which is made where it is missing; scripts can be executed. Raises UserError."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--output {folder}: is a file; allowed: a folder, made where it is missing")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_atomic(folder / name, text)
            if isinstance(text, str) and text.startswith("#!"):
                (folder / name).chmod(0o755)


@refuses_unknown_keywords
def export(
    plan: Plan | Mapping[str, Any] | Scenario | str | Path,
    target: str,
    *,
    lossy: bool = False,
    nearest: bool = False,
    force: bool = False,
    fit_probability: float | None = None,
    model: str | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    hardware: str | None = None,
    stack: str | None = None,
) -> Files:
    """The files with which another framework trains a plan, which may be a plan file, a result or a scenario.

    ``lossy`` leaves out what the target cannot express, ``nearest`` takes the nearest plan that it can, ``force``
    exports even a plan that fits under the target's stack with less than ``fit_probability`` (default: that of the
    plan's search, else 0.95). The other keywords are facts that the plan may lack. Raises UserError.

    >>> import simpar, tempfile
    >>> plan = simpar.Plan(tp=2, dp=4, model="gpt2", training={"seq_len": 1024, "global_batch": 64})
    >>> made = export(plan, "megatron", hardware="dgx-h100")
    >>> sorted(made.files)
    ['README.md', 'command.sh', 'local.sh', 'plan.json', 'pytorchjob.yaml', 'slurm.sh']
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made.save(folder)
    """
    facts = SourceFlags(model, seq_len, global_batch, nodes, gpus_per_node, hardware, stack)
    source = load_source(plan, facts)
    if choose(target, (*TARGETS, TRACES), "target") == TRACES:
        unfit = {"nearest": nearest, "fit_probability": fit_probability, "force": force}
        return _traces(source, lossy=lossy, unfit=unfit)
    searched = source.plan.search
    usual = searched.fit_probability if searched else DEFAULT_FIT_PROBABILITY
    foretell = ExportPredictor(source, target, usual if fit_probability is None else fit_probability)

    def draft_of(chosen: Plan) -> ExportDraft:
        job = (chosen, source.graph, source.training, target)
        return draft(*job, devices_per_node=source.devices_per_node, lossy=lossy)

    try:
        drafted = draft_of(source.plan)
    except Inexpressible as error:
        near = foretell.find_nearest()
        if near is None or not (nearest and (near.is_allowed or force)):
            raise UserError(f"{error}{near.offer if near else ''}") from None
        drafted = draft_of(near.plan)
        foretold: ExportPrediction = near
    else:
        foretold = foretell.predict_on_target(drafted.plan)
        if not foretold.is_allowed and not force:
            raise UserError(f"{foretold.note} (--force exports it anyway)")
    made = drafted.written(foretold.predicted, *filter(None, [foretold.note]))
    return Files(target, made.files, tuple(map(str, made.lost)), made.notes)


def _traces(source: ExportSource, *, lossy: bool, unfit: Mapping[str, Any]) -> Files:
    """One simulated step as the execution traces of all ranks; ``unfit`` are options that traces do not take."""
    for name, value in unfit.items():
        if value:
            raise UserError(f"--{name.replace('_', '-')}: not with --to chakra, which writes a step as it is simulated")
    if source.cluster is None:
        raise UserError("--hardware is missing: the plan names no cluster for its ranks, and a trace has their times")
    job = make_job(source.graph, source.cluster, source.plan, source.training, source.stack)
    made = export_traces(job, source.cluster, lossy=lossy)
    return Files(TRACES, made.files, made.lost, (made.said, *made.notes))


@refuses_unknown_keywords
def import_plan(
    file: str | Path, framework: str, *, model: str | None = None, arguments: Sequence[str] = ()
) -> Imported:
    """A plan from another framework's arguments or config, of which nothing is executed.

    ``file`` may be FILE.py:RECIPE; ``model`` is the model's name where the file names none; a shell script is read as
    started with ``arguments``, before them variables (``TP=4``). The result has the ``plan``, names of options that are
    ``ignored``, and ``notes``. Raises UserError.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile("w+", suffix=".sh") as script:
    ...     print("torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --bf16", file=script, flush=True)
    ...     import_plan(script.name, "megatron").plan.tp
    4
    """
    if framework == TRACES:
        raise UserError(f"{file}: execution traces say what ran, not a plan; simpar replay simulates them")
    path, _ = split_name(str(file))
    imported = read(_before(path, arguments) + text_of(path), str(file), framework)
    return imported if model is None else replace(imported, plan=imported.plan.model_copy(update={"model": model}))


def _before(path: str, arguments: Sequence[str]) -> str:
    """Shell text before a script that sets what it is started with. Raises UserError for other files."""
    if not arguments:
        return ""
    if Path(path).suffix in CONFIGS:
        raise UserError(
            f"{path}: is started with no arguments ({shlex.join(arguments)}); allowed: those of a shell script"
        )
    variables = dict(word.split("=", 1) for word in takewhile(_VARIABLE.match, arguments))
    return shell_before(variables, arguments[len(variables) :])


def save_imported(imported: Imported, path: str | Path) -> tuple[str, ...]:
    """Write an imported plan, and beside it the config of a model that the file states in full; the paths written."""
    check_writable(path)
    output, plan = Path(path), imported.plan
    written = [str(path)]
    if (config := _config_to_write(imported)) is not None:
        model = output.with_suffix(".model.json")
        write_atomic(model, json.dumps(config, indent=2) + "\n")
        plan = plan.model_copy(update={"model": model.name})
        written.append(str(model))
    plan.save(output)
    return tuple(written)


def _config_to_write(imported: Imported) -> dict[str, Any] | None:
    """The config of a model that the file states in full, or of a known one that it trains with another dropout."""
    name, config = imported.plan.model, dict(imported.config or {})
    if name is None and not config:
        return None
    config = config_of(name) if name else config
    own = load_model(name) if name else read_config(config)
    if with_dropout(own, **imported.dropout) != own:
        return {**config, FIELD: dict(imported.dropout)} if config else None
    return None if name else config


@dataclass(frozen=True)
class ExportPrediction:
    """Whether a plan, as the target runs it, fits with the wanted probability, in words with the numbers.

    ``note`` is the text for the user, ``predicted`` the figures for the files; "" if there is nothing.
    """

    is_allowed: bool
    note: str
    predicted: str


@dataclass(frozen=True)
class NearPlan(ExportPrediction):
    """The nearest plan that a target can express, and the text for the refusal."""

    plan: Plan
    offer: str


def numbers(result: Result) -> str:
    """Whether it fits, reserved memory and step time, in words."""
    return f"{memory_state(result, 'does not fit')}, {format_seconds(result.step_time_s)} a step"


class ExportPredictor:
    """Predictions for an export to one target; ``wanted`` is the least probability of fitting."""

    def __init__(self, source: ExportSource, target: str, wanted: float) -> None:
        if not 0 < wanted < 1:
            raise UserError(f"--fit-probability {wanted:g}: allowed: above 0 and below 1")
        self.source, self.target, self.wanted = source, target, wanted

    def predict_on_target(self, runs: Plan) -> ExportPrediction:
        """Whether the plan fits with the wanted probability under the target's stack.

        ``runs`` is the plan as the target runs it. Nothing is said if the plan was made for that very stack, or if it
        is not known what it was made for. Raises UserError if it cannot be simulated there.
        """
        stack, cluster = self.source.stack, self.source.cluster
        is_same = stack is None or stack == load_stack(str(runs.stack))
        if cluster is None:
            words = f"Not predicted for stack {runs.stack}: {MISSING_CLUSTER} for its ranks (--hardware NAME does)."
            return ExportPrediction(True, "" if is_same else words, "")
        there = self._run(runs)
        is_sure, predicted = self._is_sure(there), step_and_memory(there)
        if is_same and is_sure:
            return ExportPrediction(True, "", predicted)
        said = f"Under {runs.stack}, the stack of {self.target}, the plan {numbers(there)}"
        if stack is not None and not is_same:
            said += f"; under {stack.name}, for which it was made, it {numbers(self._own_result)}"
        if there.fits and not is_sure:
            said += f"; --fit-probability {self.wanted:g} is wanted"
        return ExportPrediction(is_sure, said, predicted)

    def find_nearest(self) -> NearPlan | None:
        """The nearest plan that the target can express; of those that fit, the one that keeps most memory savings.

        Among equals it is the fastest. If none of the nearest fits, more is sharded or recomputed. If that does not
        help either, the nearest plan is returned as not allowed, and among equals the one with the least memory. None
        if no change helps.
        """
        job = ExportJob(self.source.graph, self.source.training, self.target, self.source.devices_per_node)
        plans = find_nearest(self.source.plan, job)
        if not plans:
            return None
        if self.source.cluster is None:
            said = f"{'; '.join(plans[0].changes)}, not predicted: {MISSING_CLUSTER} (--hardware NAME does)"
            return self._make_near_plan(plans[0].plan, said, "", is_sure=True)
        first = timed = self._predict_all(plans)
        sure = self._keep_sure(timed)
        for more in find_saving(plans, job):
            if not sure:
                timed = self._predict_all(more)
                sure = self._keep_sure(timed)
        if not (sure or first):
            return None

        def order(each: tuple[Near, Result]) -> tuple[int, float]:
            kept, there = each
            return len(kept.given_up), there.step_time_s if sure else there.peak_memory_bytes

        near, result = min(sure or first, key=order)
        said = f"{'; '.join(near.changes)}: {numbers(result)} under {near.plan.stack}, {self._compare_with_own(result)}"
        if result.fits and not sure:
            said += f"; --fit-probability {self.wanted:g} is wanted"
        return self._make_near_plan(near.plan, said, step_and_memory(result), is_sure=bool(sure))

    def _make_near_plan(self, plan: Plan, said: str, predicted: str, *, is_sure: bool) -> NearPlan:
        """The text for a plan; predictions of a search belong to another plan and are dropped."""
        how = "--nearest exports it" if is_sure else "--nearest --force exports it anyway"
        own = self.source.plan
        plan = plan.model_copy(update={"stack": own.stack, "predicted": None if own.predicted is None else {}})
        noted = f"Not the plan but the nearest that can be said: {said}."
        return NearPlan(is_sure, noted, predicted, plan, f"; the nearest that it can: {said} ({how})")

    def _predict_all(self, plans: Iterable[Near]) -> list[tuple[Near, Result]]:
        """Plans with their results under their stacks in the target, without those that cannot be simulated."""
        timed = []
        for near in plans:
            habit = load_target(self.target).stack_for(near.plan)
            there = Near(near.plan.model_copy(update={"stack": habit}), near.changes, near.given_up)
            try:
                timed.append((there, self._run(there.plan)))
            except UserError:
                continue
        return timed

    def _compare_with_own(self, result: Result) -> str:
        """How a step compares with the plan's own step."""
        stack = self.source.stack.name if self.source.stack else self.source.plan.usual_stack
        try:
            own = self._own_result
        except UserError as error:
            return f"and the plan itself cannot be predicted under {stack}: {error}"
        change = result.step_time_s / own.step_time_s - 1
        than = f"{abs(change):.1%} {'more' if change >= 0 else 'less'} than the plan takes"
        return f"{than}, which {numbers(own)} under {stack}"

    @cached_property
    def _own_result(self) -> Result:
        """The plan's result under the stack it was made for."""
        return self._run(self.source.plan, self.source.stack)

    def _run(self, plan: Plan, stack: Stack | None = None) -> Result:
        source = self.source
        if source.cluster is None:
            raise UserError(MISSING_CLUSTER)
        return simulate(
            source.graph,
            source.cluster,
            plan,
            source.training,
            stack=stack,
            perturbation=source.perturbation,
            with_timeline=False,
        )

    def _keep_sure(self, timed: list[tuple[Near, Result]]) -> list[tuple[Near, Result]]:
        return [each for each in timed if self._is_sure(each[1])]

    def _is_sure(self, result: Result) -> bool:
        known = result.certainty
        return result.fits and (known is None or known.fit_probability >= self.wanted)
