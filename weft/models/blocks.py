"""What stacks of encoder and decoder layers are made of (Vaswani et al. 2017), with self and cross slots open.

Shapes: B rows · T positions · D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, add_terms
from weft.batch import Layout
from weft.layers.convolution import TokenWindow
from weft.layers.dropout import dropout
from weft.layers.feedforward import Activation, FeedForward
from weft.layers.norm import norm_sum
from weft.layers.reversible import Added, SubLayer
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
    reversible: bool = False

    def site(self, use: Literal["encoder", "causal", "cross"]) -> Site:
        return Site(use, self.dim, self.heads, dropout=self.attention_dropout)

    def closing(self) -> nn.Module:
        """What ends a stack: with pre-norm nothing inside norms its last output."""
        return nn.LayerNorm(self.dim) if self.norm == "pre" else nn.Identity()

    def network(self, *, causal: bool) -> FeedForward:
        window = TokenWindow(self.dim, self.feedforward_width, causal=causal) if self.feedforward_width > 1 else None
        return FeedForward(self.dim, self.feedforward, self.activation, self.feedforward_dropout, window)


class Residual(nn.Module):
    """A sub-layer's way in and way out: x + f(norm(x)) (pre), or norm(x + f(x)) as published (post)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(block.dim)
        self.pre, self.dropout = block.norm == "pre", block.dropout

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def added(self, found: Tensor) -> Tensor:
        return dropout(found, self.dropout, self.training)

    def leave(self, x: Tensor, found: Tensor) -> Tensor:
        return x + self.added(found) if self.pre else norm_sum(self.norm, x, found, self.dropout, self.training)


class EncoderLayer(nn.Module):
    """Token mixing, then the position-wise network."""

    def __init__(self, block: Block, mixer: Mixer) -> None:
        super().__init__()
        self.mixer, self.network = mixer, block.network(causal=False)
        self.around_mixer, self.around_network = Residual(block), Residual(block)

    def forward(self, x: Tensor, layout: Layout | None, terms: dict[str, Tensor]) -> Tensor:
        mixed = self._mix(x, layout)
        add_terms(terms, mixed.terms)
        x = self.around_mixer.leave(x, mixed.context)
        return self.around_network.leave(x, self._think(x, layout))

    def sublayers(self, layout: Layout | None) -> list[SubLayer]:
        """The same two parts for reversible streams."""

        def mix(x: Tensor) -> Added:
            mixed = self._mix(x, layout)
            return Added(self.around_mixer.added(mixed.context), mixed.terms)

        def think(x: Tensor) -> Added:
            return Added(self.around_network.added(self._think(x, layout)))

        return [SubLayer(mix, [self.mixer, self.around_mixer]), SubLayer(think, [self.network, self.around_network])]

    def _mix(self, x: Tensor, layout: Layout | None) -> Attended:
        mixed: Attended = self.mixer(self.around_mixer.enter(x), self.mixer.start(rows=x.size(0)), layout=layout)
        return mixed

    def _think(self, x: Tensor, layout: Layout | None) -> Tensor:
        return self.network.run(self.around_network.enter(x), None, layout)[0]


@dataclass
class Unread:
    """A source that no attention has made keys and values of yet.

    A reversible layer makes them when it runs, and again when it is undone, instead of keeping them.
    """

    memory: Tensor
    layout: Layout | None

    def select(self, rows: Tensor, groups: Tensor | None) -> Unread:
        if groups is None:
            return self
        return Unread(self.memory.index_select(0, groups), None if self.layout is None else self.layout.select(groups))


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
        mixed = self._mix(x, before, layout)
        x = self.around_mixer.leave(x, mixed.context)
        looked = self._look(x, source, layout)
        x = self.around_cross.leave(x, looked.context)
        add_terms(terms, mixed.terms)
        add_terms(terms, looked.terms)
        found, tail = self.network.run(self.around_network.enter(x), tail, layout)
        return self.around_network.leave(x, found), (mixed.state, tail), looked.state

    def sublayers(self, own: State, source: State, layout: Layout | None) -> list[SubLayer]:
        """The same three parts for reversible streams; each gives its state."""
        before, tail = own

        def mix(x: Tensor) -> Added:
            mixed = self._mix(x, before, layout)
            return Added(self.around_mixer.added(mixed.context), mixed.terms, mixed.state)

        def look(x: Tensor) -> Added:
            read = self.cross.start(source.memory, source.layout) if isinstance(source, Unread) else source
            looked = self._look(x, read, layout)
            return Added(self.around_cross.added(looked.context), looked.terms, looked.state)

        def think(x: Tensor) -> Added:
            found, after = self.network.run(self.around_network.enter(x), tail, layout)
            return Added(self.around_network.added(found), state=after)

        memory = [source.memory] if isinstance(source, Unread) else []
        return [
            SubLayer(mix, [self.mixer, self.around_mixer]),
            SubLayer(look, [self.cross, self.project, self.around_cross], memory),
            SubLayer(think, [self.network, self.around_network]),
        ]

    def _mix(self, x: Tensor, before: State, layout: Layout | None) -> Attended:
        mixed: Attended = self.mixer(self.around_mixer.enter(x), before, layout=layout)
        return mixed

    def _look(self, x: Tensor, source: State, layout: Layout | None) -> Attended:
        looked: Attended = self.cross(self.around_cross.enter(x), source, layout=layout)
        return replace(looked, context=self.project(looked.context))
