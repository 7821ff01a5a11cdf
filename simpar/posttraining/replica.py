"""One replica of a serving engine: continuous batching by a token budget and by blocks of cache, event by event.

Every iteration first gives a token to each running sequence; what is left of the token budget goes to prompts, in the
order of arrival, in pieces. A sequence is admitted if its prompt's blocks are free; running sequences take a block when
they need one, and if there is none the one that was admitted last gives up its blocks and waits to be computed anew
[Kwon et al. 2023, arXiv 2309.06180, section 4.5; Agrawal et al. 2024, arXiv 2403.02310]. With shared prefixes the
samples of a group hold the whole blocks of their prompt once, and only the first of them computes these. States of
recurrent layers are blocks of a sequence that do not grow.

Between two events (a sequence ends, a block is missing, a window is full, prompts wait) iterations differ in cached
keys only and are skipped at once (:mod:`simpar.posttraining.iterations`). ``skips=False`` takes them one by one.
"""

from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.posttraining.iterations import NO_WINDOW, IterationTimes, Piece
from simpar.units import Ints

FOREVER = 2**62
EMPTY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class PromptSample:
    """A response to be generated: its number, its group, and the tokens of prompt and response."""

    number: int
    group: int
    prompt: int
    response: int


@dataclass(frozen=True)
class ReplicaLimits:
    """What a replica may do at a time; ``blocks`` of ``block`` tokens are its whole cache.

    Recurrent layers keep ``states`` blocks of every sequence, whatever its length, and of every group that shares its
    prompt ``prompt_states`` more: the state behind it. Prompts are shared up to a multiple of ``shared`` tokens (0: of
    a block).
    """

    token_budget: int
    max_sequences: int
    block: int
    blocks: int
    prefix_sharing: bool
    states: int = 0
    prompt_states: int = 0
    shared: int = 0


@dataclass
class Served:
    """What a replica did: tokens (``decoded`` ones of them not by prompts), iterations, times.

    ``preempted`` are sequences that gave up their blocks, ``again_tokens`` those computed anew. ``sequence_ns`` is the
    sum of sequences x time over iterations, ``key_ns`` the time in which they read cached keys.
    """

    generated: int = 0
    decoded: int = 0
    prompt_tokens: int = 0
    again_tokens: int = 0
    iterations: int = 0
    preempted: int = 0
    busy_ns: int = 0
    prompt_ns: int = 0
    sequence_ns: int = 0
    key_ns: int = 0
    peak_blocks: int = 0
    peak_sequences: int = 0


@dataclass
class Prefill:
    """A sequence on its way into the cache: tokens of its response so far, and tokens to compute behind ``before``."""

    sample: PromptSample
    done: int
    before: int
    tokens: int
    again: int


@dataclass
class SharedPrompts:
    """``sequences`` of every group in the cache, and the ``blocks`` that they save by sharing their prompts."""

    sequences: dict[int, int]
    blocks: int = 0


@dataclass
class Replica:
    """The state of a replica at the end of an iteration, at ``now_ns``.

    ``running``, ``cached`` and ``left`` belong together: sequences in the order of admission, their tokens in the
    cache, and the tokens that they still generate. ``waiting`` has (sample, tokens generated so far); while the replica
    ``is_held`` none of them begins. ``sharing`` is what they save.
    """

    times: IterationTimes
    limits: ReplicaLimits
    skips: bool = True
    now_ns: int = 0
    running: list[PromptSample] = field(default_factory=list)
    cached: Ints = field(default_factory=lambda: EMPTY)
    left: Ints = field(default_factory=lambda: EMPTY)
    waiting: deque[tuple[PromptSample, int]] = field(default_factory=deque)
    filling: list[Prefill] = field(default_factory=list)
    sharing: SharedPrompts = field(default_factory=lambda: SharedPrompts({}))
    is_held: bool = False
    counts: Served = field(default_factory=Served)

    def snapshot(self) -> "Replica":
        """A copy that later iterations do not change; arrays are replaced and never written to."""
        same = copy(self)
        same.running, same.waiting = list(self.running), self.waiting.copy()
        same.filling, same.sharing = (
            [copy(each) for each in self.filling],
            SharedPrompts(dict(self.sharing.sequences), self.sharing.blocks),
        )
        same.counts = copy(self.counts)
        return same

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do, or may not begin."""
        return not (self.running or self.filling or (self.waiting and not self.is_held))

    @property
    def sequences(self) -> int:
        """Sequences that it has, waiting ones included."""
        return len(self.running) + len(self.filling) + len(self.waiting)

    @property
    def samples(self) -> Iterable[PromptSample]:
        """All of these."""
        yield from self.running
        yield from (each.sample for each in self.filling)
        yield from (sample for sample, _ in self.waiting)

    @property
    def used_blocks(self) -> int:
        """Blocks of the cache in use."""
        return self._used_blocks(0)

    def add(self, samples: Iterable[PromptSample], now_ns: int) -> None:
        """Sequences arrive; an idle replica begins with them at once."""
        if self.is_idle:
            self.now_ns = max(self.now_ns, now_ns)
        self.waiting.extend((sample, 0) for sample in samples)

    def interrupt(self, *, recompute: bool) -> None:
        """All sequences stop; with ``recompute`` the cache is lost and they wait to be computed anew."""
        if not recompute:
            return
        begun = [(each.sample, each.done) for each in self.filling]
        decoding = [
            (sample, sample.response - left) for sample, left in zip(self.running, self.left.tolist(), strict=True)
        ]
        self.waiting.extendleft(reversed([*decoding, *begun]))
        self.running, self.filling, self.cached, self.left = [], [], EMPTY, EMPTY
        self.sharing = SharedPrompts({})

    def next_finished(self, until_ns: int = FOREVER) -> list[PromptSample]:
        """Run to the end of the iteration in which sequences end, or that ends at ``until_ns`` or later.

        Returns the sequences that ended; none if it becomes idle or the time is over first.
        """
        while not self.is_idle and self.now_ns < until_ns:
            finished = self._iterate(until_ns)
            if finished:
                return finished
        return []

    # one step

    def _iterate(self, until_ns: int) -> list[PromptSample]:
        """The next iteration, or as many alike as there are before the next event."""
        self._make_room()
        pieces = self._plan_prompts()
        if pieces:
            return self._with_prompts(pieces)
        run = self.times.run(self.cached)
        count = min(int(self.left.min()), self.times.until_outgrown(self.cached), self._until_full())
        count = count if self.skips else 1
        if until_ns < FOREVER:
            count = run.first_not_before(until_ns - self.now_ns, count)
        took_ns = run.time_ns(count)
        self.counts.key_ns += took_ns - count * run.base_ns
        self._pass(took_ns, count)
        return self._advance(count)

    def _pass(self, took_ns: int, count: int) -> None:
        """Count iterations and their time."""
        counts, sequences = self.counts, len(self.running) + len(self.filling)
        self.now_ns += took_ns
        counts.busy_ns += took_ns
        counts.iterations += count
        counts.sequence_ns += took_ns * sequences
        counts.peak_sequences = max(counts.peak_sequences, sequences)
        counts.generated += len(self.running) * count
        counts.decoded += len(self.running) * count

    def _advance(self, count: int) -> list[PromptSample]:
        """Give ``count`` tokens to every running sequence and take those out that have ended."""
        self.cached, self.left = self.cached + count, self.left - count
        self.counts.peak_blocks = max(self.counts.peak_blocks, self._used_blocks(0))
        if not len(self.left) or self.left.min() > 0:
            return []
        ended = [sample for sample, left in zip(self.running, self.left.tolist(), strict=True) if left == 0]
        kept = self.left > 0
        self.running = [sample for sample, stays in zip(self.running, kept.tolist(), strict=True) if stays]
        self.cached, self.left = self.cached[kept], self.left[kept]
        for sample in ended:
            self._release(sample)
        return ended

    def _with_prompts(self, pieces: list[Piece]) -> list[PromptSample]:
        """One iteration that computes pieces of prompts beside the running sequences."""
        took_ns = self.times.mixed_ns(self.cached, pieces)
        self._pass(took_ns, 1)
        counts = self.counts
        counts.prompt_ns += took_ns
        entered = []
        for each, piece in zip(self.filling, pieces, strict=False):
            again = min(each.again, piece.tokens)
            each.before, each.tokens = each.before + piece.tokens, each.tokens - piece.tokens
            each.again -= again
            counts.prompt_tokens += piece.tokens - again
            counts.again_tokens += again
            entered += [each] if each.tokens == 0 else []
        ended = self._advance(1)
        self.filling = self.filling[len(entered) :]
        for each in entered:
            counts.generated += 1
            if each.done + 1 == each.sample.response:
                self._release(each.sample)
                ended.append(each.sample)
                continue
            self.running.append(each.sample)
            self.cached = np.append(self.cached, each.sample.prompt + each.done)
            self.left = np.append(self.left, each.sample.response - each.done - 1)
        return ended

    # prompts

    def _plan_prompts(self) -> list[Piece]:
        """The pieces of prompts that the next iteration computes; admits sequences as long as there is room."""
        limits = self.limits
        budget = limits.token_budget - len(self.running)
        pieces: list[Piece] = []
        for each in self.filling:
            tokens = min(each.tokens, budget - sum(piece.tokens for piece in pieces))
            if tokens <= 0:
                return pieces
            pieces.append(Piece(tokens, each.before))
        room = budget - sum(piece.tokens for piece in pieces)
        used = self._used_blocks(1)
        while (
            self.waiting
            and not self.is_held
            and room > 0
            and len(self.running) + len(self.filling) < limits.max_sequences
        ):
            needed = self._blocks_to_enter(*self.waiting[0])
            if used + needed > limits.blocks:
                break
            used += needed
            entering = self._admit(*self.waiting.popleft())
            tokens = min(entering.tokens, room)
            room -= tokens
            self.filling.append(entering)
            pieces.append(Piece(tokens, entering.before))
        return pieces

    def _admit(self, sample: PromptSample, done: int) -> Prefill:
        """A waiting sequence gets its blocks; what its group has in the cache is not computed again."""
        is_first = sample.group not in self.sharing.sequences
        self.sharing.sequences[sample.group] = self.sharing.sequences.get(sample.group, 0) + 1
        self.sharing.blocks += 0 if is_first else self._prefix_blocks(sample)
        before = 0 if is_first else self._prefix_tokens(sample)
        tokens = sample.prompt + done - before
        return Prefill(sample, done, before, tokens, tokens if done else 0)

    def _prefix_tokens(self, sample: PromptSample) -> int:
        """Tokens that the samples of a group compute once; the last token of a prompt is always computed."""
        whole = self.limits.shared or self.limits.block
        return (sample.prompt - 1) // whole * whole if self.limits.prefix_sharing else 0

    def _prefix_blocks(self, sample: PromptSample) -> int:
        """Whole blocks of these."""
        return self._prefix_tokens(sample) // self.limits.block

    def _blocks_to_enter(self, sample: PromptSample, done: int) -> int:
        """Free blocks that a sequence needs for its prompt, what it has generated, one token more, and its states."""
        limits = self.limits
        blocks = -(-(sample.prompt + done + 1) // limits.block) + limits.states
        if sample.group in self.sharing.sequences:
            return blocks - self._prefix_blocks(sample)
        return blocks + limits.prompt_states

    def _release(self, sample: PromptSample) -> None:
        """A sequence leaves its group; the last one takes the prompt's blocks along."""
        if self.sharing.sequences[sample.group] == 1:
            del self.sharing.sequences[sample.group]
        else:
            self.sharing.sequences[sample.group] -= 1
            self.sharing.blocks -= self._prefix_blocks(sample)

    # cache

    def _used_blocks(self, more: int) -> int:
        """Blocks in use if every running sequence had ``more`` tokens in the cache."""
        block = self.limits.block
        own = int((-(-(self.cached + more) // block)).sum())
        own += sum(-(-(each.sample.prompt + each.done + 1) // block) for each in self.filling)
        own += self.limits.states * (len(self.running) + len(self.filling))
        return own + self.limits.prompt_states * len(self.sharing.sequences) - self.sharing.blocks

    def _make_room(self) -> None:
        """Sequences that were admitted last give up their blocks until all others can take their next token."""
        while len(self.running) + len(self.filling) > 1 and self._used_blocks(1) > self.limits.blocks:
            if self.filling:
                last = self.filling.pop()
                sample, done = last.sample, last.done
            else:
                sample = self.running[-1]
                done = sample.response - int(self.left[-1])
                self.running, self.cached, self.left = self.running[:-1], self.cached[:-1], self.left[:-1]
            self.waiting.appendleft((sample, done))
            self._release(sample)
            self.counts.preempted += 1

    def _until_full(self) -> int:
        """Iterations until a block is missing."""
        most = int(self.left.min())
        if self._used_blocks(most) <= self.limits.blocks:
            return NO_WINDOW
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if self._used_blocks(middle) <= self.limits.blocks:
                low = middle
            else:
                high = middle - 1
        return low
