"""What ``simpar check`` takes of a processor, whole processes from start to end, for launches of several sizes.

    python benchmarks/check_speed.py [--repeat 5]

CPU time (user and system) of the fastest of some repetitions, with compiled bytecode as an installed package has it,
and of ``simpar --help`` beside it: what the start alone takes.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 8192"
)
COMMON = "--micro-batch-size 1 --bf16 --use-distributed-optimizer --sequence-parallel"
JOBS = {
    "Llama 3 8B on 8 GPUs": ("llama-3-8b", 1, f"{LLAMA_8B} --tensor-model-parallel-size 2 --global-batch-size 64"),
    "Llama 3 8B on 32 GPUs": ("llama-3-8b", 4, f"{LLAMA_8B} --tensor-model-parallel-size 8 --global-batch-size 128"),
    "Mixtral 8x7B on 64 GPUs": (
        "mixtral-8x7b", 8, ("--seq-length 4096 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--expert-model-parallel-size 8 --global-batch-size 256"),
    ),
    "Llama 3 70B on 512 GPUs": (
        "llama-3-70b", 64, ("--seq-length 8192 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 "
        "--num-virtual-stages-per-pipeline-rank 5 --global-batch-size 1024"),
    ),
    "Llama 3.1 405B on 16,384 GPUs": (
        "llama-3.1-405b", 2048, ("--num-layers 126 --seq-length 8192 --tensor-model-parallel-size 8 "
        "--pipeline-model-parallel-size 16 --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7 "
        "--global-batch-size 2048"),
    ),
}  # fmt: skip


def cpu_s(arguments: list[str], repeat: int) -> float:
    """CPU seconds of the fastest of some processes."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = kept | {"PYTHONPYCACHEPREFIX": folder}
        found = [_one([sys.executable, "-m", "simpar", *arguments], environment) for _ in range(repeat + 1)]
    return min(found[1:])  # the first writes bytecode


def _one(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for every launch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(f"{'simpar --help':32} {cpu_s(['--help'], repeat):.2f} s")
    for name, (model, nodes, flags) in JOBS.items():
        command = f"torchrun --nproc-per-node 8 --nnodes {nodes} pretrain_gpt.py {flags} {COMMON}"
        taken = cpu_s(["check", "--hardware", "dgx-h100", "--model", model, "--", *command.split()], repeat)
        print(f"{name:32} {taken:.2f} s")


if __name__ == "__main__":
    main()
