"""The Transformer (Vaswani et al. 2017), with its self and cross slots open to every mechanism.

Shapes: G sources · B rows · T target positions · S source positions · D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.batch import Layout
from weft.config.registry import Among, build
from weft.errors import ConfigError
from weft.layers.embedding import Sharing, TokenEmbedding, embedding_tables
from weft.layers.feedforward import Activation
from weft.layers.norm import residual
from weft.layers.position import LearnedPosition, SinusoidalPosition, token_positions
from weft.layers.reversible import run_reversible
from weft.mixers import build_self
from weft.models.base import Encoded, Encoder, Features, LinearDecoder, Model, Sizes
from weft.models.blocks import Block, DecoderLayer, EncoderLayer, NormOrder, Unread
from weft.state import State, together

Wiring = Literal["last", "same", "mix"]
Share = Annotated[float, Field(ge=0, lt=1)]


class TransformerEncoder(Encoder):
    """A stack of encoder layers; with pre-norm a last norm closes it, and one each layer below where those are read too."""

    def __init__(self, embedding: TokenEmbedding, layers: list[EncoderLayer], block: Block, wiring: Wiring) -> None:
        super().__init__()
        self.embedding, self.layers = embedding, nn.ModuleList(layers)
        self.norm, self.reversible, self.width = block.closing(), block.reversible, block.dim
        self.post = block.norm == "post"
        self.lower_norms = nn.ModuleList(block.closing() for _ in layers[1:] if wiring != "last")

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        terms: dict[str, Tensor] = {}
        x = self.embedding(tokens, token_positions(tokens, layout))
        if self.post:
            x = residual(x, self.training)
        if self.reversible:
            layers = cast(Iterable[EncoderLayer], self.layers)
            streams = run_reversible(x, [part for layer in layers for part in layer.sublayers(layout)])
            memory = self.norm(streams.mean)
            return Encoded(memory, layout, streams.terms, layers=[memory])
        heights = []
        for layer in self.layers:
            x = layer(x, layout, terms)
            heights.append(x)
        memory = self.norm(x)
        lower = [norm(height) for norm, height in zip(self.lower_norms, heights)]
        return Encoded(memory, layout, terms, layers=[*lower, memory])


class Wires(nn.Module):
    """Which encoder layer each decoder layer reads: the last, the one of its own height, or its own learned mean of all.

    The mean is softmax-weighted (Bapna et al. 2018), and even at first.
    """

    def __init__(self, wiring: Wiring, encoder_layers: int, decoder_layers: int) -> None:
        super().__init__()
        if wiring == "same" and encoder_layers != decoder_layers:
            raise ConfigError(
                "model.wiring: same needs as many encoder layers as decoder layers, "
                f"not {encoder_layers} and {decoder_layers}; make them equal, or use wiring: mix"
            )
        self.wiring, self.readers = wiring, decoder_layers
        self.mixture = nn.Parameter(torch.zeros(decoder_layers, encoder_layers)) if wiring == "mix" else None

    def forward(self, source: Encoded) -> list[Tensor]:
        """One memory [G, S, D] for each decoder layer."""
        if self.mixture is not None:
            return list(torch.einsum("rl,lgsd->rgsd", self.mixture.softmax(-1), torch.stack(source.layers)))
        return source.layers if self.wiring == "same" else [source.memory] * self.readers


@dataclass
class DecoderState:
    """One state a layer for each of its two slots; fed [B]: how many tokens each row has had."""

    own: list[State]
    source: list[State]
    fed: Tensor


class TransformerDecoder(LinearDecoder):
    """A stack of decoder layers whose output layer is an embedding table."""

    def __init__(
        self, embedding: TokenEmbedding, layers: list[DecoderLayer], block: Block, wires: Wires, output: nn.Linear
    ) -> None:
        super().__init__()
        self.embedding, self.layers, self.wires, self.output = embedding, nn.ModuleList(layers), wires, output
        self.norm, self.reversible, self.post = block.closing(), block.reversible, block.norm == "post"

    def start(self, source: Encoded, *, room: int | None = None) -> DecoderState:
        rows = source.memory.size(0)
        layers = list(cast(Iterable[DecoderLayer], self.layers))
        own = together([each.start(rows=rows, room=room) for each in layers])
        memories = self.wires(source)
        looks: list[State] = [Unread(memory, source.layout) for memory in memories]
        if not (self.reversible and torch.is_grad_enabled()):
            looks = [each.cross.start(memory, source.layout) for each, memory in zip(layers, memories, strict=True)]
        return DecoderState(own, looks, torch.zeros(rows, dtype=torch.long, device=source.memory.device))

    def features(self, tokens: Tensor, state: DecoderState, layout: Layout | None = None) -> Features:
        terms: dict[str, Tensor] = {}
        positions = token_positions(tokens, layout) + state.fed[:, None]
        fed = tokens.size(1) if layout is None else layout.lengths
        x = self.embedding(tokens, positions)
        if self.post:
            x = residual(x, self.training)
        own: list[State] = []
        looks: list[State] = []
        if self.reversible:
            layers = zip(cast(Iterable[DecoderLayer], self.layers), state.own, state.source, strict=True)
            streams = run_reversible(x, [part for layer, mine, look in layers for part in layer.sublayers(mine, look, layout)])
            left = streams.states
            own, looks = list(zip(left[::3], left[2::3], strict=True)), left[1::3]
            return Features(self.norm(streams.mean), DecoderState(own, looks, state.fed + fed), streams.terms)
        for layer, mine, look in zip(self.layers, state.own, state.source, strict=True):
            x, mine, look = layer(x, mine, look, layout, terms)
            own.append(mine)
            looks.append(look)
        return Features(self.norm(x), DecoderState(own, looks, state.fed + fed), terms)


class Transformer(Model):
    """Attention is all you need: encoder and decoder stacks (Vaswani et al. 2017), post-norm as published or pre-norm.

    dim: width of the model
    heads: attention heads; they share the width
    feedforward: width inside the position-wise network
    feedforward_width: tokens that network sees at once; 1 as published, 3 makes it a convolution, as for tagging
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
    wiring: which encoder layer each decoder layer looks at: the last, the one of the same height, or a learned mix of all
    reversible: keep no activations of layers, but compute them again on the way back: memory for any depth, a third more time
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: PositiveInt = 256,
        heads: PositiveInt = 4,
        feedforward: PositiveInt = 1024,
        feedforward_width: PositiveInt = 1,
        encoder_layers: PositiveInt = 4,
        decoder_layers: PositiveInt = 4,
        activation: Activation = "relu",
        norm: NormOrder = "pre",
        dropout: Share = 0.1,
        attention_dropout: Share = 0.0,
        feedforward_dropout: Share = 0.0,
        position: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        max_length: PositiveInt = 1024,
        share_embeddings: Sharing = "all",
        encoder_self: Annotated[dict[str, Any], Among("weft.mixers:SELF")] = {"kind": "full"},  # noqa: B006
        decoder_self: Annotated[dict[str, Any], Among("weft.mixers:SELF")] = {"kind": "full"},  # noqa: B006
        cross: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "full"},  # noqa: B006
        wiring: Wiring = "last",
        reversible: bool = False,
    ) -> None:
        super().__init__()
        self.dim = dim
        shares = dropout, attention_dropout, feedforward_dropout
        block = Block(dim, heads, feedforward, activation, norm, *shares, feedforward_width, reversible)
        if reversible and (norm, wiring) != ("pre", "last"):
            raise ConfigError(
                f"model.reversible needs norm: pre and wiring: last, not {norm} and {wiring}: "
                "a norm of the sum cannot be undone, and layers below the last are not kept"
            )

        def place() -> SinusoidalPosition | LearnedPosition | None:
            if position == "none":
                return None
            return SinusoidalPosition(dim) if position == "sinusoidal" else LearnedPosition(dim, max_length)

        source, target, output = embedding_tables(sizes.source, sizes.target, sizes.shared, dim, share_embeddings)
        encoders = [EncoderLayer(block, build_self(encoder_self, block.site("encoder"))) for _ in range(encoder_layers)]
        decoders = [
            DecoderLayer(
                block,
                build_self(decoder_self, block.site("causal")),
                build("weft.attention:ATTENTIONS", cross, block.site("cross")),
            )
            for _ in range(decoder_layers)
        ]
        self.encoder = TransformerEncoder(TokenEmbedding(source, place(), dropout), encoders, block, wiring)
        wires = Wires(wiring, encoder_layers, decoder_layers)
        self.decoder = TransformerDecoder(TokenEmbedding(target, place(), dropout), decoders, block, wires, output)
        limit = max_length if position == "learned" else None
        self.max_source = _least(
            [limit, *(layer.mixer.max_length for layer in encoders), *(layer.cross.max_length for layer in decoders)]
        )
        self.max_target = _least([limit, *(layer.mixer.max_length for layer in decoders)])
        mixers = [*(layer.mixer for layer in encoders), *(layer.mixer for layer in decoders)]
        parts = [*mixers, *(layer.cross for layer in decoders)]
        self.packs, self.packs_square = all(part.packs for part in parts), any(part.packs_square for part in parts)
        self.compiles = {spec["kind"] for spec in (encoder_self, decoder_self, cross)} == {"full"} and not reversible
        self.replays = not reversible  # computing again in reverse asks for the state of the generator of random numbers

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return [module for module in self.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def _least(limits: list[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None
