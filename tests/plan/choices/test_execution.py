"""Choices of how the step is executed: each changes what it says, by figures computed by hand."""

import pytest

import simpar
from simpar.cost.kernels import KernelModel
from simpar.errors import UserError
from simpar.frameworks import export, losses, read
from simpar.hardware.device import load_device
from simpar.layout.layout import apply_execution_choices
from simpar.plan.choices import BY_NAME
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack
from simpar.units import GIB, US

LLAMA = ("llama-3-8b", "dgx-h100")
TRAINING = {"seq_len": 8192, "global_batch": 16}


def simulated(stack="fsdp", model=LLAMA[0], training=TRAINING, **plan):
    """The result of a plan on a node of H100."""
    return simpar.simulate(model, LLAMA[1], plan, training, stack=stack)


def peak_bytes(**plan):
    """The largest allocated peak of all stages."""
    return max(stage.peak_bytes for stage in simulated(**plan).memory.stages)


def test_what_a_plan_leaves_open_is_as_the_stack():
    """Every choice of execution is None by default, and a plan of defaults changes no policy."""
    for name in ("megatron", "fsdp", "torchtitan"):
        stack = load_stack(name)
        assert apply_execution_choices(stack, Plan()) is stack
        chunked = apply_execution_choices(stack, Plan(loss_chunks=4))
        assert apply_execution_choices(chunked, Plan(loss_chunks=4)) == chunked != stack


def test_every_choice_round_trips_through_its_result():
    """What was chosen stands in the plan of the result, and gives the same step again."""
    chosen = {
        "attention_kernel": "cudnn", "loss_chunks": 4, "expandable_segments": True, "graphs": "attention+mlp",
        "parameter_dtype": "bf16", "dispatcher": "deepep", "fused_kernels": "norm+rope",
        "optimizer_kernels": "single", "update_in_backward": False, "fused_permutation": False,
        "document_loops": True, "empty_cache_steps": 8, "gradient_accumulation_fusion": False,
        "quantized_weights": "cached", "kept_outputs": 3,
    }  # fmt: skip
    others = {"matrix_layout"}  # of optimizers that work on whole matrices: tests/cost/test_matrix_layouts.py
    assert {*chosen, *others} == {choice.name for choice in BY_NAME.values() if choice.section == "execution"}
    result = simulated(zero=3, **chosen)
    assert {name: result.plan.get(name) for name in chosen} == chosen
    again = simpar.simulate(*LLAMA, result.plan, TRAINING, stack="fsdp")
    assert again.step_time_s == result.step_time_s


def test_chunks_of_a_loss_hold_the_logits_of_one():
    """14 bytes of 8,192 x 128,256 logits at the peak of an eager fp32 loss [fsdp]: half of them in two chunks."""
    logits = 8192 * 128_256
    whole, two, four = (peak_bytes(zero=3, loss_chunks=chunks, recompute="full") for chunks in (1, 2, 4))
    assert whole - two == pytest.approx(14 * logits / 2, rel=1e-6)
    assert two - four == pytest.approx(14 * logits / 4, rel=1e-6)


def test_pieces_whose_logits_are_made_again():
    """MaxText's tiles: the output projection runs forward twice, 2 FLOPs a weight and token more; Liger's run once."""
    device, model = load_device("h100-sxm-80gb"), simpar.Model(LLAMA[0])
    least_s = 2 * 16 / 8 * 8192 * 4096 * model.dims["vocab"] / device.peak_flop_per_s["bf16"]
    alone = {"zero": 3, "recompute": "full", "micro_batch": 2}
    for stack, low, high in (("maxtext", 1.0, 2.0), ("huggingface", -0.05, 0.05)):
        once, pieces = (simulated(stack, loss_chunks=chunks, **alone).step_time_s for chunks in (1, 4))
        assert low < (pieces - once) / least_s < high


def test_eager_attention_keeps_scores():
    """Scores of 32 heads over 8,192 x 8,192 positions are written and kept: a longer step and more memory."""
    flash, eager = simulated(zero=3), simulated(zero=3, attention_kernel="eager")
    scores_bytes = 32 * 8192**2 * 2
    assert eager.memory.peak_reserved_bytes - flash.memory.peak_reserved_bytes > 31 * scores_bytes
    assert eager.step_time_s > 1.3 * flash.step_time_s
    assert simulated(zero=3, attention_kernel="sdpa").step_time_s == flash.step_time_s  # fsdp runs FlashAttention-2
    assert simulated(zero=3, attention_kernel="flash3").step_time_s < flash.step_time_s


def test_expandable_segments_leave_two_percent_of_gaps():
    """Reserved memory beyond the peak is 2 % of what moves; static memory and the step stay."""
    plain, expandable = simulated(zero=3), simulated(zero=3, expandable_segments=True)
    assert expandable.memory.peak_reserved_bytes < plain.memory.peak_reserved_bytes - GIB
    assert expandable.step_time_s == plain.step_time_s
    allocator = apply_execution_choices(load_stack("fsdp"), Plan(expandable_segments=True)).memory.allocator
    assert allocator.gaps(alternates=True) == allocator.tight_gaps(alternates=True) == 0.02
    assert not apply_execution_choices(load_stack("nemo"), Plan(expandable_segments=False)).memory.allocator.expandable


def test_pure_bf16_states_take_eight_bytes_a_parameter():
    """Parameters, gradients and two moments in bf16: 2 + 2 + 4 bytes, sharded over 8 ranks; fp32 ones take 16."""
    parameters = simpar.Model(LLAMA[0]).num_parameters()
    pure = {"parameter_dtype": "bf16", "master_weights": False, "moment_dtype": "bf16", "grad_dtype": "bf16"}
    static = {
        name: simulated(zero=3, **plan).memory.static_memory_bytes for name, plan in {"fp32": {}, "pure": pure}.items()
    }
    assert static["fp32"] - static["pure"] == pytest.approx(8 * parameters / 8, rel=0.02)


def test_graphs_hide_launches_where_kernels_are_short():
    """Captured kernels need one launch together: GPT-2 at one short sequence waits for the host without them."""
    short = {"seq_len": 128, "global_batch": 8}
    plain, captured = (simulated("fsdp", "gpt2", short, graphs=graphs) for graphs in ("none", "attention+mlp"))
    assert captured.step_time_s < 0.9 * plain.step_time_s


def test_a_gathering_dispatcher_moves_every_token_to_every_rank():
    """Mixtral on 8 ranks: 4,096 tokens of 4,096 bf16 features from each; dispatch and combine, forward and backward."""
    training = {"seq_len": 4096, "global_batch": 8}
    gathers, sends = (
        simulated("megatron", "mixtral-8x7b", training, zero=1, ep=8, dispatcher=name)
        for name in ("all_gather", "all_to_all")
    )
    layers, collectives, tokens_bytes = 32, 4, 4096 * 4096 * 2
    moved = [result.communication["ep"].bytes_per_rank for result in (gathers, sends)]
    scores_bytes = 2 * 4096 * 2 * 4  # of two experts a token, out and their gradients back, in fp32
    copies_bytes = [collectives * tokens_bytes * copies for copies in (8, 2)]
    assert moved == [layers * copies_bytes[0], layers * (copies_bytes[1] + scores_bytes)]
    assert gathers.step_time_s > sends.step_time_s


def test_eager_norms_pass_over_memory_again():
    """18 passes forward and 42 backward in place of 2 and 3, of two bytes an element: 65 norms of 8,192 x 4,096."""
    eager, fused = (simulated(zero=3, fused_kernels=f"{norm}activation") for norm in ("", "norm+"))
    moved_bytes = 65 * 2 * (18 + 42 - 2 - 3) * 8192 * 4096
    stack, device = load_stack("fsdp"), load_device("h100-sxm-80gb")
    passes_s = stack.launch.kernel_overhead * moved_bytes / KernelModel(device).bandwidth
    latency_s = 65 * 2 * 7 * device.kernels["kernel_latency_us"] * US  # 8 kernels each way in place of 1
    beside_collectives = eager.step_time_s - fused.step_time_s - 2 * (passes_s + latency_s)  # two microbatches a rank
    assert 0 < beside_collectives < 0.12 * 2 * passes_s


def test_eager_norms_keep_their_input_in_fp32():
    """Two norms a layer of 8,192 x 4,096 in fp32, beside what fused ones keep; an eager gate keeps its activation."""
    norm, gate, neither = (
        peak_bytes(zero=3, fused_kernels=parts) for parts in ("activation", "norm", "norm+activation")
    )
    assert norm - neither == pytest.approx(32 * 2 * 4 * 8192 * 4096, rel=0.1)
    assert gate - neither == pytest.approx(32 * 2 * 8192 * 14336, rel=0.1)


def test_compiled_layers_fuse_all_but_the_loss():
    """Norms, activations, rotations and residual sums; the loss stays as the stack runs it."""
    for name in ("fsdp", "megatron"):
        stack = load_stack(name)
        compiled = apply_execution_choices(stack, Plan(fused_kernels="compiled")).fusion
        assert (compiled.norm, compiled.activation, compiled.rope, compiled.residual) == (True,) * 4
        assert compiled.cross_entropy == stack.fusion.cross_entropy
    whole = apply_execution_choices(load_stack("fsdp"), Plan(fused_kernels="loss")).fusion
    assert (whole.norm, whole.activation, whole.cross_entropy) == (False, False, True)


def test_libraries_that_dispatch_ask_no_host():
    """DeepEP needs no counts of tokens on the host, and sends one copy of a token to a node."""
    policies = apply_execution_choices(load_stack("nemo"), Plan(dispatcher="deepep")).experts
    assert (policies.sync_s, policies.exchange_host_s, policies.exchange_sms) == (0, 0, 20)
    result = simulated(
        "megatron", "mixtral-8x7b", {"seq_len": 4096, "global_batch": 8}, zero=1, ep=8, dispatcher="deepep"
    )
    assert result.plan.get("token_dispatch") == "per_node"


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"graphs": "attention+mpl"}, "'mpl' is not captured; did you mean 'mlp'?"),
        ({"fused_kernels": "norms"}, "'norms' is not fused; did you mean 'norm'?"),
        ({"attention_kernel": "flash4"}, "attention_kernel"),
        ({"loss_chunks": 0}, "loss_chunks"),
        ({"dispatcher": "deepep", "token_dispatch": "per_rank", "ep": 8}, "allowed: per_node, or no dispatcher"),
    ],
)
def test_refusals_name_what_is_allowed(plan, words):
    """In one line."""
    with pytest.raises(UserError, match="(?s)" + words.replace("?", r"\?")) as error:
        simulated("megatron", "mixtral-8x7b", {"seq_len": 4096, "global_batch": 8}, **plan)
    assert "\n" not in str(error.value).strip()


def test_a_run_and_other_exports_refuse_what_they_do_not_do():
    """Simpar's runtime executes steps in its own way; Megatron has dispatchers and attention, and none of the rest."""
    from simpar.runtime.strategy import choose

    for name, value in {"attention_kernel": "eager", "loss_chunks": 2, "dispatcher": "deepep"}.items():
        plan = Plan(dp=8, zero=3, **{name: value})
        with pytest.raises(UserError, match=f"plan.{name} = {value}: the runtime"):
            choose(plan, None, simpar.Model("gpt2"))
        lost = {target: expressed(plan, target) for target in ("torchtitan", "megatron")}
        assert lost["torchtitan"] == [f"execution.{name}"]
        assert lost["megatron"] == ([f"execution.{name}"] if name == "loss_chunks" else [])


def expressed(plan, target):
    """The fields of a plan that a target loses."""
    training = simpar.Training(seq_len=1024, global_batch=8)
    return [loss.field for loss in losses(plan, simpar.Model("llama-3-8b"), training, target)]


def test_megatron_writes_and_reads_dispatchers_and_attention():
    """``--moe-token-dispatcher-type`` and ``--attention-backend`` of its own parser."""
    plan = Plan(dp=8, ep=8, zero=1, dispatcher="all_gather", attention_kernel="eager")
    training = simpar.Training(seq_len=4096, global_batch=8)
    files = export(plan, simpar.Model("mixtral-8x7b"), training, "megatron").files
    text = next(text for name, text in files.items() if name.endswith(".sh"))
    assert "--moe-token-dispatcher-type allgather" in text
    assert "--attention-backend unfused" in text
    again = read(text, "train.sh", "megatron").plan
    assert (again.get("dispatcher"), again.get("attention_kernel")) == ("all_gather", "eager")


@pytest.mark.parametrize("fused", [None, "norm+activation+rope"])
def test_megatron_fuses_the_loss_where_it_is_told_to(fused):
    """``--cross-entropy-loss-fusion`` is off by default there; without it 4 bytes of every logit are kept."""
    plan, training = Plan(dp=8, zero=1, fused_kernels=fused), simpar.Training(seq_len=4096, global_batch=8)
    files = export(plan, simpar.Model("llama-3-8b"), training, "megatron").files
    text = next(text for name, text in files.items() if name.endswith(".sh"))
    assert ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te" in " ".join(text.split())) == (fused is None)
    native = read(text.replace("fusion-impl te", "fusion-impl native"), "train.sh", "megatron")
    assert native.plan.get("fused_kernels") == "norm+activation+rope"
    assert any("keeps its softmax in fp32" in note for note in native.notes) == (fused is None)
    assert read(text, "train.sh", "megatron").plan.get("fused_kernels") == fused
    policies = apply_execution_choices(load_stack("megatron"), plan)
    assert policies.memory.loss_bytes(100) == ((200, 200) if fused is None else (400, 600))
    assert policies.fusion.cross_entropy is (fused is None)
    assert expressed(Plan(dp=8, zero=1, fused_kernels="none"), "megatron") == ["fused_kernels"]


@pytest.mark.parametrize("fused", [None, True, False])
def test_megatron_fuses_the_permutation_where_it_is_told_to(fused):
    """``--moe-permute-fusion`` is off by default there, and stands in what is written unless a plan says otherwise."""
    plan = Plan(dp=8, ep=8, zero=1, fused_permutation=fused)
    files = export(plan, simpar.Model("mixtral-8x7b"), simpar.Training(seq_len=4096, global_batch=8), "megatron").files
    text = next(text for name, text in files.items() if name.endswith(".sh"))
    assert ("--moe-permute-fusion" in text) == (fused is not False)
    again = read(text, "train.sh", "megatron")
    assert again.plan.get("fused_permutation") is (False if fused is False else None)
    assert "--moe-permute-fusion" not in again.ignored


def test_a_gathering_dispatcher_overlaps_as_others_do():
    """With ``ep_overlap`` gathers and scatters run beside compute, and are waited for less."""
    training, plan = {"seq_len": 4096, "global_batch": 8}, {"zero": 1, "ep": 8, "dispatcher": "all_gather"}
    beside, behind = (
        simulated("megatron", "mixtral-8x7b", training, **plan, ep_overlap=overlap).communication["ep"].exposed_s
        for overlap in (True, False)
    )
    assert beside < 0.8 * behind


def test_sinks_of_attention_need_the_fused_kernel():
    """Megatron has learned sinks in fused attention alone: another kernel is a loss, not dropped."""
    plan, training = (Plan(dp=8, zero=1, attention_kernel="flash3"), simpar.Training(seq_len=4096, global_batch=8))
    lost = losses(plan, simpar.Model("gpt-oss-20b"), training, "megatron")
    assert "attention_kernel" in [loss.field for loss in lost]


def test_gradients_that_are_summed_apart_take_two_more_kernels():
    """Of each value of a product's weights, 16 bits and the sum's 32 are read and 32 written; products write 16."""
    told = {"training": {"seq_len": 4096, "global_batch": 32}, "stack": "megatron", "tp": 8}
    fused, apart, asked = (simulated(**told, gradient_accumulation_fusion=on) for on in (None, False, True))
    assert asked.step_time_s == fused.step_time_s
    graph = simpar.Model(LLAMA[0])
    inner = sum(float(graph.blocks[name].matmul_parameters(graph.dims)) for name in graph.layers)
    moved = (inner + graph.dims["vocab"] * graph.dims["hidden"]) / 8 * 32 * (2 + 4 + 4)
    least_s = moved / 3352e9  # at the bandwidth of the datasheet
    written_s = least_s * (4 + 4 - 2) / (2 + 4 + 4)  # by products, which read and write the sum no more
    kernels_s = 32 * (32 * 6 + 3) * 2 * 6 * US  # two for each array of weights and microbatch
    assert 0.8 * (least_s - written_s) < apart.step_time_s - fused.step_time_s < least_s / 0.85 + kernels_s
