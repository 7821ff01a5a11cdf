"""Indexed datasets of Megatron-Core: files that are written byte by byte, and every way in which they do not fit."""

import json
import re
import struct
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar import cli
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.runtime.data import IGNORED_TARGET, open_source
from simpar.runtime.indexed import IndexedTokens
from simpar.runtime.job import Data
from simpar.runtime.lengths import measure_lengths

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
TRAINING = Training(seq_len=4, global_batch=2)


def index_bytes(lengths, bounds, code, size):
    """The bytes of an index by its definition: header, lengths, where sequences begin, bounds of documents."""
    result = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(bounds))
    result += struct.pack(f"<{len(lengths)}i", *lengths)
    result += struct.pack(f"<{len(lengths)}q", *(size * sum(lengths[:n]) for n in range(len(lengths))))
    return result + struct.pack(f"<{len(bounds)}q", *bounds)


def write_indexed(prefix, documents, dtype="uint16"):
    """An indexed dataset of documents, each a list of sequences of tokens."""
    sequences = [each for document in documents for each in document]
    bounds = np.concatenate([[0], np.cumsum([len(each) for each in documents])]).astype(int).tolist()
    kind = np.dtype(dtype)
    whole = index_bytes([len(each) for each in sequences], bounds, CODES[dtype], kind.itemsize)
    Path(f"{prefix}.idx").write_bytes(whole)
    Path(f"{prefix}.bin").write_bytes(b"".join(np.array(each, kind).tobytes() for each in sequences))
    return prefix


def test_the_bytes_of_an_index(tmp_path):
    """Two documents, the first of two sequences: 3 tokens and 2 of 16 bits, and 4 bytes behind these."""
    written = bytes.fromhex(
        "4d4d49444944580000" "0100000000000000" "08" "0300000000000000" "0300000000000000"  # magic, version, code, s, d
        "01000000" "02000000" "02000000" "0000000000000000" "0200000000000000" "0600000000000000"
        "0000000000000000" "0200000000000000" "0300000000000000"
    )  # fmt: skip
    (tmp_path / "a.idx").write_bytes(written)
    (tmp_path / "a.bin").write_bytes(bytes.fromhex("07000100020103000400"))
    read = IndexedTokens.open(tmp_path / "a")
    assert read.tokens.tolist() == [7, 1, 258, 3, 4]
    assert read.ends.tolist() == [3, 5]
    assert index_bytes([1, 2, 2], [0, 2, 3], 8, 2) == written


@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 100), max_size=4), max_size=3), min_size=1, max_size=8),
    dtype=st.sampled_from(sorted(CODES)),
)
def test_documents_are_read_as_written(tmp_path_factory, documents, dtype):
    """Tokens and ends of all that have any, in every dtype."""
    whole = [[*chain(*document)] for document in documents]
    prefix = write_indexed(tmp_path_factory.mktemp("i") / "a.b", documents, dtype)
    if not any(whole):
        with pytest.raises(UserError, match=r"a.b.idx: has no (tokens|sequences)|a.b.bin"):
            IndexedTokens.open(prefix)
        return
    read = IndexedTokens.open(prefix)
    assert read.tokens.tolist() == [*chain(*whole)]
    assert read.ends.tolist() == np.cumsum([len(each) for each in whole if each]).tolist()
    assert read.empty == sum(not each for each in whole)


def source_of(path, **options):
    """What a run reads, whose sequences have 4 tokens."""
    held_out = options.pop("held_out", False)
    return open_source(Data(kind="tokens", path=str(path), **options), TRAINING, 100, 0, held_out=held_out)


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_boundaries_are_used_as_a_folders(tmp_path, ending):
    """Packed, kept apart, and padded: documents of 3, 6 and 2 tokens."""
    prefix = write_indexed(tmp_path / "a", [[[1, 2, 3]], [[4, 5], [6, 7, 8, 9]], [[10, 11]]])
    path = f"{prefix}{ending}"
    assert source_of(path).sample(1).tolist() == [5, 6, 7, 8, 9]
    apart = source_of(path, apart=True)
    assert apart.wanted(0).tolist() == [1, 2, 3, IGNORED_TARGET, 5]
    assert apart.positions(0).tolist() == [0, 1, 2, 0]
    padded = source_of(path, pack=False)
    assert len(padded) == 3
    assert padded.wanted(2).tolist() == [10, 11, *[IGNORED_TARGET] * 3]


def test_the_last_documents_are_held_out(tmp_path):
    """A quarter of 8 documents of 3 tokens: 18 tokens to train on, 6 held out; a share that leaves none is refused."""
    prefix = write_indexed(tmp_path / "a", [[[n, n, n]] for n in range(8)])
    train, held = (source_of(prefix, validation=0.25, pack=False, held_out=each) for each in (False, True))
    assert [train.sample(n)[0] for n in range(len(train))] == [0, 1, 2, 3, 4, 5]
    assert [held.sample(n)[0] for n in range(len(held))] == [6, 7]
    for share, words in ((0.01, "none are held out"), (0.99, "none are left to train on")):
        with pytest.raises(UserError, match=rf"--validation {share}: of the 8 documents of .*a {words}"):
            source_of(prefix, validation=share)


def test_lengths_are_those_of_documents(tmp_path):
    """``simpar data PREFIX``, with documents that have no tokens."""
    prefix = write_indexed(tmp_path / "a", [[[1, 2, 3]], [[]], [[4], [5]], [[6]]])
    measured = measure_lengths(prefix, None, packed=False)
    assert measured["documents"]["lengths"] == [1, 2, 3]
    assert (measured["untargeted"], measured["left_out"]) == (1, {"documents without tokens": 1})


GOOD = index_bytes([2, 3], [0, 1, 2], 8, 2)


@pytest.mark.parametrize(
    ("index", "data", "words"),
    [
        (None, 10, "a.idx: cannot be read (No such file or directory); allowed: PREFIX.bin and PREFIX.idx"),
        (GOOD, None, "a.bin: cannot be read (No such file or directory); allowed: PREFIX.bin and PREFIX.idx"),
        (b"", 10, r"a.idx: begins with b''; allowed: b'MMIDIDX\x00\x00'"),
        (b"TNTIDX\x00\x00" + GOOD[8:], 10, r"a.idx: begins with b'TNTIDX\x00\x00\x00'; allowed: b'MMIDIDX"),
        (GOOD[:20], 10, "a.idx: ends within its header, after 20 bytes"),
        (GOOD[:-1], 10, "a.idx: 81 bytes; allowed: 82, of 2 sequences and 3 bounds of documents"),
        (GOOD + b"\x00" * 3, 10, "a.idx: 85 bytes; allowed: 82"),
        (GOOD + b"\x00" * 2, 10, "a.idx: has a mode for every sequence, as multimodal datasets have"),
        (GOOD[:9] + b"\x02" + GOOD[10:], 10, "a.idx: version 2; allowed: 1"),
        (index_bytes([2, 3], [0, 1, 2], 7, 4), 20, "code of a dtype 7 (float32), which holds no tokens; allowed: 1 ("),
        (index_bytes([2, 3], [0, 1, 2], 9, 2), 10, "code of a dtype 9; allowed: 1 (uint8), 2 (int8), 3 (int16)"),
        (GOOD, 8, "a.bin: 8 bytes; allowed: 10, 5 tokens in uint16 as a.idx says"),
        (GOOD, 12, "a.bin: 12 bytes; allowed: 10"),
        (index_bytes([2, 3], [0, 1, 2], 8, 4), 10, "sequence 1 has 3 tokens from byte 8; allowed: 0 or more from 4,"),
        (index_bytes([-2, 3], [0, 1, 2], 8, 2), 10, "sequence 0 has -2 tokens from byte 0"),
        (index_bytes([2, 3], [0, 1, 3], 8, 2), 10, "bounds of documents; allowed: 0 first, none below the one"),
        (index_bytes([2, 3], [1, 2], 8, 2), 10, "bounds of documents; allowed: 0 first"),
        (index_bytes([2, 3], [0, 2, 1, 2], 8, 2), 10, "bounds of documents; allowed: 0 first"),
        (index_bytes([], [0], 8, 2), 0, "a.idx: has no sequences"),
        (index_bytes([0], [0, 1], 8, 2), 0, "a.idx: has no tokens"),
    ],
)  # fmt: skip
def test_faults_are_one_line(tmp_path, index, data, words):
    """The file, what it has, and what is allowed."""
    for ending, content in ((".idx", index), (".bin", data if data is None else bytes(data))):
        if content is not None:
            (tmp_path / f"a{ending}").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(words)) as fault:
        source_of(tmp_path / "a")
    assert "\n" not in str(fault.value)


def test_a_token_beyond_the_vocabulary_is_said(tmp_path):
    """By its place."""
    prefix = write_indexed(tmp_path / "a", [[[1, 2, 3]], [[4, 100]]])
    with pytest.raises(UserError, match=r"a: token 100 at position 4; allowed: 0 to 99, the model's vocabulary"):
        source_of(prefix).sample(0)


def test_a_run_trains_on_an_index_as_on_its_folder(forked, tmp_path):
    """As a user types it: losses are those of the flat file with the same tokens, and what is held out is evaluated."""
    from .test_served import config_file, flags

    random = np.random.default_rng(0)
    documents = [[random.integers(0, 64, size=random.integers(5, 40)).tolist()] for _ in range(60)]
    write_indexed(tmp_path / "corpus_text_document", documents)
    count = sum(len(each[0]) for each in documents[:45])
    (tmp_path / "flat").write_bytes((tmp_path / "corpus_text_document.bin").read_bytes()[: 2 * count])
    common = flags(config_file(tmp_path), "--nproc", "1", "--steps", "3")
    split = ["--tokens", "corpus_text_document", "--validation", "0.25", "--eval-every", "3", "-o", "a"]
    for data in (split, ["--tokens", "flat", "-o", "b"]):
        done = forked("run", *common, *data)
        assert done.returncode == 0, done.stderr
    reports = [json.loads((tmp_path / name / "report.json").read_text())["measured"] for name in "ab"]
    assert reports[0]["losses"] == reports[1]["losses"]
    assert list(reports[0]["evaluations"]) == ["3"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--token-dtype", "int32"], "--token-dtype int32: nothing reads it; allowed: with --tokens FILE, a flat one"),
        (["--eval-every", "1"], "--eval-every: nothing is held out of .*a; allowed: with --held-out FILE, or --vali"),
    ],
)
def test_flags_that_do_not_fit_an_index(tmp_path, monkeypatch, capsys, arguments, words):
    """One line, exit code 2."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    write_indexed(tmp_path / "a", [[list(range(200))]] * 20)
    common = ["run", "gpt2-laptop", "--model", "tiny-llama", "--seq-len", "32", "--steps", "1", "--tokens", "a"]
    assert cli.run([*common, *arguments]) == 2
    assert re.search(words, said := capsys.readouterr().err), said
    assert said.count("\n") == 1
