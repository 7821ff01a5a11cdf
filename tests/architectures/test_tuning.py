"""Adapters and frozen layers: published counts of trained parameters, memory by formula, no work below the first."""

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import model_flop_per_token
from simpar.architectures.graph import saved_tensors
from simpar.architectures.hf_config import read
from simpar.architectures.tuning import NF4_BYTES, add_adapters
from simpar.cost.optimizers import state_bytes
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import make_cluster
from simpar.simulation import make_job

H100 = simpar.Cluster("dgx-h100")
TRAINING = simpar.Training(seq_len=1024, global_batch=8)
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llama(hidden, layers, heads, ffn):
    """A first Llama."""
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "intermediate_size": ffn, "vocab_size": 32000, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    return read(config, name=f"llama-{layers}x{hidden}")


def adapted(graph, rank, targets=ALL, **options):
    """The model with adapters."""
    return add_adapters(graph, rank=rank, targets=targets, **{"frozen_layers": 0, "frozen_dtype": "bf16", **options})


def trained(graph):
    """Trained parameters of a model."""
    blocks = [graph.embedding, *(graph.blocks[name] for name in graph.layers), graph.head]
    return sum(int(block.trained_parameters(graph.dims)) for block in blocks)


def step(cluster=H100, model="llama-3-8b", training=TRAINING, **plan):
    """One simulated step, whose adapters have 16 bits and a copy in 32."""
    return simpar.simulate(model, cluster, simpar.Plan(stack="megatron", **plan), training, with_timeline=False)


@pytest.mark.parametrize(
    ("graph", "rank", "targets", "count"),
    [
        (llama(4096, 32, 32, 11008), 8, ("q_proj", "v_proj"), 4_194_304),
        (llama(4096, 32, 32, 11008), 16, ALL, 39_976_960),
        (simpar.Model("llama-3-8b"), 16, ALL, 41_943_040),
        (simpar.Model("qwen3-30b-a3b"), 64, ALL, 3_375_366_144),
        (simpar.Model("mixtral-8x7b"), 8, ("q_proj", "v_proj"), 3_407_872),
        (simpar.Model("mt5-large"), 8, ("q_proj", "v_proj"), 2_359_296),
    ],
)
def test_published_counts_of_trained_parameters(graph, rank, targets, count):
    """Alpaca-LoRA prints 4,194,304 for Llama 7B; PEFT prints the others for all projections, of every expert too.

    Beside query and value of Mixtral it prints what it does for Mistral 7B. Its README prints that of mT5 large, whose
    decoder has two attentions a layer.
    """
    assert trained(adapted(graph, rank, targets)) == count


def test_gpt3_with_adapters_of_rank_one():
    """LoRA, arXiv 2106.09685, table 4: 4.7 million parameters for query and value of GPT-3 175B at rank 1."""
    assert trained(adapted(simpar.Model("gpt3-175b"), 1, ("q_proj", "v_proj"))) == pytest.approx(4.7e6, rel=0.01)


def test_only_adapters_have_gradients_and_states():
    """Frozen weights take two bytes; adapters their gradients and states as before."""
    result = step(lora_rank=16)
    stage, count = result.memory.stages[0], simpar.Model("llama-3-8b").num_parameters()
    assert stage.parameters_bytes == pytest.approx(2 * (count + 41_943_040), rel=1e-3)
    assert stage.optimizer_states_bytes == pytest.approx(12 * 41_943_040, rel=1e-3)
    full = step()
    assert result.communication["dp"].bytes_per_rank < 0.01 * full.communication["dp"].bytes_per_rank
    assert result.time_breakdown_s.optimizer < 0.05 * full.time_breakdown_s.optimizer


def test_frozen_products_have_no_weight_gradient():
    """Model FLOP are two thirds and the adapters; compute takes less by about that."""
    graph = simpar.Model("llama-3-8b")
    whole, part = (model_flop_per_token(one, 1024) for one in (graph, adapted(graph, 16)))
    assert 0.66 < part / whole < 0.70
    ratio = step(lora_rank=16).time_breakdown_s.compute / step().time_breakdown_s.compute
    assert 0.6 < ratio < 0.95


def test_nothing_runs_backward_below_the_first_trained_layer():
    """With 28 of 32 layers frozen, backward is that of four layers and the head, and keeps their activations only."""
    some, most = (step(frozen_layers=number, micro_batch=1) for number in (16, 28))
    whole = step(micro_batch=1)
    assert (
        most.memory.stages[0].activations_bytes
        < some.memory.stages[0].activations_bytes
        < whole.memory.stages[0].activations_bytes
    )
    assert most.memory.stages[0].activations_bytes < 0.5 * whole.memory.stages[0].activations_bytes
    assert most.time_breakdown_s.compute < some.time_breakdown_s.compute < whole.time_breakdown_s.compute
    job = make_job("llama-3-8b", H100, simpar.Plan(frozen_layers=28), TRAINING)
    blocks = [job.graph.blocks[name] for name in job.graph.layers]
    assert [block.has_no_backward for block in blocks] == [True] * 28 + [False] * 4


@pytest.mark.parametrize(
    ("name", "targets", "frozen", "first"),
    [
        ("nemotron-h-8b", ALL, 0, 1),  # MLPs in every second layer
        ("nemotron-h-8b", ("q_proj", "v_proj"), 0, 7),
        ("nemotron-h-8b", ("q_proj", "v_proj"), 8, 18),
        ("qwen3-next-80b-a3b", ("q_proj",), 0, 3),
        ("llama-3-8b", ("down_proj",), 0, 0),
        ("llama-3-8b", ("down_proj",), 5, 5),
    ],
)
def test_nothing_runs_backward_below_the_first_adapter(name, targets, frozen, first):
    """As torch does it: a layer without a target below those with one is passed by no gradient and keeps nothing."""
    graph = adapted(simpar.Model(name), 8, targets, frozen_layers=frozen)
    blocks = [graph.blocks[name] for name in graph.layers]
    assert [block.has_no_backward for block in blocks] == [at < first for at in range(len(blocks))]
    assert all(block.trained_parameters(graph.dims) == 0 for block in blocks[:first])
    assert blocks[first].trained_parameters(graph.dims) > 0


def test_pipelines_and_shards_of_frozen_models_run():
    """Stages without anything to train, ZeRO-3 gathers of frozen weights, sequence parallel adapters."""
    assert step(pp=4, frozen_layers=24).step_time_s < step(pp=4).step_time_s
    shards = step(zero=3, lora_rank=16)
    count = simpar.Model("llama-3-8b").num_parameters()
    assert shards.memory.stages[0].parameters_bytes == pytest.approx(2 * count / 8, rel=0.02)
    assert shards.communication["dp"].bytes_per_rank > 2 * 2 * 0.9 * count
    assert step(tp=4, lora_rank=16).step_time_s > 0


def test_frozen_weights_may_be_kept_in_32_bits():
    """As a script loads them that says no dtype: 4 bytes of every parameter, the table and the head among them."""
    count = simpar.Model("llama-3-8b").num_parameters()
    wide, low = (step(lora_rank=16, frozen_dtype=dtype) for dtype in ("fp32", "bf16"))
    assert wide.memory.stages[0].parameters_bytes == pytest.approx(4 * count, rel=0.02)
    assert wide.step_time_s > low.step_time_s


def test_qlora_of_65b_parameters_fits_in_48_gb():
    """QLoRA, arXiv 2305.14314: 65B parameters on one 48 GB device, more than 780 GB with 16 bits."""
    profile = load_cluster("l40s-8").profile.model_copy(update={"devices_per_node": 1})
    cluster, graph = make_cluster(profile, 1), llama(8192, 80, 64, 22016)
    training = simpar.Training(seq_len=512, global_batch=16)
    plan = {"recompute": "full", "lora_rank": 64, "optimizer": "adamw_8bit", "stack": "fsdp"}
    packed = simpar.simulate(graph, cluster, simpar.Plan(**plan, frozen_dtype="nf4"), training)
    plain = simpar.simulate(graph, cluster, simpar.Plan(**plan), training)
    assert packed.fits
    assert not plain.fits
    inner = sum(float(graph.blocks[name].matmul_parameters(graph.dims)) for name in graph.layers)
    saved = plain.memory.stages[0].parameters_bytes - packed.memory.stages[0].parameters_bytes
    assert saved == pytest.approx((2 - NF4_BYTES) * inner, rel=1e-3)
    assert packed.step_time_s > plain.step_time_s


def test_frozen_weights_in_int8_are_a_byte_an_element():
    """As bitsandbytes keeps them, beside products of any precision: three bytes an element are moved before each."""
    wide, low, four = (step(lora_rank=16, frozen_dtype=dtype) for dtype in ("bf16", "int8", "nf4"))
    graph = simpar.Model("llama-3-8b")
    inner = sum(float(graph.blocks[name].matmul_parameters(graph.dims)) for name in graph.layers)
    saved = wide.memory.stages[0].parameters_bytes - low.memory.stages[0].parameters_bytes
    assert saved == pytest.approx(inner, rel=0.01)
    assert wide.step_time_s < four.step_time_s < low.step_time_s
    assert step(lora_rank=16, frozen_dtype="int8", precision="fp16").fits


def test_frozen_weights_in_the_8_bits_that_products_read():
    """A byte an element, as the presets of MLPerf's adapters hold 70B in 70 GB; transposed copies are made each time.

    On devices with scaled blocks products read either layout, and the step takes as long as with 16 bits.
    """
    training = simpar.Training(seq_len=8192, global_batch=2)  # a microbatch of every replica
    plan = {"lora_rank": 16, "precision": "fp8", "stack": "nemo", "tp": 4}
    wide, narrow = (
        simpar.simulate("llama-2-70b", H100, simpar.Plan(**plan, frozen_dtype=dtype), training)
        for dtype in ("bf16", "fp8")
    )
    graph = simpar.Model("llama-2-70b")
    inner = sum(float(graph.blocks[name].matmul_parameters(graph.dims)) for name in graph.layers)
    saved = wide.memory.stages[0].parameters_bytes - narrow.memory.stages[0].parameters_bytes
    assert saved == pytest.approx(inner / 4, rel=1e-3)
    turned_s = 2 * inner / 4 / (0.85 * 3352e9) + 80 * 4 * 5.054e-6  # read and written, a kernel a product
    assert narrow.step_time_s - wide.step_time_s == pytest.approx(1.023 * turned_s, rel=0.02)
    blackwell = make_cluster(load_cluster("hgx-b200").profile, 1)
    steps = [
        simpar.simulate("llama-2-70b", blackwell, simpar.Plan(**plan, frozen_dtype=dtype), training).step_time_s
        for dtype in ("bf16", "fp8")
    ]
    assert steps[0] == steps[1]
    with pytest.raises(UserError, match=r"plan\.frozen_dtype = fp8: products of precision bf16"):
        simpar.simulate("llama-2-70b", H100, simpar.Plan(lora_rank=16, frozen_dtype="fp8"), training)


def test_projections_of_latent_attention_and_of_experts():
    """q_proj is both query products, v_proj both of keys and values, each one adapter; shared experts have theirs."""
    graph = simpar.Model("deepseek-v2-lite")
    hidden, heads, layers, rank = 2048, 16, 27, 4
    query = rank * (hidden + heads * 192)
    values = rank * (hidden + 512 + 64) + rank * (512 + heads * 256)
    assert trained(adapted(graph, rank, ("q_proj", "v_proj"))) == layers * (query + values)
    both = adapted(graph, rank, ("k_proj", "v_proj"))
    assert trained(both) == layers * values
    up = 26 * (64 * rank * (hidden + 1408) + rank * (hidden + 2816)) + rank * (hidden + 10944)
    assert trained(adapted(graph, rank, ("up_proj",))) == up


def test_only_adapters_of_experts_have_gradients_and_states():
    """Experts of a rank take two bytes, or half a byte packed; states are those of its experts' adapters."""
    rank, ranks = 16, 8
    plan = {"ep": ranks, "micro_batch": 1, "recompute": "full", "model": "mixtral-8x7b", "lora_rank": rank}
    result, packed = step(**plan), step(**plan, frozen_dtype="nf4")
    graph = simpar.Model("mixtral-8x7b")
    experts = 32 * 3 * 4096 * 14336
    frozen = graph.num_parameters() - 7 * experts
    own = 32 * rank * (3 * (4096 + 14336) + 2 * (4096 + 4096) + 2 * (4096 + 1024))
    stage = result.memory.stages[0]
    assert stage.parameters_bytes == pytest.approx(2 * (frozen + own), rel=1e-3)
    assert stage.optimizer_states_bytes == pytest.approx(12 * own, rel=1e-3)
    inner = sum(float(graph.blocks[name].matmul_parameters(graph.dims)) for name in graph.layers)
    inner -= experts  # a token meets two experts, a rank holds one
    saved = stage.parameters_bytes - packed.memory.stages[0].parameters_bytes
    assert saved == pytest.approx((2 - NF4_BYTES) * inner, rel=1e-3)
    assert packed.step_time_s > result.step_time_s
    whole = step(**{**plan, "lora_rank": None})
    assert result.communication["dp"].bytes_per_rank < 0.02 * whole.communication["dp"].bytes_per_rank
    assert 0.5 < result.time_breakdown_s.compute / whole.time_breakdown_s.compute < 0.95


def test_shards_of_frozen_experts_are_gathered_among_those_that_hold_them():
    """ZeRO-3 with experts on 4 of 8 ranks: two gathers of all weights, experts in pairs, and next to no reduction."""
    plan = {"model": "mixtral-8x7b", "ep": 4, "zero": 3, "micro_batch": 1, "recompute": "none"}
    result, whole = step(**plan, lora_rank=8), step(**plan)
    assert result.memory.stages[0].parameters_bytes == pytest.approx(whole.memory.stages[0].parameters_bytes, rel=0.01)
    gathers = whole.communication["dp"].bytes_per_rank / 2  # as many bytes of fp32 gradients as of two gathers
    assert result.communication["dp"].bytes_per_rank == pytest.approx(gathers, rel=0.02)


def test_optimizers_see_the_matrices_of_adapters():
    """Adapters are matrices of r rows or columns: Adafactor keeps a row and a column of each, Muon a moment."""
    graph, r = adapted(simpar.Model("llama-3-8b"), 16), 16
    attention = 3 * (4096 + r) + (4096 + r) + 2 * (1024 + r) + 2 * (4096 + r)
    mlp = 2 * (4096 + r) + 2 * (14336 + r) + (14336 + r) + (4096 + r)
    blocks = [graph.blocks[name] for name in graph.layers]

    def states(optimizer):
        numerics = simpar.Plan(optimizer=optimizer).numerics
        return sum(sum(state_bytes(block, graph.dims, numerics)) for block in blocks)

    assert states("adafactor") == 4 * 32 * (attention + mlp)
    assert states("muon") == 4 * 41_943_040


@pytest.mark.parametrize(
    ("model", "plan", "words"),
    [
        ("t5-11b", {"frozen_layers": 49}, "fewer"),
        ("llama-3-8b", {"frozen_layers": 32}, "fewer"),
        ("llama-3-8b", {"lora_rank": 8, "sync": "diloco"}, "on their own"),
    ],
)
def test_what_is_not_modelled_says_so(model, plan, words):
    """One line with what is allowed."""
    with pytest.raises(UserError, match=words):
        step(model=model, **plan)


@pytest.mark.parametrize("name", ["llama-3.2-11b-vision", "t5-small", "whisper-tiny", "wan2.1-t2v-14b"])
def test_adapters_beside_attention_to_another_tower(name):
    """What the tower makes is kept there: the adapter of its keys and values keeps only its own product."""
    graph = add_adapters(load_model(name), rank=8, targets=("q_proj", "v_proj"), frozen_layers=0, frozen_dtype="bf16")
    kept = {key for block in graph.blocks.values() for key, _, _ in saved_tensors(block)}
    assert "memory" not in kept
    assert {"cross_q.lora_a", "cross_kv.lora_a"} <= kept


def frozen_parts(model, **parts):
    """A shipped model with parts of its tower frozen."""
    return add_adapters(load_model(model), rank=None, targets=ALL, frozen_layers=0, frozen_dtype="bf16", **parts)


@pytest.mark.parametrize("model", ["qwen2.5-vl-7b", "qwen3-vl-8b", "kimi-k2.5"])
def test_a_frozen_tower_is_all_that_is_not_trained(model):
    """Trained are the text and, unless that is frozen too, what joins the tower to it; embedding and head stay."""
    graph = load_model(model)
    blocks = [graph.embedding, *(graph.blocks[name] for name in graph.layers), graph.head]
    scopes = {"text": "", "tower": "vision", "connector": "connector"}
    size = {
        part: sum(int(block.trained_parameters(graph.dims)) for block in blocks if block.scope == scope)
        for part, scope in scopes.items()
    }
    assert sum(size.values()) == trained(graph)
    assert trained(frozen_parts(model, frozen_tower=True)) == size["text"] + size["connector"]
    assert trained(frozen_parts(model, frozen_connector=True)) == size["text"] + size["tower"]
    assert trained(frozen_parts(model, frozen_tower=True, frozen_connector=True)) == size["text"]


def test_a_frozen_tower_runs_forward_only():
    """Its gradients' products and all that it keeps fall away; a step is shorter by less than three of its forwards."""
    model, plan = "qwen2.5-vl-7b", {"zero": 3, "kind": "fsdp"}
    whole, tower, both, joint = (
        simpar.simulate(model, H100, simpar.Plan(**plan, **parts), TRAINING)
        for parts in ({}, {"frozen_tower": True}, {"frozen_tower": True, "frozen_connector": True},
                      {"frozen_connector": True})
    )  # fmt: skip
    assert both.step_time_s < tower.step_time_s < joint.step_time_s < whole.step_time_s
    assert both.memory.peak_memory_bytes < tower.memory.peak_memory_bytes < whole.memory.peak_memory_bytes
    graph = load_model(model)
    flop = [model_flop_per_token(each, 1024) for each in (graph, frozen_parts(model, frozen_tower=True))]
    share = (flop[0] - flop[1]) / flop[0]  # two thirds of the tower's
    assert 0.5 * share < 1 - tower.step_time_s / whole.step_time_s < 1.5 * share


@pytest.mark.parametrize("part", ["frozen_tower", "frozen_connector"])
def test_a_model_without_a_tower_freezes_none(part):
    """It is refused by the key of the plan."""
    with pytest.raises(UserError, match=f"plan.{part} = true: llama-3-8b neither sees nor hears; allowed: false"):
        frozen_parts("llama-3-8b", **{part: True})
