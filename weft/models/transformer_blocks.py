"""Layers of Transformer stacks (Vaswani et al. 2017), whose self- and cross-attention slots take any mechanism.

Shapes: B rows · T positions · D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Mixer, Site, add_extras
from weft.config.registry import Among
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State
from weft.layers.embeddings_and_rotary_positions import AbsolutePosition, PositionJoin, PositionKind, make_position
from weft.layers.feedforward import Activation, FeedForward
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.linear_norm_dropout import Rate, dropout, norm_sum
from weft.layers.reversible import Added, SubLayer
from weft.layers.step_recorder import record, recording

NormOrder = Literal["pre", "post", "none"]
InTurn = dict[str, Any] | list[dict[str, Any]]
"""The part of every layer, or a list of parts, which the layers take in turn."""
SelfSlots = Annotated[InTurn, Among("weft.attention.mixers:SELF", repeats=True)]
CrossSlots = Annotated[InTurn, Among("weft.attention:ATTENTIONS", repeats=True)]


@dataclass(frozen=True)
class Block:
    """Options that all blocks of a stack share.

    dim: width of the model
    heads: attention heads; they share the width
    feedforward: width inside the feed-forward network; 0: no feed-forward network
    activation: of the feed-forward network; swiglu adds a gate, and so a third more weights
    norm: layer norm after each sub-layer as published (post), before it for easier training (pre), or none
    residual: add the input of each sub-layer to its output
    dropout: dropout rate of embeddings and of the output of each sub-layer
    attention_dropout: dropout rate of attention weights
    feedforward_dropout: dropout rate inside the feed-forward network
    position: absolute positions added to the embeddings (tensor2tensor: sinusoids with Marian's frequencies);
      none if the self-attention slots encode positions (rotary, recurrent)
    max_length: number of learned positions
    position_join: add positions to the embeddings, or concatenate both and project them to the width of the model
    """

    dim: PositiveInt = 256
    heads: PositiveInt = 4
    feedforward: NonNegativeInt = 1024
    activation: Activation = "relu"
    norm: NormOrder = "pre"
    residual: bool = True
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    feedforward_dropout: Rate = 0.0
    position: PositionKind = "sinusoidal"
    max_length: PositiveInt = 1024
    position_join: PositionJoin = "add"

    feedforward_width: ClassVar[int] = 1
    reversible: ClassVar[bool] = False

    @property
    def positions(self) -> int | None:
        """The number of absolute positions; None: any number."""
        return self.max_length if self.position == "learned" else None

    def make_position(self) -> AbsolutePosition | None:
        return make_position(self.position, self.dim, self.max_length, self.position_join)

    def site(self, use: Literal["encoder", "causal", "cross"]) -> Site:
        return Site(use, self.dim, self.heads, dropout=self.attention_dropout)

    def final_norm(self) -> nn.Module:
        """The norm after a stack; only pre-norm blocks leave their output without one."""
        return nn.LayerNorm(self.dim) if self.norm == "pre" else nn.Identity()

    def network(self, *, causal: bool) -> FeedForward | None:
        if self.feedforward == 0:
            return None
        window = TokenWindow(self.dim, self.feedforward_width, causal=causal) if self.feedforward_width > 1 else None
        return FeedForward(self.dim, self.feedforward, self.activation, self.feedforward_dropout, window)


@dataclass(frozen=True)
class TransformerBlock(Block):
    """Options of the blocks of an encoder or decoder stack.

    feedforward_width: tokens the feed-forward network sees; 1 as published, 3 makes it a convolution, as for tagging
    reversible: recompute activations in the backward pass: memory does not grow with depth, time by a third
    """

    feedforward_width: PositiveInt = 1  # type: ignore[misc]
    reversible: bool = False  # type: ignore[misc]


def in_turn(parts: InTurn, layers: int, slot: str) -> list[dict[str, Any]]:
    """The part of each layer. A list begins again after its last entry. `slot` is its name in error messages."""
    each = parts if isinstance(parts, list) else [parts]
    if len(each) > layers:
        raise ConfigError(
            f"{slot}: a list of {len(each)} for {layers} layers; shorten the list, or use {len(each)} or more layers "
            "(a shorter list begins again after its last entry)"
        )
    return [each[layer % len(each)] for layer in range(layers)]


class Residual(nn.Module):
    """The residual connection around a sub-layer: x + f(norm(x)) (pre), or norm(x + f(x)) as published (post).

    Without norms it is x + f(x), and without the connection (`residual: false`) x is left out.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm: nn.Module = nn.Identity() if block.norm == "none" else nn.LayerNorm(block.dim)
        self.pre, self.dropout, self.adds = block.norm != "post", block.dropout, block.residual

    def prenorm(self, x: Tensor) -> Tensor:
        """The input of the sub-layer, normalised in a pre-norm block."""
        return self.norm(x) if self.pre else x

    def add_residual(self, x: Tensor, update: Tensor) -> Tensor:
        """x plus the output of the sub-layer, normalised in a post-norm block."""
        if not self.adds:
            update = dropout(update, self.dropout, self.training)
            return update if self.pre else self.norm(update)
        if recording():
            axes, joined = "row token channel", x + update
            record("sum", joined, axes, "x + update", self, x=(x, axes), update=(update, axes))
        if self.pre:
            return x + dropout(update, self.dropout, self.training)
        return norm_sum(self.norm, x, update, self.dropout, self.training)

    def plan(self, draft: PlanBuilder, x: Register, run: Callable[[Register], Register]) -> Register:
        if self.pre:
            update = run(draft.norm(self.norm, x))
            return draft.add(x, update) if self.adds else update
        update = run(x)
        return draft.norm(self.norm, draft.add(x, update) if self.adds else update)

    def sublayer(self, run: Callable[[Tensor], Attended], *modules: nn.Module, tensors: Sequence[Tensor] = ()) -> SubLayer:
        """A sub-layer of reversible streams, which adds the context that `run` returns."""

        def add(x: Tensor) -> Added:
            update = run(x)
            return Added(dropout(update.context, self.dropout, self.training), update.extras, update.state)

        return SubLayer(add, [*modules, self], tensors)


class EncoderLayer(nn.Module):
    """Token mixing, then the feed-forward network. causal: for language models, where tokens see only those before them."""

    def __init__(self, block: Block, mixer: Mixer, *, causal: bool = False) -> None:
        super().__init__()
        self.mixer, self.network = mixer, block.network(causal=causal)
        self.around_mixer = Residual(block)
        self.around_network = None if self.network is None else Residual(block)

    def forward(self, x: Tensor, layout: Layout | None, extras: dict[str, Tensor]) -> Tensor:
        return self.read(x, self.mixer.init_state(rows=x.size(0)), layout, extras)[0]

    def read(self, x: Tensor, state: State, layout: Layout | None, extras: dict[str, Tensor]) -> tuple[Tensor, State]:
        """Tokens [B, T, D] that follow the state → [B, T, D] and the state after them."""
        mixed: Attended = self.mixer(self.around_mixer.prenorm(x), state, layout=layout)
        add_extras(extras, mixed.extras)
        x = self.around_mixer.add_residual(x, mixed.context)
        return _feed(self, x, None, layout)[0], mixed.state

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        x = draft.part(self.around_mixer, x, lambda y: draft.part(self.mixer, y))
        return _plan_feed(self, draft, x)

    def sublayers(self, layout: Layout | None) -> list[SubLayer]:
        """The two sub-layers as parts of reversible streams."""
        network, around = self.network, self.around_network
        assert network is not None and around is not None

        def mix(x: Tensor) -> Attended:
            return replace(
                self.mixer(self.around_mixer.prenorm(x), self.mixer.init_state(rows=x.size(0)), layout=layout), state=None
            )

        feed = around.sublayer(lambda x: Attended(network.run(around.prenorm(x), None, layout)[0]), network)
        return [self.around_mixer.sublayer(mix, self.mixer), feed]


def _feed(
    layer: EncoderLayer | DecoderLayer, x: Tensor, tail: Tensor | None, layout: Layout | None
) -> tuple[Tensor, Tensor | None]:
    """x [B, T, D] after the feed-forward network of a layer, if it has one, and the network's tail."""
    network, around = layer.network, layer.around_network
    if network is None or around is None:
        return x, tail
    update, tail = network.run(around.prenorm(x), tail, layout)
    return around.add_residual(x, update), tail


def _plan_feed(layer: EncoderLayer | DecoderLayer, draft: PlanBuilder, x: Register) -> Register:
    network, around = layer.network, layer.around_network
    return x if network is None or around is None else draft.part(around, x, lambda y: draft.part(network, y))


@dataclass
class StackState:
    """The states of each layer's own part and of its attention to the source; fed [B]: tokens each row has consumed."""

    own: list[State]
    source: list[State]
    fed: Tensor


@dataclass
class UnprojectedMemory:
    """A source that has not been projected to keys and values yet.

    A reversible layer projects it in the forward pass, and again in the backward pass, instead of storing the result.
    """

    memory: Tensor
    layout: Layout | None

    def select(self, rows: Tensor, groups: Tensor | None) -> UnprojectedMemory:
        if groups is None:
            return self
        layout = None if self.layout is None else self.layout.select(groups)
        return UnprojectedMemory(self.memory.index_select(0, groups), layout)


class DecoderLayer(nn.Module):
    """Token mixing over the target, cross-attention to the source, then the feed-forward network.

    cross: None in a layer that does not attend to the source · causal: tokens see only those before them; otherwise the whole
    target.
    """

    def __init__(self, block: Block, mixer: Mixer, cross: Attention | None, *, causal: bool = True) -> None:
        super().__init__()
        self.mixer, self.cross, self.network = mixer, cross, block.network(causal=causal)
        context = block.dim if cross is None else cross.context_width
        self.project = nn.Identity() if context == block.dim else nn.Linear(context, block.dim)
        self.around_mixer, self.around_cross = Residual(block), None if cross is None else Residual(block)
        self.around_network = None if self.network is None else Residual(block)

    def init_state(self, *, rows: int = 1, room: int | None = None) -> State:
        """The states of the mixer and of the feed-forward network before the first token."""
        return self.mixer.init_state(rows=rows, room=room), None if self.network is None else self.network.init_state(rows)

    def read_source(self, memory: Tensor, layout: Layout | None) -> State:
        """The state of the attention to the source; None without one."""
        return None if self.cross is None else self.cross.init_state(memory, layout)

    def forward(
        self, x: Tensor, own: State, source: State, layout: Layout | None, extras: dict[str, Tensor]
    ) -> tuple[Tensor, State, State]:
        before, tail = own
        mixed = self._mix(x, before, layout)
        x = self.around_mixer.add_residual(x, mixed.context)
        add_extras(extras, mixed.extras)
        if self.around_cross is not None:
            attended = self._attend(x, source, layout)
            x, source = self.around_cross.add_residual(x, attended.context), attended.state
            add_extras(extras, attended.extras)
        x, tail = _feed(self, x, tail, layout)
        return x, (mixed.state, tail), source

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        x = draft.part(self.around_mixer, x, lambda y: draft.part(self.mixer, y))
        cross, around = self.cross, self.around_cross
        if cross is not None and around is not None:
            x = draft.part(around, x, lambda y: draft.linear(self.project, draft.part(cross, y)))
        return _plan_feed(self, draft, x)

    def sublayers(self, own: State, source: State, layout: Layout | None) -> list[SubLayer]:
        """The three sub-layers as parts of reversible streams; each returns its state."""
        before, tail = own
        network, around_network, around_cross = self.network, self.around_network, self.around_cross
        assert network is not None and around_network is not None and around_cross is not None

        def attend(x: Tensor) -> Attended:
            read = self.read_source(source.memory, source.layout) if isinstance(source, UnprojectedMemory) else source
            return self._attend(x, read, layout)

        def feed(x: Tensor) -> Attended:
            return Attended(*network.run(around_network.prenorm(x), tail, layout))

        memory = [source.memory] if isinstance(source, UnprojectedMemory) else []
        return [
            self.around_mixer.sublayer(lambda x: self._mix(x, before, layout), self.mixer),
            around_cross.sublayer(attend, cast(Attention, self.cross), self.project, tensors=memory),
            around_network.sublayer(feed, network),
        ]

    def _mix(self, x: Tensor, before: State, layout: Layout | None) -> Attended:
        return self.mixer(self.around_mixer.prenorm(x), before, layout=layout)

    def _attend(self, x: Tensor, source: State, layout: Layout | None) -> Attended:
        assert self.cross is not None and self.around_cross is not None
        attended: Attended = self.cross(self.around_cross.prenorm(x), source, layout=layout)
        return replace(attended, context=self.project(attended.context))
