"""Speech models: an encoder of a fixed number of frames, and a decoder of text that attends to its output.

Text tokens are looked up first, as in every other model, and travel past the encoder, whose first block has two
convolutions over the spectrogram: the first at every frame of it, the second at every other one [Whisper, Radford et
al. 2022, arXiv 2212.04356]. Blocks of the encoder have the scope "encoder"; the sequences of a step are the decoder's.
"""

from dataclasses import replace

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, QUERY, TOKENS, product, project
from simpar.architectures.towers import MEMORY, MEMORY_STREAM, decoder_layer
from simpar.architectures.transformer import LayerVariant, Shape, Style, add, embedding, head, layer, norm
from simpar.dataclass import dataclass

TEXT: Size = term("batch", "text.seq", "text_hidden")
VALUES: Size = term("kv_heads", "head_dim")
BIASES: dict[str, Size] = {"qkv.bias": (*QUERY, *VALUES), "cross_kv.bias": VALUES}
"""Biases of packed products of which keys have none."""
TAPS, STRIDE = 3, 2
"""Frames that each convolution reads; frames of the spectrogram for one of the encoder's."""


@dataclass(frozen=True)
class Sound:
    """The encoder: its ``shape``, and ``frames`` of it, made of ``features`` for each frame of the spectrogram.

    Positions are added to it from a table that is not trained, or are "computed"; rotary ones ("") are not added.
    """

    shape: Shape
    frames: int
    features: int
    positions: str = "table"

    @property
    def dims(self) -> dict[str, int]:
        """Named dims of the encoder's scope, and of what travels past either."""
        shape = self.shape
        own = {
            "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
            "ffn": shape.ffn, "seq": self.frames, "context": self.frames,
        }  # fmt: skip
        return {
            "memory": self.frames, "text_hidden": shape.hidden,
            **{f"encoder.{name}": size for name, size in own.items()},
        }  # fmt: skip


def speech_model(name: str, sound: Sound, text: Shape, style: Style) -> ModelGraph:
    """Encoder layers of ``sound``, then decoder layers of the shape of ``text``, both of one width."""
    both_ways = replace(style, extra={"bidirectional": True})
    blocks = {
        "frames": Block("frames", tuple(front(sound)), "encoder", TEXT),
        "encoder_layer": replace(layer("encoder_layer", both_ways, LayerVariant(), dropout=False), scope="encoder"),
        "decoder_start": Block("decoder_start", tuple(_start(style)), passes=MEMORY_STREAM),
        "decoder_layer": Block("decoder_layer", decoder_layer(style), passes=MEMORY_STREAM),
    }
    blocks["encoder_layer"] = replace(blocks["encoder_layer"], passes=TEXT)
    return ModelGraph(
        name=name,
        dims={**text.dims, **sound.dims},
        blocks={key: without_key_biases(block) for key, block in blocks.items()},
        layers=(
            "frames", *("encoder_layer",) * sound.shape.layers, "decoder_start", *("decoder_layer",) * text.layers,
        ),
        embedding=embedding(text, style, dropout=False),
        head=head(style),
        tied_embeddings=style.tied,
        facts={"norm": style.norm},
    )  # fmt: skip


def front(sound: Sound) -> list[Operator]:
    """Two convolutions with their activations, and positions that are not trained."""
    table = Weight("position_embedding.weight", term("hidden", times=sound.frames), "embedding", trainable=False)
    rows = product(TOKENS, term(times=STRIDE))
    made = [
        replace(
            _convolution("convolution_0", INPUT, term(times=TAPS * sound.features)), rows=rows, inputs=(), saves=()
        ),
        replace(_activation("convolution_0"), rows=rows),
        _convolution("convolution_1", "convolution_0_activation", term("hidden", times=TAPS)),
        _activation("convolution_1"),
    ]
    if not sound.positions:
        return made
    weights = (table,) if sound.positions == "table" else ()
    return [*made, replace(add("position_embedding", made[-1].name), weights=weights)]


def _convolution(name: str, source: str, reads: Size) -> Operator:
    return project(name, source, reads, HIDDEN, bias=True, region="sequence")


def _activation(source: str) -> Operator:
    return Operator(f"{source}_activation", "activation", TOKENS, HIDDEN, "sequence", inputs=(source,), saves=(source,))


def _start(style: Style) -> list[Operator]:
    """The norm that ends the encoder, whose output travels on, and the text that has travelled past it."""
    return [
        replace(norm("memory", INPUT, style), rows=MEMORY),
        Operator("text", "add", TOKENS, HIDDEN, "sequence", inputs=(INPUT,)),
    ]


def without_key_biases(block: Block) -> Block:
    """The block with biases of queries and values only."""
    operators = (
        replace(op, weights=tuple(replace(each, size=BIASES.get(each.name, each.size)) for each in op.weights))
        for op in block.operators
    )
    return replace(block, operators=tuple(operators))
