"""OLMo: its YAML, commands that give it one, and what it takes where nothing is said."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words


def config(**sections):
    """A config of OLMo 2 with some values changed; None takes a section away."""
    result = {
        "run_name": "7b",
        "model": {"d_model": 4096, "n_heads": 32, "n_layers": 32, "mlp_hidden_size": 22016, "weight_tying": False,
                  "rope": True, "include_bias": False, "layer_norm_type": "rms", "attention_layer_norm": True,
                  "norm_after": True, "max_sequence_length": 4096, "vocab_size": 100278, "embedding_size": 100352},
        "optimizer": {"name": "adamw", "learning_rate": 3.0e-4}, "compile": None,
        "global_train_batch_size": 1024, "device_train_microbatch_size": 2, "precision": "amp_bf16",
        "fsdp": {"wrapping_strategy": "by_block_and_size", "precision": "mixed"},
    }  # fmt: skip
    for section, values in sections.items():
        own = result.get(section)
        result[section] = {**own, **values} if isinstance(own, dict) and isinstance(values, dict) else values
    return yaml.safe_dump({key: value for key, value in result.items() if value is not None or key == "compile"})


def sorted_words(found):
    """What becomes of every word."""
    return load_reader("olmo").words.sort(found.words.used, found.words.unread)


def test_a_config():
    """The MLP's width is that of both halves of its gate; norms tell the family."""
    found = read(config(), "OLMo2-7B.yaml", "olmo")
    asked = {"model_type": "olmo2", "intermediate_size": 11008, "vocab_size": 100352, "num_key_value_heads": 32}
    assert {key: found.config[key] for key in asked} == asked
    values = found.plan.flat_values()
    assert (values["zero"], values["micro_batch"], values["recompute"], values["precision"]) == (3, 2, "none", "bf16")
    assert found.plan.training == {"seq_len": 4096, "global_batch": 1024}
    assert sorted_words(found).is_understood


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ({"norm_after": False, "attention_layer_norm": False}, "llama"),
        ({"norm_after": False}, "qwen3"),
        ({"norm_after": False, "attention_layer_norm": False, "layer_norm_type": "default"}, "stablelm"),
        ({"norm_after": False, "attention_layer_norm": False, "layer_norm_type": "default",
          "layer_norm_with_affine": False, "clip_qkv": 8.0}, "olmo"),
    ],
)  # fmt: skip
def test_norms_tell_the_family(model, family):
    """Every one is built, with as many parameters but for the norms."""
    found = read(config(model=model), "a.yaml", "olmo")
    assert found.config["model_type"] == family
    assert read_config(found.config).num_parameters() / 1e9 == pytest.approx(7.3, rel=0.001)


@pytest.mark.parametrize(
    ("word", "policy", "first"),
    [
        (None, "none", None), (False, "none", None), (True, "full", None), ("whole_layer", "full", None),
        ("one_in_two", "every:2", None), ("one_in_eight", "every:8", None),
        ("two_in_three", None, "none*1,full*2"), ("three_in_four", None, "none*1,full*3"),
    ],
)  # fmt: skip
def test_layers_that_recompute(word, policy, first):
    """Some in turn, as ``should_checkpoint_block`` chooses them."""
    found = read(config(activation_checkpointing=word), "a.yaml", "olmo").plan.memory.recompute
    assert found == policy if first is None else found.startswith(f"layers:{first}")


def test_how_states_are_shared_out():
    """Without shards, on one device, with replicas of a number or of every node; what is not said decides."""
    ddp = read(config(distributed_strategy="ddp"), "a.yaml", "olmo")
    assert (ddp.plan.data_parallel.zero, ddp.plan.stack, sorted_words(ddp).is_understood) == (0, "ddp", True)
    assert read(config(distributed_strategy="single"), "a.yaml", "olmo").plan.mesh.dp == 1
    hybrid = {"sharding_strategy": "_HYBRID_SHARD_ZERO2"}
    found = read(config(fsdp={**hybrid, "hybrid_sharding_num_model_replicas": 4}), "a.yaml", "olmo")
    assert (found.plan.data_parallel.zero, found.plan.data_parallel.hsdp) == (2, 4)
    open_ = sorted_words(read(config(fsdp={**hybrid, "wrapping_strategy": None}), "a.yaml", "olmo"))
    assert set(open_.deciding) == {"fsdp.sharding_strategy", "fsdp.wrapping_strategy"}
    parts = sorted_words(read(config(activation_checkpointing="fine_grained"), "a.yaml", "olmo"))
    assert set(parts.deciding) == {"activation_checkpointing"}


def test_a_command(tmp_path):
    """Flags over the config, a section in place of a word, nodes by a range; known by the file or by its flags."""
    (tmp_path / "a.yaml").write_text(config())
    command = (
        f"torchrun --nnodes 4:4 --nproc-per-node 8 scripts/train.py {tmp_path}/a.yaml --run_name=x "
        "--fsdp.sharding_strategy=HYBRID_SHARD --compile=default --compile.fullgraph=false --save_overwrite"
    )
    result = given_words(command.split())
    plan = result.found.plan
    assert (result.text.target, result.launch.nodes, plan.data_parallel.hsdp) == ("olmo", 4, 4)
    assert plan.execution.fused_kernels == "compiled"
    assert sorted_words(result.found).is_understood
    assert given_words(f"python scripts/train.py {tmp_path}/a.yaml".split()).text.target == "olmo"
    with pytest.raises(UserError, match=r"nothing\.yaml: no such file"):
        given_words(["python", "scripts/train.py", "nothing.yaml", "--device_train_microbatch_size=1"])


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"rope": False}}, "model.rope = False: no config is built with it; allowed: True"),
        ({"model": {"activation_type": "gelu"}}, "model.activation_type = gelu: no config is built with it"),
        ({"model": {"attention_layer_norm": False}}, "model.norm_after = True.*: no config is built with it"),
        ({"precision": "amp_fp8"}, "precision = 'amp_fp8': allowed: amp_bf16, amp_fp16, fp32"),
        ({"activation_checkpointing": "most"}, "activation_checkpointing = 'most': allowed: whole_layer"),
        ({"distributed_strategy": "tp"}, "distributed_strategy = tp: allowed: fsdp, ddp, single"),
        ({"model": {"d_model": "wide"}}, "model.d_model = 'wide': allowed: a positive integer"),
        ({"device_train_microbatch_size": None}, "no config of OLMo"),
    ],
)
def test_what_is_refused(sections, said):
    """One line with file, field, value and what is allowed."""
    with pytest.raises(UserError, match=said):
        read(config(**sections), "a.yaml", "olmo")
