"""Families of rank classes: those whose collectives take the same have the same templates, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from simpar.program.blocks.phases import COMPUTE, TENSOR, CollectiveUse
from simpar.program.structure.flatten import flatten
from simpar.program.structure.stages import ActionBuilder, Key, Pricing
from simpar.program.structure.templates import Node, Template


@dataclass
class Family:
    """Templates of actions under the prices of the class that the family began with.

    ``long`` says that templates go step by step, because collectives inside may be disturbed. ``made`` is free for what
    users derive.
    """

    builder: ActionBuilder
    pricing: Pricing
    long: bool
    made: dict[Any, Any] = field(default_factory=dict)
    _passes: dict[Key, Template] = field(default_factory=dict)
    _joined: dict[tuple[Any, ...], Template] = field(default_factory=dict)

    def prepare(self, keys: Iterable[Key]) -> None:
        """Make the templates of some actions of virtual stages of which none is like another."""
        for key in keys:
            if key not in self._passes:
                self._passes[key] = self.builder.template(key, self.pricing)

    def suits(self, solo_ns: Callable[[CollectiveUse], int]) -> bool:
        """Whether a class's collectives take what the templates so far were made with."""
        return all(solo_ns(use) == took for use, took in self.pricing.asked.items())

    def template(self, key: Key, gathers: tuple[CollectiveUse, ...], messages: tuple[Node, ...]) -> Template:
        """The action's template behind what it gathers first, with messages behind its exit; equal ones are one."""
        if (key, gathers, messages) not in self._joined:
            template = flatten(self._passes[key]) if self.long else self._passes[key]
            self._joined[key, gathers, messages] = followed(received(template, gathers), messages)
        return self._joined[key, gathers, messages]


def followed(template: Template, messages: tuple[Node, ...]) -> Template:
    """A template with messages behind its exit."""
    if not messages:
        return template
    sends = (replace(message, after=(template.exit,)) for message in messages)
    return Template((*template.nodes, *sends), len(template.nodes) + len(messages) - 1)


def received(template: Template, gathers: tuple[CollectiveUse, ...]) -> Template:
    """A template that puts together what arrives before anything waits for it."""
    if not gathers:
        return template
    by = len(gathers)
    both, name = (COMPUTE, TENSOR), "all_gather boundary"
    nodes = [Node("tp", name, both, collective=gathers[0], arrival=True)]
    nodes += [Node("tp", name, both, collective=use, after=(at,)) for at, use in enumerate(gathers[1:])]
    for node in template.nodes:
        after = tuple(position + by for position in node.after)
        if node.arrival:
            after = after or (by - 1,)
        nodes.append(replace(node, after=after, arrival=False))
    return Template(tuple(nodes), template.exit + by)
