"""The devices of a slice or a node, which texts for JAX and scripts that count them leave open, as flags say them."""

from collections.abc import Iterator
from contextlib import contextmanager

from simpar.errors import UserError
from simpar.frameworks.open_axes import devices_of_slice
from simpar.frameworks.shell_devices import devices_shown
from simpar.hardware.catalogue import load_cluster
from simpar.preflight.check import CheckFlags


@contextmanager
def slice_of(facts: CheckFlags) -> Iterator[None]:
    """Reading with the devices of a slice, and the slices: those of a node of GPUs, or all TPUs that flags say."""
    devices, slices = _sizes(facts)
    with devices_of_slice(devices, slices), devices_shown(devices):
        yield


def _sizes(facts: CheckFlags) -> tuple[int | None, int | None]:
    """Devices and slices, None where flags do not say them; who uses the hardware says what is wrong with its name."""
    if facts.hardware is None:
        return None, None
    try:
        one = load_cluster(facts.hardware)
    except UserError:
        return None, None
    each = one.world_size // one.nodes
    told = facts.devices or (facts.nodes and facts.nodes * each)
    if one.profile.scale_up.kind == "torus":
        return told, None
    devices = min(each, told or each)
    return devices, told and told // devices
