"""Memory snapshots of torch: what was allocated at the most, by kind, beside the plan; code is refused."""

import gzip
import os
import pickle
from dataclasses import replace

import pytest

from simpar import cli
from simpar.diagnosis.answer import explain
from simpar.diagnosis.snapshot import kind_of_frames, read_snapshot
from simpar.errors import UserError
from simpar.units import MIB
from tests.diagnosis.test_against import scenario

MODULE = "/env/torch/nn/modules/module.py"
FSDP = "/env/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
WEIGHTS = [(MODULE, "convert"), (MODULE, "_apply"), (MODULE, "to"), ("/job/train.py", "main")]
FORWARD = [("/env/torch/nn/functional.py", "gelu"), ("/job/model.py", "forward"), (MODULE, "_call_impl")]
STATES = [
    ("/env/torch/optim/adamw.py", "_init_group"),
    ("/env/torch/optim/adamw.py", "step"),
    ("/job/train.py", "main"),
]
UPDATE = [("/env/torch/optim/adam.py", "_multi_tensor_adam"), ("/env/torch/optim/adamw.py", "step")]
GRADIENT = [("??", "torch::autograd::AccumulateGrad::apply()"), ("??", "torch::autograd::Engine::evaluate_function()")]


def frames(pairs):
    """As torch records them, the innermost first."""
    return [{"filename": filename, "name": name, "line": 7} for filename, name in pairs]


def block(address, mib, of=(), state="active_allocated"):
    """A block of a segment; it was asked for a little less."""
    size = {"size": mib * MIB, "requested_size": mib * MIB - 8}
    return {"address": address, **size, "state": state, "frames": frames(of)}


def event(action, address, mib, of=()):
    """An event of the history."""
    return {"action": action, "addr": address, "size": mib * MIB, "stream": 0, "time_us": 1, "frames": frames(of)}


def snapshot(history=()):
    """Weights and states are held, 24 MiB of a segment are free; the other device holds less."""
    blocks = [block(1, 40, WEIGHTS), block(2, 80, STATES), block(3, 8, (), "inactive"), block(4, 16, (), "inactive")]
    segment = {"device": 1, "address": 1, "total_size": 144 * MIB, "stream": 0, "blocks": blocks}
    other = {"device": 0, "address": 9, "total_size": MIB, "stream": 0, "blocks": [block(9, 1)]}
    return {"segments": [segment, other], "device_traces": [[], [*history]], "allocator_settings": {"conf": ""}}


HISTORY = (
    event("alloc", 50, 30, FORWARD), event("alloc", 51, 20, GRADIENT), event("alloc", 52, 5),  # the most
    event("free_requested", 50, 30), event("free_completed", 50, 30), event("free_completed", 52, 5),
    event("alloc", 53, 10, UPDATE), event("free_completed", 53, 10), event("free_completed", 51, 20),
)  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """Pickle something."""

    def save(data, protocol=4):
        (tmp_path / "memory.pickle").write_bytes(pickle.dumps(data, protocol))
        return tmp_path / "memory.pickle"

    return save


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_was_allocated_at_the_most(saved, protocol):
    """The events are undone back to the most, and each block has the kind of the frames that allocated it."""
    found = read_snapshot(saved(snapshot(HISTORY), protocol))
    assert (found.device, found.at_peak, found.peak_bytes) == (1, True, 175 * MIB)
    assert {name: size / MIB for name, size in found.parts_bytes.items()} == {
        "optimizer_states": 80, "parameters": 40, "activations": 30, "gradients": 20, "without frames": 5,
    }  # fmt: skip
    assert (found.allocated_bytes, found.reserved_bytes, found.free_bytes) == (120 * MIB, 144 * MIB, 24 * MIB)
    assert (found.largest_free_bytes, found.rounded_bytes) == (16 * MIB, 16)
    assert found.places_bytes["activations: job/model.py:forward"] == 30 * MIB


def test_a_packed_snapshot(saved, tmp_path):
    """As people send them; what names code is refused as well."""
    path = tmp_path / "memory.pickle.gz"
    plain = saved(snapshot(HISTORY))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert replace(read_snapshot(path), path="") == replace(read_snapshot(plain), path="")
    assert explain(path).snapshot is not None
    path.write_bytes(gzip.compress(pickle.dumps({"segments": os.system})))
    with pytest.raises(UserError, match="only plain data is read"):
        explain(path)


def test_a_snapshot_without_history(saved):
    """What is allocated when it is taken; a failed allocation is noted."""
    found = read_snapshot(saved(snapshot()))
    assert (found.at_peak, found.peak_bytes, found.out_of_memory) == (False, 120 * MIB, False)
    full = [*HISTORY, {"action": "oom", "size": 5, "device_free": 1, "frames": []}]
    assert read_snapshot(saved(snapshot(full))).out_of_memory


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        (UPDATE, "transient"),
        ([("/env/torch/utils/checkpoint.py", "recompute_fn"), *FORWARD], "activations"),
        ([(FSDP, "foreach_all_gather"), *FORWARD], "transient"),
        ([(FSDP, "foreach_reduce")], "gradients"),
        ([("/megatron/core/distributed/param_and_grad_buffer.py", "__init__")], "gradients"),
        ([("/megatron/core/optimizer/distrib_optimizer.py", "_build_model_and_main_param_groups")], "optimizer_states"),
        ([("/env/torch/_tensor.py", "backward"), ("/job/train.py", "main")], "backward pass"),
        ([("/job/model.py", "__init__"), ("/job/train.py", "main")], "parameters"),
        ([("/job/train.py", "main")], "other"),
    ],
)
def test_kinds_of_frames(pairs, kind):
    """The most telling frame decides, wherever it stands."""
    assert kind_of_frames("\n".join(f"{filename}:{name}" for filename, name in pairs)) == kind


def test_a_snapshot_beside_a_plan(saved, capsys):
    """Measured and predicted parts; the prediction's context is in no snapshot."""
    path = saved(snapshot(HISTORY))
    found = explain(path, plan=scenario())
    assert found.snapshot_beside["parameters"][0] == 40 * MIB
    assert found.snapshot_beside["parameters"][1] > 0
    assert found.snapshot_beside["without frames"] == (5 * MIB, 0.0)
    assert "overhead" not in found.snapshot_beside
    assert found.to_dict()["memory_beside"]["gradients"]["measured_bytes"] == 20 * MIB
    assert cli.run(["explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert "device 1: 0.171 GiB allocated at most" in said
    assert "free inside segments: 24.0 MiB (16.7%)" in said


class Runs:
    """Pickles as a call."""

    def __reduce__(self):
        """Would make a folder."""
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8c\x08segmentsr\xff\xff\xff\x7f.",  # the place of a memo of 2**32, in 32 GiB
        b"\x80\x04\x8c\x08segments\x8e" + b"\xff" * 8 + b"abc.",
        b"\x80\x05\x8c\x08segments\x96" + b"\xff" * 7 + b"\x3fabc.",
        pickle.dumps({"segments": [{"device": 0, "total_size": 10**400, "blocks": []}]}),
        pickle.dumps({"segments": [{"device": 0, "total_size": float("inf"), "blocks": []}]}),
        pickle.dumps({"segments": [{"device": -1, "total_size": 5, "blocks": []}], "device_traces": [[{}]] * 2}),
        b"\x80\x04\x8c\x08segmentsPname\n.",
        b"\x80\x04\x8c\x08segments\x82\x01.",
    ],
)
def test_a_few_bytes_that_ask_for_much(tmp_path, capsys, data):
    """Refused in one line, before memory is taken."""
    path = tmp_path / "memory.pickle"
    path.write_bytes(data)
    assert cli.run(["explain", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "memory.pickle: is " in line


def test_the_list_of_segments_alone(saved):
    """What torch.cuda.memory_snapshot() returns, without a history."""
    found = read_snapshot(saved(snapshot()["segments"]))
    assert explain(saved(snapshot()["segments"])).snapshot == found
    assert (found.allocated_bytes, found.at_peak) == (120 * MIB, False)


def test_files_that_are_none(saved, tmp_path, monkeypatch):
    """Code is not executed; cut, other and malformed pickles are refused in one line."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"memory\.pickle: is not a valid memory snapshot of torch \(names posix\.mkdir"
    ):
        explain(saved({"segments": Runs()}))
    assert not (tmp_path / "executed").exists()
    path = saved(snapshot(HISTORY))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match="is not a valid memory snapshot of torch"):
        explain(path)
    with pytest.raises(UserError, match="is malformed"):
        explain(saved({"segments": [{"total_size": 5, "blocks": [{}]}]}))
    with pytest.raises(UserError, match="has no segment"):
        explain(saved({"segments": []}))
    first, other = saved(snapshot()), tmp_path / "other.pickle"
    other.write_bytes(first.read_bytes())
    with pytest.raises(UserError, match="one of the fullest rank"):
        explain(first, other)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol(tmp_path, protocol):
    """The oldest are texts, and begin as no other file does."""
    path = tmp_path / "memory.pickle"
    path.write_bytes(pickle.dumps(snapshot(HISTORY), protocol=protocol))
    assert explain(path).snapshot.peak_bytes == read_snapshot(path).peak_bytes
    path.write_bytes(pickle.dumps({"segments": Runs()}, protocol=protocol))
    with pytest.raises(UserError, match=r"names posix\.mkdir, and only plain data is read"):
        explain(path)


@pytest.mark.parametrize(
    ("of", "key", "value"),
    [
        ("segment", "total_size", -5), ("segment", "total_size", "5"), ("segment", "total_size", float("nan")),
        ("segment", "total_size", 2**62), ("segment", "total_size", True), ("segment", "device", -1),
        ("segment", "device", 10**30), ("block", "size", -(2**40)), ("block", "requested_size", 1.5),
        ("event", "size", -1),
    ],
)  # fmt: skip
def test_sizes_that_none_has(saved, of, key, value):
    """A block of -1 TiB made the memory negative."""
    data = snapshot(HISTORY)
    segment = data["segments"][0]
    where = {"segment": segment, "block": segment["blocks"][0], "event": next(filter(None, data["device_traces"]))[0]}[
        of
    ]
    where[key] = value
    with pytest.raises(UserError, match=rf"is malformed \({key} = .*\): not a memory snapshot") as said:
        explain(saved(data))
    assert "\n" not in str(said.value)


def test_blocks_that_are_larger_than_their_segment(saved):
    """They fill it."""
    data = snapshot()
    data["segments"][0]["total_size"] = MIB
    with pytest.raises(UserError, match="blocks are larger than their segment of 1048576 bytes"):
        explain(saved(data))


def test_a_pickle_that_unpacks_without_end(tmp_path):
    """Millions of empty dicts pack into nothing, and would take minutes to build."""
    path = tmp_path / "memory.pickle.gz"
    path.write_bytes(gzip.compress(b"\x80\x04" + b"}0" * 5_000_000))
    with pytest.raises(UserError, match="unpacks to more than 300 times its size"):
        explain(path)
