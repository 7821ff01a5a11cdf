"""Adapters, matrices in 4 bits and frozen layers train as in transformers' and PEFT's single process."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.architectures.training import Training  # noqa: E402
from simpar.runtime.data import Loader, open_source  # noqa: E402
from simpar.runtime.four_bits import FourBitMatrix  # noqa: E402
from simpar.runtime.initial import initial_value  # noqa: E402
from simpar.runtime.job import Data  # noqa: E402

from .test_served import tensors_in, whole_model  # noqa: E402
from .test_weights import files_of  # noqa: E402
from .tiny_models import MODELS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = {"seq_len": 16, "global_batch": 4}
STEPS, RATE, RANK, ALPHA = 3, 1e-2, 4, 6.0
MODULES = {
    "q_proj": "qkv.parts.0", "k_proj": "qkv.parts.1", "v_proj": "qkv.parts.2", "o_proj": "o_proj.parts.0",
    "gate_proj": "mlp_up.parts.0", "up_proj": "mlp_up.parts.1", "down_proj": "mlp_down.parts.0",
}  # fmt: skip


def flags(folder, *more):
    """A few steps of a model in a folder, one sequence at a time."""
    shape = ["--seq-len", SHAPE["seq_len"], "--global-batch", SHAPE["global_batch"], "--micro-batch", "1"]
    rate = ["--learning-rate", RATE, "--weight-decay", "0.1", "--steps", STEPS, "--threads", "1"]
    model = ["gpt2-laptop", "--model", folder / "config.json", "--init-from", folder, "--precision", "fp32"]
    return [*model, *shape, *rate, "--set", "cluster=null", "--save-to", "out", *more]


def losses_of(model, graph, ranks=1):
    """Losses of one process that trains what requires gradients, drawing what so many replicas draw."""
    from simpar.runtime.train import seed_of  # torch.jit warns where this is imported
    from simpar.runtime.update import BETAS, EPS

    source = open_source(Data(), Training(**SHAPE), graph.dims["vocab"], 0)
    loader = Loader(source, SHAPE["global_batch"], 0, 1, 0)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.1)
    model.train()
    losses = []
    for step in range(STEPS):
        samples, total = torch.from_numpy(loader.batch(step)), 0.0
        for replica, rows in enumerate(samples.chunk(ranks)):
            torch.manual_seed(seed_of(0, step, {"pp": 0, "dp": replica, "cp": 0, "tp": 0}))
            for row in rows.split(1):
                logits = model(row[:, :-1]).logits.flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, row[:, 1:].flatten()) / len(samples)
                loss.backward()
                total += float(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def assert_losses(forked, folder, more, expected):
    """A run from a folder's ``in``, with more flags, has these losses."""
    done = forked("run", *flags(folder / "in", *more, "--json", "report.json"))
    assert done.returncode == 0, done.stderr
    losses = json.loads((folder / "report.json").read_text())["measured"]["losses"]
    assert losses == pytest.approx(expected, abs=2e-6)


def begin_as_the_run(model, graph, inner_halves):
    """Give PEFT's adapters the first values of the run's, whose ``inner_halves`` are named by a module's last word.

    Returns how many there are.
    """
    adapters = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    for name in adapters:
        *_, layer, _, last = name.split(".")
        inner = model.get_submodule(name).lora_A["default"].weight
        ours = f"layers.{layer}.{inner_halves[last]}.lora_down"
        inner.data = initial_value(ours, tuple(inner.shape), 0, graph.details)
    return len(adapters)


def assert_adapters(pairs, model):
    """Both halves of adapters by the names of their files are those of PEFT's model."""
    state = {name.replace(".default", ""): value for name, value in model.state_dict().items() if ".lora_" in name}
    assert set(pairs) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(pairs[name], value, rtol=0, atol=1e-5)


def adapted(folder, graph, dropout, *, in_four_bits):
    """PEFT's model over a folder, whose adapters begin as the run's do."""
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    if in_four_bits:
        for name, parameter in base.named_parameters():
            if name.endswith("_proj.weight"):
                kept = FourBitMatrix(tuple(parameter.shape))
                kept.fill(parameter.detach())
                parameter.data = kept.widened(torch.float32)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=dropout, target_modules=[*MODULES])
    model = peft.get_peft_model(base, config)
    assert begin_as_the_run(model, graph, MODULES) == len(MODULES) * len(graph.layers)
    return model


@pytest.mark.parametrize(
    ("layout", "dropout", "in_four_bits"),
    [
        (["--nproc", "1"], 0.1, False),
        (["--nproc", "1"], 0.0, True),
        pytest.param(["--nproc", "2", "--tp", "2", "--sequence-parallel"], 0.1, False, marks=pytest.mark.slow),
        pytest.param(["--nproc", "2", "--tp", "2"], 0.1, False, marks=pytest.mark.slow),
        pytest.param(["--nproc", "2", "--zero", "3", "--recompute", "full"], 0.1, False, marks=pytest.mark.slow),
        pytest.param(["--nproc", "2", "--zero", "1"], 0.2, True, marks=pytest.mark.slow),
        pytest.param(["--nproc", "2", "--pp", "2", "--recompute", "full"], 0.0, True, marks=pytest.mark.slow),
    ],
)
def test_adapters_train_as_pefts(forked, tmp_path, layout, dropout, in_four_bits):
    """Losses and both halves after some steps, with alpha, with the same elements dropped, on rounded matrices."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    graph = read(json.loads((tmp_path / "in/config.json").read_text()), "tiny")
    model = adapted(tmp_path / "in", graph, dropout, in_four_bits=in_four_bits)
    replicas = 2 if "--zero" in layout else 1
    expected = losses_of(model, graph, replicas)
    tuned = ["--lora-rank", RANK, "--lora-alpha", ALPHA, "--set", f"plan.lora_dropout={dropout}"]
    tuned += ["--frozen-dtype", "nf4"] if in_four_bits else []
    assert_losses(forked, tmp_path, [*tuned, *layout], expected)
    assert_adapters(tensors_in(tmp_path / "out"), model)
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (RANK, ALPHA, dropout)


@pytest.mark.parametrize(
    "layout",
    [["--nproc", "1"], *(pytest.param(["--nproc", *more], marks=pytest.mark.slow)
                         for more in (["2", "--zero", "3"], ["2", "--zero", "0"], ["2", "--tp", "2"],
                                      ["2", "--pp", "2", "--recompute", "full"], ["5", "--pp", "5"]))],
)  # fmt: skip
def test_adapters_in_hybrids_train_as_pefts(forked, tmp_path, layout):
    """Layers without a target, also where a stage has no others, and MLPs without a gate (Nemotron-H)."""
    peft = pytest.importorskip("peft")
    files_of("nemotron_h", MODELS["nemotron_h"], tmp_path / "in")
    graph = read(json.loads((tmp_path / "in/config.json").read_text()), "tiny")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in")
    ours = MODULES | {"up_proj": "mlp_up.parts.0"}
    model = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=[*ours]))
    assert begin_as_the_run(model, graph, ours) == 4 + 2 * 2  # one layer of attention, two of MLPs
    expected = losses_of(model, graph, 2 if "--zero" in layout else 1)
    tuned = ["--lora-rank", RANK, "--lora-alpha", ALPHA]
    assert_losses(forked, tmp_path, [*tuned, *layout], expected)
    pairs = tensors_in(tmp_path / "out")
    assert_adapters({name.replace(".backbone.", ".model."): each for name, each in pairs.items()}, model)  # files' word
    frozen = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in").eval()
    again = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in"), tmp_path / "out"
    ).eval()
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        logits, plain = model.eval()(tokens).logits, frozen(tokens).logits
        torch.testing.assert_close(again(tokens).logits, logits, rtol=1e-4, atol=1e-4)
    assert (logits - plain).abs().max() > 1e-3


LATENTS = {
    "q_a_proj": "q_down.parts.0", "q_b_proj": "q_up.parts.0", "q_proj": "q_up.parts.0", "o_proj": "o_proj.parts.0",
    "kv_a_proj_with_mqa": "kv_down.inner", "kv_b_proj": "kv_up.inner",
}  # fmt: skip
"""The modules of latent attention by transformers' words, with the parameter that is PEFT's inner half."""


@pytest.mark.parametrize(
    ("name", "layout", "dropout"),
    [
        ("deepseek_v3", ["--nproc", "1"], 0.1),
        *(pytest.param(name, layout, dropout, marks=pytest.mark.slow) for name, layout, dropout in (
            ("deepseek_v3", ["--nproc", "2", "--tp", "2"], 0.1),
            ("deepseek_v3", ["--nproc", "2", "--tp", "2", "--sequence-parallel"], 0.1),
            ("deepseek_v3", ["--nproc", "2", "--zero", "3", "--recompute", "full"], 0.1),
            ("deepseek_v3", ["--nproc", "2", "--ep", "2", "--zero", "1"], 0.0),
            ("deepseek_v3", ["--nproc", "2", "--pp", "2"], 0.0),
            ("deepseek_v3", ["--nproc", "2", "--cp", "2"], 0.0),
            ("deepseek_v2", ["--nproc", "2", "--tp", "2", "--sequence-parallel"], 0.1),
        )),
    ],
)  # fmt: skip
def test_adapters_of_latents_train_as_pefts(forked, tmp_path, name, layout, dropout):
    """One adapter beside each of the matrices that files have, also where the runtime cuts one in two."""
    peft = pytest.importorskip("peft")
    files_of(name, MODELS[name], tmp_path / "in")
    graph = read(json.loads((tmp_path / "in/config.json").read_text()), "tiny")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in")
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=dropout, target_modules=[*LATENTS])
    model = peft.get_peft_model(base, config)
    assert begin_as_the_run(model, graph, LATENTS) == 5 * len(graph.layers)  # both have latents of queries, too
    expected = losses_of(model, graph, 2 if {"--zero", "--ep"} & {*layout} else 1)
    tuned = ["--lora-rank", RANK, "--lora-alpha", ALPHA, "--set", f"plan.lora_dropout={dropout}"]
    tuned += ["--set", "plan.lora_targets=[q_proj,k_proj,v_proj,o_proj]"]
    assert_losses(forked, tmp_path, [*tuned, *layout], expected)
    assert_adapters(tensors_in(tmp_path / "out"), model)
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["r"] == RANK


@pytest.mark.parametrize(
    "layout",
    [["--nproc", "1"], *(pytest.param(["--nproc", "2", *more], marks=pytest.mark.slow)
                         for more in (["--zero", "3"], ["--tp", "2"], ["--pp", "2"]))],
)  # fmt: skip
@pytest.mark.parametrize("in_four_bits", [False, True])
def test_frozen_layers_train_as_in_transformers(forked, tmp_path, layout, in_four_bits):
    """The embedding and the first layer stay as they were, rounded if in 4 bits; the rest is that of one process."""
    if in_four_bits and {"--zero", "--tp"} & {*layout}:
        pytest.skip("blocks in 4 bits are not cut")
    files_of("llama", MODELS["llama"], tmp_path / "in")
    graph = read(json.loads((tmp_path / "in/config.json").read_text()), "tiny")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in")
    for name, parameter in model.named_parameters():
        if name.startswith(("model.embed", "model.layers.0.")):
            parameter.requires_grad_(requires_grad=False)
            if in_four_bits and name.endswith("_proj.weight"):
                kept = FourBitMatrix(tuple(parameter.shape))
                kept.fill(parameter.detach())
                parameter.data = kept.widened(torch.float32)
    expected = losses_of(model, graph)
    more = ["--frozen-dtype", "nf4"] if in_four_bits else []
    assert_losses(forked, tmp_path, ["--set", "plan.frozen_layers=1", *more, *layout], expected)
    found = whole_model(tmp_path / "out")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=5e-5)


def of_mixture(name):
    """The tensors of a layer's mixture by the parameters that are these."""
    inside = {"mixtral": "mlp", "qwen3_moe": "mlp"}[name]
    return {
        "expert_up": f"{inside}.experts.gate_up_proj", "expert_down": f"{inside}.experts.down_proj",
        "qkv.parts.0": "self_attn.q_proj.weight", "qkv.parts.1": "self_attn.k_proj.weight",
        "qkv.parts.2": "self_attn.v_proj.weight", "o_proj.parts.0": "self_attn.o_proj.weight",
    }  # fmt: skip


def adapted_mixture(folder, graph):
    """A mixture of transformers, whose frozen weights have products of trained halves added; and these by name.

    Every expert has adapters of its own, gate and up one each, which begin as the run's do.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(requires_grad=False)
    frozen, halves = dict(model.named_parameters()), torch.nn.ParameterDict()
    for layer in range(len(graph.layers)):
        for ours, theirs in of_mixture(model.config.model_type).items():
            weight = frozen[f"model.layers.{layer}.{theirs}"]
            outer = weight.shape[:-1]
            if ours == "expert_up":
                outer = (outer[0], 2, outer[1] // 2)
            name = f"layers.{layer}.{ours}"
            inner = initial_value(f"{name}.lora_down", (*outer[:-1], RANK, weight.shape[-1]), 0, graph.details)
            halves[f"{name}.down".replace(".", "/")] = inner
            halves[f"{name}.up".replace(".", "/")] = torch.zeros(*outer, RANK)

    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.halves = halves

        def forward(self, tokens):
            values = dict(frozen)
            for layer in range(len(graph.layers)):
                for ours, theirs in of_mixture(model.config.model_type).items():
                    down, up = (halves[f"layers.{layer}.{ours}.{half}".replace(".", "/")] for half in ("down", "up"))
                    name = f"model.layers.{layer}.{theirs}"
                    values[name] = frozen[name] + (up @ down * (ALPHA / RANK)).reshape(frozen[name].shape)
            return torch.func.functional_call(model, values, (tokens,))

    return Adapted()


def pairs_of(name, halves, experts):
    """Halves by PEFT's names of adapters beside the products of single experts."""
    inside, kinds = {
        "mixtral": ("block_sparse_moe.experts", ("w1", "w3", "w2")),
        "qwen3_moe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    }[name]
    result = {}
    for key, value in halves.items():
        _, layer, ours, *rest = key.split("/")
        letter, stem = {"down": "A", "up": "B"}[rest[-1]], f"base_model.model.model.layers.{layer}"
        if ours == "expert_down":
            result |= {f"{stem}.{inside}.{e}.{kinds[2]}.lora_{letter}.weight": value[e] for e in range(experts)}
        elif ours == "expert_up":
            for at, kind in enumerate(kinds[:2]):
                result |= {f"{stem}.{inside}.{e}.{kind}.lora_{letter}.weight": value[e, at] for e in range(experts)}
        else:
            word = {("qkv", "0"): "q", ("qkv", "1"): "k", ("qkv", "2"): "v", ("o_proj", "0"): "o"}[ours, rest[1]]
            result[f"{stem}.self_attn.{word}_proj.lora_{letter}.weight"] = value
    return {key: value.detach() for key, value in result.items()}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("mixtral", ["--nproc", "1"]),
        ("mixtral", ["--nproc", "2", "--ep", "2"]),
        *(pytest.param(name, ["--nproc", "2", *more], marks=pytest.mark.slow)
          for name in ("mixtral", "qwen3_moe")
          for more in (["--zero", "1"], ["--zero", "3"], ["--ep", "2", "--zero", "1"], ["--ep", "2", "--zero", "3"],
                       ["--tp", "2", "--sequence-parallel", "--ep", "2"], ["--pp", "2", "--recompute", "full"])),
    ],
)  # fmt: skip
def test_adapters_of_experts_train_as_products_beside_each(forked, tmp_path, name, layout):
    """Losses and both halves after some steps, by the names of single experts, which PEFT reads."""
    files_of(name, MODELS[name], tmp_path / "in")
    graph = read(json.loads((tmp_path / "in/config.json").read_text()), "tiny")
    model = adapted_mixture(tmp_path / "in", graph)
    expected = losses_of(model, graph, 2 if {"--zero", "--ep"} & {*layout} and "--tp" not in layout else 1)
    tuned = ["--lora-rank", RANK, "--lora-alpha", ALPHA]
    assert_losses(forked, tmp_path, [*tuned, *layout], expected)
    pairs, wanted = tensors_in(tmp_path / "out"), pairs_of(name, model.halves, graph.dims["num_experts"])
    assert set(pairs) == set(wanted)
    for key, value in wanted.items():
        torch.testing.assert_close(pairs[key], value, rtol=0, atol=1e-5)
