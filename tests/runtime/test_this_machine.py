"""A profile that is of another machine is told, with in what."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from simpar.cli.run import _warn
from simpar.hardware.catalogue import load_cluster
from simpar.runtime import this_machine
from simpar.runtime.this_machine import product_flop_per_s, profile_flop_per_s, unlike_this_machine
from simpar.units import GIGA


@pytest.fixture
def laptop(monkeypatch):
    """The shipped laptop, told on a machine of two cores and 8 GiB whose products are as fast."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * 2**18}
    found = load_cluster("laptop-cpu-4", 1)
    monkeypatch.setattr(this_machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(this_machine.os, "sysconf", pages.get)
    monkeypatch.setattr(this_machine, "product_flop_per_s", lambda _: profile_flop_per_s(found, 4))
    return found


def with_host(cluster, **changes):
    """The cluster with other facts of its host."""
    host = cluster.profile.host.model_copy(update=changes)
    return replace(cluster, profile=cluster.profile.model_copy(update={"host": host}))


def test_cores_and_memory_are_told(laptop):
    """Ranks without shared cores, or more at work than there are cores, and another memory."""
    said = unlike_this_machine(laptop, 4)
    assert said == "4 ranks with processors of their own, here on 2 cores; 16.0 GiB of memory, here 8.00 GiB"
    own = with_host(laptop, compute_capacity=3.0, memory_bytes=8.2 * 2**30)
    assert unlike_this_machine(own, 3).startswith("3 ranks at work at a time, here on 2 cores")


def test_another_speed_is_told(laptop, monkeypatch):
    """Products twice as fast, or half as fast, as the ranks of the profile make them together."""
    own = with_host(laptop, compute_capacity=2.0, memory_bytes=8.2 * 2**30)
    here = profile_flop_per_s(own, 4)
    monkeypatch.setattr(this_machine, "product_flop_per_s", lambda _: 1.5 * here)
    assert unlike_this_machine(own, 4) == ""
    for factor in (0.3, 3.0):
        monkeypatch.setattr(this_machine, "product_flop_per_s", lambda _, factor=factor: factor * here)
        said = f"products at {here / GIGA:.0f} GFLOP/s in all, here {factor * here / GIGA:.0f}"
        assert unlike_this_machine(own, 4) == said
    assert here == pytest.approx(profile_flop_per_s(own, 2))


def test_products_of_this_machine_are_timed():
    """Some number of them a second, in the range of what processors do."""
    assert 1e7 < product_flop_per_s(1) < 1e15


def test_products_are_timed_beside_others():
    """The time that a core worked for one thread: others that keep it from working do not count."""
    alone = product_flop_per_s(1)
    load = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * this_machine.usable_cores())
    ]
    try:
        beside = product_flop_per_s(1)
    finally:
        for each in load:
            each.kill()
            each.wait()
    assert 0.4 < beside / alone < 2.5


@pytest.mark.parametrize(("share", "said"), [(0.78, "used 78% of the cores meanwhile"), (0.05, ""), (None, "")])
def test_work_of_others_is_told_beside_the_prediction(laptop, monkeypatch, capsys, share, said):
    """A prediction is for a machine that does nothing else."""
    own = with_host(laptop, compute_capacity=2.0, memory_bytes=8.2 * 2**30)
    report = {"machine": {"device": "cpu"}, "ranks": 4, "cores_used_by_others": share}
    _warn(SimpleNamespace(cluster=own), report)
    told = capsys.readouterr().err
    assert said in told if said else "used" not in told
