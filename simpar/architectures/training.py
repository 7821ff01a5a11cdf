"""The shape of a training step."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from simpar.calls import Strict
from simpar.errors import UserError
from simpar.units import Count, Tokens

MOST_TOKENS = 2**32
"""Upper limit for a microbatch. Beyond it, bytes and nanoseconds of today's models exceed 64 bits."""
MOST_SEQUENCES = 2**42


class Documents(Strict):
    """How long the documents are that sequences are made of.

    Either a list of ``lengths`` in tokens, each as likely as the others, or a lognormal with a ``mean`` and a
    ``spread`` (standard deviation over mean); longer ones are cut to a sequence. ``packing`` "pack" fills sequences
    with documents that attend to themselves only, "pad" gives each a sequence of its own, padded to its end.
    """

    lengths: tuple[Count, ...] | None = None
    mean: Count | None = None
    spread: float = Field(default=1.0, ge=0, le=16, allow_inf_nan=False)
    packing: Literal["pack", "pad"] = "pack"

    @model_validator(mode="after")
    def _one_distribution(self) -> Self:
        if bool(self.lengths) == (self.mean is not None):
            raise ValueError("documents: give lengths or a mean, one of them")
        return self


class Training(Strict):
    """``seq_len`` tokens a sequence and ``global_batch`` sequences an optimizer step, of ``documents`` if they vary.

    ``tokens`` are those of the whole run ("15T"), where it is known how long it is. Raises UserError.

    >>> training = Training(seq_len=4096, global_batch=256, tokens="2T")
    >>> training.seq_len * training.global_batch  # tokens of a step
    1048576
    """

    seq_len: Annotated[Count, Field(le=MOST_TOKENS)]
    global_batch: Annotated[Count, Field(le=MOST_SEQUENCES)]
    documents: Documents | None = None
    tokens: Tokens | None = Field(default=None, description="tokens of the whole run, such as 15T, 300B or 1.4e12")

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            seq_len: int,
            global_batch: int,
            documents: Documents | Mapping[str, Any] | None = None,
            tokens: str | float | None = None,
        ) -> None: ...

    @model_validator(mode="after")
    def _whole_run_has_a_step(self) -> Self:
        if self.tokens is not None and self.tokens < self.tokens_per_step:
            raise ValueError(
                f"tokens = {self.tokens:,} of the whole run: a step alone takes {self.tokens_per_step:,}; allowed: at "
                "least as many, such as 15T"
            )
        return self

    def __repr__(self) -> str:
        return f"Training({', '.join(f'{name}={value!r}' for name, value in self if value is not None)})"

    __str__ = __repr__

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes."""
        return self.seq_len * self.global_batch

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return {key: value for key, value in data.items() if value is not None}


def check_positions(name: str, seq_len: int, positions: int | None) -> None:
    """Raise UserError if a sequence has more tokens than a model has ``positions`` (None: nobody knows)."""
    if positions is not None and seq_len > positions:
        raise UserError(beyond_positions(name, seq_len, positions))


def beyond_positions(name: str, seq_len: int, positions: int) -> str:
    """The refusal of sequences that are longer than a model's positions."""
    return f"seq_len = {seq_len}: {name} has {positions} positions; allowed: as many or fewer"
