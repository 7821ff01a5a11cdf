"""Steps that repeat are run for some microbatches only: the times are those of the whole Program, op by op."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar import Cluster, Plan, Training, engine
from simpar.engine import event, periodic, plain
from simpar.native import NativeLibrary
from simpar.program.ir.builder import ProgramBuilder
from simpar.simulation import lower_job, make_job
from simpar.units import GB
from tests.gate import some


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Programs of tests are tiny."""
    monkeypatch.setattr(periodic, "FEW_OPS", 0)


class Counting:
    """The plain engine, and the ops of what it was given."""

    def __init__(self):
        self.ops = []

    def __call__(self, program):
        """Run it."""
        self.ops.append(len(program))
        return plain.run(program)


def both(program):
    """The ops of each run; the times are asserted to be those of the plain engine."""
    counting = Counting()
    ours, theirs = periodic.run(program, counting), plain.run(program)
    assert ours.start_ns.tolist() == theirs.start_ns.tolist()
    assert ours.finish_ns.tolist() == theirs.finish_ns.tolist()
    return counting.ops


PLANS = {
    "one stage": ({"dp": 8, "zero": 3}, 64),
    "ddp": ({"dp": 8}, 80),
    "1f1b": ({"pp": 2, "dp": 4, "zero": 1}, 80),
    "tensor parallel": ({"pp": 2, "tp": 2, "zero": 1}, 100),
    "interleaved": ({"pp": 2, "vpp": 2, "dp": 4, "schedule": "interleaved"}, 128),
    "zero 2": ({"pp": 2, "zero": 2}, 100),
    "context": ({"pp": 2, "cp": 2}, 100),
    "four": ({"pp": 4, "tp": 2}, 160),
    "zero bubble": ({"pp": 2, "schedule": "zb-h1"}, 100),
    "gpipe": ({"pp": 2, "schedule": "gpipe"}, 40),
    "recompute": ({"pp": 2, "recompute": "full", "zero": 3}, 80),
}


def lowered(plan, microbatches):
    """The Program of a step of so many microbatches on two boxes whose devices share links."""
    cluster = Cluster("a100-pcie-8", nodes=2)
    plan = Plan(**{"micro_batch": 1, **plan}).with_values(dp=None)
    ranks = plan.mesh.tp * plan.mesh.pp * plan.mesh.cp
    training = Training(seq_len=256, global_batch=microbatches * (cluster.world_size // ranks))
    return lower_job(make_job("tiny-llama", cluster, plan, training), cluster).program


@pytest.mark.parametrize("name", some(list(PLANS), ("one stage", "1f1b", "interleaved")))
def test_steps_have_the_times_of_all_their_ops(name):
    """With and without a pipeline, links shared; where all forwards come before all backwards, everything is run."""
    program = lowered(*PLANS[name])
    ops = both(program)
    assert ops == [len(program)] if name == "gpipe" else [ops[0]] == ops and ops[0] < 0.4 * len(program)


def chain(count, fixed_ns=10, **late):
    """Microbatches one after the other on one device: compute, then a flow to another stream's end."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    compute, network = build.add_stream("compute", gpu), build.add_stream("network", gpu)
    build.add_link("wire", GB)
    route = build.add_route([0])
    numbers = np.arange(count)
    fixed = np.full(count, fixed_ns)
    for at, value in late.items():
        fixed[int(at[1:])] = value
    passes = build.add_ops(count, fixed_ns=fixed, microbatch=numbers, class_id=gpu)
    sends = build.add_ops(count, work_bytes=5, route=route, microbatch=numbers, class_id=gpu)
    build.place(compute, passes)
    build.place(network, sends)
    build.depend(sends, passes)
    last = build.add_ops(1, fixed_ns=7, class_id=gpu)
    build.place(compute, last)
    build.depend(last, sends[-1:])
    return build.build()


def test_a_chain_is_run_for_a_few_of_its_microbatches():
    """A pass takes 10 ns, a flow of 5 bytes at 1 GB/s 5 ns beside the next: the last op ends at 100 x 10 + 5 + 7."""
    program = chain(100)
    counting = Counting()
    assert periodic.run(program, counting).makespan_ns == 1012
    assert len(counting.ops) == 1
    assert counting.ops[0] < 50


@pytest.mark.parametrize("at", [0, 3, 50, 97, 99])
def test_a_microbatch_unlike_the_others_counts(at):
    """One that takes 40 ns more lengthens the step by these, wherever it is."""
    program = chain(100, **{f"_{at}": 50})
    both(program)
    assert periodic.run(program, plain.run).makespan_ns == 1052


def test_flows_that_pile_up_never_settle():
    """A flow takes 5 ns and a pass 1: flows lag further behind with each microbatch, so that all are run."""
    ops = both(chain(100, fixed_ns=1))
    assert ops[-1] == len(chain(100))


def test_the_plain_engine_takes_what_repeats(monkeypatch):
    """By choice of ``auto``, which counts the ops that it ran; a small step is run as it is."""
    monkeypatch.setattr(event, "LIBRARY", NativeLibrary(event.LIBRARY.source, 10**9, {"FRACTION_BITS": 0}))  # not kept
    program = chain(400)
    ours = engine.choose_engine("auto", program)(program)
    assert event.LIBRARY.done < len(program) / 4
    assert ours.finish_ns.tolist() == plain.run(program).finish_ns.tolist()
    monkeypatch.setattr(periodic, "FEW_OPS", 10_000)
    engine.choose_engine("auto", program)(program)
    assert event.LIBRARY.done > len(program)


@st.composite
def repeating(draw):
    """Two classes, microbatches of random ops, offsets, durations and shared links, with odd ones at the ends."""
    build = ProgramBuilder()
    count = draw(st.integers(90, 160))
    numbers = np.arange(count)
    links = draw(st.integers(1, 3))
    for number in range(links):
        build.add_link(f"link {number}", draw(st.sampled_from([GB, 2 * GB, 3 * GB])))
    routes = [build.add_route([number]) for number in range(links)]
    ops, owners = [], []
    for name in ("a", "b"):
        own = build.add_class(name)
        streams = [build.add_stream(f"{name} {number}", own) for number in range(2)]
        for _ in range(draw(st.integers(1, 4))):
            flow = draw(st.booleans())
            columns = {"work_bytes": draw(st.integers(1, 40)), "route": draw(st.sampled_from(routes))} if flow else {}
            fixed = np.full(count, draw(st.integers(0, 30)))
            if draw(st.integers(0, 3)) == 0:
                fixed[draw(st.integers(0, count - 1))] = 99
            ops.append(build.add_ops(count, fixed_ns=fixed, class_id=own, microbatch=numbers, **columns))
            owners.append(draw(st.sampled_from(streams)))
    for at, one in enumerate(ops):  # those before it in a microbatch, or any op of earlier microbatches
        for _ in range(draw(st.integers(0, 2))):
            other, back = draw(st.integers(0, len(ops) - 1)), draw(st.integers(0, 3))
            back = max(back, 1) if other >= at else back
            build.depend(one[back:], ops[other][: count - back])
    for number in numbers:
        for stream, one in zip(owners, ops, strict=True):
            build.place(stream, one[number])
    last = build.add_ops(2, fixed_ns=5, class_id=0)
    build.place(owners[0], last)
    build.depend(last[:1], ops[-1][-1:])
    return build.build()


@settings(max_examples=40)
@given(repeating())
def test_random_steps_have_the_times_of_all_their_ops(program):
    """Whatever repeats and whatever does not."""
    both(program)
