"""slime and OpenRLHF: the update of the policy in their arguments, and what only their scripts say."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.megatron_layers_said import predictions_in
from simpar.preflight.given import given_words
from simpar.preflight.launcher import launch_of

QWEN = (
    "--num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --kv-channels 128 --vocab-size 151936 --qk-layernorm --swiglu"
)
SLIME = (
    f'ray job submit --address=http://a --runtime-env-json=\'{{"env_vars": {{"PYTORCH_CUDA_ALLOC_CONF": '
    f'"expandable_segments:True"}}}}\' -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate '
    f"{QWEN} --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 256 "
    "--tensor-model-parallel-size 2 --sequence-parallel --sglang-mem-fraction-static 0.7 "
    "--hf-checkpoint /models/Qwen3-4B"
)
FILLED = f"{SLIME} --use-dynamic-batch-size --max-tokens-per-gpu 9216"
PPO = "python3 -m openrlhf.cli.train_ppo_ray"
OLD = f"{PPO} --pretrain meta-llama/Meta-Llama-3-8B --actor_num_nodes 2 --actor_num_gpus_per_node 4 --bf16"
NEW = f"{PPO} --actor.model_name_or_path Qwen/Qwen3-4B --actor.num_nodes 1 --actor.num_gpus_per_node 8"
SFT = "deepspeed --num_gpus 4 --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen3-4B"


@pytest.mark.parametrize(
    ("target", "command", "world", "finds"),
    [
        # slime/backends/megatron_utils/arguments.py: bf16 and the distributed optimizer, whatever is said
        ("slime", SLIME, 8, {"model": "qwen3-4b", "tp": 2, "dp": 4, "zero": 1, "precision": "bf16", "micro_batch": 1,
                             "seq_len": 8192, "global_batch": 256}),
        ("slime", FILLED.replace("9216", "20480"), 8, {"micro_batch": 2}),
        ("slime", f"{FILLED.replace('9216', '10240')} --context-parallel-size 2", 8,
         {"micro_batch": 2, "cp": 2, "dp": 2}),
        ("slime", FILLED.replace("--global-batch-size 256", "--num-steps-per-rollout 2"), 8, {"global_batch": 128}),
        ("slime", FILLED.replace("--rollout-max-response-len 8192", "--loss-type sft_loss"), 8,
         {"seq_len": 9216, "micro_batch": 1}),
        # openrlhf/cli of both generations: ZeRO-2, prompt and answer of 1,024 tokens or 2,048 in all
        ("openrlhf", OLD, 8, {"model": "llama-3-8b", "stack": "deepspeed", "zero": 2, "dp": 8, "micro_batch": 4,
                              "seq_len": 2048, "global_batch": 128, "precision": "bf16", "recompute": "none",
                              "optimizer_kernels": "fused"}),
        ("openrlhf", f"{OLD} --zero_stage 3 --adam_offload --gradient_checkpointing --ring_attn_size 2", 8,
         {"zero": 3, "offload_optimizer": "cpu", "recompute": "full", "cp": 2, "dp": 4}),
        ("openrlhf", f"{OLD} --generate_max_len 3072 --micro_train_batch_size 2", 8,
         {"seq_len": 4096, "micro_batch": 2}),
        ("openrlhf", f"{NEW} --ds.zero_stage 3 --ds.tensor_parallel_size 2 --ds.lora.rank 16 --ds.load_in_4bit", 8,
         {"model": "qwen3-4b", "tp": 2, "dp": 4, "micro_batch": 1, "lora_rank": 16, "frozen_dtype": "nf4"}),
        ("openrlhf", f"{NEW} --train.dynamic_batch_enable --train.max_tokens_per_gpu 16384", 8, {"micro_batch": 8}),
        ("openrlhf", f"{SFT} --data.max_len 4096 --train.batch_size 64", 4,
         {"seq_len": 4096, "global_batch": 64, "micro_batch": 8, "attention_kernel": "flash2", "dp": None}),
    ],
)  # fmt: skip
def test_commands(target, command, world, finds):
    """The plan of a step, its ranks, and every word accounted for."""
    found = read(command, "train.sh", target)
    values = {"model": found.plan.model, "stack": found.plan.stack, **found.plan.flat_values(), **found.plan.training}
    assert {key: values.get(key) for key in finds} == finds
    launch = launch_of(command, "a command")
    assert (launch.target, launch.world_size) == (target, world)
    assert ("PYTORCH_CUDA_ALLOC_CONF" in launch.environment) is ("env_vars" in command)
    account = load_reader(target).words.sort(found.words.used, found.words.unread)
    assert (account.unknown, dict(account.deciding)) == ((), {})
    assert "seq_len" in [each.key for each in found.assumed]
    is_online = "sft" not in command
    assert any("A step is one update of the policy" in note for note in found.notes) is is_online


@pytest.mark.parametrize(
    ("target", "command", "deciding"),
    [
        ("slime", f"{SLIME} --no-offload-rollout", ["--sglang-mem-fraction-static"]),
        ("openrlhf", f"{OLD} --colocate_all_models --vllm_gpu_memory_utilization 0.5 --vllm_enable_sleep",
         ["--colocate_all_models"]),
        ("openrlhf", f"{OLD} --colocate_all_models --vllm_gpu_memory_utilization 0.5 --init_kl_coef 0",
         ["--vllm_gpu_memory_utilization"]),
        ("openrlhf", f"{NEW} --train.colocate_actor_ref --ref.offload", []),
        ("openrlhf", SFT.replace("train_sft", "train_dpo"), ["openrlhf.cli.train_dpo"]),
    ],
)  # fmt: skip
def test_what_stays_on_the_devices_decides(target, command, deciding):
    """Reference and engine of the rollout, unless they leave for the update; preferences as a whole."""
    found = read(command, "train.sh", target)
    assert list(load_reader(target).words.sort(found.words.used, found.words.unread).deciding) == deciding


def test_scripts_are_read_as_they_are(tmp_path):
    """A script that sources its model and counts devices; a here-document whose lines go on."""
    (tmp_path / "models").mkdir()
    counted = "for ((i=0; i<4; i++)); do if (( i < 1 )); then arr+=(0); else arr+=(1); fi; done\n"
    frequency = 'printf -v FREQ "[%s]" "$(IFS=\', \'; echo "${arr[*]}")"\n'
    arguments = f'MODEL_ARGS=({QWEN} --moe-layer-freq "$FREQ")\n'
    (tmp_path / "models" / "q.sh").write_text(f"arr=()\n{counted}{frequency}{arguments}")
    script = tmp_path / "run.sh"
    script.write_text(
        'SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
        'source "$SCRIPT_DIR/models/q.sh"\n'
        "NUM_GPUS=$(nvidia-smi -L | wc -l)\npython3 train.py --actor-num-gpus-per-node $NUM_GPUS ${MODEL_ARGS[@]} "
        "--rollout-max-response-len 4096 --global-batch-size 64 --use-dynamic-batch-size --max-tokens-per-gpu 8192\n"
    )
    given = given_words([str(script)])
    assert (given.found.plan.model, given.found.plan.mesh.dp, given.launch.world_size) == ("qwen3-4b", None, None)
    assert given.found.plan.micro_batch == 2
    assert "--moe-layer-freq" in given.found.words.used  # a model without experts
    lines = (SFT.partition("--module ")[2], "--train.batch_size 32", "--ds.zero_stage 3")
    told = " \\\n  ".join(lines)
    script.write_text(f"read -r -d '' TRAIN <<EOF\n{told}\nEOF\ndeepspeed --num_gpus 4 --module $TRAIN\n")
    given = given_words([str(script)])
    assert (given.found.plan.training["global_batch"], given.found.plan.zero, given.launch.world_size) == (32, 3, 4)


@pytest.mark.parametrize(
    ("target", "command", "told"),
    [
        ("slime", f"{SLIME} --use-dynamic-batch-size", "without --max-tokens-per-gpu: allowed: both"),
        ("slime", f"{SLIME} --actor-num-gpus-per-node 3", "= 3: allowed: a multiple of 2, the ranks of a replica"),
        ("openrlhf", f"{NEW} --ds.tensor_parallel_size 3", "= 8: allowed: a multiple of 3"),
        ("openrlhf", f"{SFT} --ds.param_dtype int8", "param_dtype = int8: allowed: bf16, fp16, fp32"),
        ("openrlhf", "python -m openrlhf.cli.train_foo", "openrlhf.cli.train_foo: allowed: openrlhf.cli.train_ppo_ray"),
    ],
)
def test_bad_input(target, command, told):
    """One line with the option and what is allowed."""
    with pytest.raises(UserError, match=told):
        read(command, "train.sh", target)


DSA = (
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 32 --global-batch-size 256 "
    "--rollout-max-response-len 8192 --hf-checkpoint /models/GLM-5"
)


@pytest.mark.parametrize(("words", "predicted"), [("", 0), ("--mtp-num-layers 1", 1), ("--mtp-num-layers 0", 0)])
def test_layers_that_slime_predicts_with_are_those_it_is_told(words, predicted):
    """Megatron-LM has none by default, whatever the released model has."""
    found = read(f"{DSA} {words}", "train.sh", "slime")
    graph = read_config(found.config) if found.config else load_model(found.plan.model)
    assert (len(graph.layers), predictions_in(graph)) == (78 + predicted, predicted)


def test_keys_that_slime_gathers():
    """Which only attention that chooses keys does there; without context parallelism the flag has no effect."""
    for ranks, method in ((2, ("all_gather", "contiguous")), (1, (None, None))):
        found = read(f"{DSA} --allgather-cp --context-parallel-size {ranks}", "train.sh", "slime")
        plan = found.plan.context_parallel
        assert (plan.cp_method, plan.cp_balance) == method
        told = load_reader("slime").words.sort(found.words.used, found.words.unread)
        assert (told.deciding, told.unknown) == ({}, ())
