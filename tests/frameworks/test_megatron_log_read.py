"""The list of arguments that Megatron-LM prints is read as the command that it was started with."""

import json
import shlex

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.megatron_arguments import flags_of
from simpar.frameworks.megatron_log_read import DEFAULTS

TABLE = json.loads(DEFAULTS.read_text())
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1"
    " --global-batch-size 128 --bf16 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type"
    " rope --untie-embeddings-and-output-weights --use-distributed-optimizer --overlap-grad-reduce"
)
COMMANDS = {
    "dense": (f"{LLAMA} --overlap-param-gather --tensor-model-parallel-size 4 --sequence-parallel", 16, 4),
    "interleaved, 8 bits": (
        (f"{LLAMA} --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 4"
        " --num-layers-per-virtual-pipeline-stage 4 --fp8-format hybrid --fp8-recipe tensorwise --recompute-granularity"
        " full --recompute-method uniform --recompute-num-layers 1 --no-rope-fusion --attention-backend flash"), 16, 2,
    ),
    "mixture": (
        (f"{LLAMA} --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --moe-grouped-gemm"
        " --moe-token-dispatcher-type alltoall --moe-permute-fusion --moe-shared-expert-overlap --recompute-granularity"
        " selective --recompute-modules core_attn moe_act --grad-reduce-in-bf16"), 8, 8,
    ),
    "FSDP": (f"{LLAMA} --use-megatron-fsdp --no-gradient-accumulation-fusion --context-parallel-size 2", 16, 8),
    "on the host": (
        ("--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024"
        " --micro-batch-size 4 --global-batch-size 64 --fp16 --vocab-size 50257 --optimizer-cpu-offload"
        " --optimizer-offload-fraction 0.5 --use-distributed-optimizer --use-precision-aware-optimizer"), 8, 8,
    ),
}  # fmt: skip
"""Arguments, the ranks, and those that share the data."""


def printed(command, ranks=8, dp=8, prefix="", **derived):
    """The list that Megatron-LM prints (``_print_args``) for a command: all arguments, most at their defaults."""
    rows = {**TABLE["values"], **dict.fromkeys(TABLE["on"], "False"), **dict.fromkeys(TABLE["off"], "True")}
    names = {flag.replace("_", "-"): name for name, flag in {**TABLE["flags"], **TABLE["off"]}.items()}
    for flag, values in flags_of(shlex.split(command)).items():
        name = names.get(flag, flag.removeprefix("--").replace("-", "_"))
        switched = "False" if name in TABLE["off"] else "True"
        rows[name] = f"[{', '.join(map(repr, values))}]" if len(values) > 1 else "".join(values) or switched
    rows |= {
        "world_size": str(ranks), "data_parallel_size": str(dp), "rank": "0", "params_dtype": "torch.bfloat16",
        "exp_avg_dtype": "torch.float32", "main_params_dtype": "torch.float32", "overlap_p2p_comm": "False",
        "tensor_parallel_num_weight_shards": rows["tensor_model_parallel_size"],
        "encoder_num_layers": rows["num_layers"],
        "virtual_pipeline_model_parallel_size": "None", "megatron_fsdp_grad_comm_dtype": "None", **derived,
    }  # fmt: skip
    lines = [f"{prefix}  {name} {'.' * (48 - len(name))} {rows[name]}" for name in sorted(rows, key=str.lower)]
    begin, end = (f"{prefix}{'-' * 24} {what}arguments {'-' * 24}" for what in ("", "end of "))
    return "\n".join([f"using world size: {ranks}", begin, *lines, end]) + "\n"


def of_log(text, name="run.log"):
    """The plan in a log, and the account of its words."""
    found = read(text, name, "megatron-log")
    return found, load_reader("megatron-log").words.sort(found.words.used, found.words.unread)


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "2025-01-01 00:00:00 0: "])
def test_a_list_is_its_command(kind, prefix):
    """The same plan, with the ranks that share the data, and the same words that decide; every argument is counted."""
    command, ranks, dp = COMMANDS[kind]
    asked = read(f"pretrain_gpt.py {command}", "train.sh", "megatron")
    text = printed(command, ranks, dp, prefix)
    found, account = of_log(text)
    assert found.plan == asked.plan.with_values(dp=dp)
    assert (found.sizes, found.expert_balance, found.per_replica) == (
        asked.sizes, asked.expert_balance, asked.per_replica,
    )  # fmt: skip
    expected = load_reader("megatron").words.sort(asked.words.used, asked.words.unread)
    assert (dict(account.deciding), account.unknown) == (dict(expected.deciding), ())
    count = len([line for line in text.splitlines() if line.startswith(f"{prefix}  ")])
    assert count > 840
    assert len({*account.used, *account.idle}) + len(account.deciding) >= count


@pytest.mark.parametrize(
    ("derived", "decides"),
    [
        ({"bias_gelu_fusion": "False"}, False),  # of SwiGLU
        ({"bias_swiglu_fusion": "False"}, True),
        ({"apply_rope_fusion": "False"}, True),
        ({"position_embedding_type": "learned_absolute", "apply_rope_fusion": "False"}, False),
        ({"tensor_parallel_num_weight_shards": "4"}, True),  # with one tensor-parallel rank
        ({"moe_shared_expert_overlap": "True"}, False),  # without experts
        ({"a_switch_of_a_fork": "False", "another_of_a_fork": "None"}, False),
    ],
)
def test_what_follows_from_other_arguments_decides_nothing(derived, decides):
    """validate_args changes arguments that were not said; others have another value than their default."""
    _, account = of_log(printed(LLAMA, **derived))
    assert bool(account.deciding) is decides
    assert account.unknown == ()


def test_a_switch_of_a_fork_is_unknown():
    """It is on, and in no table."""
    _, account = of_log(printed(LLAMA, a_switch_of_a_fork="True"))
    assert account.unknown == ("--a-switch-of-a-fork",)


def test_the_vocabulary_stands_behind_the_list():
    """Most tokenizers say how many words they have when they are built."""
    text = printed(LLAMA.replace("--vocab-size 128256", "--tokenizer-model /data/tokenizer"))
    assert "vocab" not in of_log(text)[0].sizes
    text += "> building tokenizer ...\n > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n"
    assert of_log(text)[0].plan.model == "llama-3-8b"


def test_lists_of_front_ends_with_more_arguments_are_read_by_them():
    """Megatron-DeepSpeed's stage and recomputation; DeepSpeed's config is not here."""
    own = {"deepspeed": "True", "zero_stage": "2.0", "checkpoint_activations": "True", "num_experts": "[1]",
           "tile_factor": "1", "topk": "1", "kd_temp": "1.0", "deepspeed_config": "ds.json"}  # fmt: skip
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --fp16 --seq-length 1024"
    found, account = of_log(printed(f"{sizes} --micro-batch-size 4 --global-batch-size 64", **own))
    values = found.plan.flat_values()
    assert (found.plan.stack, values["zero"], values["recompute"]) == ("megatron-deepspeed", 2, "full")
    assert (tuple(account.deciding), account.unknown) == (("--deepspeed-config",), ())


def test_what_is_no_whole_list_is_refused():
    """A log that ends inside of its list does not say what comes behind; the line is that of the list."""
    with pytest.raises(UserError, match=r"run\.log:2: the list of arguments is cut short"):
        of_log(printed(LLAMA)[:20_000])
    with pytest.raises(UserError, match=r"run\.log: no list of arguments as Megatron-LM prints it"):
        of_log("iteration 1/ 10 | elapsed time\n")
    with pytest.raises(UserError, match=r"run\.log: --micro-batch-size = many: allowed: a positive integer"):
        of_log(printed(LLAMA.replace("--micro-batch-size 1", "--micro-batch-size many")))


def test_a_long_log_is_checked(tmp_path, capsys):
    """The ranks are those of the list; steps behind it, and what comes before, are not read as shell."""
    log = tmp_path / "slurm-1.out"
    text = printed(COMMANDS["dense"][0], 16, 4)
    steps = "".join(f" iteration {at:8d}/  50000 | consumed samples: 1 | loss 'it's\n" for at in range(40_000))
    log.write_text("+ export A=$(hostname\n" * 3 + text + steps)
    assert log.stat().st_size > 2**20
    assert cli.run(["check", str(log), "--hardware", "dgx-h100"]) == 0
    said = capsys.readouterr().out
    assert "on 2 x dgx-h100" in said
    assert "verdict    OK" in said
    assert cli.run(["import", str(log), "--from", "megatron-log", "-o", str(tmp_path / "plan.json")]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["mesh"]["dp"] == 4
