"""Precisions of plans in other frameworks: those that a target has are written, of others the nearest, in words."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.frameworks import TARGETS, Inexpressible, export, load_target
from simpar.plan.plan import Plan
from simpar.precisions import PRECISIONS

from .conftest import written_and_lost

LLAMA = load_model("llama-3.2-1b")
SHAPE = Training(seq_len=512, global_batch=16)
EVERYWHERE = {"bf16", "fp32"}
NEAREST = {
    **dict.fromkeys(("fp8_blockwise", "mxfp8"), ("fp8", "fp8_rowwise", "bf16")),
    "fp8": ("fp8_rowwise", "bf16"),
    "fp8_rowwise": ("fp8", "bf16"),
    **dict.fromkeys(("nvfp4", "mxfp4", "fp16"), ("bf16",)),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_precision_that_a_target_lacks_is_named_and_the_nearest_stands_in_its_place(target: str) -> None:
    """16 bits in place of 8, not 32, which would be in a file that says neither of two half precisions."""
    known = load_target(target).numerics.precisions
    assert set(known) >= EVERYWHERE
    assert set(known) <= set(PRECISIONS)
    for name in sorted(set(PRECISIONS) - set(known)):
        files, lost = written_and_lost(target, precision=name)
        nearest = next(each for each in NEAREST[name] if each in known)
        assert lost == [f"precision = {name}: the target has {', '.join(known)}: {nearest} in its place"]
        assert files == written_and_lost(target, precision=nearest)[0]


@pytest.mark.parametrize("target", TARGETS)
def test_those_that_a_target_has_are_lost_nowhere_and_differ(target: str) -> None:
    """Files of two precisions are never the same."""
    texts = {}
    for name in load_target(target).numerics.precisions:
        files, lost = written_and_lost(target, precision=name)
        assert not lost
        texts[name] = "".join(files.values())
    assert len(set(texts.values())) == len(texts)


def test_without_leave_nothing_is_lost() -> None:
    """Not lossy: one line that says what the target has."""
    with pytest.raises(Inexpressible, match="precision = fp8: the target has bf16, fp16, fp32: bf16 in its"):
        export(Plan(dp=8, precision="fp8"), LLAMA, SHAPE, "transformers")
