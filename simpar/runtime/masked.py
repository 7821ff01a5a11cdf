"""Samples of which some tokens are masked, for models that predict these. No torch here."""

from __future__ import annotations

import numpy as np

from simpar.dataclass import dataclass
from simpar.runtime.data import IGNORED_TARGET, SampleSource
from simpar.runtime.job import RunJob
from simpar.runtime.objective import CHOSEN, ENCODER
from simpar.runtime.tokenizer import BYTES, TokenizerFiles, name_of
from simpar.units import Flags, Floats, Ints

MASKED, RANDOM = 0.8, 0.1
"""Shares of the predicted tokens that are masked, and that another one replaces [arXiv 1810.04805, section 3.1]."""
APART = 1 << 32
"""Beside the seed, in the key of a sample's choices."""


@dataclass(frozen=True)
class MaskedTokens:
    """Samples of a ``source`` some of whose tokens are masked by ``mask``, and which of them are predicted.

    A sample's last token has no place in a sequence; a target stands one behind the place of its token, as if it were
    the next one.
    """

    source: SampleSource
    mask: int
    vocab: int
    seed: int

    masked = True

    def __len__(self) -> int:
        return len(self.source)

    def drawn(self, position: Ints, seed: int) -> Ints:
        """Numbers of the samples of a run by their position in it: int64[n]."""
        return self.source.drawn(position, seed)

    def sample(self, index: int) -> Ints:
        """One sample with masked tokens: int64[seq_len + 1]."""
        tokens, chosen, how = self._chosen(index)
        random = np.random.Generator(np.random.Philox(key=[self.seed + 2 * APART, index]))
        others = random.integers(self.vocab, size=len(tokens))
        shown = np.where(chosen & (how < MASKED), self.mask, tokens)
        replaced = chosen & (how >= MASKED) & (how < MASKED + RANDOM)
        return np.asarray(np.where(replaced, others, shown), dtype=np.int64)

    def wanted(self, index: int) -> Ints:
        """Targets: int64[seq_len + 1], those of a sequence's places from the second on."""
        tokens, chosen, _ = self._chosen(index)
        counted = self.source.wanted(index) != IGNORED_TARGET
        result = np.full(len(tokens), IGNORED_TARGET, dtype=np.int64)
        result[1:] = np.where(chosen & counted, tokens, IGNORED_TARGET)[:-1]
        return result

    def _chosen(self, index: int) -> tuple[Ints, Flags, Floats]:
        """A sample's tokens, which of them are predicted, and numbers in [0, 1) that say how they are shown."""
        tokens = self.source.sample(index)
        random = np.random.Generator(np.random.Philox(key=[self.seed + APART, index]))
        draws = random.random((2, len(tokens)))
        chosen = draws[0] < CHOSEN
        chosen[int(np.argmin(draws[0][:-1]))] = True  # at least one
        return tokens, chosen, draws[1]


def as_trained(source: SampleSource, job: RunJob, vocab: int) -> SampleSource:
    """The source as a job's model is trained on it: with masked tokens where it predicts these. Raises UserError."""
    if ENCODER not in job.library_parts:
        return source
    return MaskedTokens(source, mask_of(job, vocab), vocab, job.learning.seed)


def mask_of(job: RunJob, vocab: int) -> int:
    """The number of the token that masks others: as a tokenizer names it, else the last one. Raises UserError."""
    if job.data.tokenizer in (None, BYTES):
        return vocab - 1
    files = TokenizerFiles.of(str(job.data.tokenizer))
    return files.ids().get(name_of(files.settings.get("mask_token")), vocab - 1)
