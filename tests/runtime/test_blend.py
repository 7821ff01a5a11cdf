"""Several sources with weights: shares within one sequence, the same order on every rank and after a resume."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar import cli
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.runtime.blend import LONGEST, Turns, sources_of
from simpar.runtime.data import IGNORED_TARGET, Loader, count_drawn, open_source
from simpar.runtime.job import Data
from simpar.runtime.lengths import blended_lengths

from .test_indexed import write_indexed

WEIGHTS = st.lists(st.decimals("0.001", 20, places=3).map(float), min_size=1, max_size=7)


@settings(max_examples=40)
@given(weights=WEIGHTS)
def test_shares_keep_to_weights(weights):
    """After every n sequences each source has less than one more or less than n times its share, in whole numbers."""
    turns = Turns.of(weights)
    period = len(turns.source)
    assert np.bincount(turns.source).tolist() == turns.counts.tolist()
    assert turns.counts / period == pytest.approx(np.array(weights) / sum(weights))
    for number, count in enumerate(turns.counts.tolist()):
        taken = np.cumsum(turns.source == number)
        assert (np.abs(taken * period - np.arange(1, period + 1) * count) < period).all()


@settings(max_examples=40)
@given(weights=WEIGHTS, positions=st.lists(st.integers(0, 10**12), min_size=1, max_size=5))
def test_any_sequence_is_known_at_once(weights, positions):
    """Its place in its source is the number of those that were drawn there before."""
    turns = Turns.of(weights)
    source, place = turns.at(np.array(positions))
    for position, number, here in zip(positions, source.tolist(), place.tolist(), strict=True):
        assert turns.until(position)[number] == here
        assert turns.until(position + 1)[number] == here + 1
        assert turns.until(position).sum() == position


def test_an_order_by_hand():
    """Two thirds and one: of the first source by places 1 and 2, of the second by place 2, and so on."""
    turns = Turns.of([0.2, 0.1])
    assert turns.source.tolist() == [0, 0, 1]
    assert [each.tolist() for each in turns.at(np.arange(6))] == [[0, 0, 1, 0, 0, 1], [0, 1, 0, 2, 3, 1]]


def test_weights_that_repeat_too_late_are_refused():
    """Written with fewer digits they are taken."""
    with pytest.raises(UserError, match=rf"weights 0.123457, 0.5 repeat after 6234567 .*at most {LONGEST}, with fewer"):
        Turns.of([0.1234567, 0.5])


def blend_of(tmp_path, sizes, weights, **options):
    """Indexes with so many sequences of 4 tokens each, whose tokens tell their source and place."""
    parts = []
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        tokens = 1000 * number + np.arange(4 * size + 1)
        prefix = write_indexed(tmp_path / f"s{number}", [[tokens.tolist()]], "int32")
        parts.append({"path": str(prefix), "weight": weight})
    return Data(kind="tokens", blend=parts, **options)


TRAINING = Training(seq_len=4, global_batch=12)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4), data=st.data(), seed=st.integers(0, 99),
    weighted=st.booleans(),
)  # fmt: skip
def test_any_ranks_draw_the_same(tmp_path_factory, sizes, data, seed, weighted):
    """From any step, on any number of ranks: the batches of one rank from the beginning, with the counts that are told.

    Every source's sequences come once before any comes again; without weights those of all together do.
    """
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    given = blend_of(tmp_path_factory.mktemp("b"), sizes, [w / 10 if weighted else None for w in weights])
    source = open_source(given, TRAINING, 10_000, seed)
    batches = [Loader(source, 12, 0, 1, seed).batch(step) for step in range(6)]
    for ranks in (2, 3, 6):
        again = open_source(given, TRAINING, 10_000, seed)
        for step in (5, 2, 4):
            parts = [Loader(again, 12, rank, ranks, seed).batch(step) for rank in range(ranks)]
            assert np.array_equal(np.concatenate(parts), batches[step])
    first = np.concatenate(batches)[:, 0]
    assert count_drawn(given, TRAINING, seed, 0) == []
    told = count_drawn(given, TRAINING, seed, 6)
    assert [each["drawn"] for each in told] == np.bincount(first // 1000, minlength=len(sizes)).tolist()
    groups = [first] if not weighted else [first[first // 1000 == number] for number in range(len(sizes))]
    limits = [sum(sizes)] if not weighted else sizes
    for drawn, size in zip(groups, limits, strict=True):
        times = np.bincount(np.unique(drawn, return_inverse=True)[1]) if len(drawn) else np.zeros(1, int)
        assert times.max() <= -(-len(drawn) // size)
        assert len(np.unique(drawn)) == min(size, len(drawn))


def test_parts_keep_their_own_boundaries_and_masks(tmp_path):
    """Documents stay apart within each source; padded ones do not count."""
    one = write_indexed(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])
    other = write_indexed(tmp_path / "b", [[[11, 12, 13]], [[14, 15]]])
    parts = [{"path": str(each), "weight": 1.0} for each in (one, other)]
    apart = open_source(Data(kind="tokens", blend=parts, apart=True), TRAINING, 100, 0)
    assert apart.masked
    assert [apart.wanted(n).tolist() for n in (0, 1)] == [
        [1, 2, IGNORED_TARGET, 4, 5], [11, 12, 13, IGNORED_TARGET, 15]
    ]  # fmt: skip
    rows = Loader(apart, 2, 0, 1, 0)
    assert sorted(rows.positions(0).tolist()) == [[0, 1, 0, 1], [0, 1, 2, 0]]
    padded = open_source(Data(kind="tokens", blend=parts, pack=False), TRAINING, 100, 0)
    assert len(padded) == 4
    assert padded.wanted(3).tolist() == [14, 15, *[IGNORED_TARGET] * 3]


def test_lengths_of_a_blend_have_the_mean_of_its_tokens(tmp_path):
    """Half the tokens in documents of 10, half in those of 30: three of four documents have 10, 15 in the mean."""
    short, long = (write_indexed(tmp_path / str(n), [[[1] * n]] * 50) for n in (10, 30))
    lengths = blended_lengths([(short, 0.5), (long, 0.5)])
    assert (lengths.count(10), lengths.count(30)) == (48, 16)
    both = blended_lengths([(short, None), (long, None)])
    assert np.mean(both) == 20


def test_names_with_weights(tmp_path, monkeypatch):
    """What is there is a path, whatever its name; whole numbers and powers of ten are weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3").mkdir()
    assert sources_of(["lr=3"]) == {"kind": "tokens", "path": str(tmp_path / "lr=3")}
    assert sources_of(["lr=3=2", "b=1e-2"])["blend"] == [
        {"path": str(tmp_path / "lr=3"), "weight": 2.0}, {"path": str(tmp_path / "b"), "weight": 0.01}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a=0", "b=1"], "--tokens a=0: weight 0; allowed: a positive number, such as a=0.7"),
        (["a=-1", "b=1"], "--tokens a=-1: weight -1; allowed"), (["a=x", "b=1"], "--tokens a=x: weight x; allowed"),
        (["a=inf", "b=1"], "weight inf"), (["a=nan", "b=1"], "weight nan"), (["a=", "b=1"], "--tokens a=: weight ;"),
        (["a=1", "b"], "--tokens b beside a=1: allowed: weights for all sources, or for none"),
        (["a=1", "b=1", "a=2"], "--tokens a=2: is named twice"),
        (["a=1", "a.idx=2"], "--tokens a.idx=2: is named twice"),
        (["a=0.5"], "one source needs no weight"),
        (["a=1", "b=2"], "/a: cannot be read"),
    ],
)  # fmt: skip
def test_weights_that_are_none_are_refused(tmp_path, monkeypatch, capsys, names, words):
    """As a user types them: one line, exit code 2, nothing written."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    common = ["run", "gpt2-laptop", "--model", "tiny-llama", "--seq-len", "32", "--steps", "1"]
    assert cli.run([*common, *(word for name in names for word in ("--tokens", name))]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said), said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def corpus(path, documents, seed):
    """An index of documents of 5 to 40 tokens."""
    random = np.random.default_rng(seed)
    whole = [[random.integers(0, 64, size=random.integers(5, 40)).tolist()] for _ in range(documents)]
    return write_indexed(path, whole)


def test_a_run_on_a_blend_goes_on_where_it_was(forked, tmp_path):
    """As a user types it: a run of 2 steps and 2 more has the losses of one of 4, on the counts that it tells."""
    from .test_served import config_file, flags

    for number, name in enumerate("ab"):
        corpus(tmp_path / name, 60, number)
    data = ["--tokens", "a=0.7", "--tokens", "b=0.3", "--validation", "0.25", "--eval-every", "2"]
    common = [*flags(config_file(tmp_path), "--nproc", "1", *data)]
    shown = ""
    kept = ["--checkpoint", "c"]
    for steps, more in ((4, ["-o", "whole"]), (2, ["-o", "part", *kept]), (4, ["-o", "on", *kept])):
        done = forked("run", *common, "--steps", steps, *more)
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    whole, part, on = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "part", "on"))
    losses = [each["measured"]["losses"] for each in (whole, part, on)]
    assert losses[0] == [*losses[1], *losses[2][-2:]]
    assert whole["measured"]["evaluations"]["4"] == on["measured"]["evaluations"]["4"]
    assert [each["drawn"] for each in whole["drawn"]] == [11, 5]
    assert re.search(r"drawn in all +\S+/a: 11 sequences \(68.8%\), 0\.\d\d times its", shown)


def test_evaluation_needs_enough_of_each(tmp_path, monkeypatch, capsys):
    """A part whose share of the batches is more than it has is named, and one that holds nothing out."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    corpus(tmp_path / "a", 400, 0)
    corpus(tmp_path / "b", 40, 1)
    (tmp_path / "flat").write_bytes((tmp_path / "a.bin").read_bytes())
    common = ["run", "gpt2-laptop", "--model", "tiny-llama", "--seq-len", "32", "--global-batch", "8", "--steps", "1"]
    more = [*common, "--eval-every", "1", "--validation", "0.1", "--set", "cluster=null", "--tokens", "a=1"]
    assert cli.run([*more, "--tokens", "b=1"]) == 2
    assert re.search(r"held out of \S+/b: \d sequences of 32 tokens; allowed: 4 or more", capsys.readouterr().err)
    assert cli.run([*more, "--tokens", "flat=1"]) == 2
    assert re.search(r"--eval-every: nothing is held out of \S+/flat; allowed", capsys.readouterr().err)
