"""Recipes in Python that are worked out without running them, across files."""

import pytest

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.bridge_words import WORDS
from simpar.frameworks.match import layers_in
from simpar.frameworks.recipe_values import ConfigCall, Unresolved
from simpar.frameworks.recipes import Recipes
from simpar.plan.choices import value_of

BASE = """
from megatron.bridge.perf_recipes.kin import split as _split, TP
def base_config():
    cfg = ConfigContainer(model=AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider())
    cfg.train.global_batch_size, cfg.train.micro_batch_size = _split(32)
    cfg.model.tensor_model_parallel_size = TP
    cfg.model.seq_length = 4096
    return cfg
def peft_config(scheme="lora"):
    cfg = base_config()
    cfg.peft = LoRA(target_modules=["linear_qkv"], dim=16)
    return cfg
"""
KIN = """
TP = 2
def split(count, **others):
    if isinstance(count, str):
        raise ValueError("no")
    return count, 1
"""
PERFORMANCE = """
from megatron.bridge.perf_recipes._common import _benchmark_common, _perf_precision
from megatron.bridge.recipes.qwen import qwen3_config
def qwen3_8b_pretrain_16gpu_h100_fp8cs_config():
    cfg = qwen3_config()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    try:
        cfg.model.pipeline_model_parallel_size = layout("x")
    except ValueError:
        cfg.model.pipeline_model_parallel_size = 1
    _benchmark_common(cfg)
    cfg.env_vars = {**COMMON, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return cfg
def layout(text):
    raise ValueError(text)
"""
ALIASES = "from megatron.bridge.recipes.base import base_config as qwen3_config, peft_config as qwen3_peft_config\n"


@pytest.fixture
def checkout(tmp_path):
    """A tree with a performance recipe, aliases, and what both are made of."""
    bridge = tmp_path / "src" / "megatron" / "bridge"
    for name, text in (("recipes/base", BASE), ("recipes/qwen", ALIASES), ("perf_recipes/kin", KIN),
                       ("perf_recipes/qwen3", PERFORMANCE)):  # fmt: skip
        (bridge / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (bridge / f"{name}.py").write_text(text)
    return tmp_path


def imported(checkout, name, recipe):
    """What is read of a recipe."""
    path = checkout / "src" / "megatron" / "bridge" / f"{name}.py"
    return read(path.read_text(), f"{path}:{recipe}", "megatron-bridge")


def test_imports_are_followed(checkout):
    """Through aliases, with constants and values of tuples; the precision's helper is known."""
    result = imported(checkout, "perf_recipes/qwen3", "qwen3_8b_pretrain_16gpu_h100_fp8cs_config")
    plan = result.plan
    assert (plan.stack, plan.model, plan.training) == ("nemo", "qwen3-8b", {"seq_len": 4096, "global_batch": 32})
    assert (plan.tp, plan.pp, plan.dp, plan.precision, plan.grad_dtype) == (2, 1, 8, "fp8", "bf16")
    assert plan.expandable_segments is True


def test_adapters_are_never_full_training(checkout):
    """Those of the file, and those of a file that is not here, by the recipe's name."""
    plan = imported(checkout, "recipes/qwen", "qwen3_peft_config").plan
    assert (plan.lora_rank, plan.lora_targets) == (16, ("q_proj", "k_proj", "v_proj"))
    lone = "def x_peft_1gpu_config():\n    cfg = _peft_common()\n    cfg.model.seq_length = 8\n    return cfg\n"
    lone = lone.replace("    cfg.model", "    cfg.train.global_batch_size = 8\n    cfg.model", 1)
    result = read(lone, "recipe.py", "megatron-bridge")
    assert (result.plan.lora_rank, result.assumed[0].key) == (32, "lora_rank")
    for scheme in ("DoRA()", "LoRA(target_modules=['in_proj'])"):
        text = lone.replace("    return", f"    cfg.peft = {scheme}\n    return")
        with pytest.raises(UserError, match=r"peft.* = .*: allowed: "):
            read(text, "recipe.py", "megatron-bridge")


def test_adapters_beside_mixers_and_latent_products():
    """Nemotron's, of which those beside in_proj and out_proj are left out and said; Moonlight's latent attention."""
    lone = "def x_peft_config():\n    cfg = ConfigContainer(model=M(), train=T(global_batch_size=8))\n"
    told = {}
    for targets in (
        ["linear_qkv", "in_proj", "out_proj"],
        ["linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj"],
    ):
        text = f"{lone}    cfg.peft = LoRA(target_modules={targets}, dim=8)\n    return cfg\n"
        found = read(text, "recipe.py", "megatron-bridge")
        account = load_reader("megatron-bridge").words.sort(found.words.used, found.words.unread)
        told[found.plan.lora_targets] = tuple(account.deciding)
    assert told == {("q_proj", "k_proj", "v_proj"): ("adapters of mixers",), ("q_proj", "k_proj"): ()}


def test_the_vocabulary_of_a_tokenizer_is_that_of_the_model(checkout):
    """Recipes of Gemma 2 set it to len(tokenizer), which only running would tell."""
    text = BASE.replace("    return cfg\n", "    cfg.model.vocab_size = len(tokenizer)\n    return cfg\n", 1)
    (checkout / "src" / "megatron" / "bridge" / "recipes" / "base.py").write_text(text)
    assert imported(checkout, "recipes/base", "base_config").plan.model == "qwen3-8b"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = []\n    for i in range(2):\n        x.append(i)\n    return C(x=x)", [0, 1]),
        ("return C(x=[2 * y for y in (1, 2)])", [2, 4]),
        ("return C(x='A'.lower())", "a"),
        ("y = C()\n    return C(x=1 if y is not None else 2)", 1),
        ("y = C(z=1)\n    return C(x=hasattr(y, 'z'))", True),
        ("return C(x=isinstance('t', Scheme))", False),
    ],
)
def test_what_is_decided_is_followed(body, expected):
    """Loops over known items, comprehensions, tests of known values."""
    _, made = Recipes(f"def recipe():\n    {body}\n", "r.py").made("", lambda each: each.called == "C")
    assert made.fields["x"] == expected


def test_what_is_not_decided_stays_open():
    """A test that only running would tell, and a raise that nothing catches."""
    text = "def recipe():\n    x = 1\n    if hasattr(args, 'x'):\n        x = 2\n    return C(x=x)\n"
    _, made = Recipes(text, "r.py").made("", lambda each: isinstance(each, ConfigCall))
    assert isinstance(made.fields["x"], Unresolved)
    with pytest.raises(UserError, match=r"r\.py: recipe raises ValueError"):
        Recipes("def recipe():\n    raise ValueError('x')\n    return 1\n", "r.py").made("recipe", lambda _: True)


@pytest.mark.parametrize(
    ("test", "value", "expected"),
    [
        ("hasattr(args, 'x') and c.x", "False", False),
        ("c.x", "None", None),
        ("hasattr(args, 'x') or c.x", "False", Unresolved),  # it may run where it is off
        ("hasattr(args, 'x') and c.x", "True", Unresolved),
        ("hasattr(args, 'x') and c.y", "False", Unresolved),
    ],
)
def test_what_is_switched_off_where_it_is_on_is_off(test, value, expected):
    """A branch that runs only where a field is on, and switches it off, leaves it off whether it runs or not."""
    text = f"def recipe():\n    c = C()\n    if {test}:\n        c.x = {value}\n    return c\n"
    _, made = Recipes(text, "r.py").made("", lambda each: each.called == "C")
    is_open = isinstance(made.fields["x"], Unresolved)
    assert is_open if expected is Unresolved else made.fields["x"] is expected


@pytest.mark.parametrize(
    "command",
    [
        "./scripts/training/train.sh --nodes 2 --recipe qwen3_8b_pretrain_16gpu_h100_fp8cs_config -mb 2",
        "python scripts/performance/setup_experiment.py -m qwen -mr qwen3_8b -ng 16 -g h100 -c fp8_cs -mb 2",
    ],
)
def test_commands_name_recipes(checkout, monkeypatch, command):
    """Both launchers find the recipe in their checkout; flags go over its fields."""
    monkeypatch.chdir(checkout)
    assert read(command, "the command", "megatron-bridge").plan.micro_batch == 2
    with pytest.raises(UserError, match=r"no file here defines it; allowed: in its checkout"):
        read(command.replace("8b", "9b"), "the command", "megatron-bridge")


@pytest.mark.parametrize(
    ("fields", "words", "told", "noted"),
    [
        ("model.seq_length = 131072; cfg.dataset.seq_length = 8192", "", 8192, True),
        ("dataset.sequence_length = 2048", "", 2048, True),
        ("dataset.seq_length = 4096", "", 4096, False),
        ("dataset.seq_length = 4096", "-sl 1024", 1024, True),
        ("dataset.seq_length = 4096", "dataset.seq_length=512 model.seq_length=512", 512, False),
        ("dataset.seq_length = 4096", "model.seq_length=512", 4096, True),
        ("train.micro_batch_size = 1", "model.seq_length=512", 512, False),
    ],
)
def test_the_model_has_the_length_of_its_data(checkout, monkeypatch, fields, words, told, noted):
    """Bridge's runner gives it to the model, whatever that says; its trainer starts with no other."""
    recipe = checkout / "src/megatron/bridge/recipes/mine.py"
    recipe.write_text(f"{ALIASES}def mine_config():\n    cfg = qwen3_config()\n    cfg.{fields}\n    return cfg\n")
    monkeypatch.chdir(checkout)
    found = read(f"python scripts/training/run_recipe.py --recipe mine_config {words}", "a.sh", "megatron-bridge")
    assert found.plan.training["seq_len"] == told
    assert any("the length of its data" in note for note in found.notes) == noted


PERFORMS = "python scripts/performance/setup_experiment.py -m qwen -mr qwen3_8b -ng 16 -g h100 -c fp8_cs"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--use_megatron_fsdp true", {"zero": 3}),
        ("--use_megatron_fsdp false", {"zero": 1}),
        ("-rl 4", {"recompute": "every:9"}),
        ("--recompute_modules core_attn,mlp", {"recompute": "modules:core_attn+mlp"}),
        ("-tp 1", {"tp": 1, "sequence_parallel": None}),
        ("-tp 4", {"tp": 4, "sequence_parallel": True}),
        ("-pp 2 -vp None", {"pp": 2, "vpp": 1}),
        ("-pp 2 -vp 3", {"pp": 2, "vpp": 3}),
        ("-pp 2 --pipeline_model_parallel_layout 'Et*9|t*9|t*9|t*9L'", {"pp": 2, "vpp": 2}),
        ("-tp 4 model.tensor_model_parallel_size=8", {"tp": 8}),
    ],
)
def test_flags_of_the_performance_launcher_set_fields(checkout, monkeypatch, flags, told):
    """As its overrides do; key=value words go over them."""
    monkeypatch.chdir(checkout)
    recipe = checkout / "src/megatron/bridge/perf_recipes/qwen3.py"
    recipe.write_text(
        recipe.read_text().replace("cfg.env_vars", "cfg.ddp.use_distributed_optimizer = True\n    cfg.env_vars")
    )
    plan = read(f"{PERFORMS} {flags}", "a.sh", "megatron-bridge").plan
    assert {name: value_of(plan, name) for name in told} == told


def test_every_flag_of_a_launcher_is_accounted_for(checkout, monkeypatch):
    """Those that decide are named, those of clusters and logs are not, and others are unknown."""
    monkeypatch.chdir(checkout)
    flags = "-mb 2 --nccl_ub false -a me --wandb_key x --container_image y -ms 50 --num_layers 4 -lgc 1200 --what 3"
    found = read(f"{PERFORMS} {flags}", "a.sh", "megatron-bridge")
    account = load_reader("megatron-bridge").words.sort(found.words.used, found.words.unread)
    assert {"-mb", "--nccl_ub", "-ng"} <= {*account.used}
    assert {"--account", "--wandb_key", "--container_image", "--max_steps"} <= {*account.idle}
    assert {each for each in account.deciding if each[:1] == "-"} == {"--num_layers", "--lock_gpu_freq"}
    assert account.unknown == ("--what",)


STAGED = """
from megatron.bridge.recipes.base import base_config
def _layout(pp, vpp=None):
    stages = pp * (vpp or 1)
    known = {4: [["embedding"] + ["decoder"] * 12] + [["decoder"] * 8] * 2 + [["decoder"] * 8 + ["loss"]],
             2: [["embedding"] + ["decoder"] * 20, ["decoder"] * 16 + ["loss"]]}
    if stages not in known:
        raise ValueError("no layout")
    return known[stages]
def staged_config():
    cfg = base_config()
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model._pipeline_model_parallel_layout_builder = _layout
    cfg.model.pipeline_model_parallel_layout = _layout(4)
    return cfg
def uneven_config():
    cfg = base_config()
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.num_layers_in_first_pipeline_stage = 8
    cfg.model.num_layers_in_last_pipeline_stage = 8
    return cfg
"""


@pytest.mark.parametrize(
    ("recipe", "words", "layers"),
    [
        ("staged", "", (12, 8, 8, 8)),
        ("staged", "-pp 2", (20, 16)),
        ("staged", "model.pipeline_model_parallel_size=1 model.virtual_pipeline_model_parallel_size=2", (20, 16)),
        ("uneven", "-tp 1", (8, 10, 10, 8)),
        ("uneven", "-pp 6", (8, 5, 5, 5, 5, 8)),
        ("uneven", "-pp 9", None),  # 20 layers do not fill 7 stages evenly: those of all nine are 4
    ],
)
def test_another_number_of_stages_shares_out_layers_anew(checkout, monkeypatch, recipe, words, layers):
    """By the recipe's own function, or without ends that leave the others an uneven share."""
    (checkout / "src/megatron/bridge/recipes/staged.py").write_text(STAGED)
    monkeypatch.chdir(checkout)
    command = f"python scripts/training/run_recipe.py --recipe {recipe}_config {words}"
    assert read(command, "a.sh", "megatron-bridge").plan.pipeline.layers == layers


def test_a_number_of_stages_that_a_recipe_has_no_layout_for(checkout, monkeypatch):
    """What its function raises is told."""
    (checkout / "src/megatron/bridge/recipes/staged.py").write_text(STAGED)
    monkeypatch.chdir(checkout)
    with pytest.raises(UserError, match=r"_layout raises ValueError\('no layout'\)"):
        read("python scripts/training/run_recipe.py --recipe staged_config -pp 3", "a.sh", "megatron-bridge")


@pytest.mark.parametrize(
    ("words", "ranks", "batch"),
    [("", 16, 32), ("", 64, 128), ("-tp 4", 16, 16), ("-tp 1", 32, 128), ("-gb 48", 64, 48)],
)
def test_a_benchmark_keeps_the_sequences_of_a_rank(checkout, monkeypatch, words, ranks, batch):
    """The runner scales its batch with data-parallel ranks, unless the command says one."""
    monkeypatch.chdir(checkout)
    found = read(f"{PERFORMS} {words}", "a.sh", "megatron-bridge")
    assert found.global_batch(ranks) == batch
    with pytest.raises(UserError, match="= 32 of replicas of 2 ranks: no whole number with 10"):
        read(f"{PERFORMS} -pp 5", "a.sh", "megatron-bridge")


def test_a_recipe_whose_name_stands_on_variables_names_them(checkout, monkeypatch):
    """As published launchers are: devices and their kind come from who starts them."""
    monkeypatch.chdir(checkout)
    text = """
    GPUS=${GPUS:?GPUS is required}
    KIND=${KIND:?}
    KIND=${KIND,,}
    python scripts/performance/setup_experiment.py -m qwen -mr qwen3_8b -ng $GPUS -g $KIND -c fp8_cs -mb 2
    """
    with pytest.raises(UserError, match=r"_config of Megatron-Bridge: a value that the file does not say") as error:
        read(text, "a.sh", "megatron-bridge")
    assert str(error.value).endswith("simpar import a.sh --from NAME -- GPUS=VALUE KIND=VALUE")
    assert "simpar check -- GPUS=VALUE KIND=VALUE a.sh, or" in str(error.value)
    assert read(f"export GPUS=16 KIND=H100\n{text}", "a.sh", "megatron-bridge").plan.micro_batch == 2


@pytest.mark.parametrize(("sizes", "last"), [((8, 2), 2), ((4, 1), 14), ((16, 1), 2)])
def test_stages_of_a_lone_recipe(sizes, last):
    """The helper of layouts gives every stage as many layers as fill it; the last has the prediction layer."""
    pp, vpp = sizes
    text = f"""
def deepseek_v3_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("deepseek-ai/DeepSeek-V3").to_megatron_provider()
    cfg.train.global_batch_size = 64
    cfg.model.pipeline_model_parallel_size = {pp}
    cfg.model.virtual_pipeline_model_parallel_size = {vpp}
    set_deepseek_v3_pipeline_model_parallel_layout(cfg.model)
    return cfg
"""
    plan = read(text, "recipe.py", "megatron-bridge").plan
    assert (len(plan.pipeline.layers), plan.pipeline.layers[-1], sum(plan.pipeline.layers)) == (pp * vpp, last, 62)


HYBRID = """
def config():
    cfg = _pretrain_common()
    cfg.train.micro_batch_size = 1
    cfg.model = {model}
    cfg.model.sequence_parallel = {parallel}
    return cfg
"""
FIELDS = (
    'hybrid_layer_pattern="M-*", num_layers=3, hidden_size=1024, num_attention_heads=16, num_query_groups=8, '
    "ffn_hidden_size=3072, kv_channels=64, vocab_size=32000, activation_func=squared_relu, seq_length=4096"
)
HUB = 'AutoBridge.from_hf_pretrained("{}").to_megatron_provider()'


def own(model, parallel="False", name="config"):
    """What is read of a recipe with a model."""
    return read(
        HYBRID.format(model=model, parallel=parallel).replace("config", name, 1), "recipe.py", "megatron-bridge"
    )


def test_models_are_built_of_the_fields_of_known_classes():
    """A hybrid by its pattern; the fields of another class are not all there is to it."""
    found = own(f"HybridModelProvider({FIELDS})")
    assert (found.config["model_type"], found.config["mlp_hidden_act"]) == ("nemotron_h", "relu2")
    assert round(read_config(found.config).num_parameters() / 1e6, 1) == 83.4
    found = own(f"SarvamModelProvider({FIELDS})")
    assert (found.plan.model, found.config) == (None, None)
    assert "SarvamModelProvider, which is not shipped" in found.asks["model"]
    assert own(HUB.format("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")).plan.model == "nemotron-3-nano"
    assert "Qwen/Qwen9-1T, which is not shipped" in own(HUB.format("Qwen/Qwen9-1T")).asks["model"]


def test_models_of_images_and_videos_are_no_decoders():
    """Diffusion is refused, an encoder of images decides."""
    for model in (f"WanModelProvider({FIELDS})", HUB.format("black-forest-labs/FLUX.1-dev")):
        with pytest.raises(UserError, match="a recipe of a diffusion model: not read"):
            own(model)
    found = own(HUB.format("google/gemma-3-4b-it"), name="gemma3_vl_4b_sft_config")
    assert found.plan.model == "gemma-3-4b"
    assert "encoder of images" in WORDS.sort((), found.words.unread).deciding["model.vision_model"]


def test_switches_that_only_running_would_tell_are_named():
    """They are taken as off."""
    found = own(HUB.format("Qwen/Qwen3-8B"), parallel="is_large()")
    assert any("model.sequence_parallel = is_large(): only running would tell" in note for note in found.notes)


def test_ends_of_a_pipeline_need_a_model():
    """A model that is not known here has no number of layers to divide."""
    text = HYBRID.format(model=HUB.format("Qwen/Qwen9-1T"), parallel="False")
    text = text.replace("    return", "    cfg.model.num_layers_in_first_pipeline_stage = 3\n    return")
    with pytest.raises(UserError, match="needs the layers of Qwen/Qwen9-1T"):
        read(text, "recipe.py", "megatron-bridge")


def account(lines, model="Qwen/Qwen3-30B-A3B"):
    """The plan of a recipe with lines of its own, and the words that decide or are unknown."""
    body = "".join(f"    {line}\n" for line in lines)
    head = f"def recipe():\n    cfg = ConfigContainer(model={HUB.format(model)})\n    cfg.train.micro_batch_size = 1\n"
    text = f"{head}{body}    return cfg\n"
    found = read(text, "recipe.py", "megatron-bridge")
    told = WORDS.sort(found.words.used, found.words.unread)
    return found.plan, {*told.deciding, *told.unknown}


@pytest.mark.parametrize(
    ("lines", "graphs"),
    [
        (["cfg.model.cuda_graph_impl = 'none'", "cfg.model.cuda_graph_scope = 'full'"], "none"),
        (["cfg.model.cuda_graph_impl = 'transformer_engine'", "cfg.model.cuda_graph_scope = ['attn', 'moe_router']"],
         "attention+router"),
        (["cfg.model.cuda_graph_impl = 'local'", "cfg.model.cuda_graph_scope = ['full_iteration']"], "step"),
        (["cfg.model.cuda_graph_impl = 'transformer_engine'", "cfg.model.cuda_graph_scope = ['moe']",
          "set_cuda_graph_modules(cfg.model, ['moe_router', 'moe_preprocess'])"], "router"),
        (["set_full_iteration_cuda_graph(cfg.model)"], "step"),
    ],
)  # fmt: skip
def test_graphs_by_their_older_name(lines, graphs):
    """Recipes say what is captured as a scope, or by Bridge's functions for either name."""
    plan, left = account(lines)
    assert (plan.execution.graphs, left) == (graphs, set())


@pytest.mark.parametrize(
    ("lines", "model", "left"),
    [
        (["cfg.model.first_last_layers_bf16 = True"], "Qwen/Qwen3-8B", set()),
        (["cfg.model.first_last_layers_bf16 = True", "cfg.mixed_precision = bf16_with_mxfp8_mixed()"], "Qwen/Qwen3-8B",
         {"model.first_last_layers_bf16"}),
        (["cfg.model.cpu_offloading_num_layers = 4", "cfg.model.cpu_offloading = False"], "Qwen/Qwen3-8B", set()),
        (["cfg.model.cpu_offloading_num_layers = 4", "cfg.model.cpu_offloading = True"], "Qwen/Qwen3-8B",
         {"model.cpu_offloading_num_layers", "model.cpu_offloading"}),
        (["cfg.ddp.outer_dp_sharding_strategy = 'no_shard'"], "Qwen/Qwen3-8B", set()),
        (["cfg.ddp.outer_dp_sharding_strategy = 'optim'"], "Qwen/Qwen3-8B", {"ddp.outer_dp_sharding_strategy"}),
        (["cfg.peft = default_peft_config('lora')"], "Qwen/Qwen3-8B", set()),
        (["cfg.model.attention_backend = AttnBackend.auto"], "Qwen/Qwen3-8B", set()),
    ],
)  # fmt: skip
def test_words_without_effect_beside_others(lines, model, left):
    """Switches of 8 bits without them, and parts of what is off."""
    assert account(lines, model)[1] == left


def test_a_backend_and_overlaps_of_a_recipe():
    """Fused attention is cuDNN's; what the overlaps say goes over the replicas' own config."""
    lines = ["cfg.model.attention_backend = 'fused'", "cfg.ddp.overlap_grad_reduce = False",
             "cfg.ddp.use_distributed_optimizer = True",
             "cfg.comm_overlap = CommOverlapConfig(overlap_grad_reduce=True)"]  # fmt: skip
    plan, left = account(lines)
    assert (plan.execution.attention_kernel, plan.data_parallel.overlap_grad_reduce, left) == ("cudnn", True, set())


def test_variables_that_a_file_beside_it_has(checkout):
    """They are those of that file, whatever it is called."""
    path = checkout / "src/megatron/bridge/recipes/base.py"
    imports = "from megatron.bridge.recipes.vars import MINE\n"
    path.write_text(
        f"{imports}{BASE.replace('    return cfg', '    cfg.env_vars = {**MINE}' + chr(10) + '    return cfg')}"
    )
    for value, expands in (("expandable_segments:True", True), ("", None)):
        (path.parent / "vars.py").write_text(f"MINE: dict[str, str] = {{'PYTORCH_CUDA_ALLOC_CONF': '{value}'}}\n")
        found = imported(checkout, "recipes/base", "base_config")
        assert found.plan.execution.expandable_segments is expands


PARTS = """
def stages(pp, vpp=1, last=()):
    if (pp, vpp) not in {(2, 1)}:
        raise ValueError(pp)
    return {(2, 1): [["embedding"] + ["decoder"] * 20, ["decoder"] * 16 + last]}[(pp, vpp)]
def recipe():
    cfg = ConfigContainer(model=AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider())
    cfg.train.micro_batch_size = 1
    cfg.model.pipeline_model_parallel_size = PP
    builder = partial(stages, last=["loss"])
    try:
        cfg.model.pipeline_model_parallel_layout = builder(PP, 1)
    except ValueError:
        pass
    return cfg
"""


@pytest.mark.parametrize(("pp", "layers"), [(2, (20, 16)), (4, None)])
def test_a_function_with_a_part_of_its_arguments(pp, layers):
    """``partial`` keeps them for the call; sets have members."""
    found = read(PARTS.replace("PP", str(pp)), "recipe.py:recipe", "megatron-bridge")
    assert found.plan.pipeline.layers == layers


def test_a_tower_stands_before_the_first_stage():
    """94 layers of text, 10 of them first and 12 on each of 7 stages; 27 of the tower, and what joins it to them."""
    lines = ["cfg.model.pipeline_model_parallel_size = 8", "cfg.model.num_layers_in_first_pipeline_stage = 10"]
    plan, _ = account(lines, "Qwen/Qwen3-VL-235B-A22B-Instruct")
    first, *others = plan.pipeline.layers
    assert (others, first - 10, sum(plan.pipeline.layers)) == ([12] * 7, layers_in("qwen3-vl-235b-a22b") - 94, 126)
