"""What Megatron-Bridge sets of a recipe beside what the recipe says."""

import pytest

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
    assert left == (set() if dispatch else {"model.moe_shared_expert_overlap"})


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
