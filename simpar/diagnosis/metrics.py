"""Training logs as records of named numbers: JSON lines, the Trainer's state, TensorBoard's and W&B's files.

Names of metrics, from their sources: Megatron-LM training_log (megatron/training/training.py), NeMo's timing and FLOP
callbacks, torchtitan's MetricsProcessor (torchtitan/components/metrics.py), torchtune's recipes, MaxText's
metric_logger, nanotron's train_step_logs, Composer's SpeedMonitor and MemoryMonitor (composer/callbacks), the Trainer
of transformers, ms-swift and Axolotl. Formats: TFRecord and tensorflow/core/util/event.proto, and wandb's datastore.py
(blocks of LevelDB's log format) with wandb_internal.proto. Lightning's CSVLogger writes what its ThroughputMonitor
logs; W&B's page exports tables of the same names.
"""

import csv
import gzip
import json
import re
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from simpar.chakra.wire import WireError, fields
from simpar.diagnosis.bars import BATCHES, LIGHTNING, TRAINER
from simpar.diagnosis.log_run import (
    ALLOCATED,
    CLOCK,
    CUT,
    MEAN_RATE,
    MEAN_TIME,
    RATE,
    RESERVED,
    SAMPLES,
    STEP_TIME,
    TFLOPS,
    TOKENS,
    USED,
    WORDS,
    LoggedSteps,
    LogRun,
    make_run,
    positive,
    read_clock,
)
from simpar.diagnosis.run_report import OWN, ROWS
from simpar.errors import UserError
from simpar.files import GZIP, read_json
from simpar.units import GIB, GIGA, KIB, MIB, MS, TERA

MOST_BYTES = 512 * MIB
MOST_RECORD = 64 * MIB
MOST_TITLES = 20_000
WANDB_START, EVENTS_START = b":W&B", b"brain.Event:"
BLOCK, BLOCK_HEADER = 32 * KIB, 7
NAMES: Mapping[str, tuple[str, str, float]] = {
    "step_time_s": (OWN, STEP_TIME, 1.0),
    "iteration-time": ("Megatron", STEP_TIME, 1.0),
    "mem-reserved-bytes": ("Megatron", RESERVED, 1.0),
    "mem-max-allocated-bytes": ("Megatron", ALLOCATED, 1.0),
    "train_step_timing in s": ("NeMo", STEP_TIME, 1.0),
    "TFLOPS_per_GPU": ("NeMo", TFLOPS, 1.0),
    "tflops_per_sec_per_gpu": ("NeMo", TFLOPS, 1.0),
    "throughput(tps)": ("torchtitan", TOKENS, 1.0),
    "tflops": ("torchtitan", TFLOPS, 1.0),
    "time_metrics/end_to_end(s)": ("torchtitan", STEP_TIME, 1.0),
    "memory/max_reserved(GiB)": ("torchtitan", RESERVED, GIB),
    "tps_per_gpu": ("NeMo Automodel", TOKENS, 1.0),
    "tokens_per_second_per_gpu": ("torchtune", TOKENS, 1.0),
    "peak_memory_alloc": ("torchtune", ALLOCATED, GIB),
    "peak_memory_reserved": ("torchtune", RESERVED, GIB),
    "perf/step_time_seconds": ("MaxText", STEP_TIME, 1.0),
    "perf/per_device_tflops_per_sec": ("MaxText", TFLOPS, 1.0),
    "perf/per_device_tokens_per_sec": ("MaxText", TOKENS, 1.0),
    "time_per_iteration_ms": ("nanotron", STEP_TIME, MS),
    "elapsed_time_per_iteration_ms": ("nanotron", STEP_TIME, MS),
    "tokens_per_sec_per_gpu": ("nanotron", TOKENS, 1.0),
    "model_tflops_per_gpu": ("nanotron", TFLOPS, 1.0),
    "cuda_max_memory_reserved": ("nanotron", RESERVED, 1.0),
    "throughput/batches_per_sec": ("Composer", RATE, 1.0),
    "throughput/samples_per_sec": ("Composer", SAMPLES, 1.0),
    "throughput/device/tokens_per_sec": ("Composer", TOKENS, 1.0),
    "throughput/device/flops_per_sec": ("Composer", TFLOPS, 1 / TERA),
    "throughput/tflops/device": ("Megatron", TFLOPS, 1.0),
    "memory/mem-max-allocated-gigabytes": ("Megatron", ALLOCATED, GIGA),
    "memory/mem-max-reserved-gigabytes": ("Megatron", RESERVED, GIGA),
    "runtime/iteration_time": ("GPT-NeoX", STEP_TIME, 1.0),
    "runtime/samples_per_sec": ("GPT-NeoX", SAMPLES, 1.0),
    "runtime/flops_per_sec_per_gpu": ("GPT-NeoX", TFLOPS, 1 / TERA),
    "memory/peak_allocated_mem": ("Composer", ALLOCATED, GIGA),
    "memory/peak_reserved_mem": ("Composer", RESERVED, GIGA),
    "device/batches_per_sec": (LIGHTNING, RATE, 1.0),
    "device/flops_per_sec": (LIGHTNING, TFLOPS, 1 / TERA),
    "throughput/duration": ("Levanter", STEP_TIME, 1.0),
    "throughput/examples_per_second": ("Levanter", SAMPLES, 1.0),
    "speed/wps": ("lingua", TOKENS, 1.0),
    "speed/FLOPS": ("lingua", TFLOPS, 1 / TERA),
    "memory/max_reserved_gib": ("lingua", RESERVED, GIB),
    "throughput/device/TPS": ("OLMo", TOKENS, 1.0),
    "throughput/device/tokens_per_second": ("OLMo", TOKENS, 1.0),
    "throughput/device/BPS": ("OLMo", RATE, 1.0),
    "throughput/device/batches_per_second": ("OLMo", RATE, 1.0),
    "gpu_memory/GPU reserved mem (GiB)": ("OLMo", RESERVED, GIB),
    "System/Peak GPU Memory (MB)": ("OLMo", ALLOCATED, GIGA / 1000),
    "train/dt": ("Nanochat", STEP_TIME, 1.0),
    "train/time(s)": ("verl SFT", STEP_TIME, 1.0),
    "vram_allocated": ("LLaMA-Factory", ALLOCATED, GIB),
    "vram_reserved": ("LLaMA-Factory", RESERVED, GIB),
    "train_speed(iter/s)": ("ms-swift", MEAN_RATE, 1.0),
    "train_speed(s/it)": ("ms-swift", MEAN_TIME, 1.0),
    "memory(GiB)": ("ms-swift", RESERVED, GIB),
    "memory/max_mem_allocated(gib)": (TRAINER, ALLOCATED, GIB),
    "memory/device_mem_reserved(gib)": (TRAINER, RESERVED, GIB),
    "memory/max_allocated (GiB)": (TRAINER, ALLOCATED, GIB),
    "memory/device_reserved (GiB)": (TRAINER, RESERVED, GIB),
}
"""Framework, figure and the SI value of the unit of a metric, by its name without "train/"."""
THROUGHPUT = "throughput"
BESIDE_THROUGHPUT = {"iteration-time", "lm loss", "learning-rate", "batch-size", "mem-reserved-bytes", "loss-scale"}
"""Names that Megatron-LM logs beside its throughput, in TFLOP/s; others' (LLaMA-Factory's) has another unit."""
OF_RUN = {"train_runtime": "runtime", "train_samples_per_second": SAMPLES, "train_steps_per_second": RATE}
"""What the Trainer logs once, at its end."""
OF_DEVICE = re.compile(r"(?:system\.)?gpu\.\d+\.memoryAllocatedBytes")
"""W&B's sample of a device's memory, as the driver shows it."""
BY_SAMPLES = (" vs samples", "_vs_samples")
"""How Megatron-LM calls what it logs once more, by the number of sequences; some writers put no blanks in names."""
STEP_NAMES = (
    "train/global_step", "trainer/global_step", "global_step", "step", "current_steps", "global_step/max_steps",
    "steps[global_step/max_steps]", "iteration", "_step", "Step",
)  # fmt: skip
CLOCKS = ("_timestamp", "_runtime", "elapsed_time")
BY_NUMBERS = (
    "No step time is logged: it is the time between records over the difference of their numbers, as if of steps."
)
COUNTS_RECORDS = "_step"
BY_RECORDS = (
    "No step time and no step is logged: every record is taken for one step, which is right where every step is logged."
)
"""W&B's number of a record says no more."""
DEEPSPEED, OF_SAMPLES = "DeepSpeed", "Train/Samples/"
"""How the names of what DeepSpeed's monitor logs begin: its steps are samples."""
TIMERS_MS = tuple(f"{OF_SAMPLES}elapsed_time_ms_{part}" for part in ("forward", "backward", "step"))
EVENTS = "*tfevents*"
OF_FOLDER = "{} files of events are read as one run, in the order of their names, as TensorBoard reads a folder."
FOLDER_LOGS = (
    "files/wandb-history.jsonl", "wandb-history.jsonl", "*.wandb", "logging.jsonl", "trainer_log.jsonl",
    "trainer_state.json", EVENTS, "metrics.csv", "files/output.log", "output.log", "files/wandb-summary.json",
    "wandb-summary.json", ROWS,
)  # fmt: skip
"""What a folder of a run may hold, the most telling file first."""

Record = tuple[int | None, Mapping[str, Any]]


def is_metrics(head: bytes, text: str) -> bool:
    """Whether the beginning of a file is one of records; ``text`` is the same, decoded and unpacked."""
    if head.startswith(WANDB_START) or EVENTS_START in head[:100]:
        return True
    if not text.startswith("{"):
        return _has_columns(text)
    if '"traceEvents"' in text:
        return False
    if re.search(r'"(?:log_history|train_runtime)"\s*:', text):
        return True
    return _is_record(text.partition("\n")[0])  # else more than a line is one record: a profiler trace


def _is_record(line: str) -> bool:
    """Whether a line is a whole record."""
    try:
        return isinstance(record := json.loads(line), dict) and bool(record)
    except (ValueError, RecursionError):
        return False


def read_metrics(path: str | Path) -> LogRun:
    """The run of a file of records, or of the event files in a folder.

    Raises UserError for a damaged file and for one without known metrics.
    """
    notes: list[str] = []
    source, records = _events_in(Path(path), notes) if Path(path).is_dir() else _records_of(path, notes)
    steps = LoggedSteps()
    run: dict[str, float] = {}
    known, names, throughput = Counter[str](), set[str](), dict[int, float]()
    spent_s: dict[int, float] = defaultdict(float)
    last, began, ended, used = 0, 0, 0, 0.0
    for number, (at, record) in enumerate(records, start=1):
        at = _step_of(record) if at is None else at
        last = max(last, at or 0)
        names.update(record)
        for name, value in record.items():
            bare = name.removeprefix("train/")
            if bare in OF_RUN:
                run |= positive({OF_RUN[bare]: _number(value)})
                began, ended = (ended, last) if bare == "train_runtime" else (began, ended)
                known[TRAINER] += 1
            elif name in TIMERS_MS and at is not None:
                spent_s[at] += _number(value) * MS
            elif known_name := next((each for each in (name, bare) if each in NAMES), None):
                framework, figure, unit = NAMES[known_name]
                figures = dict(positive({figure: _number(value) * unit}))
                known[framework] += len(figures)
                steps.put(number if at is None else at, figures)
            elif OF_DEVICE.fullmatch(name):
                used = max(used, _number(value))
            elif bare == THROUGHPUT and _number(value) > 0:
                throughput[number if at is None else at] = _number(value)
            elif name in CLOCKS and at is not None:
                clock = dict(positive({CLOCK: _clock(value)})) | steps.get(at, {})  # the first of a step
                if known:  # tells where a run begins; clocks are also of evaluations, which count on their own
                    steps[at] = clock
                else:
                    steps.put(at, clock)
    if names & BESIDE_THROUGHPUT:
        known["Megatron"] += len(throughput)
        for at, tflops in throughput.items():
            if at in steps or steps.again is None:
                steps[at] = steps.get(at, {}) | {TFLOPS: tflops}
    if any(name.startswith(OF_SAMPLES) for name in names):
        source, steps = DEEPSPEED, _of_samples(steps, spent_s)
    source = "LLaMA-Factory" if "current_steps" in names else source
    framework = _framework(names) or next((name for name, _ in known.most_common(1)), source)
    share = (ended - began) / ended if ended > began else 1.0  # the Trainer's rates count the steps before a resumption
    whole = {SAMPLES: run[SAMPLES] * share} if SAMPLES in run else {}
    whole |= {USED: used} if used else {}
    result = make_run(str(path), framework, steps or {1: {}}, whole, {}) if steps or used else None
    if (result is None or STEP_TIME not in result.figures) and run.keys() & {"runtime", RATE}:
        whole[STEP_TIME] = run["runtime"] / (last * share) if last and "runtime" in run else 1 / (run[RATE] * share)
        result = make_run(str(path), framework, steps or {last: {}}, whole, {})
    if result is None or not result.figures:
        raise UserError(f"{path}: {source} without a metric that is known, such as iteration-time or train_runtime")
    notes += [*steps.notes(), *([BATCHES.format(LIGHTNING)] if framework == LIGHTNING else [])]
    if STEP_TIME in result.figures and STEP_TIME not in whole and _is_by_clock(steps):
        counted = next((name for name in STEP_NAMES if name in names), "")
        notes += [BY_RECORDS] if counted == COUNTS_RECORDS else [] if counted or known else [BY_NUMBERS]
    return replace(result, notes=tuple(notes))


def _framework(names: Collection[str]) -> str | None:
    """What logs the step time under its own name; others' names may stand beside it, as Composer's in Bridge's."""
    known = (each for name in names for each in (name, name.removeprefix("train/")) if each in NAMES)
    return next((NAMES[each][0] for each in known if NAMES[each][1] == STEP_TIME), None)


def _is_by_clock(steps: Mapping[int, Mapping[str, float]]) -> bool:
    """Whether step times are from the clock of the records alone."""
    told = {STEP_TIME, RATE, MEAN_TIME, MEAN_RATE, WORDS}
    return not any(told & {*figures} for figures in steps.values())


def _of_samples(steps: LoggedSteps, spent_s: Mapping[int, float]) -> LoggedSteps:
    """Records that are numbered by samples: the times of their steps, or else samples per s by their clock."""
    result = LoggedSteps()
    clocks = [(at, steps[at][CLOCK]) for at in sorted(steps) if CLOCK in steps[at]]
    for (before, then), (at, now) in pairwise(clocks):
        if now > then:
            result[at] = {SAMPLES: (at - before) / (now - then)}
    for at, seconds in spent_s.items():
        if seconds > 0:
            result[at] = {**result.get(at, {}), STEP_TIME: seconds}
    return result


def _records_of(path: str | Path, notes: list[str]) -> tuple[str, Iterator[Record]]:
    """What wrote a file, and its records. Raises UserError."""
    data = _bytes(path, notes)
    if data.startswith(WANDB_START):
        return "Weights & Biases", _wandb(data, str(path), notes)
    if EVENTS_START in data[:100]:
        return "TensorBoard", _events(data, str(path), notes)
    if _has_columns(text := data.decode(errors="replace").lstrip("\ufeff")):
        return "CSV", _csv_records(text, str(path), notes)
    return "JSON lines", _json_records(text, str(path), notes)


def _events_in(folder: Path, notes: list[str]) -> tuple[str, Iterator[Record]]:
    """The events of a folder's files, one after another."""
    files = sorted(each for each in folder.glob(EVENTS) if each.is_file())
    notes.append(OF_FOLDER.format(len(files)))
    return "TensorBoard", (record for each in files for record in _events(_bytes(each, notes), str(each), notes))


def _bytes(path: str | Path, notes: list[str]) -> bytes:
    """The content of a file, unpacked; of one that was packed and ends early, what is before, with a note."""
    try:
        with Path(path).open("rb") as stream:
            packed = stream.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else Path(path).open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except EOFError:
        notes.append(CUT.format("its last compressed block"))
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(Path(path).read_bytes(), MOST_BYTES)
    except (OSError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{path}: larger than {MOST_BYTES // MIB} MiB")
    return data


def _columns(line: str) -> list[str]:
    """Names of metrics in a line of titles; what W&B's page exports has the name of the run before each."""
    try:
        return [cell.rpartition(" - ")[2] for cell in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _has_columns(text: str) -> bool:
    """Whether a text is a table with a metric that is known: Lightning's CSVLogger, or what W&B's page exports."""
    columns = {name.removeprefix("train/") for name in _columns((text[:MOST_TITLES].splitlines() or [""])[0])}
    return len(columns) > 1 and not columns.isdisjoint(NAMES) and not columns.isdisjoint(STEP_NAMES)


def _csv_records(text: str, path: str, notes: list[str]) -> Iterator[Record]:
    """Rows of a table, with the cells that are not empty. Raises UserError for a table of several runs."""
    titles, *lines = text.splitlines(keepends=True)
    columns = _columns(titles.rstrip())
    if doubled := next((name for name, count in Counter(columns).items() if count > 1 and name in NAMES), None):
        raise UserError(f"{path}:1: has {columns.count(doubled)} columns of {doubled}; allowed: those of one run")
    for number, line in enumerate(lines, start=2):
        if not line.endswith("\n"):
            notes.append(CUT.format("a row"))
            return
        try:
            cells = next(csv.reader([line.rstrip("\r\n")]), [])
        except csv.Error as error:
            raise UserError(f"{path}:{number}: not a row of a CSV table ({error})") from None
        if cells and len(cells) != len(columns):
            raise UserError(f"{path}:{number}: has {len(cells)} cells, and the titles are {len(columns)}")
        yield None, {name: cell for name, cell in zip(columns, cells, strict=False) if cell}


def _is_of_run(text: str) -> bool:
    """Whether a text is one object of the Trainer: its state, or the results at its end, over several lines."""
    if re.search(r'"log_history"\s*:', text):
        return True
    return not _is_record(text.partition("\n")[0]) and re.search(r'"train_runtime"\s*:', text) is not None


def _json_records(text: str, path: str, notes: list[str]) -> Iterator[Record]:
    """Lines of JSON, one object with all records, or a single record."""
    if re.match(r'\s*\{\s*("[^"]*"\s*:|\n)', text) and _is_of_run(text):
        state = read_json(text, path, finite=False)  # a loss that is NaN
        history = state.get("log_history", [state])
        if not isinstance(history, list) or not all(isinstance(each, dict) for each in history):
            raise UserError(f"{path}: log_history: wants a list of records")
        yield from ((None, each) for each in history)
        return
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > 1 and line.splitlines() == [line]:  # the last one, without its end
                notes.append(CUT.format("a record"))
                return
            reason = getattr(error, "msg", "nested too deeply")
            raise UserError(f"{path}:{number}: not valid JSON ({reason})") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: wants a record of metrics, {{...}}")
        yield None, record


def _events(data: bytes, path: str, notes: list[str]) -> Iterator[Record]:
    """Scalars of TensorBoard: an event has the time (1, double), the step (2) and a summary (5) with values (1)."""
    at, number = 0, 0
    while at < len(data):
        number += 1
        length = struct.unpack_from("<Q", data, at)[0] if at + 12 <= len(data) else MOST_RECORD
        if number > 1 and length <= MOST_RECORD and at + 16 + length > len(data):
            notes.append(CUT.format("an event"))
            return
        if length > MOST_RECORD or at + 16 + length > len(data):
            raise UserError(f"{path}: event {number}, at byte {at}: cut short or damaged")
        step, clock, scalars = 0, 0.0, dict[str, float]()
        try:
            for field, value in fields(data[at + 12 : at + 12 + length]):
                if field == 1 and isinstance(value, bytes):
                    clock = struct.unpack("<d", value)[0]
                elif field == 2 and isinstance(value, int):
                    step = value
                elif field == 5 and isinstance(value, bytes):
                    told = (_scalar(each) for of, each in fields(value) if of == 1 and isinstance(each, bytes))
                    scalars |= {tag: number for tag, number in told if not tag.endswith(BY_SAMPLES)}
        except (WireError, struct.error, UnicodeDecodeError) as error:
            raise UserError(f"{path}: event {number}, at byte {at}: damaged ({error})") from None
        if scalars:
            yield step, {**scalars, "_timestamp": clock}
        at += 16 + length


def _scalar(value: bytes) -> tuple[str, float]:
    """(Tag, number) of a value: a tag (1), and a float (2) or a tensor (8) of one float; 0 for anything else."""
    tag, number = "", 0.0
    for field, each in fields(value):
        if field == 1 and isinstance(each, bytes):
            tag = each.decode()
        elif field == 2 and isinstance(each, bytes):
            number = struct.unpack("<f", each)[0]
        elif field == 8 and isinstance(each, bytes):
            floats = [part for of, part in fields(each) if of in (4, 5) and isinstance(part, bytes) and len(part) == 4]
            number = struct.unpack("<f", floats[0])[0] if floats else 0.0
    return tag, number


def _wandb(data: bytes, path: str, notes: list[str]) -> Iterator[Record]:
    """Histories of W&B's datastore: record (2) of items (1): key (1) or nested key (2), value as JSON (16).

    Samples of the system (7) have the same items (3).
    """
    for number, record in enumerate(_wandb_records(data, path, notes), start=1):
        try:
            for field, history in fields(record):
                if field in (2, 7) and isinstance(history, bytes):
                    item = 1 if field == 2 else 3
                    items = [each for of, each in fields(history) if of == item and isinstance(each, bytes)]
                    yield None, dict(map(_item, items))
        except (WireError, ValueError) as error:
            raise UserError(f"{path}: record {number}: damaged ({error})") from None


def _wandb_records(data: bytes, path: str, notes: list[str]) -> Iterator[bytes]:
    """Records of a log in blocks: checksum, length, kind: whole (1), the first (2), a middle or the last part (4)."""
    at, begun = BLOCK_HEADER, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        kind = data[at + 6] if left >= BLOCK_HEADER and at + BLOCK_HEADER <= len(data) else 0
        if kind == 0:  # the rest of the block is empty
            at += left
            continue
        length = struct.unpack_from("<H", data, at + 4)[0]
        end = at + BLOCK_HEADER + length
        if at > BLOCK_HEADER and kind <= 4 and end > len(data) and BLOCK_HEADER + length <= left:
            notes.append(CUT.format("a record"))
            return
        if kind > 4 or end > len(data) or BLOCK_HEADER + length > left:
            raise UserError(f"{path}: byte {at}: cut short or damaged")
        begun = (b"" if kind < 3 else begun) + data[at + BLOCK_HEADER : end]
        if kind in (1, 4):
            yield begun
        at = end


def _item(data: bytes) -> tuple[str, Any]:
    keys, value = list[str](), "null"
    for field, each in fields(data):
        if isinstance(each, bytes) and field in (1, 2):
            keys.append(each.decode())
        elif isinstance(each, bytes) and field == 16:
            value = each.decode()
    return ".".join(filter(None, keys)), json.loads(value)


_STEP = re.compile(r"(\d{1,12})(?:\.0)?(?:/\d+)?")


def _step_of(record: Mapping[str, Any]) -> int | None:
    """The number of the step of a record."""
    for name in STEP_NAMES:
        if name in record and (match := _STEP.fullmatch(str(record[name]))):
            return int(match[1])
    return None


def _number(value: Any) -> float:
    """A metric as a number; transformers 5 writes texts. 0 if it is none."""
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _clock(value: Any) -> float:
    """Seconds of a clock: a number, or "1:02:03" since the start."""
    return read_clock(str(value)) or _number(value)
