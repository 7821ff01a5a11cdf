"""What readers of reinforcement learning share: a step is the update of the policy, on samples of a rollout.

Rollouts, rewards, references and critics are other phases: no part of the plan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import of_mapping, with_layers
from simpar.frameworks.megatron_layers_said import sizes_left
from simpar.frameworks.megatron_read import of_arguments
from simpar.frameworks.megatron_words import MEGATRON_WORDS
from simpar.frameworks.overrides import ToldReader, assigned
from simpar.frameworks.predictions import as_transformers_has_it
from simpar.frameworks.recipes import flat
from simpar.frameworks.references import resolved
from simpar.frameworks.rollout_side import shipped
from simpar.frameworks.swift_read import TARGETS
from simpar.frameworks.target import Imported
from simpar.frameworks.words import Assumed, ReadWords, WordTable, is_off
from simpar.plan.choices.tuning import Projection

NOTE = "A step is one update of the policy: --rl also simulates the rollout and passes of reference, reward and critic."
LENGTHS = "samples are as long as prompts and answers are: the longest allowed"
PARTS = (2, 4)
"""Parts of the longest sample that samples may be long."""
COUNTED = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "account_for_loss_in_pipeline_split",
    "account_for_embedding_in_pipeline_split", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "num_layers_per_virtual_pipeline_stage",
)  # fmt: skip
"""Fields that say how many layers stages have, beside those of the whole model."""
BESIDE = "weights and states that stay on the devices during the update: memory"
ROLLOUT = "memory that the engine of the rollout keeps during the update"
TOKENS = "micro-batches of a number of tokens: time and memory"


class Options(ToldReader):
    """Options by dotted name."""

    def __contains__(self, key: object) -> bool:
        return key in self.values_

    def told(self, *keys: str) -> Any:
        """The first value of these names that is not null; None if there is none. Raises UserError."""
        return next((value for key in keys if (value := self.get(key)) is not None), None)

    def text(self, *keys: str) -> str:
        """A name of which the text may leave a part open."""
        self.used |= set(keys) & set(self.values_)
        return next((str(self.values_[key]) for key in keys if self.values_.get(key) is not None), "")

    def take(self, *keys: str) -> None:
        """Count names as read."""
        self.used |= set(keys)

    def leave(self, *keys: str) -> None:
        """Take names as not read: a table of words says what they could change."""
        self.used.difference_update(keys)


def options_of(words: Sequence[str], base: Mapping[str, Any], source: str) -> Options:
    """A config with the ``key=value`` words of a command over it."""
    own = flat(base)
    for key, value in assigned(words).items():
        inner = flat(value) if isinstance(value, dict) else {}
        own = {name: each for name, each in own.items() if not name.startswith(f"{key}.")}
        own |= {f"{key}.{name}": each for name, each in inner.items()} or {key: value}
    return Options(resolved(own), source)


def find_policy(named: str, source: str) -> tuple[str | None, str]:
    """The model of a name or path, and a note that asks for it if it is not known."""
    model = shipped(named, source) if named else None
    return model, "" if model else f"{named or 'The policy'} is no shipped model: give --model."


def samples_of_micro_batch(budget: int, longest: int, of_rank: int | None, groups: int = 1) -> int:
    """Samples of ``longest`` tokens that a budget of tokens takes: as many as divide those of a rank evenly.

    ``groups`` divides the number of micro-batches.
    """
    most = max(1, budget // longest)
    if of_rank is None:
        return most
    fitting = [size for size in range(1, most + 1) if of_rank % (size * groups) == 0]
    return max(fitting, default=1)


def groups_of(engine: Imported) -> int:
    """What divides the number of micro-batches: the stages, where they are interleaved."""
    return engine.plan.mesh.pp if (engine.plan.pipeline.vpp or 1) > 1 else 1


def open_lengths(longest: int, micro_batch: Callable[[int], int] | None = None) -> Assumed:
    """That samples have the longest length; ``micro_batch`` gives that of another one, if it goes by tokens."""
    others = tuple(longest // part for part in PARTS if longest // part)
    together = {each: {"micro_batch": micro_batch(each)} for each in others} if micro_batch else {}
    return Assumed("seq_len", longest, LENGTHS, others, together)


def adapters_of(rank: int | None, targets: Any, source: str, key: str) -> dict[str, Any]:
    """Adapters of a rank beside projections: all, or those that are named. Raises UserError."""
    if not rank:
        return {}
    known = get_args(Projection)
    listed = [str(each).rpartition(".")[2] for each in (targets if isinstance(targets, list) else [targets])]
    if targets in (None, "*", []) or listed == ["all-linear"]:
        return {"lora_rank": rank, "lora_targets": known}
    chosen: set[str] = set()
    for each in listed:
        products = TARGETS.get(each, (each,) if each in known else ())
        if not products:
            raise UserError(f"{source}: {key} = {each}: allowed: all-linear, {', '.join((*known, *TARGETS))}")
        chosen |= set(products)
    return {"lora_rank": rank, "lora_targets": tuple(each for each in known if each in chosen)}


OF_SIZES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "num_moe_experts",
    "moe_ffn_hidden_size", "vocab_size",
)  # fmt: skip
"""Fields of Megatron-Core's configs by which models are recognised."""


def of_megatron(given: Options, sections: Iterable[str], usual: Mapping[str, Any], model: str | None) -> Imported:
    """The plan of options that are fields of Megatron-Core's configs, in ``sections`` of dotted names.

    ``usual`` are those that the framework sets itself. Raises UserError.
    """
    fields: dict[str, tuple[str, Any]] = {}
    for section in sections:
        for key in list(given):
            field = key.removeprefix(section)
            if key.startswith(section) and "." not in field and field != "_target_":
                fields[field] = (key, given.values_[key])
                given.take(key)
    arguments = of_mapping({**usual, **{field: value for field, (_, value) in fields.items()}}, given.source)
    told = fields.get("sequence_parallel", ("", None))[1]
    if told is None and (arguments.number("--tensor-model-parallel-size") or 1) > 1:
        arguments = replace(arguments, values={**arguments.values, "--sequence-parallel": []})
    counted = next((key for field, (key, value) in fields.items() if field in COUNTED and not is_off(value)), None)
    if counted and model is None:
        allowed = "a model's name, or a folder with its config.json"
        raise UserError(f"{given.source}: {counted}: stages are counted in the layers of the policy, "
                        f"which is not known; allowed: {allowed}")  # fmt: skip
    own = {field: key for field, (key, _) in fields.items()}
    names = {flag: own[field] for flag, field in arguments.names.items() if field in own}
    arguments = replace(arguments, names=names)
    result = of_arguments(with_layers(arguments, model), model, dropout=None)  # which is the model's
    words = of_names(result.words, names.values())
    left = sizes_left(arguments, load_model(model)) if model else set[str]()  # of another model than that of the name
    other = {names[flag]: " ".join(arguments.values[flag]) for flag in left if flag in names}
    used = tuple(word for word in words.used if word not in other)
    return replace(result, words=ReadWords(used, {**words.unread, **other}))


def of_names(words: ReadWords, names: Iterable[str]) -> ReadWords:
    """The words of a text without those that a framework adds."""
    own = set(names)
    return ReadWords(
        tuple(word for word in words.used if word in own),
        {word: value for word, value in words.unread.items() if word in own},
    )


def core_words(*sections: str) -> WordTable:
    """The table of Megatron-LM's words, for fields of Megatron-Core in sections."""
    idle = tuple(f"{section}.{each}" for section in sections for each in MEGATRON_WORDS.idle)
    deciding = {f"{section}.{key}": what for section in sections for key, what in MEGATRON_WORDS.deciding.items()}
    deciding |= {f"{section}.{key}": "a size that the model does not have: memory and time"
                 for section in sections for key in OF_SIZES}  # fmt: skip
    return WordTable(idle, deciding)


def vocabulary_chunks(tokens: int, each: int = 512) -> int:
    """Pieces of a loss that takes so many tokens at a time."""
    return max(1, -(-tokens // each))


def update_of(
    engine: Imported,
    values: Mapping[str, Any],
    words: ReadWords,
    notes: Iterable[str],
    assumed: Iterable[Assumed],
    ask: str,
) -> Imported:
    """A step of the policy: the plan of its ``engine`` with further ``values``; ``ask`` asks for the model."""
    said = {key: value for key, value in values.items() if value is not None}
    plan, own = engine.plan.with_values(**said), engine.asks.get("model")
    told = (ask, *notes, *(note for note in engine.notes if note != own))
    result = Imported(
        plan,
        words + engine.words,
        tuple(dict.fromkeys(filter(None, told))),
        sizes={} if plan.model else engine.sizes,
        asks={"model": ask} if ask else {},
        expert_balance=engine.expert_balance,
        assumed=(*engine.assumed, *assumed),
        dropout=engine.dropout,
    )
    return as_transformers_has_it(result)
