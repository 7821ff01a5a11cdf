"""The figures of a logged run, from what was logged at each step: medians after a warm-up, and peaks."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from math import ceil

import numpy as np

from simpar.dataclass import dataclass

WARM_UP = 0.1
"""The share of logged steps that is skipped at the beginning, at least one: caches fill, kernels are tuned."""
STEP_TIME, TFLOPS, TOKENS, SAMPLES, ALLOCATED, RESERVED, USED = (
    "step_time_s", "tflops", "tokens_per_s_per_device", "samples_per_s", "allocated_bytes", "reserved_bytes",
    "used_bytes",
)  # fmt: skip
"""Figures; ``used_bytes`` is what the driver shows of a device, with context and buffers outside the allocator."""
RATE, MEAN_RATE, MEAN_TIME, CLOCK = "steps_per_s", "mean_steps_per_s", "mean_step_time_s", "clock_s"
"""Other ways of telling the step time: steps per s, the means since the start of the run, and the time of logging."""
WORDS, STEP_WORDS = "words_per_s", "words_per_step"
"""fairseq's words: their quotient is finer than its updates per second, which have two decimals."""
GLOBAL_BATCH, SEQ_LEN, DEVICES, STEPS, RESUMED = "global_batch", "seq_len", "devices", "steps", "resumed"
LEAST_SPAN_S = 20.0
"""Between two readings of a clock in whole seconds: the time of the steps is then known within 5 %."""
LEAST_RATE = 0.01
"""Steps per s that are rounded to 0.001: of slower ones the time of a step is not known within 5 %."""
RAMPED = -1
"""The batch of steps whose line says only that it is a smaller one."""
OTHER_BATCHES = "{} with other batch sizes than the last are left out."
PEAKS = (ALLOCATED, RESERVED, USED)

BEHIND = 3
"""Logged steps that a line may fall behind others, as ranks do that write to one file."""
AGAIN = (
    "Steps begin again at {} after {}: several runs or ranks in one file, or a run that was started again. Of steps "
    "that come twice the last is taken; peaks of memory are the most of all."
)
CUT = "The file ends in the middle of {}, as of a run that was killed or still writes: it is left out."

Figures = Mapping[str, float]


class LoggedSteps(dict[int, dict[str, float]]):
    """Figures by step, of one run: where the numbers of steps fall back, what was put from there on is dropped.

    ``again`` is the step at which they began again the last time, and the last one before it, ``falls`` how often they
    did. What is set without ``put`` tells nothing of where a run begins.
    """

    again: tuple[int, int] | None = None
    falls = 0

    def put(self, at: int, figures: Mapping[str, float]) -> None:
        """Add figures of a step."""
        if at < next(reversed(self._put), at):
            later = [each for each in self._put if each >= at]
            if len(later) > BEHIND:
                self.again = (at, max(later))
                self.falls += 1
                for each in later:
                    del self[each], self._put[each]
        self._put[at] = None
        self[at] = {**self.get(at, {}), **figures}

    @cached_property
    def _put(self) -> dict[int, None]:
        """The steps that were put, in their order."""
        return dict.fromkeys(self)

    def notes(self) -> list[str]:
        """What a reader must know of several runs in one file."""
        return [AGAIN.format(*self.again)] if self.again else []


@dataclass(frozen=True)
class LogRun:
    """Figures of a log: medians over its steps after the warm-up, in SI units; None if it has none.

    ``spread`` is the standard deviation of the logarithm of the step time, or of its rate. ``steps`` are the first and
    last step used. ``job`` has whole numbers about the job. ``times_s`` are the step times in order, or inverse rates.
    ``phases_s`` are the medians of a step's phases by rank, from runs of simpar; ``stages_differ``: by stage as well.
    ``notes`` say what of the file was left out.
    """

    path: str
    framework: str
    steps: tuple[int, int]
    count: int
    spread: float
    figures: Figures
    job: Mapping[str, int] = field(default_factory=dict)
    times_s: tuple[float, ...] = ()
    phases_s: tuple[Mapping[str, float], ...] = ()
    stages_differ: bool = False
    notes: tuple[str, ...] = ()

    def step_time_s(
        self, tokens_per_step: int | None = None, samples: int | None = None, devices: int = 1
    ) -> float | None:
        """Seconds of a step: as printed, or from rates and the amount of work of a step."""
        if STEP_TIME in self.figures:
            return self.figures[STEP_TIME]
        if TOKENS in self.figures and tokens_per_step:
            return tokens_per_step / (self.figures[TOKENS] * devices)
        if SAMPLES in self.figures and samples:
            return samples / self.figures[SAMPLES]
        return None


def make_run(path: str, framework: str, steps: Mapping[int, Figures], whole: Figures, job: Mapping[str, int]) -> LogRun:
    """The run of the figures of every logged step; ``whole`` are those of the run, for what no step has."""
    numbers = sorted(steps)
    used = numbers[max(1, round(WARM_UP * len(numbers))) :] or numbers
    times = _step_times(steps, numbers, used[0])
    logged = {key: [steps[at][key] for at in used if key in steps[at]] for key in (TFLOPS, TOKENS, SAMPLES)}
    logged = {STEP_TIME: [times[at] for at in used if at in times], **logged}
    figures = {key: whole[key] for key in whole if key not in PEAKS}
    figures |= {key: float(np.median(values)) for key, values in logged.items() if values}
    for key in PEAKS:
        most = max([steps[at].get(key, 0.0) for at in numbers] + [whole.get(key, 0.0)])
        if most:
            figures[key] = most
    spread = next((float(np.std(np.log(logged[key]))) for key in (STEP_TIME, TOKENS, SAMPLES) if logged[key]), 0.0)
    rates = next((logged[key] for key in (TOKENS, SAMPLES) if logged[key]), [])
    series = logged[STEP_TIME] or [1.0 / rate for rate in rates]
    return LogRun(path, framework, (used[0], used[-1]), len(used), spread, figures, job, tuple(series))


def _step_times(steps: Mapping[int, Figures], numbers: list[int], used: int) -> dict[int, float]:
    """Seconds of the steps before every logged one: as logged, or from the time since the one logged before it.

    ``used`` is the first number after the warm-up.
    """
    told = {at: time_s for at in numbers if (time_s := _told_s(steps[at])) is not None}
    if told:
        return told
    began = _began(steps, numbers)
    clocks = [
        (at, clock)
        for at in numbers
        if at >= began and (clock := _clock_s(at - began if MEAN_TIME in steps[at] else at, steps[at])) is not None
    ]
    if all(clock == round(clock) for _, clock in clocks):
        return _of_whole_seconds(clocks, used)
    return {at: (now - then) / (at - before) for (before, then), (at, now) in pairwise(clocks) if now > then}


def _told_s(figures: Figures) -> float | None:
    """The time of a step that its figures say."""
    if STEP_TIME in figures:
        return figures[STEP_TIME]
    if RATE in figures:
        return 1 / figures[RATE]
    return figures[STEP_WORDS] / figures[WORDS] if {WORDS, STEP_WORDS} <= {*figures} else None


def _of_whole_seconds(clocks: list[tuple[int, float]], used: int) -> dict[int, float]:
    """Step times between clocks in whole seconds that lie far enough apart; of all steps, where the run is short."""
    result, (before, then) = {}, clocks[0] if clocks else (0, 0.0)
    for at, now in clocks:
        if now < then or at <= used:  # resumed, with a clock that began anew; or still warming up
            before, then = at, now
        elif now - then >= LEAST_SPAN_S:
            result[at] = (now - then) / (at - before)
            before, then = at, now
    if not result and clocks and (first := next(((at, s) for at, s in clocks if at >= used), None)):
        (at, now), (before, then) = clocks[-1], first
        result = {at: (now - then) / (at - before)} if now > then else {}
    return result


_CLOCKS = (
    re.compile(r"(?:(\d{1,9})d ?)?(?:(\d{1,9})h ?)?(?:(\d{1,9})m ?)?(?:(\d{1,9})s)?"),
    re.compile(r"(?:(\d{1,9}) days?, )?(\d{1,9}):(\d\d):(\d\d)"),
)


def read_clock(text: str) -> float:
    """Seconds of 1:02:03, of 1 day, 1:02:03 and of 1d 1h 2m 3s; 0 for other texts."""
    parts = next(filter(None, (clock.fullmatch(text) for clock in _CLOCKS)), None)
    days, hours, minutes, seconds = (int(each or 0) for each in parts.groups()) if parts else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _began(steps: Mapping[int, Figures], numbers: list[int]) -> int:
    """The step that a mean over a run's steps counts from: that at which the run was resumed, 0 for other runs.

    Where logs have a mean (ms-swift) they have the run's clock, in whole seconds: the one over the other are steps.
    """
    told = [(at, steps[at][MEAN_TIME], steps[at][CLOCK]) for at in numbers if {MEAN_TIME, CLOCK} <= {*steps[at]}]
    least = max((at - (clock + 1) / mean for at, mean, clock in told), default=0.0)
    return max(0, ceil(least))


def _clock_s(at: int, figures: Figures) -> float | None:
    """When a step ended, counted from any start that all steps share."""
    if MEAN_TIME in figures:
        return at * figures[MEAN_TIME]
    if MEAN_RATE in figures:
        return at / figures[MEAN_RATE]
    return figures.get(CLOCK)


def positive(figures: Figures) -> Iterator[tuple[str, float]]:
    """The figures that are finite and above 0: frameworks print 0, -1 or nan for what they do not know."""
    return ((key, value) for key, value in figures.items() if 0 < value < float("inf"))
