"""The base of a plan's sections."""

from simpar.calls import Strict


class Section(Strict):
    """A section of a plan: frozen, and no key but its own."""
