"""Models from their configs and weights of transformers compute what transformers computes."""

import json
from functools import cache

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from simpar.architectures.catalogue import catalogue, load_model  # noqa: E402
from simpar.architectures.families import DECLARED  # noqa: E402
from simpar.architectures.hf_config import read  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.decoder import Decoder, Part, Recompute  # noqa: E402
from simpar.runtime.hf_weights import rules  # noqa: E402
from simpar.runtime.strategy import is_decoder  # noqa: E402
from tests.gate import some  # noqa: E402

from .tiny_models import LLAMA, MODELS  # noqa: E402

ROUNDING = 3e-6  # of fp32 over a few layers, relative to the largest value


def released(family, config, folder):
    """A model of transformers with weights that start nowhere special, saved in the folder."""
    torch.manual_seed(0)
    theirs = transformers.AutoConfig.for_model(family, **config)
    model = transformers.AutoModelForCausalLM.from_config(theirs, attn_implementation="eager").float().train()
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for n, b in model.named_buffers() if "correction" in n)):
            tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder)
    return model


SIZES = {
    "vocab_size": 96, "hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 48, "ffn_dim": 48,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 8,
    "sliding_window": 8, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 8,
    "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 24,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "n_group": 4,
    "topk_group": 2, "num_nextn_predict_layers": 0, "n_positions": 64, "resid_pdrop": 0.0,
}  # fmt: skip
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
OF_FAMILY = {
    "gpt2": NO_DROPOUT,
    "gpt_bigcode": {**NO_DROPOUT, "n_inner": 48},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_heads": 4, "window_size": 8},
    "gptj": {**NO_DROPOUT, "rotary_dim": 4},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16},
    "opt": {"word_embed_proj_dim": 32, "dropout": 0.0},
    "phi": {"partial_rotary_factor": 0.5},
    "seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0},
}  # fmt: skip
"""What the sizes of a toy ask for in a family, and no dropout."""
SILENT = {"qwen2": {"num_key_value_heads": 4}, "deepseek_v3": {"n_group": 1, "topk_group": 1}}
"""What configs of the catalogue leave out where it is as here: transformers' defaults are of other sizes."""
NAMED = {kind: {**DECLARED[kind].tiny} for kind in ("phimoe", "llama4_text")}
"""Families whose files are known and that no run computes."""
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


SHIPPED = (
    "arcee", "bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe",
    "exaone4", "exaone_moe", "falcon", "falcon_h1", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoehybrid",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm3", "llama", "mamba2", "minimax_m2", "mistral", "mixtral", "mpt",
    "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2",
)  # fmt: skip
"""Families of :func:`shipped`, named so that whoever collects tests reads no config."""
IN_GATE = (
    "llama", "llama-biased", "llama-yarn", "gpt2", "gpt_neox", "gptj", "opt", "falcon", "bloom", "gemma2", "phi3",
    "cohere2", "granite", "olmo-clipped", "mixtral", "deepseek_v3", "gpt_oss", "qwen3_moe", "dbrx", "mamba2",
    "falcon_h1", "nemotron_h", "nemotron_h-latent",
)  # fmt: skip
"""Biases, scaled and interleaved rotations, positions that are learnt or slopes, fused weights, caps, windows,
multipliers, every kind of router, latent attention, sinks, and state-space layers alone, beside
attention, and beside experts without a gate that read latents."""


@cache
def shipped():
    """By family the configs of the catalogue, each of another kind, with the sizes of a toy and all else as shipped."""
    found = {}
    for name, config in catalogue().items():
        family = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
        if DECLARED[family].weights is None or family == "deepseek" or not is_decoder(load_model(name)):
            continue  # transformers has no class for the first mixture of DeepSeek
        if family in ("nemotron_h", "dbrx", "grok-1", "mimo", "minicpm") or family in NAMED:
            continue  # layers are letters, sizes are nested, transformers has no class, no run computes it
        small = {key: SIZES.get(key, value) for key, value in config.items() if key != "source"}
        layers = next(key for key in ("num_hidden_layers", "num_layers", "n_layer", "n_layers") if key in config)
        small |= {layers: 7 if "gemma3" in config["model_type"] else 2, **ENDS}
        if "kv_lora_rank" in small:
            small |= {"num_key_value_heads": 4, "head_dim": 4, "num_nextn_predict_layers": 0}
        small = {**SILENT.get(family, {}), **small, **OF_FAMILY.get(family, {})}
        small.pop("model_type")
        if small not in found.setdefault(family, []):
            found[family].append(small)
    return found


def decoder(graph):
    """All of a model, its parameters not yet set."""
    return Decoder(graph, Part(range(len(graph.layers)), embedding=True, head=True), Place(), Recompute())


def loss_of(logits, tokens):
    """Mean cross entropy of the next tokens."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def assert_same(family, config, folder):
    """A model is, with the weights of transformers', the same function, and writes what it read."""
    theirs = released(family, config, folder)
    graph = read(json.loads((folder / "config.json").read_text()), family)
    ours, files = decoder(graph), safetensors.load_file(folder / "model.safetensors")
    own = dict(ours.named_parameters())
    found = rules(family, list(own), graph.dims)
    with torch.no_grad():
        for rule in found:
            for key, tensor in rule.read([files[each] for each in rule.theirs], graph.dims).items():
                own[key].copy_(tensor)
    assert {each for rule in found for each in rule.theirs} == set(files)
    tokens = torch.randint(3, 96, (2, 24))
    expected, got = theirs(input_ids=tokens).logits, ours(tokens)
    assert (got - expected).abs().max() < ROUNDING * expected.abs().max()
    loss_of(expected, tokens).backward()
    loss_of(got, tokens).backward()
    gradients = {key: each.grad for key, each in theirs.named_parameters()}
    for rule in found:
        written = rule.write([own[each] for each in rule.ours], graph.dims)
        assert all(torch.equal(tensor, files[key]) for key, tensor in written.items())
        for key, tensor in rule.write([own[each].grad for each in rule.ours], graph.dims).items():
            if key in gradients:  # experts are stored one by one and computed with as one tensor
                wanted = gradients[key]
                assert (tensor - wanted).abs().max() < 20 * ROUNDING * max(wanted.abs().max(), 1e-3), key
    norm = sum(each.pow(2).sum() for each in gradients.values() if each is not None).sqrt()
    mine = sum(each.grad.pow(2).sum() for each in own.values()).sqrt()
    torch.testing.assert_close(mine, norm, rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some(MODELS, IN_GATE))
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path):
    """From the same files: logits and all gradients of a step to fp32 rounding; weights written are those read."""
    assert_same(name.split("-")[0], MODELS[name], tmp_path)


@pytest.mark.slow
def test_families_that_are_shipped_are_named():
    """All whose config is that of a decoder, and which transformers computes."""
    assert sorted(shipped()) == sorted(SHIPPED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", SHIPPED)
def test_what_is_shipped_computes_what_transformers_computes(family, tmp_path):
    """Every config of the family in the catalogue that is of another kind."""
    for number, config in enumerate(shipped()[family]):
        assert_same(family, config, tmp_path / str(number))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3-yarn"])
def test_what_a_config_says_makes_a_difference(name, tmp_path):
    """Had a base, a cap or a scale been dropped, logits would be far off: the comparison above sees them."""
    family = name.split("-")[0]
    released(family, MODELS[name], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {
        "llama": {"rope_parameters": {"rope_theta": 10_000.0}},
        "gemma2": {"attn_logit_softcapping": None},
        "gemma3_text": {"query_pre_attn_scalar": 8},
        "gpt_oss": {"rope_parameters": {"rope_theta": 150_000.0, "rope_type": "default"}},
        "deepseek_v3-yarn": {"routed_scaling_factor": 1.0},
    }[name]
    graphs = [read({**config, **more}, family) for more in ({}, changed)]
    models, files = ([decoder(graph) for graph in graphs], safetensors.load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        for model, graph in zip(models, graphs, strict=True):
            own = dict(model.named_parameters())
            for rule in rules(family, list(own), graph.dims):
                for key, tensor in rule.read([files[each] for each in rule.theirs], graph.dims).items():
                    own[key].copy_(tensor)
        tokens = torch.randint(3, 96, (2, 24))
        one, other = (model(tokens) for model in models)
    assert (one - other).abs().max() > 1000 * ROUNDING * one.abs().max()


@pytest.mark.parametrize("family", sorted({name.split("-")[0] for name in MODELS}))
def test_defaults_are_those_of_transformers(family):
    """A config that says sizes alone has the details of the configuration class of transformers, written out."""
    theirs = transformers.AutoConfig.for_model(family, **MODELS[family]).to_dict()
    sizes = {"model_type": family, **MODELS[family]}
    full = {key: value for key, value in theirs.items() if value is not None}
    few, all_of_it = read(sizes, family).details, read(full, family).details
    for name in ("activation", "norm_eps", "norm_offset", "init_std", "scales", "caps", "gating"):
        assert getattr(few, name) == getattr(all_of_it, name), name
    one, other = few.positions, all_of_it.positions
    assert (one.windowed is None) == (other.windowed is None)
    for mine, wanted in ((one.rope, other.rope), (one.windowed or one.rope, other.windowed or other.rope)):
        assert (mine.theta, mine.fraction, mine.interleaved) == (wanted.theta, wanted.fraction, wanted.interleaved)
        assert mine.frequencies(8).tolist() == wanted.frequencies(8).tolist()


def test_a_family_without_known_files_is_refused():
    """The families that are known are named."""
    with pytest.raises(UserError, match=r"model_type = apertus: its weight files are not known; allowed: arcee, bamba"):
        rules("apertus", [], {})


def named_alike(family, config, files):
    """Every tensor is one of a parameter, of its shape, and comes back as it was."""
    graph = read(config, family)
    with torch.device("meta"):
        own = dict(decoder(graph).named_parameters())
    found = rules(family, list(own), graph.dims)
    assert sorted(each for rule in found for each in rule.theirs) == sorted(files)
    for rule in found:
        parameters = rule.read([files[each] for each in rule.theirs], graph.dims)
        assert {key: each.shape for key, each in parameters.items()} == {key: own[key].shape for key in rule.ours}
        for key, tensor in rule.write(list(parameters.values()), graph.dims).items():
            assert torch.equal(tensor, files[key]), key
    return {key: (rule, files) for rule in found for key in rule.ours}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", NAMED)
def test_files_are_known_where_no_run_computes_the_model(family, tmp_path):
    """Names and layouts of transformers' own files: gates of an expert are gates here."""
    theirs = released(family, NAMED[family], tmp_path)
    config, files = (
        json.loads((tmp_path / "config.json").read_text()),
        safetensors.load_file(tmp_path / "model.safetensors"),
    )
    named_alike(family, config, files)
    if family == "llama4_text":  # one expert of a layer, computed from either
        rule = next(r for r in rules(family, ["layers.1.expert_up.weight"], read(config, family).dims))
        (own,) = rule.read([files[rule.theirs[0]]], read(config, family).dims).values()
        x = torch.randn(5, 32)
        gate, up = theirs.model.layers[1].feed_forward.experts.gate_up_proj[2].detach().chunk(2, dim=-1)
        torch.testing.assert_close(x @ own[2, 0].T, x @ gate)
        torch.testing.assert_close(x @ own[2, 1].T, x @ up)


def test_files_of_grok_are_known():
    """There is no class for it in transformers: names are those of its port to torch (linear gates linear_v)."""
    config = {"model_type": "grok-1", **DECLARED["grok-1"].tiny}
    sizes = {"attn.q_proj": (32, 32), "attn.k_proj": (16, 32), "attn.v_proj": (16, 32), "attn.o_proj": (32, 32)}
    sizes |= {f"{when}_{what}_norm": (32,) for when in ("pre", "post") for what in ("attn", "moe")}
    sizes |= {"moe_block.gate": (2, 32)}
    for e in range(2):
        sizes |= {f"moe_block.experts.{e}.linear{kind}": (48, 32) for kind in ("", "_v")}
        sizes |= {f"moe_block.experts.{e}.linear_1": (32, 48)}
    shapes = {f"model.layers.{layer}.{name}.weight": size for layer in range(2) for name, size in sizes.items()}
    shapes |= {"model.embed_tokens.weight": (96, 32), "model.norm.weight": (32,)}
    files = {name: torch.randn(size) for name, size in shapes.items()}
    rule, _ = named_alike("grok-1", config, files)["layers.0.expert_up.weight"]
    (own,) = rule.read([files[each] for each in rule.theirs], {"num_experts": 2}).values()
    assert torch.equal(own[1, 0], files["model.layers.0.moe_block.experts.1.linear.weight"])


def test_older_and_newer_words_of_rope_scaling_mean_the_same():
    """A config in the words of older files is the one of newer files."""
    old = {"model_type": "llama", **LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    newer = {"model_type": "llama", **LLAMA, **new}
    assert read(old, "m").details.positions == read(newer, "m").details.positions
