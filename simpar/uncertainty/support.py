"""The measured runs that support a prediction: how many sources and families of models share its traits.

Errors of runs outside every fit depend on this more than on anything else: a model that one stack trained on one kind
of device tells little about another stack, and nothing about another kind of device.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import is_

from simpar.dataclass import dataclass
from simpar.units import number_of

LONG_SEQUENCE = 16384
"""Number of tokens beyond which a sequence counts as long."""
FEW_RUNS = 10
"""Runs of a stack below which its parameters are hardly known."""
ENOUGH_SOURCES = 4
"""Number of sources and families beyond which more of them do not make errors smaller."""


@dataclass(frozen=True)
class Traits:
    """The traits that decide how sure a prediction is: names as in the profiles, bits of the widest products.

    ``spread`` says that ranks of different scale-up domains exchange tokens for experts, ``long`` that sequences have
    more than LONG tokens, ``sorted`` that Python sorts routed tokens piece by piece, as fast as the host's cores are.
    """

    stack: str
    device: str
    mixture: bool = False
    bits: int = 16
    spread: bool = False
    long: bool = False
    sorted: bool = False


@dataclass(frozen=True)
class Evidence:
    """Measured runs of one source and one family of models that share all traits.

    ``ordinary`` runs are as most people run; the others were tuned for their publication.
    """

    source: str
    family: str
    runs: int
    traits: Traits
    ordinary: bool = False


Shares = Callable[[Traits, Traits], bool]
ASPECTS: dict[str, tuple[Shares, str]] = {
    "stack": (lambda one, two: one.stack == two.stack, "stack {stack}"),
    "device": (lambda one, two: one.device == two.device, "device {device}"),
    "both": (lambda one, two: (one.stack, one.device) == (two.stack, two.device), "stack {stack} on device {device}"),
    "kind": (
        lambda one, two: (one.stack, one.mixture) == (two.stack, two.mixture),
        "{kind} models under stack {stack}",
    ),
    "bits": (
        lambda one, two: (one.device, one.bits) == (two.device, two.bits),
        "products of {bits} bits on device {device}",
    ),
    "spread": (lambda one, two: two.spread or not one.spread, "experts over several domains"),
    "long": (lambda one, two: two.long or not one.long, "sequences of more than 16,384 tokens"),
}
"""By aspect: whether a prediction (first argument) shares it with a run, and the words for runs that share it."""


@dataclass(frozen=True)
class Support:
    """Numbers of distinct pairs of source and family that share each aspect of a prediction, or ``all`` aspects.

    ``ordinary`` of the latter are of runs as most people do them; ``sources`` are those of all, most runs first.
    ``runs`` is the number of runs of its stack, whatever their sources.
    """

    traits: Traits
    shared: dict[str, int]
    all: int
    runs: int
    ordinary: int = 0
    sources: tuple[str, ...] = ()

    def missing(self) -> Iterator[str]:
        """In words, the aspects that no measured run shows, or only those of one source and family."""
        traits = self.traits
        kind = "mixture" if traits.mixture else "dense"
        for aspect, (_, words) in ASPECTS.items():
            said = words.format(stack=traits.stack, device=traits.device, bits=traits.bits, kind=kind)
            covered = aspect in ("both", "kind", "bits") and not self.shared["stack" if aspect != "bits" else "device"]
            if self.shared[aspect] == 0 and not covered:
                yield f"no measured run of {said}"
            elif self.shared[aspect] == 1 and aspect in ("stack", "device"):
                yield f"all measured runs of {said} are of one model family from one source"
        if traits.sorted:
            yield "Python sorts routed tokens, and hardly a measured run tells how fast hosts do: no kernel is fused"
        if 0 < self.runs < FEW_RUNS:
            yield f"only {number_of(self.runs, 'measured run')} of stack {traits.stack}"


def support_of(traits: Traits, evidence: Sequence[Evidence]) -> Support:
    """The support of a prediction: how many pairs of source and family share each of its aspects."""
    return _support_of(traits, _Entries(evidence))


class _Entries(tuple[Evidence, ...]):
    """Evidence that is equal if its entries are the same objects: to hash what hundreds say takes long."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Entries) and len(self) == len(other) and all(map(is_, self, other))


@lru_cache(maxsize=256)
def _support_of(traits: Traits, evidence: _Entries) -> Support:
    shared = {
        aspect: _pairs(each for each in evidence if shares(traits, each.traits))
        for aspect, (shares, _) in ASPECTS.items()
    }
    alike = [each for each in evidence if all(share(traits, each.traits) for share, _ in ASPECTS.values())]
    runs = sum(each.runs for each in evidence if each.traits.stack == traits.stack)
    ordinary = _pairs(each for each in alike if each.ordinary)
    sources = dict.fromkeys(each.source for each in sorted(alike, key=lambda each: -each.runs))
    return Support(traits, shared, _pairs(alike), runs, ordinary, tuple(sources))


def _pairs(evidence: Iterable[Evidence]) -> int:
    return len({(each.source, each.family) for each in evidence})
