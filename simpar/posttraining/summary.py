"""From what happened to the answer: means of the measured steps, waits, limits, memory, and the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from simpar.hardware.price import price_of
from simpar.posttraining.answer import (
    AgeReport,
    BothMemories,
    GenerationReport,
    IterationsReport,
    LengthsReport,
    ModelDevices,
    PostTrainingFigures,
    PostTrainingResult,
    StepSpeed,
    TrainingParts,
    WeightsReport,
)
from simpar.posttraining.lengths import draw_step
from simpar.posttraining.memory import apart, curves, fullest_replica, sides
from simpar.posttraining.pools import TRAINING, History, Interval
from simpar.posttraining.program import StepsProgram
from simpar.posttraining.weight_flows import FLOW
from simpar.posttraining.words import assumptions, limits, not_modelled
from simpar.program.ir.program import Timing
from simpar.report.timeline import RankClass, Slices, Timeline
from simpar.units import HOUR_S, NS_PER_S, Indices, Ints

if TYPE_CHECKING:
    from simpar.posttraining.simulate import PostTrainingSetting


def summarise_history(
    setting: PostTrainingSetting, history: History, steps: StepsProgram, timing: Timing
) -> PostTrainingResult:
    """The answer for both pools; ``timing`` are the times of the ops of their Program."""
    window = measured_window(setting, history)
    speed, parts = _speed(setting, history, window), _parts(setting, history, window)
    generation = _generation(setting, history, window)
    ages = [age for step in history.steps for age in step.ages]
    figures = PostTrainingFigures(
        speed=speed,
        parts_s=parts,
        generation=generation,
        lengths=_lengths(setting, history),
        memory=BothMemories(
            **sides(setting),
            cache_tokens=setting.limits.blocks * setting.limits.block if setting.served.token_bytes else 0,
            state_bytes=setting.served.state_bytes,
            peak_cache_share=max(each.peak_blocks for each in history.counts) / setting.limits.blocks,
        ),
        staleness=AgeReport(
            allowed=setting.section.synchrony.steps_off, mean=float(np.mean(ages)), largest=int(max(ages))
        ),
        weights=_weights(setting),
        models_apart=tuple(_models_apart(setting, history, window)),
        limits=tuple(limits(setting, speed, parts, generation)),
        assumed=(*setting.assumed, *assumptions(setting)),
        not_modelled=tuple(not_modelled(setting)),
        setup=_setup(setting),
    )
    drawn = timeline_of(setting, steps, timing)
    return PostTrainingResult(figures, drawn, curves(setting, history), fullest_replica(history))


def measured_window(setting: PostTrainingSetting, history: History) -> tuple[int, int]:
    """Begin and end of the measured steps in nanoseconds: the first ones of a run off policy only fill the queue."""
    before = setting.section.synchrony.steps_off
    return (history.steps[before - 1].weights_ns if before else 0), history.steps[-1].weights_ns


def _within(intervals: Iterator[Interval] | tuple[Interval, ...], window: tuple[int, int]) -> float:
    """Seconds of intervals that lie in a window."""
    begin, end = window
    return sum(max(0, min(each.finish_ns, end) - max(each.start_ns, begin)) for each in intervals) / NS_PER_S


def _rest(seconds: float) -> float:
    """What is left of a time; below a nanosecond it is the rounding of a sum."""
    return seconds if seconds * NS_PER_S >= 1.0 else 0.0


def _speed(setting: PostTrainingSetting, history: History, window: tuple[int, int]) -> StepSpeed:
    section, trained = setting.section, setting.trained
    took = (window[1] - window[0]) / NS_PER_S
    measured = history.steps[section.synchrony.steps_off :]
    tokens = sum(step.tokens for step in measured)
    beside = sum(each.cluster.world_size for each in trained.apart)
    devices = trained.cluster.world_size + beside + (setting.pool.world_size if section.has_pool else 0)
    ends = [window[0], *(step.weights_ns for step in measured)]
    prices = [price_of(trained.cluster), price_of(setting.pool) if section.has_pool else 0.0]
    cost = None
    if prices[0] is not None and prices[1] is not None:
        own = trained.cluster.world_size + beside
        hourly = prices[0] * own + prices[1] * (devices - own)
        cost = hourly * took / HOUR_S / len(measured)
    return StepSpeed(
        step_time_s=took / len(measured),
        samples_per_s=section.responses * len(measured) / took,
        tokens_per_s=tokens / took,
        tokens_per_s_per_device=tokens / took / devices,
        devices=devices,
        steps_s=tuple((after - before) / NS_PER_S for before, after in pairwise(ends)),
        cost_usd_per_step=cost,
    )


def _parts(setting: PostTrainingSetting, history: History, window: tuple[int, int]) -> TrainingParts:
    """The training stream's account of a mean step."""
    steps = setting.section.measured_steps
    mine = tuple(each for each in history.intervals if each.stream == TRAINING)
    by_kind = {
        kind: _within(tuple(each for each in mine if each.kind == kind), window) / steps
        for kind in ("switch", "score", "train", "weights")
    }
    elsewhere = _elsewhere_s(history, window) / steps
    update = setting.trained.batch(draw_step(setting.section, setting.trained.training.seq_len, 0).total)
    whole = sum(update.passes_s.values())
    total = (window[1] - window[0]) / NS_PER_S / steps
    return TrainingParts(
        waiting=_rest(total - elsewhere - sum(by_kind.values())),
        elsewhere=elsewhere,
        switch=by_kind["switch"],
        passes={name: by_kind["score"] * each / whole for name, each in update.passes_s.items()} if whole else {},
        training=by_kind["train"],
        weights=by_kind["weights"],
    )


def _elsewhere_s(history: History, window: tuple[int, int]) -> float:
    """Seconds in which updates wait for passes on other devices."""
    mine = [each for each in history.intervals if each.stream == TRAINING]
    scored = {each.step: each.finish_ns for each in mine if each.kind == "score"}
    waits = (
        replace(each, start_ns=scored[each.step], finish_ns=each.start_ns) for each in mine if each.kind == "train"
    )
    return _within(tuple(waits), window)


def _models_apart(setting: PostTrainingSetting, history: History, window: tuple[int, int]) -> Iterator[ModelDevices]:
    """What other models' own devices do in a mean step."""
    steps, held = setting.section.measured_steps, apart(setting)
    total = (window[1] - window[0]) / NS_PER_S / steps
    for at, (models, devices) in enumerate(setting.section.passes.pools):
        mine = tuple(each for each in history.intervals if each.stream == TRAINING - 1 - at)
        passes, training = (
            _within(tuple(each for each in mine if each.kind == kind), window) / steps for kind in ("score", "train")
        )
        waiting, memory = _rest(total - passes - training), held[setting.beside[at]]
        yield ModelDevices(
            models=models, devices=devices, passes=passes, training=training, waiting=waiting, memory=memory
        )


def _generation(setting: PostTrainingSetting, history: History, window: tuple[int, int]) -> GenerationReport:
    """The replicas' account of a mean step."""
    section, counts, replicas = setting.section, history.counts, setting.num_replicas
    steps = section.measured_steps
    weights = _within(tuple(each for each in history.intervals if each.kind == "weights"), window) / steps
    mine = tuple(each for each in history.intervals if each.stream == TRAINING)
    turned = tuple(each for each in mine if each.kind in ("switch", "score", "train"))
    away = (_within(turned, window) / steps + _elsewhere_s(history, window) / steps) * setting.num_joined / replicas
    spans = tuple(each for each in history.intervals if each.stream >= 0)
    generating = _within(spans, window) / steps / replicas
    total = (window[1] - window[0]) / NS_PER_S / steps
    any_s = _union_s(spans, window) / steps
    busy = max(1, sum(each.busy_ns for each in counts))
    waiting = _rest(total - generating - weights - away)
    return GenerationReport(
        replicas=replicas,
        devices_per_replica=section.rollout.devices,
        generating=generating,
        waiting=waiting,
        weights=weights,
        away=away,
        tail=min(waiting, _rest(any_s - generating)),
        tokens_per_s=sum(each.generated for each in counts) / busy * NS_PER_S * replicas,
        inside=IterationsReport(
            iterations=sum(each.iterations for each in counts) / replicas / len(history.steps),
            mean_sequences=sum(each.sequence_ns for each in counts) / busy,
            peak_sequences=max(each.peak_sequences for each in counts),
            key_share=sum(each.key_ns for each in counts) / busy,
            state_share=sum(each.decoded for each in counts) * setting.served.state_s * NS_PER_S / busy,
            prompt_share=sum(each.prompt_ns for each in counts) / busy,
            preempted=sum(each.preempted for each in counts),
            again_tokens=sum(each.again_tokens for each in counts),
        ),
    )


def _union_s(spans: tuple[Interval, ...], window: tuple[int, int]) -> float:
    """Seconds of a window in which any of the intervals is under way."""
    total, until = 0, window[0]
    for start, finish in sorted((each.start_ns, each.finish_ns) for each in spans):
        begin, end = max(start, until), min(finish, window[1])
        total += max(0, end - begin)
        until = max(until, end)
    return total / NS_PER_S


def _lengths(setting: PostTrainingSetting, history: History) -> LengthsReport:
    section, context = setting.section, setting.trained.training.seq_len
    steps = [draw_step(section, context, step) for step in range(len(history.steps))]
    responses = np.concatenate([each.response.ravel() for each in steps])
    return LengthsReport(
        prompt_mean=float(np.concatenate([each.prompt for each in steps]).mean()),
        response_mean=float(responses.mean()),
        response_p99=float(np.quantile(responses, 0.99)),
        response_longest=int(responses.max()),
        cut_share=sum(each.cut for each in steps) / len(responses),
    )


def _weights(setting: PostTrainingSetting) -> WeightsReport:
    """One update; bytes are those of the pool whose devices or places receive most."""
    received = [each.received for each in setting.reshardings]
    link, seconds = setting.new_weights.slowest
    return WeightsReport(
        method=setting.section.weights.method,
        seconds=setting.new_weights.time_s,
        whole_bytes=received[0].whole,
        received_per_device_bytes=max(each.from_node for each in received),
        received_per_node_bytes=max(each.into_node for each in received),
        flows=sum(len(each.flows) for each in setting.new_weights.updates),
        slowest_link=link,
        slowest_link_seconds=seconds,
    )


def _setup(setting: PostTrainingSetting) -> dict[str, object]:
    trained = setting.trained
    return {
        "model": trained.graph.name,
        "plan": trained.usual.setup.plan,
        "training": trained.training.model_dump(mode="json"),
        "cluster": trained.usual.setup.cluster,
        "post_training": setting.section.model_dump(mode="json"),
        "rollout_nodes": setting.pool.nodes,
        "updates": trained.updates,
        "packed_rows": trained.usual_rows,
    }


def timeline_of(setting: PostTrainingSetting, steps: StepsProgram, timing: Timing) -> Timeline:
    """Every interval on each of its streams, and flows of weights on theirs, at the times that an engine gave them."""
    program = steps.program
    kinds = np.array([label.kind for label in program.labels])
    ops, start_ns = program.ops, timing.start_ns.copy()
    whole = len(steps.first)
    start_ns[:whole] = timing.start_ns[steps.first]
    drawn = (np.arange(len(ops)) < whole) | (kinds[ops.label] == FLOW)
    placed = np.flatnonzero(drawn[program.streams.item])
    stream, op = program.streams.owners()[placed], program.streams.item[placed]
    owner, none = program.stream_class[stream], np.full(len(op), -1, dtype=np.int64)
    last, replicas = len(program.class_names) - 1, setting.num_replicas
    is_replica = (owner > 0) & (owner <= replicas)

    def column(values: Indices) -> Ints:
        return np.asarray(values[op], dtype=np.int64)

    slices = Slices(
        class_id=np.asarray(owner, dtype=np.int64),
        stream=np.asarray(is_replica + 2 * (owner == last), dtype=np.int64),
        start_ns=column(start_ns),
        finish_ns=column(timing.finish_ns),
        label=column(ops.label),
        stage=none,
        microbatch=column(ops.microbatch),
        size_bytes=column(ops.work_bytes),
        inner=none,
    )
    devices = setting.section.rollout.devices
    first = 0 if setting.section.takes_turns else setting.trained.cluster.world_size
    classes = (
        RankClass("training", 0, 0, setting.trained.cluster.world_size),
        *(
            RankClass(f"replica {at}", at + 1, first + at * devices, devices) for at in range(setting.num_replicas)
        ),
        *(
            RankClass(name, replicas + 1 + at, 0, devices)
            for at, (name, (_, devices)) in enumerate(
                zip(setting.beside, setting.section.passes.pools, strict=True)
            )
        ),
        RankClass(program.class_names[last], last, 0, 1),
    )  # fmt: skip
    arrows = np.zeros((0, 2), dtype=np.int64)
    return Timeline(slices, program.labels, classes, ("training", "generation", "links"), arrows)
