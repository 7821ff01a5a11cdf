"""Data: every sample once an epoch, every rank its own, any step at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.runtime.data import Loader, Synthetic, open_source, permute
from simpar.runtime.job import Data

TRAINING = Training(seq_len=4, global_batch=8)


@given(size=st.integers(1, 3000), key=st.text(max_size=8))
def test_shuffling_is_a_permutation(size, key):
    """Every index appears once."""
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


def test_shuffling_mixes():
    """Different keys give different orders, and neighbours do not stay neighbours."""
    one, other = (permute(np.arange(1000), 1000, key) for key in ("a", "b"))
    assert (one != other).mean() > 0.99
    assert abs(np.corrcoef(np.arange(1000), one)[0, 1]) < 0.1


def token_file(tmp_path, count=101, dtype="uint16"):
    """A file of the tokens 0, 1, 2, ..."""
    path = tmp_path / "tokens.bin"
    np.arange(count).astype(dtype).tofile(path)
    return path


def test_ranks_share_out_every_batch(tmp_path):
    """The parts of all ranks are the global batch; an epoch of 25 samples holds each once."""
    source = open_source(Data(kind="tokens", path=str(token_file(tmp_path))), TRAINING, 200, 0)
    assert len(source) == 25
    whole = Loader(source, 8, 0, 1, seed=3)
    parts = [Loader(source, 8, rank, 4, seed=3) for rank in range(4)]
    for step in range(5):
        assert np.array_equal(whole.batch(step), np.concatenate([part.batch(step) for part in parts]))
    seen = np.concatenate([whole.indices(step) for step in range(25)])
    assert (np.bincount(seen) == 8).all()
    assert sorted(seen[:25].tolist()) == list(range(25))
    assert seen[:25].tolist() != seen[25:50].tolist()


def test_a_resume_goes_on_in_the_same_order(tmp_path):
    """From any step, on other numbers of ranks, over the end of an epoch: the batches of an undisturbed run."""
    path = tmp_path / "tokens.bin"
    np.arange(8 * 11 + 1, dtype=np.uint16).tofile(path)
    source = open_source(Data(kind="tokens", path=str(path)), Training(seq_len=8, global_batch=4), 1000, 5)
    assert len(source) == 11
    whole = [Loader(source, 4, 0, 1, 5).batch(step) for step in range(9)]
    for ranks in (1, 2, 4):
        loaders = [Loader(source, 4, rank, ranks, 5) for rank in range(ranks)]
        for step in (7, 3, 8):  # asked for in any order
            assert np.array_equal(np.concatenate([each.batch(step) for each in loaders]), whole[step])
    seen = np.concatenate(whole)[:11, 0]
    assert len(set(seen.tolist())) == 11


def test_samples_are_windows_of_the_file(tmp_path):
    """Sample i starts at i x seq_len and ends with the first token of the next."""
    source = open_source(Data(kind="tokens", path=str(token_file(tmp_path))), TRAINING, 200, 0)
    assert source.sample(2).tolist() == [8, 9, 10, 11, 12]


def test_text_is_bytes_without_a_tokenizer(tmp_path):
    """A text file trains as its UTF-8 bytes."""
    path = tmp_path / "text.txt"
    path.write_text("hello world, hello")
    source = open_source(Data(kind="text", path=str(path)), TRAINING, 256, 0)
    assert bytes(source.sample(0).tolist()) == b"hello"


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda _: None, {}, "cannot be read"),
        (lambda path: path.write_bytes(b"abc"), {}, "3 bytes; allowed: whole uint16 numbers"),
        (lambda path: path.write_bytes(b"abcd"), {}, "2 tokens; allowed: at least seq_len"),
        (lambda path: path.write_bytes(b"\xff" * 40), {}, "token 65535 at position 0; allowed: 0 to 99"),
    ],
)
def test_bad_files_are_one_line(tmp_path, make, options, words):
    """The file, what is wrong with it, what is allowed."""
    path = tmp_path / "tokens.bin"
    make(path)
    data = Data(**{"kind": "tokens", "path": str(path), **options})
    with pytest.raises(UserError, match=words):
        Loader(open_source(data, TRAINING, 100, 0), 8, 0, 1, 0).batch(0)


def test_synthetic_tokens_can_be_learned():
    """Every sample counts on with one stride; the same number gives the same sample."""
    source = Synthetic(50, 8, seed=1)
    sample = source.sample(7)
    assert len({int(step) for step in np.diff(sample) % 50}) == 1
    assert np.array_equal(sample, source.sample(7))
    assert not np.array_equal(sample, source.sample(8))
