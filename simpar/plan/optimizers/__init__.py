"""Optimizers by name, as the files of this folder declare them: the usual one, then by the month of publication.

To add an optimizer, add a file that says what :class:`~simpar.plan.optimizers.optimizer.Optimizer` asks.
"""

from simpar import files
from simpar.declared import entries
from simpar.plan.optimizers.optimizer import InTorch as InTorch
from simpar.plan.optimizers.optimizer import Optimizer


def _listed() -> dict[str, Optimizer]:
    optimizers: list[Optimizer] = entries(__name__, __path__, "OPTIMIZERS")
    return {each.name: each for each in sorted(optimizers, key=lambda one: (not one.usual, one.month))}


OPTIMIZERS = _listed()
IN_LIBRARIES = {
    "adamw_bnb_8bit": "adamw_8bit", "paged_adamw_32bit": "paged_adamw", "lion_32bit": "lion", "galore_adamw": "galore",
}  # fmt: skip
"""Names of transformers and bitsandbytes for the same optimizers."""
DEFAULT_OPTIMIZER = next(each.name for each in OPTIMIZERS.values() if each.usual)
"""The optimizer of plans that name none."""
BY_VALUE = ", ".join(each.name for each in OPTIMIZERS.values() if not each.by_shape)
"""Names of the optimizers that update value by value, whatever the shapes of matrices, as one text."""
IN_TORCH = tuple(each.name for each in OPTIMIZERS.values() if each.in_torch)
"""Optimizers that ``torch.optim`` has, and hence the runtime and the exporters."""

MOMENTUM = ", ".join(name for name in IN_TORCH if "momentum" in (OPTIMIZERS[name].in_torch or InTorch("")).options)
"""Names of torch's optimizers that take a momentum, as one text."""


def in_torch(name: str) -> InTorch:
    """The ``torch.optim`` class of an optimizer in IN_TORCH; plans with another one are refused before they run."""
    result = OPTIMIZERS[name].in_torch
    assert result is not None, name
    return result


def known_optimizer(name: str) -> str:
    """The name, in place of a library's name for the same. Raises ValueError with a suggestion for an unknown one."""
    name = IN_LIBRARIES.get(name, name)
    if name not in OPTIMIZERS:
        raise ValueError(f"is not an optimizer{files.suggest(name, OPTIMIZERS)}{files.allowed(OPTIMIZERS)}")
    return name
