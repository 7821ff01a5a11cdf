"""C that is compiled on first use and kept."""

import os
import subprocess
from pathlib import Path

import pytest

import simpar
from simpar.errors import UserError
from simpar.native import NativeLibrary, NativeUnavailableError, compiler, libraries
from tests.compilers import FAILING, needs_compiler

SOURCE = "long more(long number) { return number + MORE; }\n"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file of one function, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "more.c"
    path.write_text(SOURCE)
    return path


def kept(tmp_path):
    """What is in the cache."""
    return sorted((tmp_path / "cache" / "simpar" / "native").iterdir())


@needs_compiler
def test_it_is_compiled_once_for_all_processes(tmp_path, source, monkeypatch):
    """Kept by what it depends on: constants and the text; later no compiler is asked."""
    assert not NativeLibrary(source, 100, {"MORE": 2}).is_ready
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 42
    assert NativeLibrary(source, 100, {"MORE": 3}).load().more(40) == 43
    source.write_text(SOURCE.replace("+", "-"))
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 38
    assert len(kept(tmp_path)) == 3
    monkeypatch.setenv("CC", "no-such-compiler")
    again = NativeLibrary(source, 100, {"MORE": 2})
    assert again.is_ready
    assert again.load().more(40) == 38


@needs_compiler
def test_a_torn_file_is_made_anew(tmp_path, source):
    """As one of another machine with the same home would be."""
    NativeLibrary(source, 100, {"MORE": 2}).load()
    (path,) = kept(tmp_path)
    path.unlink()  # it is mapped into this process, so not written to
    path.write_bytes(b"torn")
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 42
    assert len(kept(tmp_path)) == 1


@needs_compiler
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_what_others_put_there_is_not_loaded(tmp_path, source, monkeypatch):
    """A cache that others can write to runs nothing of theirs."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    NativeLibrary(source, 100, {"MORE": 2}).load()
    (path,) = kept(tmp_path)
    os.chown(path, 54321, -1)
    library = NativeLibrary(source, 100, {"MORE": 2})
    assert not library.is_ready
    assert library.load().more(40) == 42
    assert path.stat().st_uid == 0


@needs_compiler
def test_it_may_lie_beside_its_source(tmp_path, source, monkeypatch):
    """Put there for machines without a compiler."""
    made = NativeLibrary(source, 100, {"MORE": 2}).make(source.parent)
    assert made.parent == source.parent
    monkeypatch.setenv("CC", "no-such-compiler")
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 42
    assert not (tmp_path / "cache").exists()


@needs_compiler
@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_to_keeps_nothing(tmp_path, source):
    """The process has its own."""
    (tmp_path / "cache").mkdir(mode=0o500)
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 42


@needs_compiler
def test_a_cache_that_is_a_file_keeps_nothing(tmp_path, source):
    """The process has its own."""
    (tmp_path / "cache").write_text("")
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 42


@needs_compiler
def test_other_processes_are_given_it(tmp_path, source, monkeypatch):
    """Their cache folder is another; they start no compiler."""
    NativeLibrary(source, 100, {"MORE": 2}).share(tmp_path / "theirs")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    assert NativeLibrary(source, 100, {"MORE": 2}).load().more(40) == 42


def test_why_it_cannot_be_compiled_is_said_once(source, monkeypatch):
    """Without a compiler, and with one that fails; a process does not try again."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiler() == []
    with pytest.raises(NativeUnavailableError, match="no C compiler is installed"):
        NativeLibrary(source, 100, {"MORE": 2}).load()
    monkeypatch.setenv("CC", FAILING)
    library = NativeLibrary(source, 100, {"MORE": 2})
    library.share(Path(os.devnull))
    for _ in range(2):
        with pytest.raises(NativeUnavailableError, match=r"cannot compile more\.c"):
            library.load()
    assert not library.is_ready


@needs_compiler
def test_it_is_compiled_once_it_had_much_to_do(source, monkeypatch):
    """Work that Python does is counted; where there is no compiler it goes on for ever."""
    library = NativeLibrary(source, 100, {"MORE": 2})
    assert [library.load_for(work) is None for work in (50, 50, 1)] == [True, True, False]
    assert NativeLibrary(source, 100, {"MORE": 2}).load_for(1).more(40) == 42
    monkeypatch.setenv("CC", "no-such-compiler")
    library = NativeLibrary(source, 100, {"MORE": 3})
    assert [library.load_for(work) for work in (50, 500, 500)] == [None] * 3
    assert library.done == 1050


@needs_compiler
def test_every_c_file_is_a_library(tmp_path):
    """Found by its place, and compiled without a warning."""
    sources = sorted(Path(simpar.__file__).parent.rglob("*.c"))
    assert [each.source for each in libraries()] == sources
    for each in libraries():
        assert each.make(tmp_path).exists()
        strict = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", *(f"-D{n}={v}" for n, v in each.constants.items())]
        assert subprocess.run([*compiler(), "-std=c11", *strict, str(each.source)], check=False).returncode == 0


def test_a_process_that_may_start_no_program_goes_on_without(source, monkeypatch):
    """Workers of agents are refused programs by their interpreter: that is no error of what they were asked."""

    def refused(*_, **__):
        raise UserError("subprocess.Popen: refused")

    monkeypatch.setattr(subprocess, "run", refused)
    library = NativeLibrary(source, 100, {"MORE": 2})
    assert library.load_for(1000) is None
    assert library.why_not in ("subprocess.Popen: refused", "no C compiler is installed (${CC}, cc, gcc, clang)")
