"""Variables of a command that decide the time or the memory of a step, as words of the text."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from simpar.frameworks.words import Account, WordTable

READ = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", "NGPU")
"""Variables that the launcher or a reader uses."""
WORDS = WordTable(
    deciding={
        "cuda_launch_blocking": "the host waits for every kernel: a slower step",
        "nccl_algo": "the algorithm of collectives: their time",
        "nccl_proto": "the protocol of collectives: their time",
        "nccl_p2p_disable": "devices of a node reach each other through the host's memory: slower collectives",
        "nccl_shm_disable": "devices of a node reach each other over the network: slower collectives",
        "nccl_ib_disable": "nodes are joined by TCP: slower collectives",
        "nccl_net_gdr_level": "whether cards read the devices' memory themselves: time between nodes",
        "nccl_max_nchannels": "channels of collectives: their bandwidth, and the processors that kernels lose",
        "nccl_max_ctas": "channels of collectives: their bandwidth, and the processors that kernels lose",
        "torch_nccl_avoid_record_streams": "when buffers of collectives are free again: memory",
        "torch_nccl_blocking_wait": "the host waits for collectives: a slower step",
        "nvte_torch_compile": "fused operators around the engine's modules: time and memory",
    }
)
"""NCCL's, torch's and Transformer Engine's variables, with what simpar leaves out of them."""


def account_of(environment: Mapping[str, str]) -> Account:
    """The variables among those of a command that simpar knows: all others belong to the script alone."""
    known = {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name.lower(), each) for each in WORDS.deciding)
    }
    return WORDS.sort([name for name in READ if environment.get(name)], known)
