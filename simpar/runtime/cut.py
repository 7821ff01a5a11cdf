"""Stages of a pipeline cut from a module of transformers: layers of other ranks are passed by, all else stays as it is.

Where transformers cuts a class, its config says (``base_model_pp_plan``): which modules stand before the layers and
behind them, and that layers hand each other hidden states alone. Some classes do more beside their layers (a factor on
what the embedding made), so all stages run once, one behind the other, and must give the logits of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from simpar.errors import UserError
from simpar.runtime.decoder import Part
from simpar.runtime.from_transformers import make_library_model
from simpar.runtime.model import Blueprint, shard
from simpar.runtime.offload import save_on_host
from simpar.runtime.ranks import Ranks
from simpar.tracing.library import pipeline_parts

REHEARSED = 8
"""Tokens of the sequences by which stages are compared with the whole."""
TOLERANCE = 1e-5
"""Largest difference of logits, of those of the whole."""


class Passed(nn.Module):
    """In place of a module of another stage: hands on what it reads first, in a tuple of as many if that module did."""

    def __init__(self, instead_of: nn.Module, values: int = 0) -> None:
        super().__init__()
        plain = {name: value for name, value in vars(instead_of).items() if isinstance(value, str | int | float)}
        self.__dict__.update({name: value for name, value in plain.items() if not name.startswith("_")} | self.__dict__)
        self._values = values

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Hidden states in and out."""
        return (hidden_states, *[None] * (self._values - 1)) if self._values else hidden_states


class LibraryStage(nn.Module):
    """One stage: tokens or hidden states in, hidden states of ``dtype`` or logits out."""

    skips_parameters = True
    tied = copies_table = False

    def __init__(self, inner: nn.Module, part: Part, dtype: Any) -> None:
        super().__init__()
        self.inner, self.part, self.dtype = inner, part, dtype

    def forward(self, given: Tensor) -> Tensor:
        """Tokens int64[batch, seq], else float[batch, seq, hidden]."""
        named = {"input_ids" if self.part.embedding else "inputs_embeds": given, "use_cache": False}
        if self.part.head:
            logits: Tensor = self.inner(**named).logits
            return logits
        hidden: Tensor = self.inner.base_model(**named).last_hidden_state
        return hidden.to(self.dtype)


class Cuts:
    """A module of transformers, and which of its modules a stage leaves out."""

    def __init__(self, blueprint: Blueprint) -> None:
        assert blueprint.library is not None, "a class of transformers"
        assert blueprint.graph is not None, "the plan cuts a graph"
        torch.manual_seed(blueprint.seed)
        self.inner = make_library_model(blueprint.library).inner
        named = pipeline_parts(blueprint.library)
        assert named is not None, "refused by the request"
        self.before, self.layers, self.behind = named
        count, wanted = len(self._at(self.layers)), len(blueprint.graph.layers)
        if count != wanted:
            raise UserError(f"plan.pp: transformers' class has {count} layers where the plan cuts {wanted}; allowed: 1")
        self._values = [0] * count

    def _at(self, name: str) -> Any:
        return getattr(self.inner.base_model, name)

    def layers_of(self, part: Part) -> list[nn.Module]:
        """The layers of a stage."""
        return [self._at(self.layers)[at] for at in part.layers]

    def check(self, parts: Sequence[Part]) -> None:
        """Raise UserError unless all stages, one behind the other, give the logits of the whole."""
        name, tokens = type(self.inner).__name__, torch.arange(2 * REHEARSED).reshape(2, REHEARSED)
        tokens %= int(self._at(self.before[0]).num_embeddings)
        self.inner.eval()
        try:
            whole, apart = self._both(tokens, parts)
        except Exception as error:  # noqa: BLE001 - whatever a class raises that gets less than it expects
            raise UserError(
                f"plan.pp: stages of {name} do not run apart ({type(error).__name__}: {error}), since its layers hand "
                "on more than hidden states; allowed: 1"
            ) from None
        self.inner.train()
        off = float((apart - whole).abs().max() / whole.abs().max())
        if not off < TOLERANCE:
            raise UserError(
                f"plan.pp: stages of {name} compute other logits than the whole ({off:.1e} of them), since it does "
                "more than its layers hand on; allowed: 1"
            )

    @torch.no_grad()
    def _both(self, tokens: Tensor, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
        """Logits of the whole, in which layers tell what they return, and of its parts."""
        hooks = [each.register_forward_hook(partial(self._seen, at)) for at, each in enumerate(self._at(self.layers))]
        whole: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        for hook in hooks:
            hook.remove()
        given = tokens
        for part in parts:
            with self._only(part):
                given = LibraryStage(self.inner, part, whole.dtype)(given)
        return whole, given

    def _seen(self, at: int, *given: Any) -> None:
        self._values[at] = len(given[-1]) if isinstance(given[-1], tuple) else 0

    @contextmanager
    def _only(self, part: Part) -> Iterator[None]:
        """While it lasts, the module runs one stage."""
        places = [*self._outside(part)]
        kept = [getattr(parent, name) for parent, name, _ in places]
        for parent, name, other in places:
            setattr(parent, name, other)
        try:
            yield
        finally:
            for (parent, name, _), each in zip(places, kept, strict=True):
                setattr(parent, name, each)

    def _outside(self, part: Part) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        """(Parent, name, what stands in its place) of every module that belongs to another stage."""
        layers, base = self._at(self.layers), self.inner.base_model
        for at, each in enumerate(layers):
            if at not in part.layers:
                yield layers, str(at), Passed(each, self._values[at])
        for name in () if part.embedding else self.before:
            yield base, name, Passed(self._at(name))
        for name in () if part.head else self.behind:
            yield base, name, Passed(self._at(name))
        if not part.head:
            head = self.inner.get_output_embeddings()
            name, parent = next((n, m) for m in self.inner.modules() for n, c in m.named_children() if c is head)
            yield parent, name, Passed(head)

    def stage(self, part: Part, dtype: Any) -> LibraryStage:
        """One stage; the modules of all others are left to nobody."""
        for parent, name, other in self._outside(part):
            setattr(parent, name, other)
        return LibraryStage(self.inner, part, dtype)


def cut_stage(blueprint: Blueprint, every: Sequence[Part], index: int, ranks: Ranks) -> LibraryStage:
    """One stage of a module of transformers on this rank, in the place of a decoder's. Raises UserError."""
    cuts, part = Cuts(blueprint), every[index]
    cuts.check(every)
    dtypes = blueprint.dtypes
    stage = cuts.stage(part, message_dtype(blueprint))
    stage.to(device=ranks.device, dtype=dtypes.storage)
    layers = cuts.layers_of(part)
    if blueprint.plan.memory.recompute != "none":
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    if blueprint.plan.offload.offload_activations:
        save_on_host(layers if part.head else layers[:-1], blueprint.plan.offload.offload_activations)
    if blueprint.compiled:
        for layer in layers:
            layer.compile()
    if blueprint.strategy.reduction == "fsdp":
        shard(stage, layers, blueprint, ranks)
    elif dtypes.compute != dtypes.storage:
        called: Any = stage
        called.forward = torch.autocast(ranks.device.type, dtype=dtypes.compute)(stage.forward)
    return stage


def message_dtype(blueprint: Blueprint) -> Any:
    """The dtype of hidden states between stages: that of the residual stream."""
    dtypes = blueprint.dtypes
    return dtypes.compute if blueprint.strategy.reduction == "fsdp" else dtypes.storage
