"""Files are read strictly and written whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simpar.errors import UserError
from simpar.files import bundled, choose, load, parse, suggest, write_atomic
from simpar.hardware.device import Device

DEVICE = """name: x
peak_flop_per_s: {bf16: 100 TFLOP/s}
memory_bytes: 80 GiB
memory_bandwidth: 2 TB/s
num_sms: 100
"""


def written(tmp_path: Path, text: str | bytes, name: str = "device.yaml") -> Path:
    """A file with that content."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_good_file(tmp_path: Path) -> None:
    """A profile is read into SI."""
    assert parse(Device, load(written(tmp_path, DEVICE))).memory_bytes == 80 * 2**30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("memory_bytes: 80 GiB->memory_bytes: 80", r"device.yaml:3: memory_bytes = 80: needs a unit"),
        ("num_sms: 100->num_sm: 100", r"device.yaml:5: unknown key num_sm; did you mean 'num_sms'"),
        ("num_sms: 100->num_sms: -1", r"device.yaml:5: num_sms = -1: .*greater than or equal to 1"),
        ("num_sms: 100->num_sms: .nan", r"num_sms = nan: must be finite"),
        ("num_sms: 100->num_sms: 1e400", r"must be finite|num_sms"),
        ("name: x->name: x\nname: y", r"not valid YAML"),
        ("name: x->name: !!python/object/apply:os.system [ls]", r"not allowed|not valid"),
    ],
)
def test_bad_content_names_file_line_and_rule(tmp_path: Path, change: str, message: str) -> None:
    """One line: file, line, key, value, what is allowed."""
    old, new = change.split("->")
    with pytest.raises(UserError, match=message):
        parse(Device, load(written(tmp_path, DEVICE.replace(old, new))))


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"\xff\xfe\x00", b"x" * (9 << 20), b"{", b"[" * 500])
@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_unreadable_files(tmp_path: Path, content: bytes, name: str) -> None:
    """Empty, binary, huge, broken and deeply nested files are one line that names the file."""
    with pytest.raises(UserError, match=name):
        load(written(tmp_path, content, name))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A path that cannot be read says so."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            load(path)


def test_alias_bomb_is_refused(tmp_path: Path) -> None:
    """References that would multiply without end are refused before they do."""
    lines = ["a: &a [" + ",".join(["x"] * 9) + "]"]
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [" + ",".join([f"*{before}"] * 9) + "]")
    with pytest.raises(UserError, match=r"aliases|too many"):
        load(written(tmp_path, "\n".join(lines * 4)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.sampled_from(["f.yaml", "f.json"]))
def test_any_bytes_give_data_or_a_user_error(tmp_path: Path, content: bytes, name: str) -> None:
    """Whatever a file holds, the reader answers with plain data or one UserError."""
    try:
        document = load(written(tmp_path, content, name))
        parse(Device, document)
    except UserError as error:
        assert str(error)


def test_choose_suggests() -> None:
    """An unknown name gets the nearest one and the list."""
    with pytest.raises(
        UserError, match=r"unknown colour 'gren'; did you mean 'green'\?; allowed: blue, green"
    ):
        choose("gren", ["green", "blue"], "colour")
    assert suggest("zzz", ["green"]) == ""


def test_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rename never happens, the old content stays and no temporary file is left."""
    path = written(tmp_path, "old", "out.txt")

    def fail(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("kind", ["devices", "clusters", "stacks", "scenarios"])
def test_bundled_files_have_the_name_they_state(kind: str) -> None:
    """Profiles are found by name, and the name inside agrees."""
    files = bundled(kind)
    assert files
    if kind != "scenarios":
        assert all(load(path).data["name"] == name for name, path in files.items())
