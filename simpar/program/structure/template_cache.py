"""Families of rank classes: those whose collectives take the same have the same templates, made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simpar.program.blocks.phases import CollectiveUse
from simpar.program.structure.flatten import flatten
from simpar.program.structure.stages import ActionBuilder, Pricing
from simpar.program.structure.templates import Node, Template

Key = tuple[str, int, bool]


@dataclass
class Family:
    """Templates of actions under one set of prices, which are noted as they are asked for.

    ``solo_ns`` and ``occupied_ns`` price a collective for the class that the family began with; ``long`` says that
    templates go step by step, because collectives inside may be disturbed. ``made`` is free for what users derive.
    """

    builder: ActionBuilder
    pricing: Pricing
    long: bool
    prices: dict[CollectiveUse, int] = field(default_factory=dict)
    made: dict[Any, Any] = field(default_factory=dict)
    _stages: dict[int, Mapping[tuple[str, bool], Template]] = field(default_factory=dict)
    _followed: dict[tuple[Key, Node | None], Template] = field(default_factory=dict)

    @staticmethod
    def of(builder: ActionBuilder, pricing: Pricing, *, long: bool) -> Family:
        """A family whose prices are noted."""
        family = Family(builder, pricing, long)
        price, occupied = pricing.price, pricing.occupied

        def noted(use: CollectiveUse) -> int:
            if use not in family.prices:
                family.prices[use] = price(use)
            return family.prices[use]

        def noted_too(use: CollectiveUse) -> int:
            noted(use)  # what it takes decides how long it slows kernels
            return occupied(use)

        family.pricing = replace(pricing, price=noted, occupied=noted_too)
        return family

    def prepare(self, stages: set[int]) -> None:
        """Make the templates of some virtual stages, of which none is like another."""
        for stage in sorted(stages - self._stages.keys()):
            self._stages[stage] = self.builder.templates(stage, self.pricing)

    def suits(self, solo_ns: Callable[[CollectiveUse], int]) -> bool:
        """Whether a class's collectives take what the templates so far were made with."""
        return all(solo_ns(use) == took for use, took in self.prices.items())

    def template(self, key: Key, message: Node | None) -> Template:
        """The action's template with a message behind its exit; equal ones are the same object."""
        letter, stage, boundary = key
        if (key, message) not in self._followed:
            template = self._stages[stage][letter, boundary]
            if message is None:
                found = flatten(template) if self.long else template
            else:
                found = followed(self.template(key, None), message)
            self._followed[key, message] = found
        return self._followed[key, message]


def followed(template: Template, message: Node | None) -> Template:
    """A template with a message behind its exit."""
    if message is None:
        return template
    return Template((*template.nodes, replace(message, after=(template.exit,))), len(template.nodes))
