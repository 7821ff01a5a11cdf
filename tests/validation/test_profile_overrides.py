"""Rows that name a plan file: the file says what ran, and words beside it must say the same."""

import json

import pytest

from simpar.plan.plan import Plan
from simpar.validation.cells import Unmodelled
from simpar.validation.predict import predict_time_s
from simpar.validation.profile_overrides import AS_NAMED, ProfileOverrides, read_planned_case
from simpar.validation.table import read_table, validate

MADE_FOR = {
    "model": "llama-3.2-1b", "training": {"seq_len": 2048, "global_batch": 64}, "stack": "megatron",
    "cluster": {"hardware": "dgx-h100", "nodes": 2},
}  # fmt: skip


def _plan(folder, **changes):
    said = {**Plan(tp=2, dp=8, zero=1, rank_order="dp-tp-cp-pp").model_dump(mode="json"), **MADE_FOR, **changes}
    (folder / "one.plan.json").write_text(json.dumps(said))
    return "one.plan.json"


def _table(folder, **cells):
    row = {"source": "ours", "n_gpus": "16", "seq_len": "2048", "plan": _plan(folder), **cells}
    path = folder / "runs.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    return path


def test_a_plan_is_the_whole_row(tmp_path):
    """Found from the folder of the table, with the order of its ranks, and predicted as what it says."""
    [row] = read_table(_table(tmp_path, iteration_time_s="1.5", tp="2", dp="8.0", precision="BF16"))
    case = AS_NAMED.case(row)
    assert (case.graph.name, case.hardware, case.num_devices, case.stack) == (
        "llama-3.2-1b",
        "dgx-h100",
        16,
        "megatron",
    )
    assert case.training.global_batch == 64
    assert Plan.model_validate(case.plan).mesh.order == ("dp", "tp", "cp", "pp")
    [detail] = validate(tmp_path / "runs.csv", jobs=1)["rows_detail"]
    assert detail["predicted_step_time_s"] == predict_time_s(case)
    assert detail["measured_step_time_s"] == 1.5


def test_profiles_that_are_chosen_take_the_place_of_its_own(tmp_path):
    """On the same device; on another one it was no run of these."""
    [row] = read_table(_table(tmp_path))
    assert ProfileOverrides(stack="nemo").case(row).stack == "nemo"
    assert ProfileOverrides(hardware="aws-p5").case(row).hardware == "aws-p5"
    with pytest.raises(Unmodelled, match="of another device"):
        ProfileOverrides(hardware="dgx-a100-80gb").case(row)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"tp": "4"}, "tp = 4, and .*one.plan.json has 2"),
        ({"dp": "4"}, "dp = 4, and .*one.plan.json has 8"),
        ({"precision": "fp8"}, "precision = fp8, and .*one.plan.json has bf16"),
        ({"n_gpus": "32"}, "n_gpus = 32, and .* has 16"),
        ({"global_batch_seqs": "8"}, "global_batch_seqs = 8, and .* has 64"),
        ({"plan": "none.plan.json"}, "none.plan.json"),
    ],
)
def test_words_that_say_something_else_are_a_line(tmp_path, cells, why):
    """Neither is taken for the other."""
    [row] = read_table(_table(tmp_path, **cells))
    with pytest.raises(Unmodelled, match=why):
        read_planned_case(row)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cluster": {"hardware": "dgx-h100", "nodes": 2, "nvls": False}}, "switches"),
        ({"cluster": {"hardware": {"name": "two", "groups": [
            {"hardware": "dgx-h100", "nodes": 1}, {"hardware": "dgx-a100-80gb", "nodes": 1}]}}}, "several kinds"),
        ({"mesh": {"tp": 0}}, "mesh"),
    ],
)  # fmt: skip
def test_what_no_table_has_is_a_line(tmp_path, changes, why):
    """Other switches than the profile's, several kinds of nodes, a plan that is none."""
    [row] = read_table(_table(tmp_path))
    _plan(tmp_path, **changes)
    with pytest.raises(Unmodelled, match=why):
        read_planned_case(row)
