"""torchtitan's options beside those that its own files always have."""

import pytest

from simpar.frameworks import load_reader, read
from simpar.frameworks.overrides import flagged_by_tyro
from simpar.preflight.given import given_words

OPTIONS = """
[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
{training}
[parallelism]
data_parallel_shard_degree = -1
{parallelism}
[optimizer]
{optimizer}
[debug]
{debug}
"""


def job(**sections):
    """What is read of a job with lines in some of its sections."""
    text = OPTIONS.format(**{"training": "", "parallelism": "", "optimizer": "", "debug": "", **sections})
    return read(text, "job.toml", "torchtitan-0.2")


def test_how_the_update_runs():
    """Moments in 16 bits of the fused kernel; parameters, gradients and moments in 16 bits without a copy."""
    plan = job(optimizer='implementation = "fused_opt_states_bf16"').plan
    assert (plan.execution.optimizer_kernels, plan.numerics.moment_dtype) == ("fused", "bf16")
    assert plan.execution.parameter_dtype is None
    low = job(training='dtype = "bfloat16"').plan
    assert (low.execution.parameter_dtype, low.numerics.grad_dtype, low.numerics.moment_dtype) == ("bf16",) * 3
    assert low.numerics.master_weights is False
    assert job(training='dtype = "float32"').plan.execution.parameter_dtype is None
    for words in ('name = "Lion"', 'implementation = "triton"'):
        found = job(optimizer=words)
        deciding = load_reader("torchtitan-0.2").words.sort(found.words.used, found.words.unread).deciding
        assert deciding.keys() == {f"optimizer.{words.split()[0]}"}
    assert "optimizer.name" in job(optimizer='name = "AdamW"').words.used


def test_experts_that_are_chosen_in_turn():
    """``debug`` of main, ``training`` before: Primus' examples of mixtures have it."""
    assert job().expert_balance == "bias"
    assert job(debug="moe_force_load_balance = false").expert_balance == "bias"
    assert job(debug="moe_force_load_balance = true").expert_balance == "forced"
    assert job(training="debug_moe_force_load_balance = true").expert_balance == "forced"


@pytest.mark.parametrize(("line", "graphs"), [("true", None), ("false", "step")])
def test_graphs_of_a_whole_step(line, graphs):
    """``disable_cuda_graphs`` of main captures forward and backward, where it is false."""
    assert job(training=f"disable_cuda_graphs = {line}").plan.execution.graphs == graphs
    assert job().plan.execution.graphs is None


def test_options_of_a_command_as_tyro_takes_them():
    """Dashes for underscores, ``no-`` before a switch, and None."""
    words = [
        "--parallelism.tensor-parallel-degree", "4", "--parallelism.no-enable-sequence-parallel",
        "--parallelism.context_parallel_degree=2", "--parallelism.context-parallel-load-balancer", "None",
        "--compile.no-enable", "--training.no_such", "5",
    ]  # fmt: skip
    assert flagged_by_tyro(words) == {
        "parallelism.tensor_parallel_degree": 4, "parallelism.enable_sequence_parallel": False,
        "parallelism.context_parallel_degree": 2, "parallelism.context_parallel_load_balancer": None,
        "compile.enable": False, "training.no_such": 5,
    }  # fmt: skip


def test_sequences_that_no_balancer_cuts(tmp_path):
    """A recipe and a job in TOML, with the balancer off: pieces are contiguous; they were read as balanced."""
    (tmp_path / "mine.py").write_text(
        "def mine():\n    return Trainer.Config(model_spec=llama3.model_registry('8B'), "
        "training=TrainingConfig(local_batch_size=1, seq_len=8192), parallelism=ParallelismConfig("
        "context_parallel_degree=2))\n"
    )
    words = "torchrun --nproc_per_node 8 -m torchtitan.train --module mine --config mine"
    script = tmp_path / "run.sh"
    off = "--parallelism.context-parallel-load-balancer None"
    for more, balance in (("", "zigzag"), (off, "contiguous"), (off.replace("None", "ptrr"), "zigzag")):
        script.write_text(f"{words} {more}\n")
        assert given_words([str(script)]).found.plan.context_parallel.cp_balance == balance
    job_file = tmp_path / "job.toml"
    job_file.write_text(OPTIONS.format(training="", parallelism="context_parallel_degree = 2", optimizer="", debug=""))
    command = f"torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file {job_file} {off}"
    assert given_words(command.split()).found.plan.context_parallel.cp_balance == "contiguous"
