"""Sections of a block take what their steps take, whatever happens to collectives that others disturb."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, BlockStep, CollectiveUse, Phase
from simpar.program.blocks.segments import make_segment, schedule, take_section
from simpar.program.structure.sections import split_into_sections
from simpar.units import NS_PER_S

DISTURBED = frozenset(("cp",))


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[BlockStep], list[int], list[int]]:
    """Steps of a block, what they take alone, and what they take where others disturb those in groups "cp"."""
    steps, alone = list[BlockStep](), list[int]()
    for at in range(draw(st.integers(1, 14))):
        chain = st.just({at - 1}) if at else st.just(set())
        after = tuple(sorted(draw(chain | st.sets(st.integers(0, at - 1), max_size=3) if at else chain)))
        stream, alone_ns = draw(st.sampled_from((COMPUTE, COMPUTE, *BLOCK_STREAMS[1:3]))), draw(st.integers(1, 9))
        step = BlockStep(f"{at}", "forward", COMPUTE, alone_ns / NS_PER_S)
        if stream != COMPUTE:
            kind = draw(st.sampled_from(("tp", "cp")))
            step = BlockStep(f"{at}", kind, stream, collective=CollectiveUse(kind, "all_gather", alone_ns))
        steps.append(replace(step, after=after))
        alone.append(alone_ns)
    later = [
        took + draw(st.integers(0, 9)) if step.collective and step.collective.group in DISTURBED else took
        for step, took in zip(steps, alone, strict=True)
    ]
    return steps, alone, later


@given(blocks())
def test_a_block_in_sections_ends_as_step_by_step(block: tuple[list[BlockStep], list[int], list[int]]) -> None:
    """Every section begins and ends when its first step begins and its last one ends, also where some take longer."""
    steps, alone, later = block
    sections = split_into_sections(steps, DISTURBED)
    assert sorted(at for section in sections for at in section) == list(range(len(steps)))
    segment = make_segment(Phase(tuple(steps), issue_s=0.0), lambda use: int(use.size_bytes))
    starts, finishes = schedule(steps, later)
    ended, free = dict[int, int](), dict[str, int]()
    for section in sections:
        took = take_section(segment, section).duration_ns if len(section) > 1 else later[section[0]]
        streams = {steps[at].stream for at in section}
        waits = [ended[at] for at in steps[section[0]].after] + [free.get(stream, 0) for stream in streams]
        begin = max(waits, default=0)
        assert begin == min(starts[at] for at in section)
        assert begin + took == max(finishes[at] for at in section)
        ended |= dict.fromkeys(section, begin + took)
        free |= dict.fromkeys(streams, begin + took)
    assert alone == [int(finish - start) for start, finish in zip(segment.start_ns, segment.finish_ns, strict=True)]


def test_sections_end_at_joints() -> None:
    """A tensor-parallel gather beside a product is in one op with what is before and behind; a ring is in steps."""
    use = {kind: CollectiveUse(kind, "all_gather", 4) for kind in ("tp", "cp")}
    steps = [
        BlockStep.kernel("norm", "forward", 1e-9),
        BlockStep.moving("gather", use["tp"]).behind((0,)),
        BlockStep.kernel("product", "forward", 2e-9).behind((0,)),
        BlockStep.kernel("rope", "forward", 1e-9).behind((1, 2)),
        BlockStep.moving("permute", use["cp"], "cp").behind((3,)),
        BlockStep.kernel("own keys", "forward", 3e-9).behind((3,)),
        BlockStep.kernel("other keys", "forward", 3e-9).behind((4, 5)),
        BlockStep.kernel("projection", "forward", 3e-9).behind((6,)),
    ]
    assert split_into_sections(steps, DISTURBED) == [[0, 1, 2, 3], [4], [5], [6, 7]]
    assert split_into_sections(steps, frozenset()) == [list(range(8))]
    assert split_into_sections([], DISTURBED) == []
    assert split_into_sections(steps, frozenset(("tp",))) == [[0], [1], [2], [3, 4, 5, 6, 7]]


def test_parts_of_a_section_are_its_own() -> None:
    """Kernels, and what the compute stream waits for: a gather of 4 ns beside a product of 2."""
    use = CollectiveUse("tp", "all_gather", 4)
    steps = (
        BlockStep.kernel("norm", "forward", 1e-9),
        BlockStep.moving("gather", use).behind((0,)),
        BlockStep.kernel("product", "forward", 2e-9).behind((0,)),
        BlockStep.kernel("rope", "forward", 1e-9).behind((1, 2)),
        BlockStep.kernel("scores", "forward", 5e-9).behind((3,)),
    )
    segment = make_segment(Phase(steps, issue_s=0.0), lambda use: int(use.size_bytes))
    section = take_section(segment, [1, 2, 3])
    assert section.parts_ns == {"forward": 3, "tp": 2}
    assert (section.start_ns.tolist(), section.finish_ns.tolist()) == ([0, 0, 4], [4, 2, 5])
