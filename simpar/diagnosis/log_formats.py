"""The lines that frameworks print once a step, as patterns; their sources stand in :mod:`simpar.diagnosis.logs`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from simpar.dataclass import dataclass
from simpar.units import GIB, GIGA, MS, TERA

NUMBER = r"([\d.,]+(?:[eE][+-]?\d+)?)"
SCALED = r"([\d.,]+)\s*([KMBGT]?)"
DURATION = r"((?:\d+[dhms] ?)+|(?:\d+ days?, )?\d+:\d\d:\d\d)"
"""A time as 1h 2m 3s, or as Python prints it."""


BATCH = 200
"""Lines that are looked through at once."""


@dataclass(frozen=True)
class LinePattern:
    """A pattern with texts of which every line that it matches has one: looking for them first is much faster."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]

    def search(self, line: str) -> re.Match[str] | None:
        """The first match in a line."""
        for hint in self.hints:
            if hint in line:
                return self.pattern.search(line)
        return None

    def find_all(self, line: str) -> Iterator[re.Match[str]]:
        """All matches in a line."""
        return self.pattern.finditer(line) if any(hint in line for hint in self.hints) else iter(())


def line_pattern(hint: str, pattern: str, flags: int = 0) -> LinePattern:
    """A pattern by its text; ``hint`` has several texts between bars."""
    return LinePattern(tuple(hint.split("|")), re.compile(pattern, flags))


def telling_lines(lines: Iterator[str], hints: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Lines that have one of some texts, with their numbers from 0; an empty line ends each batch of lines.

    Most lines of a log have none: many at once are passed over, and in others only the texts that are there are sought.
    """
    number = 0
    while batch := list(islice(lines, BATCH)):
        text = "".join(batch)
        here = [hint for hint in hints if hint in text]
        for at, line in enumerate(batch, start=number) if here else ():
            for hint in here:  # quicker than any()
                if hint in line:
                    yield at, line
                    break
        number += len(batch)
        yield number, ""


@dataclass(frozen=True)
class LineFormat:
    """Lines of one framework: the pattern of a step, and its figures with the SI value of their unit."""

    name: str
    step: LinePattern
    figures: Mapping[str, tuple[re.Pattern[str], float]]


def _format(name: str, hint: str, step: str, **figures: tuple[str, float]) -> LineFormat:
    result = {key: (re.compile(pattern), unit) for key, (pattern, unit) in figures.items()}
    return LineFormat(name, line_pattern(hint, step), result)


FORMATS = (
    _format(
        "NeMo", "train_step_timing in s", r"global_step[=:]\s*(\d+)(?:\.\d+)?.*train_step_timing in s[=:]",
        step_time_s=(rf"train_step_timing in s[=:]\s*{NUMBER}", 1.0),
        tflops=(rf"(?:TFLOPS_per_GPU|tflops_per_sec_per_gpu)[=:]\s*{NUMBER}", 1.0),
    ),
    _format(
        "GPT-NeoX", "approx flops per GPU:", r"\biteration\s+(\d+)\s*/\s*\d+\s*\|.*\bapprox flops per GPU:",
        step_time_s=(rf"elapsed time per iteration \((m?)s\):\s*{NUMBER}", 1.0),
        tflops=(rf"approx flops per GPU:\s*{NUMBER}([KMGTPE]?)FLOPS", 1 / TERA),
        samples_per_s=(rf"\bsamples/sec:\s*{NUMBER}", 1.0),
    ),
    _format(
        "Megatron", "iteration", r"\biteration\s+(\d+)\s*/\s*\d+\s*\|",
        step_time_s=(rf"(?:elapsed time per iteration|iteration) \((m?)s\):\s*{NUMBER}", 1.0),
        tflops=(rf"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*{NUMBER}", 1.0),
        tokens_per_s_per_device=(
            rf"(?:tokens per gpu per second \(tgs\)|tokens per GPU \(tokens/s/GPU\)|inst/harmonic mean):\s*{NUMBER}",
            1.0,
        ),
        samples_per_s=(rf"(?:samples per second:|\bsamples/sec:)\s*{NUMBER}", 1.0),
        reserved_bytes=(rf"\bmemory usage/free/total:\s*{NUMBER}GiB/", GIB),
    ),
    _format(
        "nanotron", "iteration:", r"\biteration:\s*(\d+)\s*/",
        step_time_s=(rf"(?:elapsed_)?time_per_iteration_ms:\s*{SCALED}", MS),
        tflops=(rf"model_tflops_per_gpu:\s*{SCALED}", 1.0),
        tokens_per_s_per_device=(rf"tokens_per_sec_per_gpu:\s*{SCALED}", 1.0),
        reserved_bytes=(rf"cuda_max_memory_reserved:\s*{SCALED}", 1.0),
    ),
    _format(
        "torchtitan", "tps:|wps:", r"(?<!\bvalidate )\bstep:\s*(\d+)\s+loss:.*\b(?:tps|wps):",
        tokens_per_s_per_device=(rf"\b(?:tps|wps):\s*{NUMBER}", 1.0),
        tflops=(rf"\btflops:\s*{NUMBER}", 1.0),
        reserved_bytes=(rf"memory:\s*{NUMBER}GiB", GIB),
    ),
    _format(
        "lingua", "wps:", r"\bstep: (\d+)\s+acc: .*\bwps: ",
        tokens_per_s_per_device=(rf"\bwps: {NUMBER}", 1.0),
        tflops=(rf"\bflops: {NUMBER}", 1 / TERA),
    ),
    _format(
        "Picotron", "Tokens/s/GPU:", r"\bStep: (\d+)\s*[|,] Loss: .*\bTokens/s/GPU:",
        tokens_per_s_per_device=(rf"\bTokens/s/GPU:\s*{SCALED}", 1.0),
        reserved_bytes=(rf"\bMemory usage:\s*{NUMBER}GB", GIGA),
    ),
    _format(
        "fairseq", "train_inner", r"""\btrain_inner \|.*\bnum_updates["']?[=:] ?["']?(\d+)""",
        words_per_s=(rf"""\bwps["']?[=:] ?["']?{NUMBER}""", 1.0),
        words_per_step=(rf"""\bwpb["']?[=:] ?["']?{NUMBER}""", 1.0),
        allocated_bytes=(rf"""\bcuda_gb_allocated["']?[=:] ?["']?{NUMBER}""", GIB),
        reserved_bytes=(rf"""\bcuda_gb_reserved["']?[=:] ?["']?{NUMBER}""", GIB),
    ),
    _format(
        "verl SFT", "train/time(s):", r"\bstep:(\d+) - train/loss:.*\btrain/time\(s\):",
        step_time_s=(rf"\btrain/time\(s\):{NUMBER}", 1.0),
    ),
    _format(
        "DeepSpeed", "SamplesPerSec=", r"(?:global_step=| \d+/)(\d+), (?:RunningAvg)?SamplesPerSec=",
        samples_per_s=(rf"(?:CurrSamplesPerSec|\d, SamplesPerSec)={NUMBER}", 1.0),
        allocated_bytes=(rf"MaxMemAllocated={NUMBER}GB", GIB),
    ),
    _format(
        "DeepSpeed pipeline", "iter time (s):", r"\bsteps: (\d+) loss: .*\biter time \(s\):",
        step_time_s=(rf"iter time \(s\): {NUMBER}", 1.0),
        samples_per_s=(rf"samples/sec: {NUMBER}", 1.0),
    ),
    _format(
        "MaxText", "completed step:", r"\bcompleted step: (\d+), seconds:",
        step_time_s=(rf"\bseconds: {NUMBER}", 1.0),
        tflops=(rf"TFLOP/s/device: {NUMBER}", 1.0),
        tokens_per_s_per_device=(rf"Tokens/s/device: {NUMBER}", 1.0),
    ),
    _format(
        "torchtune", "tokens_per_second_per_gpu:", r"\bStep (\d+) \| .*\btokens_per_second_per_gpu:",
        tokens_per_s_per_device=(rf"tokens_per_second_per_gpu:{NUMBER}", 1.0),
        allocated_bytes=(rf"peak_memory_alloc:{NUMBER}", GIB),
        reserved_bytes=(rf"peak_memory_reserved:{NUMBER}", GIB),
    ),
    _format(
        "NeMo Automodel", "epoch ", r"\bstep (\d+) \| epoch \d+ \| .*\btps ",
        tokens_per_s_per_device=(rf"\btps [\d.]+\({NUMBER}/gpu\)", 1.0),
        allocated_bytes=(rf"\bmem {NUMBER} GiB", GIB),
    ),
    _format(
        "Nanochat", " dt: ", r"\bstep (\d+)(?:/\d+)? \([\d.]+%\) \| loss: .*\| dt: ",
        step_time_s=(rf"\| dt: {NUMBER}ms", MS),
    ),
    _format(
        "modded-nanogpt", "step_avg:", r"\bstep:(\d+)/\d+ .*\btrain_time:\S+ step_avg:",
        mean_step_time_s=(rf"\bstep_avg:{NUMBER}ms", MS),
    ),
    _format(
        "llm.c", "tok/s", r"\bstep\s+(\d+)/\d+ \| .*loss .*\| [\d.]+ ms \| .*tok/s",
        step_time_s=(rf"\| {NUMBER} ms \|", MS),
    ),
    _format("nanoGPT", "loss ", r"\biter (\d+): loss \S+, time ", step_time_s=(rf"\btime {NUMBER}ms", MS)),
    _format(
        "ms-swift", "global_step/max_steps|'iteration': '|train_speed",
        r"""(?:(?:global_step/max_steps\]?|iteration)['"]: ['"](?=\d+/\d)|train_speed\(.*['"]global_step['"]: )(\d+)""",
        mean_steps_per_s=(rf"""train_speed\(iter/s\)['"]: ['"]?{NUMBER}""", 1.0),
        mean_step_time_s=(rf"""train_speed\(s/it\)['"]: ['"]?{NUMBER}""", 1.0),
        clock_s=(rf"""elapsed_time['"]: ['"]{DURATION}['"]""", 1.0),
    ),
)  # fmt: skip
"""The formats in the order in which they are tried.

torchtitan's memory is the reserved peak of one device; its tokens are those of a data-parallel rank divided by the
ranks that share it, so they are per device. DeepSpeed's GB are 2**30 bytes. What ms-swift calls speed, and
modded-nanogpt step_avg, is the mean since the run began.
"""
BLOCKS = (
    _format(
        "Composer", "[batch=|[token=|[sample=|[iteration=",
        r"(?:\[epoch=(?P<epoch>\d+)\])?\[(?:batch|token|sample|iteration)=(?P<at>\d+)(?:/(?P<total>\d+))?\]:",
        steps_per_s=(rf"\bthroughput/batches_per_sec: {NUMBER}", 1.0),
        samples_per_s=(rf"\bthroughput/samples_per_sec: {NUMBER}", 1.0),
        tokens_per_s_per_device=(rf"\bthroughput/device/tokens_per_sec: {NUMBER}", 1.0),
        allocated_bytes=(rf"\bmemory/peak_allocated_mem: {NUMBER}", GIGA),
        reserved_bytes=(rf"\bmemory/peak_reserved_mem: {NUMBER}", GIGA),
    ),
    _format(
        "OLMo", "[step=", r"\[step=(?P<at>\d+)(?:/[\d?]+)?(?:,epoch=[^\]]+)?\]",
        steps_per_s=(rf"\bthroughput/device/(?:batches_per_second|BPS)={NUMBER}", 1.0),
        tokens_per_s_per_device=(rf"\bthroughput/device/(?:tokens_per_second|TPS)={NUMBER}", 1.0),
        tflops=(rf"\bthroughput/device/flopsPS={NUMBER}", 1e-12),
        allocated_bytes=(rf"\bSystem/Peak GPU Memory \(MB\)={NUMBER}", GIGA / 1000),
        reserved_bytes=(rf"\bgpu_memory/GPU reserved mem \(GiB\)={NUMBER}", GIB),
    ),
)  # fmt: skip
"""Formats whose figures stand in lines of their own below the line of the step.

A step of Composer is numbered by batches, of its epoch or of all, or by tokens or samples.
"""
BELOW = ("throughput/", "memory/peak_", "Peak GPU Memory", "GPU reserved mem")
"""What is in the lines of those figures."""
MICRO_BATCHES = line_pattern(
    "iter time:",
    rf"\biter (?P<at>\d+)(?: \|)? step (?P<step>\d+)\b.*\biter time: (?P<ms>{NUMBER}) ?ms"
    r"(?P<ends> ?\((?:optimizer\.)?step\))?",
)
"""LitGPT's line of a micro-batch; the last one of a step ends with what it did."""
UNREAD = {
    "verl": line_pattern("timing_s/", r"\bstep:\d+ - .*\btiming_s/"),
    "slime": line_pattern("perf/", r"\bperf \d+: \{.*'perf/\w+_time'"),
    "NeMo-RL": line_pattern("policy_training", r"\bpolicy_training: [\d.]+s"),
    "OpenRLHF": line_pattern("'timing/", r"\bGlobal step \d+: \{.*'timing/"),
}
"""Logs that are known by a line and not read: their steps are rollouts, rewards and updates."""
