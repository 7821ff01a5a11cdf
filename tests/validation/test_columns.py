"""Tables as people hand them in: other separators, marks, missing and misspelt columns, odd words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.validation import columns, rows
from simpar.validation.cells import Unmodelled
from simpar.validation.columns import PLAN_COLUMNS, RUN_COLUMNS, UNREAD, find_unread_columns
from simpar.validation.table import outcome, read_table, validate
from tests.validation.test_validate import ROW

ROOM = Path(columns.__file__).parent
RUNS = ("rows", "models", "devices", "predict", "table", "profile_overrides")


def written(path: Path, row: dict[str, str], separator: str = ",", *, mark: str = "", end: str = "\n") -> Path:
    """A table of one row."""
    lines = [separator.join(row), separator.join(row.values())]
    path.write_text(mark + end.join(lines) + end, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("separator", "mark", "end"), [(",", "\ufeff", "\r\n"), (";", "", "\n"), ("\t", "", "\n"), (", ", "", "\n")]
)
def test_what_a_spreadsheet_writes_is_read(separator, mark, end, tmp_path):
    """Byte order marks, carriage returns, semicolons and tabs change nothing."""
    row = ROW | {"interconnect": "InfiniBand"}
    found = read_table(written(tmp_path / "t.csv", row, separator, mark=mark, end=end))
    assert [dict(each) for each in found] == [row]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; a measured table needs source"),
        ("source,num_gpus,seq_len\na,8,1\n", "column n_gpus missing; did you mean 'num_gpus'?; a measured table"),
        (",".join(ROW) + "\n", "has no rows"),
    ],
)
def test_what_is_no_table_of_runs_is_one_line(content, message, tmp_path):
    """The file is named, and what it lacks."""
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        validate(path)
    assert "\n" not in str(caught.value)


def test_columns_that_nothing_reads_are_named(tmp_path, capsys):
    """A misspelt column is not quietly a blank one."""
    row = {("micro_bach" if name == "micro_batch" else name): value for name, value in ROW.items()}
    path = written(tmp_path / "t.csv", row | {"operator": "me"})
    assert validate(path)["columns_not_read"] == {"micro_bach": "did you mean 'micro_batch'?", "operator": ""}
    assert cli.run(["validate", str(path)]) == 0
    said = capsys.readouterr().out
    assert "column micro_bach is not read; did you mean 'micro_batch'?" in said
    assert "column operator is not read\n" in said


def test_every_column_that_is_read_is_documented():
    """The code reads no other columns than the table of them has, and the documentation has the same."""
    source = "".join((ROOM / f"{name}.py").read_text() for name in RUNS)
    read = set(re.findall(r'\b(?:text|number|whole|measurement|one_of|plain)\(\s*row, "(\w+)"', source))
    assert read - {"op", "direction"} <= {*RUN_COLUMNS, *PLAN_COLUMNS}
    page = (ROOM.parents[1] / "docs" / "measured.md").read_text()
    assert [line for name, what in RUN_COLUMNS.items() if (line := f"| `{name}` | {what} |") not in page] == []
    names = [*RUN_COLUMNS, *PLAN_COLUMNS, *UNREAD, "stack.launch.graphs", "hardware.scale_out", "model.norm"]
    assert find_unread_columns([dict.fromkeys(names, "")]) == {}


def test_nothing_searches_texts_for_patterns():
    """Tables are read by columns and vocabularies; regular expressions would read words into notes again.

    What reads the cell of one column by them is given the cell, and no row.
    """
    files = [*ROOM.glob("*.py"), *(ROOM.parent / "learning").glob("*.py")]
    assert len(files) > 20
    found = [path for path in files if re.search(r"^(import|from) re\b", path.read_text(), re.MULTILINE)]
    assert {path.name for path in found} == {"networks.py", "overlaps.py", "sharding.py", "stacks.py"}
    assert [path.name for path in found if "Row" in path.read_text()] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision": "int8"}, "precision = 'int8': "),
        ({"recompute": "sometimes"}, "recompute = 'sometimes': "),
        ({"schedule": "chimera"}, "schedule = 'chimera': "),
        ({"zero_stage_or_fsdp": "sharded"}, "zero_stage_or_fsdp 'sharded' is not a known word; allowed: 0 to 3"),
        ({"zero_stage_or_fsdp": "ZeRO-1 within 3 ranks of a node"}, "3 ranks do not divide the 8"),
        ({"gpu_type": "Gaudi 1"}, "no profile for gaudi 1"),
        ({"gpu_type": "A100 16GB"}, "no profile for a100 16gb"),
        ({"dp": "4"}, "tp x cp x pp x dp is not n_gpus"),
        ({"iteration_time_s": "-1"}, "iteration_time_s = -1 is negative"),
        ({"peak_mem_gib": "-2"}, "peak_mem_gib = -2 is negative"),
        ({"iteration_time_s": "1,5"}, "iteration_time_s is not a number"),
        ({"iteration_time_s": "nan"}, "iteration_time_s is not finite"),
        ({"n_gpus": ""}, "n_gpus not published"),
        ({"n_gpus": "0"}, "n_gpus = 0 is not a positive integer"),
        ({"n_gpus": "20", "dp": ""}, "n_gpus is not a multiple of gpus_per_node"),
        ({"tp": "3", "dp": ""}, "tp x cp x pp = 3 does not divide n_gpus = 16"),
        ({"n_heads": "7"}, "hidden is not a multiple of n_heads"),
        ({"n_kv_heads": "5"}, "does not fit 5 key-value heads"),
        ({"iteration_time_s": ""}, "nothing measured"),
    ],
)
def test_every_row_that_is_not_modelled_says_why(change, reason):
    """The reason is of this row, and true; nothing falls back to what the row does not say."""
    found = outcome(2, ROW | change)
    assert found.prediction is None
    assert reason in found.reason


@pytest.mark.parametrize("word", ["no", "off", "False", "0", "none"])
def test_no_recomputation_has_many_names(word):
    """None of them is full recomputation."""
    assert rows.case(ROW | {"recompute": word}).plan["recompute"] == "none"


@pytest.mark.parametrize(("word", "zero"), [("ZeRO-3", 3), ("ZeRO-2", 0), ("FSDP", 0), ("", 0)])
def test_one_device_keeps_the_stage_whose_hooks_run(word, zero):
    """Nothing is sharded over one device, but ZeRO-3 hooks every module there as well."""
    alone = {"n_gpus": "1", "gpus_per_node": "1", "dp": "1", "tp": "1", "pp": "1", "cp": "", "global_batch_seqs": "8"}
    assert rows.case(ROW | alone | {"zero_stage_or_fsdp": word}).plan["zero"] == zero


@pytest.mark.parametrize(
    ("word", "zero"), [("1", 1), ("zero 2", 2), ("ZeRO stage 3", 3), ("DDP", 0), ("no", 0), ("", 1)]
)
def test_stages_of_sharding_have_many_names(word, zero):
    """With or without the word, with a blank or a hyphen."""
    assert rows.case(ROW | {"zero_stage_or_fsdp": word}).plan["zero"] == zero


@pytest.mark.parametrize(
    ("change", "plan"),
    [
        ({"precision": "fp32"}, {"precision": "fp32"}),
        ({"schedule": "GPipe", "pp": "2", "dp": "4"}, {"schedule": "gpipe"}),
    ],
)
def test_words_of_plans_are_taken_as_they_are(change, plan):
    """What a plan can say, a row can."""
    assert plan.items() <= dict(rows.case(ROW | change).plan).items()


def test_a_node_has_eight_devices_where_nobody_says():
    """Gigabytes in the name of a device are not the boards of GB200."""
    assert rows.case(ROW | {"gpus_per_node": ""}).devices_per_node == 8
    assert rows.case(ROW | {"gpus_per_node": "", "gpu_type": "GB200"}).devices_per_node == 4


def test_every_shipped_device_of_a_table_has_its_profile():
    """A device that simpar ships is not called unknown."""
    for device, profile in {"NVIDIA L4": "l4-8", "L40S": "l40s-8", "GeForce RTX 4090": "rtx-4090-8"}.items():
        assert rows.case(ROW | {"gpu_type": device}).hardware == profile
    with pytest.raises(Unmodelled, match="gpu_type not published"):
        rows.case(ROW | {"gpu_type": ""})


def test_the_example_of_the_documentation_is_read_whole(tmp_path):
    """Every column is read, and the published run is predicted as closely as its source is."""
    page = (ROOM.parents[1] / "docs" / "measured.md").read_text()
    path = tmp_path / "t.csv"
    path.write_text(page.partition("```text\n")[2].partition("```")[0])
    found = validate(path)
    assert (found["modelled"], found["columns_not_read"]) == (1, {})
    assert found["time_ape_median"] < 5
    assert found["memory_ape_median"] < 5
