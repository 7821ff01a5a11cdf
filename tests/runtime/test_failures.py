"""What failed, in one line: which rank and stage ran out of memory, what was predicted, what to change."""

import errno
import json
import os
import re
import shutil

import pytest

from simpar import simulate
from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.runtime import launch
from simpar.runtime.failures import (
    OutOfMemory,
    RankFailure,
    WorkerFailure,
    ended_by_signal,
    failure_by_signal,
    is_memory,
    less_memory,
    of_torchrun,
    restarts_of,
    stage_of,
)
from simpar.runtime.job import Machine
from simpar.runtime.launch import NodeRendezvous, RankLauncher


def failed(folder, **reasons):
    """A folder where ranks left reasons: kind by rank."""
    for number, (rank, kind) in enumerate(reasons.items()):
        text = {"rank": int(rank[1:]), "kind": kind, "message": f"said by {rank}", "time": 10 - number}
        (folder / f"failed{rank}.json").write_text(json.dumps(text))
    (folder / "torchrun.log").write_text("")


def test_memory_is_told_before_what_fails_of_it(tmp_path):
    """Peers lose their connection first in time; the rank that ran out is the cause."""
    failed(tmp_path, r3="memory", r0="crash")
    with pytest.raises(OutOfMemory) as found:
        launch._raise_failure(tmp_path, 1, 1)
    assert found.value.rank == 3


def test_running_out_names_rank_stage_prediction_and_flags():
    """One line: nothing of it has to be looked up."""
    plan = Plan(pp=2, dp=2, tp=1, micro_batch=4)
    result = simulate("gpt2", load_cluster("laptop-cpu-4"), plan, Training(seq_len=64, global_batch=16))
    said = OutOfMemory(3, "out of memory (CUDA out of memory. Tried to allocate 2.00 GiB)").told(plan, result)
    assert "\n" not in said
    assert re.match(r"rank 3 \(stage 1 of 2\): out of memory \(CUDA .*\); predicted [\d.]+ [MG]iB of", said)
    assert said.endswith("less with --micro-batch 2, --zero 1, --recompute full, --set plan.offload_optimizer=cpu")
    assert "nothing was predicted" in OutOfMemory(0, "out of memory").told(plan, None)


def test_flags_that_are_taken_are_not_proposed():
    """What the plan already does is left out; at the end more devices."""
    plan = Plan(dp=2, zero=3, micro_batch=1, recompute="full", offload_optimizer="cpu")
    assert less_memory(plan) == ["more devices (--tp, --pp)"]
    assert stage_of(Plan(dp=2, pp=2, tp=1), 1) == (0, 2)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (ValueError("out of memory"), False),
        (RuntimeError("shape"), False),
    ],
)
def test_errors_of_allocators_are_known(error, memory):
    """Those of devices and hosts, and no others."""
    assert is_memory(error) == memory


def test_torchs_error_is_one_of_them():
    """By its class, whatever it says."""
    torch = pytest.importorskip("torch")
    assert is_memory(torch.OutOfMemoryError("x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n", "2 nodes did not meet .*--nnodes"),
        ("a\nValueError: odd\nb\n", "ValueError: odd"),
        ("", "no reason was left"),
    ],
)
def test_what_torchrun_says_is_read(tmp_path, text, words):
    """Nodes that did not meet, else its last error."""
    assert re.search(words, of_torchrun(text, tmp_path / "torchrun.log", 2))


def test_collectives_are_recorded_on_cuda(tmp_path, monkeypatch):
    """NCCL's flight recorder is on unless the user says otherwise, and where it wrote is named."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    workers = [RankLauncher("m", tmp_path, tmp_path, Machine(device=device)) for device in ("cuda", "cpu")]
    on, off = (launch._environment(each, NodeRendezvous()) for each in workers)
    assert on["TORCH_FR_BUFFER_SIZE"] == "7"
    assert on["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert on["TORCH_FR_DUMP_TEMP_FILE"] == on["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == str(tmp_path / "nccl-")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in off
    failed(tmp_path, r0="crash")
    (tmp_path / "nccl-0").touch()
    with pytest.raises(WorkerFailure, match=r"said by r0 .*nccl-\*, read by torchfrtrace"):
        launch._raise_failure(tmp_path, 1, 1)


def test_memory_that_ran_out_is_not_tried_again(tmp_path, monkeypatch):
    """A worker started again beside such a reason ends at once, with the code of its kind."""
    pytest.importorskip("torch")
    from simpar.runtime.worker import serve

    monkeypatch.setenv("RANK", "1")
    failed(tmp_path, r0="memory")
    assert serve(tmp_path, lambda: pytest.fail("must not work")) == 1


def test_a_worker_leaves_the_kind_of_its_failure(tmp_path, monkeypatch, capsys):
    """Out of memory is said as such, its first line only."""
    torch = pytest.importorskip("torch")
    from simpar.runtime.worker import serve

    def work():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nmore")

    monkeypatch.setenv("RANK", "2")
    assert serve(tmp_path, work) == 1
    left = json.loads((tmp_path / "failed2.json").read_text())
    assert (left["kind"], left["message"]) == ("memory", "out of memory (CUDA out of memory. Tried)")
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_for_the_user_to_mend(tmp_path, monkeypatch):
    """One line that names the file; such a run is not started again. Other errors of the system are crashes."""
    pytest.importorskip("torch")
    from simpar.runtime.worker import serve

    monkeypatch.setenv("RANK", "0")
    for number, (error, code, kind) in enumerate(
        [(errno.ENOSPC, 2, "user"), (errno.EDQUOT, 2, "user"), (errno.ECONNRESET, 1, "crash")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()

        def work(error=error):
            raise OSError(error, os.strerror(error), "log.jsonl")

        assert serve(folder, work) == code
        left = json.loads((folder / "failed0.json").read_text())
        assert left["kind"] == kind
    assert json.loads((tmp_path / "0" / "failed0.json").read_text())["message"] == (
        "log.jsonl: No space left on device; allowed: a folder with space"
    )


def test_a_disk_without_room_for_a_reason_is_known(tmp_path, monkeypatch):
    """Ranks that could leave nothing behind, and torchrun neither."""
    (tmp_path / "torchrun.log").write_text("")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(launch.shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(WorkerFailure, match=f"{tmp_path}: no space is left on its device"):
        launch._raise_failure(tmp_path, 1, 1)


def test_nodes_that_disagree_are_told_so(tmp_path, monkeypatch):
    """A job for two ranks among four: one line, before anything is joined."""
    pytest.importorskip("torch")
    from simpar.errors import UserError
    from simpar.runtime import worker
    from simpar.runtime.job import RunJob

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    job = RunJob(folder=str(tmp_path), plan=Plan(), model="gpt2", training={"seq_len": 8, "global_batch": 2}, steps=1,
              machine=Machine(processes=2))  # fmt: skip
    with pytest.raises(UserError, match="says 2 ranks in all, 4 have met"):
        worker.run(job)


SUMMARY = """
simpar.runtime.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_11:11:51
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 29141)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 29141
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_11:11:51
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 29140)
"""
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:38800. Check the logs of the remote worker"


def left_behind(folder, summary=SUMMARY, steps=3, **messages):
    """A folder as ranks leave it: torchrun's summary, a log of some steps, and what ranks said (by rank)."""
    (folder / "torchrun.log").write_text(summary)
    (folder / "log.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(steps)))
    for rank, message in messages.items():
        reason = {"rank": int(rank[1:]), "kind": "crash", "message": message, "time": float(rank[1:])}
        (folder / f"failed{rank[1:]}.json").write_text(json.dumps(reason))


def test_the_rank_that_a_signal_ended_is_the_cause(tmp_path, monkeypatch):
    """And not the one that lost its connection to it: rank, signal, steps, stage, and that nothing ran out."""
    left_behind(tmp_path, r0=LOST)
    monkeypatch.setattr(launch, "count_memory_kills", lambda: 4)
    with pytest.raises(RankFailure) as found:
        launch._raise_signal(tmp_path, 0.0, 4)
    assert found.value.told(Plan(pp=2, dp=1, tp=1), None) == (
        "rank 1 (stage 1 of 2): was ended by signal 9 (SIGKILL) after 3 steps: the operating system counts no kill for "
        f"lack of memory, so that something else sent it (process 29141) (logs: {tmp_path}/logs)"
    )


def test_a_kill_for_lack_of_memory_is_said_beside_the_prediction(tmp_path, monkeypatch):
    """The operating system counts them: the rank, what was predicted there, what needs less."""
    left_behind(tmp_path, r0=LOST)
    monkeypatch.setattr(launch, "count_memory_kills", lambda: 5)
    with pytest.raises(OutOfMemory) as found:
        launch._raise_signal(tmp_path, 0.0, 4)
    plan = Plan(pp=2, dp=1, tp=1, micro_batch=2)
    result = simulate(
        "gpt2", load_cluster("laptop-cpu-4"), Plan(pp=2, dp=2, tp=1), Training(seq_len=64, global_batch=16)
    )
    said = found.value.told(plan, result)
    assert "(SIGKILL) after 3 steps: the operating system ended 1 process for lack of memory meanwhile" in said
    assert re.search(r"; predicted [\d.]+ [MG]iB of [\d.]+ GiB there; less with --micro-batch 1, ", said)
    assert "on the device, predicted " in found.value.told(plan, result, on_device=True)


@pytest.mark.parametrize(
    ("kills", "words"),
    [
        (None, "was ended by signal 9 (SIGKILL) before its first step was done: as for lack of memory, which nothing"),
        (2, "the operating system ended 2 processes for lack of memory meanwhile"),
    ],
)
def test_what_is_not_counted_is_not_claimed(kills, words):
    """Systems without the counter, and several kills."""
    assert words in failure_by_signal([(0, 9, 7)], 0, kills, "").message


def test_other_signals_are_named(tmp_path):
    """A crash of a library; SIGTERM is torchrun's own."""
    assert ended_by_signal(SUMMARY.replace("-9", "-11")) == [(1, 11, 29141)]
    assert "signal 11 (SIGSEGV) after 2 steps (process 7)" in failure_by_signal([(0, 11, 7)], 2, 3, "").message
    assert ended_by_signal(SUMMARY.replace("-9", "-15")) == ended_by_signal("") == []


def test_all_that_were_ended_from_outside_are_lost(tmp_path):
    """Of two that were killed the first is told; one that aborts for want of a peer is not lost."""
    root = SUMMARY.replace("exitcode  : 1 (", "exitcode  : -9 (")
    assert (both := ended_by_signal(root)) == [(0, 9, 29140), (1, 9, 29141)]
    assert failure_by_signal(both, 2, 0, "").lost == (0, 1)
    aborted = ended_by_signal(root.replace("-9 (pid: 29141)", "-6 (pid: 29141)"))
    assert failure_by_signal(aborted, 2, 0, "").lost == (0,)
    first = ended_by_signal(root.replace(": 0 (local", ": 2 (local"))
    assert [rank for rank, _, _ in first] == [2, 1]
    assert failure_by_signal(both, 2, 1, "").lost == ()  # for lack of memory: fewer ranks have less


@pytest.mark.parametrize("messages", [{"r0": "ValueError: odd"}, {"r0": LOST, "r2": "ValueError: odd"}])
def test_a_rank_that_says_why_comes_first(tmp_path, messages):
    """A reason of its own is the cause, whatever signal ended another rank, and whoever lost a peer before."""
    left_behind(tmp_path, **messages)
    launch._raise_signal(tmp_path, 0.0, 0)
    with pytest.raises(WorkerFailure, match="ValueError: odd"):
        launch._raise_failure(tmp_path, 1, 1)


def test_the_log_of_an_earlier_run_counts_no_steps(tmp_path):
    """A rank that ended before its first step, in a folder with an older log."""
    left_behind(tmp_path, r0=LOST)
    os.utime(tmp_path / "log.jsonl", (10.0, 10.0))
    with pytest.raises(RankFailure, match="before its first step was done"):
        launch._raise_signal(tmp_path, 11.0, None)


def test_a_peer_on_another_node_is_said_to_be_elsewhere(tmp_path):
    """Nothing here ended first."""
    left_behind(tmp_path, summary="", r0=LOST)
    launch._raise_signal(tmp_path, 0.0, 0)
    with pytest.raises(RankFailure, match="a rank of another node ended first, of which its command says why"):
        launch._raise_failure(tmp_path, 1, 2)


def test_restarts_are_read_off_what_torchrun_says():
    """The process that failed first in each start, by a signal or by itself."""
    head = "E1130 00:31:45.526000 10601 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: "
    text = (
        f"{head}-9) local_rank: 1 (pid: 10855) of binary: python\nother\n{head}1) local_rank: 0 (pid: 7) of binary: p\n"
    )
    assert restarts_of(text) == [
        {"rank": 1, "reason": "was ended by signal 9 (SIGKILL)"}, {"rank": 0, "reason": "failed with exit code 1"},
    ]  # fmt: skip
    assert restarts_of("") == []


def test_threads_on_cpus_wait_in_a_loop_for_a_moment_only(tmp_path, monkeypatch):
    """Other processes' threads are not seen by OpenMP; who sets its policy is asked no further."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    workers = [
        launch.RankLauncher("module", tmp_path, tmp_path, Machine(device=device, threads=2))
        for device in ("cpu", "cuda")
    ]
    cpu, cuda = (launch._environment(each, NodeRendezvous()) for each in workers)
    assert (cpu["GOMP_SPINCOUNT"], cpu["KMP_BLOCKTIME"]) == ("1000", "1")
    assert not {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & cuda.keys()
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in launch._environment(workers[0], NodeRendezvous())
