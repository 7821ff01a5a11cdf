"""The contents of a training log: step times, rates and memory, from the lines that frameworks print.

Line formats, from their sources: Megatron-LM ``training_log`` and ``report_memory`` (NVIDIA/Megatron-LM,
megatron/training/training.py, utils.py and arguments.py; Megatron-Bridge and Megatron-DeepSpeed print the same keys),
NeMo's progress logger (NVIDIA/NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py), torchtitan's metrics
(pytorch/torchtitan, torchtitan/components/metrics.py and train.py), DeepSpeed's ThroughputTimer and config
(deepspeedai/DeepSpeed, deepspeed/utils/timer.py and runtime/config.py), nanotron's train_step_logs and log_memory
(huggingface/nanotron, src/nanotron/trainer.py and logging/base.py), MaxText's metric_logger (AI-Hypercomputer/maxtext,
MaxText/metric_logger.py), dicts and bars of the Trainer (huggingface/transformers, trainer.py and trainer_callback.py,
with the memory that Axolotl and TRL add; ms-swift adds ``train_speed``), torchtune's DiskLogger and bars
(pytorch/torchtune, torchtune/training/metric_logging.py), Lightning's TQDMProgressBar, tqdm_loggable (Levanter),
Primus' training log (AMD-AGI/Primus: current and mean value in one, and the device's memory), NeMo Automodel's
log_train_metrics (NVIDIA-NeMo/Automodel, recipes/llm/train_ft.py), nanoGPT's train.py, LitGPT's lines of micro-batches
(Lightning-AI/litgpt, finetune and pretrain), the console of Composer (mosaicml/composer) and that of OLMo
(allenai/OLMo, olmo/train.py; its MB are 10**6 bytes) and of OLMo-core (train/callbacks/console_logger.py), nanochat's
base_train.py and chat_sft.py, modded-nanogpt's train_gpt.py, llm.c's train_gpt2.cu, lingua's train.py
(facebookresearch/lingua), Picotron's train.py (huggingface/picotron), train_inner of fairseq and metaseq, GPT-NeoX's
training_log (EleutherAI/gpt-neox, megatron/logging.py) and the console of verl's SFT.
"""

import bz2
import gzip
import lzma
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from simpar.diagnosis.bars import HINTS as BARS
from simpar.diagnosis.bars import LIGHTNING, LOGGABLE, OPENRLHF, TRAINER, TUNE, Bars, add_bar, longest
from simpar.diagnosis.log_formats import (
    BELOW,
    BLOCKS,
    DURATION,
    FORMATS,
    MICRO_BATCHES,
    NUMBER,
    UNREAD,
    LineFormat,
    line_pattern,
    telling_lines,
)
from simpar.diagnosis.log_run import (
    AGAIN,
    ALLOCATED,
    CLOCK,
    CUT,
    DEVICES,
    GLOBAL_BATCH,
    LEAST_RATE,
    OTHER_BATCHES,
    RAMPED,
    RATE,
    RESERVED,
    RESUMED,
    SAMPLES,
    SEQ_LEN,
    STEP_TIME,
    STEPS,
    USED,
    LoggedSteps,
    LogRun,
    make_run,
    read_clock,
)
from simpar.diagnosis.memory_samples import MONITORS, begins_samples, read_samples
from simpar.errors import UserError
from simpar.files import GZIP
from simpar.units import GIB, GIGA, KIB, KILO, MEGA, MIB, MS, PETA, TERA, number_of

MOST_LINE = 20_000
PACKED: Mapping[bytes, Callable[..., Any]] = {GZIP: gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""How a text begins that PowerShell wrote."""
_SCALE = {"": 1.0, "K": KILO, "M": MEGA, "B": GIGA, "G": GIGA, "T": TERA, "P": PETA, "E": KILO * PETA}
MOST_BEFORE = 1_000_000
"""Lines of a log before its first step: a file without one is refused within seconds, however long it is."""
_ENDLESS = re.compile(r"\d{300}")
"""More digits than any number of a log has, or floats can."""
_LAST_NUMBER = re.compile(r"[\d.,]+\s*$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\][^\x07]*\x07|#033\[[0-9;]*m")
"""What terminals are told; SageMaker writes the escape out."""


MEMORY = (
    line_pattern(
        "memory (MB)",
        rf"\bmemory \(MB\) \| allocated: {NUMBER} \| max allocated: (?P<allocated>{NUMBER})"
        rf"(?: \| reserved: {NUMBER} \| max reserved: (?P<reserved>{NUMBER}))?"
        rf"(?: \| total device memory used: (?P<used>{NUMBER}))?",
    ),
    line_pattern(
        "Memory usage",
        rf"Memory usage: {NUMBER}MiB\. Peak allocated:? (?P<allocated>{NUMBER})MiB\.? "
        rf"Peak reserved: (?P<reserved>{NUMBER})MiB",
    ),
)
"""Lines about one rank, by Megatron-LM and nanotron; their MB are 2**20 bytes."""
GIGABYTES = {
    ALLOCATED: line_pattern("memory (GB)", rf"memory \(GB\) \|.*\bmem-max-allocated-gigabytes: {NUMBER}"),
    RESERVED: line_pattern("memory (GB)", rf"memory \(GB\) \|.*\bmem-max-reserved-gigabytes: {NUMBER}"),
}
"""The line of Megatron-Bridge about one rank; its GB are 10**9 bytes."""
DEVICE_MEMORY = {
    ALLOCATED: line_pattern(
        "(GiB)|(gib)", rf"""memory/max_(?:mem_)?allocated ?\(gib\)['"]: ['"]?{NUMBER}""", re.IGNORECASE
    ),
    RESERVED: line_pattern(
        "(GiB)|(gib)",
        rf"""(?:memory/(?:max_)?device_(?:mem_)?reserved ?\(gib\)|['"]memory\(gib\))['"]?: ['"]?{NUMBER}""",
        re.IGNORECASE,
    ),
    USED: line_pattern(
        "usage_ratio", rf"\b(?:(?:hip|rocm) mem usage/free/total|rocm max mem usage)/usage_ratio:\s*{NUMBER}Gi?B/"
    ),
}
"""Values in GiB in lines of any kind: Axolotl's and TRL's, ms-swift's, and what Primus asks of the device.

Primus says several of them in a line: its own device's and, with ``rocm max``, the fullest device's.
"""

TIMERS, LITGPT = "DeepSpeed timers", "LitGPT"
_SUMMARY = {
    "train_runtime": line_pattern("train_runtime", rf"""['"]train_runtime['"]: ['"]?{NUMBER}"""),
    SAMPLES: line_pattern("train_samples_per_second", rf"""['"]train_samples_per_second['"]: ['"]?{NUMBER}"""),
    RATE: line_pattern("train_steps_per_second", rf"""['"]train_steps_per_second['"]: ['"]?{NUMBER}"""),
}
_TIMERS = line_pattern(
    "time (ms)",
    rf"time \(ms\)(?=.*\| (?:fwd|forward): {NUMBER})(?=.*\| (?:bwd|backward): {NUMBER})(?=.*\| step: {NUMBER})",
)
"""What wall_clock_breakdown of DeepSpeed prints once a step; lines with ``_microstep`` are of one micro-batch.

Timers had longer names before 0.10.
"""
_TABLE = {
    "train_runtime": line_pattern("train_runtime ", rf"^\s*train_runtime\s+= {DURATION}"),
    SAMPLES: line_pattern("train_samples_per_second ", rf"^\s*train_samples_per_second\s+=\s+{NUMBER}\s*$"),
    RATE: line_pattern("train_steps_per_second ", rf"^\s*train_steps_per_second\s+=\s+{NUMBER}\s*$"),
}
"""The same summary as a table, below "***** train metrics *****"."""
_RAMP_UP = line_pattern("[Rampup Batch Size Phase]", r"\[Rampup Batch Size Phase\], completed step: (\d+),")
"""MaxText's steps with a smaller batch."""

_UNTIMED = line_pattern("'learning_rate'", r"\{'loss': .*'learning_rate': .*'epoch': ")
"""What the Trainer prints of a step says its loss and no time."""

_END = r"(?=[\s,|]|$)"
JOB = (
    (GLOBAL_BATCH, line_pattern(
        "batch size|batch_size", rf"batch[ _]size(?<=\bglobal[ _]batch[ _]size)[:=]\s*(\d+){_END}"
    )),
    (GLOBAL_BATCH, line_pattern("batch_size ..", rf"\b(?:global|train)_batch_size \.{{2,}} (\d+){_END}")),
    (GLOBAL_BATCH, line_pattern(
        "Trainer is initialized", rf"Trainer is initialized with .*\bglobal batch size (\d+){_END}"
    )),
    (GLOBAL_BATCH, line_pattern(
        "Total train batch size",
        rf"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+){_END}",
    )),
    (SEQ_LEN, line_pattern("seq_length ..", rf"\bseq_length \.{{2,}} (\d+){_END}")),
    (SEQ_LEN, line_pattern(
        "Trainer is initialized", rf"Trainer is initialized with .*\bsequence length (\d+){_END}"
    )),
    (DEVICES, line_pattern("using world size", rf"\busing world size: (\d+){_END}")),
    (STEPS, line_pattern("Total optimization steps", rf"Total optimization steps = ([\d,]+){_END}")),
    (RESUMED, line_pattern("Continuing training from global step", rf"training from global step (\d+){_END}")),
)  # fmt: skip
"""Facts about the job: in step lines, in torchtitan's first lines, and in lists of arguments with values after dots.

Such lists are printed by Megatron-LM and DeepSpeed. nanotron rounds large batches (1.02K), which are not read.
"""
_PATTERNS = (
    *MEMORY, *DEVICE_MEMORY.values(), *GIGABYTES.values(), *_SUMMARY.values(), *_TABLE.values(), *UNREAD.values(),
    _TIMERS, _UNTIMED, _RAMP_UP, MICRO_BATCHES,
    *(pattern for _, pattern in JOB), *(entry.step for entry in (*FORMATS, *BLOCKS)),
)  # fmt: skip
HINTS = tuple(dict.fromkeys([*(hint for each in _PATTERNS for hint in each.hints), *BELOW, *BARS]))
"""One of these is in every line that is read: looking for them is faster than trying the patterns."""


def read_log(path: str | Path) -> LogRun:
    """The log of a run. Raises UserError if it has no line of a known framework."""
    if begins_samples(next(read_lines(path), "")) and (samples := _samples(path)) is not None:
        return samples
    values: dict[str, LoggedSteps] = defaultdict(LoggedSteps)
    bars = Bars()
    whole: dict[str, float] = {}
    job: dict[str, int] = {}
    batches: dict[int, int] = {}
    block, parts, unread, untimed, notes = None, _MicroBatches(), "", False, list[str]()
    for number, line in telling_lines(read_lines(path, notes), HINTS):
        if number >= MOST_BEFORE and not (values or bars):
            break
        if not line or _ENDLESS.search(line):
            continue
        if not line.endswith("\n") and (values or bars):
            line = _without_cut_number(line, notes)
        unread = unread or next((name for name, pattern in UNREAD.items() if pattern.search(line)), "")
        untimed = untimed or _UNTIMED.search(line) is not None
        if begun := next(((each, match) for each in BLOCKS if (match := each.step.search(line))), None):
            block = begun[0], _number_of_block(begun[1].groupdict())
        elif block and (figures := dict(_figures(block[0], line))):
            values[block[0].name].put(block[1], figures)
        for at, of_step in parts.add(line).items():
            values[LITGPT].put(at, of_step)
        for key, size in _peaks(line):
            whole[key] = max(whole.get(key, 0.0), size)
        whole |= dict(_summary(line))
        told = dict(_told(line))
        if STEPS in told and bars:  # the Trainer says it where it begins to train
            bars.clear()
            notes.append(AGAIN.format(1, "the steps of another run"))
        job |= told
        for entry in FORMATS:
            if step := entry.step.search(line):
                figures = dict(_figures(entry, line))
                if figures:
                    values[entry.name].put(int(step[1]), figures)
                    batches |= {int(step[1]): told[GLOBAL_BATCH]} if GLOBAL_BATCH in told else {}
                    batches |= {int(step[1]): RAMPED} if _RAMP_UP.search(line) else {}
                break
        else:
            if not add_bar(bars, line) and (timers := _TIMERS.search(line)):
                of = values[TIMERS]
                of.put(len(of) + 1, {STEP_TIME: sum(map(_value, timers.groups())) * MS})
    values = values or longest(bars, job.get(STEPS, 0), RESUMED in job, notes) or _ended(whole, job)
    summary = {key: whole[key] for key in (SAMPLES, ALLOCATED, RESERVED, USED) if whole.get(key)}
    if not values and (samples := _samples(path)) is not None:
        return samples
    if not values:
        raise _unknown(path, unread, untimed=untimed)
    name, steps = max(values.items(), key=lambda item: (item[0] != TIMERS, len(item[1])))
    notes = list(dict.fromkeys([*notes, *steps.notes()]))
    steps = _of_last_batch(steps, batches, notes)
    if SAMPLES in summary and name == TRAINER:
        summary[SAMPLES] *= _share_run(job)
    job = {key: job[key] for key in job if key not in (STEPS, RESUMED)}
    run = make_run(str(path), name, steps, summary, {})
    if batches.get(max(steps), RAMPED) != RAMPED:
        job |= {GLOBAL_BATCH: batches[max(steps)]}
    return replace(run, job=job, notes=tuple(notes))


def _unknown(path: str | Path, unread: str, *, untimed: bool) -> UserError:
    """The error for a log without a step: of a framework that is not read, without times, or of none that is known."""
    if unread:
        return UserError(f"{path}: a log of {unread}, whose steps are rollouts, rewards and updates: it is not read")
    if untimed:
        return UserError(
            f"{path}: records of {TRAINER} without a time: its progress bars, or the summary at its end, have it"
        )
    drawn = (TRAINER, LIGHTNING, LOGGABLE, TUNE, OPENRLHF, LITGPT, TIMERS)
    names = ", ".join(sorted({*drawn, *MONITORS, *(entry.name for entry in (*FORMATS, *BLOCKS))}))
    return UserError(f"{path}: has no line of a training step that is known; read are logs of {names}")


def _of_last_batch(steps: LoggedSteps, batches: Mapping[int, int], notes: list[str]) -> LoggedSteps:
    """The steps with as many samples as the last one: batches grow while a run warms up, and step times with them."""
    last = batches.get(max(steps))
    kept = LoggedSteps({at: steps[at] for at in steps if batches.get(at) == last})
    if left := len(steps) - len(kept):
        notes.append(OTHER_BATCHES.format(number_of(left, "logged step")))
    return kept


def _number_of_block(told: Mapping[str, str | None]) -> int:
    """The number of a step whose line says it, within an epoch or not."""
    return (int(told.get("epoch") or 1) - 1) * int(told.get("total") or 0) + int(told["at"] or 0)


def _summary(line: str) -> Iterator[tuple[str, float]]:
    """What the Trainer's summary says of the run, as it prints a dict or as a table."""
    for key, pattern in _SUMMARY.items():
        if match := pattern.search(line):
            yield key, _value(match[1])
    for key, pattern in _TABLE.items():
        if match := pattern.search(line):
            yield key, read_clock(match[1]) if key == "train_runtime" else _value(match[1])


def _samples(path: str | Path) -> LogRun | None:
    """The samples of memory in a file; None if it has none. Raises UserError."""
    notes: list[str] = []
    samples = read_samples(path, read_lines(path, notes), MOST_BEFORE)
    return None if samples is None else replace(samples, notes=(*samples.notes, *notes))


def _without_cut_number(line: str, notes: list[str]) -> str:
    """The last line of a file without the number at its end, of which digits may be missing."""
    cut = _LAST_NUMBER.search(line) if len(line) < MOST_LINE else None
    if cut is None:
        return line
    notes.append(CUT.format("a number"))
    return line[: cut.start()]


class _MicroBatches:
    """Sums the times of the micro-batches of a step, where each has its line; steps with missing lines are left out."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._sum_s = 0.0
        self._whole = False

    def add(self, line: str) -> dict[int, dict[str, float]]:
        """The step that a line ends, with its time; none for other lines."""
        match = MICRO_BATCHES.search(line)
        if match is None:
            return {}
        at = int(match["at"])
        self._whole = at == 1 or (self._whole and self._last == at - 1)
        self._last = at
        self._sum_s += _value(match["ms"]) * MS
        if not match["ends"]:
            return {}
        result = {int(match["step"]): {STEP_TIME: self._sum_s}} if self._whole else {}
        self._sum_s, self._whole = 0.0, True
        return result


def _peaks(line: str) -> Iterator[tuple[str, float]]:
    """Memory in a line, in bytes."""
    for memory in filter(None, (pattern.search(line) for pattern in MEMORY)):
        for key, name in ((ALLOCATED, "allocated"), (RESERVED, "reserved"), (USED, "used")):
            if memory.groupdict().get(name):
                yield key, _value(memory[name]) * MIB
    for unit, patterns in ((GIB, DEVICE_MEMORY), (GIGA, GIGABYTES)):
        for key, pattern in patterns.items():
            for match in pattern.find_all(line):
                yield key, _value(match[1]) * unit


def _ended(whole: Mapping[str, float], job: Mapping[str, int]) -> dict[str, LoggedSteps]:
    """The one step that stands for all, where only the summary at the end of the Trainer's run is there."""
    steps, share = job.get(STEPS), _share_run(job)
    if whole.get("train_runtime") and steps:
        return {TRAINER: LoggedSteps({steps: {STEP_TIME: whole["train_runtime"] / (steps * share)}})}
    rate = whole.get(RATE, 0.0)
    if rate < LEAST_RATE:  # a step time of no digits; samples per s have them
        return {TRAINER: LoggedSteps({1: {SAMPLES: whole[SAMPLES] * share}})} if whole.get(SAMPLES) else {}
    return {TRAINER: LoggedSteps({1: {RATE: rate * share}})}


def _share_run(job: Mapping[str, int]) -> float:
    """The part of the steps that was run here: the Trainer's summary counts those of before it was resumed, too."""
    steps, before = job.get(STEPS, 0), job.get(RESUMED, 0)
    return (steps - before) / steps if steps > before else 1.0


def _told(line: str) -> Iterator[tuple[str, int]]:
    """Facts about the job in a line."""
    for key, pattern in JOB:
        if match := pattern.search(line):
            yield key, int(match[1].replace(",", ""))


def read_lines(path: str | Path, notes: list[str] | None = None) -> Iterator[str]:
    """Lines of a plain or compressed text, without colour codes; very long ones are truncated. Raises UserError.

    A compressed text that ends early is refused, or ends with a note where ``notes`` is given and lines were read.
    """
    count = 0
    try:
        with Path(path).open("rb") as raw:
            magic = raw.read(KIB)
        packed = next((opened for start, opened in PACKED.items() if magic.startswith(start)), None)
        if packed is not None:
            with packed(path) as unpacked:
                magic = unpacked.read(len(UTF_16[0]))
        code = "utf-16" if magic.startswith(UTF_16) else "utf-8"
        with (packed or open)(path, "rt", encoding=code, errors="replace") as text:
            if code == "utf-8" and b"\0" in magic:
                raise UserError(f"{path}: is not text, and no file of records or traces that is known")
            whole = True
            while line := text.readline(MOST_LINE):
                count += whole
                if whole:
                    yield _COLOUR.sub("", line) if "\x1b" in line or "#033[" in line else line
                whole = line.endswith("\n")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, EOFError) and count and notes is not None:
            notes.append(CUT.format("its last compressed block"))
            return
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _figures(entry: LineFormat, line: str) -> Iterator[tuple[str, float]]:
    for key, (pattern, unit) in entry.figures.items():
        if match := pattern.search(line):
            if key == CLOCK:
                value = read_clock(match[1])
            elif match[1] in ("m", ""):  # (ms) or (s) before the number
                value = _value(match[2]) * (MS if match[1] else 1.0)
            else:
                value = _value(match[1]) * (_SCALE[match[2]] if match.re.groups > 1 else 1.0) * unit
            if value > 0:
                yield key, value


def _value(text: str) -> float:
    """A number as logs print it: 1,234.5; 0 if it is none, or more than floats hold."""
    try:
        value = float(text.rstrip(".,").replace(",", ""))
        return value if isfinite(value) else 0.0
    except ValueError:
        return 0.0
