"""A changed plan as changed options of a text: what the text means decides which edits are needed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import simpar
from simpar import files
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, load_target
from simpar.frameworks.recipes import flat
from simpar.planner import make_problem
from simpar.preflight.flags import make_patch
from simpar.preflight.given import given_text
from simpar.preflight.patch import unified
from tests.frameworks.test_corpus import CORPUS, TARGETS, WRITERS
from tests.gate import some

COMMAND = (
    "torchrun --nproc-per-node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --vocab-size 32000 --seq-length 2048 "
    "--num-experts 8 --moe-router-topk 2 --tensor-model-parallel-size 2 --sequence-parallel "
    "--expert-model-parallel-size 2 --expert-tensor-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 --bf16"
)


def test_experts_that_share_ranks_by_default_are_said() -> None:
    """Left open, an expert is on one rank where there are expert ranks: no text with two ranks of it means that."""
    given = given_text(COMMAND, "the command")
    before = given.found.plan.with_values(dp=4)
    assert (before.mesh.ep, before.mesh.etp) == (2, 2)
    training = simpar.Training(seq_len=2048, global_batch=8)
    problem = make_problem("mixtral-8x7b", simpar.Cluster("dgx-h100"), training, stack="megatron", base=before)
    for degree in (None, 1):
        change = make_patch(given.text, problem, before, before.with_values(etp=degree))
        assert [str(edit) for edit in change.edits] == ["--expert-tensor-parallel-size 1"]
        assert change.text == COMMAND.replace("--expert-tensor-parallel-size 2", "--expert-tensor-parallel-size 1")


FSDP_1 = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: {}\n"
SFT = "sft.py --model_name_or_path meta-llama/Llama-3.2-1B --per_device_train_batch_size 1 --max_length 512 --bf16 true"
GATHERED = {"zero": 2, "reshard_after_forward": False}
SHARDED = {"zero": 3, "reshard_after_forward": True}


def patched(text, name, model="llama-3.2-1b", folder=None, batch=8, **values):
    """The changes of a text for a plan that differs in some values, on eight devices."""
    given = given_text(text, str(folder / name) if folder else name, suffix=Path(name).suffix)
    before = given.found.plan.with_values(dp=8)
    training = simpar.Training(seq_len=512, global_batch=batch)
    problem = make_problem(model, simpar.Cluster("dgx-h100"), training, stack=before.stack, base=before)
    return make_patch(given.text, problem, before, before.with_values(**values))


@pytest.mark.parametrize(
    ("text", "name", "values", "edits"),
    [
        (FSDP_1.format("FULL_SHARD"), "a.yaml", GATHERED, ["fsdp_config.fsdp_sharding_strategy SHARD_GRAD_OP"]),
        (FSDP_1.format("SHARD_GRAD_OP"), "a.yaml", SHARDED, ["fsdp_config.fsdp_sharding_strategy FULL_SHARD"]),
        (FSDP_1.format("1"), "a.yaml", GATHERED, ["fsdp_config.fsdp_sharding_strategy 2"]),
        (f"torchrun --nproc_per_node 8 {SFT} --fsdp 'full_shard auto_wrap'\n", "a.sh", GATHERED,
         ["--fsdp shard_grad_op auto_wrap"]),
        (f"accelerate launch --config_file fsdp.yaml {SFT}\n", "a.sh", GATHERED,
         ["--fsdp_sharding_strategy SHARD_GRAD_OP"]),
    ],
)  # fmt: skip
def test_strategies_of_fsdp_1_are_changed_where_a_text_has_one(text, name, values, edits, tmp_path):
    """The export writes FSDP 2's keys; what a text says in FSDP 1's words, or by its launcher's config, keeps these."""
    (tmp_path / "fsdp.yaml").write_text(FSDP_1.format("FULL_SHARD"))
    change = patched(text, name, folder=tmp_path, **values)
    assert [str(edit) for edit in change.edits] == edits
    assert change.text is not None
    assert change.is_offered


def test_a_yaml_of_arguments_keeps_its_own_keys():
    """Megatron-LM's flags are keys of a section there, spelt as their neighbours are."""
    sizes = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512, "seq_length": 512,
             "micro_batch_size": 1, "global_batch_size": 8, "bf16": True, "max_position_embeddings": 512}  # fmt: skip
    change = patched(json.dumps({"ARGS": sizes}), "a.yaml", "gpt2", recompute="full", zero=1)
    assert {edit.name for edit in change.edits} == {
        "ARGS.recompute_granularity", "ARGS.recompute_method", "ARGS.use_distributed_optimizer"
    }  # fmt: skip
    assert change.text is not None


def test_the_batch_of_a_device_keeps_its_name():
    """A script with ``--micro_batch_size`` gets no flag of another name beside it."""
    said = "--bf16 --model_max_length 512 --gradient_accumulation_steps 4 --gradient_checkpointing True --use_lora True"
    text = f"torchrun --nproc_per_node=8 finetune.py --model_name_or_path a/Llama-3.2-1B --micro_batch_size 4 {said}"
    change = patched(text, "a.sh", batch=128, micro_batch=2)
    assert ("--micro_batch_size", "2") in {(edit.name, str(edit.value)) for edit in change.edits}
    assert "per_device_train_batch_size" not in (change.text or "")
    assert "--micro_batch_size 2 " in change.text


def test_what_is_of_the_script_is_said_in_its_words():
    """Not by names of a plan; a choice that it has no word for is not offered."""
    zero_3 = json.dumps({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1})
    change = patched(zero_3, "ds.json", recompute="full")
    assert (change.unsaid, change.is_offered) == (("model.gradient_checkpointing_enable()",), True)
    assert not patched(zero_3, "ds.json", attention_kernel="eager").is_offered


TABLES = Path(__file__).parents[1] / "frameworks" / "tables"
VARIED = ({"recompute": "full"}, {"recompute": "none"}, GATHERED, SHARDED, {"micro_batch": 2}, {"zero": 1}, {"tp": 2},
          {"overlap_grad_reduce": False}, {"precision": "bf16"}, {"micro_batch": 2, "recompute": "full"})  # fmt: skip
OF_ACCELERATE = ("fsdp_config.fsdp_sharding_strategy", "deepspeed_config.zero_stage")
"""Keys of its config (commands/launch.py) that the export does not write."""
WITH_WORDS = [
    name for name, entry in CORPUS.items() if load_reader(TARGETS[entry["form"]][0]).written_as and "on" in entry
]


@pytest.mark.parametrize("name", some(WITH_WORDS, 3))
def test_proposals_are_words_of_the_framework(name):
    """Every edit has a key of the table of its options, or one that the text has; the rest is called in code."""
    entry = CORPUS[name]
    target, file = TARGETS[entry["form"]]
    text = WRITERS[entry["form"]](entry["facts"])
    given = given_text(text, file, target, Path(file.partition(":")[0]).suffix)
    own = given.text.written_as
    if not own:
        return
    table = {each.lstrip("-").replace("-", "_") for each in files.load(TABLES / f"{own}.yaml").data["options"]}
    table |= {each.rpartition(".")[2] for each in table} | set(OF_ACCELERATE)
    table |= {key.replace("-", "_") for key in flat(entry["facts"])}
    plan, place = given.found.plan, entry["on"]
    cluster = simpar.Cluster(place["hardware"], nodes=place["nodes"])
    config = entry.get("config") or given.found.config
    model = read_config(config) if config else plan.model or "llama-3.1-8b"
    shape = {"seq_len": 2048, "global_batch": 1024, **(plan.training or {})}
    ranks = cluster.world_size // int(plan.mesh.sizes.replica_ranks)
    before, tried, offered = plan.with_values(dp=ranks), 0, 0
    problem = make_problem(model, cluster, simpar.Training(**shape), stack=plan.stack, base=before)
    calls = {call.partition("(")[0] for call in load_target(own).in_code.values()}
    for values in VARIED:
        try:
            change = make_patch(given.text, problem, before, before.with_values(**values))
        except (UserError, ValueError):  # no plan of this model or mesh
            continue
        tried, offered = tried + 1, offered + change.is_offered
        for edit in change.edits:
            words = edit.name.lstrip("-").replace("-", "_")
            assert {words, words.rpartition(".")[2]} & table, edit
        if change.is_offered:
            assert all(each.partition("(")[0] in calls for each in change.unsaid)
    assert offered or not tried


def test_edits_that_change_nothing_or_contradict_each_other_are_none(tmp_path) -> None:
    """Where a config shards that is no part of the text, only the arguments that say what is wanted are edited."""
    config = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
    (tmp_path / "fsdp.yaml").write_text(f"{config}fsdp_config: {{fsdp_sharding_strategy: FULL_SHARD}}\n")
    text = (
        "accelerate launch --config_file fsdp.yaml finetune.py --model_name_or_path meta-llama/Llama-3.2-1B --bf16 "
        "--per_device_train_batch_size 1 --block_size 512 --torch_dtype bfloat16 --gradient_checkpointing 0"
    )
    given = given_text(text, str(tmp_path / "run.sh"))
    before = given.found.plan.with_values(dp=8)
    training = simpar.Training(seq_len=512, global_batch=8)
    problem = make_problem("llama-3.2-1b", simpar.Cluster("dgx-h100"), training, stack="huggingface", base=before)
    sharded = {"kind": "ddp", "zero": 0, "reshard_after_forward": False}
    for values, edits in (({}, []), ({"recompute": "full"}, ["--gradient_checkpointing true"])):
        change = make_patch(given.text, problem, before, before.with_values(**sharded, **values))
        assert ([str(edit) for edit in change.edits], change.text) == (edits, None)
        assert change.unsaid[0] == 'data_parallel.kind = "ddp"'
        assert not [each for each in change.unsaid if "recompute" in each]


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
def test_a_patch_leaves_the_end_of_a_file_as_it_is(tmp_path) -> None:
    """It applies to a file whose last line does not end, and to one with empty lines behind."""
    old = '{\n  "a": 1,\n  "b": false\n}'
    new = '{\n  "a": 1,\n  "b": true\n}\n'
    for end in ("", "\n", "\n\n\n"):
        path = tmp_path / "x.json"
        path.write_text(old + end)
        diff = unified(old + end, new, "x.json")
        assert diff.endswith("\\ No newline at end of file\n") == (not end)
        subprocess.run(["patch", "-p1", "-s"], input=diff, text=True, cwd=tmp_path, check=True)
        assert path.read_text() == new.rstrip() + end
