"""Recipes of Megatron-Bridge: layers of a model that a recipe's own stages do not count."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks.match import layers_in
from simpar.frameworks.megatron_layers_said import predictions_in
from tests.frameworks.test_recipes import account, own

STAGES = "cfg.model.pipeline_model_parallel_size = 4"
OF_ENDS = ["cfg.model.num_layers_in_first_pipeline_stage = 11", "cfg.model.num_layers_in_last_pipeline_stage = 11"]


def test_a_layout_leaves_the_tower_to_the_first_stage():
    """GLM-4.5V has 46 layers of text; those of its tower, and what joins it to them, stand before the first one."""
    layout = [["embedding", *["decoder"] * 10], ["decoder"] * 12, ["decoder"] * 12, [*["decoder"] * 12, "loss"]]
    plan, _ = account([STAGES, f"cfg.model.pipeline_model_parallel_layout = {layout}"], "zai-org/GLM-4.5V")
    tower = layers_in("glm-4.5v") - 46
    assert tower > 20
    assert plan.pipeline.layers == (10 + tower, 12, 12, 12)


@pytest.mark.parametrize(
    ("said", "last"), [([], 12), (["cfg.model.mtp_num_layers = 1"], 12), (["cfg.model.mtp_num_layers = None"], 11)]
)
def test_predictions_that_a_model_brings_are_on_the_last_stage(said, last):
    """GLM-4.5 Air has 46 layers and one that predicts a further token, unless the recipe says that it has none."""
    assert (layers_in("glm-4.5-air"), predictions_in(load_model("glm-4.5-air"))) == (46, 1)
    plan, _ = account([STAGES, *OF_ENDS, *said], "zai-org/GLM-4.5-Air")
    assert plan.pipeline.layers == (11, 12, 12, last)


@pytest.mark.parametrize(
    ("model", "said", "overlaps"),
    [
        ("deepseek-ai/DeepSeek-V3", [], True), ("zai-org/GLM-4.5-Air", [], True), ("Qwen/Qwen3.5-35B-A3B", [], None),
        ("deepseek-ai/DeepSeek-V3", ["cfg.model.moe_shared_expert_overlap = False"], None),
        ("Qwen/Qwen3.5-35B-A3B", ["cfg.model.moe_shared_expert_overlap = True"], True),
        ("deepseek-ai/DeepSeek-V3", ["apply_flex_dispatcher_backend(cfg.model, 'deepep')"], None),
    ],
)  # fmt: skip
def test_shared_experts_run_beside_the_exchange_where_a_provider_has_it_so(model, said, overlaps):
    """Providers of DeepSeek, GLM and Kimi have it on, that of Qwen has it off; a recipe may say otherwise."""
    assert account(said, model)[0].experts.shared_expert_overlap == overlaps


@pytest.mark.parametrize(("value", "decides"), [("True", False), ("False", True)])
def test_states_of_mamba_that_are_kept_decide(value, decides):
    """Megatron-Core's kernels leave them out unless a recipe says otherwise."""
    word = "model.use_mamba_mem_eff_path"
    assert account([f"cfg.{word} = {value}"], "nvidia/Nemotron-H-8B-Base-8K")[1] == ({word} if decides else set())


@pytest.mark.parametrize(
    ("lines", "frozen", "left"),
    [
        ([], (False, False), set()),
        (["cfg.model.freeze_vision_model = True", "cfg.model.freeze_vision_projection = False"], (True, False), set()),
        (["cfg.model.freeze_vision_model = True", "cfg.model.freeze_language_model = True"], (True, False),
         {"model.freeze_language_model"}),
    ],
)  # fmt: skip
def test_parts_that_a_recipe_freezes(lines, frozen, left):
    """A tower that is simulated is trained unless the recipe leaves it as it is."""
    plan, words = account(lines, "Qwen/Qwen2.5-VL-7B-Instruct")
    assert ((plan.tuning.frozen_tower, plan.tuning.frozen_connector), words) == (frozen, left)


def test_a_class_that_is_a_model():
    """Bridge's recipes of OLMoE name no hub: their class has all sizes."""
    assert own("OlMoEModelProvider(expert_model_parallel_size=8)").plan.model == "olmoe-1b-7b"
