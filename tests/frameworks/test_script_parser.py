"""Arguments of a script's own command line: by flags, or by default."""

import pytest

from simpar.errors import UserError
from simpar.frameworks.script_code import arguments_of_code
from simpar.verbs import check

PARSES = """
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", type=str, default="Qwen/Qwen2.5-0.5B")
    parser.add_argument("--batch-size", type=int, {batch})
    parser.add_argument("--lora", dest="adapt", action="store_true")
    parser.add_argument("--note", default="")
    return parser.parse_args()
"""
TRAINS = """
def train(args):
    peft_config = LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.0) if args.adapt else None
    options = SFTConfig(output_dir="o", per_device_train_batch_size=args.batch_size, max_length=512, packing=True,
                        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"}, bf16=True)
    SFTTrainer(model=args.model, args=options, peft_config=peft_config).train()
train(parse_args())
"""


USES = "a = p.parse_args()\nSFTConfig(max_length=a.n)"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script that parses arguments, in the folder where commands start."""
    monkeypatch.chdir(tmp_path)
    return lambda batch: (tmp_path / "train.py").write_text(f"from trl import *\n{PARSES.format(batch=batch)}{TRAINS}")


def test_flags_go_before_defaults(script):
    """Those of the command are read, and are words that were used; without any a note says so."""
    script("default=2")
    alone = check("train.py", hardware="dgx-h100")
    plan = alone.given.found.plan
    assert (plan.model, plan.micro_batch, plan.tuning.lora_rank) == ("qwen2.5-0.5b", 2, None)
    assert any("read as started without arguments" in note for note in alone.notes)
    told = check("torchrun --nproc_per_node 2 train.py -m Qwen/Qwen3-0.6B --batch-size 4 --lora", hardware="dgx-h100")
    plan = told.given.found.plan
    assert (plan.model, plan.micro_batch, plan.tuning.lora_rank) == ("qwen3-0.6b", 4, 8)
    assert {"-m", "--batch-size", "--lora"} <= {word.replace("--m", "-m") for word in told.account.used}
    assert told.account.is_understood


def test_what_must_be_given_is_asked_for_by_its_flag(script):
    """As the command takes it."""
    script("required=True")
    match = r"train.py:13: per_device_train_batch_size = args.batch_size: .*--batch_size in the command"
    with pytest.raises(UserError, match=match):
        check("train.py", hardware="dgx-h100")
    assert check("python train.py --batch-size 8", hardware="dgx-h100").given.found.plan.micro_batch == 8


@pytest.mark.parametrize(
    ("code", "flags", "expected"),
    [
        ("p.add_argument('--n', default=1)\na = p.parse_args()\nSFTConfig(max_length=a.n)", {}, 1),
        ("p.add_argument('--n', default=1)\na, b = p.parse_known_args()\nSFTConfig(max_length=a.n)", {"n": 4}, 4),
        (f"p.add_argument('--n', default=1)\nq.add_argument('--n', default=2)\n{USES}", {}, None),
        (f"p.add_argument('--n', default=1)\np.set_defaults(n=3)\n{USES}", {}, None),
        ("p.add_argument('--n', default=1)\na = p.parse_args(['--n', '2'])\nSFTConfig(max_length=a.n)", {}, None),
        ("p.add_argument('--n', default=1)\na = p.parse_args([])\nSFTConfig(max_length=a.n)", {}, 1),
        ("p.add_argument('--n', default=1)\na = p.parse_args()\na.n = f()\nSFTConfig(max_length=a.n)", {}, None),
        (f"p.add_argument('--n', action='store_false')\n{USES}", {}, True),
        ("def main(n=1):\n  SFTConfig(max_length=n)\nfire.Fire(main)", {}, 1),
        ("def main(n: int = 1):\n  SFTConfig(max_length=n)\nfire.Fire(main)", {"n": 7}, 7),
    ],
)  # fmt: skip
def test_arguments(code, flags, expected):
    """Of argparse and fire; None where only running tells."""
    found = arguments_of_code(code, "a.py", flags)
    assert found.values.get("max_length") == expected
    assert ("max_length" in found.untold) is (expected is None)
