"""Logs of every framework that is read: what their lines say, in SI, and beside what is predicted."""

import bz2
import gzip
import lzma
import zlib

import pytest

from simpar import cli
from simpar.diagnosis.answer import explain
from simpar.diagnosis.bars import BATCHES
from simpar.diagnosis.log_formats import telling_lines
from simpar.diagnosis.logs import HINTS, read_log
from simpar.errors import UserError
from simpar.simulation import simulate
from simpar.units import GIB, GIGA, MIB
from tests.diagnosis.test_against import scenario
from tests.diagnosis.test_bars import SPEAKERS

MEGATRON = (
    " [2026-01-01 00:00:0{i}] iteration {i:8d}/     100 | consumed samples: {i:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.5 | learning rate: 1.0E-04 | "
    "global batch size:    64 | lm loss: 1E+01 |"
)
MEMORY = (
    "[Rank 3] (after 2 iterations) memory (MB) | allocated: 100.5 | max allocated: 2048.0 | reserved: 1.0 | "
    "max reserved: 4096.0"
)
BRIDGE = " iteration {i}/ 50 | elapsed time per iteration (ms): {ms} |"
NEMO = (
    "Training epoch 0, iteration {i}/99 | lr: 1e-06 | global_batch_size: 8 | global_step: {i} | "
    "reduced_train_loss: 1.3 | train_step_timing in s: {s} | TFLOPS_per_GPU: 512.0"
)
NEMO_BAR = "Epoch 0: : 10%|#| 10/100 [10:48, reduced_train_loss=0.01, global_step={i}.00, train_step_timing in s={s}]"
TITAN = (
    "\x1b[31mstep: {i:2}  \x1b[32mloss:  7.1234  \x1b[36mmemory: 39.50GiB(49.9%)  \x1b[34mtps: {tps:,}  "
    "\x1b[36mtflops: 300.10  \x1b[35mmfu: 30.34%\x1b[39m"
)
DEEPSPEED = (
    "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step={i}/global_step={i}, "
    "RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec={sps}, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
)
NANOTRON = (
    "12/01/2026 00:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: {i} / 100 | consumed_tokens: 1.05M | "
    "time_per_iteration_ms: {kms}K | tokens_per_sec: 800K | tokens_per_sec_per_gpu: 12.5K | global_batch_size: 1.02M | "
    "lm_loss: 11 | model_tflops_per_gpu: 440 | cuda_memory_allocated: 20.1G | cuda_max_memory_reserved: 56.8G |"
)
MAXTEXT = "completed step: {i}, seconds: {s}, TFLOP/s/device: 506.24, Tokens/s/device: 1051.5, total_weights: 2097152"
PRIMUS = (
    "[20251023 12:39:12][rank-63/64][INFO ] [-----trainer.py:2382] :  iteration {i:8d}/   40000 | "
    "elapsed time per iteration (ms): {ms:.1f}/2219.3 | "
    "hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98% | "
    "throughput per GPU (TFLOP/s/GPU): 411.9/411.5 | tokens per GPU (tokens/s/GPU): 246.7/238.1 | lm loss: 4.4 |"
)
PRIMUS_NEW = (
    " iteration {i:8d}/      20 | elapsed time per iteration (ms): {ms:.1f}/735.1 | "
    "rocm mem usage/free/total/usage_ratio: 153.50GiB/102.48GiB/255.98GiB/59.97% | "
    "compute per GPU (TFLOP/s/GPU): 1290.3 (avg 1162.8)  | tokens/s/GPU inst/harmonic mean: 25032.8/22288.1 | loss: 1 |"
)
SWIFT_MEGATRON = (
    "{{'loss': 0.5, 'iteration': '{i}/100', 'elapsed_time': '1m 23s', 'memory(GiB)': 63.5, 'train_speed(s/it)': 2.0}}"
)
BIGSCIENCE = " iteration {i}/ 9 | elapsed time per iteration (s): {s:.2f} | samples per second: 16.0 | TFLOPs: 141.7 |"
DEEPSPEED_OLD = (
    "[timer.py:198:stop] 0/{i}, RunningAvgSamplesPerSec=9.7, CurrSamplesPerSec={sps}, MemAllocated=0.36GB, "
    "MaxMemAllocated=15.06GB"
)
DEEPSPEED_PIPE = "steps: {i} loss: 7.9 iter time (s): {s} samples/sec: 16.0"
DEEPSPEED_TIMERS = (
    "[Rank 0] time (ms) | fwd_microstep: 1.0 | bwd_microstep: 2.0 | step_microstep: 3.0\n"
    "[Rank 0] time (ms) | fwd: 500.0 | bwd: 1200.0 | bwd_inner: 900.0 | bwd_allreduce: 300.0 | step: 300.0"
)
TORCHTUNE = (
    "Step {i} | loss:0.35 lr:1e-06 tokens_per_second_per_gpu:{tps} peak_memory_active:85.5 peak_memory_alloc:85.5 "
    "peak_memory_reserved:104.5"
)
TORCHTUNE_BAR = "1|{i}|Loss: 0.3511962890625:   1%|▏         | {i}/400 [00:02<13:20,  {s:.2f}s/it]"
TRAINER_BAR = (
    " 10%|███▎      | {i}/30 [02:31<05:02, {s:.2f}s/it]\n"
    "{{'loss': 1.4321, 'memory/max_mem_allocated(gib)': 44.5, 'memory/device_mem_reserved(gib)': 46.5, 'epoch': 1}}\n"
    "100%|██████████| 4/4 [00:01<00:00,  3.10it/s]\n"
    "Map: 100%|██████████| 3/30 [00:01<00:00,  900.10it/s]"
)
AXOLOTL = TRAINER_BAR.replace("max_mem_allocated(gib)", "max_allocated (GiB)").replace(
    "device_mem_reserved(gib)", "device_reserved (GiB)"
)
LIGHTNING = "Epoch 1:   6%|█▍     | {i}/1563 [00:06<01:44,  0.50it/s, v_num=0, train_loss=1.800, train_acc=0.281]"
NANOTRON_MEMORY = " Memory usage: 1234.56MiB. Peak allocated 2048.00MiB. Peak reserved: 4096.00MiB"
TITAN_OLD = (
    "[rank0]:2024-08-19 11:10:37,109 - root - INFO - step: {i:2}  loss: 9.1  memory: 39.50GiB(49.9%)  wps: {tps:,}"
)
AUTOMODEL = (
    "2025-12-01 10:00:00 | INFO | root | step {i} | epoch 0 | loss 1.1234 | grad_norm 2.1000 | lr 1.00e-05 | "
    "mem 45.30 GiB | tps 16384.00({tps:.2f}/gpu) | num_label_tokens 65536"
)
NANOGPT = "iter {i}: loss 9.4010, time {ms:.2f}ms, mfu 33.20%"
COMPOSER = (
    "[batch={i}/4800]:\n\t Train time/batch: 9\n\t Train memory/peak_reserved_mem: 28.3\n"
    "\t Train throughput/batches_per_sec: 0.5\n\t Train throughput/device/tokens_per_sec: 2048.0"
)
OLMO = (
    "2024-11-02 10:00:01.000\tnode:0\tolmo.train:800\tINFO\t[step={i}/100000,epoch=0]\n"
    "    throughput/device/tokens_per_second=2,048\n    throughput/device/batches_per_second=0.5\n"
    "    System/Peak GPU Memory (MB)=38,912"
)
OLMO_CORE = (
    "2025-11-02 10:00:01.000\tnode:0\tolmo_core.train.callbacks.console_logger:68\tINFO\t"
    "[step={i}/???,epoch=1,eta=1d2h(hard stop)]\n    gpu_memory/GPU reserved mem (GiB)=61.25\n"
    "    throughput/device/TPS=2,048\n    throughput/device/TPS (actual avg)=1,024\n"
    "    throughput/device/BPS=0.5\n    throughput/device/flopsPS=3.125e+14"
)
NANOCHAT = (
    "step {i:05d}/21400 (0.47%) | loss: 7.100000 | lrm: 1.00 | dt: {ms:.2f}ms | tok/sec: 1,066,100 | bf16_mfu: 47.91 | "
    "epoch: 1 | total time: 0.10m"
)
NANOCHAT_SFT = (
    "step {i:05d} (0.47%) | loss: 7.1 | lrm: 1.00 | dt: {ms:.2f}ms | tok/sec: 1,066,100 | mfu: 47.91 | epoch: 1"
)
LLM_C = (
    "step {i:4d}/19560 | loss 11.0 (+nanz)| norm 1.0 (+nanz)| lr 1e-04 | {ms:.2f} ms | 45.1% bf16 MFU | 175000 tok/s"
)
NEOX = (
    "samples/sec: {sps:.3f} | iteration {i:8d}/  320000 | elapsed time per iteration (ms): {ms:.1f} | "
    "learning rate: 1.2E-05 | approx flops per GPU: 120.3TFLOPS | lm_loss: 1.07E+01 | loss scale: 4.096E+03 |"
)
LINGUA = (
    "0: INFO    26-11-30 00:00:00.000000 - 0:00:10 - step: {i}  acc: 0  loss:  9.1234  grad: 1.2e+00  flops: 4.10e+14  "
    "wps: {tps:.2e}  iter:  0.5012  data:   0.01  lr: 1.2e-04  mem: 57%  pow: 650.1 W"
)
PICOTRON = (
    "[rank 0] Step: {i:<5d} | Loss: 10.8123 | Global batch size: 131K | Tokens/s: 16.38K | Tokens/s/GPU: {kk:.2f}K | "
    "Tokens: 131.07K | MFU: 38.12% | Memory usage:  35.12GB"
)
FAIRSEQ = (
    "2026-05-01 00:00:00 | INFO | train_inner | epoch 001:   {i} / 1000 loss=9.1, ppl=500.1, wps={wps:.1f}, ups=0.11, "
    "wpb=32768.0, bsz=16, num_updates={i}, lr=1e-05, gnorm=1.2, train_wall=20, gb_free=10.1, wall=100"
)
METASEQ = (
    'INFO | train_inner | {{"epoch": 1, "loss": "9.1", "wps": "{wps:.1f}", "ups": "0.11", "wpb": "32768.0", '
    '"bsz": "16", "num_updates": "{i}", "cuda_gb_allocated": "12.5", "cuda_gb_reserved": "30.5", "wall": "100"}}'
)
PRIMUS_TITAN = (
    "[rank0]:[titan] 2025-10-10 10:10:10,111 - root - INFO - iteration {i:8d}/      50 | consumed samples:   128 | "
    "elapsed time per iteration (ms): {ms:.1f} | memory usage/free/total: 145.40GiB/142.58GiB/(50.49%) | "
    "throughput per GPU (TFLOP/s/GPU): 347.9 | tokens per GPU (tokens/s/GPU): 6759.1 | loss: 1.189155E+01 |"
)
BRIDGE_MEMORY = (
    "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 30.1 | mem-max-allocated-gigabytes: 60.5 | "
    "mem-max-active-gigabytes: 61.0 | mem-max-reserved-gigabytes: 66.6 | mem-alloc-retires: 0"
)
TITAN_VALIDATES = TITAN.replace("step:", "validate step:").replace("39.50GiB", "45.50GiB").replace("{tps:,}", "99,999")
DEEPSPEED_2020 = "[2020-09-01 00:00:00,000] [INFO] [timer.py:157:stop] 0/{i}, SamplesPerSec={sps}"
VERL_SFT = "(WorkerDict pid=1) step:{i} - train/loss:1.234 - train/lr(1e-3):0.01 - train/time(s):{s}"
HF_SAYS = {"step_time_s": 2.0, "allocated_bytes": 44.5 * GIB, "reserved_bytes": 46.5 * GIB}
MEGATRON_SAYS = {"step_time_s": 2.0, "tflops": 412.5, "allocated_bytes": 2048 * MIB, "reserved_bytes": 4096 * MIB}


def log(folder, template, **values):
    """A log of six steps of 2 s, the first slow."""
    lines = []
    for number in range(1, 7):
        s = 9.0 if number == 1 else 2.0
        found = {
            "ms": 1000 * s,
            "s": s,
            "kms": s,
            "tps": round(4096 / s),
            "sps": 32 / s,
            "kk": 4.096 / s,
            "wps": 32768 / s,
        } | values
        lines += [template.format(i=number, **found), "something else | 3"]
    path = folder / "train.log"
    path.write_text("\n".join([*lines, *([MEMORY] if template is MEGATRON else []), ""]))
    return path


@pytest.mark.parametrize(
    ("template", "framework", "figures"),
    [
        (MEGATRON, "Megatron", MEGATRON_SAYS),
        (BRIDGE, "Megatron", {"step_time_s": 2.0}), (NEMO, "NeMo", {"step_time_s": 2.0, "tflops": 512.0}),
        (NEMO_BAR, "NeMo", {"step_time_s": 2.0}),
        (TITAN, "torchtitan", {"tokens_per_s_per_device": 2048.0, "tflops": 300.1, "reserved_bytes": 39.5 * GIB}),
        (DEEPSPEED, "DeepSpeed", {"samples_per_s": 16.0, "allocated_bytes": 19.52 * GIB}),
        (NANOTRON, "nanotron",
         {"step_time_s": 2.0, "tokens_per_s_per_device": 12_500.0, "tflops": 440.0, "reserved_bytes": 56.8 * GIGA}),
        (MAXTEXT, "MaxText", {"step_time_s": 2.0, "tflops": 506.24, "tokens_per_s_per_device": 1051.5}),
        (PRIMUS, "Megatron",
         {"step_time_s": 2.0, "tflops": 411.9, "tokens_per_s_per_device": 246.7, "used_bytes": 253.38 * GIB}),
        (PRIMUS_NEW, "Megatron",
         {"step_time_s": 2.0, "tflops": 1290.3, "tokens_per_s_per_device": 25032.8, "used_bytes": 153.5 * GIB}),
        (SWIFT_MEGATRON, "ms-swift", {"step_time_s": 2.0, "reserved_bytes": 63.5 * GIB}),
        (BIGSCIENCE, "Megatron", {"step_time_s": 2.0, "samples_per_s": 16.0, "tflops": 141.7}),
        (DEEPSPEED_OLD, "DeepSpeed", {"samples_per_s": 16.0, "allocated_bytes": 15.06 * GIB}),
        (DEEPSPEED_PIPE, "DeepSpeed pipeline", {"step_time_s": 2.0, "samples_per_s": 16.0}),
        (DEEPSPEED_TIMERS, "DeepSpeed timers", {"step_time_s": 2.0}),
        (TORCHTUNE, "torchtune",
         {"tokens_per_s_per_device": 2048.0, "allocated_bytes": 85.5 * GIB, "reserved_bytes": 104.5 * GIB}),
        (TORCHTUNE_BAR, "torchtune", {"step_time_s": 2.0}),
        (TITAN_OLD, "torchtitan", {"tokens_per_s_per_device": 2048.0, "reserved_bytes": 39.5 * GIB}),
        (AUTOMODEL, "NeMo Automodel", {"tokens_per_s_per_device": 2048.0, "allocated_bytes": 45.3 * GIB}),
        (NANOGPT, "nanoGPT", {"step_time_s": 2.0}),
        (COMPOSER, "Composer",
         {"step_time_s": 2.0, "tokens_per_s_per_device": 2048.0, "reserved_bytes": 28.3 * GIGA}),
        (OLMO, "OLMo", {"step_time_s": 2.0, "tokens_per_s_per_device": 2048.0, "allocated_bytes": 38.912 * GIGA}),
        (OLMO_CORE, "OLMo",
         {"step_time_s": 2.0, "tokens_per_s_per_device": 2048.0, "tflops": 312.5, "reserved_bytes": 61.25 * GIB}),
        (NANOCHAT, "Nanochat", {"step_time_s": 2.0}), (NANOCHAT_SFT, "Nanochat", {"step_time_s": 2.0}),
        (LLM_C, "llm.c", {"step_time_s": 2.0}),
        (NEOX, "GPT-NeoX", {"step_time_s": 2.0, "tflops": 120.3, "samples_per_s": 16.0}),
        (NEOX.replace("120.3TFLOPS", "1.2PFLOPS"), "GPT-NeoX",
         {"step_time_s": 2.0, "tflops": 1200.0, "samples_per_s": 16.0}),
        (NEOX.replace("120.3TFLOPS", "820.0GFLOPS"), "GPT-NeoX",
         {"step_time_s": 2.0, "tflops": 0.82, "samples_per_s": 16.0}),
        (PRIMUS_TITAN, "Megatron",
         {"step_time_s": 2.0, "tflops": 347.9, "tokens_per_s_per_device": 6759.1, "reserved_bytes": 145.4 * GIB}),
        (PRIMUS_NEW.replace(" | compute", " | rank-3 rocm max mem usage/usage_ratio: 170.00GB/66.40% | compute"),
         "Megatron",
         {"step_time_s": 2.0, "tflops": 1290.3, "tokens_per_s_per_device": 25032.8, "used_bytes": 170 * GIB}),
        (f"{BRIDGE}\n{BRIDGE_MEMORY}", "Megatron",
         {"step_time_s": 2.0, "allocated_bytes": 60.5 * GIGA, "reserved_bytes": 66.6 * GIGA}),
        (f"{BRIDGE}\n{MEMORY} | total device memory used: 5120.0", "Megatron",
         {"step_time_s": 2.0, "allocated_bytes": 2048 * MIB, "reserved_bytes": 4096 * MIB, "used_bytes": 5120 * MIB}),
        (f"{TITAN}\n{TITAN_VALIDATES}", "torchtitan",
         {"tokens_per_s_per_device": 2048.0, "tflops": 300.1, "reserved_bytes": 39.5 * GIB}),
        (DEEPSPEED_2020, "DeepSpeed", {"samples_per_s": 16.0}),
        (DEEPSPEED_TIMERS.replace("fwd", "forward").replace("bwd", "backward"), "DeepSpeed timers",
         {"step_time_s": 2.0}),
        *((COMPOSER.replace("[batch={i}/4800]", head), "Composer",
           {"step_time_s": 2.0, "tokens_per_s_per_device": 2048.0, "reserved_bytes": 28.3 * GIGA})
          for head in ("[epoch=1][batch={i}/4800]", "[epoch=1][batch={i}]", "[sample={i}/90]", "[token={i}/90]")),
        (LINGUA, "lingua", {"tokens_per_s_per_device": 2050.0, "tflops": 410.0}),
        (PICOTRON, "Picotron", {"tokens_per_s_per_device": 2050.0, "reserved_bytes": 35.12 * GIGA}),
        (FAIRSEQ, "fairseq", {"step_time_s": 2.0}),
        (METASEQ, "fairseq", {"step_time_s": 2.0, "allocated_bytes": 12.5 * GIB, "reserved_bytes": 30.5 * GIB}),
        (VERL_SFT, "verl SFT", {"step_time_s": 2.0}),
        (TRAINER_BAR, "Hugging Face Trainer", HF_SAYS), (AXOLOTL, "Hugging Face Trainer", HF_SAYS),
        (f"{BRIDGE}\n{NANOTRON_MEMORY}", "Megatron",
         {"step_time_s": 2.0, "allocated_bytes": 2048 * MIB, "reserved_bytes": 4096 * MIB}),
    ],
)  # fmt: skip
def test_lines_of_every_framework(tmp_path, template, framework, figures):
    """Medians without the first step, peaks of memory of all, units of each framework."""
    found = read_log(log(tmp_path, template))
    assert (found.framework, found.steps, found.count) == (framework, (2, 6), 5)
    assert found.figures == pytest.approx(figures)
    assert found.spread == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "line",
    [
        "iter {i} step {step}: loss 3.5, iter time: {ms}ms{ends}",
        "Epoch 1 | iter {i} step {step} | loss train: 3.5, val: n/a | iter time: {ms} ms{ends}",
    ],
)
def test_micro_batches_of_litgpt_are_summed(tmp_path, line):
    """Two of 0.8 and 1.2 s are a step of 2 s; a step of which a line is missing is left out."""
    kept = [at for at in range(1, 17) if at != 9]
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(
            line.format(i=at, step=at // 2, ms=1200.0 if at % 2 == 0 else 800.0, ends="" if at % 2 else " (step)")
            for at in kept
        )
    )
    result = read_log(path)
    assert (result.framework, result.steps, result.count) == ("LitGPT", (2, 8), 6)
    assert result.figures == {"step_time_s": pytest.approx(2.0)}


def test_what_python_prints_of_a_dict_is_a_log(tmp_path, capsys):
    """A file that begins with it is no trace; one of verl is known and refused by name."""
    path = tmp_path / "train.log"
    path.write_text("{'train_runtime': 60.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 0.5}\n")
    assert cli.run(["explain", str(path)]) == 0
    assert "Hugging Face Trainer log" in capsys.readouterr().out
    path.write_text("(TaskRunner pid=1) step:1 - actor/entropy:0.5 - timing_s/gen:120.3 - timing_s/step:250.1\n")
    assert cli.run(["explain", str(path)]) == 2
    assert "a log of verl, whose steps are rollouts, rewards and updates" in capsys.readouterr().err
    path.write_text("(X pid=1) perf 3: {'perf/actor_train_time': 20.1, 'perf/train_wait_time': 100.2}\n")
    assert cli.run(["explain", str(path)]) == 2
    assert "a log of slime, whose steps" in capsys.readouterr().err


def test_progress_bars_of_lightning(tmp_path):
    """Batches are counted on from epoch to epoch; below a second the bar has the rate."""
    found = read_log(log(tmp_path, LIGHTNING))
    assert (found.framework, found.steps, found.figures) == ("Lightning", (1565, 1569), {"step_time_s": 2.0})


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_logs(tmp_path, pack):
    """As text, whatever packed them."""
    path = tmp_path / "train.log.packed"
    path.write_bytes(pack(log(tmp_path, MEGATRON).read_bytes()))
    assert read_log(path).figures == pytest.approx(MEGATRON_SAYS)
    path.write_bytes(path.read_bytes()[:12])
    with pytest.raises(UserError, match="cannot be read"):
        read_log(path)


def test_step_times_from_rates(tmp_path):
    """Tokens of a device, or samples of the job, and what a step trains of them."""
    assert read_log(log(tmp_path, TITAN)).step_time_s() is None
    assert read_log(log(tmp_path, TITAN)).step_time_s(8 * 4096, 8, 8) == pytest.approx(2.0)
    assert read_log(log(tmp_path, DEEPSPEED)).step_time_s(8 * 4096, 32, 8) == pytest.approx(2.0)


def test_a_log_beside_a_plan(tmp_path, capsys):
    """Step time and memory against the predicted ones, changes fitted to the step alone; a page needs traces."""
    plan = scenario()
    path = log(tmp_path, MEGATRON, ms=40.0)
    found = explain(path, plan=plan)
    rows = {name: (measured, predicted) for name, measured, predicted in found.logged}
    assert rows["step time, s"][0] == 0.04
    assert rows["reserved at most, GiB"][0] == 4.0
    before, after = found.changes.fitted.before_s, found.changes.fitted.after_s
    assert abs(after - 0.04) < abs(before - 0.04)
    assert found.to_dict()["log"]["framework"] == "Megatron"
    assert cli.run(["explain", str(path)]) == 0
    assert "step time, s" in capsys.readouterr().out
    assert cli.run(["explain", str(path), "--html", str(tmp_path / "page.html")]) == 2
    assert "which profiler traces tell; " in (said := capsys.readouterr().err)
    assert said.endswith("train.log is of kind log; without --html its answer is printed\n")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(UserError, match=r"plan is not that of .*train\.log: .*step time: 2.00 s logged"):
        explain(log(tmp_path, MEGATRON), plan=plan)


@pytest.mark.parametrize(
    ("lines", "job"),
    [
        (MEGATRON, {"global_batch": 64}),
        (f"{BRIDGE} global batch size:    16 |", {"global_batch": 16}),
        (f"  seq_length ..................... 4096\n  encoder_seq_length ......... 2048\n{BRIDGE}", {"seq_len": 4096}),
        (f"  global_batch_size ................ 256\n{BRIDGE}", {"global_batch": 256}),
        (f"  global_batch_size ................ 256\n{MEGATRON}", {"global_batch": 64}),
        (f"using world size: 64, data-parallel size: 8, context-parallel size: 1\n{BRIDGE}", {"devices": 64}),
        (NEMO, {"global_batch": 8}),
        (f"[config.py:1001:print]   train_batch_size ............. 32\n{DEEPSPEED}", {"global_batch": 32}),
        (
            f"Trainer is initialized with local batch size 1, global batch size 24, sequence length 8192,\n{TITAN}",
            {"global_batch": 24, "seq_len": 8192},
        ),
        (NANOTRON, {}),
    ],
)
def test_what_logs_say_of_the_job(tmp_path, lines, job):
    """Batch, sequences and devices: of steps before lists of arguments, and no rounded number."""
    found = read_log(log(tmp_path, lines))
    assert found.job == job


@pytest.mark.parametrize("speaker", SPEAKERS)
@pytest.mark.parametrize(
    "line", [MEGATRON, MAXTEXT, NANOGPT, LLM_C, "step:{i}/90 train_time:1ms step_avg:{ms}ms", COMPOSER]
)
def test_who_speaks_before_a_line(tmp_path, line, speaker):
    """Lines that begin with the step are read behind what launchers write."""
    path = tmp_path / "train.log"
    text = "".join(line.format(i=at, ms=2000.0, s=2.0) + "\n" for at in range(1, 9))
    path.write_text("".join(f"{speaker}{each}\n" for each in text.splitlines()))
    assert read_log(path).figures["step_time_s"] == pytest.approx(2.0)


def test_bars_of_openrlhf(tmp_path):
    """They count micro-batches, which is said; its reinforcement learning is refused by name."""
    path = tmp_path / "train.log"
    bar = "Train step of epoch {e}:  10%|#    | {i}/30 [00:20<03:00,  2.00s/it, gpt_loss=1.2, lr=5e-06]"
    path.write_text("\n".join(bar.format(e=at // 30, i=at % 30) for at in range(40)))
    found = read_log(path)
    assert (found.framework, found.figures) == ("OpenRLHF", {"step_time_s": 2.0})
    assert found.notes == (BATCHES.format("OpenRLHF"),)
    path.write_text("(PPOTrainer pid=1) Global step 3: {'policy_loss': 0.1, 'timing/ppo_train': 20.0}\n")
    with pytest.raises(UserError, match="a log of OpenRLHF, whose steps are rollouts"):
        read_log(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf_16(tmp_path, pack):
    """As PowerShell writes it, packed or not."""
    path = tmp_path / "train.log"
    path.write_bytes(pack(log(tmp_path, MEGATRON).read_text().encode("utf-16")))
    assert read_log(path).figures == pytest.approx(MEGATRON_SAYS)


@pytest.mark.parametrize(
    ("said", "contradicts"),
    [
        ({"training.global_batch": 128}, "global batch: 64 logged, 128 planned"),
        ({"training.seq_len": 512}, "sequence length: 1024 logged, 512 planned"),
        ({"cluster.nodes": 2}, "devices: 8 logged, 16 planned"),
        ({"model": "gpt2-large"}, "work of a device in a step: .* TFLOP logged, .* TFLOP planned"),
    ],
)
def test_a_plan_of_another_job_than_the_logged(tmp_path, said, contradicts):
    """Refused in one line with the two numbers, also where the step times are alike."""
    work = simulate(**scenario().inputs())
    rate = f"{work.speed.tflops_per_device * work.step_time_s / 0.04:.1f}"
    start = "using world size: 8, data-parallel size: 8\n  seq_length ......... 1024\n"
    path = log(tmp_path, start + MEGATRON.replace("412.5", rate), ms=40.0)
    assert explain(path, plan=scenario(), changes=False).logged
    with pytest.raises(UserError, match=rf"^the plan is not that of {path}: {contradicts}$"):
        explain(path, plan=scenario(**said), changes=False)


def test_long_lines_and_binaries(tmp_path):
    """Of a line of megabytes only the beginning counts; a binary is named."""
    path = tmp_path / "train.log"
    path.write_text(
        "x" * 3_000_000 + MAXTEXT.format(i=7, s=9.0) + "\n" + MAXTEXT.format(i=8, s=2.0) + " " + "y" * 30_000
    )
    assert read_log(path).steps == (8, 8)
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(UserError, match=r"train\.log: is not text"):
        explain(path)


def test_logs_that_are_none(tmp_path):
    """Texts without a step, two logs, a packed one that is cut short."""
    path = tmp_path / "notes.txt"
    path.write_text("hello\n" * 10)
    with pytest.raises(UserError, match="no line of a training step"):
        explain(path)
    good = log(tmp_path, MEGATRON)
    other = tmp_path / "other.log"
    other.write_bytes(good.read_bytes())
    with pytest.raises(UserError, match="one log of a run"):
        explain(good, other)
    packed = gzip.compress(good.read_bytes())
    path.write_bytes(packed)
    assert read_log(path).count == 5
    path.write_bytes(packed[:20])
    with pytest.raises(UserError, match="cannot be read"):
        read_log(path)
    with pytest.raises(UserError, match="cannot be read"):
        explain(tmp_path / "nothing.log")


UNPACKED = {
    bytes: bytes,
    gzip.compress: lambda data: zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data),
    bz2.compress: lambda data: bz2.BZ2Decompressor().decompress(data),
    lzma.compress: lambda data: lzma.LZMADecompressor().decompress(data),
}
"""What is packed before the end of a file that was cut, by how it was packed."""


@pytest.mark.parametrize("pack", UNPACKED)
def test_a_log_that_was_cut_is_read_up_to_its_end(tmp_path, pack):
    """At any byte of its last lines: a number that may lack digits is left out, and a packed end is said."""
    text = "".join(MAXTEXT.format(i=at, s=12.5) + "\n" for at in range(1, 40)).encode()
    path = tmp_path / "train.log"
    data = pack(text)
    for cut in range(len(data) - (300 if pack is bytes else 40), len(data), 1 if pack is bytes else 3):
        path.write_bytes(data[:cut])
        if b"\n" not in UNPACKED[pack](data[:cut]):  # of a block that is all or nothing
            with pytest.raises(UserError, match="cannot be read"):
                read_log(path)
            continue
        found = read_log(path)
        assert found.figures["step_time_s"] == 12.5
        assert set(found.times_s) == {12.5}
        assert all("in the middle of" in note for note in found.notes)
        assert bool(found.notes) or pack is bytes
    path.write_bytes(text + b"completed step: 40, seconds: 1")
    assert set(read_log(path).times_s) == {12.5}
    assert "The file ends in the middle of a number" in read_log(path).notes[0]


def test_lines_that_say_nothing_are_passed_over():
    """By texts of which one is in every line that is read; an empty one would be in all lines."""
    assert all(HINTS)
    lines = ["nothing\n"] * 500 + ["a tps: 1\n", "nothing\n", "tps: 2\n"]
    assert [(at, line) for at, line in telling_lines(iter(lines), HINTS) if line] == [
        (500, "a tps: 1\n"),
        (502, "tps: 2\n"),
    ]
