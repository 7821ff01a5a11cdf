"""What a worker may open: its folder and the installation, whatever the name looks like."""

import os
import sys

import pytest

import simpar
from simpar.errors import UserError
from simpar.kept import cache_folder
from simpar.mcp.folder import make_hook, own_places


@pytest.fixture
def hook(tmp_path):
    """The hook for a folder with a file, and a link that leads out of it."""
    inside = tmp_path / "runs"
    inside.mkdir()
    (inside / "log.txt").write_text("step 1")
    (tmp_path / "secret.txt").write_text("no")
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    return inside, make_hook(inside)


def test_files_of_the_folder_are_read_and_written(hook):
    """Also through names with dots, as long as they lead back."""
    folder, refuse = hook
    refuse("open", (str(folder / "log.txt"), "r", os.O_RDONLY))
    refuse("open", (str(folder / "new.json"), "w", os.O_WRONLY | os.O_CREAT))
    refuse("open", (str(folder / ".." / "runs" / "log.txt"), "r", os.O_RDONLY))
    refuse("os.rename", (str(folder / "a"), str(folder / "b"), -1, -1))


@pytest.mark.parametrize("name", ["../secret.txt", "link.txt", "/etc/passwd", "../runs2/x"])
def test_what_lies_elsewhere_is_refused(hook, name):
    """Links count as what they lead to."""
    folder, refuse = hook
    with pytest.raises(UserError, match=r"refused; allowed: shipped names, and files below"):
        refuse("open", (str(folder / name), "r", os.O_RDONLY))


def test_the_installation_is_read_and_never_written(hook):
    """Python's modules and simpar's data."""
    _, refuse = hook
    for place in (os.__file__, simpar.__file__):
        refuse("open", (place, "rb", os.O_RDONLY))
        for asked in (("wb", os.O_WRONLY), (None, os.O_RDWR), ("r+", os.O_RDWR)):
            with pytest.raises(UserError, match="refused"):
                refuse("open", (place, *asked))
        with pytest.raises(UserError, match="refused"):
            refuse("os.remove", (place, -1))
    with pytest.raises(UserError, match="refused"):
        refuse("os.rename", (str(hook[0] / "log.txt"), os.__file__, -1, -1))


@pytest.mark.parametrize("event", ["subprocess.Popen", "socket.connect", "os.system"])
def test_no_program_and_no_network(hook, event):
    """A tool needs neither."""
    with pytest.raises(UserError, match="start no program and reach no network"):
        hook[1](event, (sys.executable,))


def test_workers_keep_files_in_a_folder_of_their_server(hook, tmp_path, monkeypatch):
    """The user's own cache is neither read nor written."""
    users = cache_folder("shipped") / "a.json"
    for name, place in own_places(str(tmp_path / "kept")).items():
        monkeypatch.setenv(name, place)
    refuse = make_hook(hook[0])
    assert cache_folder("shipped").is_relative_to(tmp_path)
    for asked in (("rb", os.O_RDONLY), ("wb", os.O_WRONLY | os.O_CREAT)):
        refuse("open", (str(cache_folder("shipped") / "a.json"), *asked))
        with pytest.raises(UserError, match="refused"):
            refuse("open", (str(users), *asked))
