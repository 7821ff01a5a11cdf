"""Launchers: their flags for nodes and ranks, front ends that start ranks themselves, and variables that they take."""

Flags = dict[str, tuple[str, ...]]
NODES: Flags = {
    "torchrun": ("--nnodes",),
    "srun": ("--nodes", "-N"),
    "sbatch": ("--nodes", "-N"),
    "deepspeed": ("--num_nodes", "--num-nodes"),
    "accelerate": ("--num_machines", "--num-machines"),
    "train.sh": ("--nodes",),
    "setup_experiment.py": ("--nodes",),
    "flux": ("--nodes", "-N"),
    "bcprun": ("-n", "--nnodes"),
    "fabric": ("--num-nodes", "--num_nodes"),
}
"""Flags for the number of nodes, by launcher; torchrun's also hold for torch.distributed.run and .launch."""
PER_NODE: Flags = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "srun": ("--gpus-per-node", "--ntasks-per-node", "--gres", "--tres-per-node"),
    "sbatch": ("--gpus-per-node", "--ntasks-per-node", "--gres", "--tres-per-node"),
    "deepspeed": ("--num_gpus", "--num-gpus"),
    "msrun": ("--local_worker_num", "--local-worker-num"),
    "mpirun": ("-npernode", "--npernode", "-ppn", "--ppn", "-perhost", "--perhost", "-N"),
    "aprun": ("-N",),
    "bcprun": ("-p", "--npernode"),
    "flux": ("--tasks-per-node", "--gpus-per-node"),
    "composer": ("--nproc", "-n"),
    "fabric": ("--devices",),
    "train.sh": ("--gpus-per-node", "--gpus_per_node"),
    "setup_experiment.py": ("--gpus-per-node", "--gpus_per_node", "-gn"),
}
"""Flags for the ranks per node."""
RANKS: Flags = {
    "mpirun": ("-np", "-n", "--n"),
    "accelerate": ("--num_processes", "--num-processes"),
    "msrun": ("--worker_num", "--worker-num"),
    "srun": ("--ntasks", "-n", "--gpus", "-G"),
    "sbatch": ("--ntasks", "-n", "--gpus", "-G"),
    "setup_experiment.py": ("--num_gpus", "-ng"),
    "xpk": (),
    "jsrun": (),
    "aprun": ("-n",),
    "flux": ("--ntasks", "-n"),
    "composer": ("--world_size",),
}
"""Flags for the total number of ranks."""
TASKS = (
    "--ntasks-per-node", "--ntasks", "-n", "-np", "--n", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost",
    "--perhost", "-N",
)  # fmt: skip
"""Flags that count tasks: ranks, unless each task is a launcher that starts the ranks of its node."""
OF_A_NODE = ("torchrun", "deepspeed", "accelerate", "composer", "fabric")
"""Launchers that start the ranks of one node."""
ALONE: Flags = {
    "torchrun": NODES["torchrun"],
    "deepspeed": (*NODES["deepspeed"], "--hostfile", "-H", "--include", "-i", "--exclude", "-e"),
    "accelerate": (*NODES["accelerate"], *RANKS["accelerate"], "--config_file", "--config-file", "--accelerate_config"),
    "composer": RANKS["composer"],
    "fabric": NODES["fabric"],
}
"""Launchers that start a single node unless one of these flags is given, first a number of nodes or ranks."""
OF_MACHINE = "deepspeed starts the devices of this machine, unless /job/hostfile names more (--hostfile)."
"""The note on a launch by DeepSpeed that says no nodes: it looks for that file itself (``launcher/runner.py``)."""
OF_DEFAULTS = "accelerate starts the devices of this machine, unless its default_config.yaml says more (--config_file)."
"""The note on a launch by accelerate that says neither processes nor a config (``commands/launch.py``)."""
OF_CLI = "llamafactory-cli starts the devices of this machine, unless CUDA_VISIBLE_DEVICES or NNODES says otherwise."
"""The note on its command without a launcher or a variable (``launcher.py``: torchrun on all devices)."""
UNTOLD = {"deepspeed": OF_MACHINE, "accelerate": OF_DEFAULTS}
OF_AUTOTRAIN = "autotrain starts the devices of this machine that CUDA_VISIBLE_DEVICES shows."
OF_PROGRAM = {"llamafactory-cli": OF_CLI, "autotrain": OF_AUTOTRAIN}
"""The notes on commands of front ends that start all devices of the machine."""
STARTS_ITSELF = ("llama-factory", "trl", "axolotl", "autotrain")
"""Front ends that start the ranks of one node themselves."""
MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "tune": "torchrun",
           "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed"}  # fmt: skip
ALIASES = {
    "xpk.py": "xpk", "salloc": "sbatch", "automodel": "torchrun", "ds": "deepspeed", "lightning": "fabric",
    **dict.fromkeys(("mpiexec", "mpiexec.hydra", "horovodrun"), "mpirun"),
    **dict.fromkeys(("trl", "axolotl"), "accelerate"),  # which they start, with those of its flags that they are given
    "arctic_training": "deepspeed",  # whose words it hands on
}  # fmt: skip
OF_ONE_NODE = {"run_train.sh": 8}
"""Scripts of frameworks that start one node, with as many ranks as a variable of :data:`OF_NODE` says, or these."""
OF_RAY = {
    "nodes": ("trainer.nnodes", "--actor-num-nodes", "--actor_num_nodes", "--actor.num_nodes"),
    "each": ("trainer.n_gpus_per_node", "--actor-num-gpus-per-node",
             "--actor_num_gpus_per_node", "--actor.num_gpus_per_node"),
}  # fmt: skip
"""Options of trainers that Ray starts on their own nodes: verl, slime, OpenRLHF."""
NAMING = ("CONFIG_FILE", "MODULE", "CONFIG")
"""Variables in which such a script takes what it trains; readers see them before the words of the command."""
OF_NODE = ("NPROC_PER_NODE", "NGPU", "PET_NPROC_PER_NODE")
"""Variables in which front ends take the ranks of a node (ms-swift, LLaMA-Factory; torchtitan; torchrun itself)."""
GENERAL = ("transformers", "accelerate", "deepspeed")
"""Readers of commands that may start a front end, which only the file of its arguments tells."""
OF_ONE = ("megatron-swift", "swift", "oumi")
"""Readers of front ends that start one process where no variable asks for more."""
OF_NODES = ("NNODES", "PET_NNODES")
"""Variables in which the same front ends take the number of nodes."""
ALL_OF_NODE = ("gpu", "auto", "cuda", "xpu", "npu", "hpu", "musa", "mlu")
"""Values of torchrun's ``--nproc-per-node`` that mean every device."""
INCLUDED = ("--include", "-i")


IDLE = (
    "--rdzv*", "--master*", "--node-rank", "--standalone", "--log-dir", "--local-ranks-filter", "--tee", "--redirects",
    "-r", "--max-restarts", "--monitor-interval", "--role", "--start-method", "--hostfile", "--machine-rank",
    "--main-process-*", "--launcher", "--num-cpu-threads-per-process", "--job-name", "--partition", "--account",
    "--time", "--output", "--error", "--exclusive", "--cpus-per-task", "--mem", "--container-*", "--no-container-*",
    "--label", "--export", "--ssh-port", "--no-python", "--module", "-m", "--jobid", "--wait", "--kill-on-bad-exit",
    "--mpi", "--membind", "--mem-bind", "--cpunodebind", "--cpu-bind", "--unbuffered", "--qos", "--constraint",
    "--chdir", "--join", "--cluster-time-out", "--bind-core", "--allow-run-as-root", "--bind-to", "--map-by", "--mca",
    "--report-bindings", "--oversubscribe", "--tag-output", "--host", "--hosts", "--depth", "--cc",
    "--force-multi", "--no-ssh*", "--no-local-rank", "--enable-each-rank-log", "--save-pid", "--bind-cores*",
    "--launcher-args", "--venv-script", "--use-env",
    # of containers, environments and profilers before them
    "--rm", "--nv", "--rocm", "--shm-size", "--ipc", "--ulimit", "--network", "--workdir", "--privileged", "--cap-add",
    "--security-opt", "--cleanenv", "--fakeroot", "--writable-tmpfs", "--containall", "--no-home", "--pwd",
    "--no-capture-output", "--live-stream", "--capture-range*", "--cuda-memory-usage", "--cudabacktrace",
    "--force-overwrite", "--trace*", "--python-sampling*", "--python-backtrace", "--gpu-metrics-*", "--sample",
    "--stats", "--bind", "--accel-bind", "--gpu-bind", "--overlap", "--display-*", "--rank-by", "--use-hwthread-cpus",
    "--runtime", "--nooversubscribe", "--timestamp-output", "--output-filename", "--worker", "--zone", "--project",
)  # fmt: skip
"""Launchers' flags that change neither the layout nor the time of a step, as patterns."""
FILLS, FILLED = ("oumi", "distributed"), ("SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE")
"""A program, and its first word, that tells the launcher behind it nodes and ranks; where it takes them from.

Without these it asks the batch system, or takes all devices that it sees (oumi, ``cli/distributed_run.py``).
"""
