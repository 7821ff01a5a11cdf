"""Small torch models of the usual kinds, as a user writes them; tests name their functions as ``module:function``."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Grouped-query attention with rotary positions where asked."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, *, bias: bool, causal: bool, rotary: bool = False):
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.causal, self.rotary = (
            heads,
            kv_heads,
            hidden // heads,
            causal,
            rotary,
        )
        self.q = nn.Linear(hidden, hidden, bias=bias)
        self.k = nn.Linear(hidden, kv_heads * self.dim, bias=bias)
        self.v = nn.Linear(hidden, kv_heads * self.dim, bias=bias)
        self.o = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x, memory=None):
        """Queries of x, keys and values of x or of the memory."""
        source = x if memory is None else memory
        q, k, v = (
            part.unflatten(-1, (-1, self.dim)).transpose(1, 2) for part in (self.q(x), self.k(source), self.v(source))
        )
        if self.rotary:
            q, k = rotate(q), rotate(k)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


def rotate(x):
    """Rotary positions by halves."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = torch.outer(torch.arange(x.shape[-2], device=x.device), rates).repeat(1, 2)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos() + turned * angle.sin()


class EagerAttention(nn.Module):
    """Softmax written out, with a triangular mask made in forward."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x):
        """Queries, keys and values of one product."""
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(x).split(hidden, 2)
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-2, -1) / (hidden // self.heads) ** 0.5
        mask = torch.tril(torch.ones(seq, seq, device=x.device)) == 0
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
        return self.o((weights @ v).transpose(1, 2).reshape(batch, seq, hidden))


class RMSNorm(nn.Module):
    """Written out, in fp32."""

    def __init__(self, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        """Normalised by the root of the mean square."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, ffn: int):
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down, self.act = nn.Linear(ffn, hidden, bias=False), nn.SiLU()

    def forward(self, x):
        """Gate times up."""
        return self.down(self.act(self.gate(x)) * self.up(x))


def plain(hidden: int, ffn: int) -> nn.Module:
    """Two products and GELU."""
    return nn.Sequential(nn.Linear(hidden, ffn), nn.GELU(), nn.Linear(ffn, hidden))


class Layer(nn.Module):
    """Pre-norm layer, with attention to a memory where asked."""

    def __init__(self, hidden: int, attention: nn.Module, mlp: nn.Module, norm=nn.LayerNorm, cross=None):
        super().__init__()
        self.attention, self.mlp, self.cross = attention, mlp, cross
        self.norms = nn.ModuleDict({name: norm(hidden) for name in ("attention", "cross", "mlp")[:: 1 if cross else 2]})

    def forward(self, x, memory=None):
        """Residual branches."""
        x = x + self.attention(self.norms["attention"](x))
        if self.cross is not None:
            x = x + self.cross(self.norms["cross"](x), memory)
        return x + self.mlp(self.norms["mlp"](x))


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, layers, hidden: int, *, vocab: int = 512, positions: int = 0, tied: bool, norm=nn.LayerNorm):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(positions, hidden) if positions else None
        self.layers, self.norm = nn.ModuleList(layers), norm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        """int64[batch, seq] to [batch, seq, vocab]."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpt(layers: int = 4) -> nn.Module:
    """GPT-2's shapes in small."""
    stack = [Layer(64, EagerAttention(64, 4), plain(64, 256)) for _ in range(layers)]
    return Decoder(stack, 64, positions=256, tied=True)


def llama(layers: int = 2) -> nn.Module:
    """Llama's shapes in small."""
    stack = [
        Layer(64, Attention(64, 8, 2, bias=False, causal=True, rotary=True), Gated(64, 176), RMSNorm)
        for _ in range(layers)
    ]
    return Decoder(stack, 64, tied=False, norm=RMSNorm)


class Vision(nn.Module):
    """Patches by a convolution with stride, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.positions = nn.Parameter(torch.zeros(1, 17, 64))
        self.blocks = nn.ModuleList(
            Layer(64, Attention(64, 4, 4, bias=True, causal=False), plain(64, 256)) for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, images):
        """[batch, 3, 32, 32] to [batch, 10]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vision():
    """A module with example inputs: pictures have no sequence length."""
    return Vision(), torch.zeros(1, 3, 32, 32)


class Pair(nn.Module):
    """An encoder, and a decoder that attends to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(512, 64)
        self.encoder = nn.ModuleList(self._layer(causal=False) for _ in range(3))
        self.between = RMSNorm(64)
        self.decoder = nn.ModuleList(self._layer(causal=True, cross=True) for _ in range(2))
        self.norm, self.head = RMSNorm(64), nn.Linear(64, 512, bias=False)

    def _layer(self, *, causal: bool, cross: bool = False) -> nn.Module:
        other = Attention(64, 4, 4, bias=False, causal=False) if cross else None
        return Layer(64, Attention(64, 4, 4, bias=False, causal=causal), plain(64, 128), RMSNorm, other)

    def forward(self, source, target):
        """Two int64[batch, seq] to [batch, seq, vocab]."""
        memory = self.tokens(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory, x = self.between(memory), self.tokens(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.norm(x))


def pair():
    """A module with two inputs of tokens."""
    return Pair(), {"source": torch.zeros(1, 48, dtype=torch.int64), "target": torch.zeros(1, 48, dtype=torch.int64)}


def short_pair():
    """The same with a decoder of a length of its own."""
    return Pair(), (torch.zeros(1, 48, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64))


def stock() -> nn.Module:
    """Torch's own encoder layers: one packed projection, a mask as a tensor, dropout."""

    class Stock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
            self.tokens, self.head = nn.Embedding(512, 64), nn.Linear(64, 512)
            self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, tokens):
            size = tokens.shape[1]
            mask = torch.triu(torch.ones(size, size, dtype=torch.bool, device=tokens.device), 1)
            return self.head(self.blocks(self.tokens(tokens), mask=mask, is_causal=True))

    return Stock()


def windowed() -> nn.Module:
    """Every second layer sees the last 16 tokens only, by a mask."""

    class Windowed(Attention):
        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (4, 16)).transpose(1, 2) for p in (self.q, self.k, self.v))
            size = x.shape[1]
            mask = torch.ones(size, size, dtype=torch.bool, device=x.device).tril().triu(-15)
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.o(y.transpose(1, 2).flatten(2))

    kinds = [Attention, Windowed, Attention, Windowed]
    stack = [Layer(64, kind(64, 4, 4, bias=False, causal=True), plain(64, 128)) for kind in kinds]
    return Decoder(stack, 64, tied=False)


class Modulated(nn.Module):
    """A layer whose norms and branches are scaled by a condition [Peebles and Xie 2022, arXiv 2212.09748]."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(64, 4, 4, bias=True, causal=False), plain(64, 256)
        self.norms = nn.ModuleList(nn.LayerNorm(64, elementwise_affine=False) for _ in range(2))
        self.scales = nn.Sequential(nn.SiLU(), nn.Linear(64, 6 * 64))

    def forward(self, x, condition):
        """Both branches, each shifted, scaled and gated."""
        shift, scale, gate, shift_2, scale_2, gate_2 = self.scales(condition)[:, None].chunk(6, -1)
        x = x + gate * self.attention(self.norms[0](x) * (1 + scale) + shift)
        return x + gate_2 * self.mlp(self.norms[1](x) * (1 + scale_2) + shift_2)


class Diffusion(nn.Module):
    """A diffusion transformer: patches of a latent picture, a time and a class as the condition, patches of noise."""

    def __init__(self):
        super().__init__()
        self.patches, self.classes = nn.Conv2d(4, 64, 2, 2), nn.Embedding(11, 64)
        self.positions = nn.Parameter(torch.zeros(1, 64, 64))
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.blocks = nn.ModuleList(Modulated() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(64, elementwise_affine=False), nn.Linear(64, 32)

    def forward(self, picture, time, label):
        """[batch, 4, 16, 16], [batch], int64[batch] to [batch, 64, 32]."""
        x = self.patches(picture).flatten(2).transpose(1, 2) + self.positions
        angle = time[:, None] * torch.exp(-torch.arange(16, device=time.device) / 2)
        condition = self.time(torch.cat([angle.cos(), angle.sin()], -1)) + self.classes(label)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(self.norm(x))


def diffusion():
    """A module with three inputs and without a vocabulary."""
    return Diffusion(), (torch.zeros(1, 4, 16, 16), torch.zeros(1), torch.zeros(1, dtype=torch.int64))


def headless():
    """An encoder of pictures whose layers nothing follows but a norm."""

    class Headless(Vision):
        def forward(self, images):
            x = self.patches(images).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    made = Headless()
    del made.head, made.token, made.positions
    return made, torch.zeros(1, 3, 32, 32)


def perceptron():
    """No attention, no tokens."""
    inner = [
        nn.Linear(32, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*inner), torch.zeros(4, 32)


class TwoFold(nn.Module):
    """Attention whose keys are those of a sequence twice over, as where two towers' are joined."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.dim = hidden // heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x):
        """Every query sees all of both."""
        both = torch.cat([x, x.flip(1)], dim=1)
        q, k, v = (
            part.unflatten(-1, (-1, self.dim)).transpose(1, 2) for part in (self.q(x), self.k(both), self.v(both))
        )
        return self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TwoFoldLayers(nn.Module):
    """Two layers of it between a table and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(TwoFold(64, 4) for _ in range(2))
        self.head = nn.Linear(64, 512, bias=False)

    def forward(self, tokens):
        """Logits."""
        x = self.table(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def twofold() -> nn.Module:
    """Keys of no sequence."""
    return TwoFoldLayers()


def unknown() -> nn.Module:
    """A Fourier transform, which has no rule."""

    class Mixing(nn.Module):
        def forward(self, x):
            return torch.fft.fft(x).real

    return Decoder([Layer(64, Mixing(), plain(64, 128)) for _ in range(2)], 64, tied=False)


def loose() -> nn.Module:
    """A product of two activations that is no attention."""

    class Outer(nn.Module):
        def forward(self, x):
            return (x @ x.transpose(1, 2)) @ x

    return Decoder([Layer(64, Outer(), plain(64, 128)) for _ in range(2)], 64, tied=False)


def number() -> int:
    """No module at all."""
    return 7


def failing() -> nn.Module:
    """A module whose construction fails."""
    raise ValueError("no such width")


def giant() -> nn.Module:
    """More parameters than a laptop holds."""
    stack = [
        Layer(16384, Attention(16384, 128, 8, bias=False, causal=True), Gated(16384, 57344), RMSNorm) for _ in range(2)
    ]
    return Decoder(stack, 16384, vocab=128256, tied=False, norm=RMSNorm)
