"""The matrix of ``nvidia-smi topo -m``: how every device reaches every other, and the network cards beside it.

Format: the legend that the command prints, and outputs of it in public reports (8 H100 with cards called NIC0 or
mlx5_0, 4 H100 without cards). A header line names the columns; "CPU Affinity" and what follows are none of the matrix.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from simpar.errors import UserError
from simpar.hardware.machine.reading import LEAST, Links, Reading
from simpar.plain import printable

KIND = "nvidia-smi topo -m"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"GPU\d+")
_CELL = re.compile(r"X|NV(\d+)|SYS|NODE|PHB|PXB|PIX|SOC")
NEAR = ("PIX", "PXB")
"""A card reached over PCIe switches alone, nearest first: a device sends through it without its host."""

Matrix = Mapping[str, Mapping[str, str]]


_FIRST = re.compile(r"\s*GPU0\s+(?:X\b|NV\d|SYS|NODE|PHB|PXB|PIX)")
"""The first row of a matrix."""


def is_matrix(text: str) -> bool:
    """Whether a text has the header and a row of such a matrix."""
    return any(map(_FIRST.match, _ESCAPES.sub("", text).splitlines()))


def read_matrix(text: str, file: str) -> Reading:
    """Devices of a node, NVLinks between them, and the cards near them. Raises UserError for a damaged matrix."""
    lines = _ESCAPES.sub("", text).splitlines()
    if (count := len({tuple(line.split()) for line in lines if _FIRST.match(line)})) > 1:
        raise UserError(f"{file}: {count} matrices that differ, as of several kinds of nodes; allowed: one")
    matrix, columns = _cells(lines, file)
    devices = [name for name in columns if _DEVICE.fullmatch(name)]
    if sorted(devices) != sorted(name for name in matrix if _DEVICE.fullmatch(name)):
        raise UserError(f"{file}: the matrix has {len(devices)} columns of GPUs, and rows of others; is it whole?")
    result = Reading(KIND, file)
    result.say("devices_per_node", len(devices))
    _cards(result, matrix, devices, [name for name in columns if name not in devices])
    _links(result, matrix, devices)
    return result


def islands(names: Sequence[str], joined: Collection[tuple[str, str]]) -> list[set[str]]:
    """Groups of devices that links join, directly or over each other."""
    result: list[set[str]] = [{name} for name in names]
    for pair in joined:
        touched = [group for group in result if group & {*pair}]
        result = [*(group for group in result if group not in touched), set().union(*touched)]
    return result


def _cells(lines: Sequence[str], file: str) -> tuple[Matrix, list[str]]:
    """Rows by name, each with its cells by column. Raises UserError."""
    columns: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not columns:
            if len(words) > 1 and words[0] == "GPU0" and not _CELL.fullmatch(words[1]):
                columns = words[: words.index("CPU")] if "CPU" in words else words
            continue
        if not words or words[0] not in columns:
            if rows and line.strip():
                break  # the legend
            continue
        cells = words[1 : len(columns) + 1]
        wrong = next((cell for cell in cells if not _CELL.fullmatch(cell)), None)
        if wrong is not None or len(cells) < len(columns):
            fault = f"{printable(wrong)!r} is not a connection" if wrong else f"{len(cells)} of {len(columns)} cells"
            raise UserError(f"{file}:{number}: row {words[0]} of the matrix: {fault}")
        rows[words[0]] = dict(zip(columns, cells, strict=True))
    if not rows:
        raise UserError(f"{file}: no row of a matrix of nvidia-smi topo -m")
    return rows, columns


def _cards(reading: Reading, matrix: Matrix, devices: Sequence[str], cards: Sequence[str]) -> None:
    """Note the cards that a device reaches without its host, if every device has equally many."""
    near: dict[str, list[str]] = {}
    for device in devices:
        reached = {level: [card for card in cards if matrix[device][card] == level] for level in NEAR}
        near[device] = next((names for names in reached.values() if names), [])
    used = {card for names in near.values() for card in names}
    shares = {len(names) for names in near.values()}
    if not cards:
        reading.unread.append("network cards: the matrix has none")
    elif len(shares) > 1 or shares == {0}:
        reading.unread.append(
            f"network cards: which of {len(cards)} the GPUs use (not every GPU has as many behind its PCIe switches)"
        )
    else:
        reading.say("scale_out.nics_per_node", len(used), LEAST)
        others = [card for card in cards if card not in used]
        if others:
            reading.unread.append(f"{', '.join(others)}: behind no PCIe switch of a GPU, left out of the network")


def _links(reading: Reading, matrix: Matrix, devices: Sequence[str]) -> None:
    """Note the NVLinks, if every pair of devices has equally many."""
    counts, joined = set(), set()
    for device in devices:
        for other in devices:
            match = _CELL.fullmatch(matrix[device][other])
            if device != other and match:
                counts.add(int(match[1] or 0))
                joined |= {(device, other)} if match[1] else set()
    groups = islands(devices, joined)
    if counts == {0}:
        reading.say("scale_up.kind", "pcie")
    elif len(groups) > 1:
        reading.say("scale_up.kind", "pcie")
        sizes = " and ".join(map(str, sorted({len(each) for each in groups})))
        reading.unread.append(
            f"scale_up: NVLinks join groups of {sizes} of {len(devices)} GPUs, and PCIe the groups; a profile has one "
            "kind between all, and collectives of all pass PCIe"
        )
    elif len(counts) == 1:
        (pair,) = counts
        reading.links = Links(reading.file, pair, switched=None)
    elif counts:
        reading.unread.append(
            "scale_up: pairs of GPUs have "
            + " and ".join(f"{count} NVLinks" if count else "none" for count in sorted(counts))
            + "; a profile has as many between all"
        )
