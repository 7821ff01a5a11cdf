"""Kernels by name: the shipped table on DeepSeek's published trace, and files of the user's before it."""

import csv
from collections import Counter

import pytest

from benchmarks.tables import DATA
from simpar.diagnosis.classes import load_classes
from simpar.errors import UserError

DEEPSEEK = DATA / "deepseek_dualpipe_train_kernels.csv"
CLASS_OF_KIND = {
    "a2a_combine": "combine", "a2a_dispatch": "dispatch", "a2a_notify": "notify", "a2a_layout": "notify",
    "attn_fwd": "attention", "attn_bwd": "attention", "attn_bwd_aux": "attention", "dense_gemm_fp8": "gemm",
    "moe_grouped_gemm_fwd_dgrad": "gemm", "wgrad_gemm_fp8": "gemm", "router_gemm": "gemm", "norm_fwd": "norm",
    "norm_bwd": "norm", "quant_cast": "cast", "quant_transpose": "cast", "permute": "routing", "unpermute": "routing",
    "rope": "elementwise", "swiglu": "elementwise",
}  # fmt: skip


@pytest.mark.skipif(not DEEPSEEK.exists(), reason="the kernel list of DeepSeek's trace is not here")
def test_the_kernels_of_deepseeks_trace():
    """Time by class is that of the list's own kinds, read by hand: a trace without any NCCL kernel."""
    rows = list(csv.DictReader(DEEPSEEK.open()))
    found, wanted, other = Counter(), Counter(), Counter()
    for row, entry in zip(rows, load_classes().of([row["name"] for row in rows]), strict=True):
        time = float(row["dur_us"])
        if row["kind"] in CLASS_OF_KIND:
            wanted[CLASS_OF_KIND[row["kind"]]] += time
            found[entry.name] += time
        else:
            other[entry.name] += time
    assert found == wanted
    assert set(other) <= {"copy", "elementwise", "routing", "gemm"}
    assert other["gemm"] < 10


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NTN", "gemm"), ("ampere_bf16_s16816gemm_bf16_128x256_ldg8", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", "optimizer"),
        ("Memcpy DtoD (Device -> Device)", "copy"), ("Memset (Device)", "memset"), ("aten::addmm", "gemm"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel", "norm"), ("aten::t", "host"),
        ("my_own_kernel_17", "other"), ("MIOpenBatchNormFwdTrainSpatial", "norm"), ("aten::cudnn_batch_norm", "norm"),
        ("void at::native::batch_norm_collect_statistics_channels_last_kernel<InvStd, float>", "norm"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512>", "norm"),
    ],
)  # fmt: skip
def test_usual_names(name, wanted):
    """Kernels of the usual libraries."""
    assert load_classes().of([name])[0].name == wanted


@pytest.mark.parametrize(
    ("description", "axis"),
    [("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("mesh_dp_shard_cp", "dp"),
     ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("CONTEXT_PARALLEL_GROUP", "cp"),
     ("mesh_tp", "tp"), ("default_pg", ""), ("undefined", "")],
)  # fmt: skip
def test_process_groups(description, axis):
    """Axes by what Megatron and torch call their groups."""
    assert load_classes().axis(description) == axis


def test_a_file_of_ones_own(tmp_path):
    """Its patterns are asked first, and may name new classes."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        'classes:\n  - {name: sparse, patterns: ["gemm_2to4"]}\n  - {name: dispatch, patterns: ["^my_a2a"]}\n'
    )
    found = load_classes(path).of(["gemm_2to4_kernel", "my_a2a_send", "other_gemm"])
    assert [entry.name for entry in found] == ["sparse", "dispatch", "gemm"]
    assert found[1].communication == "ep"


@pytest.mark.parametrize(
    ("text", "said"),
    [('classes: [{name: a, patterns: ["("]}]', "regular expression"),
     ("classes: [{name: a, pattern: [b]}]", "unknown key"),
     ("classes: [{name: a, patterns: [b], communication: xp}]", "communication")],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path, text, said):
    """Named by file, line and key."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        load_classes(path)
