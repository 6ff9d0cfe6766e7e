"""What stacks of encoder and decoder layers are made of (Vaswani et al. 2017), with self and cross slots open.

Shapes: B rows · T positions · D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from weft.attention.base import Attention, Site, add_terms
from weft.batch import Layout
from weft.layers.convolution import Window
from weft.layers.dropout import dropout
from weft.layers.feedforward import Activation, FeedForward
from weft.mixers.base import Mixer
from weft.state import State

NormOrder = Literal["pre", "post"]


@dataclass(frozen=True)
class Block:
    """What every block of a stack is made with."""

    dim: int
    heads: int
    feedforward: int
    activation: Activation
    norm: NormOrder
    dropout: float
    attention_dropout: float
    feedforward_dropout: float
    feedforward_width: int = 1

    def site(self, use: Literal["encoder", "causal", "cross"]) -> Site:
        return Site(use, self.dim, self.heads, dropout=self.attention_dropout)

    def closing(self) -> nn.Module:
        """What ends a stack: with pre-norm nothing inside norms its last output."""
        return nn.LayerNorm(self.dim) if self.norm == "pre" else nn.Identity()

    def network(self, *, causal: bool) -> FeedForward:
        window = Window(self.dim, self.feedforward_width, causal=causal) if self.feedforward_width > 1 else None
        return FeedForward(self.dim, self.feedforward, self.activation, self.feedforward_dropout, window)


class Residual(nn.Module):
    """A sub-layer's way in and way out: x + f(norm(x)) (pre), or norm(x + f(x)) as published (post)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(block.dim)
        self.pre, self.dropout = block.norm == "pre", block.dropout

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, found: Tensor) -> Tensor:
        x = x + dropout(found, self.dropout, self.training)
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Token mixing, then the position-wise network."""

    def __init__(self, block: Block, mixer: Mixer) -> None:
        super().__init__()
        self.mixer, self.network = mixer, block.network(causal=False)
        self.around_mixer, self.around_network = Residual(block), Residual(block)

    def forward(self, x: Tensor, layout: Layout | None, terms: dict[str, Tensor]) -> Tensor:
        mixed = self.mixer(self.around_mixer.enter(x), self.mixer.start(rows=x.size(0)), layout=layout)
        add_terms(terms, mixed.terms)
        x = self.around_mixer.leave(x, mixed.context)
        return self.around_network.leave(x, self.network.run(self.around_network.enter(x), None, layout)[0])


class DecoderLayer(nn.Module):
    """Token mixing over the target, a look at the source, then the position-wise network."""

    def __init__(self, block: Block, mixer: Mixer, cross: Attention) -> None:
        super().__init__()
        self.mixer, self.cross, self.network = mixer, cross, block.network(causal=True)
        self.project = nn.Identity() if cross.context_width == block.dim else nn.Linear(cross.context_width, block.dim)
        self.around_mixer, self.around_cross, self.around_network = Residual(block), Residual(block), Residual(block)

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        """What it knows of the target before the first token: for the mixer, and for a network that looks back."""
        return self.mixer.start(rows=rows, room=room), self.network.start(rows)

    def forward(
        self, x: Tensor, own: State, source: State, layout: Layout | None, terms: dict[str, Tensor]
    ) -> tuple[Tensor, State, State]:
        before, tail = own
        mixed = self.mixer(self.around_mixer.enter(x), before, layout=layout)
        x = self.around_mixer.leave(x, mixed.context)
        looked = self.cross(self.around_cross.enter(x), source, layout=layout)
        x = self.around_cross.leave(x, self.project(looked.context))
        add_terms(terms, mixed.terms)
        add_terms(terms, looked.terms)
        found, tail = self.network.run(self.around_network.enter(x), tail, layout)
        return self.around_network.leave(x, found), (mixed.state, tail), looked.state
