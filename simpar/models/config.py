"""Checked access to the fields of a Hugging Face config, and what most families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.models.transformer import Shape

MAX_SIZE = 2**31


@dataclass(frozen=True)
class Config:
    """A config with checked access: every number is a positive integer in range, or the default."""

    data: Mapping[str, Any]
    source: str

    def size(self, *names: str, default: int | None = None) -> int:
        """The first of the named fields that is present and not null. Raises UserError."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < MAX_SIZE:
                raise UserError(
                    f"{self.source}: {name} = {value!r}: allowed: a positive integer below {MAX_SIZE}"
                )
            return value
        if default is None:
            raise UserError(f"{self.source}: {names[0]} is missing")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean field. Raises UserError."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UserError(f"{self.source}: {name} = {value!r}: allowed: true, false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A text field."""
        value = self.data.get(name)
        return default if value is None else str(value)

    def rate(self, *names: str) -> float:
        """The largest of some probabilities (0 where absent). Raises UserError."""
        worst = 0.0
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise UserError(f"{self.source}: {name} = {value!r}: allowed: 0 up to below 1")
            worst = max(worst, float(value))
        return worst


Family = Callable[[Config, str], ModelGraph]
"""The reader of a family of models: a config and the model's name to its graph."""


def shape_of(config: Config, *, hidden: int, ffn: int, layers: int, heads: int, **sizes: int) -> Shape:
    """A shape whose head counts divide. ``sizes`` may give kv_heads, head_dim and positions."""
    kv_heads = sizes.get("kv_heads") or heads
    head_dim = sizes.get("head_dim") or 0
    if heads % kv_heads:
        raise UserError(
            f"{config.source}: num_key_value_heads = {kv_heads} does not divide num_attention_heads = {heads}"
        )
    if not head_dim and hidden % heads:
        raise UserError(
            f"{config.source}: num_attention_heads = {heads} does not divide hidden_size = {hidden}"
        )
    return Shape(
        vocab=config.size("vocab_size"), hidden=hidden, ffn=ffn, layers=layers, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads, positions=sizes.get("positions", 0),
    )  # fmt: skip


def llama_shape(config: Config, **defaults: int) -> Shape:
    """The shape behind Llama's field names; ``defaults`` may give kv_heads and head_dim. Raises UserError."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    return shape_of(
        config,
        hidden=hidden,
        ffn=config.size("intermediate_size"),
        layers=config.size("num_hidden_layers"),
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=defaults.get("kv_heads", heads)),
        head_dim=config.size("head_dim", default=defaults.get("head_dim") or max(hidden // heads, 1))
        if "head_dim" in defaults or config.data.get("head_dim")
        else 0,
    )


def windows_of(config: Config, layers: int, *, default: bool) -> tuple[int | None, ...]:
    """Sliding windows by layer: ``layer_types`` decides, else one window for all layers."""
    window = config.data.get("sliding_window")
    if window is None or not config.flag("use_sliding_window", default=default):
        return ()
    size = config.size("sliding_window")
    kinds = config.data.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(size if "sliding" in str(kind) else None for kind in kinds)
    return (size,) * layers
