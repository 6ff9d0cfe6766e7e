"""The Transformer (Vaswani et al. 2017), with its self and cross slots open to every mechanism.

Shapes: G sources · B rows · T target positions · S source positions · D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, Site
from weft.batch import Layout
from weft.errors import ConfigError
from weft.layers.dropout import dropout
from weft.layers.embedding import TokenEmbedding, embedding_table
from weft.layers.feedforward import Activation, FeedForward
from weft.layers.position import LearnedPosition, SinusoidalPosition
from weft.layers.readout import linear_loss
from weft.mixers import build_self
from weft.mixers.base import Mixer
from weft.models.base import Decoder, Encoded, Encoder, Features, Model, Sizes
from weft.registry import Among, build
from weft.state import State

NormOrder = Literal["pre", "post"]
Share = Annotated[float, Field(ge=0, lt=1)]


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

    def site(self, use: Literal["encoder", "causal", "cross"]) -> Site:
        return Site(use, self.dim, self.heads, dropout=self.attention_dropout)

    def network(self) -> FeedForward:
        return FeedForward(self.dim, self.feedforward, self.activation, self.feedforward_dropout)


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
        self.mixer, self.network = mixer, block.network()
        self.around_mixer, self.around_network = Residual(block), Residual(block)

    def forward(self, x: Tensor, layout: Layout | None, terms: dict[str, Tensor]) -> Tensor:
        mixed = self.mixer(self.around_mixer.enter(x), self.mixer.start(rows=x.size(0)), layout=layout)
        _collect(terms, mixed.terms)
        x = self.around_mixer.leave(x, mixed.context)
        return self.around_network.leave(x, self.network(self.around_network.enter(x)))


class DecoderLayer(nn.Module):
    """Token mixing over the target, a look at the source, then the position-wise network."""

    def __init__(self, block: Block, mixer: Mixer, cross: Attention) -> None:
        super().__init__()
        self.mixer, self.cross, self.network = mixer, cross, block.network()
        self.project = nn.Identity() if cross.context_width == block.dim else nn.Linear(cross.context_width, block.dim)
        self.around_mixer, self.around_cross, self.around_network = Residual(block), Residual(block), Residual(block)

    def forward(
        self, x: Tensor, own: State, source: State, layout: Layout | None, terms: dict[str, Tensor]
    ) -> tuple[Tensor, State, State]:
        mixed = self.mixer(self.around_mixer.enter(x), own, layout=layout)
        x = self.around_mixer.leave(x, mixed.context)
        looked = self.cross(self.around_cross.enter(x), source, layout=layout)
        x = self.around_cross.leave(x, self.project(looked.context))
        _collect(terms, mixed.terms)
        _collect(terms, looked.terms)
        x = self.around_network.leave(x, self.network(self.around_network.enter(x)))
        return x, mixed.state, looked.state


class TransformerEncoder(Encoder):
    """A stack of encoder layers; with pre-norm a last norm closes it."""

    def __init__(self, embedding: TokenEmbedding, layers: list[EncoderLayer], block: Block) -> None:
        super().__init__()
        self.embedding, self.layers = embedding, nn.ModuleList(layers)
        self.norm = nn.LayerNorm(block.dim) if block.norm == "pre" else nn.Identity()

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        terms: dict[str, Tensor] = {}
        x = self.embedding(tokens, _positions(tokens, layout))
        for layer in self.layers:
            x = layer(x, layout, terms)
        return Encoded(self.norm(x), layout, terms)


@dataclass
class DecoderState:
    """One state a layer for each of its two slots; fed [B]: how many tokens each row has had."""

    own: list[State]
    source: list[State]
    fed: Tensor


class TransformerDecoder(Decoder):
    """A stack of decoder layers whose output layer is an embedding table."""

    def __init__(self, embedding: TokenEmbedding, layers: list[DecoderLayer], block: Block, output: nn.Embedding) -> None:
        super().__init__()
        self.embedding, self.layers, self.output = embedding, nn.ModuleList(layers), output
        self.norm = nn.LayerNorm(block.dim) if block.norm == "pre" else nn.Identity()

    def start(self, source: Encoded, *, room: int | None = None) -> DecoderState:
        rows = source.memory.size(0)
        layers = cast(Iterable[DecoderLayer], self.layers)
        own, looks = zip(
            *[(each.mixer.start(rows=rows, room=room), each.cross.start(source.memory, source.layout)) for each in layers],
            strict=True,
        )
        return DecoderState(list(own), list(looks), torch.zeros(rows, dtype=torch.long, device=source.memory.device))

    def features(self, tokens: Tensor, state: DecoderState, layout: Layout | None = None) -> Features:
        terms: dict[str, Tensor] = {}
        positions = _positions(tokens, layout) + state.fed[:, None]
        x = self.embedding(tokens, positions)
        own, looks = [], []
        for layer, mine, look in zip(self.layers, state.own, state.source, strict=True):
            x, mine, look = layer(x, mine, look, layout, terms)
            own.append(mine)
            looks.append(look)
        fed = tokens.size(1) if layout is None else layout.lengths
        return Features(self.norm(x), DecoderState(own, looks, state.fed + fed), terms)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.output.weight)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return linear_loss(hidden, self.output.weight, labels, smoothing)


class Transformer(Model):
    """Attention is all you need: encoder and decoder stacks (Vaswani et al. 2017), post-norm as published or pre-norm.

    dim: width of the model
    heads: attention heads; they share the width
    feedforward: width inside the position-wise network
    encoder_layers: blocks that read the source
    decoder_layers: blocks that write the target
    activation: of the position-wise network; swiglu has a gate, and so a third more weights
    norm: post as published, pre for easier training
    dropout: share dropped of embeddings and of what each sub-layer adds
    attention_dropout: share of attention weights dropped
    feedforward_dropout: share dropped inside the position-wise network
    position: how the model knows where a token stands; none if the self slots know by themselves (rotary, recurrent)
    max_length: positions that learned positions have
    share_embeddings: one table for source, target and output; for target and output; or three
    encoder_self: how source tokens are mixed
    decoder_self: how target tokens are mixed
    cross: how the target looks at the source
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: PositiveInt = 256,
        heads: PositiveInt = 4,
        feedforward: PositiveInt = 1024,
        encoder_layers: PositiveInt = 4,
        decoder_layers: PositiveInt = 4,
        activation: Activation = "relu",
        norm: NormOrder = "pre",
        dropout: Share = 0.1,
        attention_dropout: Share = 0.0,
        feedforward_dropout: Share = 0.0,
        position: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        max_length: PositiveInt = 1024,
        share_embeddings: Literal["all", "output", "none"] = "all",
        encoder_self: Annotated[dict[str, Any], Among("weft.mixers:SELF")] = {"kind": "full"},  # noqa: B006
        decoder_self: Annotated[dict[str, Any], Among("weft.mixers:SELF")] = {"kind": "full"},  # noqa: B006
        cross: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "full"},  # noqa: B006
    ) -> None:
        super().__init__()
        self.dim = dim
        block = Block(dim, heads, feedforward, activation, norm, dropout, attention_dropout, feedforward_dropout)

        def place() -> SinusoidalPosition | LearnedPosition | None:
            if position == "none":
                return None
            return SinusoidalPosition(dim) if position == "sinusoidal" else LearnedPosition(dim, max_length)

        source, target, output = _tables(sizes, dim, share_embeddings)
        encoders = [EncoderLayer(block, build_self(encoder_self, block.site("encoder"))) for _ in range(encoder_layers)]
        decoders = [
            DecoderLayer(
                block,
                build_self(decoder_self, block.site("causal")),
                build("weft.attention:ATTENTIONS", cross, block.site("cross")),
            )
            for _ in range(decoder_layers)
        ]
        self.encoder = TransformerEncoder(TokenEmbedding(source, place(), dropout), encoders, block)
        self.decoder = TransformerDecoder(TokenEmbedding(target, place(), dropout), decoders, block, output)
        limit = max_length if position == "learned" else None
        self.max_source = _least(
            [limit, *(layer.mixer.max_length for layer in encoders), *(layer.cross.max_length for layer in decoders)]
        )
        self.max_target = _least([limit, *(layer.mixer.max_length for layer in decoders)])
        mixers = [*(layer.mixer for layer in encoders), *(layer.mixer for layer in decoders)]
        self.packs = all(part.packs for part in [*mixers, *(layer.cross for layer in decoders)])


def _tables(sizes: Sizes, dim: int, share: str) -> tuple[nn.Embedding, nn.Embedding, nn.Embedding]:
    """Tables for source, target and output. "all" shares what can be shared: all three where the vocabulary is one."""
    if share == "all" and not sizes.shared:
        raise ConfigError(
            "model.share_embeddings: all needs one vocabulary for both sides; "
            "set data.shared_vocabulary: true, or model.share_embeddings: output"
        )
    target = embedding_table(sizes.target, dim)
    source = target if share == "all" else embedding_table(sizes.source, dim)
    output = embedding_table(sizes.target, dim) if share == "none" else target
    return source, target, output


def _positions(tokens: Tensor, layout: Layout | None) -> Tensor:
    if layout is not None:
        return layout.positions
    return torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)


def _collect(terms: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    for name, value in more.items():
        terms[name] = terms[name] + value if name in terms else value


def _least(limits: list[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None
