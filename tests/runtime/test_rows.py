"""Rows of training data: every kind of them, which of their text counts, faults with file and line."""

import json
import re

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

from simpar import cli  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.runtime import documents, rows, tokenize  # noqa: E402
from simpar.runtime.lengths import measure_lengths  # noqa: E402
from simpar.runtime.rows import Chat  # noqa: E402
from simpar.runtime.tokenize import TokenizeOptions  # noqa: E402
from tests.runtime.test_served import END  # noqa: E402
from tests.runtime.test_tokenize import CHAT, MARKED, PLAIN, TURNS, decoded, rows_file, tokens_of  # noqa: E402


def test_completions_alone_count(tmp_path, words):
    """Of a prompt and its completion the completion and its end; of a chat what the assistant's messages add."""
    rows_file(tmp_path / "in.jsonl", {"prompt": "the cat ", "completion": "sat"}, {"messages": TURNS})
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    ids, ends, counted = tokens_of(tmp_path / "out")
    first, second = (slice(0, ends[0]), slice(ends[0], ends[1]))
    assert decoded(words, ids[first][counted[first] == 1]) == f" sat{END}"  # a token of both is one of the completion
    whole = "".join(f"<{m['role']}>{m['content']}</{m['role']}>\n" for m in TURNS)
    assert decoded(words, ids[second]) == whole + END
    assert decoded(words, ids[second][counted[second] == 1]) == "sat on</assistant>\nthe dog</assistant>\n"
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "all", TokenizeOptions(all_counted=True))
    assert tokens_of(tmp_path / "all")[2] is None


def test_tags_of_a_template_say_what_counts(tmp_path, words):
    """Between {% generation %} and its end, and nothing else."""
    (words / "chat_template.jinja").write_text(MARKED)
    rows_file(tmp_path / "in.jsonl", {"messages": TURNS})
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    ids, _, counted = tokens_of(tmp_path / "out")
    assert decoded(words, ids[counted == 1]) == "sat onthe dog"


@pytest.mark.parametrize("template", [CHAT, MARKED])
def test_completions_of_messages_count(tmp_path, words, template):
    """What they add to the text of their prompt, whatever tags say; a prompt may hold the model's earlier words."""
    (words / "chat_template.jinja").write_text(template)
    end = "" if template == MARKED else "</{role}>\n"
    given = "".join(f"<{m['role']}>{m['content']}{end.format(**m)}" for m in TURNS[:3])
    rows_file(tmp_path / "in.jsonl", {"prompt": TURNS[:3], "completion": TURNS[3:]})
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)
    ids, _, counted = tokens_of(tmp_path / "out")
    said = f"the dog{end.format(role='assistant')}"
    assert decoded(words, ids) == f"{given}<assistant>{said}{END}"
    asked = "" if template == CHAT else "<assistant>"  # this template asks without it
    assert decoded(words, ids[counted == 1]) == asked + said


def test_conversations_are_messages_by_other_names(tmp_path, words):
    """From human and gpt, or with roles: the tokens and what counts are those of messages."""
    speakers = {"user": "human", "assistant": "gpt"}
    turns = [{"from": speakers[m["role"]], "value": m["content"]} for m in TURNS]
    made = []
    for number, row in enumerate(({"messages": TURNS}, {"conversations": turns}, {"conversations": TURNS})):
        rows_file(tmp_path / f"{number}.jsonl", row)
        tokenize.tokenize([str(tmp_path / f"{number}.jsonl")], str(words), tmp_path / f"out{number}", PLAIN)
        made.append([part.tolist() for part in tokens_of(tmp_path / f"out{number}")])
    assert made[0] == made[1] == made[2]


def test_templates_are_given_the_tools_of_a_row(tmp_path, words):
    """As a list or as JSON in a string, with further variables; what transformers renders with the same."""
    transformers = pytest.importorskip("transformers")
    source = "{{ tools | tojson }}{{ mood }}" + CHAT
    (words / "chat_template.jinja").write_text(source)
    tools = [{"type": "function", "function": {"name": "sit", "parameters": {}}}]
    loaded = transformers.AutoTokenizer.from_pretrained(words)
    expected = loaded.apply_chat_template(TURNS, tools=tools, mood="calm", tokenize=False)
    for number, said in enumerate((tools, json.dumps(tools))):
        row = {"messages": TURNS, "tools": said, "chat_template_kwargs": {"mood": "calm"}}
        document = rows.document_of(row, f"row {number}", tokenize.Encoder.open(str(words)).render)
        assert document.text == expected


@pytest.mark.parametrize("content", ['[{"text": "the cat"}, {"text": "sat"}]', '{"text": "the cat"}\n{"text": "sat"}'])
def test_json_files_are_lists_or_lines(tmp_path, words, content):
    """Both kinds of .json; folders leave them out, and say so, like all that is no text."""
    (tmp_path / "in.json").write_text(f"\n {content}\n")
    tokenize.tokenize([str(tmp_path / "in.json")], str(words), tmp_path / "out", PLAIN)
    ids, _, _ = tokens_of(tmp_path / "out")
    assert decoded(words, ids) == f"the cat{END}sat{END}"
    with pytest.raises(UserError, match=r"has no files of text; allowed: \.jsonl, "):
        documents.list_sources([str(tmp_path / "out")])
    unread = documents.count_unread([str(tmp_path / "out"), str(tmp_path / "in.json")])
    assert unread == {"files .bin": 2, "files .json": 1}
    (tmp_path / "cut.json").write_text(content[:-1] + ",")
    with pytest.raises(UserError, match=r"cut.json(:2)?: is not JSON .*; allowed: (a list of objects, or )?one object"):
        tokenize.tokenize([str(tmp_path / "cut.json")], str(words), tmp_path / "other", PLAIN)
    (tmp_path / "a.csv").write_text("text\nthe cat\n")
    with pytest.raises(UserError, match=r"a\.csv: \.csv is not read; allowed: text, JSON lines, parquet, or a saved"):
        documents.list_sources([str(tmp_path / "a.csv")])


def test_control_characters_of_a_chat_stay(tmp_path, words):
    """Whatever marks the renderer uses between a template's tags, what messages say is not taken for one."""
    (words / "chat_template.jinja").write_text(MARKED)
    odd = [{"role": "user", "content": "\x02the\x03"}, {"role": "assistant", "content": "\x03cat\x02"}]
    row = rows.document_of({"messages": odd}, "row", tokenize.Encoder.open(str(words)).render)
    assert row.counted == ((row.text.index("\x03cat"), row.text.index("cat\x02") + 4),)


def test_half_of_a_surrogate_pair_is_no_text(tmp_path, words):
    """JSON can say one, as some crawled texts do; UTF-8 and tokenizers cannot."""
    for row in ({"text": "a \ud83d b"}, {"prompt": "a", "completion": "\udc00"}):
        rows_file(tmp_path / "in.jsonl", {"text": "the cat"}, row)
        for name in (str(words), "bytes"):
            with pytest.raises(UserError, match=r"in\.jsonl:2: has half of a surrogate pair \(\\ud[c8]"):
                tokenize.tokenize([str(tmp_path / "in.jsonl")], name, tmp_path / f"out-{len(row)}-{name[0]}", PLAIN)


def test_only_the_training_split_of_a_folder_is_read(tmp_path, words):
    """As the hub names its files, or in folders; what is of other splits is said, and read where it is named."""
    for name in ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl", "validation/a.jsonl"):
        (tmp_path / "hub" / name).parent.mkdir(exist_ok=True, parents=True)
        rows_file(tmp_path / "hub" / name, {"text": "the cat"})
    (tmp_path / "hub/README.md").write_text("About these.\n")
    sources = documents.list_sources([str(tmp_path / "hub")])
    assert [each.path.name for each in sources] == ["train-00000-of-00001.jsonl"]
    unread = documents.count_unread([str(tmp_path / "hub")])
    assert unread == {"files of no split": 1, "files of test": 1, "files of validation": 1}
    assert documents.list_sources([str(tmp_path / "hub/validation")])
    (tmp_path / "hub/data/train-00000-of-00001.jsonl").rename(tmp_path / "hub/latest-results.jsonl")
    assert len(documents.list_sources([str(tmp_path / "hub")])) == 4
    tokenize.tokenize([str(tmp_path / "hub/data")], str(words), tmp_path / "out", PLAIN)


def test_templates_are_rendered_as_transformers_does(tmp_path, words):
    """Its own rendering of the same messages, with the same special tokens."""
    transformers = pytest.importorskip("transformers")
    source = "{{ eos_token }}{%- for m in messages %}\n  {{ m | tojson }}"
    source += "{% if loop.last %}{% break %}{% endif %}\n{% endfor %}"
    (words / "chat_template.jinja").write_text(source + "{% generation %}x{% endgeneration %}")
    rows_file(tmp_path / "in.jsonl", {"messages": [{"role": "user", "content": "caté <b>"}]})
    loaded = transformers.AutoTokenizer.from_pretrained(words)
    expected = loaded.apply_chat_template([{"role": "user", "content": "caté <b>"}], tokenize=False)
    encoder = tokenize.Encoder.open(str(words))
    text, spans = encoder.render(Chat([{"role": "user", "content": "caté <b>"}]), "here")
    assert text == expected
    assert [text[first:last] for first, last in spans] == ["x"]


PARTS = [{"type": "text", "text": "the"}, {"type": "text", "text": "cat"}]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHAT, "<user>the\ncat</user>\n<assistant>sat</assistant>\n"),
        (
            "{% for m in messages %}{% for p in m.content if p is mapping %}{{ p.text }}.{% endfor %}{% endfor %}",
            "the.cat.",
        ),
    ],
)
def test_contents_in_parts(tmp_path, words, template, said):
    """A template that writes contents as they are gets one text, one that writes their parts gets these."""
    (words / "chat_template.jinja").write_text(template)
    turns = [{"role": "user", "content": PARTS}, {"role": "assistant", "content": "sat"}]
    text, _ = tokenize.Encoder.open(str(words)).render(Chat(turns, prompt=1), "here")
    assert text == said


@pytest.mark.parametrize(
    ("content", "what"), [(None, "null"), ([{"type": "image", "image": "a.png"}], "a list of parts")]
)
def test_contents_that_are_no_text_are_refused(tmp_path, words, content, what):
    """In place of None or a list as Python prints them, which a model would learn."""
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "sat"}]
    with pytest.raises(UserError, match=f"here: messages: .* refuses them .it would write {what} where text stands"):
        tokenize.Encoder.open(str(words)).render(Chat(turns), "here")


@pytest.mark.parametrize("name", ["in.jsonl", "in.json", "list.json", "in.txt"])
def test_a_mark_before_a_text_is_none_of_it(tmp_path, words, name):
    """Of UTF-8, as Windows writes it."""
    content = {"list.json": '[{"text": "the cat"}]', "in.txt": "the cat"}.get(name, '{"text": "the cat"}\n')
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    tokenize.tokenize([str(tmp_path / name)], str(words), tmp_path / "out", PLAIN)
    assert decoded(words, tokens_of(tmp_path / "out")[0]) == f"the cat{END}"


def test_columns_of_another_kind_are_named(tmp_path, words):
    """Of a parquet file that has none of those that are read."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"content": ["a"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: has columns content, id; allowed: text, or messages, or prompt"):
        tokenize.tokenize([str(tmp_path / "a.parquet")], str(words), tmp_path / "out", PLAIN)


@pytest.mark.parametrize(
    ("content", "words_said"),
    [
        (b"[" * 100_000, "in.jsonl:1: nested too deeply; allowed: one object a line"),
        (b'{"text": "a"}\n{"text": " "}\n', "in.jsonl:2: text is empty; allowed: some text"),
        (b'{"text": "a"}\n\n{"text": "\xff"}\n', "in.jsonl:3: byte 0xff is not UTF-8 .*; allowed: text in UTF-8"),
        (b'{"text": "a"}\n{"text": \n', "in.jsonl:2: is not JSON .*; allowed: one object a line"),
        (b"", "in.jsonl: no documents; allowed: a text with some"),
        (b'["a"]\n', "in.jsonl:1: is list; allowed: an object with text, or messages, or prompt and completion"),
        (b'{"body": "a"}\n', "in.jsonl:1: has body; allowed: text, or messages, or prompt and completion"),
        (b'{"text": 3}\n', "in.jsonl:1: text is int; allowed: a string"),
        (b'{"prompt": "a"}\n', "in.jsonl:1: has prompt; allowed: text, or messages, or prompt and completion"),
        (b'{"prompt": "a", "completion": null}\n', r"in.jsonl:1: has prompt, completion \(null\); allowed: text, or"),
        (b'{"prompt": "a", "completion": 3}\n', "in.jsonl:1: completion is int; allowed: a string"),
        (b'{"prompt": [{"role": "user", "content": "a"}], "completion": "b"}\n', "completion is str; allowed: a list"),
        (b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n', "has prompt, chosen, rejected; allowed: text, or"),
        (b'{"conversations": [{"from": "human"}]}\n', r"conversations\[0\] has no value; allowed: objects with from"),
        (b'{"conversations": [{"from": "bing", "value": ""}]}\n', "is from bing; allowed: human, user, gpt, assistant"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": "[x"}\n', "in.jsonl:1: tools is not JSON "),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": 3}\n', "tools is int; allowed: a list"),
        (b'{"prompt": "a", "completion": ""}\n', "in.jsonl:1: completion is empty; allowed: some text"),
        (b'{"messages": []}\n', "in.jsonl:1: messages is empty; allowed: a list"),
        (b'{"messages": [{"content": "a"}]}\n', r"in.jsonl:1: messages\[0\] has no role; allowed: objects with role"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n', "in.jsonl:1: messages: none is of role assistant"),
    ],
)
def test_faults_are_said_with_file_and_line(tmp_path, words, monkeypatch, capsys, content, words_said):
    """One line, exit code 2, and no folder that could be taken for a finished one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(content)
    assert cli.run(["tokenize", "in.jsonl", "--tokenizer", str(words), "-o", "out"]) == 2
    said = capsys.readouterr().err
    assert re.search(words_said, said), said
    assert said.count("\n") == 1
    assert not (tmp_path / "out/tokens.json").exists()


def test_a_tokenizer_without_template_reads_no_chats(tmp_path, words):
    """The line of the first chat, and what else may be given."""
    (words / "chat_template.jinja").unlink()
    rows_file(tmp_path / "in.jsonl", {"text": "a"}, {"messages": TURNS})
    with pytest.raises(UserError, match=r"in.jsonl:2: messages: tokenizer .* has no chat template; allowed: one with"):
        tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", PLAIN)


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_what_is_left_out_is_counted(tmp_path, words, name, monkeypatch, capsys):
    """Empty documents, those without a token in the loss, blank lines, other files and splits, wherever it is said."""
    monkeypatch.chdir(tmp_path)
    tokenizer = str(words) if name == "words" else name
    (tmp_path / "in/test").mkdir(parents=True)
    chat = [{"messages": []}, {"messages": TURNS[:1]}, {"messages": TURNS}] if name == "words" else []
    empty = [{"text": " \n"}, {"prompt": "the", "completion": ""}, {"text": None}]
    rows_file(
        tmp_path / "in/train-0.jsonl", {"text": "the cat"}, *empty, *chat, {"prompt": "the ", "completion": "dog"}
    )
    with (tmp_path / "in/train-0.jsonl").open("a") as stream:
        stream.write("\n\n")
    rows_file(tmp_path / "in/test/a.jsonl", {"text": "the cat"})
    (tmp_path / "in/train.txt").write_text("")
    (tmp_path / "in/a.pdf").write_text("x")
    left_out = {"files .pdf": 1, "files of test": 1, "blank lines": 2}
    left_out |= {"documents without a token in the loss": 1} if chat else {}
    left_out |= {"empty documents": 4 + bool(chat)}
    for command in (["tokenize", "in", "-o", "refused"], ["data", "in"]):
        assert cli.run([*command, "--tokenizer", tokenizer]) == 2
        said = capsys.readouterr().err
        assert (
            "train-0.jsonl:2: text is empty; allowed: some text, or --skip-empty, which leaves such documents" in said
        )
    assert cli.run(["tokenize", "in", "--tokenizer", tokenizer, "-o", "out", "--skip-empty"]) == 0
    assert f"left out: {rows.tell_counts(left_out)} (files and splits" in capsys.readouterr().out
    manifest = tokenize.TokenManifest.load(tmp_path / "out")
    assert (manifest.left_out, manifest.documents) == (dict(sorted(left_out.items())) | left_out, 2 + bool(chat))
    for given in (["out"], ["in", "--tokenizer", tokenizer, "--skip-empty"]):
        assert cli.run(["data", *given, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["left_out"] == left_out


def test_data_tells_what_a_run_leaves_out(tmp_path, words, capsys):
    """Tokens that fill no sequence or are cut, documents whose prompts fill theirs, and what is held out."""
    made = [{"prompt": "the cat " * n, "completion": "sat"} for n in range(1, 31)]
    rows_file(tmp_path / "in.jsonl", *made)
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "out", TokenizeOptions(validation=0.3))
    ids, ends, counted = tokens_of(tmp_path / "out")
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    found = measure_lengths(tmp_path / "out", 16)
    assert found["tail_tokens"] == len(ids) - 1 - 16 * ((len(ids) - 1) // 16) > 0
    assert found["held_out"] == 30 - len(ends) > 0
    assert "untargeted" not in found
    alone = [not counted[first + 1 : min(end, first + 17)].any() for first, end in zip(starts, ends, strict=True)]
    assert 0 < sum(alone) < len(ends)
    found = measure_lengths(tmp_path / "out", 16, packed=False)
    assert found["untargeted"] == sum(alone)
    assert found["cut_share"] == pytest.approx(1 - np.minimum(lengths, 17).sum() / lengths.sum())
    texts = measure_lengths(tmp_path / "in.jsonl", 16, packed=False, tokenizer=str(words))
    tokenize.tokenize([str(tmp_path / "in.jsonl")], str(words), tmp_path / "all", PLAIN)
    assert measure_lengths(tmp_path / "all", 16, packed=False) == texts
    assert cli.run(["data", str(tmp_path / "out"), "--seq-len", "16", "--no-pack"]) == 0
    said = capsys.readouterr().out
    assert f"# nothing to predict within 16 tokens: {sum(alone)} documents\n" in said
    assert f"# held out beside these: {30 - len(ends)} documents\n" in said
