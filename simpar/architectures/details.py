"""Details of a model on which its numbers depend, but no size or cost: bases, epsilons, scales, caps, routing.

Runs compute with them, and exports write them. They are read from a config by :mod:`simpar.architectures.hf_details`.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.units import Floats

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
SCORES = ("softmax", "sigmoid")


@dataclass(frozen=True)
class Rope:
    """Rotary positions: their base ``theta``, the ``fraction`` of a head's features that rotate, and their scaling.

    ``scaling`` are the further fields of ``rope_parameters`` as transformers writes them ("rope_type", "factor", ...),
    empty without scaling to longer sequences. ``interleaved``: neighbouring features rotate as a pair; else features of
    the two halves do.
    """

    theta: float = 10_000.0
    fraction: float = 1.0
    scaling: Mapping[str, Any] = field(default_factory=dict)
    interleaved: bool = False

    @property
    def kind(self) -> str:
        """How longer sequences are reached: "default" (not at all), "linear", "llama3", "yarn", ..."""
        return str(self.scaling.get("rope_type") or "default")

    def turned(self, head_dim: int) -> int:
        """Number of features of a head that rotate."""
        return int(head_dim * self.fraction)

    def frequencies(self, head_dim: int) -> Floats:
        """Radians per position of every pair of features: float64[turned / 2]. Raises UserError.

        Base [Su et al. 2021, arXiv 2104.09864]; linear interpolation [Chen et al. 2023, arXiv 2306.15595]; by parts
        [Llama 3.1, "llama3" in transformers]; YaRN [Peng et al. 2023, arXiv 2309.00071, section 3.2].
        """
        turned = self.turned(head_dim)
        plain: Floats = self.theta ** -(np.arange(0, turned, 2, dtype=np.float64) / turned)
        if self.kind == "default":
            return plain
        factor = float(self._number("factor"))
        if self.kind == "linear":
            return plain / factor
        if self.kind == "llama3":
            return self._by_parts(plain, factor)
        if self.kind == "yarn":
            return self._yarn(plain, factor, turned)
        raise UserError(f"rope_scaling.rope_type = {self.kind}: the runtime knows {', '.join(ROPE_TYPES)}")

    @property
    def magnitude(self) -> float:
        """Factor on rotated queries and keys: YaRN's temperature, 1 elsewhere."""
        if self.kind != "yarn":
            return 1.0
        given, factor = self.scaling.get("attention_factor"), float(self._number("factor"))
        if given is not None:
            return float(given)
        top, bottom = self._optional("mscale"), self._optional("mscale_all_dim")
        if top and bottom:
            return _temperature(factor, top) / _temperature(factor, bottom)
        return _temperature(factor, 1.0)

    @property
    def temperature(self) -> float:
        """Factor on the scale of scores in latent attention under YaRN with ``mscale_all_dim``; 1 elsewhere."""
        scale = self._optional("mscale_all_dim") if self.kind == "yarn" else 0.0
        return _temperature(float(self._number("factor")), scale) ** 2 if scale else 1.0

    def _optional(self, name: str) -> float:
        """A number, 0 where it is absent, null or 0. Raises UserError."""
        return self._number(name) if self.scaling.get(name) else 0.0

    def _number(self, name: str) -> float:
        value = self.scaling.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UserError(f"rope_scaling.{name} = {value!r}: allowed: a number above 0")
        return float(value)

    def _by_parts(self, plain: Floats, factor: float) -> Floats:
        """Llama 3.1's scaling: low frequencies are divided by ``factor``, high ones kept, others interpolated."""
        low, high = self._number("low_freq_factor"), self._number("high_freq_factor")
        turns = self._number("original_max_position_embeddings") * plain / (2 * math.pi)
        kept = np.clip((turns - low) / max(high - low, 0.001), 0.0, 1.0)
        mixed: Floats = plain * ((1 - kept) / factor + kept)
        return mixed

    def _yarn(self, plain: Floats, factor: float, turned: int) -> Floats:
        length = self._number("original_max_position_embeddings")

        def pair(turns: float) -> float:
            """The index of the pair of features that makes ``turns`` rotations over the trained length."""
            return turned * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        first = pair(float(self.scaling.get("beta_fast") or 32.0))
        last = pair(float(self.scaling.get("beta_slow") or 1.0))
        if self.scaling.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, turned - 1)
        divided = np.clip((np.arange(turned // 2) - first) / max(last - first, 0.001), 0.0, 1.0)
        mixed: Floats = plain * (divided / factor + (1 - divided))
        return mixed


def _temperature(factor: float, scale: float) -> float:
    """YaRN's growth of scores with the length [Peng et al. 2023, arXiv 2309.00071, section 3.3]."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


@dataclass(frozen=True)
class Positions:
    """Details of a model's positions.

    ``windowed`` are the rotary positions of layers with a window, where they differ; under ``alibi`` scores fall with
    the distance instead [Press et al. 2021, arXiv 2108.12409]; learned positions begin at row ``offset`` of their
    table.
    """

    rope: Rope = field(default_factory=Rope)
    windowed: Rope | None = None
    alibi: bool = False
    offset: int = 0

    def rope_of(self, window: int | None) -> Rope:
        """Rotary positions of a layer with or without a window."""
        return self.windowed if self.windowed is not None and window is not None else self.rope


@dataclass(frozen=True)
class Dropout:
    """Probabilities with which elements are dropped."""

    embedding: float = 0.0
    attention: float = 0.0
    residual: float = 0.0


@dataclass(frozen=True)
class Scales:
    """Factors on embeddings, residual branches, logits and scores; ``attention`` None is 1 / sqrt(head dim)."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None


@dataclass(frozen=True)
class Caps:
    """Limits c of scores and logits x, as c tanh(x / c) [Gemma 2, arXiv 2408.00118]; None: none.

    ``projections`` clips projected queries, keys and values to -c..c.
    """

    attention: float | None = None
    logits: float | None = None
    projections: float | None = None


@dataclass(frozen=True)
class Gating:
    """How a router's logits become weights: ``score`` "softmax" or "sigmoid", ``normalised`` to sum 1, a ``factor``.

    The ``bias`` of a router is "added" to its logits, or only "chooses" experts [DeepSeek-AI 2024, arXiv 2412.19437,
    section 2.1.2]. Groups of experts are ranked by their best expert or (``pairs``) by the sum of their best two.
    """

    score: str = "softmax"
    normalised: bool = True
    factor: float = 1.0
    bias: str = "added"
    pairs: bool = False


@dataclass(frozen=True)
class Details:
    """Everything that a run needs beside sizes and operators.

    ``activation`` has its name in transformers. Norms add ``norm_eps`` to the mean square and multiply by
    ``norm_offset`` + weight. Matrices are initialised normally with standard deviation ``init_std``. Time ``steps`` of
    state-space scans are at least the first, and at most the second number (None: any). ``unread`` are fields of the
    config that simpar does not understand, ``unbuilt`` are parts that are simulated, but cannot be run.
    """

    activation: str = "silu"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0
    init_std: float = 0.02
    positions: Positions = field(default_factory=Positions)
    dropout: Dropout = field(default_factory=Dropout)
    scales: Scales = field(default_factory=Scales)
    caps: Caps = field(default_factory=Caps)
    gating: Gating = field(default_factory=Gating)
    steps: tuple[float, float | None] = (0.0, None)
    unread: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """One line about the fields that are not understood; empty if all are."""
        names = ", ".join(self.unread)
        return f"Fields of the model's config that are not understood and play no part: {names}." if names else ""
