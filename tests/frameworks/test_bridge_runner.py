"""What Megatron-Bridge sets of a recipe beside what the recipe says."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

RECIPE = """
def recipe():
    cfg = ConfigContainer(model=AutoBridge.from_hf_pretrained("{hub}").to_megatron_provider(load_weights=False))
    cfg.train.micro_batch_size = 1
{lines}    return cfg
"""


def account(lines, hub="Qwen/Qwen3-30B-A3B"):
    """The plan of a recipe with lines of its own, and the words that decide or are unknown."""
    text = RECIPE.format(hub=hub, lines="".join(f"    {line}\n" for line in lines))
    found = read(text, "recipe.py", "megatron-bridge")
    told = load_reader("megatron-bridge").words.sort(found.words.used, found.words.unread)
    return found.plan, {*told.deciding, *told.unknown}


@pytest.mark.parametrize(
    ("sharded", "overlap", "reduces", "gathers"),
    [
        (True, "None", False, True),
        (True, "CommOverlapConfig(tp_comm_overlap=False)", True, True),
        (True, "CommOverlapConfig(overlap_grad_reduce=False, overlap_param_gather=None)", False, True),
        (False, "CommOverlapConfig(overlap_grad_reduce=True)", False, None),
    ],
)
def test_a_config_of_overlaps_goes_over_the_replicas_own(sharded, overlap, reduces, gathers):
    """What it leaves open it sets, too, but not beside an optimizer that is not sharded (training/comm_overlap.py)."""
    lines = ["cfg.ddp.overlap_grad_reduce = False", "cfg.ddp.overlap_param_gather = True",
             f"cfg.optimizer.use_distributed_optimizer = {sharded}", f"cfg.comm_overlap = {overlap}"]  # fmt: skip
    data = account(lines)[0].data_parallel
    assert (data.overlap_grad_reduce, data.overlap_param_gather) == (reduces, gathers)
    buckets = {"None": None, "CommOverlapConfig(overlap_grad_reduce=True)": None}
    assert data.bucket_bytes == buckets.get(overlap, 4 * 128 * 2**20)


@pytest.mark.parametrize(
    ("overlap", "overlaps"),
    [("tp_comm_overlap=True", True), ("tp_comm_overlap=None", False), ("tp_comm_overlap=False", False)],
)
def test_a_config_of_overlaps_goes_over_the_models_own(overlap, overlaps):
    """The products' overlap is off where it is not asked for, and without sequence parallelism."""
    lines = ["cfg.model.tensor_model_parallel_size = 2", "cfg.model.sequence_parallel = True",
             "cfg.model.tp_comm_overlap = True", f"cfg.comm_overlap = CommOverlapConfig({overlap})"]  # fmt: skip
    assert account(lines)[0].tensor_parallel.overlap is overlaps
    assert account([*lines, "cfg.model.sequence_parallel = False"])[0].tensor_parallel.overlap is False


@pytest.mark.parametrize(
    ("lines", "dispatch", "dispatcher"),
    [
        (["cfg.model.moe_flex_dispatcher_backend = 'hybridep'"], None, None),  # which all-to-all does not read
        (["apply_flex_dispatcher_backend(cfg.model, 'hybridep')"], "per_node", "hybridep"),
        (["apply_flex_dispatcher_backend(cfg.model, moe_flex_dispatcher_backend='deepep')"], "per_node", None),
        (["cfg.model.moe_flex_dispatcher_backend = None",
          "apply_flex_dispatcher_backend(cfg.model, cfg.model.moe_flex_dispatcher_backend)"], None, None),
    ],
)  # fmt: skip
def test_a_flex_dispatcher_has_a_backend(lines, dispatch, dispatcher):
    """Bridge's function chooses both, and no shared experts beside the exchange; a backend alone is not read."""
    usual = ["cfg.model.moe_token_dispatcher_type = 'alltoall'", "cfg.model.moe_shared_expert_overlap = True"]
    plan, left = account([*usual, *lines], "Qwen/Qwen3.5-35B-A3B")
    assert plan.experts.token_dispatch == (dispatch or "per_expert")
    assert plan.execution.dispatcher == dispatcher
    assert (plan.experts.shared_expert_overlap, left) == (None if dispatch else True, set())


ENVIRONMENT = "cfg.env_vars = {**COMMON_RECIPE_ENV_VARS}"


@pytest.mark.parametrize(
    ("lines", "expands"),
    [
        ([ENVIRONMENT], True),
        (["cfg.env_vars = {**COMMON_PERF_ENV_VARS}"], None),
        (["cfg.env_vars = {**COMMON_RECIPE_ENV_VARS, 'PYTORCH_CUDA_ALLOC_CONF': 'max_split_size_mb:64'}"], None),
        (["cfg.env_vars = {'PYTORCH_ALLOC_CONF': 'expandable_segments:True'}"], True),
    ],
)
def test_variables_of_a_recipes_processes(lines, expands):
    """Those of all plain recipes have the allocator's segments expand."""
    assert account(lines)[0].execution.expandable_segments is expands


def test_a_precision_that_is_made_is_taken_as_it_is():
    """Its function gives back what is no name."""
    lines = ["cfg.mixed_precision = get_mixed_precision_config('bf16_with_mxfp8_mixed')",
             "cfg.mixed_precision.grad_reduce_in_fp32 = False",
             "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)"]  # fmt: skip
    numerics = account(lines)[0].numerics
    assert (numerics.precision, numerics.grad_dtype) == ("mxfp8", "bf16")


NEMO = """
from nemo.collections.llm.peft import PEFT_STR2CLS
def recipe(peft_scheme="lora"):
    recipe = run.Partial(llm.finetune,
        model=run.Config(LlamaModel, config=run.Config(Llama3Config8B)),
        trainer=run.Config(nl.Trainer,
            strategy=run.Config(nl.MegatronStrategy, tensor_model_parallel_size=2, gradient_as_bucket_view=True),
            plugins=[run.Config(MegatronMixedPrecision, precision="bf16-mixed", fp8_amax_history_len=1)]),
        data=run.Config(SquadDataModule, seq_length=2048, global_batch_size=128, micro_batch_size=1,
            tokenizer=run.Config(AutoTokenizer, pretrained_model_name="a/b")))
    if peft_scheme.lower() in ["lora", "dora"]:
        recipe.peft = run.Config(PEFT_STR2CLS[peft_scheme.lower()])
        recipe.peft.dim = 8
    return recipe
"""


def test_a_recipe_of_nemo_in_its_checkout() -> None:
    """Adapters by the name of their class, a list of one plugin, and words without effect."""
    found = read(NEMO, "recipe.py", "nemo-run")
    plan = found.plan
    assert (plan.model, plan.mesh.tp, plan.tuning.lora_rank, plan.numerics.precision) == ("llama-3-8b", 2, 8, "bf16")
    told = load_reader("nemo-run").words.sort(found.words.used, found.words.unread)
    assert (told.deciding, told.unknown) == ({}, ())


@pytest.mark.parametrize(("sharded", "zero"), [(True, 1), (False, 0)])
def test_an_optimizer_of_nemo_says_whether_it_is_sharded(sharded: bool, zero: int) -> None:
    """The strategy gives the replicas what the optimizer's config says (megatron_strategy.py)."""
    config = f'run.Config(OptimizerConfig, optimizer="adam", lr=1e-4, use_distributed_optimizer={sharded})'
    optim = f"recipe.optim = run.Config(nl.MegatronOptimizerModule, config={config})"
    ddp = f"recipe.trainer.strategy.ddp = run.Config(DDPConfig, use_distributed_optimizer={not sharded})"
    text = NEMO.replace("    return recipe", f"    {optim}\n    {ddp}\n    return recipe")
    assert read(text, "recipe.py", "nemo-run").plan.data_parallel.zero == zero


def test_a_list_of_several_plugins_is_refused() -> None:
    """Which of them is the precision is not guessed."""
    text = NEMO.replace("plugins=[", "plugins=[run.Config(Other), ")
    with pytest.raises(UserError, match=r"recipe\.py.*mixed_precision"):
        read(text, "recipe.py", "nemo-run")


def test_adapters_by_another_name_are_refused() -> None:
    """DoRA is no LoRA."""
    with pytest.raises(UserError, match=r"peft = dora: allowed: LoRA"):
        read(NEMO.replace('peft_scheme="lora"', 'peft_scheme="dora"'), "recipe.py", "nemo-run")
