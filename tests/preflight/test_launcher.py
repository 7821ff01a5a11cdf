"""What a launch command starts: nodes, ranks of each, and the variables of the command."""

from pathlib import Path

import pytest

from simpar.errors import UserError
from simpar.frameworks.shell import Script
from simpar.preflight.given import given_text
from simpar.preflight.launcher import launch_of

TRAIN = "train.py --tensor-model-parallel-size 1"
WRITTEN = f"""worker=$(cat <<- EOM
  if [ "\\$RANK" -eq "0" ]; then sleep 3 ; fi ;
  numactl --membind=\\$((LOCAL_RANK/2)) python {TRAIN} --micro-batch-size ${{MBS:-2}}
EOM
)
echo "$worker" > worker.sh
torchrun --nproc-per-node="4" --nnodes="16" --node_rank="${{INDEX}}" --no-python bash worker.sh
"""
PRINTED = f"""#SBATCH -N 4 --ntasks-per-node=1 --gres=gpu:8
LAUNCHER="torchrun --nproc_per_node 8 --nnodes 4"
CMD="{TRAIN}"
echo $CMD
srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD"
"""


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "ranks"),
    [
        (f"torchrun --nproc-per-node 4 {TRAIN}", 1, 4, None),
        (f"torchrun --nnodes 2:2 --nproc_per_node=gpu {TRAIN}", 2, None, None),
        (f"NNODES=2 NPROC_PER_NODE=4 python {TRAIN}", 2, 4, None),
        (f"deepspeed --num_gpus 2 {TRAIN}", 1, 2, None),
        (f"deepspeed --include localhost:0,3 {TRAIN}", 1, 2, None),
        (f"deepspeed --include=worker-0:0,1@worker-1:2,3 {TRAIN}", 2, 2, None),
        (f"deepspeed -i worker-0@worker-1 {TRAIN}", 2, None, None),
        (f"accelerate launch --num_processes 4 {TRAIN}", None, None, 4),
        (f"CUDA_VISIBLE_DEVICES=0,1 accelerate launch --multi_gpu {TRAIN}", 1, 2, None),
        (f"accelerate launch {TRAIN}", 1, None, None),
        (f"msrun --worker_num 16 --local_worker_num 8 --join=False {TRAIN}", None, 8, 16),
        (f"CUDA_VISIBLE_DEVICES=0 python {TRAIN}", None, 1, None),
        (f"export HIP_VISIBLE_DEVICES=0,1\npython {TRAIN}", None, 1, None),
        (f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=a100:4\nsrun python {TRAIN}", 4, 4, None),
        (f"torchrun {TRAIN}", 1, 1, None),
        (f"torchrun --nproc-per-node=$(nvidia-smi -L | wc -l) {TRAIN}", 1, None, None),
        (f"#SBATCH -N4 --gpus-per-node=4\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS {TRAIN}".replace(
            "$GPUS", "${SLURM_GPUS_PER_NODE}"), 4, 4, None),
        (f"#SBATCH --ntasks=16\n#SBATCH --ntasks-per-node=8\nsrun python {TRAIN}", 2, 8, 16),
        (f"srun -N 1 -n 1 hostname\nsrun -N 4 --ntasks-per-node 8 bash -c 'python {TRAIN}'", 4, 8, None),
        (f"sbatch -N 2 <<EOF\n#!/bin/bash\n#SBATCH --gpus-per-node=8\ntorchrun --nproc-per-node 8 {TRAIN}\nEOF",
         1, 8, None),
        (PRINTED, 4, 8, None),
        (WRITTEN, 16, 4, None),
        (f"#SBATCH -N 2\n#SBATCH --gres=gpu:h100:4\nsrun torchrun --nnodes 2 {TRAIN}", 2, 1, None),
        (f"#SBATCH -N 2\ntorchrun --nproc_per_node 8 {TRAIN}", 1, 8, None),
        (f"#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-task=4\nsrun accelerate launch --multi_gpu {TRAIN}", 2, 4, None),
        (f"#SBATCH -N 1 --gpus=4\naccelerate launch {TRAIN}", 1, 4, None),
        (f"#SBATCH -N 2 --gpus=8\nsrun torchrun --nnodes 2 --nproc_per_node gpu {TRAIN}", 2, 4, 8),
        (f"#SBATCH --gpus=16\nsrun torchrun --nnodes 2 --nproc_per_node gpu {TRAIN}", 2, 8, 16),
        (f"#SBATCH --gpus=16 -N 2\nsrun --ntasks=16 python {TRAIN}", 2, None, 16),
        (f"#SBATCH -N 1 --tasks-per-node=4 --gpus-per-task=1\nsrun python {TRAIN}", 1, 4, None),
        (f"time CUDA_VISIBLE_DEVICES=4,5 accelerate launch {TRAIN}", 1, 2, None),
        (f"nohup time -p env CUDA_VISIBLE_DEVICES=4 accelerate launch {TRAIN}", 1, 1, None),
        (f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node $GPUS {TRAIN}", 1, 2, None),
        (f"export V=4,5,7\ntorchrun --nproc_per_node $(($(echo $V | tr -cd ',' | wc -c) + 1)) {TRAIN}", 1, 3, None),
        (f"torchrun --nnodes 1:4 --nproc_per_node 8 {TRAIN}", None, 8, None),
        (f"#PBS -l select=4:ncpus=64:ngpus=8\nmpiexec python {TRAIN}", 4, 8, None),
        (f"#PBS -l select=1:ngpus=4:mpiprocs=4+3:ngpus=4:mpiprocs=4,place=scatter\nmpiexec python {TRAIN}", 4, 4, None),
        (f"#PBS -l nodes=2:ppn=64:gpus=8\nmpirun python {TRAIN}", 2, 8, None),
        (f"#BSUB -n 16\n#BSUB -gpu 'num=8:mode=shared'\n#BSUB -R 'span[ptile=8]'\nmpirun python {TRAIN}", 2, 8, None),
        (f"#BSUB -nnodes 4\njsrun -n 24 -a 2 -g 2 python {TRAIN}", 4, None, 48),
        (f"flux run -N4 -n 32 python {TRAIN}", 4, None, 32),
        (f"#flux: -N 4\n#flux: --gpus-per-node=8\nflux run python {TRAIN}", 4, 8, None),
        (f"aprun -n 32 -N 8 python {TRAIN}", None, 8, 32),
        (f"mpiexec.hydra -ppn 8 -n 32 python {TRAIN}", None, 8, 32),
        (f"mpirun -H a:8,b:8 python {TRAIN}", 2, 8, None),
        (f"mpirun -np 32 --map-by ppr:8:node python {TRAIN}", None, 8, 32),
        (f"deepspeed --include localhost:1,0 --num_gpus 2 {TRAIN}", 1, 2, None),
        (f"deepspeed --exclude localhost:0 {TRAIN}", 1, None, None),  # as many as the hardware has left
        (f"deepspeed --exclude host1:0 {TRAIN}", None, None, None),  # of a number that only its hosts tell
        (f"cat > h <<EOF\na slots=4\nb slots=4\nEOF\ndeepspeed --hostfile h {TRAIN}", 2, 4, None),
        (f"cat > h <<EOF\na slots=4\nb slots=4\nEOF\ndeepspeed --hostfile h --exclude a {TRAIN}", 1, 4, None),
        (f"cat > h <<EOF\na slots=4\nb slots=4\nEOF\ndeepspeed --hostfile h -e a:0@b:3 {TRAIN}", 2, 3, None),
        (f"cat > h <<EOF\na slots=4\nb slots=4\nEOF\nmpirun --hostfile h -np 8 python {TRAIN}", 2, 4, 8),
        (f"cat > h <<EOF\n$HOST slots=1\nEOF\nmpirun --hostfile h -np 8 python {TRAIN}", None, None, 8),
        (f"mpiexec -H a:4,b:4 -np 8 python {TRAIN}", 2, 4, 8),
        (f"mpirun -H a:8,b:8 -np 4 python {TRAIN}", 1, 4, 4),
        (f"mpirun -np 2 -ppn 1 torchrun --nnodes 2 --nproc_per_node 4 {TRAIN}", 2, 4, None),
        (f"srun --gres=gpu:8 torchrun --nproc_per_node 4 {TRAIN}", 1, 4, None),
        (f"#SBATCH -N 2 --gpus-per-node=8\nsrun accelerate launch --num_processes 8 --num_machines 2 {TRAIN}",
         2, None, 8),
        (f"#SBATCH -N 1 --gres=gpu:a100\ntorchrun --nproc_per_node gpu {TRAIN}", 1, 1, None),
        (f"#SBATCH -N 1 --gres=gpu:your_gpus_per_node\ntorchrun --nproc_per_node gpu {TRAIN}", 1, None, None),
        (f"#SBATCH -N 1 --gres=nvme:1,gpu:a100:3\ntorchrun --nproc_per_node gpu {TRAIN}", 1, 3, None),
        (f"#SBATCH -N 1 --tres-per-node=gres/gpu:2\ntorchrun --nproc_per_node gpu {TRAIN}", 1, 2, None),
        (f"#SBATCH -N 1 --sockets-per-node=2 --gpus-per-socket=2\ntorchrun --nproc_per_node gpu {TRAIN}", 1, 4, None),
        (f"#SBATCH -N 1 --gres=gpu:4\nCUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node gpu {TRAIN}", 1, 2, None),
        (f"#SBATCH -N 2 --ntasks-per-node=4 --gpus-per-node=8\nsrun python {TRAIN}", 2, 4, None),
        (f"#SBATCH -N 2 --ntasks=8 --gpus-per-node=8\nsrun python {TRAIN}", 2, None, 8),
        (f"#SBATCH -N 2 --ntasks-per-node=4 --gpus-per-node=4\npython {TRAIN}", None, 1, None),
        (f"#$ -l gpu=2\ntorchrun --nproc_per_node gpu {TRAIN}", 1, 2, None),
        (f"export CUDA_VISIBLE_DEVICES=0\nenv -u A -u CUDA_VISIBLE_DEVICES torchrun --nproc_per_node gpu {TRAIN}",
         1, None, None),
        (f"export CUDA_VISIBLE_DEVICES=0\nunset CUDA_VISIBLE_DEVICES\ntorchrun --nproc_per_node gpu {TRAIN}",
         1, None, None),
    ],
)  # fmt: skip
def test_nodes_and_ranks(text: str, nodes: int | None, per_node: int | None, ranks: int | None) -> None:
    """Every way in which a part of a node, or several nodes, are asked for."""
    found = launch_of(text, "job.sh")
    assert (found.target, found.nodes, found.per_node, found.ranks) == ("megatron", nodes, per_node, ranks)


@pytest.mark.parametrize(("flags", "nodes", "ranks"), [("--num_processes 4", None, 4), ("", 1, None)])
def test_front_ends_that_start_accelerate_take_its_flags(flags: str, nodes: int | None, ranks: int | None) -> None:
    """TRL's, and Axolotl's; without any, the devices of one machine."""
    text = f"trl sft --model_name_or_path Qwen/Qwen3-8B --bf16 {flags}"
    found = launch_of(text, "job.sh")
    assert (found.target, found.nodes, found.ranks) == ("trl", nodes, ranks)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (f"accelerate launch --gpu_ids 0,1,2 --multi_gpu {TRAIN}", 3),
        (f"accelerate launch --gpu_ids all --num_processes 4 {TRAIN}", 4),
        (f"mpiexec -n 8 -ppn 4 python {TRAIN}", 8),
        (f"ibrun -n 8 python {TRAIN}", None),
    ],
)
def test_devices_by_number_and_other_launchers_of_ranks(text: str, ranks: int | None) -> None:
    """Devices that accelerate is given; Python that another launcher starts is not alone."""
    launch = launch_of(text, "job.sh")
    assert (launch.world_size, launch.is_single) == (ranks, False)
    assert given_text(text, "job.sh").found.plan.mesh.dp is None


def test_a_command_has_its_own_variables() -> None:
    """Those that the script set by then, and those before its words, which no other command has."""
    text = f"A=1\nB=2 C=3 true\nenv D=4 B=5 torchrun {TRAIN}\nA=6"
    assert launch_of(text, "job.sh").environment == {"A": "1", "B": "5", "D": "4"}


@pytest.mark.parametrize(
    ("text", "note", "is_single"),
    [
        (f"python {TRAIN}", "", True),
        (f"export WORLD_SIZE=256 RANK=0\npython {TRAIN}", "python is started as one of 256 ranks", False),
        (f"torchrun {TRAIN}", "torchrun starts one process of a node", False),
        (f"accelerate launch {TRAIN}", "unless its default_config.yaml says more", False),
        (f"torchrun --nproc-per-node ${{GPUS}} {TRAIN}", "taken as all devices of a node", False),
        (f"#SBATCH -N 1 --gpus-per-node=8\nsrun python {TRAIN}", "srun starts one task of a node", False),
        (f"#SBATCH -N 1 --gpus-per-node=8 --ntasks-per-node=8\nsrun python {TRAIN}", "", False),
    ],
)
def test_what_is_taken_for_granted_is_noted(text: str, note: str, is_single: bool) -> None:
    """Processes that nothing counts."""
    found = launch_of(text, "job.sh")
    assert (note in " ".join(found.notes), bool(found.notes), found.is_single) == (True, bool(note), is_single)


def test_a_line_may_go_on_behind_the_end() -> None:
    """A backslash ends the file."""
    assert launch_of(f"torchrun --nnodes 2 {TRAIN} \\\n  --bf16 \\\n", "job.sh").nodes == 2


@pytest.mark.parametrize(("between", "line"), [("# the model\n  ", 3), ("# a\n# b\n", 4), ("", None), (" \n", 2)])
def test_a_line_that_goes_on_to_nothing_is_refused(between: str, line: int | None) -> None:
    """A comment or a blank behind a backslash ends the command: the flags that follow are none of it."""
    text = f"torchrun train.py \\\n{between}--model_name_or_path a \\\n --per_device_train_batch_size 1\n"
    text = text if between != " \n" else text.replace("\\\n \n", "\\ \n", 1)
    if line is None:
        assert launch_of(text, "job.sh").target == "transformers"
        return
    with pytest.raises(UserError, match=rf"job.sh:{line}: a (comment|blank) behind"):
        launch_of(text, "job.sh")


def test_of_several_trainings_the_first_is_read_and_said() -> None:
    """Equal ones, and those of other programs, are none."""
    train = "python train.py --model_name_or_path a --per_device_train_batch_size {}"
    for others, count in (([2], 2), ([2, 4], 3), ([1], 0), ([], 0)):
        text = "\n".join(train.format(each) for each in (1, *others))
        notes = [note for note in launch_of(f"{text}\npython plot.py --out a.png", "job.sh").notes if "differ" in note]
        assert [note.partition(" ")[0] for note in notes] == [str(count)] * bool(count)


def test_names_of_packages_and_folders_start_nothing() -> None:
    """A program is what is started, not what is installed, cloned or entered."""
    text = "pip install trl -U\ngit clone https://example.org/axolotl\ncd trl\n{} --stage sft\n"
    assert launch_of(text.format("python x.py"), "job.sh").target is None
    assert launch_of(text.format("llamafactory-cli train a.yaml"), "job.sh").target == "llama-factory"


def test_a_file_of_arguments_tells_whose_a_script_is(tmp_path: Path) -> None:
    """`accelerate launch train.py recipe.yaml` is what the YAML is of; so is `--config recipe.yaml`."""
    (tmp_path / "recipe.yaml").write_text("model_name_or_path: x\nfinetuning_type: full\ncutoff_len: 8\n")
    (tmp_path / "ds.json").write_text("{}")
    job = tmp_path / "job.sh"
    start = "accelerate launch --config_file a.yaml --num_processes 4 src/train.py"
    for words in ("recipe.yaml", "--config recipe.yaml", "--config=recipe.yaml", "--deepspeed ds.json recipe.yaml"):
        job.write_text(f"{start} {words}")
        found = launch_of(job.read_text(), str(job))
        assert (found.target, found.ranks) == ("llama-factory", 4)
    job.write_text(f"{start} --deepspeed ds.json")
    assert launch_of(job.read_text(), str(job)).target == "accelerate"


@pytest.mark.parametrize("submit", ["python mason.py --gpus 8 --", "sky launch -y --", "uv run --with x --"])
def test_what_a_program_submits_is_what_counts(submit: str) -> None:
    """The command after --, with its own launcher; the program's options are named as not read."""
    found = launch_of(f"{submit} torchrun --nproc-per-node 4 {TRAIN}", "job.sh")
    assert (found.target, found.per_node, found.words[0]) == ("megatron", 4, "torchrun")
    assert "starts what stands after --" in " ".join(found.notes)
    assert launch_of(f"srun -N 2 -- torchrun --nproc-per-node 4 {TRAIN}", "job.sh").nodes == 2
    assert launch_of(f"{submit} uv run torchrun --nproc-per-node 4 {TRAIN}", "job.sh").per_node == 4


def test_nodes_that_a_launcher_is_not_told_may_decide() -> None:
    """Each of srun's tasks is a job of its own where torchrun gets no number of nodes."""
    untold = launch_of(f"srun -N 4 torchrun --nproc-per-node 8 {TRAIN}", "job.sh")
    assert (untold.world_size, list(untold.gaps)) == (32, ["--nnodes"])
    assert launch_of(f"srun -N 4 torchrun --nnodes 4 --nproc-per-node 8 {TRAIN}", "job.sh").gaps == {}


def test_a_script_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the launcher and the reader together; a text that changed is another one."""
    texts: list[str] = []
    run = Script.run
    monkeypatch.setattr(Script, "run", lambda self, text: (texts.append(text), run(self, text))[1])
    text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {TRAIN} --micro-batch-size 1\n"
    given_text(text, "job.sh")
    assert texts == [text]
    given_text(text, "job.sh")  # whose files may have changed
    assert texts == [text, text]


@pytest.mark.parametrize(
    ("flags", "world"),
    [
        ("-j 2x8 --gpu 8 --script train.py", 16),
        ("-j=1:4x8 --script train.py", 32),
        ("-j 4 -m pretrain", 4),
        ("--script train.py", 2),  # torchx' default is 1x2
    ],
)
def test_torchx_starts_torchrun(flags, world):
    """On the nodes and with the ranks of its component."""
    trainer = "--model_name_or_path gpt2 --per_device_train_batch_size 1 --max_seq_length 1024"
    started = launch_of(f"torchx run -s slurm dist.ddp {flags} -- {trainer}", "job.sh")
    assert (started.target, started.world_size) == ("transformers", world)


PARTS = f"""#SBATCH --nodes=1 --gpus-per-node=4
#SBATCH hetjob
#SBATCH --nodes=2 --gpus-per-node=8 --ntasks-per-node=8
srun --het-group=0 python serve.py &
srun --het-group=%s python {TRAIN} &
wait
"""


def test_a_step_runs_on_the_part_of_a_job_that_it_names() -> None:
    """Not on the first one; several parts, and one that the job has not, are refused."""
    launch = launch_of(PARTS % "1", "job.sh")
    assert (launch.nodes, launch.per_node) == (2, 8)
    assert launch_of(PARTS % "0", "job.sh").nodes == 1
    for part, message in (("0,1", "a step on several parts of a job; allowed: one part"), ("2", "the job has 2 parts")):
        with pytest.raises(UserError, match=f"job.sh: --het-group = {part}: {message}"):
            launch_of(PARTS % part, "job.sh")


@pytest.mark.parametrize(
    ("start", "nodes", "per_node"),
    [
        ("llamafactory-cli train a.yaml", 1, None), ("FORCE_TORCHRUN=1 uv run llamafactory-cli train a.yaml", 1, None),
        ("NNODES=2 llamafactory-cli train a.yaml", 2, None),
        ("CUDA_VISIBLE_DEVICES=0,3 llamafactory-cli sft a.yaml", 1, 2),
    ],
)  # fmt: skip
def test_llama_factorys_program_starts_the_devices_of_a_machine(start, nodes, per_node):
    """All that it sees, on one node where no variable says more; a note says so where nothing does."""
    launch = launch_of(start, "job.sh")
    assert (launch.target, launch.nodes, launch.per_node) == ("llama-factory", nodes, per_node)
    assert any("starts the devices of this machine" in note for note in launch.notes) == (
        (nodes, per_node) == (1, None)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 4 {TRAIN}", "torchrun starts 4 ranks .* 2 devices"),
        (f"docker run --gpus 2 i torchrun --nproc_per_node 4 {TRAIN}", "torchrun starts 4 ranks .* 2 devices"),
        (f"CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 {TRAIN}", "accelerate starts 2 .* 1 devices"),
        (f"NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1 swift sft {TRAIN}", "NPROC_PER_NODE starts 4 .* show 2 devices"),
        (f"torchrun --nproc_per_node cpu {TRAIN}", "--nproc-per-node cpu: allowed: a number from 1, or gpu, auto"),
        (f"torchrun --nproc_per_node eight {TRAIN}", "--nproc-per-node eight: allowed: a number from 1"),
        (f"deepspeed --include a:0,1@b:0 {TRAIN}", "--include a:0,1@b:0: nodes with unlike numbers of devices"),
        (f"mpirun -H a:4,b:8 python {TRAIN}", "job.sh: hosts with unlike numbers of slots .a 4, b 8.; allowed"),
        (f"mpirun -H a:4,b:4 -np 6 python {TRAIN}", "6 ranks leave the last host of 4 slots with 2; allowed"),
        (f"cat > h <<E\na slots=4\nE\ndeepspeed --hostfile h -e b {TRAIN}", "--exclude b: allowed: hosts of the file"),
    ],
)  # fmt: skip
def test_ranks_without_a_device_of_their_own_are_refused(text, message):
    """What would end in "invalid device ordinal", and nodes that differ, were answered for whole nodes."""
    with pytest.raises(UserError, match=message):
        launch_of(text, "job.sh")


def test_deepspeed_shows_its_ranks_other_devices_where_it_is_told_a_number():
    """``launcher/runner.py`` ignores the variable then."""
    launch = launch_of(f"CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 4 {TRAIN}", "job.sh")
    assert (launch.nodes, launch.per_node) == (1, 4)
    several = "accelerate launch --config_file two_nodes.yaml --num_processes 4"  # on nodes that the config has
    assert launch_of(f"CUDA_VISIBLE_DEVICES=0,1 {several} {TRAIN}", "job.sh").ranks == 4


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        (f"#SBATCH -N 1 --gres=gpu:a100_3g.20gb:1\npython {TRAIN}", "--gres"),
        (f"#SBATCH -N 1 --gres=gpu:1g.10gb:1\npython {TRAIN}", "--gres"),
        (f"#SBATCH -N 1 --gres=shard:4\npython {TRAIN}", "--gres"),
        (f"docker run --gpus device=0:1 i python {TRAIN}", "--gpus"),
        (f"CUDA_VISIBLE_DEVICES=$(pick) torchrun --nproc_per_node gpu {TRAIN}", "CUDA_VISIBLE_DEVICES"),
        (f"#SBATCH -N 1 --gres=gpu:2\ntorchrun --nproc_per_node 4 {TRAIN}", "--nproc-per-node"),
        (f"#SBATCH -N 1 --gres=gpu:2\nswift sft {TRAIN}", "NPROC_PER_NODE"),
        (f"#SBATCH -N 1 --gres=gpu:2\ntorchrun --nproc_per_node 2 {TRAIN}", ""),
        (f"CUDA_VISIBLE_DEVICES=$(pick) torchrun --nproc_per_node 2 {TRAIN}", ""),
    ],
)
def test_devices_that_are_open_may_decide(text, gap):
    """Slices and shares, devices that only running would tell, and fewer than ranks."""
    assert [*launch_of(text, "job.sh").gaps] == [gap] * bool(gap)
