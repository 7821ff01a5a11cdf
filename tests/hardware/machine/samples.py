"""Descriptions of clusters as their tools print them, of machines that do not exist."""


def matrix(gpus=8, pair="NV18", cards=10, near=None):
    """``nvidia-smi topo -m``: card i is behind the PCIe switch of GPU i, the last ones behind none."""
    near = {gpu: gpu for gpu in range(gpus)} if near is None else near
    columns = [*(f"GPU{gpu}" for gpu in range(gpus)), *(f"NIC{card}" for card in range(cards))]
    lines = ["\t".join(["", *columns, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for gpu in range(gpus):
        links = [" X " if gpu == other else pair for other in range(gpus)]
        reached = ["PIX" if near.get(gpu) == card else "SYS" for card in range(cards)]
        lines.append("\t".join([f"GPU{gpu}", *links, *reached, "0-47,96-143", "0", "", "N/A"]))
    for card in range(cards):
        others = [" X " if card == other else "SYS" for other in range(cards)]
        lines.append("\t".join([f"NIC{card}", *["SYS"] * gpus, *others]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", "  NIC0: mlx5_0", ""])


def topology(gpus=8, device="0x2335", links='<nvlink target="0000:07:00.0" count="18" tclass="0x068000"/>', **speeds):
    """NCCL's topology: a PCIe switch, a GPU and a card of 400 Gb/s each, and cards by name and speed in Mb/s beside."""
    each = "".join(
        f'<pci busid="0000:{i:02x}:00.0" class="0x060400" vendor="0x1000" device="0xc030">'
        f'<pci busid="0000:{i + 16:02x}:00.0" class="0x030200" vendor="0x10de" device="{device}"'
        f' link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="{i}" sm="90" rank="{i}">{links}</gpu></pci>'
        f'<pci busid="0000:{i + 32:02x}:00.0" class="0x020000" vendor="0x15b3" device="0x1021">'
        f'<nic><net name="mlx5_{i}" dev="{i}" speed="400000" port="1"/></nic></pci></pci>'
        for i in range(gpus)
    )
    more = "".join(f'<net name="{name}" dev="9" speed="{speed}"/>' for name, speed in speeds.items())
    return f'<system version="1"><cpu host_hash="0x1" numaid="0">{each}<nic>{more}</nic></cpu></system>'


def rccl(gpus=8, device="0x74a1", missing=0):
    """RCCL's topology: every GPU has one xGMI link to each of the others, the first one ``missing`` of them."""
    links = [
        "".join(
            f'<xgmi target="0000:{other:02x}:00.0" count="1" tclass="0x038000"/>'
            for other in range(gpus)
            if other != gpu and not (gpu == 0 and other > gpus - 1 - missing)
        )
        for gpu in range(gpus)
    ]
    each = "".join(
        f'<pci busid="0000:{i:02x}:00.0" class="0x120000" vendor="0x1002" device="{device}" link_speed="32.0 GT/s PCIe"'
        f' link_width="16"><gpu dev="{i}" sm="94" gcn="gfx942" rank="{i}" gdr="1">{links[i]}</gpu></pci>'
        for i in range(gpus)
    )
    return f'<system version="2"><cpu numaid="0">{each}</cpu></system>'


def node(name, gres="gpu:h200:8(S:0-1)", memory=2060000, partitions="train,all", state="IDLE"):
    """A record of ``scontrol show nodes``."""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=56 \n   CPUAlloc=0 CPUEfctv=224 CPUTot=224 CPULoad=0.1\n"
        f"   Gres={gres}\n   OS=Linux 5.15.0 #1 SMP Wed Nov 1 2026 \n   RealMemory={memory} AllocMem=0 Sockets=2\n"
        f"   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1\n   Partitions={partitions} \n"
        f"   CfgTRES=cpu=224,mem={memory}M,billing=224,gres/gpu=8\n\n"
    )
