"""What Makefiles and Dockerfiles start."""

import pytest

from simpar.errors import UserError
from simpar.preflight.build_files import is_build_file, shell_of
from simpar.preflight.given import given_file, given_words

ARGS = "--model_name_or_path gpt2 --per_device_train_batch_size 2 --block_size 512 --bf16"
MAKE = f"""
# GPUS = 2
GPUS ?= 4
ARGS := {ARGS}
ARGS += --packing
RUN = torchrun --nproc_per_node=$(GPUS)
define HELP
\timport "x
endef

data/%.bin: prepare.py
\t@echo $< $@

train: data/a.bin  # all of it
\t-@$(RUN) train.py \\
\t    $(ARGS) --seed $(SEED) --run_name "$$USER"
"""


def test_a_makefiles_variables_are_not_the_shells():
    """Each recipe on its line; what make does not set is the shell's."""
    lines = shell_of(MAKE, "x/Makefile", {}).splitlines()
    assert lines[11] == "echo prepare.py data/%.bin"
    assert lines[14] == "torchrun --nproc_per_node=4 train.py \\"
    assert lines[15].strip() == f'{ARGS} --packing --seed ${{SEED}} --run_name "$USER"'
    assert not any(lines[:11])
    assert [is_build_file(name) for name in ("x/Makefile", "a.mk", "Dockerfile.gpu", "train.sh")] == [True] * 3 + [
        False
    ]


def test_what_a_makefile_starts(tmp_path):
    """On the devices of its variable, not on all of a node."""
    (tmp_path / "Makefile").write_text(MAKE)
    given = given_file(str(tmp_path / "Makefile"))
    assert (given.text.target, given.launch.world_size, given.found.plan.model) == ("transformers", 4, "gpt2")
    assert given.text.syntax is None  # which no patch can change
    assert given_words(["GPUS=2", str(tmp_path / "Makefile")]).launch.world_size == 2
    (tmp_path / "Dockerfile").write_text(f"ENV N=4\nCMD torchrun --nproc_per_node=$N train.py {ARGS}\n")
    assert given_words(["N=2", str(tmp_path / "Dockerfile")]).launch.world_size == 2


def test_a_recipe_that_is_no_shell_text_hides_no_other(tmp_path):
    """It is named with its line, also where nothing else starts a training."""
    (tmp_path / "Makefile").write_text(f"help:\n\techo it's\n\n{MAKE}")
    given = given_file(str(tmp_path / "Makefile"))
    assert given.launch.world_size == 4
    assert given.found.notes[-1] == f"{tmp_path}/Makefile:2: a recipe that is no shell text: it is not read."
    (tmp_path / "Makefile").write_text("help:\n\techo it's\nother:\n\techo x\n")
    with pytest.raises(UserError, match=r"no launch of a framework .*\. .*/Makefile:2: a recipe that is no shell text"):
        given_file(str(tmp_path / "Makefile"))


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        (f"ENV N=2\nCMD torchrun --nproc_per_node=$N train.py {ARGS}", 2),
        ("ENTRYPOINT [\"torchrun\", \"--nproc_per_node=4\"]\nCMD [\"train.py\", " + ", ".join(
            f'"{word}"' for word in ARGS.split()) + "]", 4),
        (f"ARG N=8\nCMD sleep 1\nCMD torchrun \\\n  # all\n  --nproc_per_node=${{N}} train.py {ARGS}", 8),
        (f"ENV N 2\nENTRYPOINT torchrun --nproc_per_node=$N train.py {ARGS}", 2),
    ],
)  # fmt: skip
def test_what_an_image_starts(tmp_path, lines, devices):
    """Its last command, behind its entry point, with its variables."""
    path = tmp_path / "train.Dockerfile"
    path.write_text(f"FROM a\nRUN pip install b\n{lines}\n")
    assert given_file(str(path)).launch.world_size == devices


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("Dockerfile", "FROM a\n", "has no CMD or ENTRYPOINT"),
        ("Dockerfile", 'CMD ["sleep", 1, true]\n', "no launch of a framework"),
        ("Makefile", "A = $(A)\nx:\n\ttorchrun $(A) train.py\n", "train.py is no script"),
        ("Makefile", 'x:\n\techo "\n', r"Makefile \(its command\):2: not shell text"),
        ("rules.mk", "", "no launch of a framework"),
    ],
)
def test_what_starts_nothing_is_refused(tmp_path, name, text, message):
    """In one line, with the file."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        given_file(str(path))
    assert "\n" not in str(error.value)
