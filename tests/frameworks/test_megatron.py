"""Megatron-LM arguments: out, back in, and as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks import read, unsupported
from simpar.frameworks.megatron import layout
from simpar.frameworks.megatron_read import layers_of
from simpar.frameworks.nearest import ExportJob, find_nearest
from simpar.frameworks.subject import settle, subject
from simpar.plan.plan import Plan

from .conftest import MIXTURES, PLANS, TRAINING, checked, comes_back, exported


def command(**values):
    """The command of a plan."""
    return exported("megatron", checked(**values))["command.sh"]


def lines(text):
    """Arguments of a command, one a line."""
    return [line.strip() for line in text.splitlines()]


OFFLOADED = [label for label in PLANS if any(key.startswith("offload") for key in PLANS[label])]
TUNED = [label for label in PLANS if "lora_rank" in PLANS[label]]


@pytest.mark.parametrize("label", OFFLOADED)
def test_what_waits_on_the_host_is_refused(label):
    """By name, because a run without it would not fit."""
    with pytest.raises(UserError, match=r"megatron cannot express offload\.offload_"):
        command(**PLANS[label])


@pytest.mark.parametrize("label", TUNED)
def test_adapters_are_refused(label):
    """By name: Megatron-LM trains none."""
    with pytest.raises(UserError, match=r"megatron cannot express tuning\.lora_rank"):
        command(**PLANS[label])


@pytest.mark.parametrize(
    "label", [label for label in PLANS if "schedule" not in PLANS[label] and label not in (*OFFLOADED, *TUNED)]
)
def test_a_plan_comes_back(label):
    """Export and import give the same plan, in everything that arguments say; the world size is not in them."""
    assert comes_back("megatron", checked(**PLANS[label]), "command.sh")


def test_arguments_of_a_three_dimensional_layout():
    """The arguments that Megatron users expect."""
    text = command(tp=2, pp=2, dp=2, zero=1, recompute="full")
    expected = {
        "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", "--sequence-parallel",
        "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather",
        "--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1", "--bf16",
        "--micro-batch-size 1", "--global-batch-size 64", "--seq-length 1024", "--num-layers 32", "--swiglu",
        "--num-query-groups 8", "export CUDA_DEVICE_MAX_CONNECTIONS=1",
    }  # fmt: skip
    assert expected <= set(lines(text))


@pytest.mark.parametrize("label", MIXTURES)
@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"])
def test_experts_come_back(model, label):
    """Experts, their degrees and their capacity, out and in."""
    plan = checked(model=model, **MIXTURES[label])
    text = exported("megatron", plan)["command.sh"]
    assert f"--expert-model-parallel-size {plan.mesh.ep}" in text
    back = read(text, "command.sh", "megatron").plan
    assert load_model(back.model).dims == load_model(model).dims
    assert (back.mesh.ep, back.mesh.etp) == (plan.mesh.ep, plan.mesh.etp)
    assert back.experts.capacity_factor == plan.experts.capacity_factor


def test_modules_that_are_recomputed_are_words_of_their_own():
    """Megatron-LM takes them as a list; one quoted word would be a module that it does not know."""
    assert "--recompute-modules core_attn layernorm" in lines(command(**PLANS["modules"]))


@pytest.mark.parametrize(
    ("modules", "policy", "notes"),
    [
        ("", "selective", 0),
        ("--recompute-modules core_attn", "selective", 0),
        ("--recompute-modules layernorm core_attn", "modules:layernorm+core_attn", 0),
        ("--recompute-modules layernorm gdn_norm_out", "modules:layernorm", 1),
        ("--recompute-modules gdn_norm_out", "none", 1),
        ("--moe-layer-recompute", "modules:core_attn+moe", 1),
        ("--moe-layer-recompute --recompute-modules layernorm moe", "modules:layernorm+moe", 0),
    ],
)
def test_modules_are_read_as_they_are_named(modules, policy, notes):
    """Attention beside others too; one that is not modelled is left out with a note."""
    found = read(f"--micro-batch-size 1 --recompute-granularity selective {modules}", "args.txt", "megatron")
    assert found.plan.memory.recompute == policy
    assert sum("recompute-modules" in note for note in found.notes) == notes


@pytest.mark.parametrize(
    ("old", "policy", "used"),
    [
        ("--activations-checkpoint-method uniform", "full", ["--activations-checkpoint-method"]),
        ("--activations-checkpoint-method uniform --activations-checkpoint-num-layers 2", "segments:2",
         ["--activations-checkpoint-method", "--activations-checkpoint-num-layers"]),
        ("--distribute-checkpointed-activations", "none", []),
    ],
)  # fmt: skip
def test_recomputation_by_its_names_of_2021(old, policy, used):
    """Megatron-LM recomputed whole layers, or none, and the account has the names of the text."""
    sizes = "--num-layers 4 --pipeline-model-parallel-size 2 --micro-batch-size 1"
    found = read(f"{sizes} {old}", "args.txt", "megatron")
    assert found.plan.memory.recompute == policy
    assert [word for word in found.words.used if "activations" in word] == used
    assert "--recompute-method" not in {*found.words.used, *found.words.unread}


def test_fsdp_does_not_limit_connections():
    """Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS = 1."""
    text = command(tp=2, dp=4, zero=3)
    assert "--data-parallel-sharding-strategy optim_grads_params" in text
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in text


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12))
def test_layouts_come_back(layers):
    """The layout string says every stage's layers, runs of equal stages folded."""
    assert layers_of(layout(tuple(layers))) == tuple(layers)


@pytest.mark.parametrize(
    ("text", "stages"), [("Et*3|(tt|)*2,t|L", (3, 2, 2, 1, 0)), ("E|t*2|tL", (0, 2, 1)), ("E,t,t|t*4,L", (2, 4))]
)
def test_layouts_as_people_write_them(text, stages):
    """Commas are decoration, repetition has two forms."""
    assert layers_of(text) == stages


def test_layers_that_predict_count_as_layers_of_their_stage():
    """As an export writes them at the end of the last stage."""
    assert layers_of("E,t*8|(t*8|)*6,t*5,m,L") == (8,) * 7 + (6,)


@pytest.mark.parametrize("text", ["t|t", "E|t", "Et|x|L", "Et|nL", "(Et|)*9999" * 200, ""])
def test_malformed_layouts_are_refused(text):
    """A layout begins with the embedding and ends with the loss; of other letters it has t and m."""
    with pytest.raises(UserError, match="layout"):
        layers_of(text)


def test_a_script_of_a_user_is_read():
    """Variables, continued lines, comments and = are understood; the rest is listed."""
    script = """
    # launch
    TP=8
    DISTRIBUTED_ARGS="--nproc_per_node 8"
    torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
        --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size=4 \\
        --num-layers 80 --num-layers-per-virtual-pipeline-stage 5 --sequence-parallel \\
        --hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8 \\
        --ffn-hidden-size 28672 --vocab-size 128256 \\
        --micro-batch-size 2 --global-batch-size 1024 --seq-length 8192 --bf16 \\
        --recompute-activations --use-distributed-optimizer --save /checkpoints
    """
    found = read(script, "train.sh", "megatron")
    plan = found.plan
    assert (plan.mesh.tp, plan.mesh.pp, plan.pipeline.vpp, plan.micro_batch) == (8, 4, 4, 2)
    assert plan.model == "llama-3-70b"
    assert plan.training == {"seq_len": 8192, "global_batch": 1024}
    assert plan.memory.recompute == "selective"
    assert plan.data_parallel.zero == 1
    assert plan.data_parallel.overlap_grad_reduce is False
    assert "--save" in found.ignored


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--tensor-model-parallel-size many", "--tensor-model-parallel-size = many"),
        ("--tensor-model-parallel-size $TP", "a value that the file does not say"),
        ("--tensor-model-parallel-size", "has no value"),
        ("--micro-batch-size 1 --optimizer soap", "--optimizer = soap"),
        ("--micro-batch-size 1 --data-parallel-sharding-strategy x --use-megatron-fsdp", "sharding-strategy = x"),
        ("--micro-batch-size 1 --exp-avg-dtype int8", "--exp-avg-dtype = int8: allowed: fp32, bf16, fp16, fp8"),
        ("--micro-batch-size 1 --optimizer-cpu-offload --optimizer-offload-fraction 2", "= 2: allowed: from 0 to 1"),
        ("nothing of the sort", "no Megatron-LM arguments"),
        ("--micro-batch-size '1", "not shell text"),
        ("--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 6",
         "--recompute-num-layers = 6"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line(arguments, words):
    """File, argument, value and what is allowed."""
    with pytest.raises(UserError) as error:
        read(arguments, "train.sh", "megatron")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        ("llama-3-8b", {"pp": 4, "dp": 2, "schedule": "zb-h1"}, "schedule = zb-h1"),
        ("gemma-2-2b", {"dp": 8}, "SwiGLU"),
        ("falcon-7b", {"dp": 8}, "parallel residual"),
        ("olmo-2-7b", {"dp": 8}, "head by head"),
        ("bloom-176b", {"dp": 8}, "positions"),
        ("llama-3-8b", {"tp": 2, "dp": 4, "rank_order": "dp-tp-cp-pp"}, "rank_order"),
        ("llama-3-8b", {"dp": 8, "first_bucket_bytes": "1 MiB"}, "first_bucket_bytes"),
        ("llama-3-8b", {"dp": 8, "kind": "single_process"}, "single_process"),
        ("deepseek-v3", {"dp": 8, "ep": 8}, None),
        ("kimi-k2", {"dp": 8, "ep": 8}, "beta_fast = 1: 32 is built in"),
        ("gpt-oss-20b", {"dp": 8, "ep": 8}, None),
        ("gpt-oss-20b", {"dp": 4, "cp": 2, "cp_method": "ulysses", "cp_balance": "zigzag"}, None),
        ("gpt-oss-20b", {"dp": 4, "cp": 2, "cp_method": "ring", "cp_balance": "zigzag"}, "sinks of attention"),
        ("gpt-oss-20b", {"tp": 2, "dp": 4}, "etp = 2"),
        ("gpt-oss-20b", {"tp": 2, "dp": 4, "ep": 8, "etp": 1}, None),
        ("gemma-3-1b", {"dp": 8}, "rope_local_base_freq"),
        ("mpt-7b", {"dp": 8}, "norms without biases"),
        ("gpt2", {"dp": 8}, None),
        ("mistral-7b", {"dp": 8}, None),
        ("qwen3-8b", {"dp": 8}, None),
    ],
)
def test_what_megatron_cannot_say_is_named(model, values, words):
    """A reason for every loss, none where it can be said."""
    reasons = unsupported(Plan.model_validate(values), load_model(model), TRAINING, "megatron")
    assert (words is None) == (not reasons)
    assert words is None or any(words in reason for reason in reasons)


EXPERTS = {"dp": 8, "ep": 8, "zero": 1}
REFUSED = {
    "overlap-in-a-pipeline": ({"dp": 4, "ep": 4, "pp": 2, "ep_overlap": True}, "needs virtual stages"),
    "overlap-recomputed": ({**EXPERTS, "ep_overlap": True, "recompute": "full"}, "recomputed whole"),
    "overlap-mixture": ({**EXPERTS, "ep_overlap": True, "recompute": "modules:moe"}, "recomputed whole"),
    "overlap-fp32": ({**EXPERTS, "ep_overlap": True, "precision": "fp32"}, "products of bf16 or fp16"),
    "capacity": ({**EXPERTS, "token_dispatch": "per_node", "capacity_factor": 1.5}, "pads no expert"),
    "delayed-norms": ({"dp": 8, "precision": "fp8", "recompute": "modules:layernorm"}, "delayed scaling"),
    "delayed-experts": ({**EXPERTS, "precision": "fp8", "recompute": "modules:moe_act"}, "delayed scaling"),
    "latent": ({"dp": 8, "recompute": "modules:mla_up_proj"}, "latent attention"),
    "whole-sequences": (
        {"dp": 4, "tp": 2, "sequence_parallel": False, "tensor_parallel": {"overlap": True}}, "overlap = true",
    ),
}  # fmt: skip
"""Plans whose arguments Megatron-Core 0.19.2 refuses."""


@pytest.mark.parametrize("label", REFUSED)
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_what_megatron_core_refuses_is_lost_and_has_a_plan_near_it(label, target):
    """It would end in an assertion before the first step; one field more and it runs."""
    values, words = REFUSED[label]
    graph = load_model("mixtral-8x7b")
    plan = checked(model="mixtral-8x7b", **values)
    reasons = unsupported(plan, graph, TRAINING, target)
    assert len(reasons) == 1
    assert words in reasons[0]
    near = find_nearest(plan, ExportJob(graph, TRAINING, target, 8))
    assert near
    assert all(len(each.changes) == 1 for each in near)


def test_a_habit_of_overlapping_waits_for_sequence_parallelism():
    """NeMo overlaps by itself where it can; a plan that only splits whole sequences loses nothing."""
    plan = checked(dp=4, tp=2, sequence_parallel=False, stack="nemo")
    assert not unsupported(plan, load_model("llama-3-8b"), TRAINING, "nemo-run")
    assert "tp_comm_overlap" not in exported("nemo-run", plan)["simpar_recipe.py"]


@pytest.mark.parametrize("label", ["experts-overlapped", "experts-per-node"])
def test_what_megatron_core_takes_is_not_lost(label):
    """The same without what it refuses."""
    plan = checked(model="mixtral-8x7b", **MIXTURES[label])
    assert not unsupported(plan, load_model("mixtral-8x7b"), TRAINING, "megatron")


def test_what_a_stack_decided_is_no_choice():
    """A plan that says its own stack's habits loses nothing on a target with others."""
    from simpar.layout.deciders import resolve
    from simpar.stacks.stack import load_stack

    plan = resolve(Plan(dp=8, zero=1, stack="deepspeed"), load_stack("deepspeed"))
    settled, chosen = settle(plan, "megatron")
    assert chosen == frozenset()
    assert settled.data_parallel.bucket_bytes == load_stack("megatron").buckets.bucket


def test_parameters_are_gathered_late_where_gradients_are_reduced_late():
    """Said or lost: Megatron-LM has the one with the other only; left open it is as Megatron-LM has it."""
    late = {"dp": 8, "zero": 1, "overlap_grad_reduce": False}
    reasons = unsupported(checked(**late, overlap_param_gather=True), load_model("llama-3-8b"), TRAINING, "megatron")
    assert reasons == ["overlap_param_gather = true: it needs overlap_grad_reduce"]
    assert "--overlap" not in command(**late)
    alone = checked(dp=1, tp=8, zero=1, overlap_grad_reduce=False, overlap_param_gather=True)
    assert not unsupported(alone, load_model("llama-3-8b"), TRAINING, "megatron")


def arguments(model, **values):
    """The arguments of a model's command, by flag."""
    plan = checked(model=model, **{"dp": 8, **values})
    lines = [line.strip(" \\") for line in exported("megatron", plan)["command.sh"].splitlines()]
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith("--")}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3-8b", {"--rotary-base": "500000", "--norm-epsilon": "1e-05", "--use-rope-scaling": None}),
        ("llama-3.1-8b", {"--rotary-base": "500000", "--use-rope-scaling": "", "--rope-scaling-factor": "8.0"}),
        ("llama-3.2-1b", {"--rope-scaling-factor": "32.0"}),
        ("qwen3-8b", {"--rotary-base": "1000000", "--norm-epsilon": "1e-06", "--no-bias-gelu-fusion": None}),
        ("gpt3-6.7b", {"--rotary-base": None, "--no-bias-gelu-fusion": None, "--hidden-dropout": "0.0"}),
        ("megatron-7.5b", {"--hidden-dropout": "0.1", "--attention-dropout": "0.1"}),
        ("mixtral-8x7b", {"--rotary-base": "1000000", "--moe-router-pre-softmax": None}),
        ("qwen3-30b-a3b", {"--moe-router-pre-softmax": None, "--moe-router-score-function": None}),
        ("qwen1.5-moe-a2.7b", {"--moe-router-pre-softmax": "", "--moe-shared-expert-gate": "",
                               "--moe-shared-expert-intermediate-size": "5632"}),
        ("glm-4.5-air", {"--rotary-percent": "0.5", "--moe-router-score-function": "sigmoid",
                         "--moe-router-enable-expert-bias": "", "--mtp-num-layers": "1", "--num-layers": "46"}),
        ("deepseek-v3", {
            "--multi-latent-attention": "", "--q-lora-rank": "1536", "--kv-lora-rank": "512", "--qk-head-dim": "128",
            "--qk-pos-emb-head-dim": "64", "--v-head-dim": "128", "--kv-channels": None, "--rope-type": "yarn",
            "--rotary-scaling-factor": "40.0", "--mscale": "1.0", "--mscale-all-dim": "1.0",
            "--moe-router-score-function": "sigmoid", "--moe-router-topk-scaling-factor": "2.5",
            "--moe-router-num-groups": "8", "--moe-router-group-topk": "4", "--moe-router-enable-expert-bias": "",
            "--moe-shared-expert-intermediate-size": "2048", "--mtp-num-layers": "1", "--num-layers": "61",
            "--rotary-base": "10000", "--rotary-interleaved": None, "--position-embedding-type": "rope",
        }),
        ("gpt-oss-20b", {
            "--position-embedding-type": "yarn", "--rotary-base": "150000", "--rotary-scaling-factor": "32.0",
            "--yarn-original-max-position-embeddings": "4096", "--yarn-beta-fast": "32.0", "--yarn-beta-slow": "1.0",
            "--no-yarn-correction-range-round-to-int": "", "--mscale": None, "--quick-geglu": "", "--swiglu": None,
            "--glu-linear-offset": "1.0", "--activation-func-clamp-value": "7.0", "--softmax-type": "learnable",
            "--window-size": "127,0", "--window-attn-skip-freq": "2", "--disable-bias-linear": None,
            "--add-qkv-bias": None, "--attention-backend": "fused", "--moe-router-pre-softmax": None,
            "--kv-channels": "64", "--num-experts": "32", "--moe-router-topk": "4",
        }),
    ],
)  # fmt: skip
def test_the_architecture_travels_whole(model, expected):
    """Bases, scalings, epsilons, latent attention and routers are said; what the model has not is not."""
    found = arguments(model)
    assert {flag: found.get(flag) for flag in expected} == expected
    pattern = found.get("--moe-layer-freq")
    if model == "deepseek-v3":
        assert pattern == f"'([{','.join(['0'] * 3 + ['1'] * 58)}])'"


def test_layers_that_predict_have_a_letter_in_the_layout():
    """With a pipeline the last stage ends in them."""
    found = arguments("deepseek-v3", pp=2, dp=4)
    assert found["--pipeline-model-parallel-layout"] == "'E,t*31|t*30,m,L'"


def test_a_model_is_told_by_its_rotary_base_where_sizes_are_shared():
    """Llama 3 and 3.1 have the same sizes."""
    for model in ("llama-3-8b", "llama-3.1-8b"):
        text = exported("megatron", checked(model=model, dp=8))["command.sh"]
        assert read(text, "command.sh", "megatron").plan.model == model


def test_experts_are_split_as_everything_else_where_nothing_is_said():
    """Megatron-LM takes the tensor-parallel size for experts; a plan that leaves it open keeps them whole."""
    flags = "--expert-model-parallel-size 4 --num-experts 8"
    sizes = {extra: read(f"--tensor-model-parallel-size {tp} {flags} {extra}", "args.txt", "megatron").plan.mesh.etp
             for tp, extra in ((2, ""), (1, " "), (2, "--expert-tensor-parallel-size 1"))}  # fmt: skip
    assert list(sizes.values()) == [2, None, 1]


FULL = "--micro-batch-size 1 --recompute-granularity full --recompute-num-layers"
ON_TWO = "--num-layers 80 --pipeline-model-parallel-size 2"


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        (f"1 --recompute-method block {ON_TWO} --num-layers-per-virtual-pipeline-stage 5", "every:5"),
        (f"1 --recompute-method block {ON_TWO} --num-virtual-stages-per-pipeline-rank 8", "every:5"),
        (f"50 --recompute-method block {ON_TWO} --decoder-first-pipeline-num-layers 50", "full"),
        ("11 --recompute-method block --num-layers 32", "every:3"),
        ("6 --recompute-method block --num-layers 10", "layers:full*6,none*4"),
        (f"20 --recompute-method block {ON_TWO} --mtp-num-layers 1", "layers:full*20,none*20,full*20,none*21"),
        (f"40 --recompute-method block {ON_TWO} --mtp-num-layers 1", "layers:full*80,none*1"),
        ("1 --recompute-method uniform --num-layers 32", "full"),
        ("8 --recompute-method uniform --num-layers 32", "segments:8"),
        (f"50 --recompute-method uniform {ON_TWO}", "segments:40"),
        (f"39 --recompute-method uniform {ON_TWO}", "layers:full:39*39,full*1,full:39*39,full*1"),
        (f"40 --recompute-method uniform {ON_TWO} --mtp-num-layers 1", "layers:full:40*80,full*1"),
        ("8 --recompute-method uniform", "full"),
    ],
)
def test_layers_that_recompute_are_counted_by_virtual_stage(arguments, policy):
    """Block: as many of every virtual stage; uniform: segments of a stage of which the first input is kept."""
    found = read(f"{FULL} {arguments}", "train.sh", "megatron")
    assert found.plan.memory.recompute == policy
    said = any("each is recomputed alone" in note for note in found.notes)
    assert said is (arguments == "8 --recompute-method uniform")


@pytest.mark.parametrize("values", [{"dp": 8}, {"pp": 2, "dp": 4}, {"pp": 4, "dp": 2, "vpp": 4}])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16, 32])
def test_every_cth_layer_comes_back_or_is_a_loss(values, count):
    """As many layers of every stage as were exported."""
    plan, graph = checked(**values, recompute=f"every:{count}"), load_model("llama-3-8b")
    if not unsupported(plan, graph, TRAINING, "megatron"):
        text = exported("megatron", plan)["command.sh"]
        again = checked(**values, recompute=read(text, "command.sh", "megatron").plan.memory.recompute)
        numbers = [subject(each, graph, TRAINING, "megatron").recomputed_per_stage for each in (plan, again)]
        assert numbers[0] == numbers[1] is not None


@pytest.mark.parametrize(("values", "count"), [({"dp": 8}, 8), ({"dp": 8}, 32), ({"pp": 4, "dp": 2, "vpp": 2}, 2)])
def test_segments_come_back(values, count):
    """As Megatron's uniform method, which begins them with every virtual stage: plans keep them within stages."""
    graph, plan = load_model("llama-3-8b"), checked(**values, recompute=f"segments:{count}")
    for target, file in (("megatron", "command.sh"), ("megatron-bridge", "llama_3_8b.py")):
        assert not unsupported(plan, graph, TRAINING, target)
        text = next(text for name, text in exported(target, plan).items() if name.endswith(file[-3:]))
        assert read(text, file, target).plan.memory.recompute == f"segments:{count}"
    assert any("segments" in each for each in unsupported(plan, graph, TRAINING, "deepspeed"))


def test_every_cth_layer_is_counted_without_those_that_predict():
    """Megatron-Core recomputes them with all layers or not at all."""
    graph = load_model("glm-4.5-air")
    said = {}
    for count in (2, 3, 4):
        plan = checked("glm-4.5-air", dp=8, ep=8, recompute=f"every:{count}")
        said[count] = [each for each in unsupported(plan, graph, TRAINING, "megatron") if "recompute" in each]
    assert [len(reasons) for reasons in said.values()] == [1, 0, 0]
    assert "predict further tokens" in said[2][0]
    for count in (3, 4):
        plan = checked("glm-4.5-air", dp=8, ep=8, recompute=f"every:{count}")
        back = read(exported("megatron", plan)["command.sh"], "command.sh", "megatron").plan
        assert back.memory.recompute == f"every:{count}"


def test_fsdp_without_a_strategy_shards_all():
    """The argument's default since April 2026 (3499efe); a note says what it was before."""
    found = read("--micro-batch-size 1 --use-distributed-optimizer --use-megatron-fsdp", "train.sh", "megatron")
    assert found.plan.data_parallel.zero == 3
    assert any("shards all" in note for note in found.notes)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ("--optimizer-cpu-offload", {"offload_optimizer": "cpu", "offload_ratio": 1.0}),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
            {"offload_optimizer": "cpu", "offload_ratio": 0.5},
        ),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0", {"offload_optimizer": "none"}),
        ("--bf16 --main-grads-dtype bf16", {"grad_dtype": "bf16"}),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"moment_dtype": "bf16"}),
        ("--exp-avg-dtype fp8 --exp-avg-sq-dtype fp16", {"moment_dtype": "fp16"}),
        ("--exp-avg-dtype bf16", {"moment_dtype": None}),
        ("--bf16", {"master_dtype": "remainder"}),
        ("--fp16", {"master_dtype": None}),
        ("--bf16 --main-params-dtype fp16", {"master_dtype": "fp16"}),
        ("--bf16 --fp8-format hybrid", {"master_dtype": "remainder"}),
        ("--bf16 --fp8-format hybrid --fp8-param-gather", {"master_dtype": None}),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", {"master_dtype": None}),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --main-params-dtype fp16", {"master_dtype": "fp16"}),
        ("--bf16 --optimizer-cpu-offload", {"master_dtype": None}),
        ("--bf16 --use-megatron-fsdp", {"master_dtype": None}),
        ("--bf16 --optimizer muon", {"master_dtype": None}),
        ("--moe-token-dispatcher-type allgather", {"dispatcher": "all_gather"}),
        ("--attention-backend unfused", {"attention_kernel": "eager"}),
    ],
)
def test_parts_of_a_plan_are_read(arguments, values):
    """Offloaded states, dtypes of gradients and of states; a note where a plan has no place for all of it."""
    text = f"--micro-batch-size 1 --use-distributed-optimizer --use-precision-aware-optimizer {arguments}"
    found = read(text, "train.sh", "megatron")
    said = found.plan.flat_values()
    assert {key: said.get(key) for key in values} == values
    assert not found.ignored
    differ = values in ({"moment_dtype": None}, {"moment_dtype": "fp16"})
    assert any("the wider" in note for note in found.notes) is differ
