"""What a script does beside its trainer's arguments: it decides, and is never answered as if it were not there."""

import ast

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.script_code import ARGUMENTS, has_trainer
from simpar.frameworks.script_statements import (
    CLASSES,
    COMPILES,
    FREEZES,
    IN_CODE,
    QUANTISES,
    SEVERAL,
    UPDATES,
    WIDENS,
    statements_of,
)

MODEL = "model = AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.1-8B', attn_implementation='sdpa')\n"
TRAIN = "trainer = Trainer(model=model, args=args, train_dataset=ds)\ntrainer.train()\n"
MADE = "args = TrainingArguments(output_dir='o', per_device_train_batch_size=2, bf16=True)\n"
LORA = "model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.1, target_modules='all-linear'))\n"


def words(text, *, adapts=False):
    """The words of a file."""
    return {*statements_of(ast.parse(text), ARGUMENTS, adapts=adapts).words}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("for p in model.model.layers[:20].parameters(): p.requires_grad = False", {FREEZES}),
        ("model.visual.requires_grad_(False)", {FREEZES}), ("p.requires_grad = 'lm_head' in name", {FREEZES}),
        ("model = torch.compile(model)", {COMPILES}), ("pattern = re.compile('a')", set()),
        ("AutoModelForSequenceClassification.from_pretrained('a/b')", {CLASSES}),
        ("BertForTokenClassification.from_pretrained('a/b')", {CLASSES}),
        ("GPTQConfig(bits=4)", {QUANTISES}), ("BitsAndBytesConfig(load_in_4bit=True)", set()),
        ("model.half()", {WIDENS}), ("model = model.to(torch.bfloat16)", {WIDENS}), ("model.to('cuda')", set()),
        ("model.to(dtype=torch.float16)", {WIDENS}), ("batch = batch.to(torch.float16)", set()),
        ("trainer = Trainer(model=model, optimizers=(opt, None))", {UPDATES}),
        ("trainer = Trainer(model=model, optimizers=(None, schedule))", set()),
        ("def create_optimizer(self): pass", {UPDATES}),
        ("a = SFTConfig(max_length=1)\nb = SFTConfig(max_length=2)", {SEVERAL}),
        ("a = SFTConfig(max_length=1)\nb = SFTConfig(max_length=1)", set()),
        # what is saved or asked for an answer
        ("trainer.train()\nmodel = model.half()", set()),
    ],
)  # fmt: skip
def test_what_code_does(line, expected):
    """Each by its word, which the table has."""
    assert words(line) == expected
    assert expected <= set(IN_CODE)


def test_what_is_frozen_before_adapters():
    """It makes no difference; what is trained beside them does."""
    assert words("for p in model.parameters(): p.requires_grad = False", adapts=True) == set()
    assert words("model.requires_grad_(False)", adapts=True) == set()
    assert words("model.lm_head.weight.requires_grad = True", adapts=True) == {FREEZES}


def test_the_verdict_of_a_script_that_freezes():
    """The word decides in the reader's account."""
    text = f"{MODEL}for p in model.model.layers.parameters(): p.requires_grad = False\n{MADE}{TRAIN}"
    found = read(text, "train.py", "script").words
    assert FREEZES in load_reader("script").words.sort(found.used, found.unread).deciding


@pytest.mark.parametrize(
    "line",
    ["model = get_peft_model(model, IA3Config())", "p = PromptTuningConfig(num_virtual_tokens=8)",
     "c = AdaLoraConfig(r=8)", "model = PeftModel.from_pretrained(model, 'a', is_trainable=True)"],
)  # fmt: skip
def test_other_adapters_are_never_full_training(line):
    """Refused with the line and the class; adapters that are loaded to be merged are not."""
    with pytest.raises(UserError, match=r"train\.py:2: \w+(\.from_pretrained)?: adapters whose kind is not modelled"):
        read(f"{MODEL}{line}\n{MADE}{TRAIN}", "train.py", "script")
    merged = f"{MODEL}{LORA}{MADE}{TRAIN}PeftModel.from_pretrained(model, 'a').merge_and_unload()\n"
    assert read(merged, "train.py", "script").plan.tuning.lora_rank == 8


def test_arguments_that_are_set_later():
    """``args.bf16 = True`` is one, whether the class was given it or not."""
    text = f"{MODEL}{MADE}args.per_device_train_batch_size = 1\nargs.gradient_checkpointing = True\n{TRAIN}"
    plan = read(text, "train.py", "script").plan
    assert (plan.micro_batch, plan.memory.recompute) == (1, "full")
    with pytest.raises(UserError, match="optim = choose"):
        read(f"{MODEL}{MADE}args.optim = choose()\n{TRAIN}", "train.py", "script")


def test_a_trainer_that_is_given_a_name():
    """TRL loads the model itself, and has defaults for all arguments."""
    text = "from trl import SFTTrainer\nSFTTrainer(model='Qwen/Qwen2.5-0.5B', train_dataset=ds).train()\n"
    assert has_trainer(text)
    assert not has_trainer(text.replace("trl", "openrlhf.trainer"))
    plan = read(text, "train.py", "script").plan
    assert (plan.model, plan.training, plan.memory.recompute) == ("qwen2.5-0.5b", {"seq_len": 1024}, "full")
    open_ = text.replace("train_dataset", "args=SFTConfig(max_length=None), train_dataset")
    assert read(open_, "train.py", "script").plan.training is None


def test_the_trainers_arguments_in_place_of_trls():
    """SFTTrainer takes TrainingArguments as they are: neither checkpointing nor bf16."""
    text = f"{MODEL}{MADE.replace(', bf16=True', '')}{TRAIN.replace('Trainer(', 'SFTTrainer(')}"
    found = read(text, "train.py", "script")
    assert (found.plan.memory.recompute, found.plan.numerics.precision) == ("none", "fp32")
    assert any(each.key == "recompute" and each.others == ("full",) for each in found.assumed)
