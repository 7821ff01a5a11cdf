"""Logs as records of named numbers: JSON lines, the Trainer's state, TensorBoard's and W&B's files."""

import gzip
import json
import struct

import pytest

from simpar import cli
from simpar.chakra.wire import chunk, encode_present, varint
from simpar.diagnosis.answer import explain
from simpar.diagnosis.kinds import METRICS, kind_of
from simpar.diagnosis.metrics import BLOCK, BY_NUMBERS, BY_RECORDS, read_metrics
from simpar.errors import UserError
from simpar.units import GIB

START = 1_700_000_000.0


def seconds(step):
    """When a step ends: the first takes 9 s, the others 2 s."""
    return START + 9 + 2 * (step - 1)


def record(data):
    """A record of TFRecord; the checksums are not looked at."""
    return struct.pack("<QI", len(data), 0) + data + struct.pack("<I", 0)


def events(steps, **scalars):
    """TensorBoard's file: a version, then an event for every scalar of every step."""
    first = record(b"\x09" + struct.pack("<d", START) + chunk(3, b"brain.Event:2"))
    rest = b""
    for step in range(1, steps + 1):
        for tag, value in scalars.items():
            scalar = chunk(1, chunk(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            clock = b"\x09" + struct.pack("<d", seconds(step))
            rest += record(clock + encode_present(2, step) + chunk(5, scalar))
    return first + rest


def wandb(records):
    """W&B's datastore: histories of items with keys and JSON, in blocks that records may cross."""
    data = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for each in records:
        items = b"".join(
            chunk(
                1, chunk(2, key.encode()) + varint(16 << 3 | 2) + varint(len(text := json.dumps(value).encode())) + text
            )
            for key, value in each.items()
        )
        rest, kind = encode_present(1, 7) + chunk(2, items), 1
        while rest:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += b"\0" * left
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            code = (1 if kind == 1 else 4) if not rest else (2 if kind == 1 else 3)
            data += struct.pack("<IHB", 0, len(part), code) + part
            kind = code
    return data


def history(steps, **metrics):
    """W&B's records of a Trainer, logged at every second step."""
    return [
        {"train/loss": 1.5, "train/global_step": 2 * at, "_step": at, "_timestamp": seconds(2 * at), **metrics}
        for at in range(1, steps + 1)
    ]


def lines(records):
    """One JSON object a line."""
    return "".join(json.dumps(each) + "\n" for each in records).encode()


@pytest.mark.parametrize(
    ("name", "data", "framework", "figures"),
    [
        ("events.out.tfevents.1.host.1.0",
         events(6, **{"iteration-time": 2.0, "throughput": 412.0, "mem-max-allocated-bytes": 2.0**31}),
         "Megatron", {"step_time_s": 2.0, "tflops": 412.0, "allocated_bytes": 2 * GIB}),
        ("events.out.tfevents.2", events(6, **{"throughput(tps)": 2048.0, "memory/max_reserved(GiB)": 40}),
         "torchtitan", {"step_time_s": 2.0, "tokens_per_s_per_device": 2048.0, "reserved_bytes": 40 * GIB}),
        ("events.out.tfevents.3",
         events(6, **{"perf/step_time_seconds": 2.5, "perf/per_device_tflops_per_sec": 300.0}),
         "MaxText", {"step_time_s": 2.5, "tflops": 300.0}),
        ("run-a1b2c3.wandb", wandb(history(6, **{"train/train_samples_per_second": 4.5, "pad": "x" * 20_000})),
         "Hugging Face Trainer", {"step_time_s": 2.0, "samples_per_s": 4.5}),
        ("wandb-history.jsonl", lines(history(6, peak_memory_alloc=30.0)),
         "torchtune", {"step_time_s": 2.0, "allocated_bytes": 30 * GIB}),
        ("wandb-summary.json", lines([{"train/global_step": 30, "train_runtime": 60.0, "_runtime": 70.0, "_step": 3}]),
         "Hugging Face Trainer", {"step_time_s": 2.0}),
        ("logging.jsonl",
         lines({"loss": 1.6, "memory(GiB)": 2.5, "train_speed(iter/s)": at / (9 + 2 * (at - 1)),
                "global_step/max_steps": f"{at}/90"} for at in range(1, 9)),
         "ms-swift", {"step_time_s": 2.0, "reserved_bytes": 2.5 * GIB}),
        ("trainer_log.jsonl",
         lines({"current_steps": at, "total_steps": 90, "loss": 1.0, "throughput": 0.0,
                "elapsed_time": f"0:00:{7 + 2 * at:02d}", "peak_memory_alloc": 1.0} for at in range(1, 9)),
         "torchtune", {"step_time_s": 2.0, "allocated_bytes": GIB}),
        ("trainer_log.jsonl",  # its throughput is tokens of all devices
         lines({"current_steps": at, "total_steps": 90, "loss": 1.0, "throughput": 5400.0, "vram_reserved": 40.0,
                "elapsed_time": f"0:00:{7 + 2 * at:02d}"} for at in range(1, 9)),
         "LLaMA-Factory", {"step_time_s": 2.0, "reserved_bytes": 40 * GIB}),
        ("events.out.tfevents.4",
         events(6, **{"iteration-time": 2.5, "throughput/tflops/device": 400.0, "throughput/tflops": 3200.0,
                      "throughput/batches_per_sec": 0.4, "throughput/samples_per_sec": 8.0,
                      "memory/mem-max-allocated-gigabytes": 60.0, "memory/mem-max-reserved-gigabytes": 64.0}),
         "Megatron", {"step_time_s": 2.5, "tflops": 400.0, "samples_per_s": 8.0, "allocated_bytes": 60e9,
                      "reserved_bytes": 64e9}),
        ("events.out.tfevents.5",
         events(6, **{"runtime/iteration_time": 2.5, "runtime/samples_per_sec": 8.0,
                      "runtime/flops_per_sec_per_gpu": 1.25e14}),
         "GPT-NeoX", {"step_time_s": 2.5, "tflops": 125.0, "samples_per_s": 8.0}),
        ("all_results.json",
         json.dumps({"epoch": 1.0, "train_runtime": 250.0, "train_samples_per_second": 25.6,
                     "train_steps_per_second": 0.4}, indent=4).encode(),
         "Hugging Face Trainer", {"step_time_s": 2.5, "samples_per_s": 25.6}),
        ("metrics.csv",
         "".join(["device/batches_per_sec,device/flops_per_sec,epoch,step\r\n", ",,0,0\r\n",
                  *(f"0.5,3e14,0,{at}\r\n" for at in range(1, 8))]).encode(),
         "Lightning", {"step_time_s": 2.0, "tflops": 300.0}),
        ("wandb_export.csv",
         "".join(['"Step","sft-1 - train/memory(GiB)","sft-1 - train/memory(GiB)__MIN","_timestamp"\n',
                  *(f'"{at}","2.5","1.5","{START + 2 * at}"\n' for at in range(1, 8))]).encode(),
         "ms-swift", {"step_time_s": 2.0, "reserved_bytes": 2.5 * GIB}),
        ("wandb-events.jsonl",
         lines({"_timestamp": START + at, "system.gpu.0.memoryAllocatedBytes": at * GIB, "system.gpu.0.gpu": 98}
               for at in range(1, 8)),
         "JSON lines", {"used_bytes": 7 * GIB}),
        ("automodel.jsonl", lines({"step": at, "loss": 1.0, "tps": 16384.0, "tps_per_gpu": 2048.0} for at in range(8)),
         "NeMo Automodel", {"tokens_per_s_per_device": 2048.0}),
        ("trainer_state.json",
         json.dumps({"best_metric": None, "global_step": 30, "log_history": [
             {"epoch": 0.3, "loss": 1.4, "step": 10}, {"epoch": 0.6, "loss": 1.2, "step": 20},
             {"epoch": 1.0, "step": 30, "train_runtime": 60.0, "train_samples_per_second": 32.0,
              "train_steps_per_second": 0.5, "total_flos": 1e15}]}, indent=2).encode(),
         "Hugging Face Trainer", {"step_time_s": 2.0, "samples_per_s": 32.0}),
    ],
)  # fmt: skip
def test_records_of_every_kind(tmp_path, name, data, framework, figures):
    """Medians of what is logged, or the time between two records, also of packed files."""
    for path, content in ((tmp_path / name, data), (tmp_path / f"{name}.gz", gzip.compress(data))):
        path.write_bytes(content)
        assert kind_of(path) == METRICS
        found = read_metrics(path)
        assert (found.framework, found.figures) == (framework, pytest.approx(figures, rel=1e-5))


def test_the_driver_shows_memory_in_the_datastore_of_wandb(tmp_path):
    """Samples of the system have items of their own beside the histories."""
    sample = chunk(3, chunk(1, b"gpu.1.memoryAllocatedBytes") + varint(16 << 3 | 2) + varint(11) + b"70000000000")
    other = chunk(3, chunk(1, b"gpu.process.1.memoryAllocatedBytes") + varint(16 << 3 | 2) + varint(4) + b"9e99")
    stats = chunk(7, sample + other)
    path = tmp_path / "run-a.wandb"
    path.write_bytes(wandb(history(6)) + struct.pack("<IHB", 0, len(stats), 1) + stats)
    assert read_metrics(path).figures == {"step_time_s": pytest.approx(2.0), "used_bytes": 7e10}


def test_records_of_two_runs(tmp_path):
    """LLaMA-Factory appends to the file of the run before: the last run is answered, and it is said."""
    path = tmp_path / "trainer_log.jsonl"
    path.write_bytes(
        b"".join(
            lines({"current_steps": at, "elapsed_time": f"0:{at * s // 60:02d}:{at * s % 60:02d}"} for at in steps)
            for s, steps in ((30, range(1, 50)), (20, range(1, 25)))
        )
    )
    found = read_metrics(path)
    assert (found.figures, found.steps[1]) == ({"step_time_s": 20.0}, 24)
    assert found.notes[0].startswith("Steps begin again at 1 after 49")


def test_a_folder_of_an_offline_run(tmp_path, capsys):
    """Its datastore before its output."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "output.log").write_text("nothing")
    (tmp_path / "run-a.wandb").write_bytes(wandb(history(6, peak_memory_alloc=1.0)))
    assert cli.run(["explain", str(tmp_path)]) == 0
    assert "torchtune log: 5 logged, steps 4 to 12" in capsys.readouterr().out
    (tmp_path / "run-a.wandb").unlink()


def test_event_files_of_a_folder_are_one_run(tmp_path):
    """As TensorBoard shows them: a run that was killed and started again, and what its evaluation wrote beside it."""
    (tmp_path / "events.out.tfevents.1.a").write_bytes(events(8, **{"iteration-time": 2.0})[:-5])
    (tmp_path / "events.out.tfevents.2.a").write_bytes(events(12, **{"iteration-time": 3.0}))
    (tmp_path / "events.out.tfevents.3.a.1").write_bytes(events(1, eval_loss=2.0))
    found = explain(tmp_path).log
    assert found.figures == {"step_time_s": 3.0}
    assert (found.framework, found.steps[1]) == ("Megatron", 12 * (found.steps[1] // 12))
    assert [note.partition(" ")[0] for note in found.notes] == ["3", "The", "Steps"]
    assert "3 files of events are read as one run" in found.notes[0]


def test_steps_are_not_told_by_what_counts_sequences_or_evaluations(tmp_path):
    """Megatron-LM logs by the number of sequences, too, and others evaluations by a number of their own: one run."""
    path = tmp_path / "a.tfevents"
    whole = events(30, **{"iteration-time": 2.0})
    start = len(whole) - 30 * (len(whole) - len(events(0))) // 30
    size = (len(whole) - start) // 30
    other = [
        record(b"\x09" + struct.pack("<d", seconds(at)) + encode_present(2, step)
               + chunk(5, chunk(1, chunk(1, tag.encode()) + b"\x15" + struct.pack("<f", 1.0))))
        for at in range(1, 31)
        for tag, step in (("lr vs samples", 64 * at), ("lr_vs_samples", 64 * at), ("eval/loss", at % 5 + 1))
    ]  # fmt: skip
    mixed = b"".join(
        whole[start + size * at : start + size * (at + 1)] + b"".join(other[3 * at : 3 * at + 3]) for at in range(30)
    )
    path.write_bytes(whole[:start] + mixed)
    found = read_metrics(path)
    assert (found.figures, found.steps, found.notes) == ({"step_time_s": 2.0}, (4, 30), ())


def test_a_folder_of_runs(tmp_path):
    """With one run, to which W&B links beside it, that is meant; of several one must be named."""
    run = tmp_path / "wandb" / "offline-run-1"
    run.mkdir(parents=True)
    (run / "run-a.wandb").write_bytes(wandb(history(6)))
    (tmp_path / "wandb" / "latest-run").symlink_to(run)
    (tmp_path / "wandb" / "debug.log").write_text("started")
    assert explain(tmp_path / "wandb").log.figures == {"step_time_s": pytest.approx(2.0)}
    other = tmp_path / "wandb" / "version_0"
    other.mkdir()
    (other / "metrics.csv").write_text("device/batches_per_sec,step\n" + "".join(f"0.25,{at}\n" for at in range(9)))
    with pytest.raises(UserError, match=r"has logs in 2 folders; allowed: one of them: .*version_0"):
        explain(tmp_path / "wandb")
    assert explain(other).log.figures == {"step_time_s": 4.0}


def test_a_state_with_numbers_that_are_none(tmp_path):
    """A run that diverged: Python writes NaN and Infinity, which are no figures."""
    state = {"best_metric": float("inf"), "log_history": [
        {"loss": float("nan"), "grad_norm": float("inf"), "step": 1},
        {"step": 2, "train_runtime": 20.0, "train_samples_per_second": 8.0, "train_steps_per_second": 0.1},
    ]}  # fmt: skip
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state))
    assert read_metrics(path).figures == {"step_time_s": 10.0, "samples_per_s": 8.0}


WHOLE = {
    "a.jsonl": lambda: lines(history(40, peak_memory_alloc=1.0)),
    "a.tfevents": lambda: events(40, tflops=1.0),
    "a.wandb": lambda: wandb(history(40, peak_memory_alloc=1.0)),
    "a.csv": lambda: b"step,tflops,name\n" + b"".join(b"%d,2.0,%050d\n" % (at, at) for at in range(40)),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_run_that_was_killed_is_read_up_to_its_end(tmp_path, capsys, name, packed):
    """Wherever the file is cut behind its first records, what is before is read, and what is left out is said."""
    whole = WHOLE[name]()
    path = tmp_path / name
    data = gzip.compress(whole, 0) if packed else whole
    path.write_bytes(data)
    full = read_metrics(path)
    assert full.notes == ()
    trailer = 8 * packed  # of gzip, which has no data
    cuts = range(len(data) // 2, len(data) - trailer - 1, max(1, len(data) // 60))
    for cut in cuts:
        path.write_bytes(data[:cut])
        found = read_metrics(path)
        assert 0 < found.count < full.count
        assert found.figures == pytest.approx(full.figures)
        assert len(found.notes) <= 1 + packed
        assert all("in the middle of" in note for note in found.notes)
    path.write_bytes(data[: len(data) - 3])
    assert cli.run(["explain", str(path)]) == 0
    assert "The file ends in the middle of" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", lines(history(2)) + b'{"train/loss": \n', "a.jsonl:3: not valid JSON"),
        ("a.jsonl", lines(history(2)) + b'{"train/loss": \n{}', "a.jsonl:3: not valid JSON"),
        ("a.jsonl", lines(history(2)) + b"[1]\n", "a.jsonl:3: wants a record of metrics"),
        ("a.csv", b"step,tflops\n1,2.0\n2,2.0,3\n", "a.csv:3: has 3 cells, and the titles are 2"),
        ("a.csv", b"step,tflops\n1,2.0\n2," + b"9" * 200_000 + b"\n", "a.csv:3: not a row of a CSV table"),
        ("a.jsonl", b'{"accuracy": 1.0}\n', "JSON lines without a metric that is known"),
        ("a.tfevents", events(3, tflops=1.0) + b"\xff" * 40, "event 5, at byte .*: cut short or damaged"),
        ("a.tfevents", events(1, tflops=1.0)[:38], "event 1, at byte 0: cut short or damaged"),
        ("a.wandb", wandb(history(2))[:40], "a.wandb: byte 7: cut short or damaged"),
        ("trainer_state.json", b'{"log_history": [1]}', "log_history: wants a list of records"),
        ("trainer_state.json", b'{"log_history": [', "trainer_state.json:1: not valid JSON"),
    ],
)
def test_damaged_records(tmp_path, name, data, words):
    """One line with the place."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=words):
        explain(tmp_path / name)


def of_samples(**scalars):
    """What DeepSpeed's monitor logs every 2 s at steps of 64 samples, the first after 9 s."""
    result = record(b"\x09" + struct.pack("<d", START) + chunk(3, b"brain.Event:2"))
    for step in range(1, 9):
        for tag, value in scalars.items():
            scalar = chunk(1, chunk(1, f"Train/Samples/{tag}".encode()) + b"\x15" + struct.pack("<f", value))
            clock = b"\x09" + struct.pack("<d", seconds(step))
            result += record(clock + encode_present(2, 64 * step) + chunk(5, scalar))
    return result


def test_steps_of_deepspeeds_monitor_are_samples(tmp_path):
    """Of 64 samples in 2 s the clock tells 32 a second, and the timers the step: forward, backward and update."""
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(of_samples(train_loss=7.0, lr=1e-4))
    found = read_metrics(path)
    assert (found.framework, found.figures) == ("DeepSpeed", {"samples_per_s": pytest.approx(32.0)})
    timers = {"forward": 500.0, "backward": 1200.0, "backward_inner": 900.0, "backward_allreduce": 300.0, "step": 100.0}
    path.write_bytes(of_samples(**{f"elapsed_time_ms_{part}": value for part, value in timers.items()}))
    assert read_metrics(path).figures == pytest.approx({"step_time_s": 1.8, "samples_per_s": 32.0})


def test_a_step_time_by_the_clock_alone_is_said(tmp_path):
    """W&B numbers its records, which are steps only where every step is logged."""
    path = tmp_path / "wandb-history.jsonl"
    records = [{"loss": 1.5, "_step": at, "_timestamp": START + 20.0 * at} for at in range(1, 9)]
    path.write_bytes(lines(records))
    found = read_metrics(path)
    assert (found.figures, found.notes) == ({"step_time_s": 20.0}, (BY_RECORDS,))
    path.write_bytes(lines({**each, "train/global_step": 10 * each["_step"]} for each in records))
    found = read_metrics(path)
    assert (found.figures, found.notes) == ({"step_time_s": 2.0}, ())
    path.write_bytes(lines({**each, "iteration-time": 3.0} for each in records))
    assert read_metrics(path).notes == ()
    path.write_bytes(events(6, loss=2.0))
    assert read_metrics(path).notes == (BY_NUMBERS,)


def test_a_table_of_two_runs(tmp_path):
    """Of W&B's page: which of them is meant nothing tells."""
    path = tmp_path / "export.csv"
    path.write_text('"Step","run-a - iteration-time","run-b - iteration-time"\n"1","2.0","5.0"\n')
    with pytest.raises(UserError, match=r"export\.csv:1: has 2 columns of iteration-time; allowed: those of one run"):
        read_metrics(path)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "true", '"fast"', "null", "[2.0]", "-2.0", "1e999", "NaN"])
def test_values_that_are_no_figures(tmp_path, value):
    """They are passed over, as frameworks write -1 and nan for what they do not know."""
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1, "iteration-time": {value}}}\n' * 3)
    with pytest.raises(UserError, match="without a metric that is known"):
        read_metrics(path)
