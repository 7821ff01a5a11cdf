"""GPT-NeoX: its YAML, and commands with several."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.neox_read import READER
from simpar.preflight.given import given_words

PYTHIA = {
    "pipe_parallel_size": 1, "model_parallel_size": 2, "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "seq_length": 2048, "pos_emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": True, "gpt_j_residual": True,
    "attention_config": [[["flash"], 32]], "bias_gelu_fusion": True, "tokenizer_type": "HFTokenizer",
    "optimizer": {"type": "Adam", "params": {"lr": 1.2e-4}}, "fp16": {"enabled": True},
    "zero_optimization": {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 1000},
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "checkpoint_activations": True,
    "checkpoint_num_layers": 1, "partition_activations": True, "train_iters": 143000, "log_interval": 10,
}  # fmt: skip


def imported(**other):
    """What is read of a config with other values."""
    return read(yaml.safe_dump({**PYTHIA, **other}), "neox.yml", "gpt-neox")


def test_a_vocabulary_that_is_not_said_is_asked_for():
    """By its key, not by the sizes that are said; with it the model is built."""
    told = {"num_layers": 23, "tokenizer_type": "SPMTokenizer"}
    assert imported(**told).notes[0] == (
        "The vocabulary of SPMTokenizer is not known: give padded_vocab_size in the config, or --model."
    )
    assert imported(**told, padded_vocab_size=32_000).config["vocab_size"] == 32_000


def test_a_config():
    """Degrees, the batch of a replica, ZeRO, recomputation and words that are left."""
    found = imported()
    plan, words = found.plan, found.words
    assert (plan.model, plan.stack, plan.training, found.per_replica) == (
        "pythia-6.9b", "megatron-deepspeed", {"seq_len": 2048}, 16,
    )  # fmt: skip
    assert (plan.tp, plan.pp, plan.zero, plan.micro_batch, plan.precision, plan.recompute) == (
        2,
        1,
        1,
        8,
        "fp16",
        "full",
    )
    account = READER.words.sort(words.used, words.unread)
    assert (set(account.deciding), account.unknown) == ({"partition_activations"}, ())


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"pipe_parallel_size": 0, "model_parallel_size": 1}, {"pp": 1, "tp": 1}),
        ({"checkpoint_activations": False}, {"recompute": "none"}),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": True}}, {"precision": "bf16"}),
        ({"fp16": None}, {"precision": "fp32"}),
        ({"fp16": None, "precision": "bfloat16", "fp32_allreduce": True}, {"precision": "bf16", "grad_dtype": "fp32"}),
        ({"optimizer": {"type": "Lion"}}, {"optimizer": "lion"}),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"zero": 2, "offload_optimizer": "cpu"}),
    ],
)
def test_words_of_its_own(other, expected):
    """And those of DeepSpeed that stand among them."""
    values = imported(**other).plan.flat_values()
    assert {key: values.get(key) for key in expected} == expected
    assert imported(attention_config=[[["global"], 32]]).plan.execution.attention_kernel == "eager"


@pytest.mark.parametrize(
    ("method", "layers", "deciding"),
    [("type:transformer|mlp", None, []), ("type:transformer|embedding", (10, 11, 11, 11), []),
     ("parameters", None, ["pipe_partition_method"])],
)  # fmt: skip
def test_stages(method, layers, deciding):
    """By what is counted: an embedding in front, and a head that is none; otherwise the method decides."""
    count = 43 if layers else 44
    found = imported(pipe_parallel_size=4, num_layers=count, pipe_partition_method=method, partition_activations=False)
    account = READER.words.sort(found.words.used, found.words.unread)
    assert (found.plan.pipeline.layers, list(account.deciding)) == (layers, deciding)


LLAMA = {
    "activation": "swiglu", "norm": "rmsnorm", "gpt_j_residual": False, "use_bias_in_attn_linear": False,
    "use_bias_in_mlp": False, "mlp_multiple_of": 256, "intermediate_size": 32768, "make_vocab_size_divisible_by": 1,
    "padded_vocab_size": 32000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "name", "billions"),
    [
        ({"num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64}, "gpt-neox-20b", None),
        (LLAMA, "llama-7b", None),  # gated: a third of what is said, as a multiple of 256
        ({**LLAMA, "num_layers": 16}, None, 0.262144 + 16 * (4 * 4096**2 + 3 * 4096 * 11008) / 1e9),
        ({"num_layers": 16}, None, 2 * 0.0505 * 4.096 + 16 * 12 * 4096**2 / 1e9),
        ({"num_layers": 16, "pos_emb": "learned", "gpt_j_residual": False, "no_weight_tying": False,
          "tokenizer_type": "GPT2BPETokenizer", "max_position_embeddings": 2048}, None,
         (0.0503 + 0.002048) * 4.096 + 16 * 12 * 4096**2 / 1e9),
    ],
)  # fmt: skip
def test_a_model_of_its_own(other, name, billions):
    """By its layers and the vocabulary of its tokenizer."""
    found = imported(**other)
    assert found.plan.model == name
    if billions:
        assert read_config(found.config).num_parameters() / 1e9 == pytest.approx(billions, rel=0.01)


def test_what_no_plan_has_is_refused():
    """Layers of another kind and unknown optimizers; a mixture has no model."""
    for other, message in (({"attention_config": [[["mamba"], 32]]}, "layers of mamba: not modelled"),
                           ({"optimizer": {"type": "sm3"}}, "optimizer.type = sm3: allowed")):  # fmt: skip
        with pytest.raises(UserError, match=message):
            imported(**other)
    assert "give --model" in imported(moe_num_experts=8).asks["model"]


def test_a_command_lays_its_configs_over_another(tmp_path):
    """In their order; a YAML alone is told from DeepSpeed's."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yml").write_text(yaml.safe_dump(PYTHIA))
    (tmp_path / "configs" / "b.yml").write_text("train-micro-batch-size-per-gpu: 2\n")
    job = tmp_path / "job.sh"
    job.write_text("python ./deepy.py train.py -d configs a.yml b\n")
    given = given_words([str(job)])
    assert (given.launch.target, given.found.plan.micro_batch) == ("gpt-neox", 2)
    assert given_words([str(tmp_path / "configs" / "a.yml")]).launch.target == "gpt-neox"
    with pytest.raises(UserError, match="not training"):
        read("python deepy.py generate.py a.yml", "job.sh", "gpt-neox")
