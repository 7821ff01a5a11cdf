"""Shared by all tests: a pipeline timed by hand, so that report tests need no simulator; a headless browser."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

# Tiny products in several threads are mostly waits for each other, the longer the busier the cores. Numerical
# libraries read this as they are imported; ranks and calibrations that are given threads set their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from typer import main

from simpar.__main__ import GC_THRESHOLDS
from simpar.cli.flags import complete_commands
from simpar.program.ir.program import Csr, Label, MemoryTable, OpTable, Program, Routes, Timing
from simpar.report.parts import Communication, MemoryReport, Setup, Speed, StageMemory, TimeBreakdown
from simpar.report.pictured import HeldAtPeak, HeldPart, KernelPoint, Roofline
from simpar.report.result import Bill, Result
from simpar.report.timeline import MemoryCurve, RankClass, Slices, Timeline, overview
from simpar.units import GIB, MS, NS_PER_S
from tests import touched

pytest_addoption, pytest_configure = touched.pytest_addoption, touched.pytest_configure
ROOT = Path(__file__).parents[1]
gc.set_threshold(*GC_THRESHOLDS)  # as commands do
FORKS = Path(__file__).with_name("forks.py")
# Machines that run tests are shared: slow generation says nothing about the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

LABELS = tuple(
    Label(kind, name)
    for kind, name in (
        ("forward", "forward"),
        ("backward", "backward"),
        ("pp", "send activations"),
        ("pp", "send gradients"),
        ("dp", "reduce_scatter gradients"),
        ("optimizer", "optimizer"),
    )
)
FORWARD, BACKWARD, SEND_F, SEND_B, REDUCE, UPDATE = range(6)
STREAMS = ("compute", "send_F", "send_B", "grad_reduce")
PER_MS = round(MS * NS_PER_S)


def one_f_one_b(num_stages: int, num_microbatches: int) -> list[list[tuple[int, int]]]:
    """Per stage the ordered (FORWARD | BACKWARD, microbatch) of 1F1B."""
    orders = []
    for stage in range(num_stages):
        warmup = min(num_stages - stage - 1, num_microbatches)
        order = [(FORWARD, m) for m in range(warmup)]
        for m in range(num_microbatches - warmup):
            order += [(FORWARD, m + warmup), (BACKWARD, m)]
        order += [(BACKWARD, m) for m in range(num_microbatches - warmup, num_microbatches)]
        orders.append(order)
    return orders


def make_timeline(num_stages: int, num_microbatches: int, *, multiplicity: int = 8) -> Timeline:
    """Forward 3 ms, backward 6 ms, sends 1 ms, then a reduction of 10 ms and an optimizer of 2 ms."""
    rows: list[tuple[int, ...]] = []
    row_of: dict[tuple[int, int, int], int] = {}
    arrows: list[tuple[int, int]] = []
    orders = one_f_one_b(num_stages, num_microbatches)
    position, clock = [0] * num_stages, [0] * num_stages
    arrival: dict[tuple[int, int, int], int] = {}
    while any(position[s] < len(orders[s]) for s in range(num_stages)):
        for stage in range(num_stages):
            while position[stage] < len(orders[stage]):
                kind, microbatch = orders[stage][position[stage]]
                entry = stage == 0 if kind == FORWARD else stage == num_stages - 1
                key = (kind, stage, microbatch)
                if not entry and key not in arrival:
                    break
                start = max(clock[stage], 0 if entry else arrival[key])
                finish = start + (3 if kind == FORWARD else 6) * PER_MS
                row_of[key] = len(rows)
                rows.append((stage, 0, start, finish, kind, stage, microbatch, 0))
                _send(rows, arrival, key, finish, num_stages)
                clock[stage], position[stage] = finish, position[stage] + 1
    for index, row in enumerate(rows):
        _, stream, _, _, kind, stage, microbatch, _ = row
        if stream in (1, 2):
            target = (FORWARD, stage + 1, microbatch) if kind == SEND_F else (BACKWARD, stage - 1, microbatch)
            arrows.append((index, row_of[target]))
    for stage in range(num_stages):
        reduced = clock[stage] + 10 * PER_MS
        rows.append((stage, 3, clock[stage], reduced, REDUCE, -1, -1, 2 * 10**9))
    last = max(row[3] for row in rows)
    rows += [(stage, 0, last, last + 2 * PER_MS, UPDATE, -1, -1, 0) for stage in range(num_stages)]
    columns = np.array(rows, dtype=np.int64).T
    slices = Slices(*columns, inner=np.full(len(rows), -1))
    classes = tuple(RankClass(f"stage {s}", s, s * multiplicity, multiplicity) for s in range(num_stages))
    memory = tuple(_memory(slices, s) for s in range(num_stages))
    return Timeline(slices, LABELS, classes, STREAMS, np.array(arrows, dtype=np.int64).reshape(-1, 2), memory)


def _send(
    rows: list[tuple[int, ...]],
    arrival: dict[tuple[int, int, int], int],
    key: tuple[int, int, int],
    finish: int,
    n: int,
) -> None:
    kind, stage, microbatch = key
    step, label, stream = (1, SEND_F, 1) if kind == FORWARD else (-1, SEND_B, 2)
    if 0 <= stage + step < n:
        rows.append((stage, stream, finish, finish + PER_MS, label, stage, microbatch, 64 * 2**20))
        arrival[kind, stage + step, microbatch] = finish + PER_MS


def _memory(slices: Slices, stage: int) -> MemoryCurve:
    mine = (slices.class_id == stage) & (slices.stream == 0) & (slices.label <= BACKWARD)
    forward = slices.label[mine] == FORWARD
    time = np.where(forward, slices.start_ns[mine], slices.finish_ns[mine]) / NS_PER_S
    order = np.argsort(time, kind="stable")
    held = np.cumsum(np.where(forward, 6.0, -6.0)[order]) * GIB
    time, held = np.concatenate([[0.0], time[order]]), np.concatenate([[0.0], held])
    flat = np.ones(len(time)) * GIB
    return MemoryCurve(
        time,
        {
            "parameters": 6 * flat, "gradients": 12 * flat, "optimizer_states": 9 * flat,
            "overhead": 2 * flat, "activations": held, "transient": np.where(held > 0, 1.5, 0.0) * GIB,
        },
    )  # fmt: skip


def make_result(timeline: Timeline) -> Result:
    """A result whose figures agree with the timeline; utilisations and money are made up."""
    view = overview(timeline)
    step = view.step_time_s
    stages = tuple(_stage_memory(index, curve) for index, curve in enumerate(timeline.memory))
    peak = max(stage.peak_bytes for stage in stages)
    microbatches = int(timeline.slices.microbatch.max()) + 1
    compute = 9 * microbatches * MS
    parts = {"compute": compute, "exposed_dp": 10 * MS, "optimizer": 2 * MS, "exposed_pp": 4 * MS}
    return Result(
        speed=Speed(
            step_time_s=step, tokens_per_s=2.1e6, tokens_per_s_per_device=256.0, model_flops_per_step=3.3e15,
            mfu=0.41, hfu=0.43, tflops_per_device=405.0,
        ),
        bubble_fraction=1 - compute / (step - 12 * MS),
        time_breakdown_s=TimeBreakdown(**parts, bubble=step - sum(parts.values())),
        communication={
            "pp": Communication(bytes_per_rank=2.0e9, busy_s=16 * MS, exposed_s=4 * MS, algorithm="send"),
            "dp": Communication(bytes_per_rank=4.0e9, busy_s=10 * MS, exposed_s=10 * MS, algorithm="ring"),
        },
        memory=MemoryReport(
            peak_memory_bytes=peak, peak_reserved_bytes=peak + GIB, static_memory_bytes=29 * GIB,
            capacity_bytes=79.6 * GIB, fits=peak + GIB <= 79.6 * GIB, stages=stages,
        ),
        bill=Bill(cost_usd_per_step=0.12, energy_j_per_step=2.5e6),
        setup=Setup(
            plan={
                "mesh": {"tp": 8, "pp": len(stages), "dp": 1}, "pipeline": {"schedule": "1f1b", "vpp": 1},
                "micro_batch": 2, "data_parallel": {"zero": 0}, "memory": {"recompute": "none"},
                "numerics": {"precision": "bf16"},
            },
            training={"seq_len": 4096, "global_batch": 2 * microbatches},
            model={"name": "gpt3-175b", "parameters": 174.6e9},
            cluster={
                "hardware": "dgx-h100", "nodes": 4, "devices": 32, "device": "H100", "devices_per_node": 8,
            },
            engine={"name": "reference", "seed": 0}, fold={"ranks": 32, "classes": len(stages)},
            simpar_version="0.1.0",
        ),
        overview=replace(view, held=HELD, roofline=ROOFLINE),
        timeline=timeline,
    )  # fmt: skip


HELD = HeldAtPeak(
    stage=0, capacity_bytes=79.6 * GIB,
    parts=tuple(
        HeldPart(category=category, name=name, size_bytes=size * GIB)
        for category, name, size in (
            ("parameters", "embedding", 1), ("parameters", "layer 0", 2), ("parameters", "layer 1", 2),
            ("overhead", "context and communicators", 2), ("activations", "layer 0", 8), ("activations", "layer 1", 7),
        )
    ),
)  # fmt: skip
ROOFLINE = Roofline(
    device="H100", bytes_per_s=3.35e12, peak_flop_per_s={"bf16": 989e12}, share=0.9,
    points=tuple(
        KernelPoint(block="layer", operator=operator, direction=direction, precision="bf16", layers=2, **work)
        for operator, direction, work in (
            ("qkv", "forward", {"flop": 6e12, "moved_bytes": 4e9, "seconds": 0.01}),
            ("qkv", "weight gradient", {"flop": 6e12, "moved_bytes": 6e9, "seconds": 0.01}),
            ("attention", "backward", {"flop": 4e12, "moved_bytes": 1e9, "seconds": 0.01}),
        )
    ),
)  # fmt: skip


def _stage_memory(stage: int, curve: MemoryCurve) -> StageMemory:
    at = int(np.argmax(curve.total_bytes))
    parts = {name: float(values[at]) for name, values in curve.parts.items()}
    return StageMemory(
        stage=stage,
        device="h100-sxm-80gb",
        capacity=79.6 * GIB,
        **parts,
        peak=sum(parts.values()),
        peak_time_s=float(curve.time_s[at]),
        peak_op="forward mb 3",
    )


def make_program(
    timing: Timing, ops: list[tuple[int, str]], streams: dict[str, list[int]], waits: list[tuple[int, int]]
) -> Program:
    """A Program of fixed durations: ops (class, kind), streams "class:name", waits (op, on which)."""
    kinds = list(dict.fromkeys(kind for _, kind in ops))
    zeros = np.zeros(len(ops), dtype=np.int64)
    none = zeros[:0]
    pairs = [(index, op) for index, row in enumerate(streams.values()) for op in row]
    owners = [int(name.split(":")[0]) for name in streams]
    return Program(
        ops=OpTable(
            class_id=np.array([c for c, _ in ops], dtype=np.int64),
            fixed_ns=timing.finish_ns - timing.start_ns,
            work_bytes=zeros,
            route=zeros - 1,
            rate_cap_bytes_per_s=zeros,
            label=np.array([kinds.index(kind) for _, kind in ops], dtype=np.int64),
            microbatch=zeros,
            stage=zeros,
        ),
        dependencies=Csr.of(*np.array(waits, dtype=np.int64).reshape(-1, 2).T, len(ops)),
        streams=Csr.of(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T, len(streams)),
        stream_names=tuple(name.split(":")[1] for name in streams),
        stream_class=np.array(owners, dtype=np.int64),
        routes=Routes(Csr(np.zeros(1, dtype=np.int64), none), np.zeros(0), none, ()),
        memory=MemoryTable(none, np.zeros(0, dtype=bool), none, none, none),
        labels=tuple(Label(kind, kind) for kind in kinds),
        class_names=tuple(f"stage {index}" for index in sorted(set(owners))),
        multiplicity=np.ones(len(set(owners)), dtype=np.int64),
    )


@pytest.fixture(scope="session")
def program_of() -> Callable[..., Program]:
    """Builder of a small Program: ``program_of(timing, ops, streams, waits)``."""
    return make_program


@pytest.fixture(scope="session")
def timeline_of() -> Callable[..., Timeline]:
    """Builder of a 1F1B step: ``timeline_of(num_stages, num_microbatches)``."""
    return make_timeline


@pytest.fixture(scope="session")
def result_of() -> Callable[[Timeline], Result]:
    """Builder of a result around a timeline."""
    return make_result


@pytest.fixture(scope="session")
def timeline() -> Timeline:
    """A 1F1B step of 4 stages and 8 microbatches with sends, one gradient reduction and memory curves."""
    return make_timeline(num_stages=4, num_microbatches=8)


@pytest.fixture(scope="session")
def result(timeline: Timeline) -> Result:
    """A result around that timeline."""
    return make_result(timeline)


@pytest.fixture(scope="session", autouse=True)
def commands() -> Iterator[None]:
    """The tree of commands is built once for all calls in this process, which takes longer than most of them."""
    complete_commands()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "get_command", cache(main.get_command))
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window, driven by playwright, shared by all tests of pages; they skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable, args=list(SWITCHES))
        yield started
        started.close()


@pytest.fixture(scope="session")
def faults_for_readers() -> Callable[[Any], dict[str, list[str]]]:
    """What axe-core finds against a page in a browser, by rule: the elements; tests skip where it is not installed."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def found(page: Any) -> dict[str, list[str]]:
        page.evaluate(script)
        faults = page.evaluate("async () => (await axe.run()).violations")
        return {fault["id"]: [node["html"] for node in fault["nodes"]] for fault in faults}

    return found


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a process that forks ranks, started once for all tests; see forks.py."""
    from simpar.runtime.worker import die_with_parent

    pytest.importorskip("torch")
    address = tmp_path_factory.mktemp("forks") / "socket"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FORKS), "serve", str(address)]
    server = subprocess.Popen(command, env=environment, preexec_fn=die_with_parent)
    while not address.exists():
        assert server.poll() is None
        time.sleep(0.05)
    yield str(address)
    server.kill()
    server.wait()


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def forked(
    forks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """``simpar`` called in this process in an empty folder, its ranks forked where torchrun would start them."""
    from simpar import cli
    from simpar.runtime import launch

    def torchrun(workers: launch.RankLauncher, processes: int, *_: object) -> list[str]:
        command = [sys.executable, str(FORKS), "ask", forks, str(processes), str(workers.folder / "logs")]
        return [*command, workers.module, str(workers.argument)]

    def simpar(*arguments: object) -> Ended:
        capsys.readouterr()
        code = cli.run([*map(str, arguments)])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    monkeypatch.setattr(launch, "torchrun", torchrun)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.chdir(tmp_path)
    return simpar


def pytest_collection_finish() -> None:
    """Leave what was collected to itself: every full collection would walk through thousands of tests."""
    gc.freeze()
