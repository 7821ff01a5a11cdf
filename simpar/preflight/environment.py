"""Variables of a command that decide the time or the memory of a step, as words of the text."""

from collections.abc import Mapping
from dataclasses import replace

from simpar.frameworks.shell_gaps import account_of_gaps
from simpar.frameworks.target import Imported
from simpar.frameworks.words import Account, ReadWords, WordTable, is_off
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.hardware.network import OVER, split_network
from simpar.layout.deciders import state_choices
from simpar.preflight.launcher import without_launchers
from simpar.preflight.visible import slice_lister, visible_devices

NO_RDMA, NO_PEERS = "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE"
READ = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", "NGPU", NO_RDMA,
)  # fmt: skip
"""Variables that the launcher, a reader or :func:`hardware_as_told` uses."""
WORDS = WordTable(
    idle=("cuda_device_max_connections",),  # a stack's overlap is that of Megatron-LM with the one it asks for
    deciding={
        "cuda_launch_blocking": "the host waits for every kernel: a slower step",
        "nccl_algo": "the algorithm of collectives: their time",
        "nccl_proto": "the protocol of collectives: their time",
        NO_PEERS.lower(): "devices of a node reach each other through the host's memory: slower collectives",
        "nccl_shm_disable": "devices of a node reach each other over the network: slower collectives",
        "nccl_socket_nthreads": "threads of NCCL's sockets: bandwidth between nodes over TCP",
        "nccl_nsocks_perthread": "sockets of NCCL's threads: bandwidth between nodes over TCP",
        "nccl_net_gdr_level": "whether cards read the devices' memory themselves: time between nodes",
        "nccl_max_nchannels": "channels of collectives: their bandwidth, and the processors that kernels lose",
        "nccl_max_ctas": "channels of collectives: their bandwidth, and the processors that kernels lose",
        "torch_nccl_avoid_record_streams": "when buffers of collectives are free again: memory",
        "torch_nccl_blocking_wait": "the host waits for collectives: a slower step",
        "nvte_torch_compile": "fused operators around the engine's modules: time and memory",
    },
)
"""NCCL's, torch's and Transformer Engine's variables, with what simpar leaves out of them."""


OF_SLICE = "a slice of a device (MIG), whose memory and processors its name does not say"
OF_SEVERAL = {
    "CUDA_VISIBLE_DEVICES": "one process drives all of them (DataParallel, or layers spread by device_map), answered "
    "for one: the batch, memory and time"
}
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables with the settings of torch's caching allocator; the first wins."""
SEGMENTS = "expandable_segments"
BLOCKS = "how the allocator splits, rounds and frees blocks: reserved memory"
ALLOCATOR_WORDS = WordTable(
    idle=("pinned_*",),
    deciding={"max_split_size_mb": BLOCKS, "garbage_collection_threshold": BLOCKS, "roundup_power2_divisions": BLOCKS,
              "backend": "another allocator than torch's own: reserved memory"},
)  # fmt: skip
"""The allocator's settings, by what simpar leaves out of them."""


def with_allocator(imported: Imported, environment: Mapping[str, str]) -> Imported:
    """What was read of a text, with the allocator's segments as its variables say."""
    told = _of_allocator(environment).get(SEGMENTS)
    if told is None or imported.plan.execution.expandable_segments is not None:
        return imported
    return replace(imported, plan=state_choices(imported.plan, {SEGMENTS: not is_off(told)}))


def _of_allocator(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings of the allocator by name, from ``expandable_segments:True,max_split_size_mb:128``."""
    text = next((environment[name] for name in ALLOCATOR if environment.get(name)), "")
    pairs = (each.partition(":") for each in text.strip("\"'").split(",") if ":" in each)
    return {name.strip(): value.strip() for name, _, value in pairs}


def hardware_as_told(hardware: str, environment: Mapping[str, str], notes: list[str]) -> str:
    """The hardware, its nodes joined by TCP where a variable turns NCCL's RDMA off; a note says so."""
    value = environment.get(NO_RDMA)
    if not value or is_off(value) or split_network(hardware)[1]:
        return hardware
    out = load_cluster(hardware).profile.scale_out
    if out is None or out.kind not in ("ib", "roce"):
        return hardware
    notes.append(f"{NO_RDMA}={value}: nodes are taken to be joined by TCP over the same cards (--network says which).")
    return f"{hardware}{OVER}ethernet"


def account_of_words(
    words: ReadWords, table: WordTable, gaps: Mapping[str, str], environment: Account | None = None
) -> Account:
    """Every word of a text, what it takes from where it cannot be read, and the ``environment`` of its command."""
    words, idle = without_launchers(words)
    account = table.sort(words.used, words.unread) + (environment or Account()) + Account(idle=idle)
    return account + account_of_gaps(gaps, table)


def account_of(environment: Mapping[str, str], cluster: Cluster, *, is_alone: bool = False) -> Account:
    """The variables among those of a command that simpar knows: all others belong to the script alone.

    One that turns peer-to-peer off changes nothing between devices that have none. ``is_alone``: a trainer's script is
    started as one process, which drives all devices that it sees.
    """
    known = {name: value for name, value in environment.items() if WORDS.has(name.lower())}
    idle = () if cluster.profile.scale_up.peer_to_peer or NO_PEERS not in known else (NO_PEERS,)
    allocator = _of_allocator(environment)
    used = [name for name in READ if environment.get(name)] + [SEGMENTS] * (SEGMENTS in allocator)
    others = {name: value for name, value in allocator.items() if name != SEGMENTS}
    known = {name: value for name, value in known.items() if name not in idle}
    shared = is_alone and (visible_devices(environment) or 1) > 1
    slices = slice_lister(environment)
    seen = Account(deciding={slices: OF_SLICE} if slices else OF_SEVERAL if shared else {})
    return WORDS.sort(used, known) + ALLOCATOR_WORDS.sort((), others) + Account(idle=idle) + seen
