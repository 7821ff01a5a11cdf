"""Documents of public data sets, and what readers take of packed ones."""

import pytest
import yaml

from simpar.architectures.training import Documents
from simpar.frameworks import read
from simpar.frameworks.data_sets import TABLE, documents_of

COMMAND = "NPROC_PER_NODE=4 {} sft --model Qwen/Qwen2.5-7B --max_length 16384 --packing true --dataset {}"


@pytest.mark.parametrize(
    "name",
    [
        "AI-ModelScope/LongAlpaca-12k",
        "Yukang/longalpaca-12k",
        "LongAlpaca-12k",
        "x/LongAlpaca-12k#20",
        "LongAlpaca-12k:a",
    ],
)
def test_published_lengths_under_every_way_of_naming_a_data_set(name):
    """9941.8 tokens with a deviation of 3417.1."""
    assert documents_of(name) == Documents(mean=9942, spread=0.344)


def test_every_entry_is_a_distribution():
    """The names are found as they stand, and the spread is the deviation over the mean."""
    table = yaml.safe_load(TABLE.read_text())["documents"]
    for name, told in table.items():
        documents = documents_of(f"owner/{name}")
        assert documents is not None, name
        assert documents.mean == told["mean"], name
        assert documents.spread == pytest.approx(told["deviation"] / told["mean"], abs=5e-4), name
    assert documents_of("somebody/answers") is None


@pytest.mark.parametrize("program", ["swift", "megatron"])
def test_documents_of_a_known_data_set_attend_to_themselves(program):
    """ms-swift packs for flash kernels with both of its trainers; whole sequences are the other likely length."""
    kernel = " --attn_impl flash_attn" if program == "swift" else " --micro_batch_size 1 --global_batch_size 8"
    target = {"swift": "swift", "megatron": "megatron-swift"}[program]
    found = read(COMMAND.format(program, "Yukang/LongAlpaca-12k") + kernel, "train.sh", target)
    assert found.plan.training is not None
    documents = Documents.model_validate(found.plan.training["documents"])
    assert documents == Documents(mean=9942, spread=0.344)
    [one] = [each for each in found.assumed if each.key == "documents.mean"]
    assert (one.value, one.others) == (9942, (16384,))


def test_lengths_that_nobody_knows_are_assumed_aloud():
    """One document fills a sequence, and the step is shown with shorter ones; two data sets are not one of them."""
    for data_set in ("my/answers", "Yukang/LongAlpaca-12k ZhipuAI/LongWriter-6k"):
        command = f"{COMMAND.format('swift', data_set)} --attn_impl flash_attn"
        found = read(command, "train.sh", "swift")
        assert found.plan.training == {"seq_len": 16384}
        [one] = [each for each in found.assumed if each.key == "documents.mean"]
        assert (one.value, one.others) == (16384, (4096, 1024))


def test_documents_longer_than_a_sequence_fill_it():
    """Their length is told, and no shorter one is likely: 9,942 tokens in sequences of 8,192."""
    command = COMMAND.format("swift", "Yukang/LongAlpaca-12k").replace("16384", "8192")
    found = read(f"{command} --attn_impl flash_attn", "train.sh", "swift")
    assert found.plan.training == {"seq_len": 8192}
    [one] = [each for each in found.assumed if each.key == "documents.mean"]
    assert (one.value, one.others) == (8192, ())
    assert "Yukang/LongAlpaca-12k have 9942 tokens" in one.why


@pytest.mark.parametrize(
    ("text", "attends"),
    [
        ("cutoff_len: 8192\nflash_attn: fa2\npacking: true\n", False),  # LLaMA-Factory joins examples
        ("cutoff_len: 8192\nneat_packing: true\n", True),  # unless it packs neatly
    ],
)
def test_llama_factory_keeps_documents_apart_where_it_packs_neatly(text, attends):
    """Its own packing lets one document attend to those before it in the sequence."""
    config = f"stage: sft\nmodel_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: full\ndataset: CodeAlpaca-20k\n{text}"
    found = read(config, "config.yaml", "llama-factory")
    assert ("documents" in (found.plan.training or {})) is attends


def test_axolotl_names_data_sets_by_their_path():
    """A list of mappings with ``path``."""
    config = (
        "base_model: Qwen/Qwen2.5-7B\ndatasets:\n  - path: tatsu-lab/alpaca-cleaned\n    type: alpaca\n"
        "sequence_len: 4096\nsample_packing: true\nflash_attention: true\nmicro_batch_size: 1\n"
    )
    found = read(config, "config.yaml", "axolotl")
    assert found.plan.training is not None
    assert found.plan.training["documents"] == {"mean": 170, "spread": 0.724}
