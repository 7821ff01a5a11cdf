"""Checkpoints: whole or not there, checked before use, and never code."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from simpar.errors import UserError  # noqa: E402
from simpar.runtime.checkpoint import Contents, Store  # noqa: E402
from simpar.runtime.job import read_log  # noqa: E402
from simpar.runtime.saved import MANIFEST, find_newest, list_complete  # noqa: E402
from tests.runtime.conftest import environment  # noqa: E402

CONTENTS = Contents("tiny", "adamw", 4)
SMALL = [
    "gpt2-laptop", "--model", "tiny-llama", "--seq-len", "32", "--global-batch", "8", "--micro-batch", "2", "--set",
    "cluster=null", "--nproc", "2", "--learning-rate", "1e-3",
]  # fmt: skip


@pytest.fixture
def store(tmp_path):
    """A store of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Store.open(tmp_path / "saved", keep=2, background=False)
    dist.destroy_process_group()


def tensors(value=1.0):
    """A state of two tensors."""
    return {"model.a": torch.full((3, 4), value), "optimizer.a.exp_avg": torch.arange(12.0).view(3, 4)}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("version", 7, "version = 7: allowed: 1"),
        ("step", "x", "step = "),
        ("step", -4, "step = -4: "),
        ("step", None, "step"),
        ("files", {}, "files = {}: "),
        ("files", [1], "files = "),
        ("optimizer", None, "optimizer"),
    ],
)
def test_a_manifest_that_was_tampered_with_is_named(tmp_path, field, value, words):
    """The file, the field and what is allowed, in one line; None leaves the field out."""
    whole = {"version": 1, "model": "m", "optimizer": "sgd", "step": 3, "plan": {}, "files": {"a": [1, "00"]}}
    changed = {**whole, field: value} if value is not None else {k: v for k, v in whole.items() if k != field}
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps(whole))
    assert find_newest(tmp_path) == (folder, whole)
    (folder / MANIFEST).write_text(json.dumps(changed))
    with pytest.raises(UserError, match=words) as found:
        find_newest(tmp_path)
    assert MANIFEST in str(found.value)
    assert len(str(found.value).splitlines()) == 1


def test_what_is_saved_is_loaded(store):
    """Names, values and the manifest come back; only the newest are kept."""
    for step in (1, 2, 3):
        store.save(tensors(step), Contents("tiny", "adamw", step, {"mesh": {"dp": 1}}))
    assert [path.name for path in list_complete(store.folder)] == ["step-00000002", "step-00000003"]
    path, manifest = next(store.sound())
    assert (manifest["step"], manifest["model"], manifest["plan"]) == (3, "tiny", {"mesh": {"dp": 1}})
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    store.load(path, [found])
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors(3.0).items())


def test_a_half_written_checkpoint_is_not_one(store, tmp_path):
    """Without its final name or its manifest a folder does not count, and opening the store clears it away."""
    store.save(tensors(), CONTENTS)
    whole = list_complete(store.folder)[0]
    shutil.copytree(whole, store.folder / "step-00000009.partial")
    shutil.copytree(whole, store.folder / "step-00000008")
    (store.folder / "step-00000008/manifest.json").unlink()
    assert next(store.sound())[0] == whole
    again = Store.open(store.folder, keep=2, background=False)
    assert next(again.sound())[0] == whole
    assert not (store.folder / "step-00000009.partial").exists()


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_corrupt_files_are_named(store, name, damage):
    """A file that is shorter, different or gone is found by its digest before anything is read from it."""
    store.save(tensors(), CONTENTS)
    path, _ = next(store.sound())
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(UserError, match=rf"{name}: is (corrupt|missing); remove the checkpoint"):
        next(store.sound())


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "manifest.json"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(store, name, capsys):
    """One line says why; where all are damaged, the oldest one's reason is the error."""
    for step in (1, 2):
        store.save(tensors(step), Contents("tiny", "adamw", step, {}))
    older, newer = list_complete(store.folder)
    (newer / name).write_bytes((newer / name).read_bytes()[:-9])
    path, manifest = next(store.sound())
    assert (path, manifest["step"]) == (older, 1)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{newer / name}" in said
    assert "; going on with the one before" in said
    (older / name).write_bytes((older / name).read_bytes()[:-9])
    with pytest.raises(UserError, match=str(older / name)):
        next(store.sound())


def test_a_full_disk_is_said_and_the_last_checkpoint_kept(store, monkeypatch):
    """Torch's exception about it is no Exception: it becomes one line, with the folder and what is left."""
    store.save(tensors(1), Contents("tiny", "adamw", 1, {}))
    kept = list_complete(store.folder)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_item", full)
    with pytest.raises(
        UserError, match=r"cannot be written \(No space left on device\); the newest whole one is"
    ) as said:
        store.save(tensors(2), Contents("tiny", "adamw", 2, {}))
    assert len(str(said.value).splitlines()) == 1
    assert list_complete(store.folder) == kept


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"model.a": torch.zeros(3, 5)}, "another model: model.a is 3 x 4 there, 3 x 5 here"),
        ({"model.b": torch.zeros(2)}, "another model: model.b is absent there, 2 here"),
        ({"delayed.a": torch.zeros(2)}, "holds no delayed update of a, .*allowed: that layout, or offload_ratio 1"),
    ],
)
def test_checkpoints_of_another_model_are_refused(store, wanted, words):
    """The first tensor that differs is named with both shapes."""
    store.save(tensors(), CONTENTS)
    path, _ = next(store.sound())
    with pytest.raises(UserError, match=words):
        store.load(path, [wanted])


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("make", [Evil, lambda target: {"x": Evil(target)}])
def test_an_index_cannot_run_code(store, tmp_path, make):
    """An index with code in it, its digest forged to match, is refused and not executed."""
    store.save(tensors(), CONTENTS)
    path, _ = next(store.sound())
    (path / ".metadata").write_bytes(pickle.dumps(make(tmp_path / "ran")))
    with pytest.raises(UserError, match="is not the index of a checkpoint"):
        store.load(path, [tensors()])
    assert not (tmp_path / "ran").exists()


def test_an_index_with_pickled_bytes_is_refused(store):
    """Entries that are no tensors would be unpickled by torch: they are refused by name."""
    store.save(tensors(), CONTENTS)
    path, _ = next(store.sound())
    index = pickle.loads((path / ".metadata").read_bytes())
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    index.state_dict_metadata["model.a"] = BytesStorageMetadata()
    (path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(UserError, match=r"model\.a is not a tensor"):
        store.load(path, [tensors()])


def test_an_index_is_read_whichever_python_wrote_it(store):
    """Paths are named by their module, which Python 3.13 calls otherwise than those before and after it."""
    store.save(tensors(2.0), CONTENTS)
    path, _ = next(store.sound())
    index = path / ".metadata"
    text = pickle.dumps(pickle.loads(index.read_bytes()), protocol=3)  # the last without frames
    plain = text.replace(b"cpathlib._local\n", b"cpathlib\n")
    assert b"cpathlib\n" in plain
    for written in (plain, plain.replace(b"cpathlib\n", b"cpathlib._local\n")):
        index.write_bytes(written)
        found = tensors(0.0)
        store.load(path, [found])
        assert torch.equal(found["model.a"], tensors(2.0)["model.a"])


def losses(folder):
    """Losses in a run's log by step."""
    return {row["step"]: row["loss"] for row in read_log(folder / "log.jsonl")}


@pytest.mark.slow
def test_a_killed_rank_costs_nothing_but_time(simpar_run, tmp_path):
    """SIGKILL between two checkpoints: all ranks start again from the last, and repeat its steps to the last bit."""
    command = [sys.executable, "-m", "simpar", "run", *SMALL, "--steps", "20", "--zero", "1", "--json", "out.json"]
    command += ["--checkpoint", "saved", "--checkpoint-every", "6", "-o", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    deadline, before = time.monotonic() + 300, {}
    while process.poll() is None and len(before) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        before = losses(tmp_path / "out") if list_complete(tmp_path / "saved") else {}
    killed = int((tmp_path / "out/rank1.pid").read_text())
    os.kill(killed, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert int((tmp_path / "out/rank1.pid").read_text()) != killed
    after, report = losses(tmp_path / "out"), json.loads((tmp_path / "out.json").read_text())
    assert sorted(after) == list(range(20))
    assert {step: after[step] for step in before} == before
    assert report["measured"]["losses"] == list(after.values())
    assert report["measured"]["steps_measured"] <= 20 - 6 - 2, "it went on from a checkpoint"
    assert report["restarts"] == [{"rank": 1, "reason": "was ended by signal 9 (SIGKILL)"}]
    assert errors == "rank 1 was ended by signal 9 (SIGKILL): all ranks went on from the last checkpoint\n"
    done = simpar_run(*SMALL, "--steps", 20, "--zero", 1, "--checkpoint", "saved")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "20 steps are done; allowed: --steps above 20" in done.stderr
