"""Text becomes tokens once: every kind of file, the same bytes after an interruption, faults with file and line."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

from simpar import cli  # noqa: E402
from simpar.architectures.training import Training  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.runtime import documents, tokenize  # noqa: E402
from simpar.runtime.data import IGNORED_TARGET, Loader, open_source  # noqa: E402
from simpar.runtime.job import Data  # noqa: E402
from simpar.runtime.lengths import measure_lengths, representatives  # noqa: E402
from simpar.runtime.tokenize import TokenizeOptions  # noqa: E402
from tests.runtime.test_served import END  # noqa: E402

PLAIN = TokenizeOptions()
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)
TURNS = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat on"},
    {"role": "user", "content": "the mat"},
    {"role": "assistant", "content": "the dog"},
]


def rows_file(path, *rows):
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tokens_of(folder):
    """Tokens, ends of documents, and what counts (None: all)."""
    done = tokenize.TokenManifest.load(folder)
    counted = folder / "counted.bin"
    flags = np.fromfile(counted, np.uint8) if counted.exists() else None
    assert (flags is not None) == done.counted
    return np.fromfile(folder / "tokens.bin", done.dtype), np.fromfile(folder / "ends.bin", np.int64), flags


def decoded(words, ids):
    """Text of tokens, with those that end a text."""
    made = tokenizers.Tokenizer.from_file(str(words / "tokenizer.json"))
    return made.decode([int(each) for each in ids], skip_special_tokens=False)


def test_documents_are_one_behind_the_other_with_their_end(tmp_path, words):
    """Rows and files of a folder in the order of their names, each with the token that ends a text."""
    (tmp_path / "in/b").mkdir(parents=True)
    rows_file(tmp_path / "in/a.jsonl", {"text": "the cat sat"}, {"text": "the dog"})
    (tmp_path / "in/b/c.txt").write_text("on the mat")
    (tmp_path / "in/notes.pdf").write_text("no text")
    done = tokenize.tokenize([str(tmp_path / "in")], str(words), tmp_path / "out", PLAIN)
    ids, ends, counted = tokens_of(tmp_path / "out")
    assert (done.documents, done.tokens) == (3, len(ids)) == (len(ends), ends[-1])
    assert counted is None
    pieces = [decoded(words, part) for part in np.split(ids, ends)[:-1]]
    assert pieces == [f"the cat sat{END}", f"the dog{END}", f"on the mat{END}"]


def test_an_interrupted_call_goes_on_to_the_same_bytes(tmp_path, words, monkeypatch):
    """Stopped behind any batch, then called again: every file is that of an undisturbed call."""
    monkeypatch.setattr(tokenize, "AT_ONCE", 3)
    monkeypatch.setattr(tokenize, "KEPT_EVERY_S", -1.0)
    rows = [{"prompt": f"the cat {n} ", "completion": "sat on the mat " * (n % 4)} for n in range(14)]
    names = [str(rows_file(tmp_path / "a.jsonl", *rows)), str(rows_file(tmp_path / "b.jsonl", *rows[::-1]))]
    options = TokenizeOptions(validation=0.3, skips=True)
    done = tokenize.tokenize(names, str(words), tmp_path / "whole", options)
    assert done.left_out == {"empty documents": 8}
    files = {path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    assert len(files) == 8
    kept = tokenize._keep
    for stop in range(1, 8):
        calls = iter(range(stop))

        def keep(*arguments, calls=calls):
            if next(calls, None) is None:  # a batch is on disk that no progress file knows of
                raise KeyboardInterrupt
            kept(*arguments)

        out = tmp_path / f"out{stop}"
        monkeypatch.setattr(tokenize, "_keep", keep)
        with pytest.raises(KeyboardInterrupt):
            tokenize.tokenize(names, str(words), out, options)
        with pytest.raises(UserError, match="unfinished: the same simpar tokenize goes on"):
            tokenize.TokenManifest.load(out)
        monkeypatch.setattr(tokenize, "_keep", kept)
        tokenize.tokenize(names, str(words), out, options)
        assert {path.relative_to(out) for path in out.rglob("*") if path.is_file()} == files
        for name in files:
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (stop, name)


def test_a_text_that_is_mended_is_read_anew(tmp_path, words):
    """A fault before anything is kept leaves nothing that stands in the way of the next call."""
    path = rows_file(tmp_path / "a.jsonl", {"text": "the cat"}, {"text": ""})
    with pytest.raises(UserError, match=r"a.jsonl:2: text is empty"):
        tokenize.tokenize([str(path)], str(words), tmp_path / "out", TokenizeOptions(validation=0.5))
    rows_file(path, {"text": "the cat"}, {"text": "the dogs"})
    made = tokenize.tokenize([str(path)], str(words), tmp_path / "out", PLAIN)
    assert made.documents == 2
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["ends.bin", "tokens.bin", "tokens.json"]


def test_a_refused_call_goes_on_with_what_it_refused_skipped(tmp_path, words, monkeypatch):
    """From what it kept, to the bytes of a call that skips from the beginning; not the other way round."""
    monkeypatch.setattr(tokenize, "AT_ONCE", 2)
    monkeypatch.setattr(tokenize, "KEPT_EVERY_S", -1.0)
    texts = ["the cat", "sat on", "the mat", "", "the dog", "sat"]
    path = str(rows_file(tmp_path / "a.jsonl", *({"text": each} for each in texts)))
    with pytest.raises(UserError, match=r"a\.jsonl:4: text is empty"):
        tokenize.tokenize([path], str(words), tmp_path / "out", PLAIN)
    assert json.loads((tmp_path / "out/progress.json").read_text())["position"] == 2
    skips = TokenizeOptions(skips=True)
    done = tokenize.tokenize([path], str(words), tmp_path / "out", skips)
    assert done == tokenize.tokenize([path], str(words), tmp_path / "whole", skips)
    assert all(
        np.array_equal(*pair)
        for pair in zip(tokens_of(tmp_path / "out")[:2], tokens_of(tmp_path / "whole")[:2], strict=True)
    )
    with pytest.raises(UserError, match="has tokens of other text, tokenizer or options; allowed: a new folder"):
        tokenize.tokenize([path], str(words), tmp_path / "out", PLAIN)


def test_two_calls_do_not_write_one_folder(tmp_path, words, monkeypatch):
    """The second is refused in one line, and the first ends as if it had been alone."""
    path = rows_file(tmp_path / "a.jsonl", {"text": "the cat"})
    read, refused = tokenize.read, []

    def meanwhile(*arguments, **named):
        with pytest.raises(UserError) as raised:
            tokenize.tokenize([str(path)], str(words), tmp_path / "out", PLAIN)
        refused.append(str(raised.value))
        return read(*arguments, **named)

    monkeypatch.setattr(tokenize, "read", meanwhile)
    assert tokenize.tokenize([str(path)], str(words), tmp_path / "out", PLAIN).documents == 1
    assert refused == [
        f"{tmp_path / 'out'}: another process writes tokens there; allowed: when it has ended, or a new folder"
    ]


def test_what_is_there_is_not_made_again(tmp_path, words, monkeypatch):
    """The same text, tokenizer and options: nothing is read. Others are refused."""
    path = rows_file(tmp_path / "a.jsonl", {"text": "the cat"})
    first = tokenize.tokenize([str(path)], str(words), tmp_path / "out", PLAIN)
    monkeypatch.setattr(tokenize, "read", lambda *_: pytest.fail("must not be read"))
    assert tokenize.tokenize([str(path)], str(words), tmp_path / "out", PLAIN) == first
    rows_file(path, {"text": "the dogs"})
    with pytest.raises(UserError, match="has tokens of other text, tokenizer or options; allowed: a new folder"):
        tokenize.tokenize([str(path)], str(words), tmp_path / "out", PLAIN)


def test_held_out_documents_are_chosen_by_their_number(tmp_path, words):
    """Every document is in one of both folders, about as many as asked for, the same ones in every call."""
    rows = [{"text": f"the cat {number}"} for number in range(400)]
    path = rows_file(tmp_path / "a.jsonl", *rows)
    found = []
    for out in ("one", "two"):
        tokenize.tokenize([str(path)], str(words), tmp_path / out, TokenizeOptions(validation=0.25))
        parts = [tokens_of(folder) for folder in (tmp_path / out, tmp_path / out / "validation")]
        texts = [[decoded(words, part) for part in np.split(ids, ends)[:-1]] for ids, ends, _ in parts]
        assert sorted(texts[0] + texts[1]) == sorted(row["text"] + END for row in rows)
        assert 70 < len(texts[1]) < 130
        found.append(texts)
    assert found[0] == found[1]


def test_long_texts_are_encoded_in_pieces(tmp_path, words, monkeypatch):
    """Cut between lines, one document with one end; the tokens are those of the whole text."""
    text = "".join(f"the cat sat on line {number}\n" * (1 + number % 2) for number in range(60))
    (tmp_path / "a.txt").write_text(text)
    tokenize.tokenize([str(tmp_path / "a.txt")], str(words), tmp_path / "whole", PLAIN)
    monkeypatch.setattr(documents, "PIECE_BYTES", 100)
    tokenize.tokenize([str(tmp_path / "a.txt")], str(words), tmp_path / "pieces", PLAIN)
    whole, pieces = tokens_of(tmp_path / "whole"), tokens_of(tmp_path / "pieces")
    assert len(whole[1]) == 1
    assert decoded(words, pieces[0]) == text + END
    for one, other in zip(whole[:2], pieces[:2], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("package", ["pyarrow", "datasets"])
def test_rows_of_other_formats(tmp_path, words, package):
    """Parquet and saved datasets, where their libraries are installed; else one line says which one is missing."""
    rows = [{"text": "the cat"}, {"text": "the dog"}]
    if package == "pyarrow":
        source = tmp_path / "a.parquet"
        parquet = pytest.importorskip("pyarrow.parquet") if _installed(package) else None
        if parquet is not None:
            import pyarrow

            parquet.write_table(pyarrow.Table.from_pylist(rows), source)
        else:
            source.write_bytes(b"PAR1")
    else:
        source = tmp_path / "saved"
        if _installed(package):
            save_dataset(rows, source)
        else:
            source.mkdir()
            (source / "state.json").write_text("{}")
    if not _installed(package):
        with pytest.raises(UserError, match=f"{package} reads it and is not installed: pip install {package}"):
            tokenize.tokenize([str(source)], str(words), tmp_path / "out", PLAIN)
        return
    if package == "datasets":
        (source / "dataset_info.json").unlink()
        with pytest.raises(UserError, match="is not a saved dataset"):
            tokenize.tokenize([str(source)], str(words), tmp_path / "out", PLAIN)
        save_dataset(rows, source := tmp_path / "again")
    tokenize.tokenize([str(source)], str(words), tmp_path / "out", PLAIN)
    ids, ends, _ = tokens_of(tmp_path / "out")
    assert [decoded(words, part) for part in np.split(ids, ends)[:-1]] == [row["text"] + END for row in rows]


def save_dataset(rows, folder):
    """A saved dataset of rows; with a fingerprint, since a digest of their class pickles what cannot always be."""
    import datasets
    import pyarrow

    table = datasets.table.InMemoryTable(pyarrow.Table.from_pylist(rows))
    datasets.Dataset(table, fingerprint="rows").save_to_disk(str(folder))


def _installed(package):
    import importlib.util

    return importlib.util.find_spec(package) is not None


@pytest.mark.parametrize(
    ("content", "words_said"),
    [
        (b"", "in.txt:1: the document is empty"),
        (b" \n\n", "in.txt:1: the document is empty"),
        (b"a\nb\nc\xff\n", "in.txt:3: byte 0xff is not UTF-8"),
    ],
)
def test_faults_of_plain_texts(tmp_path, words, content, words_said):
    """The line of the byte, also behind the first piece."""
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(UserError, match=words_said):
        tokenize.tokenize([str(tmp_path / "in.txt")], str(words), tmp_path / "out", PLAIN)


def test_the_line_is_right_behind_the_first_piece(tmp_path, words, monkeypatch):
    """Lines are counted from the beginning of the file."""
    monkeypatch.setattr(documents, "PIECE_BYTES", 8)
    (tmp_path / "in.txt").write_bytes(b"one\ntwo\nthree\nfour\nfive\xfe\n")
    with pytest.raises(UserError, match=r"in\.txt:5: byte 0xfe"):
        tokenize.tokenize([str(tmp_path / "in.txt")], str(words), tmp_path / "out", PLAIN)


def test_batches_of_both_kinds_of_packing(tmp_path, words):
    """Packed windows with the targets that count; padded documents, each from its beginning, cut or filled up."""
    rows = [{"prompt": "the cat ", "completion": "sat"}, {"prompt": "the ", "completion": "dog sat on the mat " * 3}]
    rows_file(tmp_path / "in.jsonl", *rows)
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    ids, ends, counted = tokens_of(tmp_path / "out")
    length = 12
    training = Training(seq_len=length, global_batch=2)
    packed = open_source(Data(kind="tokens", path=str(tmp_path / "out")), training, 96, 0)
    assert packed.sample(1).tolist() == ids[length : 2 * length + 1].tolist()
    wanted = np.where(counted == 1, ids.astype(np.int64), IGNORED_TARGET)
    assert packed.wanted(1).tolist() == wanted[length : 2 * length + 1].tolist()
    padded = open_source(Data(kind="tokens", path=str(tmp_path / "out"), pack=False), training, 96, 0)
    assert len(padded) == 2
    assert padded.sample(0).tolist() == [*ids[: ends[0]], *[ids[ends[0] - 1]] * (length + 1 - ends[0])]
    assert padded.wanted(0).tolist() == [*wanted[: ends[0]], *[IGNORED_TARGET] * (length + 1 - ends[0])]
    assert padded.sample(1).tolist() == ids[ends[0] : ends[0] + length + 1].tolist()
    loader = Loader(padded, 2, 1, 2, seed=0)
    mine, factor = loader.targets(0)
    both = sum(int((padded.wanted(index)[1:] >= 0).sum()) for index in (0, 1))
    assert mine.tolist() == [padded.wanted(int(loader.indices(0)[0])).tolist()]
    assert factor == 2 * length / both


def test_folders_that_do_not_fit_are_said(tmp_path, words):
    """Another vocabulary, files that were cut, documents that nobody knows."""
    rows_file(tmp_path / "in.jsonl", {"text": "the cat sat on the mat"})
    done = tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    training, data = Training(seq_len=4, global_batch=1), Data(kind="tokens", path=str(tmp_path / "out"))
    with pytest.raises(UserError, match=f"a tokenizer of {done.vocabulary} tokens, the model's vocabulary has 9"):
        open_source(data, training, 9, 0)
    flat = data.model_copy(update={"path": str(tmp_path / "out/tokens.bin"), "pack": False})
    with pytest.raises(UserError, match="--no-pack: its documents are not known"):
        open_source(flat, training, 96, 0)
    with (tmp_path / "out/tokens.bin").open("ab") as stream:
        stream.write(b"12")
    with pytest.raises(UserError, match=f"has {done.tokens + 1} tokens of 1 documents, tokens.json says {done.tokens}"):
        open_source(data, training, 96, 0)


def test_tokens_of_another_tokenizer_are_refused(tmp_path, words, monkeypatch):
    """Whether it is named or comes with the model: the saved folder would have words that the model never learnt."""
    from simpar.runtime.request import load_request, make_ready

    monkeypatch.chdir(tmp_path)
    rows_file(tmp_path / "in.jsonl", *[{"text": "the cat sat on the mat"}] * 9)
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    flags = {"model": "tiny-llama", "training.seq_len": 4, "training.global_batch": 2}
    request = load_request("gpt2-laptop", flags, ["cluster=null", "plan.micro_batch=1"])

    def ready(tokenizer, **weights):
        data = {"kind": "tokens", "path": "out", "tokenizer": tokenizer}
        return make_ready(request, 1, 1, {"steps": 1, "folder": "run", "data": data, "weights": weights})

    other = tmp_path / "other"
    shutil.copytree(words, other)
    made = json.loads((other / "tokenizer.json").read_text())
    names = list(made["model"]["vocab"])
    made["model"]["vocab"][names[-1]], made["model"]["vocab"][names[-2]] = len(names) - 2, len(names) - 1
    (other / "tokenizer.json").write_text(json.dumps(made))
    for name in (str(other), "bytes"):
        with pytest.raises(UserError, match="out has tokens of another tokenizer; allowed: the one"):
            ready(name)
    settings = words / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("64", "32"))  # says nothing of the tokens' numbers
    assert ready(str(words), save_to="saved").job.data.tokenizer == str(words)
    assert ready(None, save_to="saved").world_size == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"good\ncaf\xe9 ", ":2: byte 0xe9 is not UTF-8"),
        (b"cut \xc3", ":1: byte 0xc3 is not UTF-8"),
        (b"", ":1: the document is empty"),
    ],
)
def test_bytes_of_a_text_are_those_of_utf8(tmp_path, monkeypatch, capsys, content, words):
    """Also where nothing is encoded: one line with file and line number."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_bytes(content)
    shape = ["--model", "tiny-llama", "--seq-len", "2", "--global-batch", "1", "--micro-batch", "1", "--nproc", "1"]
    assert cli.run(["run", "gpt2-laptop", *shape, "--set", "cluster=null", "--steps", "1", "--text", "in.txt"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"{tmp_path}/in.txt{words}")
    assert len(said.splitlines()) == 1


def test_lengths_are_stated_as_a_scenario_takes_them(tmp_path, words, capsys):
    """The mean of what is stated is that of the documents; the text is YAML that a scenario reads."""
    from ruamel.yaml import YAML

    from simpar.architectures.training import Documents

    rows = [{"text": "the cat sat " * (1 + number % 37)} for number in range(300)]
    rows_file(tmp_path / "in.jsonl", *rows)
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    _, ends, _ = tokens_of(tmp_path / "out")
    lengths = np.diff(ends, prepend=0)
    assert cli.run(["data", str(tmp_path / "out"), "--seq-len", "32", "--no-pack"]) == 0
    said = capsys.readouterr().out
    assert cli.run(["data", str(tmp_path / "in.jsonl"), "--tokenizer", str(words), "--seq-len", "32", "--no-pack"]) == 0
    assert capsys.readouterr().out == said  # of the text itself
    for wrong in ([str(tmp_path / "in.jsonl")], [str(tmp_path / "out"), "--tokenizer", str(words)]):
        assert cli.run(["data", *wrong]) == 2
        assert re.search("allowed: .*text.* --tokenizer\n$", capsys.readouterr().err)
    stated = YAML(typ="safe").load(said)["training"]["documents"]
    read = Documents(**stated)
    assert read.packing == "pad"
    assert len(read.lengths) == 64
    assert np.mean(read.lengths) == pytest.approx(lengths.mean(), rel=0.01)
    found = measure_lengths(tmp_path / "out", 32, packed=False)
    assert found["longest"] == lengths.max()
    assert found["longer_share"] == (lengths > 33).mean()
    assert found["padding_share"] == pytest.approx(1 - np.minimum(lengths, 33).sum() / (33 * 300))
    assert f"# longer than 32: {(lengths > 33).mean():.1%} of the documents" in said
    assert representatives(np.array([5, 1, 3])) == [1, 3, 5]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "layout",
    [
        ["--nproc", "2", "--zero", "1"],
        pytest.param(["--nproc", "2", "--tp", "2"], marks=pytest.mark.slow),
        pytest.param(["--nproc", "2", "--pp", "2"], marks=pytest.mark.slow),
        pytest.param(["--nproc", "2", "--sync", "bsp", "--set", "plan.servers=1"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("pack", ["--pack", pytest.param("--no-pack", marks=pytest.mark.slow)])
def test_a_run_on_completions_has_the_loss_of_transformers(forked, tmp_path, words, layout, pack):
    """Loss and step of SGD are those of transformers' model on the same labels, the mean over what counts."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from .test_served import tensors_in
    from .test_weights import files_of
    from .tiny_models import MODELS

    config = {**MODELS["llama"], "pad_token_id": None}  # or its row gets no gradient there
    files_of("llama", config, tmp_path / "in")
    rows = [{"prompt": "the cat " * (1 + n % 3), "completion": "sat on the mat " * (1 + n % 5)} for n in range(40)]
    rows_file(tmp_path / "rows.jsonl", *rows)
    shape = ["--model", "in/config.json", "--seq-len", "16", "--global-batch", "4", "--micro-batch", "1"]
    exact = ["--precision", "fp32", "--optimizer", "sgd", "--learning-rate", "0.5", "--set", "cluster=null"]
    data = ["--text", "rows.jsonl", "--tokenizer", words, pack, "--init-from", "in", "--save-to", "out"]
    done = forked("run", "gpt2-laptop", *shape, *exact, *data, *layout, "--threads", "1", "--steps", "1", "-o", "log")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "log").glob("tokens-*")
    given = Data(kind="tokens", path=str(folder), pack=pack == "--pack")
    loader = Loader(open_source(given, Training(seq_len=16, global_batch=4), 96, 0), 4, 0, 1, 0)
    tokens, wanted = torch.from_numpy(loader.batch(0)), torch.from_numpy(loader.targets(0)[0])
    assert 0.1 < float((wanted[:, 1:] < 0).float().mean()) < 0.9
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32)
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED_TARGET)
    loss.backward()
    report = json.loads((tmp_path / "log/report.json").read_text())
    assert report["measured"]["losses"][0] == pytest.approx(float(loss.detach()), abs=2e-6)
    saved = tensors_in(tmp_path / "out")
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(saved[name], expected, rtol=1e-5, atol=1e-6)


def test_a_run_evaluates_on_what_is_held_out(forked, tmp_path, words):
    """``--validation`` is enough: no file of its own."""
    from .test_served import config_file, flags

    rows_file(tmp_path / "rows.jsonl", *({"text": f"the cat {n} sat on the mat"} for n in range(60)))
    data = ["--text", "rows.jsonl", "--tokenizer", words, "--validation", "0.3", "--eval-every", "1"]
    done = forked("run", *flags(config_file(tmp_path), "--nproc", "1", "--steps", "2", *data, "-o", "log"))
    assert done.returncode == 0, done.stderr
    assert list(json.loads((tmp_path / "log/report.json").read_text())["measured"]["evaluations"]) == ["1", "2"]


def test_tokenizing_needs_no_torch(tmp_path, words):
    """The command starts without it."""
    rows_file(tmp_path / "in.jsonl", {"text": "the cat"})
    code = "import sys; sys.modules['torch'] = None; from simpar import cli; sys.exit(cli.run(sys.argv[1:]))"
    given = ["tokenize", tmp_path / "in.jsonl", "--tokenizer", words, "-o", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, given)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 document, ")
