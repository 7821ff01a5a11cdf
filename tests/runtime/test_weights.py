"""Runs that start from files of transformers and leave files of transformers."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from simpar import cli  # noqa: E402
from simpar.architectures.hf_config import read  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.decoder import Decoder, Part, Recompute  # noqa: E402
from simpar.runtime.hf_weights import rules  # noqa: E402
from simpar.runtime.model import fill  # noqa: E402
from simpar.runtime.released import Released  # noqa: E402
from simpar.runtime.weights import check_used  # noqa: E402

from .tiny_models import LLAMA, MODELS  # noqa: E402


def files_of(family, config, folder):
    """A folder of weights as transformers would have written it, in two shards."""
    config = {"model_type": family, **config}
    graph = read(config, family)
    model = Decoder(graph, Part(range(len(graph.layers)), embedding=True, head=True), Place(), Recompute())
    fill(model, 3)
    own = dict(model.named_parameters())
    tensors = {}
    for rule in rules(family, [n for n in own if not (graph.tied_embeddings and "lm_head" in n)], graph.dims):
        tensors |= rule.write([own[name].detach() for name in rule.ours], graph.dims)
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    folder.mkdir()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        safetensors.save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def flags(folder, *more):
    """A run of one step that changes nothing."""
    shape = ["--model", str(folder / "config.json"), "--seq-len", "16", "--global-batch", "8", "--micro-batch", "1"]
    exact = ["--precision", "fp32", "--optimizer", "sgd", "--learning-rate", "1e-30"]
    return ["gpt2-laptop", *shape, *exact, "--set", "cluster=null", "--steps", "1", "--init-from", str(folder), *more]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param("llama-llama3", ["--nproc", "1"], marks=pytest.mark.slow),
        pytest.param("qwen2", ["--nproc", "2", "--tp", "2", "--sequence-parallel"], marks=pytest.mark.slow),
        pytest.param("gpt2", ["--nproc", "2", "--pp", "2"], marks=pytest.mark.slow),
        pytest.param("phi3", ["--nproc", "2", "--zero", "3"], marks=pytest.mark.slow),
        pytest.param("gpt_neox", ["--nproc", "4", "--tp", "2", "--zero", "3"], marks=pytest.mark.slow),
        pytest.param("mixtral", ["--nproc", "2", "--ep", "2"], marks=pytest.mark.slow),
        pytest.param("deepseek_v3", ["--nproc", "2", "--zero", "2"], marks=pytest.mark.slow),
        ("gpt_oss", ["--nproc", "2", "--ep", "2", "--zero", "3"]),
    ],
)
def test_weights_come_in_and_go_out_in_every_layout(forked, tmp_path, name, layout):
    """What a run is given, whole or a shard a rank, is what it leaves after a step that changes nothing."""
    family = name.split("-")[0]
    expected = files_of(family, MODELS[name], tmp_path / "in")
    done = forked("run", *flags(tmp_path / "in", *layout, "--save-to", "out", "-o", "log"))
    assert done.returncode == 0, done.stderr
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    found = {}
    for file in set(index["weight_map"].values()):
        found |= safetensors.load_file(tmp_path / "out" / file)
    assert set(index["weight_map"]) == set(found) == set(expected)
    for key, tensor in expected.items():  # biases of zero leave by a gradient times the smallest rate
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-25)
    assert index["metadata"]["total_size"] == sum(4 * tensor.numel() for tensor in expected.values())
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert len(config.pop("architectures")) == 1
    assert config == {**json.loads((tmp_path / "in/config.json").read_text()), "dtype": "float32"}
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_starts_from_the_weights_it_is_given(forked, tmp_path):
    """The first loss is that of the files' model, not of fresh weights, on the same data."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    losses = []
    for more in ([], ["--init-from", str(tmp_path / "in")]):
        given = [flag for flag in flags(tmp_path / "in") if flag not in ("--init-from", str(tmp_path / "in"))]
        alone = ["--nproc", "1", "--threads", "1", "--seed", "5"]
        done = forked("run", *given, *more, *alone, "-o", f"log{len(more)}")
        assert done.returncode == 0, done.stderr
        losses.append(json.loads((tmp_path / f"log{len(more)}/report.json").read_text())["measured"]["losses"][0])
    assert losses[0] != losses[1]


def broken(folder, kind):
    """Damage a folder in one way."""
    config = json.loads((folder / "config.json").read_text())
    if kind == "shard":
        (folder / "b.safetensors").unlink()
    elif kind == "index":
        (folder / "model.safetensors.index.json").unlink()
    elif kind == "config":
        (folder / "config.json").unlink()
    elif kind == "adapters":
        (folder / "config.json").rename(folder / "adapter_config.json")
    elif kind == "base":
        (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 1.0}))
    elif kind == "size":
        (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    elif kind == "quantised":
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    elif kind == "torn":
        path = folder / "a.safetensors"
        (folder / "model.safetensors.index.json").unlink()
        path.rename(folder / "model.safetensors")
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("shard", "b.safetensors: is missing, model.safetensors.index.json names it"),
        ("index", "has neither model.safetensors nor model.safetensors.index.json"),
        ("config", "has no config.json"),
        (
            "adapters",
            "has adapters of a model (adapter_config.json); allowed: a whole model, as --save-to with --merge",
        ),
        ("base", "weights of another model: positions = "),
        ("size", "weights of another model: ffn = 64 there, 48 here"),
        ("quantised", "weights are quantised"),
        ("torn", "is not a whole safetensors file"),
    ],
)
def test_what_cannot_be_started_from_is_said_in_one_line(tmp_path, capsys, monkeypatch, kind, words):
    """Before torch starts, with exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    files_of("llama", LLAMA, tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "bad")
    broken(tmp_path / "bad", kind)
    given = [str(tmp_path / "bad") if flag == str(tmp_path / "in") else flag for flag in flags(tmp_path / "in")]
    assert cli.run(["run", *given, "--nproc", "1", "-o", "log"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "log").exists()


def test_a_folder_that_is_there_is_not_written_over(tmp_path, capsys, monkeypatch):
    """Weights of earlier runs stay."""
    monkeypatch.chdir(tmp_path)
    files_of("llama", LLAMA, tmp_path / "in")
    assert cli.run(["run", *flags(tmp_path / "in", "--save-to", str(tmp_path / "in")), "--nproc", "1"]) == 2
    assert "is already there; allowed: a new folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.7.mlp.up_proj.weight", "no parameters of the model: model.layers.7.mlp.up_proj.weight; allowed"),
        ("model.layers.0.self_attn.q_proj.bias", "no parameters of the model: model.layers.0.self_attn.q_proj.bias"),
        ("lm_head.weight", "lm_head.weight differs from model.embed_tokens.weight, to which the config ties it"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", ""),
        ("tied", ""),
    ],
)
def test_tensors_that_the_model_lacks_are_named(tmp_path, name, words):
    """A folder with more than the model would be another model: what follows from the config may be there."""
    config = {**LLAMA, "tie_word_embeddings": True}
    tensors, graph = (files_of("llama", config, tmp_path / "in"), read({"model_type": "llama", **config}, "llama"))
    table = tensors["model.embed_tokens.weight"]
    more = {"lm_head.weight": table.clone()} if name == "tied" else {name: torch.ones_like(table)}
    (tmp_path / "in/model.safetensors.index.json").unlink()
    safetensors.save_file({**tensors, **more}, tmp_path / "in/model.safetensors")
    released = Released.of(tmp_path / "in", graph)
    if not words:
        check_used(released, graph)
        return
    with pytest.raises(UserError) as error:
        check_used(released, graph)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_layers_that_predict_further_tokens_may_be_left(tmp_path):
    """Released files have them; a model without them starts from the others."""
    config = {**MODELS["deepseek_v3"], "num_nextn_predict_layers": 1}
    files_of("deepseek_v3", config, tmp_path / "in")
    whole = read({"model_type": "deepseek_v3", **config}, "deepseek_v3")
    for graph in (whole, read({"model_type": "deepseek_v3", **MODELS["deepseek_v3"]}, "deepseek_v3")):
        check_used(Released.of(tmp_path / "in", graph), graph)


def test_a_shard_that_is_cut_short_is_said_in_one_line(tmp_path):
    """A download that broke off: the file is named, before anything is computed."""
    files_of("llama", LLAMA, tmp_path / "there")
    graph = read({"model_type": "llama", **LLAMA}, "llama")
    whole = (tmp_path / "there/b.safetensors").read_bytes()
    (tmp_path / "there/b.safetensors").write_bytes(whole[: len(whole) // 2])
    model = Decoder(graph, Part(range(len(graph.layers)), embedding=True, head=True), Place(), Recompute())
    with pytest.raises(UserError, match=r"b\.safetensors: is not a whole safetensors file \(.*; allowed: the shard"):
        fill(model, 0, graph, Released.of(tmp_path / "there", graph))
