"""Everything that a precision declares holds, whichever it is."""

import re
from pathlib import Path

import pytest

from simpar.cost.kernels import DEFAULTS, variants
from simpar.plan.plan import Plan
from simpar.precisions import IN_TORCH, PRECISIONS, in_place_of, narrower
from simpar.units import DTYPE_BYTES

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_is_declared_whole(name: str) -> None:
    """A plan has it, products have a dtype to hand on, kernels a parameter for every rate, targets one in its place."""
    found = PRECISIONS[name]
    assert Plan(precision=name).numerics.products is found
    assert found.summary
    assert found.handed_dtype in DTYPE_BYTES
    assert found.is_cast == (found.bits < 16) == bool(found.rates)
    assert {*found.rates, found.needs or "bf16"} <= DTYPE_BYTES.keys()
    assert all(DEFAULTS.keys() >= {*variants(each, name)} for each in ("sustained_clock", "gemm_efficiency"))
    assert (in_place_of(name, ["bf16", "fp32"]) == name) == (not found.in_its_place)


@pytest.mark.parametrize(
    ("name", "operand"),
    [
        ("bf16", 2),
        ("fp32", 4),
        ("fp8", 1),
        ("fp8_rowwise", 1),
        ("fp8_blockwise", 132 / 128),
        ("mxfp8", 33 / 32),
        ("nvfp4", 9 / 16),
    ],
)
def test_operands_have_their_share_of_scales(name: str, operand: float) -> None:
    """Blocks share a scale; of a tensor it is nothing. Only what is cast moves bytes for it."""
    assert PRECISIONS[name].operand_bytes == operand
    assert (PRECISIONS[name].cast_bytes > 0) == (name not in ("bf16", "fp32"))


def test_precisions_are_grouped_by_their_bits() -> None:
    """As models keep some products in more of them; the runtime computes what torch can."""
    assert narrower(8) == ("nvfp4", "mxfp4")
    assert narrower(16) == ("fp8", "fp8_rowwise", "fp8_blockwise", "mxfp8", "nvfp4", "mxfp4")
    assert IN_TORCH == ("bf16", "fp16", "fp32", "fp8")


def test_an_unknown_precision_is_told_what_there_is() -> None:
    """With the nearest one."""
    with pytest.raises(ValueError, match=r"is not a precision; did you mean 'mxfp8'\?; allowed: bf16, fp16"):
        Plan(precision="mxpf8")


def test_schema_and_docs_name_all_of_them() -> None:
    """The schema of plans, and the table of search axes."""
    assert Plan.model_json_schema()["properties"]["precision"]["enum"] == [*PRECISIONS]
    row = next(line for line in (DOCS / "search_axes.md").read_text().splitlines() if "| `precision` |" in line)
    assert re.findall(r"\w+", row.split("|")[2]) == [*PRECISIONS]
