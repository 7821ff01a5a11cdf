"""The shape of a training step."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from simpar.units import Count


class Training(BaseModel):
    """``seq_len`` tokens a sequence and ``global_batch`` sequences an optimizer step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq_len: Count
    global_batch: Count

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes."""
        return self.seq_len * self.global_batch
