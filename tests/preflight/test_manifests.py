"""YAML that starts a command on a cluster: the command, the nodes, and the devices of each."""

from pathlib import Path

import pytest
import yaml

from simpar.errors import UserError
from simpar.preflight.given import given_words
from simpar.preflight.manifests import manifest_of
from simpar.verbs import check

TRAIN = "train.py --model_name_or_path $MODEL --bf16 --per_device_train_batch_size 1 --fsdp full_shard"
SKYPILOT = f"""
resources: {{accelerators: %s}}
num_nodes: 2
envs: {{MODEL: Qwen/Qwen3-8B}}
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE {TRAIN}
"""
CONTAINER = f"""{{name: a, env: [{{name: MODEL, value: Qwen/Qwen3-8B}}, {{name: POD, valueFrom: {{}}}}],
  resources: {{limits: {{nvidia.com/gpu: 4}}}}, command: [bash, -c], args: ["torchrun --nproc_per_node 4 {TRAIN}"]}}"""
PYTORCH_JOB = f"""
apiVersion: v1
kind: ConfigMap
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: {{replicas: 1, template: {{spec: {{containers: [{CONTAINER}]}}}}}}
    Worker: {{replicas: 2, template: {{spec: {{containers: [{{name: a}}]}}}}}}
"""
POD = f"""
apiVersion: v1
kind: Pod
spec: {{containers: [{{name: sidecar}}, {CONTAINER.replace("torchrun --nproc_per_node 4", "accelerate launch")}]}}
"""


@pytest.mark.parametrize(
    ("text", "devices"), [(SKYPILOT % '"H100:8"', 16), (SKYPILOT % "{A100-80GB: 4}", 8), (PYTORCH_JOB, 12), (POD, 4)]
)
def test_the_command_that_a_manifest_starts_is_read(text: str, devices: int, tmp_path: Path) -> None:
    """With the variables that it sets, on what it asks for; no text is edited."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    result = given_words([str(path)])
    assert (result.found.plan.model, result.found.plan.zero) == ("qwen3-8b", 3)
    assert result.launch.world_size == devices
    assert result.text.syntax is None


def test_files_of_a_task_are_those_that_it_copies_from_here(tmp_path: Path) -> None:
    """SkyPilot's ``file_mounts``; a store of objects is no folder here."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run.yaml").write_text(
        "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nmicro_batch_size: 3\ndatasets: [{path: a}]\nbf16: true\n"
    )
    path = tmp_path / "job.yaml"
    path.write_text(
        "resources: {accelerators: H100:8}\nfile_mounts: {/configs: ./here/, /data: s3://bucket}\n"
        "run: accelerate launch -m axolotl.cli.train /configs/run.yaml\n"
    )
    result = given_words([str(path)])
    assert (result.text.target, result.found.plan.micro_batch) == ("axolotl", 3)


def test_a_set_of_jobs_has_the_pods_and_tpus_of_all(tmp_path: Path) -> None:
    """Two containers of a pod share the chips of a host; every job of the set has its own pods."""
    container = """{name: %s, resources: {limits: {google.com/tpu: 2}}, command: [bash, -c], args: ["python3 -m
      maxtext.trainers.pre_train.train configs/base.yml model_name=llama3-8b per_device_batch_size=1"]}"""
    pod = f"{{spec: {{containers: [{container % 'a'}, {container % 'b'}]}}}}"
    job = f"{{replicas: 2, template: {{spec: {{parallelism: 16, completions: 16, template: {pod}}}}}}}"
    path = tmp_path / "set.yaml"
    path.write_text(f"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec: {{replicatedJobs: [{job}]}}\n")
    result = given_words([str(path)])
    assert (result.text.target, result.launch.nodes, result.launch.per_node) == ("maxtext", 32, 4)


NAMED = TRAIN.replace("$MODEL", "Qwen/Qwen3-8B")
IMAGE = f"resources: {{limits: {{nvidia.com/gpu: 8}}}}, command: [bash, -c], args: ['torchrun %s {TRAIN}']"
POD_OF = f"template: {{spec: {{containers: [{{{IMAGE}, env: [{{name: MODEL, value: Qwen/Qwen3-8B}}]}}]}}}}"
OPERATED = {
    "MPIJob": f"""
spec:
  mpiReplicaSpecs:
    Launcher: {{template: {{spec: {{containers: [{{command: [bash, -c], args: ["mpirun python {NAMED}"]}}]}}}}}}
    Worker: {{replicas: 2, template: {{spec: {{containers: [{{resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}}}
""",
    "PyTorchJob": f"""spec: {{nprocPerNode: "8", pytorchReplicaSpecs: {{Worker: {{replicas: 2, {POD_OF % ""}}}}}}}""",
    "LeaderWorkerSet": f"""spec: {{replicas: 3, leaderWorkerTemplate: {{size: 2, workerTemplate: {{
      {(POD_OF % "--nnodes $LWS_GROUP_SIZE --nproc_per_node 8").removeprefix("template: {").removesuffix("}")}}}}}}}""",
    "Job": f"""spec: {{tasks: [{{replicas: 1, {POD_OF % "--nnodes $N --nproc_per_node 8"}}}, {{replicas: 1}}]}}""",
}


@pytest.mark.parametrize("kind", OPERATED)
def test_operators_start_as_many_pods_as_they_are_asked_for(kind: str, tmp_path: Path) -> None:
    """Without the launcher of MPI; a group of LeaderWorkerSet is a job; Volcano's has tasks."""
    path = tmp_path / "job.yaml"
    path.write_text(f"apiVersion: x/v1\nkind: {kind}\n{OPERATED[kind]}\n")
    result = given_words([str(path)])
    assert (result.found.plan.model, result.launch.world_size) == ("qwen3-8b", 16)


STARTED = {
    "train_job": f"""apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec: {{trainer: {{numNodes: 2, resourcesPerNode: {{limits: {{nvidia.com/gpu: 8}}}}, command: [bash, -c],
        args: ["torchrun {NAMED}"]}}}}
""",
    "dstack": f"""type: task
nodes: 2
env: {{MODEL: Qwen/Qwen3-8B}}
resources: {{gpu: "H100:8"}}
commands: ["torchrun --nnodes $DSTACK_NODES_NUM --nproc_per_node $DSTACK_GPUS_PER_NODE {TRAIN}"]
""",
    "dstack_list": f"""type: task
nodes: 16
env: [TOKEN, MODEL=Qwen/Qwen3-8B]
resources: {{gpu: 24GB}}
commands: ["torchrun --nnodes $DSTACK_NODES_NUM --nproc_per_node $DSTACK_GPUS_PER_NODE {TRAIN}"]
""",
    "azure": f"""$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
command: python {NAMED}
resources: {{instance_count: 2}}
distribution: {{type: pytorch, process_count_per_instance: 8}}
""",
}


@pytest.mark.parametrize("name", STARTED)
def test_commands_of_other_clusters(name: str, tmp_path: Path) -> None:
    """Nodes and devices of each, in the variables that these set or as what starts the processes."""
    path = tmp_path / "job.yaml"
    path.write_text(STARTED[name])
    result = given_words([str(path)])
    assert (result.found.plan.model, result.launch.world_size) == ("qwen3-8b", 16)


def test_a_job_of_ray_starts_its_entry_point(tmp_path: Path) -> None:
    """On the workers of its cluster; the command says how many nodes it takes."""
    path = tmp_path / "ray.yaml"
    path.write_text(
        "apiVersion: ray.io/v1\nkind: RayJob\nspec:\n  entrypoint: python3 -m verl.trainer.main_ppo trainer.nnodes=2 "
        "trainer.n_gpus_per_node=8 actor_rollout_ref.actor.use_dynamic_bsz=True "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct data.train_batch_size=256\n"
        "  rayClusterSpec: {workerGroupSpecs: [{replicas: 2}]}\n"
    )
    assert given_words([str(path)]).launch.world_size == 16


def job_of_pods(command: str, pods: int, devices: int, further: str = "", env: str = "[]") -> str:
    """A PyTorchJob whose pods all run the same command."""
    pod = (
        f"template: {{spec: {{containers: [{{name: a, env: {env}, "
        f"resources: {{limits: {{nvidia.com/gpu: {devices}}}}}, "
        f"command: [bash, -c], args: ['{command}']}}]}}}}"
    )
    return (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  {further}\n  pytorchReplicaSpecs:\n"
        f"    Master: {{replicas: 1, {pod}}}\n    Worker: {{replicas: {pods - 1}, {pod}}}\n"
    )


MEGATRON = (
    "python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4"
)
NAMED_TRAIN = TRAIN.replace("$MODEL", "Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (job_of_pods(MEGATRON, 8, 1), 8),  # a rank in every pod
        (job_of_pods(f"torchrun {NAMED_TRAIN}", 2, 8), 16),  # a process for every device
        (job_of_pods(f"torchrun {NAMED_TRAIN}", 2, 8, 'nprocPerNode: "4"'), 8),
        (job_of_pods(f"torchrun {NAMED_TRAIN}", 2, 8, "elasticPolicy: {nProcPerNode: 2}"), 4),
        (job_of_pods(f"python {NAMED_TRAIN}", 8, 1, env='[{name: LOCAL_RANK, value: "0"}]'), 8),
    ],
)
def test_ranks_of_a_job_of_pods(text: str, devices: int, tmp_path: Path) -> None:
    """As the operator counts them, and with replicas of all of them."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    result = given_words([str(path)])
    assert result.launch.world_size == devices
    assert result.found.plan.mesh.dp is None


def test_python_in_pods_that_trainers_do_not_join_is_refused(tmp_path: Path) -> None:
    """One line that says what is missing."""
    path = tmp_path / "job.yaml"
    path.write_text(job_of_pods(f"python {NAMED_TRAIN}", 8, 1))
    with pytest.raises(UserError, match=r"python in each of 8 pods is told no LOCAL_RANK, .* allowed: torchrun"):
        given_words([str(path)])


@pytest.mark.parametrize(
    "text", ["run: simulation\n", "apiVersion: v1\nkind: Service\n", "a: 1\n---\n- b\n", "run: |\n  x\nname: y\n"]
)
def test_other_yaml_is_none(text: str) -> None:
    """Neither a task nor a pod with a command."""
    assert manifest_of(text, "x.yaml") is None


def test_pods_whose_image_starts_the_training_are_refused(tmp_path: Path) -> None:
    """A configuration beside them, and no command."""
    path = tmp_path / "job.yaml"
    pod = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {template: {spec: {containers: [{name: a, image: b}]}}}\n"
    )
    path.write_text(f"apiVersion: v1\nkind: ConfigMap\ndata: {{a: b}}\n---\n{pod}")
    with pytest.raises(UserError, match="no container of it has a command"):
        given_words([str(path)])


TEMPLATE = f"""
apiVersion: apps/v1
kind: Deployment
spec: {{replicas: 1, template: {{spec: {{containers: [{{name: etcd, command: [etcd]}}]}}}}}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: $JOB}}
spec:
  nprocPerNode: "$GPUS_OF_NODE"
  pytorchReplicaSpecs:
    Worker:
      replicas: ${{NODES}}
      template:
        spec:
          containers:
          - image: ${{REGISTRY}}fsdp:latest
            resources: {{limits: {{nvidia.com/gpu: $GPUS_OF_NODE}}}}
            command: [torchrun, --nproc_per_node=$GPUS_OF_NODE, --nnodes=$NODES, {TRAIN.replace(" ", ", ")}]
"""


@pytest.mark.parametrize("name", ["job.yaml-template", "job.yaml.tpl", "job.yaml"])
def test_variables_of_a_template_are_asked_for_by_name(name: str, tmp_path: Path) -> None:
    """Counts that are left to them first, then what its command says; etcd beside it has no devices."""
    path = tmp_path / name
    path.write_text(TEMPLATE)
    counts = r"nprocPerNode = \$GPUS_OF_NODE, replicas = \$\{NODES\}, nvidia\.com/gpu = \$GPUS_OF_NODE: values that"
    with pytest.raises(UserError, match=counts) as error:
        given_words([str(path)])
    assert str(error.value).endswith(f"simpar check -- GPUS_OF_NODE=VALUE NODES=VALUE {path}")
    given = ["GPUS_OF_NODE=8", "NODES=2", "MODEL=Qwen/Qwen3-8B"]
    result = given_words([*given, str(path)])
    assert (result.found.plan.model, result.launch.world_size) == ("qwen3-8b", 16)
    with pytest.raises(UserError, match="X = 1: no variable of the file; allowed: GPUS_OF_NODE, JOB, MODEL, NODES"):
        given_words([*given, "X=1", str(path)])


MOSAIC = """
name: mpt-7b
compute: {gpus: %s}
image: mosaicml/pytorch
command: |
  cd llm-foundry/scripts
  composer train/train.py /mnt/config/parameters.yaml train_loader.num_workers=4
parameters:
  max_seq_len: 2048
  model: {name: hf_causal_lm, pretrained_model_name_or_path: mosaicml/mpt-7b}
  optimizer: {name: decoupled_adamw, lr: 1.0e-4}
  train_loader: {name: text, num_workers: 8}
  global_train_batch_size: 128
  device_train_microbatch_size: 2
  precision: amp_bf16
  fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}
"""


@pytest.mark.parametrize(
    ("gpus", "world_size", "devices"), [("8", 8, 8), ("2", 2, 2), ("32", 32, 8), ("12", 12, None), ("many", None, None)]
)
def test_a_run_of_mosaic(tmp_path, gpus, world_size, devices):
    """Its parameters are the file that its command gives to composer; nodes have eight devices."""
    path = tmp_path / "run.yaml"
    path.write_text(MOSAIC % gpus)
    found = given_words([str(path)])
    plan = found.found.plan
    assert (found.launch.world_size, found.launch.per_node, found.text.target) == (world_size, devices, "llm-foundry")
    assert (plan.model, plan.micro_batch, plan.memory.recompute) == ("mpt-7b", 2, "full")
    assert plan.training == {"seq_len": 2048, "global_batch": 128}
    assert manifest_of(MOSAIC.replace("image:", "picture:") % gpus, "run.yaml") is None


DEVICES = "deploy: {resources: {reservations: {devices: [{driver: nvidia, %s, capabilities: [gpu]}]}}}"
COMPOSE = f"""
services:
  database: {{image: postgres, command: postgres}}
  train:
    image: a
    environment: {{MODEL: Qwen/Qwen3-8B}}
    command: ["bash", "-c", "torchrun --nproc_per_node $$RANKS {TRAIN.replace("$MODEL", "$$MODEL")}"]
    %s
"""


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        (DEVICES % "count: 4", 4),
        (DEVICES % 'device_ids: ["0", "3"]', 2),
        (DEVICES % "count: all", None),
        ("gpus: all", None),
        ("gpus: [{count: 2}]", 2),
        ("runtime: nvidia", None),
    ],
)
def test_a_service_of_compose_is_read(asked: str, devices: int | None, tmp_path: Path) -> None:
    """That which is given devices, by every way of asking; $$ is a dollar of its shell."""
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE % asked)
    started = manifest_of(path.read_text(), "compose.yaml")
    assert started is not None
    assert (started.nodes, started.devices) == (1, devices)
    assert "--nproc_per_node $RANKS" in started.text
    path.write_text((COMPOSE % asked).replace("$$RANKS", "2"))
    result = given_words([str(path)])
    assert (result.found.plan.model, result.launch.world_size, result.text.syntax) == ("qwen3-8b", 2, None)


def test_a_service_in_words_of_one_line(tmp_path: Path) -> None:
    """Its entry point before its command, files where volumes have them, one process where Python starts."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text("base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nmicro_batch_size: 3\n")
    path = tmp_path / "docker-compose.yml"
    path.write_text(
        "services:\n  a:\n    entrypoint: axolotl train\n    command: /w/a.yaml\n    volumes: ['./configs:/w']\n"
        "    environment: [CUDA_VISIBLE_DEVICES=0]\n"
    )
    result = given_words([str(path)])
    assert (result.text.target, result.found.plan.micro_batch, result.launch.world_size) == ("axolotl", 3, 1)


def test_a_launcher_that_is_not_told_the_nodes_of_its_job(tmp_path):
    """Each of them may start a job of its own: not answered as one for all, nor in silence for one."""
    command = "torchrun --nproc_per_node 4 {} train.py --model_name_or_path gpt2 --per_device_train_batch_size 1"
    for told, decides in (("", True), ("--nnodes 2", False)):
        job = {
            "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
            "command": f"{command.format(told)} --max_length 512 --bf16 --output_dir o", "code": "src",
            "environment": "azureml:x@latest", "compute": "azureml:gpu", "resources": {"instance_count": 2},
        }  # fmt: skip
        path = tmp_path / "job.yml"
        path.write_text(yaml.safe_dump(job))
        assert ("nodes" in check(str(path), hardware="dgx-h100").account.deciding) is decides


@pytest.mark.parametrize(
    ("resource", "devices"),
    [
        ("habana.ai/gaudi", 4), ("huawei.com/Ascend910", 4), ("aws.amazon.com/neuron", 4), ("amd.com/gpu", 4),
        ("rdma/hca", None),
    ],
)  # fmt: skip
def test_devices_of_all_vendors_are_counted(resource, devices):
    """By limits, or by requests alone; what is no device is none."""
    pod = POD.replace("nvidia.com/gpu", resource)
    for text in (pod, pod.replace("limits", "requests")):
        started = manifest_of(text, "pod.yaml")
        assert (started.devices, started.slices) == (devices, ())


def test_slices_and_ranks_without_a_device_of_a_pod(tmp_path):
    """A slice was answered as a whole device, and eight ranks on four devices for eight."""
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("nvidia.com/gpu: 4", "nvidia.com/mig-1g.10gb: 1"))
    assert "a slice or a share of a device" in given_words([str(path)]).launch.gaps["nvidia.com/mig-1g.10gb"]
    path.write_text(POD.replace("accelerate launch", "torchrun --nproc_per_node 8"))
    with pytest.raises(UserError, match=r"pod.yaml: starts 8 ranks of a node, for which it asks 4 devices; allowed"):
        given_words([str(path)])


def test_launchers_that_one_process_of_an_instance_starts(tmp_path):
    """Azure's count of processes is then none of devices; without a launcher it is that of ranks."""
    words = "train.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 512 --bf16 --output_dir o"
    for start, processes in (("torchrun --nproc_per_node 4 --nnodes 2", 1), ("python", 4),
                             ("python -m torch.distributed.run --nproc_per_node 4 --nnodes 2", 1)):  # fmt: skip
        job = {
            "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
            "command": f"{start} {words}", "environment": "azureml:x@latest", "resources": {"instance_count": 2},
            "distribution": {"type": "pytorch", "process_count_per_instance": processes},
        }  # fmt: skip
        path = tmp_path / "job.yml"
        path.write_text(yaml.safe_dump(job))
        cluster = check(str(path), hardware="dgx-h100").result.setup.cluster
        assert (cluster["nodes"], cluster["devices"]) == (2, 8)


@pytest.mark.parametrize(("workers", "devices"), [("16", 16), ("4", 4), ("count()", 16)])
def test_a_job_of_ray_whose_script_says_its_workers(workers, devices, tmp_path, monkeypatch):
    """Not one rank of each pod; those of all nodes where only running tells."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from trl import SFTConfig, SFTTrainer\n"
        "def train():\n"
        "    args = SFTConfig(output_dir='o', per_device_train_batch_size=1, max_length=512, packing=True)\n"
        "    SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=args).train()\n"
        f"TorchTrainer(train, scaling_config=ScalingConfig(num_workers={workers}, use_gpu=True)).fit()\n"
    )
    worker = {"containers": [{"name": "w", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}
    groups = {
        "headGroupSpec": {"template": {"spec": {"containers": [{"name": "h"}]}}},
        "workerGroupSpecs": [{"replicas": 2, "template": {"spec": worker}}],
    }
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob",
           "spec": {"entrypoint": "python train.py", "rayClusterSpec": groups}}  # fmt: skip
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    setup = check(str(path), hardware="dgx-h100").result.setup
    assert (setup.cluster["devices"], setup.training["global_batch"]) == (devices, devices)
