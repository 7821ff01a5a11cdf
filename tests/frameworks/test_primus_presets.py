"""AMD Primus: models that its checkout states, for experiments that train them."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words

DEFAULTS = {"model_type": "gpt", "swiglu": False, "hidden_dropout": 0.1, "normalization": "LayerNorm",
            "moe_shared_expert_overlap": True, "num_layers": 24, "add_bias_linear": False}  # fmt: skip
BASE = {"bases": ["language_model.yaml"], "swiglu": True, "normalization": "RMSNorm", "hidden_dropout": 0.0,
        "position_embedding_type": "rope", "untie_embeddings_and_output_weights": True}  # fmt: skip
OWN = {"extends": ["own_base.yaml"], "num_layers": 4, "hidden_size": 512, "ffn_hidden_size": 1024,
       "num_attention_heads": 8, "group_query_attention": True, "num_query_groups": 2, "vocab_size": 32000,
       "max_position_embeddings": 4096}  # fmt: skip


@pytest.fixture
def experiment(tmp_path):
    """Reads an experiment of a checkout with a model of its own."""
    folder = tmp_path / "primus" / "configs" / "models" / "megatron"
    folder.mkdir(parents=True)

    def read_one(model, overrides=(), **changes):
        for name, values in (("language_model", DEFAULTS), ("own_base", BASE), ("own", {**OWN, **changes})):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
        module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": f"{model}.yaml",
                  "overrides": dict(overrides)}  # fmt: skip
        file = tmp_path / "examples" / "experiment.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump({"modules": {"pre_trainer": module}}))
        return read(file.read_text(), str(file), "primus")

    return read_one


def test_a_model_of_the_checkout(experiment):
    """Its sizes, over those that it builds on; defaults of all models are no words of the experiment."""
    found = experiment("own", {"seq_length": 4096, "tensor_model_parallel_size": 2})
    assert (found.plan.tp, found.plan.training["seq_len"], found.asks["model"]) == (2, 4096, "")
    # hand count: two tables 32,000 x 512; a layer has q and o 2 x 512 x 512, k and v 2 x 512 x 128, three products of
    # 512 x 1,024 and two norms; the last norm
    layer = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1024 + 2 * 512
    assert read_config(found.config, "own").num_parameters() == 2 * 32000 * 512 + 4 * layer + 512
    account = load_reader("primus").words.sort(found.words.used, found.words.unread)
    assert (dict(account.deciding), account.unknown) == ({}, ())


def test_words_of_the_model_itself_decide(experiment):
    """What its own file says is part of what is trained."""
    found = experiment("own", use_z_loss=True)
    assert "use_z_loss" in load_reader("primus").words.sort(found.words.used, found.words.unread).deciding


def test_sizes_beside_a_model(experiment):
    """They are laid over the checkout's; without it they are refused, as before."""
    found = experiment("own", {"num_layers": 2})
    assert found.config["num_hidden_layers"] == 2


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ("another", {}, "another is not a shipped model"),
        ("own", {"model_type": "mamba"}, "own is not a shipped model"),
        ("own", {"use_short_conv": True}, "own is not a shipped model"),
    ],
)
def test_models_that_stay_unknown(experiment, model, changes, says):
    """Those that no file states, and those whose layers Primus makes itself."""
    assert says in experiment(model, **changes).asks["model"]


def test_files_that_build_on_themselves(experiment):
    """In one line, with the file."""
    with pytest.raises(UserError, match=r"own\.yaml: builds on itself"):
        experiment("own", extends=["own.yaml"])


EXPERIMENT = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 128, recompute_num_layers: 32}
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--micro_batch_size 4 --recompute_granularity full", {"micro_batch": 4, "tp": 1}),
        ("--tensor_model_parallel_size=2 --data_path /data --micro_batch_size 1", {"micro_batch": 1, "tp": 2}),
        ("tensor_model_parallel_size=4 --use_torch_fsdp2 False", {"micro_batch": 2, "tp": 4}),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "EXP=exp.yaml bash examples/run_pretrain.sh",
        "primus-cli slurm srun -N 4 -- train pretrain --config exp.yaml",
        "torchrun --nproc-per-node 8 primus/cli/main.py train pretrain --config exp.yaml --export_config out.yaml",
    ],
)
def test_words_of_a_command_go_over_the_experiment(command, words, told, tmp_path, monkeypatch):
    """Those of the launcher do not; words that nobody knows are named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(EXPERIMENT)
    found = given_words([*command.split(), *words.split(), "--unheard_of", "3"]).found
    assert {name: found.plan.flat_values()[name] for name in told} == told
    assert found.plan.training["global_batch"] == 128
    assert str(found.words.unread["unheard_of"]) == "3"
    assert not {"data_path", "export_config", "N"} & {*found.words.unread, *found.words.used}
