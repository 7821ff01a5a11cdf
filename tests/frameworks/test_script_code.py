"""What calls in a script's code say of a trainer's arguments."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks.script_code import arguments_of_code, code_of_notebook, has_trainer, shell_of_notebook


def values(*lines):
    """The arguments that lines of code say."""
    return dict(arguments_of_code("\n".join(lines), "train.py").values)


def untold(*lines):
    """Those that only running tells."""
    return dict(arguments_of_code("\n".join(lines), "train.py").untold)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["SFTConfig(max_length=1024, packing=True)"], {"max_length": 1024, "packing": True}),
        (["n = 4", "TrainingArguments(gradient_accumulation_steps=32 // n)"], {"gradient_accumulation_steps": 8}),
        (["transformers.TrainingArguments(warmup_ratio=-0.5)"], {"warmup_ratio": -0.5}),
        (["LoraConfig(r=8, target_modules=['q_proj'])"], {"lora_r": 8, "lora_target_modules": ["q_proj"]}),
        (["o = dict(a=1)", "o2 = {'optim': 'adamw_8bit'}", "SFTConfig(**o2)"], {"optim": "adamw_8bit"}),
        (["BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)"],
         {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}),
        # the first model is trained, a later one may be what generates with it
        (["AutoModelForCausalLM.from_pretrained('a/b', torch_dtype=torch.float16)",
          "AutoModelForCausalLM.from_pretrained('c/d')"], {"model_name_or_path": "a/b", "torch_dtype": "float16"}),
        (["o = {'dtype': 'auto', 'quantization_config': Made()}", "AutoModelForCausalLM.from_pretrained('a/b', **o)"],
         {"model_name_or_path": "a/b", "dtype": "auto"}),
        (["peft = LoraConfig(r=8)", "SFTTrainer(args=SFTConfig(max_length=8))"], {"max_length": 8}),
        (["peft = LoraConfig(r=8)", "SFTTrainer(peft_config=peft)"], {"lora_r": 8}),
        (["AutoTokenizer.from_pretrained('c/d', max_length=3)"], {}),
        (["FastModel.get_peft_model(model, r=8)"], {"r": 8}),
        (["get_peft_model(model, config)"], {}),
        (["model.gradient_checkpointing_enable()"], {"gradient_checkpointing": True}),
        (["prepare_model_for_kbit_training(m, use_gradient_checkpointing=False)"], {"gradient_checkpointing": False}),
        # which 16 bits is left to the device
        (["SFTConfig(bf16=is_bfloat16_supported(), fp16=not torch.cuda.is_bf16_supported())"], {}),
        (["d = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16", "SFTConfig(dtype=d)"], {}),
    ],
)  # fmt: skip
def test_what_calls_say(lines, expected):
    """Literals, names that are assigned once, and arithmetic of them."""
    assert values(*lines) == expected
    assert untold(*lines) == {}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["SFTConfig(max_length=args.length)"], {"max_length": "args.length"}),
        (["n = 1", "n = 2", "def f():", "    SFTConfig(max_length=n)"], {"max_length": "n"}),
        (["for n in (1, 2):", "    SFTConfig(max_length=n)"], {"max_length": "n"}),
        (["a, b = 1, 2", "SFTConfig(max_length=a)"], {"max_length": "a"}),
        (["a = b", "b = a", "SFTConfig(max_length=a)"], {"max_length": "a"}),
        (["SFTConfig(max_length=1 // 0)"], {"max_length": "1 // 0"}),
        (["SFTConfig(**options)"], {"**options": "options"}),
        (["o = dict(max_length=f())", "SFTConfig(**o)"], {"max_length": "f()"}),
        (["o = {**own, f(): 8}", "SFTConfig(**o)"], {"**o": "o"}),
        (["SFTConfig(packing=True if x else False)"], {"packing": "True if x else False"}),
    ],
)
def test_what_only_running_tells(lines, expected):
    """It is named as the code writes it, never guessed; a circle of names ends."""
    found = untold(*lines)
    assert found.keys() == expected.keys()
    assert values(*lines) == {}


def test_names_assigned_alike():
    """Twice the same is one value."""
    assert values("n = 2", "n = 2", "SFTConfig(max_length=n)") == {"max_length": 2}


@pytest.mark.parametrize(
    ("text", "owned"),
    [
        ("args = SFTConfig(", True),
        ("args = DPOConfig(", True),
        ("parser = HfArgumentParser((SFTConfig,))\nargs = SFTConfig(", False),
        ("class MySFTConfig(SFTConfig): pass", False),
        ("import torch", False),
    ],
)
def test_whose_arguments_are_in_the_code(text, owned):
    """Scripts with a parser take them from the command."""
    assert has_trainer(text) is owned


def test_a_notebook():
    """Cells of code, without what the shell gets; lines stay in their order."""
    cells = [
        {"cell_type": "markdown", "source": ["SFTConfig(max_length=1)"]},
        {"cell_type": "code", "source": ["!pip install trl\n", "%cd x\n", "n = 2"]},
        {"cell_type": "code", "source": "%%capture\nSFTConfig(max_length=3)"},
        {"cell_type": "code", "source": "SFTConfig(max_length=n)"},
    ]
    assert values(code_of_notebook(json.dumps({"cells": cells}), "a.ipynb")) == {"max_length": 2}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "[" * 100_000])
def test_what_is_no_notebook(text):
    """In one line."""
    with pytest.raises(UserError, match=r"a\.ipynb: no notebook"):
        code_of_notebook(text, "a.ipynb")


@pytest.mark.parametrize("text", ["x = (", "x = 1\n  y = 2", "\0", "(" * 5000])
def test_what_is_no_python(text):
    """In one line, with the number of the line where there is one."""
    with pytest.raises(UserError, match=r"train\.py(:\d+)?: not Python"):
        arguments_of_code(text, "train.py")


def test_what_a_notebook_gives_to_a_shell():
    """Lines that go on, cells of bash, files that it writes, and variables; nothing of its Python."""
    cells = [
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n%env A=b\n%cd x\nprint(1)",
        "!python train.py \\\n    --lr 1\nx = 2",
        "%%bash\nls",
        "%%writefile c.yaml\na: 1",
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    assert shell_of_notebook(text, "a.ipynb").splitlines() == [
        "export CUDA_VISIBLE_DEVICES='0,1'", "export A='b'", "cd x", "python train.py \\", "    --lr 1", "ls",
        "cat > c.yaml <<'END_OF_CELL'", "a: 1", "END_OF_CELL",
    ]  # fmt: skip
    assert shell_of_notebook('{"cells": []}', "a.ipynb") == ""
