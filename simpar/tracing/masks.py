"""Constants of a trace, evaluated to see which keys their masks hide."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass
from simpar.tracing.nodes import Mask, Ref

MOST_ELEMENTS = 2**28
HIDDEN_BELOW = -1e4


@dataclass(frozen=True)
class Made:
    """Calls that made a module, and by the name of a buffer the one among them that made it."""

    calls: Sequence[Any] = ()
    buffers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Constants:
    """Calls that depend on no input but those whose values are ``known``, evaluated on the CPU when asked for.

    Buffers have the values that they were ``made`` with.
    """

    calls: Sequence[Any]
    known: dict[str, Any] = field(default_factory=dict)
    made: Made = field(default_factory=Made)
    masks: dict[tuple[str, bool], Mask | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name = {call.name: call for call in self.calls}
        self._before = Constants(self.made.calls) if self.made.calls else None

    def mask(self, name: str, *, hides: bool) -> Mask | None:
        """Which keys a constant mask [..., queries, keys] lets be seen: those of true, or near 0 in a float mask.

        ``hides`` reverses a boolean mask. None where the values are unknown (a buffer that was made at random) or the
        form is neither full, causal nor a window before or around queries. Each mask is read once: layers share them.
        """
        if (name, hides) not in self.masks:
            self.masks[name, hides] = self._mask(name, hides=hides)
        return self.masks[name, hides]

    def _mask(self, name: str, *, hides: bool) -> Mask | None:
        import torch

        value = self.value(name)
        if value is None or value.dim() < 2:
            return None
        rows = value.reshape(-1, *value.shape[-2:])[0]
        if rows.dtype == torch.bool or not rows.is_floating_point():
            seen = ~rows.bool() if hides else rows.bool()
        else:
            seen = rows > HIDDEN_BELOW
        queries, keys = seen.shape
        if bool(seen.all()):
            return Mask()
        if queries != keys:
            return None
        window = int(seen.sum(-1).max())
        if not window:  # all is hidden until chosen keys are shown
            return None
        causal = torch.ones_like(seen).tril()
        if bool((seen == causal).all()):
            return Mask(causal=True)
        banded = causal & torch.ones_like(seen).triu(1 - window)
        if bool((seen == banded).all()):
            return Mask(causal=True, window=window)
        ahead = int(seen[0].sum()) - 1  # of as many on either side
        around = torch.ones_like(seen).tril(ahead) & torch.ones_like(seen).triu(-ahead)
        return Mask(window=window) if bool((seen == around).all()) else None

    def value(self, name: str) -> Any:
        """What a call makes, on the CPU; None where that is unknown."""
        if name not in self.known:
            try:
                self.known[name] = self._run(name)
            except (RuntimeError, TypeError, IndexError, _Unknown):
                self.known[name] = None
        return self.known[name]

    def _run(self, name: str) -> Any:
        call = self._by_name[name]
        if self._before is not None and name in self.made.buffers:
            return self._before.value(self.made.buffers[name])
        if call.op == "placeholder" or getattr(call.value, "numel", int)() > MOST_ELEMENTS:
            raise _Unknown
        if call.op == "_assert_tensor_metadata":
            return None
        given, named = call.given
        return call.target(*(self._real(arg) for arg in given), **{key: self._real(arg) for key, arg in named.items()})

    def _real(self, value: Any) -> Any:
        import torch

        if isinstance(value, Ref):
            result = self.value(value.name)
            if result is None:
                raise _Unknown
            return result
        if isinstance(value, list):
            return [self._real(item) for item in value]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            raise _Unknown
        return value


class _Unknown(Exception):
    """A value that cannot be evaluated: it needs the real module's tensors, or is too large."""
