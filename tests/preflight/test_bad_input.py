"""Bad launch files: one line that names the file, whatever they are, from ``check``, ``import`` and ``explain``."""

import gzip
import json
import math
import pickle
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar import files
from simpar.cli import run
from simpar.errors import UserError
from simpar.frameworks import READERS, read
from simpar.frameworks.recipes import flat, nest_names
from simpar.frameworks.words import plain
from simpar.preflight.given import given_text, given_words
from tests.frameworks.test_corpus import CORPUS, TARGETS, WRITERS

BINARY = {
    "elf": b"\x7fELF\x02\x01\x01" + bytes(90), "png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "gzip": gzip.compress(b"torchrun pretrain_gpt.py"), "pickle": pickle.dumps({"a": 1}), "nul": b"torchrun x.py\0",
    "utf-16": "torchrun pretrain_gpt.py".encode("utf-16"), "latin-1": b"# caf\xe9\n", "empty": b"", "blank": b" \n\t\n",
}  # fmt: skip
DEEP = {
    "deep.json": '{"a":' * 10_000, "digits.json": '{"a":' + "9" * 5_000 + "}", "deep.toml": "a=" + "[" * 10_000,
    "deep.yaml": "\n".join(" " * level + "a:" for level in range(300)), "deep.py": "x=" + "-" * 20_000 + "1",
    "bomb.yaml": "a: &a [1,1,1,1,1,1,1,1,1]\n" + "\n".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    ),
    "deep.sh": "(" * 10_000 + ")" * 10_000,
    "default.sh": "A=" + "${A:-" * 500 + "1" + "}" * 500 + "\ntorchrun x $A",
    "doubled.sh": "A=xx\n" + "A=$A$A\n" * 40 + "torchrun pretrain_gpt.py $A", "itself.sh": "source itself.sh",
    "digits.sh": "torchrun train.py --num_train_epochs " + "9" * 5_000 + " --per_device_train_batch_size 1",
    "name.sh": "deepspeed train.py --model_name_or_path " + "m" * 5_000 + " --per_device_train_batch_size 1",
    "slime.sh": "torchrun pretrain_gpt.py --num-layers " + "9" * 5_000,
}  # fmt: skip
SUFFIXES = (".sh", ".yaml", ".json", ".toml", ".py", "")


def refused(capsys, *arguments):
    """The one line of a command that refuses its input."""
    assert run([*map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("kind", BINARY)
def test_a_file_of_another_kind_is_refused_by_name(kind, tmp_path, capsys):
    """Whatever its suffix says."""
    for suffix in SUFFIXES:
        path = tmp_path / f"{kind}{suffix}"
        path.write_bytes(BINARY[kind])
        assert path.name in refused(capsys, "check", "--hardware", "dgx-h100", "--nodes", 1, path)
        for name in ("megatron", "transformers", "torchtitan-0.2"):
            assert path.name in refused(capsys, "import", "--from", name, path)
        assert path.name in refused(capsys, "explain", path)


@pytest.mark.parametrize("name", DEEP)
def test_nesting_and_repetition_without_end_is_refused_by_name(name, tmp_path, monkeypatch, capsys):
    """Within the time that its beginning takes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simpar.plain.MAX_NODES", 2_000)
    Path(name).write_text(DEEP[name])
    assert name in refused(capsys, "check", "--hardware", "dgx-h100", "--nodes", 1, name)
    if name.endswith(".json"):
        assert name in refused(capsys, "explain", name)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.sh", b"torchrun \\\n  x.py --name caf\xe9\n", "a.sh:2: is not text (UTF-8): byte 0xe9 at offset 28"),
        ("a.json", b'{"a":\n1}\0', "a.json:2: is not text (UTF-8): byte 0x00 at offset 8"),
        ("a.toml", b"[training]\nseq_len = 8\n[parallelism\n", "a.toml:3: not valid TOML"),
        ("a.toml", b"[training]\nsteps = ", "a.toml:2: not valid TOML"),
        ("a.py", b"x = 1\ndef recipe(\n", "a.py:2: not Python ('(' was never closed)"),
        ("a.sh", b"X=1\nf() {\n  f\n}\nf\n", "a.sh:2: a script that goes on without end"),
        ("a.yaml", b"policy: {}\ndefaults: b.yaml\ngrpo: {}\n", "b.yaml:1: defaults: a.yaml leads back to itself"),
        ("a.py", b"from c import base\ndef recipe():\n    return base()\n", "c.py:2: base: functions that call"),
    ],
)
def test_a_fault_is_told_with_its_line(name, content, told, tmp_path, monkeypatch, capsys):
    """Bytes of no text, an end that is missing, and what leads back to itself, in scripts, configs and recipes."""
    monkeypatch.chdir(tmp_path)
    Path("b.yaml").write_text("defaults: a.yaml\npolicy: {}\ngrpo: {}\n")
    Path("c.py").write_text("from a import recipe\ndef base():\n    return recipe()\n")
    Path(name).write_bytes(content)
    assert told in refused(capsys, "check", "--hardware", "dgx-h100", "--nodes", 1, name)


def test_a_table_without_end_is_refused_before_it_is_predicted(tmp_path, monkeypatch, capsys):
    """A table of 100 MB has a million rows, and each is simulated; one that is no table is named with its line."""
    monkeypatch.setattr("simpar.validation.table.MOST_ROWS", 2)
    path = tmp_path / "runs.csv"
    path.write_text("source,model_name,seq_len,n_gpus\n" + "own,gpt2,1024,8\n" * 4)
    assert "runs.csv:4: more than 2 rows" in refused(capsys, "validate", path)
    path.write_text("source,model_name,seq_len,n_gpus\n" + "x" * 200_000)
    assert "runs.csv:2: is not a CSV table (field larger" in refused(capsys, "validate", path)


def test_what_is_no_file_or_too_large_is_refused_by_name(tmp_path, capsys):
    """A folder, a link to itself, and 100 MB, of which no more than the limit is read."""
    folder, loop, large = tmp_path / "folder.yaml", tmp_path / "loop.sh", tmp_path / "large.yaml"
    folder.mkdir()
    loop.symlink_to(loop)
    with large.open("wb") as stream:
        stream.truncate(100 * 2**20)
    for path, why in ((folder, "Is a directory"), (loop, "symbolic links"), (large, "larger than 1 MiB")):
        for command in (("check", "--hardware", "dgx-h100"), ("import", "--from", "megatron")):
            line = refused(capsys, *command, path)
            assert path.name in line
            assert why in line


def test_a_long_text_without_a_step_is_refused_after_its_beginning(tmp_path, monkeypatch, capsys):
    """Logs may be long, but not before their first step."""
    monkeypatch.setattr("simpar.diagnosis.logs.MOST_BEFORE", 3)
    path = tmp_path / "run.log"
    path.write_text("nothing\n" * 5 + "| step: 1 | loss: 2.0 | iter/sec 1.0\n")
    assert "run.log" in refused(capsys, "explain", path)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_text_that_is_cut_anywhere_is_read_or_refused_in_one_line(data):
    """Of every kind of file in the corpus; of the wrong framework too."""
    entry = CORPUS[data.draw(st.sampled_from(sorted(CORPUS)))]
    (target, name), text = TARGETS[entry["form"]], WRITERS[entry["form"]](entry["facts"])
    text = text[: data.draw(st.integers(0, len(text)))]
    for reader in (target, data.draw(st.sampled_from(sorted(READERS)))):
        for attempt in (partial(read, text, name, reader), partial(given_text, text, name, None, Path(name).suffix)):
            try:
                attempt()
            except UserError as error:
                assert "\n" not in str(error)
                assert name.partition(":")[0] in str(error)


CONFIGS = {
    name: entry for name, entry in CORPUS.items() if TARGETS[entry["form"]][1].endswith((".yaml", ".yml", ".json"))
}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), st.sampled_from((math.inf, -math.inf, math.nan)), st.data())
def test_infinity_is_read_or_refused_by_its_field(name, value, data):
    """In place of any number of a YAML or JSON: what decides must be finite, and no plan has a number that is not."""
    form = CONFIGS[name]["form"]
    source = TARGETS[form][1]
    config = flat(files.read_yaml(WRITERS[form](CONFIGS[name]["facts"]), source))
    key = data.draw(st.sampled_from([key for key, old in config.items() if type(old) in (int, float)]))
    text = json.dumps(nest_names({**config, key: value}))
    if not source.endswith(".json"):
        text = text.replace("Infinity", ".inf").replace("NaN", ".nan")
    try:
        plan = given_text(text, source, None, Path(source).suffix).found.plan
    except UserError as error:
        assert "\n" not in str(error)
        assert "_".join(plain(key.rpartition(".")[2]).split("_")[-2:]) in plain(str(error))
    else:
        json.dumps(plan.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize(
    "written",
    ["cfg.yaml:max_grad_norm: .inf", 'cfg.json:"max_grad_norm": Infinity', "cfg.yaml:max_grad_norm: -.inf\nseed: .nan"],
)
def test_infinity_in_what_a_trainer_says_beside(written, tmp_path, monkeypatch, capsys):
    """A norm that never clips decides nothing, and a number of sequences must be one."""
    monkeypatch.chdir(tmp_path)
    name, _, word = written.partition(":")
    own = {"model_name_or_path": "Qwen/Qwen3-0.6B", "per_device_train_batch_size": 2, "max_length": 1024, "bf16": True}
    lines = [f"{key}: {json.dumps(value)}" for key, value in own.items()]
    quoted = [f'"{key}": {json.dumps(value)}' for key, value in own.items()]
    is_json = name.endswith(".json")
    Path(name).write_text("{" + ", ".join([*quoted, word]) + "}" if is_json else "\n".join([*lines, word]))
    assert given_words([name]).found.plan.micro_batch == 2
    Path(name).write_text(Path(name).read_text().replace(": 2", ": Infinity" if is_json else ": .inf"))
    line = refused(capsys, "check", "--hardware", "dgx-h100", name)
    assert "per_device_train_batch_size = inf: allowed: a positive integer" in line


def test_a_config_that_is_not_here_is_named_with_its_script(tmp_path):
    """A path of a container, by the script that names it; one beside the script is found from elsewhere."""
    script = tmp_path / "train.sh"
    script.write_text("accelerate launch --config_file /container/fsdp.yaml train.py --output_dir out\n")
    with pytest.raises(UserError, match=r"train.sh: /container/fsdp.yaml: no such file; allowed"):
        given_words([str(script)])
    script.write_text("accelerate launch --config_file fsdp.yaml train.py --output_dir out\n")
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n")
    assert given_words([str(script)]).launch.target == "accelerate"
