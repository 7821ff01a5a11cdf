"""Branches of a script: what does not run is not read, and what only running decides is told."""

import pytest

from simpar.frameworks.script_branches import CONDITION, OF_BRANCHES
from simpar.frameworks.script_code import arguments_of_code
from simpar.verbs import check

LORA = "c = LoraConfig(r=16)"
ARGUMENTS = "a = SFTConfig(max_length=512)"


@pytest.mark.parametrize(
    ("code", "rank", "is_told"),
    [
        (f"USE = False\nif USE:\n  {LORA}", None, False), (f"USE = True\nif USE:\n  {LORA}", 16, False),
        (f"if x:\n  {LORA}", 16, True), (f"if x:\n  print(1)\n{LORA}", 16, False),
        (f"M = 'full'\nif M == 'lora':\n  {LORA}\nelif M == 'full':\n  print(1)\nelse:\n  {LORA}", None, False),
        ("c = LoraConfig(r=16) if False else None", None, False), ("c = LoraConfig(r=16) if x else None", 16, True),
        (f"if __name__ == '__main__':\n  {LORA}", 16, False), (f"def f():\n  if 0:\n    {LORA}", None, False),
        ("r = 16\nif False:\n  r = 8\nc = LoraConfig(r=r)", 16, False),
        (f"{LORA}\ntrainer.train()\nif x:\n  m = AutoModelForCausalLM.from_pretrained('a')", 16, False),
        (f"{LORA}\nif x:\n  m = AutoModelForCausalLM.from_pretrained('a')\ntrainer.train()", 16, True),
        (f"{LORA}\nif x:\n  for p in ps:\n    p.requires_grad = False\ntrainer.train()", 16, True),
        (f"{LORA}\nif tokenizer.pad_token is None:\n  tokenizer.pad_token = 'a'", 16, False),
    ],
)  # fmt: skip
def test_branches(code, rank, is_told):
    """Of conditions that the code decides one; others are told where they decide what is trained."""
    found = arguments_of_code(f"{ARGUMENTS}\n{code}\nadapt(c)\n", "a.py")
    assert (found.values.get("lora_r"), CONDITION in found.conditions) == (rank, is_told)
    assert {*found.conditions} <= {*OF_BRANCHES}


def test_a_script_whose_switch_is_off_trains_all_parameters(tmp_path):
    """And one whose switch only running tells is not sure, whatever the prediction says."""
    file = tmp_path / "train.py"
    for switch, rank, decides in (("False", None, set()), ("True", 8, set()), ("f()", 8, {CONDITION})):
        file.write_text(f"""
from trl import SFTConfig, SFTTrainer
USE = {switch}
peft = None
if USE:
    peft = LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.0)
args = SFTConfig(output_dir="o", per_device_train_batch_size=1, max_length=512, packing=True, bf16=True,
                 gradient_checkpointing=True, model_init_kwargs={{"dtype": "float32", "attn_implementation": "sdpa"}})
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, peft_config=peft).train()
""")
        checked = check(str(file), hardware="dgx-h100")
        assert (checked.given.found.plan.tuning.lora_rank, {*checked.account.deciding}) == (rank, decides)
