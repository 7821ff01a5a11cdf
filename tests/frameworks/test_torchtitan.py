"""torchtitan's config module (0.3) and job config (0.2): out, back in, and as people write them."""

import ast
import json
import shlex
import tomllib

import pytest

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks import read, unsupported
from simpar.frameworks.titan import FLAVORS, modules
from simpar.layout.action_table import schedule_of
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.preflight.given import given_words

from .conftest import PLANS, TRAINING, checked, comes_back, exported

FILES = {"torchtitan": "simpar_recipe.py", "torchtitan-main": "simpar_recipe.py", "torchtitan-0.2": "torchtitan.toml"}
EXPRESSIBLE = [
    (target, label)
    for target in FILES
    for label in PLANS
    if not unsupported(checked(model="llama-3.1-8b", **PLANS[label]), load_model("llama-3.1-8b"), TRAINING, target)
]
CARRIED = [(target, label) for target, label in EXPRESSIBLE if not label.endswith("-alone")]


def test_enough_of_the_matrix_can_be_said():
    """The round trip below is over more than a few plans."""
    assert len(CARRIED) >= 12
    assert {"zero-3", "hsdp", "tp-fsdp", "interleaved-fsdp"} <= {label for _, label in CARRIED}


@pytest.mark.parametrize(("target", "label"), CARRIED)
def test_a_plan_comes_back(target, label):
    """Export and import give the same plan."""
    assert comes_back(target, checked(model="llama-3.1-8b", **PLANS[label]), FILES[target])


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3.2-1b", "qwen3-8b", "llama-3.1-405b"])
def test_the_module_is_python_that_names_the_model(model):
    """Flavours where torchtitan has the sizes, a config of the same sizes otherwise."""
    plan = checked(model=model, dp=8, zero=3)
    text = exported("torchtitan", plan)["simpar_recipe.py"]
    compile(text, "simpar_recipe.py", "exec")
    flavor = next((f for part in FLAVORS.values() for f, name in part.items() if name == model), None)
    flavor = None if model == "llama-3.2-1b" else flavor  # its positions are scaled by 32, the flavour's by 8
    assert (f'model_registry("{flavor}"' in text) == (flavor is not None)
    assert ("def _model()" in text) == (flavor is None)


def test_every_stage_lists_its_modules():
    """Embedding first, norm and head last, every layer once."""
    parts = modules((1, 2, 0), "lm_head")
    assert parts == [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["norm", "lm_head"]]


@pytest.mark.parametrize("label", ["zb-h1-alone", "v-half-alone"])
def test_schedules_that_torch_lacks_travel_as_tables(label):
    """The action table is a file beside the config, in the form that torch reads."""
    plan = checked(model="llama-3.1-8b", **PLANS[label])
    found = exported("torchtitan", plan)
    assert found["schedule.csv"] == schedule_of(Layout.of(plan), TRAINING).to_csv()
    assert "pipeline_parallel_schedule_csv='schedule.csv'" in found["simpar_recipe.py"]


def test_pipelines_get_whole_local_batches():
    """With a pipeline the local batch holds all microbatches; without, one, and gradients accumulate."""
    for values, local in (({"pp": 2, "dp": 4, "zero": 3, "micro_batch": 2}, 16), ({"dp": 8, "zero": 3}, 1)):
        text = exported("torchtitan-0.2", checked(model="llama-3.1-8b", **values))["torchtitan.toml"]
        assert tomllib.loads(text)["training"]["local_batch_size"] == local


def test_a_job_config_of_a_user_is_read():
    """Degrees, batch and recomputation of a TOML file as torchtitan ships them."""
    text = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
global_batch_size = 512
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
[checkpoint]
enable = false
"""
    found = read(text, "train_configs/llama3_70b.toml", "torchtitan-0.2")
    plan = found.plan
    assert (plan.mesh.tp, plan.mesh.dp, plan.data_parallel.zero, plan.micro_batch) == (8, None, 3, 8)
    assert plan.model == "llama-3.1-70b"
    assert plan.memory.recompute == "full"
    assert plan.training == {"seq_len": 8192, "global_batch": 512}
    assert found.ignored == ("checkpoint.enable",)
    assert read(text, "llama3_70b.toml", "torchtitan").plan == plan


def test_a_config_module_is_parsed_and_never_executed(tmp_path):
    """Literal values are read out of the syntax tree; code in a file does not run."""
    marker = tmp_path / "ran"
    text = f"""
open({str(marker)!r}, "w")
def mine():
    return Trainer.Config(
        model_spec=qwen3.model_registry("8B"),
        training=TrainingConfig(local_batch_size=2, global_batch_size=64, seq_len=4096),
        parallelism=configs.ParallelismConfig(tensor_parallel_degree=4, enable_sequence_parallel=False),
        activation_checkpoint=None,
    )
"""
    plan = read(text, "mine.py", "torchtitan").plan
    assert (plan.model, plan.mesh.tp, plan.tensor_parallel.sequence_parallel) == ("qwen3-8b", 4, False)
    assert plan.memory.recompute == "none"
    assert not marker.exists()
    assert isinstance(ast.parse(text), ast.Module)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def (", "a.py", "not Python"),
        ("x = 1", "a.py", "no function returns a config"),
        (
            "def f():\n    return Trainer.Config(parallelism=ParallelismConfig(tensor_parallel_degree=degree()))",
            "a.py",
            "a.py:2: parallelism.tensor_parallel_degree = degree()",
        ),
        ("[parallelism", "a.toml", "not valid TOML"),
        ("[training]\nseq_len = 1", "a.toml", "no section [parallelism]"),
        ("[parallelism]\ntensor_parallel_degree = 'many'", "a.toml", "tensor_parallel_degree = 'many'"),
    ],
)
def test_files_that_are_none_are_one_line(text, name, words):
    """File, field and what is allowed."""
    with pytest.raises(UserError) as error:
        read(text, name, "torchtitan")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("target", "model", "values", "words"),
    [
        ("torchtitan", "llama-3.1-8b", {"dp": 8, "zero": 1}, "zero = 1"),
        ("torchtitan", "gpt2", {"dp": 8}, "Llama 3 and Qwen3"),
        ("torchtitan", "mixtral-8x7b", {"dp": 8}, "mixtures are qwen3 30B-A3B, 235B-A22B, deepseek_v3 16B"),
        ("torchtitan", "gpt-oss-20b", {"dp": 8, "zero": 3, "ep": 8}, None),
        ("torchtitan", "gpt-oss-20b", {"dp": 8, "zero": 3, "hsdp": 2, "ep": 8}, "ep = 8: experts are spread over"),
        ("torchtitan", "qwen3-30b-a3b", {"dp": 8, "zero": 3, "ep": 8, "capacity_factor": 2.0}, "no token is dropped"),
        ("torchtitan", "qwen3-30b-a3b", {"tp": 2, "dp": 4, "zero": 3, "ep": 2, "etp": 2}, "etp = 2: experts are whole"),
        ("torchtitan", "deepseek-v3", {"pp": 2, "dp": 4, "zero": 3}, "layers that predict further tokens"),
        ("torchtitan-0.2", "qwen3-30b-a3b", {"dp": 8, "zero": 3}, "mixtures have no flavor"),
        ("torchtitan", "llama-3.1-8b", {"dp": 8, "zero": 3, "recompute": "every:2"}, "every:2"),
        ("torchtitan-0.2", "llama-3.1-8b", {"dp": 8, "zero": 3, "recompute": "every:2"}, None),
        ("torchtitan-0.2", "llama-2-7b", {"dp": 8, "zero": 3}, "flavours"),
        ("torchtitan-0.2", "llama-3.1-8b", {"tp": 2, "dp": 4, "zero": 3, "sequence_parallel": False}, "sequence"),
        ("torchtitan-0.2", "llama-3.1-8b", {"tp": 2, "dp": 4}, "replicated parameters"),
        ("torchtitan", "llama-3.1-8b", {"tp": 2, "dp": 4}, None),
        ("torchtitan", "llama-3.1-8b", {"pp": 4, "dp": 2, "zero": 3, "schedule": "zb-v"}, "split backward"),
        ("torchtitan", "llama-3.1-8b", {"dp": 8, "zero": 3, "bucket_bytes": "25 MiB"}, "bucket_bytes = 26214400:"),
    ],
)
def test_what_torchtitan_cannot_say_is_named(target, model, values, words):
    """A reason for every loss, none where it can be said."""
    reasons = unsupported(Plan.model_validate(values), load_model(model), TRAINING, target)
    assert (words is None) == (not reasons), reasons
    assert words is None or any(words in reason for reason in reasons)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cp": 8, "dp": 1, "zero": 1}, "zero = 1"),
        ({"cp": 4, "dp": 2, "zero": 0}, "zero = 0"),
        ({"cp": 4, "dp": 2, "zero": 3, "hsdp": 4}, "hsdp = 4"),
        ({"cp": 2, "pp": 4, "dp": 1, "zero": 2, "schedule": "zb-v"}, "schedule = zb-v"),
    ],
)
def test_context_ranks_share_states_as_replicas_do(values, field):
    """FSDP shards over both: no other stage of ZeRO, and no split backward beside it."""
    plan = checked(model="llama-3.1-8b", **values, cp_method="all_gather", cp_balance="zigzag")
    assert any(
        reason.startswith(field) for reason in unsupported(plan, load_model("llama-3.1-8b"), TRAINING, "torchtitan")
    )


REGISTRY = """
from . import model_registry
LENGTH = 2 * 4096
def llama3_8b(steps=10):
    config = Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=2, seq_len=LENGTH, steps=steps),
        activation_checkpoint=SelectiveAC.Config(),
    )
    return config
def llama3_8b_float8():
    config = llama3_8b()
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(fqns=["layers"])])
    config.parallelism.tensor_parallel_degree = 2 if LENGTH > 4096 else 1
    config.parallelism.data_parallel_shard_degree = 4
    config.activation_checkpoint = None
    return config
def newer():
    return Trainer.Config(
        model_spec=llama3.model_registry("70B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * LENGTH, max_context_length=LENGTH,
                                num_tokens_per_train_step=64 * LENGTH),
        parallelism=ParallelismConfig(pipeline_parallel_degree=4, pipeline_parallel_layers_per_stage=7,
                                      pipeline_parallel_schedule="Interleaved1F1B"),
        activation_checkpoint=policy(),
    )
def helper():
    return 3
"""


def test_a_registry_is_read_one_recipe_at_a_time():
    """Functions that build on others, constants and fields that are set later are followed; which one must be said."""
    name = "torchtitan/models/llama3/config_registry.py"
    with pytest.raises(UserError, match=r"has 3 recipes: .*llama3_8b, llama3_8b_float8, newer"):
        read(REGISTRY, name, "torchtitan")
    with pytest.raises(UserError, match="did you mean 'llama3_8b'"):
        read(REGISTRY, f"{name}:llama3_8", "torchtitan")
    found = read(REGISTRY, f"{name}:llama3_8b", "torchtitan")
    assert (found.plan.model, found.plan.micro_batch) == ("llama-3.1-8b", 2)
    assert found.plan.training == {"seq_len": 8192}
    assert any("2 sequences a data-parallel rank" in note for note in found.notes)
    assert found.ignored == ("training.steps",)
    found = read(REGISTRY, f"{name}:llama3_8b_float8", "torchtitan")
    plan = found.plan
    assert (plan.mesh.tp, plan.numerics.precision, plan.memory.recompute) == (2, "fp8_rowwise", "none")
    assert found.plan.training == {"seq_len": 8192, "global_batch": 8}
    assert any("for some layers only" in note for note in found.notes)
    with pytest.raises(UserError, match="activation_checkpoint = policy"):
        read(REGISTRY, f"{name}:newer", "torchtitan")


def test_newer_configs_count_tokens():
    """Sequences follow from the length of the context, stages from layers where the edges count as one each."""
    text = REGISTRY.replace("policy()", "FullAC.Config()")
    plan = read(text, "recipes.py:newer", "torchtitan").plan
    assert plan.training == {"seq_len": 8192, "global_batch": 64}
    assert (plan.model, plan.micro_batch, plan.pipeline.vpp) == ("llama-3.1-70b", 2, 3)
    assert plan.pipeline.layers == (6, *[7] * 9, 6, 5)


def test_a_job_config_says_everything_or_is_listed():
    """Lengths without a batch, converters as text, tensor parallelism that overlaps, what is no part of a plan."""
    text = """
[model]
name = "llama3"
flavor = "405B"
converters = "float8"
[training]
batch_size = 2
seq_len = 8192
compile = true
[parallelism]
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[float8]
filter_fqns = "output"
"""
    found = read(text, "llama3_405b.toml", "torchtitan-0.2")
    plan = found.plan
    assert (plan.model, plan.numerics.precision, plan.tensor_parallel.overlap) == ("llama-3.1-405b", "fp8", True)
    by_row = read(text.replace("[float8]", '[float8]\nrecipe_name = "rowwise"'), "llama3_405b.toml", "torchtitan-0.2")
    assert by_row.plan.numerics.precision == "fp8_rowwise"
    assert (plan.micro_batch, plan.training) == (2, {"seq_len": 8192})
    assert (found.ignored, plan.stack) == (("float8.filter_fqns",), "torchtitan")


@pytest.mark.parametrize("target", FILES)
def test_tokenizer_and_texts_are_where_the_config_says(target, tmp_path):
    """The export starts from its own folder: a tokenizer that encodes bytes, and lines of text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = exported(target, checked(model="llama-3.1-8b", dp=8, zero=3))
    config = made[FILES[target]]
    assert '"./tokenizer"' in config
    assert '"./data' in config
    path = tmp_path / "tokenizer.json"
    path.write_text(made["tokenizer/tokenizer.json"])
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    text = "Bytes: ä and \n"
    assert tokenizer.encode(text).ids == [tokenizer.token_to_id(t) for t in tokenizer.encode(text).tokens]
    assert len(tokenizer.encode(text).ids) == len(text.encode())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id(json.loads(made["tokenizer/tokenizer_config.json"])["eos_token"]) == 257
    assert all("text" in json.loads(line) for line in made["data/text.jsonl"].splitlines())


@pytest.mark.parametrize(
    ("model", "flavor", "values"),
    [
        ("qwen3-30b-a3b", 'qwen3.model_registry("30B-A3B")', {"dp": 8, "zero": 3, "ep": 4}),
        ("deepseek-v2-lite", 'deepseek_v3.model_registry("16B")', {"dp": 4, "pp": 2, "zero": 2, "ep": 4,
         "layers": (14, 13)}),
        ("deepseek-v3", 'deepseek_v3.model_registry("671B", num_mtp_layers=1)', {"dp": 8, "zero": 3, "ep": 8}),
        ("gpt-oss-120b", 'gpt_oss.model_registry("120b")',
         {"tp": 2, "dp": 4, "zero": 3, "ep": 2, "sequence_parallel": True}),
    ],
)  # fmt: skip
def test_mixtures_go_by_their_names_and_come_back(model, flavor, values):
    """The registry of torchtitan builds them whole; a layer that predicts one more token has its loss."""
    plan = checked(model, **values)
    text = exported("torchtitan", plan)["simpar_recipe.py"]
    assert flavor in text
    assert f"expert_parallel_degree={plan.mesh.ep}" in text
    assert ("loss=MTPLoss.Config(global_vocab_size=vocab_size)," in text) == (model == "deepseek-v3")
    assert comes_back("torchtitan", plan, "simpar_recipe.py")
    compile(text, "simpar_recipe.py", "exec")


def test_how_keys_travel_comes_back():
    """The TOML of 0.2 says whether context ranks gather keys or pass them round; another word is refused."""
    for method, word in (("all_gather", "allgather"), ("ring", "alltoall")):
        plan = checked("llama-3.1-8b", cp=4, dp=2, zero=3, cp_method=method, cp_balance="zigzag")
        text = exported("torchtitan-0.2", plan)["torchtitan.toml"]
        assert f'context_parallel_rotate_method = "{word}"' in text
        assert comes_back("torchtitan-0.2", plan, "torchtitan.toml")
    with pytest.raises(UserError, match="context_parallel_rotate_method = round: allowed: allgather, alltoall"):
        read(text.replace('"alltoall"', '"round"'), "job.toml", "torchtitan-0.2")


INIT = """
def model_registry(flavor, attn_backend="flex", converters=None):
    config = qwen3_configs[flavor](attn_backend=attn_backend)
    if converters is not None:
        for c in converters:
            config = c.build().convert(config)
    return ModelSpec(name="qwen3", flavor=flavor, model=config)
"""
CHECKOUT = """
from . import model_registry
def qwen3_8b():
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec, activation_checkpoint=FullAC.Config(),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
def qwen3_debugmodel():
    return qwen3_8b()
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("MODULE=qwen3 CONFIG=qwen3_8b ./run_train.sh", {"tp": 2, "micro_batch": 2}),
        ("NGPU=4 MODULE=qwen3 CONFIG=qwen3_8b ./run_train.sh --parallelism.tensor_parallel_degree 4", {"tp": 4}),
        ("torchrun --nproc_per_node=8 -m torchtitan.train --module qwen3 --config qwen3_8b", {"tp": 2}),
    ],
)
def test_a_launch_finds_its_recipe_in_a_checkout(command, expected, tmp_path, monkeypatch):
    """By module and config, whose registry says the model by its flavor."""
    folder = tmp_path / "torchtitan" / "models" / "qwen3"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(INIT)
    (folder / "config_registry.py").write_text(CHECKOUT)
    monkeypatch.chdir(tmp_path)
    given = given_words(shlex.split(command))
    plan = given.found.plan
    assert (given.launch.target, plan.model, plan.training) == ("torchtitan", "qwen3-8b", {"seq_len": 4096})
    assert {key: getattr(plan, key) for key in expected} == expected
    assert (given.launch.nodes, given.launch.per_node) == (1 if "run_train" in command else given.launch.nodes,
                                                           4 if "NGPU" in command else 8)  # fmt: skip
    with pytest.raises(UserError, match="did you mean 'qwen3_8b'"):
        given_words(["MODULE=qwen3", "CONFIG=qwen3_9b", "./run_train.sh"])


def test_a_diffusion_model_is_refused(tmp_path):
    """Flux is a module as others are."""
    (tmp_path / "flux").mkdir()
    path = tmp_path / "flux" / "config_registry.py"
    path.write_text(CHECKOUT.replace("from . import model_registry", ""))
    with pytest.raises(UserError, match="a diffusion model: not modelled"):
        read(path.read_text(), f"{path}:qwen3_8b", "torchtitan")


def test_products_overlap_where_layers_are_compiled_only():
    """Asynchronous tensor parallelism is made by the compiler."""
    for kind, is_lost in (("norm", True), ("compiled", False)):
        plan = checked("llama-3.1-8b", tp=2, dp=4, zero=3, fused_kernels=kind, tensor_parallel={"overlap": True})
        reasons = unsupported(plan, load_model("llama-3.1-8b"), TRAINING, "torchtitan-0.2")
        assert any("compiled only" in reason for reason in reasons) is is_lost


def test_converters_that_a_registry_applies_are_the_models(tmp_path):
    """The function of a checkout builds them one after the other; they were lost, with the model's name."""
    folder = tmp_path / "torchtitan/models/llama3"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "def model_registry(flavor, converters=None):\n"
        "    config = llama3_configs[flavor]()\n"
        "    if converters is not None:\n"
        "        for c in converters:\n"
        "            config = c.build().convert(config)\n"
        "    return ModelSpec(name='llama3', flavor=flavor, model=config)\n"
    )
    (folder / "config_registry.py").write_text(
        "from . import model_registry\n"
        "def of_8b():\n"
        "    return Trainer.Config(model_spec=model_registry('8B', converters=[MXFP8LinearConverter.Config()]),\n"
        "        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),\n"
        "        training=TrainingConfig(local_batch_size=1, seq_len=8192),\n"
        "        parallelism=ParallelismConfig(tensor_parallel_degree=2))\n"
    )
    found = given_words([f"{folder / 'config_registry.py'}:of_8b"]).found
    assert (found.plan.model, found.plan.numerics.precision) == ("llama-3.1-8b", "mxfp8")
    assert any("made in pieces" in note for note in found.notes)
