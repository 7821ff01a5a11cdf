"""The tables of ``rocm-smi --showtopo`` and ``amd-smi topology``: how every AMD device reaches every other.

Formats: ROCm/rocm_smi_lib (python_smi_tools/rocm_smi.py, sections "Hops between two GPUs" and "Link Type between two
GPUs") and ROCm/amdsmi (amdsmi_cli, "HOPS TABLE" and "LINK TYPE TABLE", and its JSON). Neither says which device it is,
how many links two devices share, or which cards are near.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.files import read_json
from simpar.hardware.machine.reading import Links, Reading
from simpar.hardware.machine.topo_matrix import islands
from simpar.plain import printable

KIND = "rocm-smi --showtopo, amd-smi topology"
_HEADING = re.compile(r"(?im)^[=\s]*(?P<what>hops|link type) (?:between two GPUs|table)\b")
_ROW = re.compile(r"(GPU\d+|[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)\s+(\S.*)")
_LINK = re.compile(r"0|SELF|XGMI|PCIE|N/A|UNKNOWN", re.IGNORECASE)
_HOPS = re.compile(r"\d+|N/A|SELF", re.IGNORECASE)

Table = Mapping[str, Sequence[str]]


def is_tables(text: str) -> bool:
    """Whether a text has the table of link types, or amd-smi's JSON."""
    if text.lstrip().startswith(("[", "{")):
        return '"link_type"' in text and '"num_hops"' in text
    return any(match["what"].lower() == "link type" for match in _HEADING.finditer(text))


def read_tables(text: str, file: str) -> Reading:
    """Devices of a node, and whether xGMI joins every two of them. Raises UserError for a damaged table."""
    if text.lstrip().startswith(("[", "{")):
        links, hops = _of_json(text, file)
    else:
        links, hops = _table(text, "link type", _LINK, file), _table(text, "hops", _HOPS, file)
    result = Reading(KIND, file)
    result.say("devices_per_node", len(links))
    names = list(links)
    joined = {(one, names[at]) for one in names for at, cell in enumerate(links[one]) if cell.upper() == "XGMI"}
    if len(islands(names, joined)) > 1:
        result.say("scale_up.kind", "pcie")
        if joined:
            sizes = " and ".join(str(len(each)) for each in islands(names, joined))
            result.unread.append(f"scale_up: xGMI joins {sizes} of {len(names)} GPUs; a profile has one kind for all")
    elif len(names) > 1 and len(joined) == len(names) * (len(names) - 1) and _one_hop(hops):
        result.links = Links(file, len(names) - 1, switched=False)
    elif len(names) > 1:
        result.unread.append("scale_up: xGMI does not join every pair of GPUs; a profile has as many links between all")
    result.unread.append("network cards: the tables have none")
    return result


def _of_json(text: str, file: str) -> tuple[Table, Table]:
    """Kinds of links and hops of every pair, from ``amd-smi topology --json``. Raises UserError."""
    data = read_json(text, file)
    listed: Any = data.get("topology", data.get("gpu_data")) if isinstance(data, dict) else data
    try:
        names = {str(each["bdf"]): each["links"] for each in listed}
        links = {name: [str(link["link_type"]) for link in of] for name, of in names.items()}
        hops = {name: [str(link["num_hops"]) for link in of] for name, of in names.items()}
    except (KeyError, TypeError) as error:
        raise UserError(f"{file}: not a topology of amd-smi ({error!r})") from None
    for table, wanted in ((links, _LINK), (hops, _HOPS)):
        wrong = next((cell for of in table.values() for cell in of if not wanted.fullmatch(cell)), None)
        if wrong is not None or not names or any(len(of) != len(names) for of in table.values()):
            raise UserError(f"{file}: not a topology of amd-smi, which names every device's link to every one")
    return links, hops


def _one_hop(hops: Table) -> bool:
    """Whether no two devices pass others on their way."""
    return all(cell in ("0", "1") or not cell.isdecimal() for row in hops.values() for cell in row)


def _table(text: str, what: str, wanted: re.Pattern[str], file: str) -> Table:
    """The rows of the table below a heading. Raises UserError."""
    heading = next((each for each in _HEADING.finditer(text) if each["what"].lower() == what), None)
    if heading is None:
        return {}
    first = text.count("\n", 0, heading.start()) + 1
    result: dict[str, Sequence[str]] = {}
    for number, line in enumerate(text.splitlines()[first:], start=first + 1):
        row = _ROW.match(line.strip())
        cells = row[2].split() if row else []
        if row is None or _ROW.match(f"{cells[0]} x"):
            if result:
                break
            continue  # the names of the columns
        wrong = next((cell for cell in cells if not wanted.fullmatch(cell)), None)
        if wrong is not None:
            raise UserError(f"{file}:{number}: row {row[1]} of the table: {printable(wrong)!r} is none of its values")
        result[row[1]] = cells
    if not result or any(len(cells) != len(result) for cells in result.values()):
        raise UserError(f"{file}:{first}: the table of {what} has {len(result)} rows, and not as many columns in each")
    return result
