"""Searches on slow networks: how good the best plan is, what gap is left after some seconds of one core, and the list.

Usage: python benchmarks/slow_networks.py [--seconds 30] [--only N ...] [--jobs 2]

13B and 8B on four nodes with one 10 Gb/s card each, and ten jobs like them: 1 to 100 Gb/s, 2 to 64 nodes, PCIe boxes,
two islands that a thin link joins. Prints the table of docs/searching.md. Seconds are those of the process on its core,
so a busy machine changes little; gaps are smaller on a faster one. With more processes (as many as a search has by
default), the seconds are those of the first one, which sees every row, and those of the others follow behind a plus.
The last column is how many of the next four layouts are certain, and the seconds that this takes in all.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import simpar
from simpar.planner import make_problem
from simpar.planner.answer.beside import Beside
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.progress import SearchProgress, TimeIsUp
from simpar.planner.space.portable import of_its_framework
from simpar.workers import SOON_ENOUGH_S, Workers


@dataclass(frozen=True)
class Job:
    """A model on nodes of a profile over a network, and the step."""

    model: str
    hardware: str
    network: str
    nodes: int
    sequences: int
    seq_len: int
    stack: str = "megatron"
    out: dict[str, object] = field(default_factory=dict)
    """Changes of the profile's network."""

    def cluster(self) -> simpar.Cluster:
        """The cluster."""
        name = f"{self.hardware} over {self.network}" if self.network else self.hardware
        cluster = simpar.Cluster(name, nodes=self.nodes)
        if not self.out:
            return cluster
        profile = cluster.profile
        changed = profile.scale_out.model_copy(update=self.out)
        return simpar.Cluster(profile.model_copy(update={"scale_out": changed}), nodes=self.nodes)

    def describe(self) -> str:
        """One line."""
        thin = f", islands of {self.out['nodes_per_leaf']} at 1/{self.out['oversubscription']:g}" if self.out else ""
        where = f"{self.nodes} x {self.hardware}" + (f", {self.network}" if self.network else "") + thin
        return f"{self.model}, {self.stack} | {where} | {self.sequences} x {self.seq_len:,}"


ISLANDS = {"nodes_per_leaf": 4, "oversubscription": 32.0}
JOBS = (
    Job("llama-2-13b", "dgx-a100-40gb", "1x 10 Gb/s ethernet", 4, 256, 4096),
    Job("llama-3-8b", "dgx-a100-40gb", "1x 10 Gb/s ethernet", 4, 256, 4096),
    Job("llama-3-8b", "dgx-a100-40gb", "1x 10 Gb/s ethernet", 4, 256, 4096, "fsdp"),
    Job("llama-3-8b", "dgx-a100-40gb", "1x 1 Gb/s ethernet", 2, 128, 2048),
    Job("llama-3.2-1b", "rtx-3090-8", "1x 10 Gb/s ethernet", 2, 128, 2048),
    Job("llama-2-7b", "a100-pcie-8", "1x 25 Gb/s ethernet", 8, 256, 2048),
    Job("gpt3-1.3b", "l4-8", "1x 25 Gb/s ethernet", 16, 512, 2048),
    Job("llama-3-8b", "dgx-a100-80gb", "1x 100 Gb/s ethernet", 16, 512, 4096),
    Job("llama-3-70b", "dgx-a100-80gb", "2x 100 Gb/s ethernet", 16, 512, 4096),
    Job("llama-2-13b", "dgx-a100-80gb", "1x 100 Gb/s ethernet", 64, 1024, 4096),
    Job("mixtral-8x7b", "dgx-h100", "1x 100 Gb/s ethernet", 8, 256, 4096),
    Job("llama-3-70b", "dgx-h100", "", 8, 256, 4096, out=ISLANDS),
)


@dataclass
class CpuLimit(SearchProgress):
    """A search that ends after so many seconds of this process."""

    seconds_of_cpu: float = 30.0
    began: float = field(default_factory=time.process_time)

    def check(self) -> None:
        """Raise TimeIsUp after the limit."""
        if time.process_time() - self.began > self.seconds_of_cpu:
            raise TimeIsUp


def others_s() -> float:
    """Processor seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(job: Job, seconds: float, workers: Workers) -> str:
    """The line of the table of one job."""
    training = simpar.Training(seq_len=job.seq_len, global_batch=job.sequences)
    problem = of_its_framework(make_problem(job.model, job.cluster(), training, stack=job.stack))
    before_s, progress = others_s(), CpuLimit(seconds_of_cpu=seconds, workers=workers)
    search = BranchAndBound([], progress)
    with progress.stoppable():
        search.fields = fields_of(problem, [job.nodes], search.hear)
        search.run()

    def spent() -> str:
        """Seconds so far, of this process and of the others."""
        beside = f" + {others_s() - before_s:.0f}" if workers.jobs > 1 else ""
        return f"{time.process_time() - progress.began:.0f}{beside}"

    gap, counts, took = search.gap(), search.counts(), spent()
    is_certain = not progress.interrupted and gap == 0.0
    left = "certified" if is_certain else f"{100 * gap:.1f} %"
    best, left = (f"{search.best:.2f}", left) if search.ranked() else ("none", "all")
    listed = "not looked for"
    if is_certain:
        with Beside.of(search) as beside:
            results = [search.ranked()[0].report(), *beside.runners_up()]
            told: Any = beside.certified(results)["runners_up"]
        listed = f"{told['certified']} in {spent()}"
    return f"| {job.describe()} | {best} | {left} | {counts.simulated} | {took} | {listed} |"


def main(given: Iterable[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of jobs, from 0")
    parser.add_argument("--jobs", type=int, default=1, help="processes of each search")
    options = parser.parse_args(given)
    workers = Workers(options.jobs, patience_s=SOON_ENOUGH_S)
    print(
        "| model, stack | nodes | step | best s | gap | simulated | CPU s | next four certain |\n"
        "|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for number, job in enumerate(JOBS):
        if options.only is None or number in options.only:
            print(row(job, options.seconds, workers), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
