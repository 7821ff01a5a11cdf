"""TeraPipe simulated: slices that add up, the pipeline's closed form, chosen lengths against equal ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import AttentionPattern
from simpar.architectures.training import Training
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import seen_keys
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.program.resolve.token_slices import choose_slices, slice_ends, slice_view, slowest_stage_ns, stack_dims
from simpar.report.result import Result
from simpar.simulation import make_job, simulate
from tests.gate import some

CLUSTER = load_cluster("dgx-h100")


def run(seq_len: int = 8192, global_batch: int = 2, **plan: object) -> Result:
    """A step of Llama-3 8B in eight stages."""
    values = {"pp": 8, "micro_batch": 1, "zero": 1, "recompute": "full", **plan}
    return simulate(
        "llama-3-8b", CLUSTER, Plan(**values), Training(seq_len=seq_len, global_batch=global_batch), with_timeline=False
    )


@pytest.mark.parametrize("mask", [AttentionPattern(), AttentionPattern(window=1024)])
@pytest.mark.parametrize("slices", [(4096,), (1024,) * 4, (2048, 1024, 512, 512)])
def test_slices_see_all_keys_once(mask: AttentionPattern, slices: tuple[int, ...]) -> None:
    """Pairs of query and key of all slices add up to those of the whole sequence."""
    pairs = [(end - begin) * seen_keys(mask, {"context": end, "before": begin}) for begin, end in slice_ends(slices)]
    assert sum(pairs) == pytest.approx(4096 * mask.mean_keys(4096))


def test_one_slice_is_the_whole_sequence() -> None:
    """A single slice changes nothing, to the nanosecond."""
    assert run(schedule="gpipe", slices=(8192,)).step_time_s == run(schedule="gpipe").step_time_s


def test_equal_slices_fill_the_pipeline_as_microbatches_do() -> None:
    """The bubble shrinks from (p-1)/(m+p-1) to (p-1)/(8m+p-1), where a later slice costs little more."""
    whole, cut = (run(seq_len=4096, schedule="gpipe", slices=slices) for slices in (None, (512,) * 8))
    assert whole.bubble_fraction == pytest.approx(7 / 9, abs=0.03)
    assert cut.bubble_fraction == pytest.approx(7 / 23, abs=0.07)
    assert cut.step_time_s < 0.6 * whole.step_time_s


def test_memory_does_not_grow_with_slices() -> None:
    """What waits for its backward is that of the same sequences; what one pass works with is smaller."""
    whole, cut = (run(schedule="gpipe", slices=slices) for slices in (None, (1024,) * 8))
    assert cut.memory.peak_memory_bytes <= whole.memory.peak_memory_bytes * 1.001


def test_long_sequences_are_cut_unevenly() -> None:
    """At 96K tokens attention rules: the chosen slices grow shorter and beat as many equal ones, and none at all."""
    seq_len = 98_304
    training = Training(seq_len=seq_len, global_batch=1)
    plan = Plan(pp=8, micro_batch=1, zero=1, recompute="full", schedule="terapipe")
    job = make_job(load_model("llama-3-8b"), CLUSTER, plan, training)
    slices = job.layout.slices
    assert slices == choose_slices(job, CLUSTER)
    assert slices is not None
    assert slices[0] > slices[-1]

    def seconds(lengths: tuple[int, ...]) -> float:
        cut = plan.with_values(slices=lengths)
        return simulate("llama-3-8b", CLUSTER, cut, training, with_timeline=False).step_time_s

    equal = (seq_len // 8,) * 8
    assert seconds(slices) < seconds(equal) < seconds((seq_len,))


def test_the_price_of_later_slices_grows_with_their_keys() -> None:
    """The last of eight slices sees fifteen times the keys of the first; its longer rows fill the pipeline better."""
    kernels = KernelModel(CLUSTER.device)
    ends = slice_ends((1024,) * 8)
    times = [
        float(
            kernels.attention_time_s(
                (1, 1024, 32, 128),
                context=e,
                seen=seen_keys(AttentionPattern(), {"context": e, "before": b}),
                backward=False,
            )
        )
        - kernels.latency_s
        for b, e in (ends[0], ends[-1])
    ]
    fill, blocks = kernels.parameters["attention_half_seq"] / 2, 32 * 1024 / 128
    tail = kernels.parameters["attention_tail"] * kernels.device.num_sms / blocks
    first, last = (1 + fill / 512 + 2 * tail, 1 + fill / 7680 + 8192 / 7680 * tail)
    assert times[1] / times[0] == pytest.approx(15 * last / first, rel=1e-3)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"slices": (4096, 4095)}, "8191 tokens in all"),
        ({"slices": (8191, 1), "tp": 2, "pp": 4}, "multiples of 2"),
        ({"schedule": "terapipe", "pp": 4, "cp": 2}, "allowed: cp 1"),
    ],
)
def test_bad_slices_are_refused(plan: dict[str, object], words: str) -> None:
    """One line that says what is allowed."""
    with pytest.raises(UserError, match=words):
        run(**plan)


def test_models_that_look_ahead_are_refused() -> None:
    """Without a causal mask a slice needs tokens behind it."""
    with pytest.raises(UserError, match="see later ones"):
        simulate("t5-3b", CLUSTER, Plan(pp=8, schedule="terapipe"), Training(seq_len=512, global_batch=8))


@pytest.mark.parametrize(
    ("model", "plan"),
    some(
        [
            ("llama-3-8b", {"pp": 8, "recompute": "full"}),
            ("gemma-2-9b", {"pp": 2, "tp": 2}),
            ("qwen3-30b-a3b", {"pp": 2, "ep": 4, "tp": 2, "sequence_parallel": True}),
        ],
        1,
        tuples=True,
    ),
)
def test_slices_at_once_take_what_each_takes_alone(model: str, plan: dict[str, object]) -> None:
    """Forward and backward of all slices from one walk through a block: those of one slice, to the nanosecond."""
    job = make_job(
        load_model(model), CLUSTER, Plan(micro_batch=1, zero=1, **plan), Training(seq_len=8192, global_batch=8)
    )
    alone = PassesAlone.of(job, CLUSTER)
    ends = [(1024, 2048), (2048, 8192), (7168, 8192)]
    views = [slice_view(alone.builder.view, begin, end) for begin, end in ends]
    stacked = replace(views[0], dims=stack_dims([view.dims for view in views]))
    together = slowest_stage_ns(replace(alone, builder=replace(alone.builder, view=stacked)), len(ends))
    for took_ns, view in zip(together, views, strict=True):
        own = replace(alone, builder=replace(alone.builder, view=view), known={})
        each = (
            sum(own.duration_ns(piece, kind) for piece in pieces for kind in ("forward", "backward"))
            for pieces in own.builder.pieces
        )
        assert took_ns == max(each)
