"""Checked access to the fields of a Hugging Face config, and readers of fields that most families share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.models.transformer import Shape, Style

MAX_SIZE = 2**31


class Seen(dict[str, Any]):
    """Fields of a config that record which of them were asked for."""

    def __init__(self, fields: Mapping[str, Any], asked: set[str] | None = None) -> None:
        super().__init__(fields)
        self.asked = set() if asked is None else asked

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, or the default."""
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


@dataclass(frozen=True)
class Config:
    """A config with checked access: sizes are positive integers in range, numbers are finite, or the default."""

    data: Mapping[str, Any]
    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.data, Seen):
            object.__setattr__(self, "data", Seen(self.data))

    def having(self, fields: Mapping[str, Any], *, unless_given: bool = False) -> Config:
        """The config with other fields, or (``unless_given``) with those that it lacks; both record the same reads."""
        own: Seen = self.data  # type: ignore[assignment]
        return Config(Seen({**fields, **own} if unless_given else {**own, **fields}, own.asked), self.source)

    def unread(self, silent: Collection[str]) -> tuple[str, ...]:
        """Names of fields with a value that were not asked for and are not ``silent``."""
        own: Seen = self.data  # type: ignore[assignment]
        return tuple(sorted(
            name for name, value in own.items()
            if value not in (None, False, "", [], {}) and name not in own.asked and name not in silent
        ))  # fmt: skip

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A field that is a mapping; None where it is absent. Raises UserError."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{self.source}: {name} = {value!r}: allowed: a mapping")
        return value

    def optional(self, *names: str, default: float | None = None) -> float | None:
        """The first of the named numbers that is present (None for null); it must be positive and finite.

        Raises UserError.
        """
        for name in names:
            if name not in self.data:
                continue
            value = self.data.get(name)
            if value is None:
                return None
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise UserError(f"{self.source}: {name} = {value!r}: allowed: a number above 0")
            return float(value)
        return default

    def number(self, *names: str, default: float) -> float:
        """As :meth:`optional`, with the default for null and for absent fields. Raises UserError."""
        for name in names:
            if (value := self.optional(name)) is not None:
                return value
        return default

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

    def tied(self, *, default: bool = False) -> bool:
        """Whether the head uses the embedding's table. Raises UserError."""
        return self.flag("tie_word_embeddings", default=default)

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


def shape_of(
    config: Config,
    *,
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int = 0,
    head_dim: int = 0,
    positions: int = 0,
) -> Shape:
    """A shape, checked for head counts that divide; of 0, ``kv_heads`` and ``head_dim`` follow from ``heads``."""
    kv_heads = kv_heads or heads
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
        head_dim=head_dim or hidden // heads, positions=positions,
    )  # fmt: skip


def llama_shape(config: Config, *, kv_heads: int | None = None, head_dim: int | None = None) -> Shape:
    """The shape in a config with Llama's field names. Raises UserError.

    ``kv_heads`` and ``head_dim`` are the family's defaults, where it has some of its own: else they follow from heads.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    return shape_of(
        config,
        hidden=hidden,
        ffn=config.size("intermediate_size"),
        layers=config.size("num_hidden_layers"),
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads if kv_heads is None else kv_heads),
        head_dim=config.size("head_dim", default=head_dim or max(hidden // heads, 1))
        if head_dim is not None or config.data.get("head_dim")
        else 0,
    )


def windows_of(config: Config, layers: int, *, default: bool) -> tuple[int | None, ...]:
    """Sliding windows by layer: ``layer_types`` decides, else one window for all layers."""
    window, kinds = config.data.get("sliding_window"), config.data.get("layer_types")
    if window is None or not config.flag("use_sliding_window", default=default):
        return ()
    size = config.size("sliding_window")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(size if "sliding" in str(kind) else None for kind in kinds)
    return (size,) * layers


def alternating(config: Config, layers: int, period: int) -> tuple[int | None, ...]:
    """Windows by layer: none in every ``period``-th layer, which sees all keys."""
    listed = windows_of(config, layers, default=True)
    if isinstance(config.data.get("layer_types"), list):
        return listed
    window = config.size("sliding_window", default=4096)
    return tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))


def gpt_shape(config: Config, *, kv_heads: int = 0) -> Shape:
    """The shape in a config with GPT-2's field names, with learned positions. Raises UserError."""
    hidden = config.size("n_embd", "hidden_size")
    return shape_of(
        config, hidden=hidden, ffn=config.size("n_inner", default=4 * hidden),
        layers=config.size("n_layer", "num_hidden_layers"), heads=config.size("n_head", "num_attention_heads"),
        kv_heads=kv_heads, positions=config.size("n_positions", "max_position_embeddings", default=1024),
    )  # fmt: skip


def gpt_style(*, tied: bool, rotary: bool = False, **more: Any) -> Style:
    """GPT's style: LayerNorm, plain MLP, biases everywhere."""
    return Style(
        norm="layer", gated=False, tied=tied, qkv_bias=True, output_bias=True, mlp_bias=True, rotary=rotary, **more
    )  # fmt: skip
