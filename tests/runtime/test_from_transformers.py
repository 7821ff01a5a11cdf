"""Models that only transformers' own classes compute: the losses of one process, whatever shares its states."""

import json

import pytest

from simpar.architectures.families import DECLARED
from simpar.errors import UserError
from simpar.runtime.job import RunJob
from simpar.runtime.request import load_request, make_ready

FLAGS = ["--seq-len", 16, "--global-batch", 4, "--micro-batch", 2, "--set", "cluster=null", "--threads", 1]
UNDECLARED = {
    "model_type": "diffllama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def write(folder, kind):
    """The tiny config of a family as a file."""
    config = UNDECLARED if kind == "diffllama" else {**DECLARED[kind].tiny, "model_type": kind}
    (folder / "model.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("kind", ["qwen3_next", "deepseek_v32", "diffllama"])
def test_shared_states_train_as_one_process_does(forked, tmp_path, kind, zero):
    """DDP and FSDP over two ranks give the losses of one, and the run says whose class it is."""
    write(tmp_path, kind)
    losses = []
    for ranks, shared in ((1, 0), (2, zero)):
        layout = ["--nproc", ranks, "--zero", shared, "--learning-rate", "1e-2", "--json", "out.json", "-o", str(ranks)]
        done = forked("run", "gpt2-laptop", "--model", "model.json", *FLAGS, *layout, "--steps", 3)
        assert done.returncode == 0, done.stderr
        assert "trained with transformers' own class, data parallel only" in done.stderr
        losses.append(json.loads((tmp_path / "out.json").read_text())["measured"]["losses"])
    assert len({*losses[0]}) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"plan.tp": 2, "plan.dp": 1}, "plan.tp = 2: a module of your own, or of transformers, is only data parallel"),
        ({"weights.save_to": "out"}, "--save-to out: a run of transformers' own class starts from random weights"),
    ],
)
def test_what_such_a_run_cannot_do_is_refused(tmp_path, monkeypatch, values, said):
    """Before anything is started."""
    write(tmp_path, "qwen3_next")
    monkeypatch.chdir(tmp_path)
    flags = {"model": "model.json", "training.seq_len": 16, "training.global_batch": 4}
    own = {name: value for name, value in values.items() if name.startswith("plan.")}
    request = load_request("gpt2-laptop", {**flags, **own}, ["cluster=null"])
    options = {"steps": 1, "folder": "here"}
    if "weights.save_to" in values:
        options["weights"] = {"save_to": values["weights.save_to"]}
    with pytest.raises(UserError, match=said):
        make_ready(request, 2, 1, options)


def test_a_model_that_the_decoder_builds_stays_its_own():
    """Nothing of transformers is asked for."""
    job = RunJob(folder="x", plan={}, model="tiny-llama", training={"seq_len": 16, "global_batch": 4}, steps=1)
    assert job.library_parts == ()
    assert job.built_graph() == job.graph()
