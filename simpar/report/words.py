"""A result in words, for terminal, pages, lists and one-line answers alike. Three significant digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from simpar.architectures.recompute import says_layers
from simpar.hardware.part import nodes_words
from simpar.plan.choices.mesh import LABELLED, PIPELINE
from simpar.report.run_rows import run_rows
from simpar.uncertainty.memory import AS_PREDICTED, DEFAULT_FIT_PROBABILITY
from simpar.units import format_bytes, format_count, format_energy, format_figure, format_seconds, number_of

if TYPE_CHECKING:
    from simpar.report.certainty import Certainty
    from simpar.report.parts import Speed, Trial
    from simpar.report.result import Result


CAUSES = {
    "allocator": "allocator gaps and workspaces", "stack": "memory of the framework that is not modelled",
    "experts": "uneven experts",
}  # fmt: skip


TO_DO = "--advise says what other layouts would gain, --html shows all of it"
TO_DO_UNLESS_IT_FITS = "--advise says which layouts near it fit, simpar search finds the best of all that do"
NOTHING = "none of the {} near it that were tried {}; simpar search finds the best of all"
MUCH_MASKED = 0.2
"""From this share of masked pairs in the model FLOP on, figures say the MFU without them."""


def headline(result: Result) -> str:
    """Model with its parameter count, cluster, layout and software stack in one line."""
    model, cluster, setup = result.setup.model, result.setup.cluster, result.setup
    count = model.get("parameters")
    size = f" ({format_count(count)})" if count else ""
    nodes, devices = cluster["nodes"], cluster.get("devices")
    where = nodes_words(nodes, str(cluster.get("hardware"))) + (
        f" ({devices:,} {cluster.get('device', 'devices')})" if devices else ""
    )
    stack = setup.plan.get("stack")
    plan = whole_layout(setup.plan, setup.num_microbatches or 1)
    return f"{model.get('name')}{size} on {where}: {plan}" + (f", {stack} stack" if stack else "")


def assumptions(result: Result) -> list[str]:
    """What was assumed because nobody said it: of the model, of the plan, and the software stack."""
    setup, others = result.setup, result.why.stacks
    beside = f"{setup.plan.get('stack')} stack (--stack sets another); {'; '.join(_other_stacks(result))}"
    return [*setup.model.get("assumed", ()), *([beside] if others else [])]


def _other_stacks(result: Result) -> Iterator[str]:
    """What the plan gives under each of the other stacks."""
    for trial in result.why.stacks:
        name = trial.change.removeprefix("--stack ")
        if trial.step_time_s is None:
            yield f"{name} refuses this plan"
        elif trial.not_with:
            yield f"{name} does not offer this plan ({_in_short(trial.not_with.partition(': ')[2])})"
        else:
            against = f"{format_seconds(trial.step_time_s)} ({trial.step_time_s / result.step_time_s - 1:+.1%})"
            yield f"with {name}: {against}{', does not fit' if not trial.fits else ''}"


def _in_short(reasons: str) -> str:
    """What a framework does not offer: a single setting with the reason, of several only what they are."""
    settings = [each.partition(": ")[0] for each in reasons.split("; ") if " = " in each.partition(": ")[0]]
    return reasons if len(settings) < 2 else ", ".join(settings)


def describe_briefly(result: Result) -> str:
    """A result in one line."""
    step, state = format_seconds(result.step_time_s), memory_state(result)
    return f"<Result {headline(result)}; {step} a step, MFU {result.mfu:.1%}, {state}>"


def layout(plan: dict[str, Any], microbatches: int = 1) -> str:
    """The plan in a few words: axes above one, schedule, microbatches, ZeRO, recompute, what is trained."""
    mesh, pipeline = plan.get("mesh", {}), plan.get("pipeline", {})
    axes = [f"{axis}{mesh[axis]}" for axis in LABELLED if (mesh.get(axis) or 1) > 1]
    words = [" ".join(axes) or "one device"]
    stages = pipeline.get("stages") or ()
    if stages:
        words = [_stages(stages)]
    if (mesh.get(PIPELINE) or 1) > 1:
        chunks = pipeline.get("vpp") or 1
        words.append(str(pipeline.get("schedule")) + (f" vpp{chunks}" if chunks > 1 else ""))
    words.append(f"micro-batch {plan.get('micro_batch')}" + (f" x {microbatches:,}" if microbatches > 1 else ""))
    zero = plan.get("data_parallel", {}).get("zero")
    if zero:
        words.append(f"ZeRO-{zero}")
    recompute = plan.get("memory", {}).get("recompute", "none")
    if recompute != "none":
        words.append("recompute by layer" if says_layers(recompute) else f"recompute {recompute}")
    words += _trained(plan.get("tuning", {}))
    words.append(str(plan.get("numerics", {}).get("precision", "")))
    return ", ".join(word for word in words if word)


def whole_layout(plan: dict[str, Any], microbatches: int = 1) -> str:
    """The same with replicas of sharded states, and how ranks cooperate that do not sum gradients in every step."""
    data = plan.get("data_parallel", {})
    replicas, sync = data.get("hsdp") or 1, data.get("sync", "bsp")
    words = [f"HSDP of {replicas} replicas"] * (replicas > 1) + [str(sync)] * (sync != "bsp")
    words += ["one process for all devices"] * (data.get("kind") == "single_process")
    return ", ".join([layout(plan, microbatches), *words])


def _trained(tuning: Mapping[str, Any]) -> Iterator[str]:
    """Adapters and frozen layers, and what frozen weights are stored in."""
    rank, frozen = tuning.get("lora_rank"), tuning.get("frozen_layers") or 0
    stored = f" on {tuning['frozen_dtype']}" if tuning.get("frozen_dtype", "bf16") != "bf16" else ""
    if rank:
        yield f"LoRA {rank}{stored}"
        return
    parts = [number_of(frozen, "frozen layer")] * bool(frozen)
    parts += [f"frozen {part}" for part in ("tower", "connector") if tuning.get(f"frozen_{part}")]
    if parts:
        yield f"{' and '.join(parts)}{stored}"


def _stages(stages: Sequence[Mapping[str, Any]]) -> str:
    """Stages with devices of their own: numbers of layers and devices, in order."""
    each = [
        f"{stage['layers']} on {' x '.join(map(str, stage['mesh']))}{_shared_out(stage['sharding'])}"
        for stage in stages
    ]
    runs = [(words, len(list(group))) for words, group in groupby(each)]
    said = ", ".join(words if count == 1 else f"{count} times {words}" for words, count in runs)
    return f"stages of their own (layers on devices: {said})"


def _shared_out(sharding: Mapping[str, Any]) -> str:
    """The axes over which the operators of a stage are sharded, and whether weights are gathered for their use."""
    words = dict.fromkeys(
        word for block in sharding.values() for words in block["operators"].values() for word in words
    )
    gathered = ", weights gathered" if any(block["gathered"] for block in sharding.values()) else ""
    return (f" by {' and '.join(words)}" if words else "") + gathered


def verdict(trial: Trial) -> str:
    """Whether a neighbouring layout fits, how sure that is, and which framework cannot run it."""
    if not trial.fits:
        return "does not fit"
    fits = "fits" if trial.fit_probability is None else f"fits, {probably(trial.fit_probability)}"
    return f"{fits}, not with {trial.not_with.partition(':')[0]}" if trial.not_with else fits


def in_brief(result: Result) -> list[tuple[str, str]]:
    """The answer in four lines: whether it fits, how fast it is, what limits it, what to do."""
    speed = result.speed
    rate = f"{format_count(speed.tokens_per_s)} tokens/s, MFU {speed.mfu:.1%}"
    rows = [("memory", memory_state(result)), ("speed", f"{step_time_words(result)} a step, {rate}")]
    rows += [("limit", line) for line in result.why.binds[:1]]
    return [*rows, ("to do", _to_do(result))]


def _to_do(result: Result) -> str:
    """The first hint that there is, a fitting layout before all; else how to get one, or that none near by helps."""
    fits, hints, tried = result.memory.fits, result.why.hints, result.why.trials
    if hints and (fits or tried):
        return hints[0]
    if tried:
        ran = sum(each.step_time_s is not None for each in tried)
        return NOTHING.format(number_of(ran, "layout"), "is faster and as sure to fit" if fits else "fits")
    return TO_DO if fits else TO_DO_UNLESS_IT_FITS


def figures(result: Result) -> list[tuple[str, str]]:
    """The headline figures as (name, value with unit)."""
    speed = result.speed
    rows = [
        ("step time", step_time_words(result)),
        ("tokens/s", f"{format_count(speed.tokens_per_s)} ({format_count(speed.tokens_per_s_per_device)} per device)"),
        ("MFU / HFU", f"{speed.mfu:.1%} / {speed.hfu:.1%} (attention counted {_convention(speed)})"),
        ("model TFLOP/s per device", format_figure(speed.tflops_per_device)),
        ("bubble", result.bubble_text),
        ("memory", memory_state(result)),
    ]
    if result.bill.cost_usd_per_step is not None:
        rows.append(("cost per step", f"{format_figure(result.bill.cost_usd_per_step)} USD{_price(result)}"))
    if result.bill.energy_j_per_step is not None:
        rows.append(("energy per step", format_energy(result.bill.energy_j_per_step)))
    return [*rows, *run_rows(result.whole_run)]


def _convention(speed: Speed) -> str:
    """How the MFU counts attention, and what it is without masked pairs where these are much of it."""
    if speed.flops_convention == "causal" or speed.masked_share < MUCH_MASKED:
        return speed.flops_convention
    return f"full, with masked pairs: {speed.mfu * (1 - speed.masked_share):.1%} without"


def _price(result: Result) -> str:
    price = result.bill.usd_per_device_hour
    return "" if price is None else f" ({format_figure(price)} USD per device and hour)"


def memory_state(result: Result, misfit: str = "DOES NOT FIT") -> str:
    """Whether a step fits, in how much memory, and how sure that is; ``misfit`` is the text if it does not."""
    memory, known = result.memory, result.certainty
    state = "fits" if memory.fits else "is at the limit" if is_at_the_limit(result) else misfit
    words = f"{state}: {format_bytes(memory.peak_reserved_bytes)} of {format_bytes(memory.capacity_bytes)}"
    if not memory.fits and memory.host is not None and not memory.host.fits:
        return f"{words}; what it keeps on its hosts is too much for them"
    if known is not None:
        words += f", {probably(known.fit_probability)}" + " to fit" * (not memory.fits)
    return words


def is_at_the_limit(result: Result) -> bool:
    """Whether devices are predicted to need more than they have, although a step is more likely than not to fit."""
    memory, known = result.memory, result.certainty
    host_fits = memory.host is None or memory.host.fits
    return not memory.fits and host_fits and known is not None and known.fit_probability >= AS_PREDICTED


def step_and_memory(result: Result) -> str:
    """Step time, MFU and reserved memory, as exported files state them."""
    step, memory = format_seconds(result.step_time_s), format_bytes(result.memory.peak_reserved_bytes)
    return f"{step} a step, MFU {result.mfu:.1%}, {memory} reserved at the peak"


def probably(fit_probability: float) -> str:
    """The probability that a layout fits, in words that never claim more than the number."""
    percent = 100 * fit_probability
    return "over 99 % sure" if percent > 99 else "less than 1 % sure" if percent < 1 else f"{percent:.0f} % sure"


def step_time_words(result: Result) -> str:
    """The step time with its 90 % interval."""
    step = format_seconds(result.step_time_s)
    if result.certainty is None:
        return step
    return f"{step} (90 % interval {interval_words(result.certainty.step_time_interval_s)})"


def interval_words(interval_s: Sequence[float]) -> str:
    """Two times as an interval."""
    low_s, high_s = interval_s
    return f"{format_seconds(low_s)} to {format_seconds(high_s)}"


def describe_certainty(result: Result) -> list[str]:
    """The basis of the figures, a sentence each: a traced model, measured runs, traits that no run shows, misfits."""
    known, notes = result.certainty, result.setup.model.get("notes", [])
    if known is None:
        return [*notes]
    shared = "in stack, device, kind of model, bits and lengths"
    runs = "runs of one model family from one source" if known.support == 1 else f"{known.support} sets of runs"
    first = f"measured runs stand behind this answer: {runs} like it {shared}{_sources(known)}"
    if not known.support:
        first = f"no measured run stands behind all of this answer: none is like it {shared}"
    if known.support:
        first += f"; {_population(known)}"
    own = f"{number_of(known.own_runs, 'layout')} like it taught its profiles"
    return [*notes, first, *([own] if known.own_runs else []), *known.unsupported, *_hangs_on(known.fit_causes)]


SOURCES_NAMED = 3
"""Sources of measured runs that a report names; the others are counted."""


def _sources(known: Certainty) -> str:
    """Which runs these are, in brackets: by their sources, as the page of validation lists them."""
    named, rest = ", ".join(known.support_sources[:SOURCES_NAMED]), known.support_sources[SOURCES_NAMED:]
    more = f" and {number_of(len(rest), 'more source')}" if rest else ""
    return f" ({named}{more})" if named else ""


def _population(known: Certainty) -> str:
    """What kind of runs support a prediction."""
    if not known.ordinary_support:
        return "all were tuned by those who published them, and ordinary runs are slower more often than faster"
    if known.ordinary_support == known.support:
        return "as most people run, not tuned by those who published them"
    return f"{known.ordinary_support} as most people run, the others tuned by those who published them"


def _hangs_on(causes: Mapping[str, float]) -> Iterator[str]:
    """The share of each cause in the memory that must stay free to fit with WANTED; below 1 % it is left out."""
    parts = sorted(causes.items(), key=lambda item: -item[1])
    words = ", ".join(f"{100 * part:.0f} % {CAUSES.get(name, name)}" for name, part in parts if part >= 0.01)
    if words:
        yield f"memory margin for {100 * DEFAULT_FIT_PROBABILITY:.0f} %: {words}"


def format_significant(value: float) -> str:
    """Three significant digits without an exponent, and without trailing zeros."""
    text = f"{value:.3g}"
    return format_figure(value) if "e" in text else text
