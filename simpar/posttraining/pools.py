"""Generation and training over many steps: which pool works when, on which version of the weights, and who waits.

Groups of prompts are released up to (version + 1 + steps_off) x prompts of them, and go to the replicas with the fewest
sequences. A batch is taken when enough groups are complete and it leaves none behind that would become too old; the
oldest go first, so no response is trained on weights more than ``steps_off`` updates newer than those that it was begun
with. Then the batch is scored and trained on, and the weights go to all replicas at once: when these have finished what
they have begun, or between two iterations if sequences may be interrupted. Colocated pools take turns; of
hybrid ones the first replicas do, and the others go on while these train.

What happens is decided here, in integer nanoseconds, and comes out as a Program whose ops have durations and
dependencies only (:mod:`simpar.posttraining.program`): engines give it the same times.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.post_training import PostTraining
from simpar.posttraining.lengths import StepLengths
from simpar.posttraining.replica import PromptSample, Replica, Served
from simpar.units import Ints

TRAINING = -1
"""The stream of the devices that train the policy; those of other models have the numbers below."""
Kind = Literal["generate", "switch", "score", "train", "weights"]


@dataclass(frozen=True)
class Interval:
    """Something on the stream of training (-1), of other models' devices or of a replica.

    It is on the streams of the first ``joins`` replicas, too. ``waits_for`` are (stream, time): what that stream does
    until then must be over before it starts.
    """

    stream: int
    kind: Kind
    start_ns: int
    finish_ns: int
    step: int
    joins: int = 0
    waits_for: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Durations:
    """Nanoseconds of what is not generation.

    ``batch`` gives those of scoring and of training for the lengths of a batch, ``beside`` the same of every pool of
    other models' own devices. ``to_training`` and ``to_generation`` are those of the turns that colocated pools take,
    ``weights`` those of new weights.
    """

    batch: Callable[[Ints], tuple[int, int]]
    weights: int
    to_training: int = 0
    to_generation: int = 0
    beside: Callable[[Ints], tuple[tuple[int, int], ...]] = lambda _: ()


@dataclass
class Group:
    """A prompt with its samples: their lengths, the version under which it began, and when each ended and where."""

    number: int
    prompt: int
    responses: list[int]
    version: int
    ended: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all of its samples have ended."""
        return len(self.ended) == len(self.responses)


@dataclass(frozen=True)
class TrainedStep:
    """One batch: when it was ready, when training on it began and ended, when all replicas had its weights.

    ``ages`` are updates between the weights that its groups began with and those that were trained.
    """

    ready_ns: int
    start_ns: int
    finish_ns: int
    weights_ns: int
    tokens: int
    responses: int
    ages: tuple[int, ...]


@dataclass(frozen=True)
class History:
    """What happened: batches, intervals of all streams, and what replicas did until the last weights.

    ``cache`` has, for every replica, (time, blocks of its cache in use) where sequences ended or it was interrupted.
    """

    steps: tuple[TrainedStep, ...]
    intervals: tuple[Interval, ...]
    counts: tuple[Served, ...]
    cut: int
    cache: tuple[tuple[tuple[int, int], ...], ...]


@dataclass
class Ahead:
    """A replica that has run on to its next end of sequences: the state before, and what ended."""

    before: Replica
    finished: list[PromptSample]


class Pools:
    """One run of both pools."""

    def __init__(
        self,
        section: PostTraining,
        replicas: list[Replica],
        lengths: Callable[[int], StepLengths],
        took: Durations,
        joined: int,
    ) -> None:
        self.section, self.replicas, self.lengths, self.took, self.joined = section, replicas, lengths, took, joined
        self.groups: list[Group] = []
        self.open: dict[int, Group] = {}
        self.done: list[Group] = []
        self.ahead: dict[int, Ahead] = {}
        self.ends: list[tuple[int, int]] = []
        self.changed = set(range(len(replicas)))
        self.intervals: list[Interval] = []
        self.busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.cuts: dict[int, set[int]] = defaultdict(set)
        self.cache: list[list[tuple[int, int]]] = [[] for _ in replicas]
        self.steps: list[TrainedStep] = []
        self.known: dict[int, StepLengths] = {}
        self.version, self.samples, self.cut = 0, 0, 0
        self.beside_free: dict[int, int] = defaultdict(int)

    # releasing prompts

    def release(self, now_ns: int) -> None:
        """Groups that may begin under the present version go to replicas."""
        section = self.section
        most = (self.version + 1 + section.synchrony.steps_off) * section.prompts
        fresh = [self._group(number) for number in range(len(self.groups), most)]
        count = len(fresh)
        size = min(section.samples, -(-section.samples * count // len(self.replicas))) if count else 1
        for group in fresh:
            self.groups.append(group)
            self.open[group.number] = group
            for begin in range(0, section.samples, size):
                part = group.responses[begin : begin + size]
                at = min(range(len(self.replicas)), key=lambda index: (self.replicas[index].sequences, index))
                self.rewind(at, now_ns)
                some = [PromptSample(self.samples + i, group.number, group.prompt, each) for i, each in enumerate(part)]
                self.samples += len(part)
                self.replicas[at].add(some, now_ns)

    def _group(self, number: int) -> Group:
        step, index = divmod(number, self.section.prompts)
        if step not in self.known:
            self.known[step] = self.lengths(step)
            self.cut += self.known[step].cut
        texts = self.known[step]
        return Group(number, int(texts.prompt[index]), texts.response[index].tolist(), self.version)

    # running replicas

    def look_ahead(self, at: int) -> Ahead:
        """The next end of sequences of a replica; it is taken back where something comes first."""
        if at not in self.ahead:
            replica = self.replicas[at]
            before = replica.snapshot()
            self.ahead[at] = Ahead(before, replica.next_finished())
        return self.ahead[at]

    def rewind(self, at: int, now_ns: int) -> None:
        """A replica as it is at the end of the first iteration that ends at ``now_ns`` or later."""
        self.changed.add(at)
        ahead = self.ahead.pop(at, None)
        if ahead is not None:
            self.replicas[at] = ahead.before
        replica = self.replicas[at]
        while replica.now_ns < now_ns and not replica.is_idle:
            begun_ns = replica.now_ns
            self._note(at, begun_ns, replica.next_finished(now_ns))

    def _note(self, at: int, begun_ns: int, finished: list[PromptSample]) -> None:
        """Write down that a replica worked until its present time, and what ended there."""
        now_ns = self.replicas[at].now_ns
        if now_ns > begun_ns:
            self.busy[at].append((begun_ns, now_ns))
            self.cache[at].append((now_ns, self.replicas[at].used_blocks))
        for sample in finished:
            group = self.groups[sample.group]
            group.ended.append((now_ns, at))
            if group.is_complete:
                del self.open[group.number]
                self.done.append(group)

    def next_end(self) -> tuple[int, int] | None:
        """(Time, replica) of the next end of sequences anywhere; None if nothing is under way."""
        for at in self.changed:
            if not self.replicas[at].is_idle:
                self.look_ahead(at)
                heappush(self.ends, (self.replicas[at].now_ns, at))
        self.changed.clear()
        while self.ends and not self._is_ahead(*self.ends[0]):
            heappop(self.ends)
        return self.ends[0] if self.ends else None

    def _is_ahead(self, time_ns: int, at: int) -> bool:
        """Whether a replica has still run on to a time."""
        return at in self.ahead and self.replicas[at].now_ns == time_ns

    def take_end(self, at: int) -> None:
        """The next end of sequences of a replica happens."""
        self.changed.add(at)
        ahead = self.ahead.pop(at)
        self._note(at, ahead.before.now_ns, ahead.finished)

    def stop(self, which: range, now_ns: int, *, recompute: bool) -> int:
        """Some replicas end their iteration at ``now_ns`` or later; returns when the last one has."""
        for at in which:
            self.rewind(at, now_ns)
            self.replicas[at].interrupt(recompute=recompute)
        return max([now_ns, *(self.replicas[at].now_ns for at in which)])

    @property
    def apart(self) -> range:
        """Replicas on devices that only generate."""
        return range(self.joined, len(self.replicas))

    # batches

    def batch(self) -> list[Group] | None:
        """The groups of the next batch, the oldest first; None as long as they are not there.

        What is left must not become too old either: of the groups that are due within j more batches, at most j
        batches' worth may stay behind.
        """
        section, ahead = self.section, self.section.synchrony.steps_off
        if len(self.done) < section.prompts:
            return None
        chosen = sorted(self.done, key=lambda group: group.number)[: section.prompts]
        taken = {group.number for group in chosen}
        left = [*self.open.values(), *(group for group in self.done if group.number not in taken)]
        for batches in range(ahead + 1):
            due = sum(group.version + ahead <= self.version + batches for group in left)
            if due > batches * section.prompts:
                return None
        self.done = [group for group in self.done if group.number not in taken]
        return chosen

    def run(self) -> History:
        """All steps of the section, and as many before as a run off policy needs to become steady."""
        self.release(0)
        turns = self._in_turns() if self.section.takes_turns else self._split()
        for _ in range(self.section.measured_steps + self.section.synchrony.steps_off):
            self.steps.append(next(turns))
        end_ns = self.steps[-1].weights_ns
        counts = tuple(
            (self.ahead[at].before if at in self.ahead else replica).counts for at, replica in enumerate(self.replicas)
        )
        cache = tuple(tuple(each) for each in self.cache)
        return History(tuple(self.steps), (*self.intervals, *self._generation(end_ns)), counts, self.cut, cache)

    def _lengths(self, groups: list[Group]) -> Ints:
        return np.array([group.prompt + each for group in groups for each in group.responses], dtype=np.int64)

    def _begin(self, groups: list[Group]) -> tuple[tuple[int, int], ...]:
        """The last ends of a batch's samples on each replica, where generation is cut in the account."""
        last: dict[int, int] = {}
        for group in groups:
            for time_ns, at in group.ended:
                last[at] = max(last.get(at, 0), time_ns)
        for at, time_ns in last.items():
            self.cuts[at].add(time_ns)
        return tuple(last.items())

    def _train(self, groups: list[Group], free_ns: int, ready_ns: int, taken: tuple[int, int]) -> TrainedStep:
        """Score and train on a batch as soon as the training devices are free.

        Other models' devices begin when it is ``taken``: at a time, and since when there were the present weights.
        """
        step, lengths = len(self.steps), self._lengths(groups)
        scores_ns, training_ns = self.took.batch(lengths)
        start_ns = max(free_ns, ready_ns)
        middle_ns = start_ns + scores_ns
        waits = self._begin(groups)
        self.intervals.append(Interval(TRAINING, "score", start_ns, middle_ns, step, self.joined, waits))
        scored = self._score_beside(lengths, taken, waits)
        all_ns = max([middle_ns, *(end_ns for _, end_ns in scored)])
        finish_ns = all_ns + training_ns
        self.intervals.append(Interval(TRAINING, "train", all_ns, finish_ns, step, self.joined, scored))
        for at, (_, update_ns) in enumerate(self.took.beside(lengths)):
            stream = TRAINING - 1 - at
            self.beside_free[stream] = dict(scored)[stream]
            if update_ns:
                self.beside_free[stream] = all_ns + update_ns
                after = ((TRAINING, middle_ns), *scored)
                self.intervals.append(Interval(stream, "train", all_ns, all_ns + update_ns, step, 0, after))
        ages = tuple(self.version - group.version for group in groups)
        return TrainedStep(ready_ns, start_ns, finish_ns, finish_ns, int(lengths.sum()), len(lengths), ages)

    def _score_beside(
        self, lengths: Ints, taken: tuple[int, int], waits: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        """Passes on other models' devices: (stream, end) of each."""
        since = ((TRAINING, taken[1]),) if taken[1] else ()
        ends = []
        for at, (scores_ns, _) in enumerate(self.took.beside(lengths)):
            stream = TRAINING - 1 - at
            begin_ns = max(self.beside_free[stream], *taken)
            ends.append((stream, begin_ns + scores_ns))
            self.intervals.append(
                Interval(stream, "score", begin_ns, ends[-1][1], len(self.steps), 0, (*waits, *since))
            )  # fmt: skip
        return tuple(ends)

    def _until_batch(self) -> tuple[list[Group], int]:
        """Generate until a batch is there: its groups, and when the last of their samples ended."""
        while (groups := self.batch()) is None:
            end = self.next_end()
            assert end is not None, "groups that are missing are under way"
            self.take_end(end[1])
        return groups, max(time_ns for group in groups for time_ns, _ in group.ended)

    def _in_turns(self) -> Iterator[TrainedStep]:
        """Generate a batch, train on it, and generate again on the same devices; replicas apart go on meanwhile."""
        free_ns, again = 0, self.section.synchrony.recompute_cache
        while True:
            groups, ready_ns = self._until_batch()
            ended_ns, ready_ns = ready_ns, max(ready_ns, free_ns)
            mine, step = range(self.joined), len(self.steps)
            now_ns = self.stop(mine, ready_ns, recompute=True)
            for at in mine:
                self.replicas[at].is_held = True
            turned_ns = now_ns + self.took.to_training
            self.intervals.append(
                Interval(TRAINING, "switch", now_ns, turned_ns, step, self.joined, self._begin(groups))
            )
            trained = self._train(groups, turned_ns, turned_ns, (ended_ns, free_ns))
            back_ns = trained.finish_ns + self.took.to_generation
            self.intervals.append(Interval(TRAINING, "switch", trained.finish_ns, back_ns, step, self.joined))
            self._generate_until(back_ns)
            free_ns = self._renew(self.stop(self.apart, back_ns, recompute=again), step)
            yield replace(trained, ready_ns=ready_ns, weights_ns=free_ns)

    def _renew(self, now_ns: int, step: int) -> int:
        """New weights reach all replicas, which stand still; returns when they have them."""
        end_ns = now_ns + self.took.weights
        self.intervals.append(Interval(TRAINING, "weights", now_ns, end_ns, step, len(self.replicas)))
        self.version += 1
        for at, replica in enumerate(self.replicas):
            self.cuts[at].add(replica.now_ns)
            replica.now_ns = end_ns
            replica.is_held = False
            self.changed.add(at)
        self.release(end_ns)
        return end_ns

    def _split(self) -> Iterator[TrainedStep]:
        """Generate and train at the same time, each on devices of its own."""
        synchrony, free_ns = self.section.synchrony, 0
        while True:
            groups, ready_ns = self._until_batch()
            trained = self._train(groups, free_ns, ready_ns, (ready_ns, free_ns))
            self._generate_until(trained.finish_ns)
            if synchrony.in_flight:
                now_ns = self.stop(self.apart, trained.finish_ns, recompute=synchrony.recompute_cache)
            else:
                now_ns = self._drain(trained.finish_ns)
            free_ns = self._renew(now_ns, len(self.steps))
            yield replace(trained, weights_ns=free_ns)

    def _generate_until(self, time_ns: int) -> None:
        """Ends of sequences up to a time happen."""
        while (end := self.next_end()) is not None and end[0] <= time_ns:
            self.take_end(end[1])

    def _drain(self, time_ns: int) -> int:
        """Replicas finish what they have begun at a time, and begin nothing more; returns when the last one has."""
        for at in range(len(self.replicas)):
            self.rewind(at, time_ns)
            self.replicas[at].is_held = True
        last_ns = time_ns
        while (end := self.next_end()) is not None:
            last_ns = max(last_ns, end[0])
            self.take_end(end[1])
        return last_ns

    def _generation(self, until_ns: int) -> Iterator[Interval]:
        """What replicas did as intervals, cut where a batch was complete or weights came."""
        ends = [interval.finish_ns for interval in self.intervals if interval.kind == "weights"]
        for at, spans in self.busy.items():
            joined: list[list[int]] = []
            for start, finish in spans:
                if joined and joined[-1][1] == start and start not in self.cuts[at]:
                    joined[-1][1] = finish
                else:
                    joined.append([start, finish])
            for start, finish in joined:
                if start < until_ns:
                    step = sum(end <= start for end in ends)
                    yield Interval(at, "generate", start, finish, step)
