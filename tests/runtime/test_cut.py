"""Stages cut from classes of transformers: they give the logits of the whole, or are refused."""

import json

import pytest

from simpar.architectures.families import DECLARED
from simpar.architectures.families.family import TINY
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from simpar.runtime.request import load_request, make_ready
from simpar.tracing.graph import trace_library
from simpar.tracing.library import pipeline_parts
from tests.gate import some

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from simpar.architectures.training import Training
from simpar.plan.plan import Plan
from simpar.runtime.cut import Cuts, Passed
from simpar.runtime.decoder import Part, Recompute
from simpar.runtime.model import Blueprint, Dtypes
from simpar.runtime.prepare import prepare

FLAGS = ["--seq-len", 16, "--global-batch", 4, "--micro-batch", 1, "--set", "cluster=null", "--threads", 1]
SWA = {**TINY, "model_type": "granite_swa", "tie_word_embeddings": False}


def config_of(kind, **fields):
    """The tiny config of a declared family."""
    return {**DECLARED[kind].tiny, "model_type": kind, **fields}


def cuts_of(config):
    """A tiny class, and its stages of one layer each."""
    kind = config["model_type"]
    graph = read(config, kind) if kind in DECLARED else trace_library(config, "", kind, 16, kind)
    plan = Plan(pp=2, micro_batch=1, precision="fp32")
    prepared = prepare(plan, None, Training(seq_len=16, global_batch=4), 2, graph)
    cuts = Cuts(Blueprint(graph, plan, prepared.strategy, Dtypes.of(prepared.plan), Recompute(), library=config))
    last = len(graph.layers) - 1
    return cuts, [Part(range(at, at + 1), embedding=at == 0, head=at == last) for at in range(last + 1)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", some(["qwen3_next", "deepseek_v32", "minimax", "longcat_flash"], ["qwen3_next"]))
def test_stages_one_behind_the_other_are_the_whole(kind):
    """A stage for every layer: linear attention, an indexer, lightning attention, two attentions a layer."""
    cuts, parts = cuts_of(config_of(kind))
    cuts.check(parts)
    stage = cuts.stage(parts[-1], torch.float32)
    config = DECLARED[kind].tiny
    assert stage(torch.zeros(1, 4, config["hidden_size"])).shape == (1, 4, config["vocab_size"])
    kept = {name.split("layers.")[1].split(".")[0] for name, _ in stage.named_parameters() if "layers." in name}
    assert kept == {str(len(parts) - 1)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (SWA, "no more than"),
        ({**SWA, "embedding_multiplier": 3.0}, "compute other logits than the whole .* more than its layers hand on"),
        (config_of("glm_moe_dsa"), "do not run apart .* its layers hand on more than hidden states; allowed: 1"),
    ],
)
def test_classes_that_do_more_than_their_layers_are_refused(config, said):
    """A factor on what the embedding made would be applied by every stage; choices of keys are of earlier layers."""
    cuts, parts = cuts_of(config)
    if said == "no more than":
        cuts.check(parts)
    else:
        with pytest.raises(UserError, match=said):
            cuts.check(parts)


def test_what_stands_for_a_layer_says_what_the_layer_is():
    """Classes choose masks by the kind of a layer, and unpack what it returns."""
    layer = torch.nn.Linear(2, 2)
    layer.attention_type = "sliding_attention"
    hidden = torch.ones(1, 2)
    assert Passed(layer).attention_type == "sliding_attention"
    assert Passed(layer)(hidden, other=1) is hidden
    assert Passed(layer, 2)(hidden) == (hidden, None)
    assert not [*Passed(layer).parameters()]


def test_the_library_states_what_stands_around_its_layers():
    """As many modules as a class has; nothing where it states no pipeline."""
    assert pipeline_parts(config_of("qwen3_next")) == (("embed_tokens",), "layers", ("norm",))
    assert pipeline_parts({"model_type": "gptj"}) == (("wte", "drop"), "h", ("ln_f",))
    assert pipeline_parts(config_of("lfm2")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        ["--nproc", 2],
        ["--nproc", 4, "--zero", 0],
        ["--nproc", 4, "--zero", 1],
        ["--nproc", 4, "--zero", 3, "--schedule", "gpipe"],
        ["--nproc", 2, "--vpp", 2, "--schedule", "interleaved-1f1b"],
        ["--nproc", 2, "--recompute", "full"],
    ],
)
def test_stages_train_as_one_process_does(forked, tmp_path, layout):
    """Losses of three steps, under DDP, FSDP and two stages a rank."""
    (tmp_path / "model.json").write_text(json.dumps(config_of("qwen3_next")))
    losses = []
    for flags in (["--nproc", 1], ["--pp", 2, *layout]):
        common = ["--steps", 3, "--learning-rate", "1e-2", "--json", "out.json", "-o", f"run{len(losses)}"]
        done = forked("run", "gpt2-laptop", "--model", "model.json", *FLAGS, *flags, *common)
        assert done.returncode == 0, done.stderr
        losses.append(json.loads((tmp_path / "out.json").read_text())["measured"]["losses"])
    assert "trained with transformers' own class, cut into stages" in done.stderr
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.parametrize(
    ("config", "values", "said"),
    [
        (config_of("lfm2"), {}, "plan.pp: transformers states no pipeline for lfm2; allowed: 1"),
        (config_of("qwen3_next", tie_word_embeddings=True), {}, "plan.pp: its first and last stage would share"),
        (config_of("qwen3_5_text"), {}, "plan.pp: transformers' class has no layers that predict further tokens"),
        (config_of("qwen3_next"), {"plan.schedule": "zb-h1"}, "plan.schedule = zb-h1: stages of transformers' class"),
        (config_of("qwen3_next"), {"plan.tp": 2}, "plan.tp = 2: a class of transformers is data parallel and cut"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_ranks_start(tmp_path, monkeypatch, config, values, said):
    """One line each."""
    (tmp_path / "model.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    flags = {"model": "model.json", "training.seq_len": 16, "training.global_batch": 4, "plan.pp": 2, **values}
    request = load_request("gpt2-laptop", flags, ["cluster=null"])
    with pytest.raises(UserError, match=said):
        make_ready(request, 2 * values.get("plan.tp", 1), 1, {"steps": 1, "folder": "here"})
