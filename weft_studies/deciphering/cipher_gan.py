"""CipherGAN (Gomez et al. 2018): two generators and two discriminators that learn a cipher from texts without pairs.

Their losses have a gradient penalty (Gulrajani et al. 2017).

Shapes: B texts · T symbols · V vocabulary · E width of symbol vectors · D width of hidden layers · P places.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import ModelFamily

SLOPE = 0.2
"""Of the leaky rectifiers of discriminators."""
ROUNDS = 10
"""Times that tables are normalised over columns and rows."""

Kind = Literal["table", "network"]


class Tables(nn.Module):
    """Rewrites a text symbol by symbol: symbols [B, T] or their probabilities [B, T, V] → logits [B, T, V].

    A cipher is a permutation of symbols, so a generator need not be more than a table. Its columns are normalised as well as
    its rows (Sinkhorn), so that no two symbols can become the same one; otherwise all become the most frequent ones. Places
    of a text use P tables in turn.
    """

    def __init__(self, places: int, symbols: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(0.1 * torch.randn(places, symbols, symbols))

    def forward(self, text: Tensor) -> Tensor:
        tables = self.tables()
        places = len(tables)
        if text.ndim == 2:
            return look_up(tables, text)
        logits = text.new_empty(text.shape) if places > 1 else text @ tables[0]
        for place in range(places if places > 1 else 0):
            logits[:, place::places] = text[:, place::places] @ tables[place]
        return logits

    def tables(self) -> Tensor:
        """Log-probabilities [P, V, V]."""
        return normalise(self.logits)


def normalise(tables: Tensor) -> Tensor:
    """Logits [P, V, V] as log-probabilities, nearly doubly stochastic: rows sum to 1, columns to about 1 (Sinkhorn)."""
    for _ in range(ROUNDS):
        tables = tables.log_softmax(1).log_softmax(2)
    return tables


def look_up(tables: Tensor, text: Tensor) -> Tensor:
    """The rows [B, T, V] of symbols [B, T] in tables [P, V, V] that take turns."""
    return tables[torch.arange(text.size(1), device=text.device) % len(tables), text]


class Generator(nn.Module):
    """A generator of convolutions of width 1, which read the vectors of symbols [B, T, E] (Gomez et al. 2018)."""

    def __init__(self, width: int, dim: int, blocks: int, symbols: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)) for _ in range(blocks))
        self.leave = nn.Linear(dim, symbols)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.leave(x.relu())
        return logits


class Window(nn.Module):
    """A convolution [B, T, D] → [B, T, D′], as one product, whose second derivatives are much faster on a CPU."""

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__()
        self.kernel, self.linear = kernel, nn.Linear(kernel * before, after)

    def forward(self, x: Tensor) -> Tensor:
        size, around = x.size(1), F.pad(x, (0, 0, (self.kernel - 1) // 2, self.kernel // 2))
        seen: Tensor = self.linear(torch.cat([around[:, at : at + size] for at in range(self.kernel)], -1))
        return seen


class Discriminator(nn.Module):
    """Judges texts [B, T, E]: high for real ones, low for others, [B]. Wide convolutions, so it sees n-grams."""

    def __init__(self, width: int, dim: int, layers: int, kernel: int) -> None:
        super().__init__()
        widths = [width, *[dim] * layers]
        self.layers = nn.ModuleList(Window(before, after, kernel) for before, after in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.judge = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.leaky_relu(norm(layer(x)), SLOPE)
        score: Tensor = self.judge(x)[..., 0].mean(1)
        return score


class GeneratorOutput(NamedTuple):
    """Fakes in each language as the discriminators see them [B, T, V], and the probabilities after both generators."""

    cipher: Tensor
    plain: Tensor
    plain_again: Tensor
    cipher_again: Tensor


class CipherGan(Network):
    """encipher, decipher: the generators · of_plain, of_cipher: the discriminators · table: vectors [V, E] of the symbols.

    position: a vector for each of P places, which repeat, or None.
    """

    def __init__(
        self, symbols: int, *, generator: Kind, dim: int, width: int, blocks: int, layers: int, kernel: int, places: int
    ) -> None:
        super().__init__()
        self.dim, self.symbols, self.places = dim, symbols, places
        self.encipher, self.decipher = (
            Tables(places, symbols) if generator == "table" else Generator(width, dim, blocks, symbols) for _ in range(2)
        )
        self.table = nn.Parameter(torch.randn(symbols, width) / width**0.5)
        self.position = nn.Parameter(torch.randn(places, width) / width**0.5) if places > 1 else None
        self.of_plain, self.of_cipher = (Discriminator(width, dim, layers, kernel) for _ in range(2))

    def begin(self, likely: Tensor) -> None:
        """Adds logits [P, V, V] of what plain symbols become to the tables of both generators."""
        assert isinstance(self.encipher, Tables) and isinstance(self.decipher, Tables)
        with torch.no_grad():
            self.encipher.logits.add_(likely)
            self.decipher.logits.add_(likely.mT)

    def embed(self, text: Tensor) -> Tensor:
        """Vectors [B, T, E] of symbols [B, T], or of their probabilities [B, T, V]: softmax × table."""
        table = F.normalize(self.table, dim=1)  # or discriminators would make all distances longer, without end
        vectors = table[text] if text.ndim == 2 else text @ table
        if self.position is None:
            return vectors
        return vectors + self.position[torch.arange(vectors.size(1), device=vectors.device) % len(self.position)]

    def rewrite(self, generator: nn.Module, text: Tensor) -> Tensor:
        """Logits [B, T, V] of a text, given as symbols [B, T] or as probabilities [B, T, V]."""
        logits: Tensor = generator(text if isinstance(generator, Tables) else self.embed(text))
        return logits

    def forward(
        self, plain: Tensor, cipher: Tensor, show: Callable[[Tensor], Tensor] = lambda chances: chances
    ) -> GeneratorOutput:
        """Both texts through both generators, from symbols [B, T].

        Only the way back trains the vectors of symbols: a generator may not move them to please a discriminator. show: what
        discriminators and the way back get instead of probabilities.
        """
        with self.without_judges():
            fake_cipher = show(self.rewrite(self.encipher, plain).softmax(-1))
            fake_plain = show(self.rewrite(self.decipher, cipher).softmax(-1))
        again = self.rewrite(self.decipher, fake_cipher).softmax(-1), self.rewrite(self.encipher, fake_plain).softmax(-1)
        return GeneratorOutput(fake_cipher, fake_plain, *again)

    def solve(self, cipher: Tensor) -> Tensor:
        """Logits [B, T, V] of the plain text of symbols [B, T].

        Tables of both directions have learnt one cipher, so they are read together.
        """
        if isinstance(self.decipher, Tables) and isinstance(self.encipher, Tables):
            return look_up(normalise(self.decipher.logits + self.encipher.logits.mT), cipher)
        return self.rewrite(self.decipher, cipher)

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


@dataclass(frozen=True, kw_only=True)
class CipherGanFamily(ModelFamily):
    """CipherGAN: generators that rewrite each symbol by itself, and discriminators that see n-grams.

    generator: a table of logits, or the network of Gomez et al. 2018
    dim: width of hidden layers
    width: width of the vectors of symbols
    blocks: residual blocks of a generator that is a network
    layers: convolutions of a discriminator
    kernel: symbols that such a convolution sees
    places: places of a text after which tables and vectors of places repeat; a Vigenère cipher needs a multiple of its key
    """

    generator: Kind = "table"
    dim: PositiveInt = 128
    width: PositiveInt = 64
    blocks: NonNegativeInt = 3
    layers: PositiveInt = 1
    kernel: PositiveInt = 3
    places: PositiveInt = 1

    def build(self, sizes: Sizes) -> CipherGan:
        """sizes.source: symbols."""
        return CipherGan(sizes.source, **vars(self))


AdversarialLoss = Literal["wasserstein", "least_squares"]
"""The distance of a discriminator's judgements (Arjovsky et al. 2017; Mao et al. 2017)."""
Judge = Callable[[Tensor], Tensor]
"""A discriminator: texts [B, …] → [B]."""


def gradient_penalty(judge: Judge, real: Tensor, fake: Tensor) -> Tensor:
    """max(0, ‖∇ judge(x)‖ − 1)² of each row, [B], at a random x between a real and a fake row.

    Slopes below 1 are free (Petzka et al. 2018): a slope of 1 at texts that look real would move generators away from them.
    """
    share = torch.rand(len(real), *[1] * (real.ndim - 1), device=real.device, dtype=real.dtype)
    between = (share * real.detach() + (1 - share) * fake.detach()).requires_grad_()
    (slopes,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).clamp_min(0).square()


def discriminator_loss(judge: Judge, real: Tensor, fake: Tensor, penalty: float, kind: AdversarialLoss) -> Tensor:
    """The loss of a discriminator, summed over rows: high for real rows, low for fakes, slopes of at most 1 between."""
    above, below = judge(real), judge(fake)
    apart = below - above if kind == "wasserstein" else (above - 1).square() + below.square()
    return (apart + penalty * gradient_penalty(judge, real, fake)).sum()


def generator_loss(judge: Judge, fake: Tensor, kind: AdversarialLoss) -> Tensor:
    """The loss of a generator, summed over rows: low if the discriminator takes its texts for real ones."""
    score = judge(fake)
    return (-score if kind == "wasserstein" else (score - 1).square()).sum()


def straight_through_sample(chances: Tensor) -> Tensor:
    """Symbols drawn from probabilities [..., V], as ones among zeros, with the gradient of the probabilities.

    Soft fakes are easily told from real texts, so generators would be pushed to be sure before they are right.
    """
    with torch.no_grad():
        # Numbers that are not finite, of a step that is skipped, would end the program; on a GPU, for all later steps too.
        drawn = torch.where(chances.isfinite().all(-1, keepdim=True), chances, 1.0).flatten(0, -2)
        symbols = torch.multinomial(drawn, 1).view(chances.shape[:-1])
        ones = F.one_hot(symbols, chances.size(-1)).to(chances.dtype)
    return ones + chances - chances.detach()


def replay_fakes(pool: Tensor | None, fakes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Fakes to judge, half of them earlier ones from the pool, and the pool [size, …] after the exchange (Shrivastava 2017).

    Numbers that are not finite, of a step that is skipped, are 0 in the pool.
    """
    fakes = fakes.detach()
    finite = fakes.nan_to_num(0.0, 0.0, 0.0)
    if pool is None:
        pool = finite[torch.arange(size, device=fakes.device) % len(fakes)].clone()
    slots = torch.randperm(size, device=fakes.device)[: len(fakes)]
    old = torch.rand(len(slots), device=fakes.device) < 0.5
    shown = fakes.clone()
    mask = old.view(-1, *[1] * (fakes.ndim - 1))
    shown[: len(slots)] = torch.where(mask, pool[slots], fakes[: len(slots)])
    after = pool.clone()
    after[slots] = torch.where(mask, finite[: len(slots)], pool[slots])
    return shown, after
