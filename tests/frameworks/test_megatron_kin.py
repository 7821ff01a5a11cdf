"""Front ends that look like Megatron-LM: each by its own flags and defaults, or refused by name."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, read
from simpar.preflight.given import given_words
from simpar.preflight.launcher import launch_of

MEGATRON = "pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16"
SWIFT = "megatron sft --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 4 --sequence_parallel true"
PRIMUS = """
work_group: a
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:llama3.1_8B}.yaml
    overrides: {seq_length: 8192, micro_batch_size: 4, global_batch_size: 128, tensor_model_parallel_size: 1,
                recompute_granularity: full, recompute_method: block, recompute_num_layers: 16,
                use_turbo_attention: true, overlap_grad_reduce: true, profile: false}
"""


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (f"torchrun {MEGATRON}", "megatron"),
        # epfLLM/Megatron-LLM 806a833, examples/finetune.sh: it was Hugging Face's Trainer, which asks for a model
        ("torchrun finetune.py --tensor_model_parallel_size 8 --model_name llama2 --learning_rate 1", "megatron"),
        (f"deepspeed {MEGATRON} --zero-stage 1 --deepspeed", "megatron-deepspeed"),
        (f"deepspeed {MEGATRON} --deepspeed-activation-checkpointing --deepspeed_config a.json", "megatron-deepspeed"),
        (f"torchrun {MEGATRON} --use-fused-rmsnorm --use-flash-attn", "mindspeed"),
        (f"msrun --worker_num 8 {MEGATRON} --ai-framework mindspore --lora-r 16", "mindspeed"),
        (f"torchrun {MEGATRON} --patch-tokenizer-type LLama3Tokenizer", "pai-megatron-patch"),
        (f"NPROC_PER_NODE=4 {SWIFT}", "megatron-swift"),
        ("python swift/cli/_megatron/sft.py --model a/b", "megatron-swift"),
        ("NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B --deepspeed zero3", "swift"),
        ("primus-cli direct -- train pretrain --config a.yaml", "primus"),
        ("EXP=a.yaml bash ./examples/run_pretrain.sh", "primus"),
    ],
)
def test_a_front_end_is_not_taken_for_its_cousin(command, target):
    """By its own flags or its program; special ones are asked first."""
    assert launch_of(command, "a command").target == target


def test_megatron_deepspeed(tmp_path):
    """ZeRO by DeepSpeed's config, whose stage wins; recomputation of whole layers; its own stack."""
    config = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "train_micro_batch_size_per_gpu": 1}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    text = f"deepspeed {MEGATRON} --zero-stage 1 --deepspeed --deepspeed_config ds.json --checkpoint-activations"
    result = read(text, str(tmp_path / "train.sh"), "megatron-deepspeed")
    assert (result.plan.stack, result.plan.zero, result.plan.recompute) == ("megatron-deepspeed", 2, "full")
    assert result.plan.overlap_grad_reduce is True
    assert any("stage 2, not 1 of --zero-stage" in note for note in result.notes)
    alone = read(text, "train.sh", "megatron-deepspeed")
    assert alone.plan.zero == 1
    assert any("ds.json is not here" in note for note in alone.notes)
    unnamed = read(text.replace("ds.json", "ds.${SLURM_JOBID}.json"), "train.sh", "megatron-deepspeed")
    assert (unnamed.plan.zero, unnamed.plan.recompute) == (1, "full")
    assert read(f"deepspeed {MEGATRON} --zero-stage 3", "train.sh", "megatron-deepspeed").plan.zero == 0  # not started


def test_ulysses_of_megatron_deepspeed():
    """Sequences split by heads, grouped queries, and one expert, which is a dense MLP."""
    words = "--deepspeed --ds-sequence-parallel-size 4 --num-key-value-heads 4 --num-experts 1 --use-flash-attn-v2"
    result = read(f"deepspeed {MEGATRON} {words}", "train.sh", "megatron-deepspeed")
    assert (result.plan.cp, result.plan.cp_method, result.plan.attention_kernel) == (4, "ulysses", "flash2")
    assert result.sizes["kv_heads"] == 4
    assert "--ds-sequence-parallel-size" in result.words.used


def test_experts_of_megatron_deepspeed_are_in_every_second_layer():
    """No config is built as if every layer had them."""
    sizes = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --num-experts 128 --topk 1"
    assert read(f"deepspeed {MEGATRON} {sizes} --deepspeed", "train.sh", "megatron-deepspeed").config is None
    dense = read(f"deepspeed {MEGATRON} {sizes.replace('128', '1').replace('24', '23')} --deepspeed", "train.sh",
                 "megatron-deepspeed")  # fmt: skip
    assert dense.config["model_type"] == "gpt2"


def test_mindspeed():
    """Unfused attention unless it is asked for; context parallelism by its own names."""
    result = read(f"torchrun {MEGATRON} --context-parallel-size 4 --context-parallel-algo ulysses_cp_algo "
                  "--reuse-fp32-param", "train.sh", "mindspeed")  # fmt: skip
    assert (result.plan.cp_method, result.plan.attention_kernel) == ("ulysses", "eager")
    assert "--reuse-fp32-param" in load_reader("mindspeed").words.sort((), result.words.unread).deciding
    with pytest.raises(UserError, match=r"--context-parallel-algo = x: allowed: megatron_cp_algo"):
        read(f"torchrun {MEGATRON} --context-parallel-algo x", "train.sh", "mindspeed")


def test_megatron_of_swift():
    """Its own defaults: bf16, the distributed optimizer, core attention recomputed, 16 sequences a step."""
    result = read(f"NPROC_PER_NODE=4 {SWIFT} --max_length 32768 --packing true", "train.sh", "megatron-swift")
    plan = result.plan
    assert (plan.model, plan.tp, plan.zero, plan.precision, plan.recompute) == (
        "qwen2.5-7b", 4, 1, "bf16", "selective",
    )  # fmt: skip
    assert (plan.training["seq_len"], plan.training["global_batch"], plan.micro_batch) == (32768, 16, 1)
    assert [each.key for each in result.assumed] == ["documents.mean"]
    assert set(result.words.used) >= {"--model", "--max_length", "--tensor_model_parallel_size"}
    assert "--use-distributed-optimizer" not in result.words.used  # a default is no word of the text
    assert launch_of(f"NPROC_PER_NODE=4 {SWIFT}", "a command").world_size == 4
    assert launch_of(SWIFT, "a command").world_size == 1
    assert launch_of(f"NNODES=$N NPROC_PER_NODE=4 {SWIFT}", "a command").world_size is None


def test_sections_of_a_yaml_of_swift_are_words():
    """They were dropped: a file of another framework was answered with ms-swift's defaults and no word unread."""
    told = read("model: Qwen/Qwen3-8B\ndistributed: {tp_size: 2}\n", "a.yaml", "megatron-swift")
    assert told.words.unread == {"--distributed": '{"tp_size": 2}'}
    with pytest.raises(UserError, match=r"a\.yaml: model is a section: allowed: a name"):
        read("model:\n  _target_: x\ndistributed: {tp_size: 2}\n", "a.yaml", "megatron-swift")


def test_another_head_of_swift_decides():
    """A classifier has no logits of the vocabulary; the next token's loss is what is read."""
    reader = load_reader("megatron-swift")
    for task, deciding in (("seq_cls", {"--task_type"}), ("causal_lm", set())):
        told = read(f"{SWIFT} --task_type {task}", "train.sh", "megatron-swift").words
        assert set(reader.words.sort(told.used, told.unread).deciding) == deciding


def test_adapters_of_swift():
    """A PEFT run is never answered as full training; examples that are not packed have other lengths."""
    adapters = "--tuner_type lora --lora_rank 16 --target_modules linear_qkv --max_length 2048"
    result = read(f"{SWIFT} {adapters}", "train.sh", "megatron-swift")
    assert (result.plan.lora_rank, result.plan.lora_targets) == (16, ("q_proj", "k_proj", "v_proj"))
    scaled = read(f"{SWIFT} {adapters} --lora_alpha 32", "train.sh", "megatron-swift")
    assert load_reader("megatron-swift").words.sort(scaled.words.used, scaled.words.unread).deciding == {}
    assert [each.key for each in result.assumed] == ["seq_len"]
    assert result.assumed[0].others == (1024, 512)
    old = read(f"{SWIFT} --train_type lora", "train.sh", "megatron-swift")
    assert (old.plan.lora_rank, len(old.plan.lora_targets)) == (8, 7)
    with pytest.raises(UserError, match="--tuner_type = lora_llm: allowed: full, lora"):
        read(f"{SWIFT} --tuner_type lora_llm", "train.sh", "megatron-swift")
    deciding = load_reader("megatron-swift").words.sort((), {"--rlhf_type": "dpo"}).deciding
    assert list(deciding) == ["--rlhf_type"]


def test_primus(tmp_path, monkeypatch):
    """Overrides over its defaults, a model of its own names, and kernels of its own that decide."""
    result = read(PRIMUS, "exp.yaml", "primus")
    plan = result.plan
    assert (plan.model, plan.precision, plan.zero, plan.micro_batch) == ("llama-3.1-8b", "bf16", 1, 4)
    assert plan.recompute == "every:2"
    assert plan.training == {**plan.training, "seq_len": 8192, "global_batch": 128}
    account = load_reader("primus").words.sort(result.words.used, result.words.unread)
    assert list(account.deciding) == ["use_turbo_attention"]
    assert account.unknown == ()
    (tmp_path / "exp.yaml").write_text(PRIMUS)
    monkeypatch.chdir(tmp_path)
    for command in ("EXP=exp.yaml bash run_pretrain.sh", "primus-cli direct -- train pretrain --config exp.yaml"):
        assert given_words([command]).found.plan == plan
    assert given_words(["exp.yaml"]).text.target == "primus"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("framework: megatron", "framework: maxdiffusion", "framework = maxdiffusion: Primus starts"),
        ("profile: false", "num_layers: 4", "num_layers beside model: llama3.1_8B"),
        ("modules:", "others:", "no experiment of Primus"),
        (
            "llama3.1_8B}.yaml\n    overrides: {",
            "deepseek_v2_lite}.yaml\n    overrides: {multi_latent_attention: false, ",
            "multi_latent_attention = false: allowed: true",
        ),
        ("llama3.1_8B}.yaml", "diffusion/flux_535m}.yaml", "model = diffusion/flux_535m: images are not modelled"),
    ],
)
def test_primus_refuses_by_name(old, new, told):
    """Another backend, a model of other sizes, no experiment."""
    with pytest.raises(UserError, match=told):
        read(PRIMUS.replace(old, new), "exp.yaml", "primus")


def test_what_a_yaml_turns_off_of_a_named_model_decides():
    """One table in place of two is another model; so is one without gates, which is refused."""
    off = PRIMUS.replace("profile: false", "untie_embeddings_and_output_weights: false")
    result = read(off, "exp.yaml", "primus")
    account = load_reader("primus").words.sort(result.words.used, result.words.unread)
    assert "untie_embeddings_and_output_weights" in account.deciding
    with pytest.raises(UserError, match="swiglu = false: allowed: true, as llama3"):
        read(PRIMUS.replace("profile: false", "swiglu: false"), "exp.yaml", "primus")


def test_what_a_yaml_turns_off_is_the_switch_that_does():
    """False asks for an unfused kernel there; what has nothing to do beside the rest is without effect."""
    off = PRIMUS.replace("profile: false", "bias_swiglu_fusion: false, sequence_parallel: false")
    result = read(off, "exp.yaml", "primus")
    account = load_reader("primus").words.sort(result.words.used, result.words.unread)
    assert set(account.deciding) == {"use_turbo_attention", "--no-bias-swiglu-fusion"}
    assert account.unknown == ()


@pytest.mark.parametrize("part", ["extends: [base.yaml]", "_target_: verl.workers.config.McoreEngineConfig"])
def test_a_part_of_a_config_is_not_megatrons(part, tmp_path):
    """Files that others are put together from say neither a whole model nor a whole layout."""
    file = tmp_path / "part.yaml"
    file.write_text(f"{part}\ntensor_model_parallel_size: 2\nnum_layers: 32\n")
    with pytest.raises(UserError, match="no config that is known here"):
        given_words([str(file)])


def test_cousins_come_first():
    """The catch-alls are asked last."""
    names = list(READERS)
    assert max(map(names.index, ("megatron-swift", "megatron-deepspeed", "mindspeed"))) < names.index("deepspeed")
    assert names[-2:] == ["megatron", "megatron-log"]  # of which no command is


GLM = (
    "--num-layers 8 --hidden-size 1024 --ffn-hidden-size 2816 --num-attention-heads 8 --group-query-attention "
    "--num-query-groups 2 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --padded-vocab-size 32000 --make-vocab-size-divisible-by 1 --num-experts 16 "
    "--moe-router-topk 2 --moe-ffn-hidden-size 512 --first-k-dense-replace 2 --n-shared-experts 1 --use-fused-rmsnorm"
)


@pytest.mark.parametrize(
    ("flags", "layers", "dense", "stages"),
    [
        ("", 8, 2, None),
        ("--noop-layers 0,7", 6, 1, None),  # one of the dense ones, and the last
        ("--noop-layers 3", 7, 2, (3, 4)),
        ("--noop-layers 5,6 --num-layers-per-virtual-pipeline-stage 2", 6, 2, (2, 2, 1, 1)),
    ],
)
def test_mixtures_and_empty_places_of_mindspeed(flags, layers, dense, stages):
    """Dense layers first, a shared expert as wide as the others; places that pass on are no layers of their stages."""
    command = f"torchrun pretrain_gpt.py {GLM} --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16 {flags}"
    found = read(f"{command} --seq-length 2048", "train.sh", "mindspeed")
    keys = ("num_hidden_layers", "first_k_dense_replace", "n_shared_experts")
    assert ([found.config[key] for key in keys], found.plan.pipeline.layers) == ([layers, dense, 1], stages)
    account = load_reader("mindspeed").words.sort(found.words.used, found.words.unread)
    assert not set(account.deciding) | set(account.unknown)


def mindspeed(flags, pp=2):
    """A launch of a small mixture."""
    command = f"torchrun pretrain_gpt.py {GLM} --pipeline-model-parallel-size {pp} --micro-batch-size 1 --bf16"
    return read(f"{command} --seq-length 2048 {flags}", "train.sh", "mindspeed")


@pytest.mark.parametrize("flags", ["--first-k-dense-replace 0", "--first-k-dense-replace -1 --moe-layer-freq -1"])
def test_mixtures_of_mindspeed_without_dense_layers(flags):
    """None of them is dense; every layer number is a multiple of -1."""
    assert mindspeed(flags).config["first_k_dense_replace"] == 0
    assert mindspeed("--moe-layer-freq -1").config["first_k_dense_replace"] == 2


def test_listed_stages_of_mindspeed():
    """A layer that predicts further tokens is in the last one; recomputation counts the layers of each stage."""
    block = "--recompute-granularity full --recompute-method block --recompute-num-layers 2"
    found = mindspeed(f"--num-layer-list 5,3 {block}")
    assert found.plan.pipeline.layers == (5, 3)
    assert found.plan.memory.recompute == "layers:full*2,none*3,full*2,none*1"
    further = mindspeed("--noop-layers 0 --mtp-num-layers 1")
    assert further.plan.pipeline.layers == (3, 5)
    with pytest.raises(UserError, match="--num-layer-list = 5,x: allowed: layers of every stage"):
        mindspeed("--num-layer-list 5,x")


def test_specs_of_mindspeed():
    """Those of standard layers change nothing; others are named where no shipped model has the sizes."""
    spec = "--spec mindspeed_llm.tasks.models.spec.{} layer_spec"
    assert mindspeed(spec.format("bailing_spec")).config == mindspeed("").config
    found = mindspeed(spec.format("qwen3_next_spec"))
    assert found.config is None
    assert any("no config is built with --spec mindspeed_llm.tasks" in note for note in found.notes)


def test_empty_places_are_places_of_the_pipeline():
    """Not behind its end."""
    command = f"torchrun pretrain_gpt.py {GLM} --pipeline-model-parallel-size 2 --micro-batch-size 1 --noop-layers 8"
    with pytest.raises(UserError, match="--noop-layers = 8: allowed: places below --num-layers"):
        read(f"{command} --seq-length 2048", "train.sh", "mindspeed")


SIZED = f"{MEGATRON} --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048"
ZERO_2 = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, %s}'


def test_a_written_file_may_have_a_name_that_only_running_tells():
    """It is the same where it is written and where it is named."""
    more = '"bf16": {"enabled": true}'
    script = (
        f"C=ds.$JOB.json\ncat <<EOF > $C\n{ZERO_2 % more}\nEOF\ndeepspeed {SIZED} --deepspeed --deepspeed_config $C\n"
    )
    assert read(script, "train.sh", "megatron-deepspeed").plan.zero == 2


def test_deepspeeds_config_that_a_script_writes():
    """It is read in its place, and its words are those of the launch; one that is not here decides."""
    more = '"bf16": {"enabled": true}, "communication_data_type": "fp32"'
    script = f"C=ds.json\ncat <<EOF > $C\n{ZERO_2 % more}\nEOF\ndeepspeed {SIZED} --deepspeed --deepspeed_config"
    reader, result = load_reader("megatron-deepspeed"), read(f"{script} $C\n", "train.sh", "megatron-deepspeed")
    account = reader.words.sort(result.words.used, result.words.unread)
    assert (result.plan.zero, list(account.deciding)) == (2, ["communication_data_type"])
    gone = read(f"{script} gone.json\n", "train.sh", "megatron-deepspeed")
    account = reader.words.sort(gone.words.used, gone.words.unread)
    assert (gone.plan.zero, list(account.deciding)) == (1, ["--deepspeed-config"])


@pytest.mark.parametrize(
    "flag",
    [
        "--partition-activations --checkpoint-activations",
        "--pp-partition-method uniform",
        "--fp8-hybrid",
        "--moe-min-capacity 4",
    ],
)
def test_arguments_of_megatron_deepspeed_decide(flag):
    """What no plan says is named."""
    result = read(f"deepspeed {SIZED} --deepspeed {flag}", "train.sh", "megatron-deepspeed")
    account = load_reader("megatron-deepspeed").words.sort(result.words.used, result.words.unread)
    assert (list(account.deciding), account.unknown) == ([flag.split()[0]], ())


@pytest.mark.parametrize(
    ("flags", "layers", "deciding"),
    [
        ("--pp-partition-method type:transformer", None, []),  # 16 and 16
        ("--pp-partition-method 'type:transformer|embedding'", None, []),  # and both tables
        ("--num-layers 33 --pp-partition-method 'type:transformer|embedding' --untie-embeddings-and-output-weights",
         (16, 17), []),
        ("--pp-partition-method parameters", None, ["--pp-partition-method"]),
        ("--partition-activations", None, []),  # nothing is recomputed
        ("--tensor-model-parallel-size 1 --checkpoint-activations --partition-activations", None, []),
    ],
)  # fmt: skip
def test_stages_and_parts_of_megatron_deepspeed(flags, layers, deciding):
    """What is counted is spread evenly; a part of what is kept decides where there are ranks to split it over."""
    result = read(f"deepspeed {SIZED} --deepspeed {flags}", "train.sh", "megatron-deepspeed")
    account = load_reader("megatron-deepspeed").words.sort(result.words.used, result.words.unread)
    assert (result.plan.pipeline.layers, list(account.deciding)) == (layers, deciding)


@pytest.mark.parametrize(
    ("flags", "fused"),
    [
        ("", "norm+activation"),
        ("--normalization RMSNorm --swiglu", "none"),
        ("--normalization RMSNorm --swiglu --use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb",
         "norm+activation+rope"),
    ],
)  # fmt: skip
def test_what_mindspeed_fuses(flags, fused):
    """Each by a switch, and never the loss."""
    assert read(f"{SIZED} {flags}", "train.sh", "mindspeed").plan.execution.fused_kernels == fused


def test_adapters_of_mindspeed():
    """The rank and the products that have them; their other numbers have no effect, fusion and 4 bits decide."""
    words = "--lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv dense --lora-fusion --qlora"
    result = read(f"{SIZED} {words}", "train.sh", "mindspeed")
    tuning = result.plan.tuning
    assert (tuning.lora_rank, tuning.lora_targets) == (8, ("q_proj", "k_proj", "v_proj", "o_proj"))
    account = load_reader("mindspeed").words.sort(result.words.used, result.words.unread)
    assert (list(account.deciding), account.unknown) == (["--lora-fusion", "--qlora"], ())
    assert read(f"{SIZED} --lora-target-modules linear_fc2", "train.sh", "mindspeed").plan.tuning.lora_rank == 16
    with pytest.raises(UserError, match="--lora-target-modules = router: allowed: linear_qkv"):
        read(f"{SIZED} --lora-target-modules router", "train.sh", "mindspeed")


def test_two_commands_of_one_launch():
    """One goes on from the other's files; a difference that decides is refused."""
    second = f"{SIZED} --micro-batch-size 1 --save b --save-interval 10000 --load a"
    launches = f"{SIZED} --micro-batch-size 1 --save a --save-interval 50\n{second}"
    assert read(launches, "train.sh", "megatron").plan.micro_batch == 1
    with pytest.raises(UserError, match="differ in --seq-length"):
        read(launches.replace("--seq-length 2048", "--seq-length 4096", 1), "train.sh", "megatron")


def test_experts_by_the_name_of_another_fork():
    """MegaBlocks' mixture is not answered as a dense model."""
    with pytest.raises(UserError, match=r"--moe-num-experts = 64: not Megatron-LM's; allowed: --num-experts"):
        read(f"{SIZED} --moe-num-experts 64 --moe-top-k 1", "train.sh", "megatron")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-30B-A3B", "Qwen/Qwen1.5-MoE-A2.7B"])
def test_overlap_of_shared_experts(model):
    """ms-swift's examples have the flag beside all mixtures; without shared experts it changes nothing."""
    text = f"megatron sft --model {model} --max_length 512 --moe_shared_expert_overlap true"
    result = read(text, "x", "megatron-swift")
    assert "--moe_shared_expert_overlap" not in result.words.unread
    assert result.plan.experts.shared_expert_overlap


@pytest.mark.parametrize("flag", ["--load", "--mcore_model"])
def test_a_converted_checkpoint_names_its_model(flag):
    """As ms-swift's documentation names the folder; any other folder names none."""
    result = read(f"megatron sft {flag} out/Qwen2.5-7B-Instruct-mcore --max_length 512", "x", "megatron-swift")
    assert (result.plan.model, "model" in result.asks and bool(result.asks["model"])) == ("qwen2.5-7b", False)
    assert read(f"megatron sft {flag} out/Qwen2.5-7B --max_length 512", "x", "megatron-swift").asks["model"]


def test_arguments_of_a_file_that_is_not_here():
    """It is named: the launches of llm-jp's models since v4 have all arguments in one (params.sh)."""
    text = "source $D/setup.sh\nsource $D/params.sh\nsrun python pretrain_gpt.py ${ALL_PARAMS[@]}\n"
    with pytest.raises(UserError, match=r"may be in a file that is not here: train\.sh:2: \$\{D\}/params\.sh"):
        read(text, "train.sh", "megatron")


@pytest.mark.parametrize(("number", "policy"), [(1, "full"), (4, "segments:4"), (64, "segments:20")])
def test_layers_that_are_recomputed_together(number, policy):
    """Only the input of every N layers is kept: they were read as recomputed one by one, whatever N was."""
    words = f"{PIPELINED} --checkpoint-activations --checkpoint-num-layers {number}"
    found = read(f"{words}\n", "train.sh", "megatron-deepspeed")
    assert found.plan.memory.recompute == policy
    assert {"--checkpoint-activations", "--checkpoint-num-layers"} <= {*found.words.used}


PIPELINED = (
    "deepspeed pretrain_gpt.py --num-layers 40 --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16 --deepspeed"
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--zero-stage 2", "DeepSpeed does not start pipelines with ZeRO stage 2"),
        ("--zero-stage 3", "DeepSpeed does not start pipelines with ZeRO stage 3"),
        ("--zero-stage 1 --no-pipeline-parallel", "Megatron-DeepSpeed does not start with --no-pipeline-parallel"),
        ("--zero-stage 1", ""),
    ],
)
def test_pipelines_that_do_not_start_are_named(words, told):
    """As ``PipelineEngine`` and Megatron-DeepSpeed's arguments assert."""
    notes = read(f"{PIPELINED} {words}\n", "train.sh", "megatron-deepspeed").notes
    named = [note for note in notes if "does not start" in note]
    assert len(named) == bool(told)
    assert all(note.startswith(f"--pipeline-model-parallel-size 2: {told}") for note in named)
