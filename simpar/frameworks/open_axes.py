"""Axes of a mesh whose size is what the devices of a slice leave (-1): they are known where the hardware is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod

from simpar.errors import UserError

_DEVICES: ContextVar[int | None] = ContextVar("devices of a slice", default=None)
_SLICES: ContextVar[int | None] = ContextVar("slices", default=None)


@contextmanager
def devices_of_slice(count: int | None, slices: int | None = None) -> Iterator[None]:
    """The devices of a slice (a node of GPUs, the whole of TPUs) and the slices, for texts that leave an axis open."""
    tokens = _DEVICES.set(count), _SLICES.set(slices)
    try:
        yield
    finally:
        _DEVICES.reset(tokens[0])
        _SLICES.reset(tokens[1])


def spread(sizes: Mapping[str, int], axis: str) -> dict[str, int]:
    """Sizes of the axes between slices with the one that is open as the slices leave it, where they are known."""
    slices, others = _SLICES.get(), prod(size for each, size in sizes.items() if each != axis)
    return {**sizes, axis: slices // others} if slices and slices % others == 0 else dict(sizes)


def filled(sizes: Mapping[str, int], source: str) -> tuple[dict[str, int], str]:
    """Sizes of the axes of a slice by option, the one of -1 as the devices leave it, and a note; "" if none is open.

    Raises UserError where two are open, where the devices are not known, and where the others do not divide them.
    """
    names = [name for name, size in sizes.items() if size == -1]
    if not names:
        return dict(sizes), ""
    name, devices = names[0], _DEVICES.get()
    if len(names) > 1:
        raise UserError(f"{source}: {name} = -1: allowed: its size, as {names[1]} is -1, too")
    if devices is None:
        raise UserError(f"{source}: {name} = -1: allowed: its size, here, where the devices of a slice are not said")
    others = prod(size for each, size in sizes.items() if each != name)
    size, rest = divmod(devices, others)
    if rest or not size:
        raise UserError(
            f"{source}: {name} = -1: allowed with others whose product, {others}, divides {devices} devices"
        )
    return {**sizes, name: size}, f"{name} is {size}: what the other axes leave of the {devices} devices of a slice."
