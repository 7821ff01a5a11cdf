"""The contents of a training log: step times, rates and memory, from the lines that frameworks print.

Line formats, from their sources: Megatron-LM ``training_log`` and ``report_memory`` (NVIDIA/Megatron-LM,
megatron/training/training.py, utils.py and arguments.py; Megatron-Bridge and Megatron-DeepSpeed print the same keys),
NeMo's progress logger (NVIDIA/NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py), torchtitan's metrics
(pytorch/torchtitan, torchtitan/components/metrics.py and train.py), DeepSpeed's ThroughputTimer and config
(deepspeedai/DeepSpeed, deepspeed/utils/timer.py and runtime/config.py), nanotron's train_step_logs and log_memory
(huggingface/nanotron, src/nanotron/trainer.py and logging/base.py).
"""

import gzip
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low

import numpy as np

from simpar.errors import UserError
from simpar.units import GIB, MIB, MS

MOST_LINE = 20_000
WARM_UP = 0.1
"""The share of logged steps that is skipped at the beginning, at least one: caches fill, kernels are tuned."""
_NUMBER = r"([\d.,]+(?:[eE][+-]?\d+)?)"
_SCALED = r"([\d.,]+)\s*([KMBGT]?)"
_SCALE = {"": 1.0, "K": 10.0**3, "M": 10.0**6, "B": 10.0**9, "G": 10.0**9, "T": 10.0**12}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STEP_TIME, TFLOPS, TOKENS, SAMPLES, ALLOCATED, RESERVED = (
    "step_time_s", "tflops", "tokens_per_s_per_device", "samples_per_s", "allocated_bytes", "reserved_bytes"
)  # fmt: skip

GLOBAL_BATCH, SEQ_LEN, DEVICES = "global_batch", "seq_len", "devices"


@dataclass(frozen=True)
class _Format:
    """Lines of one framework: the pattern of a step, and its figures with the SI value of their unit."""

    name: str
    step: re.Pattern[str]
    figures: Mapping[str, tuple[re.Pattern[str], float]]


def _format(name: str, step: str, **figures: tuple[str, float]) -> _Format:
    result = {key: (re.compile(pattern), unit) for key, (pattern, unit) in figures.items()}
    return _Format(name, re.compile(step), result)


FORMATS = (
    _format(
        "NeMo", r"global_step[=:]\s*(\d+)(?:\.\d+)?.*train_step_timing in s[=:]",
        step_time_s=(rf"train_step_timing in s[=:]\s*{_NUMBER}", 1.0),
        tflops=(rf"(?:TFLOPS_per_GPU|tflops_per_sec_per_gpu)[=:]\s*{_NUMBER}", 1.0),
    ),
    _format(
        "Megatron", r"\biteration\s+(\d+)\s*/\s*\d+\s*\|",
        step_time_s=(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}", MS),
        tflops=(rf"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*{_NUMBER}", 1.0),
        tokens_per_s_per_device=(rf"tokens per gpu per second \(tgs\):\s*{_NUMBER}", 1.0),
    ),
    _format(
        "nanotron", r"\biteration:\s*(\d+)\s*/",
        step_time_s=(rf"(?:elapsed_)?time_per_iteration_ms:\s*{_SCALED}", MS),
        tflops=(rf"model_tflops_per_gpu:\s*{_SCALED}", 1.0),
        tokens_per_s_per_device=(rf"tokens_per_sec_per_gpu:\s*{_SCALED}", 1.0),
        reserved_bytes=(rf"cuda_max_memory_reserved:\s*{_SCALED}", 1.0),
    ),
    _format(
        "torchtitan", r"\bstep:\s*(\d+)\s+loss:.*\btps:",
        tokens_per_s_per_device=(rf"\btps:\s*{_NUMBER}", 1.0),
        tflops=(rf"\btflops:\s*{_NUMBER}", 1.0),
        reserved_bytes=(rf"memory:\s*{_NUMBER}GiB", GIB),
    ),
    _format(
        "DeepSpeed", r"global_step=(\d+),.*CurrSamplesPerSec",
        samples_per_s=(rf"CurrSamplesPerSec={_NUMBER}", 1.0),
        allocated_bytes=(rf"MaxMemAllocated={_NUMBER}GB", GIB),
    ),
)  # fmt: skip
"""The formats in the order in which they are tried.

torchtitan's memory is the reserved peak of one device; its tokens are those of a data-parallel rank divided by the
ranks that share it, so they are per device. DeepSpeed's GB are 2**30 bytes.
"""
MEMORY = (
    re.compile(
        rf"\bmemory \(MB\) \| allocated: {_NUMBER} \| max allocated: (?P<allocated>{_NUMBER})"
        rf"(?: \| reserved: {_NUMBER} \| max reserved: (?P<reserved>{_NUMBER}))?"
    ),
    re.compile(
        rf"Memory usage: {_NUMBER}MiB\. Peak allocated:? (?P<allocated>{_NUMBER})MiB\.? "
        rf"Peak reserved: (?P<reserved>{_NUMBER})MiB"
    ),
)
"""Lines about one rank, by Megatron-LM and nanotron; their MB are 2**20 bytes."""

_END = r"(?=[\s,|]|$)"
JOB = {
    GLOBAL_BATCH: re.compile(
        rf"\bglobal[ _]batch[ _]size[:=]\s*(\d+){_END}|\b(?:global|train)_batch_size \.{{2,}} (\d+){_END}|"
        rf"Trainer is initialized with .*\bglobal batch size (\d+){_END}"
    ),
    SEQ_LEN: re.compile(
        rf"\bseq_length \.{{2,}} (\d+){_END}|Trainer is initialized with .*\bsequence length (\d+){_END}"
    ),
    DEVICES: re.compile(rf"\busing world size: (\d+){_END}"),
}
"""Facts about the job: in step lines, in torchtitan's first lines, and in lists of arguments with values after dots.

Such lists are printed by Megatron-LM and DeepSpeed. nanotron rounds large batches (1.02K), which are not read.
"""


@dataclass(frozen=True)
class LogRun:
    """Figures of a log: medians over its steps after the warm-up, in SI units; None if it has none.

    ``spread`` is the standard deviation of the logarithm of the step time, or of its rate. ``steps`` are the first and
    last step used. ``job`` has whole numbers about the job, by the keys of ``JOB``.
    """

    path: str
    framework: str
    steps: tuple[int, int]
    count: int
    spread: float
    figures: Mapping[str, float]
    job: Mapping[str, int] = field(default_factory=dict)

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


def read_log(path: str | Path) -> LogRun:
    """The log of a run. Raises UserError if it has no line of a known framework."""
    values: dict[str, dict[int, dict[str, float]]] = {}
    peaks: dict[str, float] = {}
    job: dict[str, int] = {}
    batches: dict[int, int] = {}
    for line in _lines(path):
        for memory in filter(None, (pattern.search(line) for pattern in MEMORY)):
            for key, name in ((ALLOCATED, "allocated"), (RESERVED, "reserved")):
                if memory[name]:
                    peaks[key] = max(peaks.get(key, 0.0), _value(memory[name]) * MIB)
        told = dict(_told(line))
        job |= told
        for entry in FORMATS:
            if step := entry.step.search(line):
                figures = dict(_figures(entry, line))
                if figures:
                    values.setdefault(entry.name, {})[int(step[1])] = figures
                    batches |= {int(step[1]): told[GLOBAL_BATCH]} if GLOBAL_BATCH in told else {}
                break
    if not values:
        names = ", ".join(sorted(entry.name for entry in FORMATS))
        raise UserError(f"{path}: has no line of a training step that is known; read are logs of {names}")
    name, steps = max(values.items(), key=lambda item: len(item[1]))
    run = _run(str(path), name, steps, peaks)
    of_steps = [batches[at] for at in steps if at in batches and run.steps[0] <= at <= run.steps[1]]
    return replace(run, job=job | ({GLOBAL_BATCH: median_low(of_steps)} if of_steps else {}))


def _told(line: str) -> Iterator[tuple[str, int]]:
    """Facts about the job in a line."""
    for key, pattern in JOB.items():
        if match := pattern.search(line):
            yield key, int(next(filter(None, match.groups())))


def _lines(path: str | Path) -> Iterator[str]:
    """Lines of a plain or compressed text, without colour codes; very long ones are truncated."""
    try:
        with Path(path).open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", errors="replace") if packed else Path(path).open(errors="replace") as text:
            while line := text.readline(MOST_LINE):
                yield _COLOUR.sub("", line)
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _figures(entry: _Format, line: str) -> Iterator[tuple[str, float]]:
    for key, (pattern, unit) in entry.figures.items():
        if match := pattern.search(line):
            scale = _SCALE[match[2]] if match.re.groups > 1 else 1.0
            value = _value(match[1]) * scale * unit
            if value > 0:
                yield key, value


def _value(text: str) -> float:
    """A number as logs print it: 1,234.5; 0 if it is none."""
    try:
        return float(text.rstrip(".,").replace(",", ""))
    except ValueError:
        return 0.0


def _run(path: str, framework: str, steps: Mapping[int, Mapping[str, float]], peaks: Mapping[str, float]) -> LogRun:
    numbers = sorted(steps)
    used = numbers[max(1, round(WARM_UP * len(numbers))) :] or numbers
    figures: dict[str, float] = {}
    for key in (STEP_TIME, TFLOPS, TOKENS, SAMPLES):
        values = [steps[at][key] for at in used if key in steps[at]]
        if values:
            figures[key] = float(np.median(values))
    for key in (ALLOCATED, RESERVED):
        most = max([steps[at].get(key, 0.0) for at in numbers] + [peaks.get(key, 0.0)])
        if most:
            figures[key] = most
    rate = next((key for key in (STEP_TIME, TOKENS, SAMPLES) if key in figures), None)
    logs = np.log([steps[at][rate] for at in used if rate in steps[at]]) if rate else np.zeros(1)
    return LogRun(path, framework, (used[0], used[-1]), len(used), float(np.std(logs)), figures)
