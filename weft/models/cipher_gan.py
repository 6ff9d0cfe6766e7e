"""CipherGAN (Gomez et al. 2018): two generators and two discriminators that learn a cipher from texts without pairs.

Shapes: B texts · T symbols · V vocabulary · E width of symbol vectors · D width of hidden layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.models.base import Network, Sizes
from weft.models.composing import Family

SLOPE = 0.2
"""Of the leaky rectifiers of discriminators."""


class Generator(nn.Module):
    """Rewrites a text symbol by symbol: [B, T, E] → logits [B, T, V]. Convolutions of width 1, so no symbol sees another."""

    def __init__(self, width: int, dim: int, blocks: int, symbols: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)) for _ in range(blocks))
        self.leave = nn.Linear(dim, symbols)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.leave(x.relu() if len(self.blocks) else x)
        return logits


class Discriminator(nn.Module):
    """Judges texts [B, T, E]: near 1 for real ones, near 0 for others, [B]. Wide convolutions, so it sees n-grams."""

    def __init__(self, width: int, dim: int, layers: int, kernel: int) -> None:
        super().__init__()
        widths = [width, *[dim] * layers]
        self.layers = nn.ModuleList(nn.Conv1d(before, after, kernel, padding="same") for before, after in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.judge = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.leaky_relu(norm(layer(x.transpose(1, 2)).transpose(1, 2)), SLOPE)
        judged: Tensor = self.judge(x)[..., 0].mean(1)
        return judged


class Written(NamedTuple):
    """Probabilities [B, T, V]: fakes in each language, and what comes back after both generators."""

    cipher: Tensor
    plain: Tensor
    plain_again: Tensor
    cipher_again: Tensor


class CipherGan(Network):
    """encipher, decipher: the generators · of_plain, of_cipher: the discriminators · table: vectors [V, E] of the symbols.

    position: a vector for each place of a text, or None.
    """

    def __init__(
        self, symbols: int, extent: int, *, dim: int, width: int, blocks: int, layers: int, kernel: int, positions: bool
    ) -> None:
        super().__init__()
        self.dim, self.symbols, self.extent = dim, symbols, extent
        self.encipher, self.decipher = (Generator(width, dim, blocks, symbols) for _ in range(2))
        self.table = nn.Parameter(torch.randn(symbols, width) / width**0.5)
        self.position = nn.Parameter(torch.randn(extent, width) / width**0.5) if positions else None
        self.of_plain, self.of_cipher = (Discriminator(width, dim, layers, kernel) for _ in range(2))

    def embed(self, chances: Tensor) -> Tensor:
        """Vectors [B, T, E] of symbols [B, T], or of their probabilities [B, T, V]: softmax × table."""
        vectors = self.table[chances] if chances.ndim == 2 else chances @ self.table
        return vectors if self.position is None else vectors + self.position[: vectors.size(1)]

    def forward(self, plain: Tensor, cipher: Tensor) -> Written:
        """Both texts through both generators, from symbols [B, T].

        Only the way back trains the vectors of symbols: a generator may not move them to please a discriminator.
        """
        fake_cipher = self.encipher(self.embed(plain).detach()).softmax(-1)
        fake_plain = self.decipher(self.embed(cipher).detach()).softmax(-1)
        again = self.decipher(self.embed(fake_cipher)).softmax(-1), self.encipher(self.embed(fake_plain)).softmax(-1)
        return Written(fake_cipher, fake_plain, *again)

    def solve(self, cipher: Tensor) -> Tensor:
        """Logits [B, T, V] of the plain text of symbols [B, T]."""
        logits: Tensor = self.decipher(self.embed(cipher))
        return logits

    def judges(self) -> list[nn.Parameter]:
        """The parameters of the discriminators' optimiser: theirs, and the vectors of symbols and places."""
        places = [] if self.position is None else [self.position]
        return [self.table, *places, *self.of_plain.parameters(), *self.of_cipher.parameters()]

    def writers(self) -> list[nn.Parameter]:
        """The parameters of the generators' optimiser."""
        return [*self.encipher.parameters(), *self.decipher.parameters()]

    @contextmanager
    def without_judges(self) -> Iterator[None]:
        """Inside the block, discriminators and vectors of symbols get no gradients from what is computed."""
        for parameter in self.judges():
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self.judges():
                parameter.requires_grad_(True)


class CipherGanFamily(Family):
    """CipherGAN: generators that rewrite each symbol by itself, and discriminators that see n-grams.

    dim: width of hidden layers
    width: width of the vectors of symbols
    blocks: residual blocks of a generator; 0: a linear map
    layers: convolutions of a discriminator
    kernel: symbols that such a convolution sees
    positions: learn a vector for each place of a text, which a Vigenère cipher needs
    """

    def __init__(
        self,
        *,
        dim: PositiveInt = 128,
        width: PositiveInt = 256,
        blocks: NonNegativeInt = 3,
        layers: PositiveInt = 4,
        kernel: PositiveInt = 15,
        positions: bool = False,
    ) -> None:
        self.options = {"dim": dim, "width": width, "blocks": blocks, "layers": layers, "kernel": kernel}
        self.positions = positions

    def build(self, sizes: Sizes) -> CipherGan:
        """sizes.source: symbols · sizes.target: the length of texts."""
        return CipherGan(sizes.source, sizes.target, positions=self.positions, **self.options)
