"""Towers of sound before language models: convolutions over a spectrogram, layers of an encoder, a projector.

They are towers as those of :mod:`simpar.architectures.vision`, with other scopes ("audio", "audio_connector") and other
first operators, so a model may have both, one behind the other. Frames that make a token take the place of a token of
text, so sequences of the language model keep the training's length [Whisper, arXiv 2212.04356; Qwen2-Audio, arXiv
2407.10759].
"""

from collections.abc import Mapping
from dataclasses import field, replace

from simpar.architectures.graph import Block, ModelGraph, Operator, Size
from simpar.architectures.speech import Sound, front, without_key_biases
from simpar.architectures.transformer import Style
from simpar.architectures.vision import Patches, ProjectorStep, Vision, dims_of, is_divided, tower_of, undivided
from simpar.dataclass import dataclass

SCOPES = {"vision": "audio", "connector": "audio_connector"}
VISUAL, HEARD = "visual.seq", "sound.seq"
BLOCKS = {"patches": "frames", "connector": "audio_connector"}


@dataclass(frozen=True)
class Heard:
    """Sound of a sequence: ``clips``, each of the frames of ``sound``; the layers' style; the projector.

    ``merged`` frames make a token, side by side or as their mean (``pooled``); ``end_norm`` is that behind the layers.
    Keys have biases or not; ``marks`` are learned vectors of ends of clips. ``windows`` bound the frames that see each
    other. ``first`` are operators in the place of Whisper's two convolutions, ``lengths`` their rows, by name.
    """

    clips: int
    sound: Sound
    style: Style
    projector: tuple[ProjectorStep, ...]
    merged: int = 1
    pooled: bool = False
    end_norm: str = ""
    key_biases: bool = False
    marks: int = 0
    windows: tuple[int | None, ...] = ()
    first: tuple[Operator, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of a sequence that stand for sound."""
        return self.clips * self.sound.frames // self.merged


def hearing(name: str, heard: Heard, language: ModelGraph) -> ModelGraph:
    """The language model, or one with another tower, with the tower in front of it."""
    first = heard.first or tuple(front(heard.sound))
    tower = Vision(
        Patches(1, heard.sound.frames, heard.clips, merged=heard.merged), heard.sound.shape, heard.style,
        heard.projector, windows=heard.windows, end_norm=heard.end_norm, pooled=heard.pooled, marks=heard.marks,
        front=first,
    )  # fmt: skip
    blocks = [_renamed(block) for block in tower_of(tower)]
    if not heard.key_biases:
        blocks = [without_key_biases(block) for block in blocks]
    facts = language.facts if is_divided(tower) else undivided(language, tuple(SCOPES.values()))
    dims = {_dim(each): size for each, size in dims_of(tower, language.dims["hidden"]).items()}
    return replace(
        language, name=name, dims={**language.dims, **dims, **heard.lengths},
        blocks={**{block.name: block for block in blocks}, **language.blocks},
        layers=(*(block.name for block in blocks), *language.layers), facts=facts,
    )  # fmt: skip


def _renamed(block: Block) -> Block:
    """A block of a vision tower as one of sound."""
    operators = tuple(_operator(op) for op in block.operators)
    name = BLOCKS.get(block.name, block.name.replace("vision_", "audio_"))
    return replace(block, name=name, operators=operators, scope=SCOPES[block.scope], passes=_size(block.passes))


def _operator(op: Operator) -> Operator:
    named = {each: each.replace("vision_", "audio_") for each in (op.name, *op.inputs, *op.saves)}
    weights = tuple(
        replace(each, name=each.name.replace("vision_", "audio_"), size=_size(each.size)) for each in op.weights
    )
    return replace(
        op, name=named[op.name], rows=_size(op.rows), columns=_size(op.columns), contraction=_size(op.contraction),
        weights=weights, inputs=tuple(named[each] for each in op.inputs), saves=tuple(named[each] for each in op.saves),
    )  # fmt: skip


def _size(size: Size) -> Size:
    return tuple((times, tuple(_dim(name) for name in names)) for times, names in size)


def _dim(name: str) -> str:
    if name == VISUAL:
        return HEARD
    scope, dot, own = name.partition(".")
    return f"{SCOPES[scope]}.{own}" if dot and scope in SCOPES else name
