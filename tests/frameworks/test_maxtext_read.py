"""MaxText: configs and commands as a plan."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import export, read
from simpar.frameworks.maxtext_read import READER
from simpar.preflight.given import given_words

from .conftest import TRAINING, checked

RUN = "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama3.1-8b per_device_batch_size=2"


def imported(words: str = "") -> object:
    """What is read of a command."""
    return read(f"{RUN} {words}", "job.sh", "maxtext")


def test_a_command() -> None:
    """Shards and replicas of both networks, the batch of a device, and defaults of the base config."""
    result = imported("ici_fsdp_parallelism=8 dcn_data_parallelism=2 max_target_length=8192")
    plan = result.plan
    assert (plan.stack, plan.model, plan.training) == ("maxtext", "llama-3.1-8b", {"seq_len": 8192})
    assert (plan.zero, plan.hsdp, plan.dp, plan.micro_batch, result.per_replica) == (3, 2, 16, 2, 2)
    assert (plan.recompute, plan.precision, plan.parameter_dtype) == ("full", "bf16", "fp32")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("remat_policy=minimal", {"recompute": "modules:core_attn+layernorm"}),
        ("quantization=fp8", {"precision": "fp8"}),
        ("attention=cudnn_flash_te", {"attention_kernel": "cudnn"}),
        ("ici_tensor_parallelism=4", {"tp": 4, "micro_batch": 8, "sequence_parallel": False}),
        ("ici_context_parallelism=2 context_parallel_strategy=ring", {"cp": 2, "cp_method": "ring"}),
        ("weight_dtype=bfloat16", {
            "parameter_dtype": "bf16", "master_weights": False, "grad_dtype": "bf16", "moment_dtype": "bf16",
        }),
        ("weight_dtype=bfloat16 opt_type=sgd", {"parameter_dtype": "bf16", "grad_dtype": "bf16"}),
        ("opt_type=sgd", {"optimizer": "sgd"}),
        ("num_vocab_tiling=16", {"loss_chunks": 16}),
        ("gradient_accumulation_steps=4", {"micro_batch": 2}),
    ],
)  # fmt: skip
def test_words_of_its_own(words: str, expected: dict[str, object]) -> None:
    """Each option that a plan has a word for."""
    values = imported(words).plan.flat_values()
    assert {key: values[key] for key in expected} == expected


def test_a_model_of_ones_own() -> None:
    """Sizes in place of a name."""
    sizes = (
        "base_emb_dim=4096 base_num_query_heads=32 base_num_kv_heads=8 base_mlp_dim=14336 base_num_decoder_layers=32"
    )
    text = RUN.replace("model_name=llama3.1-8b", f"{sizes} vocab_size=128256")
    assert read(text, "job.sh", "maxtext").plan.model == "llama-3-8b"


def test_what_no_plan_has_is_refused() -> None:
    """An unknown policy, and a part of a sequence."""
    for words, message in (("remat_policy=most", "remat_policy = most: allowed"),
                           ("per_device_batch_size=0.3", "per_device_batch_size = 0.3: allowed")):  # fmt: skip
        with pytest.raises(UserError) as error:
            imported(words)
        assert message in str(error.value)


def test_sizes_beside_a_named_model_decide() -> None:
    """Unless they are that model's own."""
    for words, deciding in (("base_num_decoder_layers=4", {"base_num_decoder_layers"}),
                            ("base_num_decoder_layers=32 vocab_size=128256", set())):  # fmt: skip
        result = imported(f"override_model_config=True {words}")
        account = READER.words.sort(result.words.used, result.words.unread)
        assert (set(account.deciding), account.unknown) == (deciding, ())


def test_what_is_written_is_read_back() -> None:
    """The exporter's own config."""
    plan = checked(dp=8, zero=3, recompute="full", loss_chunks=4)
    text = export(plan, load_model(plan.model), TRAINING, "maxtext", lossy=True).files["maxtext.yml"]
    result = read(text, "maxtext.yml", "maxtext")
    assert (result.plan.dp, result.plan.zero, result.plan.recompute, result.plan.model) == (8, 3, "full", plan.model)
    assert result.plan.loss_chunks == 4
    assert result.global_batch(8) == TRAINING.global_batch


@pytest.mark.parametrize(
    ("words", "recompute", "deciding"),
    [
        ("remat_policy=custom decoder_layer_input=device context=remat", "full", set()),
        ("remat_policy=custom context=device mlpwo=remat", "full", {"remat_policy", "context"}),
        ("remat_policy=full context=device", "full", set()),
        ("remat_policy=minimal_offloaded", "modules:core_attn+layernorm", {"remat_policy"}),
        ("ici_fsdp_parallelism=-1 ici_context_autoregressive_parallelism=1", "full", set()),
        ("ici_context_autoregressive_parallelism=2", "full", {"ici_context_autoregressive_parallelism"}),
    ],
)
def test_what_a_policy_keeps_decides(words: str, recompute: str, deciding: set[str]) -> None:
    """Unless it is what the policy says anyhow; an axis that no plan has decides, too."""
    found = imported(words)
    account = READER.words.sort(found.words.used, found.words.unread)
    assert (found.plan.recompute, set(account.deciding), account.unknown) == (recompute, deciding, ())


@pytest.mark.parametrize(
    ("words", "expected", "batch"),
    [
        ("ici_fsdp_parallelism=-1", {"dp": None, "tp": 1, "micro_batch": 4}, 4),
        ("ici_fsdp_parallelism=8 dcn_data_parallelism=2", {"dp": 8, "hsdp": 2, "micro_batch": 4}, 4),
        ("ici_fsdp_parallelism=1 dcn_data_parallelism=2", {"dp": 1, "hsdp": 1, "micro_batch": 4}, 4),
        ("ici_fsdp_parallelism=1 ici_tensor_parallelism=8", {"dp": 1, "tp": 4, "micro_batch": 16}, 16),
        ("ici_fsdp_parallelism=1 ici_tensor_parallelism=2", {"tp": 1, "sequence_parallel": None, "micro_batch": 4}, 4),
        ("ici_fsdp_parallelism=1 ici_expert_parallelism=8", {"dp": 4, "ep": 4, "micro_batch": 4}, 4),
    ],
)
def test_two_devices_of_a_chip(words: str, expected: dict[str, object], batch: int) -> None:
    """A chip has the sequences of both, 2 each; they are of the axis of data, else of experts, tensors, contexts."""
    of_chips = READER.devices.merged(imported(words), 2)
    plan = of_chips.plan
    values = {
        **plan.flat_values(),
        "dp": plan.mesh.dp,
        "sequence_parallel": plan.flat_values().get("sequence_parallel"),
    }
    assert ({key: values[key] for key in expected}, of_chips.per_replica) == (expected, batch)
    with pytest.raises(UserError, match="a multiple of 2 in an axis"):
        READER.devices.merged(imported("ici_fsdp_parallelism=1"), 2)


def test_the_model_of_the_base_config() -> None:
    """Llama's layers of its sizes, with those that the command gives."""
    text = RUN.replace("model_name=llama3.1-8b", "base_num_decoder_layers=8 vocab_size=1000")
    layer = 4 * 2048 * 2048 + 3 * 2048 * 7168
    found = read(text, "job.sh", "maxtext")
    assert read_config(found.config).num_parameters() == pytest.approx(8 * layer + 2 * 1000 * 2048, rel=1e-3)
    assert read(f"{text} decoder_block=gemma", "job.sh", "maxtext").config is None


def test_a_scaled_model_of_the_base_config() -> None:
    """A factor of 256 is two cycles of eight, and twice two: 8 times the heads and MLPs, 8 the width, 4 the layers."""
    text = RUN.replace("model_name=llama3.1-8b", "global_parameter_scale=256")
    config = read(text, "job.sh", "maxtext").config
    sizes = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "num_hidden_layers")
    assert [config[key] for key in sizes] == [8 * 2048, 8 * 16, 8 * 16, 8 * 7168, 4 * 16]
    with pytest.raises(UserError, match="global_parameter_scale = 3: allowed: a power of 2"):
        read(text.replace("256", "3"), "job.sh", "maxtext")
    named = imported("global_parameter_scale=2")
    assert READER.words.sort(named.words.used, named.words.unread).deciding
    plain = RUN.replace("model_name=llama3.1-8b", 'mlp_activations="[relu]"')  # one matrix less than Llama's
    assert read(plain, "job.sh", "maxtext").config is None


def test_what_the_text_does_not_say() -> None:
    """A batch that only running would tell is refused, a model's name is asked for: neither is the base config's."""
    text = RUN.replace("model_name=llama3.1-8b", "model_name=${MODEL}")
    found = read(text, "job.sh", "maxtext")
    assert (found.plan.model, found.config) == (None, None)
    assert "does not say model_name (${MODEL}): give --model" in found.asks["model"]
    with pytest.raises(UserError, match=r"max_target_length = \$\{LENGTH\}: a value that the text does not say"):
        imported("max_target_length=${LENGTH}")


def test_the_command_that_trains() -> None:
    """Of a script that converts a checkpoint first and generates text last; one that trains on preferences is none."""
    module = "maxtext.trainers.post_train.sft.train_sft_native base.yml model_name=gemma4-26b per_device_batch_size=3"
    text = (
        "python3 -m maxtext.checkpoint_conversion.to_maxtext base.yml model_name=gemma2-2b scan_layers=True\n"
        f"python3 -m {module}\npython3 -m maxtext.inference.decode base.yml model_name=gemma2-2b\n"
    )
    found = read(text, "job.sh", "maxtext")
    assert (found.plan.model, found.plan.micro_batch) == ("gemma-4-26b-a4b", 3)
    for other in ("maxtext.inference.decode", "maxtext.trainers.post_train.dpo.train_dpo"):
        assert not READER.starts(["python3", "-m", other, "base.yml"])


def test_a_workload_of_xpk() -> None:
    """The command inside, on the chips that it asks for."""
    for kind, chips in (("v6e-256", 512), ("v5p-256", 256), ("tpu7x-4x4x4", 128), ("tpu7x-128", 128)):
        text = f"xpk workload create --device-type={kind} --num-slices=2 --command='export A=1 && {RUN}'"
        given = given_words([text])
        assert (given.found.plan.model, given.launch.target, given.launch.world_size) == (
            "llama-3.1-8b",
            "maxtext",
            chips,
        )


@pytest.mark.parametrize(
    ("words", "capacity", "decides"),
    [
        ("capacity_factor=1.25", None, set()),  # sparse products, the default, drop no token
        ("capacity_factor=1.25 sparse_matmul=True megablox=True scan_layers=True", None, set()),
        ("capacity_factor=1.25 sparse_matmul=False", 1.25, {"sparse_matmul"}),
        ("sparse_matmul=False megablox=False scan_layers=False", None, {"sparse_matmul", "megablox", "scan_layers"}),
    ],
)
def test_words_that_decide_where_they_are_off(words: str, capacity: float | None, decides: set[str]) -> None:
    """What base.yml has on decides where a launch turns it off, not where it says so again."""
    result = imported(f"model_name=mixtral-8x7b {words}")
    account = READER.words.sort(result.words.used, result.words.unread)
    assert (result.plan.experts.capacity_factor, set(account.deciding), account.unknown) == (capacity, decides, ())


@pytest.mark.parametrize(
    ("word", "decides"),
    [
        ("hardware=cpu", True),
        ("hardware=gpu", False),
        ("logits_dot_in_fp32=true", True),
        ("logits_dot_in_fp32=false", False),
    ],
)
def test_processors_and_wide_logits_decide(word, decides, tmp_path, monkeypatch):
    """They were without effect."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yml").write_text("model_name: llama3-8b\nper_device_batch_size: 1\nmax_target_length: 2048\n")
    found = read(f"python3 -m MaxText.train base.yml {word}", "the command", "maxtext")
    assert bool(READER.words.sort((), found.words.unread).deciding) is decides


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        ("weight_dtype=bfloat16 mu_dtype=float32", {"mu_dtype"}),
        ("weight_dtype=bfloat16 mu_dtype=bfloat16", set()),
        ("mu_dtype=bfloat16", {"mu_dtype"}),
        ("logits_via_embedding=true", {"logits_via_embedding"}),
        ("logits_via_embedding=false", set()),
    ],
)
def test_moments_and_tables_unlike_the_rest_decide(words: str, decides: set[str]) -> None:
    """Moments have the dtype of weights unless it is said; Llama 3.1's output shares no table (models' configs)."""
    told = imported(words).words
    assert {*READER.words.sort(told.used, told.unread).deciding} == decides
