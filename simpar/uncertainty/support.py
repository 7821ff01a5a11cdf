"""What measured runs support a prediction: how many sources and families of models share what it is of.

Errors of runs that nothing was fitted to depend on that more than on anything else: a model that one stack trained on
one kind of device says little of another stack, and nothing of another kind of device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simpar.units import number_of

LONG = 16384
"""Tokens of a sequence beyond which it is a long one."""
FEW = 10
"""Runs of a stack below which its parameters are hardly known."""
SEVERAL = 4
"""Sources and families from which on more of them make errors no smaller."""


@dataclass(frozen=True)
class Traits:
    """What decides how well a prediction is known: names as in the profiles, bits of the widest products.

    ``spread`` says that ranks of different scale-up domains exchange tokens for experts, ``long`` that sequences have
    more than LONG tokens.
    """

    stack: str
    device: str
    mixture: bool = False
    bits: int = 16
    spread: bool = False
    long: bool = False


@dataclass(frozen=True)
class Evidence:
    """Measured runs of one source and one family of models that share all traits."""

    source: str
    family: str
    runs: int
    traits: Traits


Shares = Callable[[Traits, Traits], bool]
ASPECTS: dict[str, tuple[Shares, str]] = {
    "stack": (lambda one, two: one.stack == two.stack, "stack {stack}"),
    "device": (lambda one, two: one.device == two.device, "device {device}"),
    "both": (
        lambda one, two: (one.stack, one.device) == (two.stack, two.device),
        "stack {stack} on device {device}",
    ),
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
"""What a prediction (the first) may share with a run, and the words for runs that share it."""


@dataclass(frozen=True)
class Support:
    """Distinct pairs of source and family by what they share with a prediction (ASPECTS), and ``all`` of it.

    ``runs`` are those of its stack, of any number of sources.
    """

    traits: Traits
    shared: dict[str, int]
    all: int
    runs: int

    def missing(self) -> Iterator[str]:
        """What no measured run, or those of one source and family alone, show, in words."""
        traits = self.traits
        kind = "mixture" if traits.mixture else "dense"
        for aspect, (_, words) in ASPECTS.items():
            said = words.format(stack=traits.stack, device=traits.device, bits=traits.bits, kind=kind)
            covered = (
                aspect in ("both", "kind", "bits")
                and not self.shared["stack" if aspect != "bits" else "device"]
            )
            if self.shared[aspect] == 0 and not covered:
                yield f"no measured run of {said}"
            elif self.shared[aspect] == 1 and aspect in ("stack", "device"):
                yield f"one source and model family alone with {said}"
        if 0 < self.runs < FEW:
            yield f"only {number_of(self.runs, 'measured run')} of stack {traits.stack}"


def support_of(traits: Traits, evidence: Sequence[Evidence]) -> Support:
    """How many pairs of source and family share each aspect of a prediction."""
    shared = {
        aspect: _pairs(each for each in evidence if shares(traits, each.traits))
        for aspect, (shares, _) in ASPECTS.items()
    }
    alike = (each for each in evidence if all(share(traits, each.traits) for share, _ in ASPECTS.values()))
    runs = sum(each.runs for each in evidence if each.traits.stack == traits.stack)
    return Support(traits, shared, _pairs(alike), runs)


def _pairs(evidence: Iterator[Evidence]) -> int:
    return len({(each.source, each.family) for each in evidence})
