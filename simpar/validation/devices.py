"""Cluster profiles by the words of a table for devices and networks: a vocabulary, word by word."""

from functools import lru_cache

from simpar import files
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import Device
from simpar.hardware.instances import instance_named
from simpar.hardware.network import OVER, split_network, with_network
from simpar.hardware.profile import ClusterProfile
from simpar.profiles import load_profile
from simpar.units import GB
from simpar.validation.cells import Row, Unmodelled, text
from simpar.validation.networks import sockets_of, unread_rates, without_rates

_PROFILES = (  # words for the device, word for the network, profile; the first match counts
    ("a100 pcie", "", "a100-pcie-8"),
    ("a100 40gb", "efa", "aws-p4d"),
    ("a100 40gb", "", "dgx-a100-40gb"),
    ("a100", "roce", "a100-roce-1600"),
    ("a100", "", "dgx-a100-80gb"),
    ("h100 pcie", "", "h100-pcie-8"),
    ("h100 nvl", "", "h100-nvl-8"),
    ("h100 96gb", "", "grand-teton-h100"),
    ("h100", "efa", "aws-p5"),
    ("h100", "roce", "h100-roce-400"),
    ("h100", "", "dgx-h100"),
    ("h200", "", "hgx-h200"),
    ("h800", "", "hgx-h800"),
    ("a800", "", "hgx-a800"),
    ("h20", "", "hgx-h20"),
    ("gb300", "", "gb300-nvl72"),
    ("gb200", "", "gb200-nvl72"),
    ("b300", "", "hgx-b300"),
    ("b200", "", "hgx-b200"),
    ("mi250x", "", "mi250x-8"),
    ("mi300x", "", "mi300x-8"),
    ("mi325x", "", "mi325x-8"),
    ("mi355x", "", "mi355x-8"),
    ("v100 dgx 2", "", "dgx-2-v100"),
    ("v100 16gb", "", "dgx-v100-16gb"),
    ("v100", "", "dgx-v100"),
    ("tpu v4", "", "tpu-v4-pod"),
    ("tpu v5e", "", "tpu-v5e-pod"),
    ("tpu v5p", "", "tpu-v5p-pod"),
    ("tpu v6e", "", "tpu-v6e-pod"),
    *((word, "", "tpu-v7x-pod") for word in ("tpu v7x", "tpu7x", "ironwood")),
    *((word, "", f"trn{word[-1]}") for word in ("trainium1", "trn1", "trainium2", "trn2", "trainium3", "trn3")),
    *((f"gaudi {number}", "", f"gaudi-{number}-8") for number in "23"),
    *((f"gaudi{number}", "", f"gaudi-{number}-8") for number in "23"),
    *((word, "", "ascend-910b-8") for word in ("910b", "910b2")),
    ("910b3", "", "ascend-910b3-8"),
    ("910c", "", "cloudmatrix384"),
    ("vr200", "", "vr200-nvl144"),
    ("mi350x", "", "mi350x-8"),
    ("mi455x", "", "helios-mi455x"),
    ("gb10", "", "dgx-spark"),
    *((word, "", f"{word}-8") for word in ("a40", "l20")),
    ("t4", "", "t4-4"),
    ("a10", "", "a10-4"),
    ("rtx a6000", "", "rtx-a6000-8"),
    ("rtx 6000 ada", "", "rtx-6000-ada-8"),
    ("l40s", "", "l40s-8"),
    ("l4", "", "l4-8"),
    ("a10g", "", "a10g-8"),
    ("rtx pro 6000", "", "rtx-pro-6000-8"),
    *((f"rtx {number}", "", f"rtx-{number}-8") for number in ("3060", "3080", "3090", "4080", "4090", "5090")),
)
_OTHER_MEMORY = 0.1
"""Share by which printed gigabytes may differ from a device's memory: 80 GB may mean 80e9 bytes or 80 GiB."""
_OTHER_WORDS = frozenset([
    "nvidia", "amd", "google", "geforce", "instinct", "tesla", "cloud", "gpu", "tensor", "core", "sxm", "sxm2", "sxm3",
    "sxm4", "sxm5", "pcie", "oam", "hgx", "dgx", "nvl72", "hbm2", "hbm2e", "hbm3", "hbm3e",
    "one", "gcd", "die", "server", "edition", "blackwell", "generation", "ascend", "intel", "huawei", "aws", "spark",
])  # fmt: skip
"""Words beside the name of a device that do not choose another profile."""
_NETWORKS = frozenset([
    "infiniband", "ib", "roce", "rdma", "efa", "ethernet", "nvlink", "nvswitch", "xgmi", "pcie", "ici", "dcn", "none",
    "intra", "inter", "node", "omni", "path", "opa", "slingshot", "connectx", "fdr", "edr", "hdr", "ndr", "xdr", "tcp",
    "sockets", "over", "2d", "3d", "torus", "per", "slice", "slices", "between", "a", "of", "and", "with", "nics",
    "nic",
])  # fmt: skip
"""Words for networks, of which some choose a profile; other words are listed with a row as not read."""


@lru_cache(maxsize=64)
def load_named_profile(name: str) -> ClusterProfile:
    """A cluster profile by name or file, read once. Raises UserError."""
    name, network = split_network(name)
    profile, instance = files.parse(ClusterProfile, load_profile(name, "clusters", "hardware")[0]), instance_named(name)
    profile = profile if instance is None else instance.of(profile)
    return with_network(profile, network) if network else profile


@lru_cache(maxsize=64)
def device_of(name: str) -> Device:
    """The device of a cluster profile. Raises UserError."""
    return load_cluster(name).device


def hardware_of(row: Row) -> str:
    """The cluster profile of a row: that of its column ``hardware``, else by its words for device and network.

    Raises Unmodelled.
    """
    if named := text(row, "hardware"):
        try:
            load_named_profile(named)
        except UserError as error:
            raise Unmodelled(str(error).partition("\n")[0]) from None
        return named
    network = text(row, "interconnect")
    name = _by_words(text(row, "gpu_type").lower(), network.lower())
    out, sockets = load_named_profile(name).scale_out, sockets_of(network)
    return f"{name}{OVER}{sockets}" if sockets and out is not None and out.kind != "dcn" else name


def unread_of_network(row: Row) -> tuple[str, ...]:
    """Words of the column ``interconnect`` that choose nothing: no kind of network or count, and rates of nothing."""
    words = _words(without_rates(text(row, "interconnect").lower()))
    rates = unread_rates(text(row, "interconnect"))
    return (*sorted(word for word in words - _NETWORKS if not word[0].isdecimal()), *rates)


@lru_cache(maxsize=1024)
def _by_words(device: str, network: str) -> str:
    if not device:
        raise Unmodelled("gpu_type not published")
    words, links = _words(device), _words(network)
    known = [(name.split(), link, profile) for name, link, profile in _PROFILES if words.issuperset(name.split())]
    sizes = {word for word in words if word.removesuffix("gb").isdecimal() and word.endswith("gb")}
    named = {word for name, _, _ in known for word in name}
    if not known or words - named - sizes - _OTHER_WORDS:
        raise Unmodelled(f"no profile for {device}; name one in the column hardware (simpar list hardware)")
    profile = next(profile for _, link, profile in known if not link or link in links)
    memory_bytes = device_of(profile).memory_bytes
    if any(abs(int(size[:-2]) * GB - memory_bytes) > _OTHER_MEMORY * memory_bytes for size in sizes):
        raise Unmodelled(f"no profile for {device}: that of {profile} has {memory_bytes / GB:.0f} GB")
    return profile


def _words(cell: str) -> set[str]:
    """Words of a cell; a number and the unit GB behind it are one word."""
    words = "".join(each if each.isalnum() else " " for each in cell).split()
    behind = [*words[1:], ""]
    return {f"{word}gb" if behind[at] == "gb" else word for at, word in enumerate(words) if word != "gb"}
