"""Tables of single kernels and collectives: read by their columns, predicted by the cost models alone."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.normalise.tables import read_published
from benchmarks.tables import DATA
from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.kernels import KernelModel
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import load_device
from simpar.report.validation_table import print_validation
from simpar.validation.collectives import call
from simpar.validation.summary import figures
from simpar.validation.table import single_outcomes, validate

KERNELS = "source,op,gpu_type,dtype,batch,m,n,k,n_heads,seq_len,head_dim,causal,direction,layout,time_us,tflops\n"
CALLS = "source,op,gpu_type,fabric,n_gpus,n_nodes,message_bytes,time_us,busbw_GBps\n"


def table(path: Path, text: str) -> dict[str, object]:
    """What validate says of a table."""
    file = path / "table.csv"
    file.write_text(text)
    return validate(file)


def test_a_product_of_known_error(tmp_path: Path) -> None:
    """Measured at half of the model's speed, the prediction is 50 % low."""
    predicted = float(KernelModel(load_device("h100-sxm-80gb"), sustained=False).gemm_time_s(4096, 4096, 4096))
    row = f"mine,matmul,H100 SXM,bf16,,4096,4096,4096,,,,,,,{2e6 * predicted},\n"
    found = table(tmp_path, KERNELS + row)
    assert found["time_ape_median"] == pytest.approx(50.0, abs=1e-3)
    assert found["fit_accuracy"] is None


def test_rates_over_the_unmasked_flop_are_of_causal_kernels(tmp_path: Path) -> None:
    """A causal kernel does half of the FLOP that its rate counts."""
    text = "mine,sdp_fwd,B200,bf16,1,,,,64,32768,128,true,fwd,,,2000,full\n"
    (row,) = table(tmp_path, KERNELS.replace("tflops", "tflops,flop_count") + text)["rows_detail"]  # type: ignore[misc]
    assert row["measured_time_s"] == pytest.approx(4 * 32768**2 * 64 * 128 / 2e15)
    device = KernelModel(load_device("b200-sxm"), sustained=False)
    expected = device.attention_time_s((1, 32768, 64, 128), context=32768, seen=16384, backward=False)
    assert row["predicted_time_s"] == pytest.approx(float(expected))


def test_short_tables_are_listed_operation_by_operation(tmp_path: Path) -> None:
    """Each with its shape, what was predicted and measured, or why it is not modelled."""
    rows = "mine,matmul,H100 SXM,bf16,,4096.0,1024.0,512.0,,,,,,,100,\nmine,hbm_copy,H100 SXM,bf16,,,,,,,,,,,100,\n"
    out = StringIO()
    print_validation(table(tmp_path, KERNELS + rows), Console(file=out, width=120))
    assert "matmul 4096 x 1024 x 512 H100 SXM" in out.getvalue()
    assert "not modelled" in out.getvalue()
    calls = "mine,all_reduce,H100 SXM,NVSwitch,8,1,1e9,,350\n"
    print_validation(table(tmp_path, CALLS + calls), Console(file=out, width=120))
    assert "all_reduce bytes 1e9 H100 SXM on 8" in out.getvalue()


def test_reasons_are_counted(tmp_path: Path) -> None:
    """Rates beyond the peak, unknown devices and unknown operations are not modelled, each for its reason."""
    rows = (
        "mine,matmul,H100 SXM,bf16,,4096,4096,4096,,,,,,,,2000\n"
        "mine,matmul,Gaudi 1,bf16,,4096,4096,4096,,,,,,,100,\n"
        "mine,hbm_copy,H100 SXM,bf16,,,,,,,,,,,100,\n"
    )
    assert set(table(tmp_path, KERNELS + rows)["unmodelled_reasons"]) == {  # type: ignore[call-overload]
        "a rate beyond the device's peak",
        "no profile for gaudi 1; name one in the column hardware (simpar list hardware)",
        "hbm_copy: neither a product nor dense attention",
    }


def test_bus_bandwidth_is_a_time(tmp_path: Path) -> None:
    """All-reduce of n ranks moves 2 (n - 1) / n of its size at the bus bandwidth."""
    row = dict(
        zip(
            CALLS.strip().split(","),
            ["mine", "all_reduce", "H100", "IB", "16", "2", "1073741824", "", "350"],
            strict=True,
        )
    )
    assert call(row).time_s == pytest.approx(2**30 * 2 * 15 / 16 / 350e9)
    assert (call(row).domains, call(row).per_domain) == (2, 8)
    found = table(tmp_path, CALLS + "mine,all_reduce,H100,IB,16,2,1073741824,,350\n")["rows_detail"]
    expected = collective_time_s("all_reduce", 2**30, (2, 8), load_cluster("dgx-h100", 2))
    assert found[0]["predicted_time_s"] == pytest.approx(float(expected))  # type: ignore[index]


@pytest.mark.skipif(not DATA.is_dir(), reason="published tables are not beside the checkout")
def test_published_kernels_within_bounds() -> None:
    """The development table stays within the error it is documented with."""
    found = figures(single_outcomes(read_published(DATA / "kernels.csv")))
    assert found["modelled"] > 2400
    assert found["time_ape_median"] < 8
