"""Classes that no family declares and no list names, each with a kind of call that capture once refused."""

import pytest

import simpar
from simpar.architectures.families.family import TINY
from simpar.architectures.flops import matmul_flop_per_token
from simpar.errors import UserError
from simpar.frameworks.architecture import architecture
from simpar.tracing.capture import capture
from simpar.tracing.graph import _traced, trace_library
from tests.gate import some

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQ = 32
PAIR = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "dory": {**TINY, "head_dim": 8},  # scales of logits
    "modernbert-decoder": {**TINY, "layer_types": ["full_attention", "sliding_attention"]},  # padding must be a number
    "roformer": {**TINY, "embedding_size": 32, "is_decoder": True},  # a view by another tensor's shape
    "m2m_100": {**PAIR, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},  # layers that drop out at random
    "fsmt": {
        "src_vocab_size": 96,
        "tgt_vocab_size": 96,
        **{key: size for key, size in PAIR.items() if key != "vocab_size"},
    },  # compares tokens with the number for padding
    "xlm": {"n_words": 96, "emb_dim": 32, "n_layers": 2, "n_heads": 4},  # attentions and MLPs in lists of their own
    "switch_transformers": {
        **TINY,
        "model_type": "switch_transformers",
        "d_model": 32,
        "d_ff": 48,
        "d_kv": 8,
        "num_heads": 4,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "num_experts": 4,
    },  # experts in modules of their own, by ones among zeros
    "distilbert": {"vocab_size": 96, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},  # no causal class
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", some(CONFIGS, [kind for kind in CONFIGS if kind not in ("xlm", "fsmt", "switch_transformers")])
)
def test_a_class_has_the_parameters_that_its_library_counts(kind):
    """Captured by its config alone, without the name of its class."""
    config = {**CONFIGS[kind], "model_type": kind}
    graph = trace_library(config, "", kind, SEQ, f"model = {kind}")
    tables = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING")
    own = transformers.CONFIG_MAPPING[kind].from_dict(config)
    classes = [getattr(transformers, table)[type(own)] for table in tables if type(own) in getattr(transformers, table)]
    with torch.device("meta"):
        module = classes[0](own)
    assert graph.num_parameters() == sum(each.numel() for each in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xlm", "m2m_100"])
def test_layouts_of_a_class_simulate(kind):
    """What attention and sums of later blocks read of earlier ones is told apart."""
    graph = trace_library({**CONFIGS[kind], "model_type": kind}, "", kind, SEQ, f"model = {kind}")
    training = simpar.Training(seq_len=SEQ, global_batch=16)
    for fields in ({"zero": 3}, {"pp": 2, "recompute": "full"}, {"tp": 2, "sequence_parallel": True}):
        result = simpar.simulate(graph, "dgx-h100", simpar.Plan(micro_batch=1, **fields), training, with_timeline=False)
        assert result.step_time_s > 0


def test_layers_that_drop_out_are_counted_and_said():
    """Two recordings would draw other layers."""
    config = {**CONFIGS["m2m_100"], "model_type": "m2m_100"}
    graph = trace_library(config, "", "m2m_100", SEQ, "model = m2m_100")
    assert "layers that it drops at random in training are all counted" in graph.facts["notes"]
    assert sum(block.startswith("model_encoder") for block in graph.layers) >= 3


@pytest.mark.filterwarnings("ignore")
def test_norms_of_heads_without_weights_are_no_exporters_norms():
    """Dory has them; what exporters know are norms of a head's width, or of all heads, with weights."""
    graph = trace_library({**CONFIGS["dory"], "model_type": "dory"}, "", "dory", SEQ, "model = dory")
    assert architecture(graph).qk_norm == "bare"
    result = simpar.simulate(graph, "dgx-h100", simpar.Plan(zero=3), simpar.Training(seq_len=SEQ, global_batch=8))
    assert result.step_time_s > 0


@pytest.mark.slow
def test_experts_that_are_modules_of_their_own_are_a_mixture():
    """Switch Transformers loops over those that tokens chose; one of four for each token."""
    graph = trace_library({**CONFIGS["switch_transformers"]}, "", "switch", SEQ, "model = switch")
    assert graph.is_mixture
    assert (graph.dims["experts"], graph.dims["topk"], graph.dims["expert_ffn"]) == (4, 1, 48)
    training, plan = simpar.Training(seq_len=SEQ, global_batch=16), simpar.Plan(ep=2, micro_batch=1)
    assert simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False).communication["ep"].busy_s > 0


class Picks(torch.nn.Module):
    """Keeps the tokens whose features are positive."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)

    def forward(self, tokens):
        """Rows of the table by their values."""
        rows = self.table(tokens)
        return rows[rows.sum(-1) > 0]


class Splits(Picks):
    """Splits tokens by numbers that it counts."""

    def forward(self, tokens):
        """Rows of the table in two parts."""
        rows = self.table(tokens)
        return rows.flatten(0, 1).split((rows.sum(-1) > 0).sum(1).tolist())[0]


@pytest.mark.parametrize(
    ("made", "said"),
    [(Picks, "it picks rows by their values"), (Splits, "it reads values that depend on data, such as the tokens of")],
)
def test_choices_by_value_are_refused_in_one_short_line(made, said):
    """What torch says of them is a paragraph."""
    with pytest.raises(UserError, match=said) as refused:
        capture("own", SEQ, made)
    assert len(str(refused.value)) < 220


class Limited(torch.nn.Module):
    """A gated MLP whose halves are products of their own, each with limits, and an activation that is a module."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(96, 8)
        self.gate, self.up = (torch.nn.Linear(8, 16, bias=False) for _ in range(2))
        self.down, self.act = torch.nn.Linear(16, 8, bias=False), torch.nn.SiLU()
        self.head = torch.nn.Linear(8, 96)

    def forward(self, tokens):
        """Limits of the upper half have one end."""
        x = self.table(tokens)
        gate, up = self.gate(x), self.up(x)
        gate, up = gate.clamp(min=None, max=3.0), up.clamp(min=-3.0, max=3.0)
        return self.head(x + self.down(self.act(gate) * up))


def test_limits_of_both_products_of_a_gate_are_one_operator():
    """As in experts; the halves are one product, which tensor parallelism divides."""
    from simpar.tracing.reading import read_drafts
    from simpar.tracing.roles import find_roles

    roles = find_roles(read_drafts("own", capture("own", SEQ, Limited)), "")
    assert roles.dims["ffn"] == 16
    assert {"mlp_up", "mlp_clamp", "activation", "mlp_down"} <= set(roles.names.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_glm_5_next_is_captured():
    """Pools of keys that no padding hides are picked by a mask, which travels joined with the keys."""
    own = transformers.Glm5NextConfig(text_config={"num_hidden_layers": 4})
    graph = trace_library(own.to_dict(), "", "glm5_next", SEQ, "model = glm5_next")
    with torch.device("meta"):
        module = transformers.Glm5NextForConditionalGeneration(own)
    vision = sum(each.numel() for name, each in module.named_parameters() if "visual" in name or "vision" in name)
    assert graph.num_parameters() == sum(each.numel() for each in module.parameters()) - vision
    assert graph.is_mixture
    assert "not between plain products" not in "; ".join(graph.facts["notes"])
    plan, training = simpar.Plan(zero=3, micro_batch=1), simpar.Training(seq_len=SEQ, global_batch=16)
    assert simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False).step_time_s > 0
    assert "how 1 attention chose among keys could not be read" in "; ".join(graph.facts["notes"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["t5gemma2", "longt5", "cpmant"])
def test_classes_with_other_attention_answer(kind):
    """Two towers' keys in one, pieces that see their neighbours, learned keys before the sequence."""
    fields = {"vocab_size": 96, "num_layers": 2, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4}
    configs = {
        "longt5": fields,
        "cpmant": {"vocab_size": 96, "hidden_size": 32, "dim_head": 8, "num_attention_heads": 4, "dim_ff": 48,
                   "num_hidden_layers": 2},
        "t5gemma2": {},
    }  # fmt: skip
    graph = trace_library({**configs[kind], "model_type": kind}, "", kind, 256, f"model = {kind}")
    assert "an attention counts as its products and its softmax" in "; ".join(graph.facts["notes"])
    training = simpar.Training(seq_len=256, global_batch=16)
    for fields in ({"zero": 3}, {"pp": 2}):
        plan = simpar.Plan(micro_batch=1, **fields)
        assert simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False).step_time_s > 0


class Joined(torch.nn.Module):
    """A product whose matrix is one of full rank and one of rank 4 together."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.nn.Parameter(torch.empty(48, 32))
        self.left = torch.nn.Parameter(torch.empty(48, 4))
        self.right = torch.nn.Parameter(torch.empty(4, 32))

    def forward(self, hidden):
        """Rows of 48 columns."""
        return torch.nn.functional.linear(hidden, self.whole + self.left @ self.right)


def test_products_of_parameters_count_once_a_pass():
    """Of a matrix and its low-rank change, joined before they meet the batch: 2 x 48 x 4 x 32 FLOP."""
    hidden = [each for _ in range(2) for each in (torch.nn.Sequential(Joined(), torch.nn.Linear(48, 32)),)]
    model = torch.nn.Sequential(torch.nn.Embedding(96, 32), *hidden, torch.nn.Linear(32, 96, bias=False))
    graph = _traced("m", capture("m", SEQ, lambda: model), "")
    assert graph.num_parameters() == sum(each.numel() for each in model.parameters())
    each = 2 * 48 * 4 * 32 / SEQ + 2 * 48 * 32 + 2 * 48 * 32
    assert matmul_flop_per_token(graph, SEQ) == pytest.approx(2 * each + 2 * 32 * 96)
    result = simpar.simulate(graph, "dgx-h100", simpar.Plan(zero=3), simpar.Training(seq_len=SEQ, global_batch=8))
    assert result.step_time_s > 0


RELATIVE = {
    "xlnet": {"vocab_size": 96, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "pegasus_x": {**PAIR, "num_global_tokens": 4, "block_size": 16},
    "zamba2": {
        **TINY, "num_hidden_layers": 6, "layers_block_type": ["mamba", "hybrid", "mamba"] * 2, "num_mem_blocks": 1,
        "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "mamba_d_state": 16, "use_mem_rope": True,
        "adapter_rank": 4,
    },
}  # fmt: skip
"""Products of positions, or of tokens that are parameters, with parameters; blocks that several layers share."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RELATIVE)
def test_classes_with_products_of_parameters_answer(kind):
    """With the parameters that their library counts, in layouts of every kind."""
    config = {**RELATIVE[kind], "model_type": kind}
    graph = trace_library(config, "", kind, SEQ, f"model = {kind}")
    own = transformers.CONFIG_MAPPING[kind].from_dict(config)
    tables = (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)
    with torch.device("meta"):
        module = next(table[type(own)] for table in tables if type(own) in table)(own)
    assert graph.num_parameters() == sum(each.numel() for each in module.parameters())
    training = simpar.Training(seq_len=SEQ, global_batch=16)
    for fields in ({"zero": 3}, {"pp": 2, "recompute": "full"}):
        result = simpar.simulate(graph, "dgx-h100", simpar.Plan(micro_batch=1, **fields), training, with_timeline=False)
        assert result.step_time_s > 0


LOOPED = {
    "vocab_size": 96, "unpadded_vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
    "swa_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "d_rel": 4,
    "rel_extent": 32, "loop_layer_index_start": 1, "loop_layer_index_end": 2, "loop_num_passes": 3, "loop_gate_rank": 4,
    "n_layers_per_attn_res_block": 1, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
}  # fmt: skip
"""One layer of three runs three times over."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_experts_of_layers_that_run_several_times_are_held_once():
    """Their products count in every pass; what is said of many kinds of blocks is one line."""
    graph = trace_library({**LOOPED, "model_type": "inkling2_loop_text"}, "", "looped", SEQ, "model = looped")
    with torch.device("meta"):
        module = transformers.Inkling2LoopForCausalLM(transformers.Inkling2LoopTextConfig(**LOOPED))
    assert graph.num_parameters() == sum(each.numel() for each in module.parameters())
    products = [op for name in graph.layers for op in graph.blocks[name].operators if op.kind == "grouped_matmul"]
    held = [op for op in products if any(weight.kind == "expert" for weight in op.weights)]
    assert len(products) - len(held) == 2 * len(held) / 3  # two further passes of one of three layers
    assert all(weight.kind == "shared" for op in products if op not in held for weight in op.weights)
    assert sum("without a role" in note for note in graph.facts["notes"]) <= 3
    plan, training = simpar.Plan(zero=3, micro_batch=1), simpar.Training(seq_len=SEQ, global_batch=16)
    assert simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False).step_time_s > 0
