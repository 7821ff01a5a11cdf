"""What is no trace of a training run: one clear line, whatever is wrong with it."""

import gzip
import json

import pytest

from simpar import cli
from simpar.diagnosis import stream
from simpar.diagnosis.answer import explain
from simpar.diagnosis.kineto import read_kineto
from simpar.errors import UserError
from tests.diagnosis.kineto_files import Rank, data_parallel_step


def refused(*paths, **options):
    """The one line that says why."""
    with pytest.raises(UserError) as caught:
        explain(*paths, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def good(tmp_path):
    """The bytes of a good trace, and a function that writes others."""
    text = data_parallel_step(0).save(tmp_path).read_bytes()

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return text, write


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97, 0.999])
def test_a_trace_that_was_cut_short(good, share):
    """Plain or packed: said, with how many events were good."""
    text, write = good
    assert "cut short after" in refused(write("t.json", text[: int(share * len(text))]))
    packed = gzip.compress(text)
    assert "gzip data is cut short" in refused(write("t.json.gz", packed[: int(share * len(packed))]))


def test_gzip_that_is_none_or_damaged(good):
    """What a file is, its first bytes tell: plain text under .gz is read; damaged data is refused."""
    text, write = good
    assert len(read_kineto(write("plain.json.gz", text)).device) == 6
    packed = bytearray(gzip.compress(text))
    packed[len(packed) // 2] ^= 0xFF
    assert "gzip data is damaged" in refused(write("t.json.gz", bytes(packed)))
    assert "gzip data is damaged" in refused(write("t.gz", b"\x1f\x8b" + b"\1" * 40))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"), ("hello", "no line of a training step"), ("{}", "has no traceEvents"),
        ('{"traceEvents": 3}', "is not a list"), ('{"traceEvents": []}', "no kernel and no operator"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": "x", "dur": 1}]}', "no good ts"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": -1}]}', "no good ts"),
        ('{"traceEvents": [nope]}', "not valid JSON"), ('{"traceEvents": []} more', "text after its end"),
    ],
)  # fmt: skip
def test_what_is_no_trace(good, text, said):
    """Other files are told from traces."""
    _, write = good
    assert said in refused(write("t.json", text.encode()))


def test_spaces_without_end_are_refused(good, monkeypatch):
    """Some kilobytes may unpack to gigabytes of them; fewer are skipped, also between events."""
    text, write = good
    monkeypatch.setattr(stream, "CHUNK", 2**10)
    monkeypatch.setattr(stream, "MOST_PENDING", 2**20)
    spaced = text.replace(b'{"ph"', b" " * 2**14 + b'{"ph"')
    assert len(read_kineto(write("spaced.json", spaced)).device) == 6
    endless = b'{"traceEvents": [' + b" " * 2**21
    assert "1 MiB of spaces after 0 events" in refused(write("t.json.gz", gzip.compress(endless)))


def test_a_trace_of_inference(tmp_path):
    """Without a backward pass and an optimizer it is not a training step."""
    made = Rank(0, 1)
    made.kernel("sm90_xmma_gemm_fwd", 0, 100)
    assert "inference" in refused(made.save(tmp_path))


def test_traces_that_are_not_of_one_run(tmp_path):
    """Twice the same rank, jobs of two sizes, other steps."""
    first = data_parallel_step(0).save(tmp_path)
    again = tmp_path / "again.json"
    again.write_bytes(first.read_bytes())
    assert "is of rank 0, as" in refused(first, again)
    assert "ranks in the job: 8" in refused(first, data_parallel_step(1, world_size=8).save(tmp_path))
    late = data_parallel_step(2)
    late.events[-1]["name"] = "ProfilerStep#9"
    assert "ProfilerStep#9" in refused(first, late.save(tmp_path))
    assert "--steps 3" in refused(first, steps=3)


def test_a_folder_without_traces(tmp_path):
    """Named, with what was looked for."""
    assert "has no profiler trace (trace*.json" in refused(tmp_path)


@pytest.mark.parametrize("name", ["rank{}_trace.json", "profile_{}.json", "rank{}.json.gz"])
def test_a_folder_whose_traces_have_other_names(tmp_path, name):
    """As torchtitan and scripts call them: known by how they begin, beside JSON that is none; folders of them named."""
    folder = tmp_path / "traces" / "iteration_10"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "empty.json").write_text("")
    for rank in range(2):
        written = data_parallel_step(rank, world_size=2).save(tmp_path).read_bytes()
        path = folder / name.format(rank)
        path.write_bytes(gzip.compress(written) if path.suffix == ".gz" else written)
    assert [each.rank for each in explain(folder).measured.ranks] == [0, 1]
    assert "; one of its folders that have traces: iteration_10" in refused(tmp_path / "traces")


def test_chunks_of_any_size_give_the_same(good, monkeypatch):
    """Where the text is cut for reading changes nothing."""
    text, write = good
    path = write("t.json", json.dumps(json.loads(text), indent=2).encode())
    whole = read_kineto(path)
    for size in (1, 7, 64):
        monkeypatch.setattr(stream, "CHUNK", size)
        part = read_kineto(path)
        assert part.names == whole.names
        assert (part.device.start_ns == whole.device.start_ns).all()
        assert part.header == whole.header


def test_the_command_refuses_in_one_line(good, capsys):
    """Exit code 2 and nothing on standard output."""
    _, write = good
    assert cli.run(["explain", str(write("t.json", b"{}"))]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("event", "args", 3), ("event", "args", [1]), ("event", "pid", []), ("event", "cat", {}),
        ("event", "ts", 1e300),
        ("event", "name", 5), ("header", "distributedInfo", [1]),
        ("header", "distributedInfo", {"pg_config": [None, 1]}),
        ("header", "distributedInfo", {"rank": "x", "pg_config": [{"ranks": [None, "a"]}]}),
        ("header", "deviceProperties", [3]), ("header", "baseTimeNanoseconds", 10**40),
    ],
)  # fmt: skip
def test_odd_values_are_refused_or_left_out(tmp_path, place, key, value):
    """Of an event in one line; what the header says oddly is as if it said nothing."""
    made = data_parallel_step(0)
    data = made.data()
    (data if place == "header" else data["traceEvents"][2])[key] = value
    path = tmp_path / "trace-rank0.json"
    path.write_text(json.dumps(data))
    if place == "header":
        assert explain(path).measured.ranks[0].rank == 0
    else:
        assert "an event has no good" in refused(path)
