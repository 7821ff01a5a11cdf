"""Cluster profiles by a table's words for devices and networks."""

from __future__ import annotations

import re

from simpar.validation.cells import Unmodelled

_HARDWARE = (  # device pattern, interconnect pattern, profile; the first match counts
    (r"a100.*pcie", r"", "a100-pcie-8"),
    (r"a100.*40", r"efa", "aws-p4d"),
    (r"a100.*40", r"", "dgx-a100-40gb"),
    (r"a100", r"800 gb/s|4x connectx", "a100-800"),
    (r"a100", r"roce", "a100-roce-1600"),
    (r"a100", r"", "dgx-a100-80gb"),
    (r"h100.*(500 ?w|low tdp|hbm2e)", r"", "grand-teton-h100"),
    (r"h100.*pcie", r"", "h100-pcie-8"),
    (r"h100", r"efa", "aws-p5"),
    (r"h100", r"oversubscribed", "meta-llama3-h100"),
    (r"h100", r"roce|rdma", "h100-roce-400"),
    (r"h100", r"", "dgx-h100"),
    (r"(?<!g)h200", r"", "hgx-h200"),
    (r"h800", r"", "hgx-h800"),
    (r"a800", r"", "hgx-a800"),
    (r"h20\b", r"", "hgx-h20"),
    (r"gb300", r"", "gb300-nvl72"),
    (r"gb200", r"", "gb200-nvl72"),
    (r"b300", r"", "hgx-b300"),
    (r"b200.*power.limited", r"", "hgx-b200-limited"),
    (r"b200", r"", "hgx-b200"),
    (r"mi300x", r"", "mi300x-8"),
    (r"mi325x", r"", "mi325x-8"),
    (r"mi355x", r"", "mi355x-8"),
    (r"v100.*16 ?gb", r"", "dgx-v100-16gb"),
    (r"v100.*dgx-2|dgx-2.*v100", r"", "dgx-2-v100"),
    (r"v100", r"", "dgx-v100"),
    (r"tpu v4", r"", "tpu-v4-pod"),
    (r"tpu v5e", r"", "tpu-v5e-pod"),
    (r"tpu v5p", r"", "tpu-v5p-pod"),
    (r"tpu v6e|trillium", r"", "tpu-v6e-pod"),
    (r"trainium ?2|trn2", r"", "trn2"),
    (r"mi250x", r"", "mi250x-8"),
    (r"l40s", r"", "l40s-8"),
    (r"\bl4\b", r"", "l4-8"),
    (r"a10g", r"", "a10g-8"),
    (r"rtx pro 6000", r"", "rtx-pro-6000-8"),
    (r"(rtx|geforce).*3090", r"", "rtx-3090-8"),
    (r"(rtx|geforce).*4090", r"", "rtx-4090-8"),
)

_FOUR = re.compile(r"\bgb\d|tpu v(4|5p)")  # devices with four per node by default


def profile_of(device: str, network: str) -> str:
    """The cluster profile for a table's words for device and network, in lower case. Raises Unmodelled."""
    if not device:
        raise Unmodelled("gpu_type not published")
    name = next((p for d, n, p in _HARDWARE if re.search(d, device) and re.search(n, network)), None)
    if not name:
        raise Unmodelled(f"no profile for {device}")
    return name


def devices_of_node(device: str) -> int:
    """Devices per node if a table does not say."""
    return 4 if _FOUR.search(device) else 16 if re.search("trn2|trainium|dgx-2", device) else 8
