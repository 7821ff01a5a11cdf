"""Adapters of a mixture's experts: what transformers 5 keeps in one parameter."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.trainer_adapters import WORD

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERTS = ("gate_proj", "up_proj", "down_proj")
SFT = "accelerate launch --num_processes 8 -m trl.scripts.sft --bf16 --use_peft --lora_r 16"
PARAMETERS = "mlp.experts.gate_up_proj mlp.experts.down_proj"


def decided(text, framework="trl", name="train.sh"):
    """The plan, and the words that decide."""
    found = read(text, name, framework)
    account = load_reader(framework).words.sort(found.words.used, found.words.unread)
    assert account.unknown == ()
    return found.plan.flat_values(), set(account.deciding), found


@pytest.mark.parametrize(
    ("targets", "expected", "decides"),
    [
        ("--lora_target_modules q_proj v_proj", ("q_proj", "v_proj"), False),
        ("--lora_target_modules all-linear", (*ATTENTION, *EXPERTS), True),
        (f"--lora_target_parameters {PARAMETERS}", EXPERTS, True),
        ("--lora_target_modules q_proj --lora_target_parameters mlp.experts.down_proj", ("q_proj", "down_proj"), True),
    ],
)
def test_adapters_of_experts_decide(targets, expected, decides):
    """PEFT adds whole products to all experts' weights of a layer, which is not modelled; a dense model has none."""
    values, words, _ = decided(f"{SFT} --model_name_or_path Qwen/Qwen3-30B-A3B {targets}")
    assert (values["lora_rank"], tuple(values["lora_targets"])) == (16, expected)
    assert (WORD in words) is decides
    assert WORD not in decided(f"{SFT} --model_name_or_path Qwen/Qwen3-8B {targets.replace('mlp.experts.', '')}")[1]


def test_parameters_of_other_kinds_are_words_that_decide():
    """Which matrices they are is not known here."""
    values, words, _ = decided(f"{SFT} --model_name_or_path Qwen/Qwen3-30B-A3B --lora_target_parameters router.weight")
    assert values["lora_rank"] == 16
    assert "--lora_target_parameters" in words


def test_a_script_with_parameters_alone_trains_adapters():
    """Never answered as full training, even where no rank is said."""
    named = "--model_name_or_path Qwen/Qwen3-30B-A3B --per_device_train_batch_size 1"
    text = f"python train.py {named} --target_parameters {PARAMETERS}"
    values, _, _ = decided(text, "transformers")
    assert (values["lora_rank"], tuple(values["lora_targets"])) == (8, EXPERTS)


def test_all_targets_of_llama_factory_are_assumed():
    """It names Linear modules, which experts of transformers 5 are not."""
    text = "model_name_or_path: Qwen/Qwen3-30B-A3B\nstage: sft\nfinetuning_type: lora\nlora_target: {}\n"
    told = {}
    for targets in ("all", "q_proj,up_proj"):
        found = decided(text.format(targets), "llama-factory", "a.yaml")[2]
        told[targets] = [(each.value, each.others) for each in found.assumed if each.key == "lora_targets"]
    assert told == {"all": [((*ATTENTION, *EXPERTS), (ATTENTION,))], "q_proj,up_proj": []}


ALONE = "python train.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1 --bf16"


@pytest.mark.parametrize(
    "words", ["--pre_seq_len 128", "--adapter_name prefix-tuning", "--peft_type IA3", "--my_lora_layers 8",
              "--with_adapters True", "--enable_low_rank_updates"]
)  # fmt: skip
def test_adapters_that_are_not_known_are_no_full_training(words):
    """Other kinds of them, and words that speak of them by names that are new: refused by the word."""
    with pytest.raises(UserError, match=words.split()[0]):
        read(f"{ALONE} {words}", "train.sh", "transformers")


@pytest.mark.parametrize(
    ("words", "rank", "frozen"),
    [
        ("--my_lora_layers 0", None, None),
        ("--use_lora False --my_lora_layers 8", None, None),
        ("--train_mode full", None, None),
        ("--train_mode pretrain", None, None),
        ("--train_mode qlora", 8, "nf4"),
        ("--adapter_name lora --lora_r 32", 32, "bf16"),
        ("--low_rank_training True", 8, "bf16"),
        ("--low_rank_training False", None, None),
        ("--use_llm_lora 16", 16, "bf16"),
        ("--use_llm_lora 0", None, None),
    ],
)
def test_what_scripts_call_their_adapters(words, rank, frozen):
    """Switches and kinds by several names; what is off is off."""
    values = read(f"{ALONE} {words}", "train.sh", "transformers").plan.flat_values()
    assert values.get("lora_rank") == rank
    assert rank is None or values["frozen_dtype"] == frozen


@pytest.mark.parametrize(
    "words",
    [
        "--tune_mm_mlp_adapter True",
        "--freeze_llm True",
        "--mm_tunable_parts=mm_vision_tower,mm_mlp_adapter",
        "--tune_mm_llm False",
        "--tune_mm_projector True",
    ],
)
def test_a_decoder_that_stays_as_it_is_is_no_full_training(words):
    """Models that see, of which a tower or a projector is trained: refused by the word, and not beside adapters."""
    with pytest.raises(UserError, match="the decoder's training") as error:
        read(f"{ALONE} {words}", "train.sh", "transformers")
    assert words.partition("=")[0].split()[0] in str(error.value)
    assert read(f"{ALONE} {words} --lora_enable True", "train.sh", "transformers").plan.tuning.lora_rank == 64


@pytest.mark.parametrize("words", ["--freeze_llm False", "--tune_language_model True --tune_mm_projector True"])
def test_a_decoder_that_is_trained_is(words):
    """Of which the switches say so."""
    assert read(f"{ALONE} {words}", "train.sh", "transformers").plan.tuning.lora_rank is None


@pytest.mark.parametrize(
    ("script", "words", "frozen"),
    [
        ("train_qlora.py", "--lora_r 8", "nf4"),
        ("train.py", "--lora_r 8", "bf16"),
        ("train_qlora.py", "--lora_r 8 --load_in_8bit", "int8"),
        ("train_qlora.py", "--lora_r 8 --load_in_4bit False", "bf16"),
    ],
)
def test_a_script_named_after_qlora_is_assumed_to_load_4_bits(script, words, frozen):
    """Unless its arguments say bits."""
    found = read(f"{ALONE.replace('train.py', script)} {words}", "train.sh", "transformers")
    assert found.plan.flat_values()["frozen_dtype"] == frozen
    assumed = {each.value for each in found.assumed if each.key == "frozen_dtype"}
    assert ("nf4" in assumed) is (frozen == "nf4")


FACTORY = (
    "llamafactory-cli train --stage sft --do_train --model_name_or_path meta-llama/Llama-3.1-8B --dataset x "
    "--cutoff_len 1024 --per_device_train_batch_size 1 --bf16 --output_dir o"
)


@pytest.mark.parametrize(
    ("kind", "flag", "decides"),
    [
        ("lora", "--resize_vocab", True), ("lora", "--new_special_tokens a,b", True), ("full", "--resize_vocab", False),
        ("lora", "--adapter_name_or_path a", True), ("full", "--adapter_name_or_path a", False),
        ("lora", "--adapter_name_or_path a --create_new_adapter", False),
        ("lora", "--quantization_bit 4 --quantization_method hqq", True),
        ("lora", "--quantization_bit 4 --quantization_method bnb", False), ("full", "--quantization_bit 4", True),
        ("freeze", "--quantization_bit 4", True), ("lora", "--compute_accuracy --moe_aux_loss_coef 0.1", False),
        ("lora", "--enable_tf32", False),
    ],
)  # fmt: skip
def test_what_decides_beside_adapters(kind, flag, decides):
    """Tables of the vocabulary are trained whole, a folder says the rank, and 4 bits are none that are trained."""
    words = read(f"{FACTORY} --finetuning_type {kind} {flag}", "the command", "llama-factory").words
    account = load_reader("llama-factory").words.sort(words.used, words.unread)
    assert (flag.split()[0] in account.deciding or "--quantization_method" in account.deciding) is decides
    assert account.unknown == ()


AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
datasets: [{path: x, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
lora_r: 8
lora_target_linear: true
bf16: true
"""
TRL_SFT = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --per_device_train_batch_size 1 --lora_r 16"


@pytest.mark.parametrize(
    ("text", "name", "framework", "rank"),
    [
        (f"{AXOLOTL}adapter: lora\n", "c.yml", "axolotl", 8), (f"{AXOLOTL}adapter:\n", "c.yml", "axolotl", None),
        (AXOLOTL, "c.yml", "axolotl", None), (TRL_SFT, "job.sh", "trl", None),
        (f"{TRL_SFT} --use_peft", "job.sh", "trl", 16), (f"{TRL_SFT} --use_peft false", "job.sh", "trl", None),
    ],
)  # fmt: skip
def test_the_switch_of_adapters_alone_decides(text, name, framework, rank):
    """Axolotl's adapter and TRL's use_peft: a rank without them trains all parameters."""
    assert read(text, name, framework).plan.tuning.lora_rank == rank


def test_a_rank_in_a_file_of_arguments_without_the_switch():
    """TRL's is off, a script's may be on: it decides."""
    text = "model_name_or_path: gpt2\npacking: true\nmax_length: 512\nbf16: true\nlora_r: 16\n"
    assert "lora_r" in decided(text, name="sft.yaml")[1]
    assert "lora_r" not in decided(f"{text}use_peft: true\n", name="sft.yaml")[1]


@pytest.mark.parametrize(
    ("line", "word"), [("torch_compile: auto", "torch_compile"),
                       ("gradient_checkpointing: offload_disk", "gradient_checkpointing")],
)  # fmt: skip
def test_what_axolotl_leaves_to_its_machine(line, word):
    """Where torch is new enough, and where what is kept waits."""
    found = read(f"{AXOLOTL}adapter: lora\n{line}\n", "c.yml", "axolotl").words
    assert word in load_reader("axolotl").words.sort(found.used, found.unread).deciding


def test_a_dropout_of_adapters_that_nothing_has():
    """It has no effect where the adapter is left blank, and speaks of adapters where nothing else is said."""
    config = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 1024\nmicro_batch_size: 1\n"
    found = read(f"{config}adapter:\nlora_r: 8\nlora_dropout: 0.1\n", "a.yaml", "axolotl")
    assert found.plan.tuning.lora_rank is None
    assert load_reader("axolotl").words.sort(found.words.used, found.words.unread).is_understood
    command = "torchrun t.py --model_name_or_path gpt2 --model_max_length 512 --lora_dropout 0.1"
    with pytest.raises(UserError, match="lora_dropout"):
        read(command, "a.sh", "transformers")
