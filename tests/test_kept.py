"""What is kept in the user's cache folder."""

from pathlib import Path

import pytest

from simpar import files
from simpar.kept import cache_folder, digest, kept_json


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_data_are_made_once_and_again_where_the_file_is_torn():
    """A file cut short is as good as none, and no temporary file stays behind."""
    path, made = cache_folder("things") / f"{digest('a', 'b')}.json", []

    def make():
        made.append(1)
        return {"a": [1, 2.5, None, "ü"]}

    assert kept_json(path, make) == kept_json(path, make) == {"a": [1, 2.5, None, "ü"]}
    assert len(made) == 1
    path.write_bytes(path.read_bytes()[:-3])
    assert kept_json(path, make) == kept_json(path, make)
    assert len(made) == 2
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_json_would_change_is_not_kept():
    """Keys that are no texts, and tuples, would come back as others."""
    path = cache_folder("things") / "a.json"
    assert kept_json(path, lambda: {1: (2, 3)}) == {1: (2, 3)}
    assert not path.exists()


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    """The folder may be a file, and a user in a container may have no home: commands work without."""
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert kept_json(cache_folder("things") / "a.json", lambda: [1]) == [1]
    monkeypatch.delenv("XDG_CACHE_HOME")

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert kept_json(cache_folder("things") / "a.json", lambda: [1]) == [1]


def test_names_depend_on_every_text():
    """Texts are told apart where they end."""
    assert len({digest("a", "b"), digest("ab"), digest("b", "a"), digest("a", "b", "")}) == 4


def test_shipped_files_are_kept_and_those_of_users_are_not(tmp_path):
    """Lines, which errors name, are kept with the data; read back, both are what the parser gives."""
    shipped = files.bundled("clusters")["dgx-h100"]
    text = shipped.read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    files._parsed_yaml.cache_clear()
    read = [files.load(mine)]
    assert not cache_folder("shipped").exists()
    for _ in range(2):
        read.append(files.load(shipped))
        files._parsed_yaml.cache_clear()
        assert len([*cache_folder("shipped").iterdir()]) == 1
    assert [(each.data, each.lines) for each in read] == [(read[0].data, read[0].lines)] * 3
    assert read[0].place(("scale_out", "bandwidth")).startswith(f"{mine}:")
