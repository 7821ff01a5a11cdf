"""Variables that a script in Python sets for itself."""

import pytest

from simpar.frameworks.script_environment import variables_of_code
from simpar.preflight.given import given_file

SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF"
SCRIPT = """import os
{}
from transformers import Trainer, TrainingArguments, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B")
args = TrainingArguments(output_dir="x", per_device_train_batch_size=2, bf16=True)
trainer = Trainer(model=model, args=args, train_dataset=ds)
trainer.train()
os.environ["LATE"] = "1"
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('os.environ["A"] = "1"', {"A": "1"}),
        ("os.environ['A'] = str(1)", {"A": "1"}),
        ('os.environ.setdefault("A", "1")', {"A": "1"}),
        ('os.environ.setdefault("G", "1")', {}),
        ('os.environ["A"] = "1"\nos.environ.setdefault("A", "2")', {"A": "1"}),
        ('os.environ["A"] = "1"\nos.environ["A"] = "2"', {"A": "2"}),
        ('os.environ.update({"A": "1", "B": "2"}, C="3")', {"A": "1", "B": "2", "C": "3"}),
        ('os.putenv("A", "1")', {"A": "1"}),
        ('from os import environ\nenviron["A"] = "1"', {"A": "1"}),
        ('def main():\n    os.environ["A"] = "1"', {"A": "1"}),
        ('if __name__ == "__main__":\n    os.environ["A"] = "1"', {"A": "1"}),
        ('if debug:\n    os.environ["A"] = "1"', {}),
        ('os.environ["A"] = value', {}),
        ('other["A"] = "1"', {}),
        ("os.environ[", {}),
    ],
)
def test_variables_in_code(code: str, expected: dict[str, str]) -> None:
    """What only running or a condition tells is left out; a default stays behind what is given."""
    assert variables_of_code(code, {"G": "0"}) == expected


@pytest.mark.parametrize("started", ["", "torchrun --nproc-per-node 2 train.py", "PYTHONPATH=. python train.py"])
def test_a_script_says_how_memory_is_allocated(tmp_path, started: str) -> None:
    """Alone, or as a command starts it: over what the command says, before it trains."""
    line = f'os.environ["{SEGMENTS}"] = "expandable_segments:True"'
    (tmp_path / "train.py").write_text(SCRIPT.format(line))
    path = tmp_path / "train.py"
    if started:
        path = tmp_path / "job.sh"
        path.write_text(f"export {SEGMENTS}=expandable_segments:False\n{started}\n")
    given = given_file(str(path))
    assert given.found.plan.execution.expandable_segments is True
    assert "LATE" not in given.launch.environment
