"""Files are read strictly and written whole."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simpar import cli
from simpar.errors import UserError
from simpar.files import bundled, check_writable, choose, find, load, look_beside, parse, suggest, write_atomic
from simpar.hardware.device import Device
from simpar.hardware.profile import ClusterProfile
from simpar.json_text import json_places, line_in_json
from simpar.plain import MAX_NODES
from simpar.plan.choices.tuning import Tuning
from simpar.regular_files import check_is_file
from simpar.scenario import load_scenario

DEVICE = """name: x
peak_flop_per_s: {bf16: 100 TFLOP/s}
memory_bytes: 80 GiB
memory_bandwidth: 2 TB/s
num_sms: 100
"""
FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)


def written(tmp_path: Path, text: str | bytes, name: str = "device.yaml") -> Path:
    """A file with that content."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(tmp_path: Path, text: str | bytes, name: str = "device.yaml") -> Any:
    """The data of a file with that content."""
    return load(written(tmp_path, text, name)).data


def test_good_file(tmp_path: Path) -> None:
    """A profile is read into SI."""
    assert parse(Device, load(written(tmp_path, DEVICE))).memory_bytes == 80 * 2**30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("memory_bytes: 80 GiB->memory_bytes: 80", r"device.yaml:3: memory_bytes = 80: needs a unit"),
        ("memory_bytes: 80 GiB->memory_bytes: 0", r"device.yaml:3: memory_bytes = 0: needs a unit"),
        ("memory_bytes: 80 GiB->memory_bytes: -1 GiB", r"device.yaml:3: memory_bytes = .*greater than 0"),
        ("num_sms: 100->num_sm: 100", r"^\S*device.yaml:5: unknown key num_sm; did you mean 'num_sms'"),
        ("num_sms: 100->num_sms: -1", r"device.yaml:5: num_sms = -1: .*greater than or equal to 1"),
        ("num_sms: 100->num_sms: .nan", r"device.yaml:5: num_sms = .nan: must be finite"),
        ("num_sms: 100->num_sms: 1e400", r"device.yaml:5: num_sms = 1e400: must be finite"),
        (f"num_sms: 100->num_sms: {2**63}", r"device.yaml:5: num_sms = .*: must fit in 64 bits"),
        (f"num_sms: 100->num_sms: {'9' * 5000}", r"device.yaml:5: num_sms = .* is no YAML 1.2 int"),
        ("name: x->name: x\nname: y", r"device.yaml:2: key 'name' appears twice"),
        ("name: x->name: !!python/object/apply:os.system [ls]", r"device.yaml:1: tag \S+os.system is not allowed"),
        ("name: x->name: !mine y", r"device.yaml:1: tag !mine is not allowed"),
        ("name: x->name: !!binary aGk=", r"device.yaml:1: tag \S+binary is not allowed"),
        ("name: x->name: x\n? [a]\n: 1", r"device.yaml:2: a key must be a text"),
        ("name: x->name: x\nnull: 1", r"device.yaml:2: a key must be a text"),
        ("name: x->name: x\nk: {<<: 1}", r"device.yaml:2: << must name a mapping"),
        ("name: x->name: x\nk: &k {<<: *k}", r"device.yaml:2: nested more than"),
        ("name: x->name: &a [*a]", r"device.yaml:1: nested more than 40"),
        ("name: x->name: *a", r"device.yaml:1: not valid YAML .*undefined alias"),
        ("name: x-><!doctype html><p>: {", r"device.yaml: is a page to look at; allowed: YAML, or JSON"),
        ("name: x->%YAML 1.1\n---\nname: yes", r"device.yaml:3: name = 'yes' is no YAML 1.2 bool"),
        ('name: x->"na\\nme": x', r"unknown key na\\nme"),
    ],
)
def test_bad_content_names_file_line_and_rule(tmp_path: Path, change: str, message: str) -> None:
    """One line: file, line, key, value, what is allowed."""
    old, new = change.split("->")
    text = new + DEVICE.removeprefix(old) if new.startswith("%") else DEVICE.replace(old, new)
    with pytest.raises(UserError, match=message):
        parse(Device, load(written(tmp_path, text)))


def test_merge_keys_lend_what_a_mapping_lacks(tmp_path: Path) -> None:
    """Its own keys win wherever they stand, then the first of several; nested ones are read, too."""
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2, z: 2}\nc:\n  z: 3\n  <<: [*b, {y: 4, w: 4}]\n"
    document = load(written(tmp_path, text))
    assert document.data["c"] == {"x": 1, "y": 2, "z": 3, "w": 4}
    assert document.place(("c", "w")).endswith(":5")
    assert document.place(("c", "z")).endswith(":4")


def test_several_problems_are_a_line_each(tmp_path: Path) -> None:
    """A misspelt key comes first, and what is missing is not said: it is usually the same."""
    text = DEVICE.replace("num_sms", "num_sm").replace("2 TB/s", "2 GiB")
    with pytest.raises(UserError) as caught:
        parse(Device, load(written(tmp_path, text)))
    first, second = str(caught.value).splitlines()
    assert "unknown key num_sm" in first
    assert "memory_bandwidth = '2 GiB': needs a number and a unit, such as 450 GB/s" in second


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("cluster: dgx-h100", "cluster = 'dgx-h100': is not a mapping; allowed: {hardware: dgx-h100, nodes: ..., "),
        ("plan: x", "plan = 'x': is not a mapping; allowed: {tp: ..., cp: ..., dp: ..., pp: ..., ...}"),
        ("training: [1]", "training = [1]: is not a mapping; allowed: {seq_len: ..., global_batch: ..., "),
    ],
)
def test_a_value_in_place_of_a_section_is_told_the_section(line: str, allowed: str, tmp_path: Path) -> None:
    """With its keys, and the value under the one that it needs; classes of simpar are not named."""
    text = "model: gpt2\ncluster: {hardware: dgx-h100}\ntraining: {seq_len: 1, global_batch: 1}\n"
    lines = [each for each in text.splitlines() if not each.startswith(line.split(":")[0])]
    (tmp_path / "s.yaml").write_text("\n".join([line, *lines]))
    with pytest.raises(UserError, match=rf"^\S+s\.yaml:1: {re.escape(allowed)}"):
        load_scenario(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("key", "misspelt"), [("nics_per_node", "nics_pernode"), ("nic_bandwidth", "bandwidth")], ids=["letter", "other"]
)
def test_suggestions_reach_into_optional_sections(key: str, misspelt: str, tmp_path: Path) -> None:
    """A misspelt key of an optional section is suggested from that section's keys, even if another one has it."""
    text = Path(bundled("clusters")["hgx-h100"]).read_text().replace(key, misspelt)
    with pytest.raises(UserError, match=rf":\d+: unknown key scale_out.{misspelt}; did you mean '{key}'"):
        parse(ClusterProfile, load(written(tmp_path, text)))


@pytest.mark.parametrize(
    "content",
    [b"", b"# only words\n", b"\x00\x01", b"\xff\xfe\x00", b"x" * (9 << 20), b"{", b"[" * 500, b"- a\n  b: 1\n :"],
)
@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_unreadable_files(tmp_path: Path, content: bytes, name: str) -> None:
    """Empty, binary, huge, broken and deeply nested files are one line that names the file."""
    with pytest.raises(UserError, match=name) as caught:
        load(written(tmp_path, content, name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n"a": 2}', r"f.json:2: key 'a' appears twice"),
        ('[{"a": 1}, {"b": [1, {"c": 2,\n"c": 2}]}]', r"f.json:2: key 'c' appears twice"),
        ('{"a": {\n"b": NaN}}', r"f.json:2: a.b = nan: must be finite"),
        ('{"a": [1, 1e999]}', r"f.json:1: a.1 = inf: must be finite"),
        ('{"a": 123456789012345678901}', r"f.json:1: a = 123456789012345678901: must fit in 64 bits"),
        ('{"a": "\\ud800"}', r"f.json:1: a = '\\ud800': must be text"),
        ('{"\\ud800": 1}', r"f.json:1: key '\\ud800' must be text"),
        ('{\n"a": 1\n"b": 2}', r"f.json:3: not valid JSON"),
        ("\n[" * 5_000 + "]" * 5_000, r"f.json:43: nested too deeply"),
        ('{"a":\n' + "1" * 5_000 + "}", r"f.json:2: a number of more than 1000 digits"),
        ("[" * 60 + "]" * 60, r"f.json:1: nested more than 40"),
    ],
)
def test_json_is_as_strict(tmp_path: Path, text: str, message: str) -> None:
    """JSON files obey the same rules as YAML files."""
    with pytest.raises(UserError, match=message):
        read(tmp_path, text, "f.json")


@pytest.mark.parametrize("indent", [1, "\t"])
def test_errors_in_json_name_the_line(tmp_path: Path, indent: int | str) -> None:
    """A value that breaks a rule is found in JSON, too, however it is indented and however long the text is."""
    text = json.dumps({"name": "x", "sources": ["a " * 300_000], "num_sms": 0}, indent=indent)
    with pytest.raises(UserError, match=r"f.json:6: num_sms = 0: "):
        parse(Device, load(written(tmp_path, text, "f.json")))


PLAIN = st.recursive(
    st.integers() | st.text(max_size=4) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(PLAIN, st.sampled_from([None, 0, 2, "\t"]))
def test_places_of_json_are_those_of_its_values(data: object, indent: int | str | None) -> None:
    """Every key and list item has a place, in the order of the text, on a line that holds what stands there."""

    def places(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
        if isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield (*at, key)
                yield from places(item, (*at, key))

    text = json.dumps(data, indent=indent)
    told = list(json_places(text))
    assert [place for place, _ in told] == list(places(data))
    lines = text.split("\n")
    assert all(json.dumps(place[-1]) in lines[line - 1] for place, line in told if isinstance(place[-1], str))
    assert all(line_in_json(text, place) == line for place, line in told)


@pytest.mark.parametrize("text", ["({}!", "{} x", "[]a:b,c", '{"a": 1}} "b"'])
def test_places_of_what_is_no_json_end_there(text: str) -> None:
    """Words behind a closed mapping are no keys of it."""
    assert [place for place, _ in json_places(text)] in ([], [("a",)])


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A path that cannot be read says so."""
    for path in (tmp_path / "none.yaml", tmp_path, "a\0b.yaml"):
        with pytest.raises(UserError, match="cannot be read"):
            load(path)


@pytest.mark.parametrize("repeated", [1, 4])
def test_alias_bomb_is_refused(tmp_path: Path, repeated: int) -> None:
    """References that would multiply without end are refused before they do."""
    lines = ["a: &a [" + ",".join(["x"] * 9) + "]"]
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [" + ",".join([f"*{before}"] * 9) + "]")
    with pytest.raises(UserError, match=rf"more than {MAX_NODES} values|duplicate anchor"):
        load(written(tmp_path, "\n".join(lines * repeated)))


def test_aliases_of_ordinary_size_are_data(tmp_path: Path) -> None:
    """An anchor used a few times is plain data each time."""
    assert read(tmp_path, "a: &a {x: 1}\nb: *a\nc: [*a, *a]") == {
        "a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 1}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-1_000", -1000), ("0x1F", 31), ("0o17", 15), ("012", 12), ("1e3", 1000.0), (".5", 0.5),
        ("true", True), ("False", False), ("yes", "yes"), ("on", "on"), ("null", None), ("~", None), ("", None),
        ("2024-01-01", "2024-01-01"), ("12:30", "12:30"), ("'1'", "1"), ("!!str 1", "1"), ("!!float 1", 1.0),
        ("|\n  x\n  y", "x\ny"), ("[1, a]", [1, "a"]), ("=", "="),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    """No surprises of YAML 1.1: ``yes`` is a word, a date is a text, 012 is twelve."""
    found = read(tmp_path, f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


# what YAML allows in a text without an escape
LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co", "Zl", "Zp"], exclude_characters="\ufeff")
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(LETTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abcxyz_", min_size=1, max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@FIXTURE
@given(PLAIN.filter(lambda value: value is not None), st.booleans())
def test_plain_data_survives(tmp_path: Path, value: object, as_yaml: bool) -> None:
    """Whatever JSON can say is read back, by the YAML reader as well: JSON is YAML 1.2."""
    text = json.dumps(value, ensure_ascii=not as_yaml)
    assert read(tmp_path, text, "f.yaml" if as_yaml else "f.json") == value


@FIXTURE
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass"))
    | st.text("ab:-[]{}&*!|>'\"%#,? \n\t1.e~<=", max_size=60).map(str.encode),
    st.sampled_from(["f.yaml", "f.json"]),
)
def test_any_bytes_give_data_or_a_user_error(tmp_path: Path, content: bytes, name: str) -> None:
    """Whatever a file holds, the reader answers with plain data or UserErrors of printable lines."""
    try:
        parse(Device, load(written(tmp_path, content, name)))
    except UserError as error:
        assert str(error)
        assert all(line.isprintable() for line in str(error).split("\n"))


@FIXTURE
@given(st.dictionaries(st.sampled_from([*Device.model_fields, "nmae"]), PLAIN, max_size=6))
def test_any_fields_give_a_device_or_a_user_error(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Whatever the fields hold, validation ends in a device or in a UserError."""
    try:
        parse(Device, load(written(tmp_path, json.dumps(fields), "f.json")))
    except UserError as error:
        assert "f.json" in str(error)


def test_choose_suggests() -> None:
    """An unknown name gets the nearest one and the list."""
    with pytest.raises(UserError, match=r"unknown colour 'gren'; did you mean 'green'; allowed: blue, green"):
        choose("gren", ["green", "blue"], "colour")
    assert suggest("zzz", ["green"]) == ""


def test_names_and_paths_are_told_apart(tmp_path: Path) -> None:
    """A suffix or a slash makes a path; a bare word is a name that must exist."""
    assert find("my/h100.yaml", "devices", "device") == Path("my/h100.yaml")
    assert find(tmp_path / "dgx-h100", "clusters", "hardware") == tmp_path / "dgx-h100"
    with pytest.raises(UserError, match="unknown hardware 'dgx-h10'; did you mean 'dgx-h100'"):
        find("dgx-h10", "clusters", "hardware")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    """If the rename never happens, the old content stays and no temporary file is left."""
    path = written(tmp_path, "old", "out.txt")

    def fail(self: Path, target: Path) -> Path:
        raise failure

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises((KeyboardInterrupt, UserError)):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]


def test_written_files_obey_the_umask_and_links(tmp_path: Path) -> None:
    """A new file has the permissions of any new file; a link's target is replaced, not the link."""
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new.txt", "1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640
    (tmp_path / "link").symlink_to("new.txt")
    write_atomic(tmp_path / "link", b"2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new.txt").read_text() == "2"


def test_devices_are_written_to_and_folders_refused(tmp_path: Path) -> None:
    """/dev/null stays a device; a folder, or a path in a missing folder, is one clear line."""
    write_atomic("/dev/null", "x")
    assert not Path("/dev/null").is_file()
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "none" / "f.txt", "a\0b", tmp_path / "loop", tmp_path / "loop" / "f.txt"):
        with pytest.raises(UserError, match="cannot be written"):
            write_atomic(path, "x")
        with pytest.raises(UserError, match="cannot be written"):
            check_writable(path)


@pytest.mark.parametrize("kind", ["devices", "clusters", "stacks", "scenarios"])
def test_bundled_files_have_the_name_they_state(kind: str) -> None:
    """Profiles are found by name, and the name inside agrees."""
    files = bundled(kind)
    assert files
    if kind != "scenarios":
        assert all(load(path).data["name"] == name for name, path in files.items())


def test_a_number_is_not_cut() -> None:
    """A name that goes on with another word is nearer than one whose number goes on."""
    assert suggest("llama3", ["llama-33b", "llama-3.1-8b", "llama-3-8b"]) == "; did you mean 'llama-3-8b'?"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("h100-sxm", "h100-sxm-80gb"),  # the beginning of a name comes before a name with one letter changed
        ("sxm-80gb", "a100-sxm-80gb"),  # so does a part of one, and a beginning before a part
        ("h200sxm", "h200-sxm"),
        ("H100-SXM-80", "h100-sxm-80gb"),
        ("a100sxm", "a100-sxm-80gb"),  # dashes are often left out
        ("gx200-sxm", None),  # another product, not a slip
        ("h20-sxm", "h200-sxm"),
        ("tp", None),  # two letters are part of too much
        ("zzz", None),
    ],
)
def test_the_nearest_name_begins_like_the_one_given(name: str, nearest: str | None) -> None:
    """Else it has it inside, or the fewest changes."""
    names = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm", "http-node")
    assert suggest(name, names) == (f"; did you mean {nearest!r}?" if nearest else "")


def test_a_file_of_the_repository_is_seen_from_inside_of_it(tmp_path, monkeypatch):
    """A text that is named from its own folder names files from the repository's; what is above that is not seen."""
    (tmp_path / "ds.json").write_text("{}")
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / "scripts").mkdir()
    (repository / "configs").mkdir()
    (repository / "configs" / "z3.json").write_text("{}")
    (repository / "scripts" / "train.sh").write_text("")
    monkeypatch.chdir(repository / "scripts")
    assert look_beside("configs/z3.json", "train.sh").samefile(repository / "configs" / "z3.json")
    assert look_beside("ds.json", "train.sh") is None
    assert look_beside("configs/z3.json", "the command") is None


def test_one_value_for_a_list_is_told_how_to_write_it() -> None:
    """In the words of a file, not of the library that checks it."""
    with pytest.raises(UserError, match=r"lora_targets = 'q_proj': allowed: a list, as \[q_proj\]"):
        parse(Tuning, {"lora_rank": 8, "lora_targets": "q_proj"})


COMMANDS = (
    ["simulate", "{}"], ["search", "{}"], ["report", "{}"], ["compare", "{}", "{}"], ["plot", "{}", "-o", "o.png"],
    ["explain", "{}"], ["validate", "{}"], ["hardware", "show", "{}"], ["check", "{}"],
    ["hardware", "import", "{}", "-o", "x.yaml"], ["import", "{}", "--from", "megatron"],
    ["export", "{}", "--to", "torchtitan", "-o", "out"],
)  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_what_never_ends_is_no_file(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe to which nobody writes would keep a reader waiting, and a device reading."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    Path("zero.yaml").symlink_to("/dev/zero")
    for name, what in (("pipe.yaml", "is a pipe"), ("zero.yaml", "is a device or a socket")):
        assert cli.run([each.format(name) for each in arguments]) == 2
        said = capsys.readouterr().err
        assert re.fullmatch(rf"{name}: {what}; allowed: a file[^\n]*\n", said), said


def test_a_pipe_of_the_shell_is_read_once(tmp_path: Path) -> None:
    """As ``<(command)``, which has a writer; where a file is read again, it is refused."""
    read, write = os.pipe()
    try:
        os.write(write, DEVICE.encode())
        os.close(write)
        assert load(f"/dev/fd/{read}").data["name"] == "x"
        with pytest.raises(UserError, match=rf"/dev/fd/{read}: is a pipe; allowed: a file \(it is read more than once"):
            check_is_file(f"/dev/fd/{read}", again=True)
    finally:
        os.close(read)
    check_is_file(tmp_path)
    check_is_file(tmp_path / "missing")
