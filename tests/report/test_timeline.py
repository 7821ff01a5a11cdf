"""The timeline and its compact form."""

import json
import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import simpar
from simpar.program.ir.program import Timing
from simpar.report import drawn
from simpar.report import timeline as timelines
from simpar.report.timeline import IDLE_CAUSES, KINDS, Blocks, IdleSpans, MemoryCurve, RankClass, overview


def test_overview_has_one_view_per_pipeline_rank_and_one_block_per_action(timeline):
    """Four stages with 8 microbatches give 16 passes a stage."""
    view = overview(timeline)
    assert [stage.pipeline_rank for stage in view.stages] == [0, 1, 2, 3]
    for stage in view.stages:
        assert len(stage.blocks.of_kind("forward")) == len(stage.blocks.of_kind("backward")) == 8


def test_overview_keeps_busy_time(timeline):
    """Merging slices into blocks neither adds nor loses compute time."""
    for stage in overview(timeline).stages:
        assert stage.blocks.of_kind("forward").duration_s.sum() == pytest.approx(8 * 3e-3)
        assert stage.blocks.of_kind("backward").duration_s.sum() == pytest.approx(8 * 6e-3)


def test_overview_survives_json(timeline):
    """What to_json writes, from_json reads back unchanged."""
    view = overview(timeline)
    data = json.loads(json.dumps(timelines.to_json(view)))
    assert timelines.to_json(timelines.from_json(data)) == data


def test_blocks_name_kind_chunk_and_microbatch(timeline):
    """A block row reads [start_s, duration_s, kind, chunk, microbatch]."""
    row = timelines.to_json(overview(timeline))["stages"][0]["blocks"][0]
    assert row == [0.0, pytest.approx(3e-3), "forward", 0, 0]


def test_kernels_of_one_action_merge_into_one_block(timeline):
    """Split every pass in two kernels with a gap: the blocks stay one per action."""
    slices = timeline.slices
    half = (slices.finish_ns - slices.start_ns) // 3
    first = slices.take(np.arange(len(slices)))
    columns = {name: getattr(slices, name) for name in slices.__dataclass_fields__}
    early = type(slices)(**{**columns, "finish_ns": first.start_ns + half})
    late = type(slices)(**{**columns, "start_ns": first.finish_ns - half})
    both = type(slices)(**{name: np.concatenate([getattr(early, name), getattr(late, name)]) for name in columns})
    split = type(timeline)(both, timeline.labels, timeline.classes, timeline.streams, timeline.arrows)
    assert len(overview(split).stages[0].blocks.of_kind("forward")) == 8


def test_the_slowest_class_of_a_pipeline_rank_is_shown(timeline):
    """Of two classes on one pipeline rank the one that ends later represents it, however few its ranks."""
    slices = timeline.slices
    classes = (RankClass("stage 0", 0, 0, 7), *timeline.classes[1:3], RankClass("slow", 0, 3, 1))
    finish = np.where(slices.class_id == 3, slices.finish_ns + 1, slices.finish_ns)
    columns = {name: getattr(slices, name) for name in slices.__dataclass_fields__} | {"finish_ns": finish}
    mixed = type(timeline)(type(slices)(**columns), timeline.labels, classes, timeline.streams, timeline.arrows)
    assert timelines.choose_shown_classes(mixed) == (3, 1, 2)


def test_the_slowest_rank_of_a_pipeline_rank_has_a_row_of_its_own():
    """Named, behind those at full speed, however many ranks are slow: two stages, of which one has slow ranks."""
    plan, training = simpar.Plan(pp=2, zero=1), simpar.Training(seq_len=64, global_batch=16)
    slow = simpar.Perturbation(slow_ranks={5: 1.5, 6: 1.2, 7: 1.5})
    result = simpar.simulate("tiny-llama", "dgx-h100", plan, training, perturbation=slow)
    view = result.overview
    assert [(each.name, each.multiplicity) for each in view.stages] == [
        ("stage 0 like rank 1", 2), ("stage 1 like rank 4", 1), ("stage 1 like rank 5, 1.5 x slower", 2),
    ]  # fmt: skip
    assert (view.num_pipeline_ranks, view.of_pipeline_rank(1).name) == (2, "stage 1 like rank 4")
    fast, slowest = (view.stages[row].parts_s for row in (1, 2))
    assert slowest["compute"] == pytest.approx(1.5 * fast["compute"], rel=0.01)


def test_thinning_keeps_the_peak():
    """A thinned curve has at most the wanted points and the same maximum."""
    held = np.random.default_rng(0).uniform(0, 1, 10_000)
    curve = MemoryCurve(np.arange(10_000.0), {"activations": held, "parameters": np.ones(10_000)})
    thin = curve.thin(500)
    assert len(thin.time_s) <= 500
    assert thin.total_bytes.max() == curve.total_bytes.max()
    assert (np.diff(thin.time_s) > 0).all()


def test_a_timed_program_becomes_slices_with_arrows(program_of):
    """One slice per op and stream; an arrow runs from the message to the op of the other class."""
    timing = Timing(np.array([0, 10, 15]), np.array([10, 15, 25]))
    ops = [(0, "forward"), (0, "pp"), (1, "forward")]
    program = program_of(timing, ops, {"0:compute": [0], "0:send_F": [1], "1:compute": [2]}, [(1, 0), (2, 1)])
    classes = [RankClass("stage 0", 0, 0, 4), RankClass("stage 1", 1, 4, 4)]
    made = timelines.from_program(program, timing, classes)
    assert made.streams == ("compute", "send_F")
    assert made.arrows.tolist() == [[1, 2]]
    assert made.span_ns == 25
    assert [KINDS[code] for code in made.kind_codes()] == ["forward", "pp", "forward"]


def test_idle_pieces_are_joined_and_survive_json(timeline):
    """Neighbours of one cause are one piece, what nobody sees is left out, kinds of communication are exposed."""
    begin, end = np.array([0, 5, 10, 20]), np.array([5, 10, 11, 10**6])
    names = ("exposed_dp", "exposed_tp", "bubble", "waiting")
    idle = IdleSpans.of(begin, end, np.arange(4), names, span_ns=10**5)
    assert idle.start_s.tolist() == pytest.approx([0.0, 20e-9])
    assert [IDLE_CAUSES[code] for code in idle.cause] == ["exposed", "waiting"]
    view = overview(timeline)
    stages = [replace(stage, idle=idle, parts_s={"compute": 1.5}) for stage in view.stages]
    data = json.loads(json.dumps(timelines.to_json(replace(view, stages=tuple(stages)))))
    again = timelines.from_json(data)
    assert timelines.to_json(again) == data
    assert again.stages[0].parts_s == {"compute": 1.5}
    assert timelines.from_json(timelines.to_json(view)).stages[0].idle is None


def test_thinning_keeps_extremes_and_shape():
    """A thousand teeth in 300 points: every column has the curve's lowest, highest and last level in it."""
    tooth = np.concatenate([np.linspace(1, 9, 9), np.linspace(8, 1, 8)])
    held = np.append(np.tile(tooth, 1003), 1.0)
    curve = MemoryCurve(np.arange(len(held), dtype=float), {"activations": held})
    thin = curve.thin(300)
    assert len(thin.time_s) <= 300
    assert (np.diff(thin.time_s) > 0).all()
    edges = np.linspace(0, len(held) - 1, 101)
    edges[-1] += 1  # the last point is in the last column
    for begin, end in pairwise(edges):
        whole, drawn = (e.total_bytes[(e.time_s >= begin) & (e.time_s < end)] for e in (curve, thin))
        assert (drawn.min(), drawn.max(), drawn[-1]) == (whole.min(), whole.max(), whole[-1]) == (1, 9, whole[-1])


def test_a_thinned_plateau_keeps_its_level():
    """A burst of changes, then nothing until the end: the level behind the burst is the curve's."""
    burst = np.random.default_rng(1).uniform(0, 1, 5000)
    burst[-1] = 0.5
    time = np.append(np.linspace(0, 1, 5000), 100.0)
    thin = MemoryCurve(time, {"transient": np.append(burst, 0.25)}).thin(400)
    assert thin.total_bytes[np.searchsorted(thin.time_s, 50.0) - 1] == 0.5


def test_a_pass_that_waits_for_its_parameters_is_not_drawn_as_computing():
    """Gathers over a slow network: passes are drawn in parts, which add up to the compute of the breakdown."""
    plan = simpar.Plan(zero=3, precision="fp16")
    result = simpar.simulate("gpt2-xl", "t4-4", plan, simpar.Training(seq_len=1024, global_batch=8))
    (stage,) = result.overview.stages
    passes = stage.blocks.of_kind("forward", "backward")
    assert result.time_breakdown_s.exposed_dp > result.time_breakdown_s.compute
    assert passes.duration_s.sum() == pytest.approx(result.time_breakdown_s.compute, rel=1e-3)
    assert len(passes) > 4  # of two microbatches
    order = np.argsort(passes.start_s)
    start, finish = passes.start_s[order], (passes.start_s + passes.duration_s)[order]
    assert (start[1:] >= finish[:-1] - 1e-12).all()
    idle = stage.idle
    inside = (idle.start_s[:, None] + 1e-12 < finish) & (
        idle.start_s[:, None] + idle.duration_s[:, None] - 1e-12 > start
    )
    assert not inside.any()


def test_cutting_leaves_other_blocks_and_idle_time_outside_of_passes():
    """One pass of 10 s with an idle piece from 4 to 6, beside a message of 10 s; a piece behind it cuts nothing."""
    kinds = np.array([KINDS.index("forward"), KINDS.index("pp")])
    blocks = Blocks(np.zeros(2), np.full(2, 10.0), kinds, np.zeros(2, dtype=int), np.full(2, 3))
    idle = IdleSpans(np.array([4.0, 10.0]), np.array([2.0, 5.0]), np.zeros(2, dtype=int))
    cut = blocks.cut(idle)
    assert cut.of_kind("forward").start_s.tolist() == [0.0, 6.0]
    assert cut.of_kind("forward").duration_s.tolist() == [4.0, 4.0]
    assert cut.of_kind("forward").microbatch.tolist() == [3, 3]
    assert cut.of_kind("pp").duration_s.tolist() == [10.0]


def test_what_only_pictures_show_is_made_when_it_is_read(monkeypatch):
    """Neither is made with the result; both once for all readers, in JSON, in copies and in other processes."""
    made = []
    for name in ("from_program", "overview", "held_at_peak", "roofline_of"):
        whole = getattr(drawn, name)
        told = lambda *given, name=name, whole=whole, **named: made.append(name) or whole(*given, **named)  # noqa: E731
        monkeypatch.setattr(drawn, name, told)
    result = simpar.simulate("tiny-llama", "dgx-h100", {"micro_batch": 1}, {"seq_len": 256, "global_batch": 8})
    beside = result.with_published(None)
    assert not made
    other = pickle.loads(pickle.dumps(result))
    assert made == ["from_program", "overview", "held_at_peak", "roofline_of"]
    assert other.to_json() == result.to_json()
    assert other.overview.held == result.overview.held is not None
    assert result.timeline is beside.timeline is not None
    assert len(made) == 4
