"""What control groups allow a process: both versions, the tightest ancestor, and none."""

import os

import pytest

from simpar.runtime import container, this_machine
from simpar.runtime.failures import failure_by_signal

GIB = 2**30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Control groups from files by their paths, and where this process is in them."""
    monkeypatch.setattr(container, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr(container, "OWN", tmp_path / "own")

    def made(own, **texts):
        (tmp_path / "own").write_text(own)
        for path, text in texts.items():
            at = tmp_path / "mounted" / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)

    return made


SECOND = "0::/jobs/one\n"
FIRST = "3:cpu,cpuacct:/jobs/one\n2:memory:/jobs/one\n1:pids:/\n"


NONE = "9223372036854771712"
V2 = {"jobs/one/memory.max": "max", "jobs/memory.max": f"{2 * GIB}", "jobs/cpu.max": "150000 100000"}
V1 = {"memory/jobs/one/memory.limit_in_bytes": NONE, "memory/memory.limit_in_bytes": f"{3 * GIB}"}
CORES = {"cpu,cpuacct/jobs/one/cpu.cfs_quota_us": "50000", "cpu,cpuacct/jobs/one/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("own", "texts", "memory", "cores"),
    [
        (SECOND, V2, 2, 1.5),
        (SECOND, V2 | {"jobs/one/memory.max": f"{GIB}", "jobs/cpu.max": "max 100000"}, 1, None),
        (FIRST, V1 | CORES, 3, 0.5),
        (FIRST, {"memory/memory.limit_in_bytes": f"{GIB}", "cpu/cpu.cfs_quota_us": "-1"}, 1, None),
        ("", V2 | V1 | CORES, None, None),
    ],
)
def test_the_tightest_limit_counts(groups, own, texts, memory, cores):
    """Of a group and its ancestors; where the group itself is not to be seen, as in a container, those that are."""
    groups(own, **texts)
    assert container.memory_limit_bytes() == (memory and memory * GIB)
    assert container.core_limit() == cores
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert container.usable_memory_bytes() == min(everything, (memory or 10**6) * GIB)


def test_limits_are_those_of_ranks(groups, monkeypatch):
    """Threads follow the time of cores, and a kill for lack of memory is said with the limit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    groups("")
    assert this_machine.usable_cores() == 16
    assert "container" not in failure_by_signal([(0, 9, 7)], 0, 1, "").message
    groups(SECOND, **V2)
    assert this_machine.usable_cores() == 2
    said = failure_by_signal([(0, 9, 7)], 0, 1, "").message
    assert "ended 1 process for lack of memory meanwhile, of 2.00 GiB for all that run in this container" in said
