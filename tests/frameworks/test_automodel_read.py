"""NeMo Automodel: recipes and commands as a plan."""

import pytest
import yaml

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.automodel_read import READER
from simpar.frameworks.megatron_layers_said import predictions_in

RECIPE = {
    "step_scheduler": {"global_batch_size": 256, "local_batch_size": 4},
    "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
              "pretrained_model_name_or_path": "meta-llama/Llama-3.1-70B", "torch_dtype": "bf16"},
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 4, "pp_size": 2, "sequence_parallel": False,
                    "activation_checkpointing": True,
                    "pipeline": {"pp_schedule": "interleaved1f1b", "pp_microbatch_size": 1, "layers_per_stage": 10}},
    "packed_sequence": {"packed_sequence_size": 1024},
    "optimizer": {"_target_": "torch.optim.Adam"},
}  # fmt: skip


def imported(**sections: object) -> object:
    """What is read of the recipe with other sections."""
    return read(yaml.safe_dump({**RECIPE, **sections}), "recipe.yaml", "automodel")


def test_a_recipe() -> None:
    """Degrees, the schedule with its stages, packed sequences, and states in the parameters' dtype."""
    plan = imported().plan
    assert (plan.stack, plan.model, plan.training) == (
        "automodel", "llama-3.1-70b", {"seq_len": 1024, "global_batch": 256},
    )  # fmt: skip
    assert (plan.tp, plan.pp, plan.vpp, plan.schedule, plan.micro_batch) == (4, 2, 4, "interleaved", 1)
    assert (plan.zero, plan.recompute, plan.sequence_parallel, plan.moment_dtype) == (3, "full", False, "bf16")


def test_managers_of_earlier_releases() -> None:
    """A class in place of a strategy; without a pipeline the local batch is the micro-batch."""
    manager = {"_target_": "nemo_automodel.components.distributed.fsdp2.FSDP2Manager", "dp_replicate_size": 2}
    plan = imported(distributed=manager).plan
    assert (plan.zero, plan.hsdp, plan.micro_batch, plan.recompute) == (3, 2, 4, "none")


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, None),
        ({"store_param_remainders": True}, "remainder"),
        ({"store_param_remainders": True, "master_weights": False}, None),
    ],
)
def test_master_weights_of_a_fused_adam(more: dict[str, object], kept: str | None) -> None:
    """Transformer Engine's keeps them beside parameters in bf16, or of each the bits that its parameter lacks."""
    optimizer = {"_target_": "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam", "master_weights": True}
    found = imported(optimizer={**optimizer, **more}, model={**RECIPE["model"], "torch_dtype": "bf16"})
    assert found.plan.numerics.master_dtype == kept


@pytest.mark.parametrize(
    ("peft", "targets"),
    [
        ({"match_all_linear": True, "dim": 16}, 7),
        ({"target_modules": "*_proj", "dim": 16}, 7),
        ({"target_modules": ["*q_proj", "*.v_proj"], "dim": 16}, 2),
        ({"target_modules": [], "dim": 16}, 7),
        ({"exclude_modules": ["*.o_proj", "*vision_tower*"], "dim": 16}, 6),
    ],
)
def test_adapters(peft: dict[str, object], targets: int) -> None:
    """Patterns of modules; in 4 bits where the model is loaded so."""
    plan = imported(peft=peft, quantization={"load_in_4bit": True}, distributed={}).plan
    assert (plan.lora_rank, len(plan.lora_targets), plan.frozen_dtype) == (16, targets, "nf4")


def test_lengths_of_the_data_are_assumed() -> None:
    """Without packing, documents are as long as they are."""
    (assumed,) = imported(packed_sequence={"packed_sequence_size": 0}).assumed
    assert (assumed.key, assumed.value) == ("seq_len", 2048)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"distributed": {"strategy": "zero"}}, "distributed.strategy = zero: allowed: fsdp2"),
        ({"optimizer": {"_target_": "x.Shampoo"}}, "optimizer._target_ = x.Shampoo: allowed"),
        ({"peft": {"use_dora": True}}, "peft.use_dora = true"),
        ({"peft": {"target_modules": "*in_proj"}}, "peft.target_modules = *in_proj: allowed"),
    ],
)
def test_what_no_plan_has_is_refused(section: dict[str, object], message: str) -> None:
    """One line with file, field, value and what is allowed."""
    with pytest.raises(UserError) as error:
        imported(**section)
    assert message in str(error.value)


def test_a_command(tmp_path) -> None:
    """The command line's values go over the file's."""
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(RECIPE))
    text = "automodel --nproc-per-node=8 r.yaml --step_scheduler.global_batch_size 64"
    assert read(text, str(tmp_path / "job.sh"), "automodel").plan.training["global_batch"] == 64


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"recipe": "KnowledgeDistillationRecipeForNextTokenPrediction"}, "distillation from a teacher"),
        ({"recipe": "TrainBiEncoderRecipe"}, "retrieval"),
        ({"recipe": "TrainEagle3Recipe"}, "a draft model"),
        ({"model": {"_target_": "nemo_automodel.NeMoAutoDiffusionPipeline.from_pretrained"}}, "diffusion"),
        ({"flow_matching": {"adapter_type": "simple"}}, "a diffusion model"),
    ],
)
def test_other_recipes_are_refused_by_name(other: dict[str, object], what: str) -> None:
    """They train something else than a decoder's next token."""
    with pytest.raises(UserError, match=f"{what}.*not modelled"):
        imported(**other)


def test_words_that_decide() -> None:
    """An encoder of images, and what an optimizer does besides its numbers."""
    optimizer = {"_target_": "torch.optim.Adam", "lr": 1e-4, "betas": [0.9, 0.95], "foreach": False, "capturable": True}
    words = imported(recipe="FinetuneRecipeForVLM", optimizer=optimizer).words
    account = READER.words.sort(words.used, words.unread)
    assert (set(account.deciding), account.unknown) == ({"recipe", "optimizer.capturable"}, ())
    words = imported(recipe="TrainFinetuneRecipeForNextTokenPrediction").words
    assert READER.words.sort(words.used, words.unread).deciding == {}


@pytest.mark.parametrize(
    ("distributed", "zero"),
    [
        ({"ep_size": 8}, 2),  # MoEParallelizerConfig keeps parameters
        ({"ep_size": 8, "moe": {"reshard_after_forward": True}}, 3),
        ({"ep_size": 8, "reshard_after_forward": True}, 2),
        ({"ep_size": 1, "moe": {"reshard_after_forward": False}}, 3),
        ({"reshard_after_forward": False}, 2),
        ({}, 3),
    ],
)
def test_parameters_that_stay(distributed: dict[str, object], zero: int) -> None:
    """Models with experts on several ranks have a section of their own, with another default."""
    assert imported(distributed={"strategy": "fsdp2", **distributed}).plan.zero == zero


@pytest.mark.parametrize(
    ("distributed", "said"),
    [
        ({"strategy": "fsdp2"}, None),  # as the stack has it
        ({"strategy": "fsdp2", "defer_fsdp_grad_sync": False}, False),
        ({"strategy": "ddp"}, None),
        ({"strategy": "megatron_fsdp"}, False),
        ({"strategy": "fsdp2", "pp_size": 2}, None),  # as the stack has it in pipelines
    ],
)
def test_gradients_that_wait(distributed: dict[str, object], said: bool | None) -> None:
    """FSDP2 reduces them with the last of several microbatches, unless told otherwise."""
    found = imported(distributed=distributed, step_scheduler={"global_batch_size": 64, "local_batch_size": 4})
    assert found.plan.data_parallel.defer_grad_reduce is said
    assert READER.words.sort(found.words.used, found.words.unread).is_understood


def test_frozen_weights_in_8_bits() -> None:
    """They were read as 16."""
    plan = imported(peft={"dim": 16}, quantization={"load_in_8bit": True}, distributed={}).plan
    assert (plan.lora_rank, plan.frozen_dtype) == (16, "int8")


SIZES = {
    "vocab_size": 32000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    "made_by", ["transformers.models.qwen3.configuration_qwen3.Qwen3Config", "transformers.Qwen3Config"]
)
def test_a_model_that_the_recipe_states(made_by: str) -> None:
    """The class of its config tells the family; no name is asked for."""
    model = {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_config",
        "config": {"_target_": made_by, **SIZES},
    }
    found = imported(model=model, distributed={})
    graph = read_config(found.config, "recipe.yaml")
    # hand count: embeddings and head 2 x 32,000 x 256, and in each layer (heads of 128, the class's default) q and o
    # 2 x 256 x 1024, k and v 2 x 256 x 512, three products of the MLP 3 x 256 x 512, two norms of 256 and two of 128;
    # the last norm 256
    layer = 2 * 256 * 1024 + 2 * 256 * 512 + 3 * 256 * 512 + 2 * 256 + 2 * 128
    assert graph.num_parameters() == 2 * 32000 * 256 + 4 * layer + 256
    assert (found.asks["model"], READER.words.sort(found.words.used, found.words.unread).is_understood) == ("", True)


def test_sizes_beside_a_name() -> None:
    """Another number of layers than the named model's decides; its own is used."""
    named = {"config": {"pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B", "hidden_size": 4096}}
    for layers, decides in ((32, set()), (4, {"model.config.num_hidden_layers"})):
        model = {"config": named["config"] | {"num_hidden_layers": layers}}
        found = imported(model=model, distributed={})
        assert set(READER.words.sort(found.words.used, found.words.unread).deciding) == decides
        assert found.plan.model == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("sections", "seq_len"),
    [
        ({"packed_sequence": {"pretokenize": True, "pack_size": 65536, "max_length": 4096}}, 65536),
        ({"packed_sequence": {"pack_size": 3072, "collate_max_length": 4096}}, 4096),
        ({"packed_sequence": {"packed_sequence_size": 0}, "dataloader": {"collate_fn": {"max_length": 512}}}, 512),
        ({"packed_sequence": {}, "dataset": {"mean_len": 64, "max_sentence_len": 1024}}, 1024),
    ],
)
def test_lengths_of_packs_and_of_what_is_padded(sections: dict[str, object], seq_len: int) -> None:
    """Packs of recipes that see are called otherwise; collate functions pad to their length."""
    found = imported(**sections)
    assert (found.plan.training["seq_len"], found.assumed) == (seq_len, ())


@pytest.mark.parametrize(
    ("loss", "chunks", "decides"),
    [
        ("masked_ce.MaskedCrossEntropy", None, False),
        ("linear_ce.FusedLinearCrossEntropy", 64, False),
        ("te_parallel_ce.TEParallelCrossEntropy", None, True),
        ("chunked_ce.ChunkedCrossEntropy", None, True),
    ],
)
def test_losses(loss: str, chunks: int | None, decides: bool) -> None:
    """Cut cross entropy stores no logits; other kernels decide."""
    found = imported(loss_fn={"_target_": f"nemo_automodel.components.loss.{loss}"})
    told = READER.words.sort(found.words.used, found.words.unread)
    assert (found.plan.execution.loss_chunks, "loss_fn._target_" in told.deciding) == (chunks, decides)


@pytest.mark.parametrize(
    ("name", "config", "layers", "predicted"),
    [
        ("deepseek-ai/DeepSeek-V3-Base", {}, 61, 0),  # components/models/deepseek_v3 builds none
        ("zai-org/GLM-4.5-Air", {}, 46, 0),
        ("deepseek-ai/DeepSeek-V4-Flash", {}, 43, 1),
        ("deepseek-ai/DeepSeek-V4-Flash", {"config": {"num_nextn_predict_layers": 0}}, 43, 0),
        ("deepseek-ai/DeepSeek-V4-Flash", {"num_nextn_predict_layers": 1}, 43, 1),
    ],
)
def test_layers_that_predict_further_tokens(name: str, config: dict[str, object], layers: int, predicted: int) -> None:
    """Those that Automodel builds of a family, as many as the recipe says."""
    found = imported(model={**RECIPE["model"], "pretrained_model_name_or_path": name, **config}, distributed={})
    graph = read_config(found.config) if found.config else load_model(found.plan.model)
    assert (len(graph.layers), predictions_in(graph)) == (layers + predicted, predicted)
    told = READER.words.sort(found.words.used, found.words.unread)
    assert not {word for word in told.deciding if "predict" in word}


@pytest.mark.parametrize(("patched", "chunks"), [(True, 64), (False, None)])
def test_a_fused_loss_behind_a_pipeline(patched: bool, chunks: int | None) -> None:
    """Models whose forward pass is their own give no hidden states: the usual loss takes its place."""
    loss = {"_target_": "nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy"}
    pipeline = {"pp_schedule": "1f1b", "patch_causal_lm_model": patched}
    found = imported(loss_fn=loss, distributed={"pp_size": 4, "pipeline": pipeline})
    assert found.plan.execution.loss_chunks == chunks


def test_layers_that_a_family_cannot_have_decide() -> None:
    """The word is not dropped."""
    found = imported(model={**RECIPE["model"], "num_nextn_predict_layers": 2}, distributed={})
    told = READER.words.sort(found.words.used, found.words.unread)
    assert told.deciding["model.num_nextn_predict_layers"]
