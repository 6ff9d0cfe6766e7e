"""Decoder-only language models: causal blocks with any mechanism in their self slot, and no source to look at.

Shapes: B rows · T positions · M remembered positions · D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, add_terms
from weft.batch import Layout
from weft.config.registry import Among
from weft.layers.embedding import TokenEmbedding, embedding_table
from weft.layers.feedforward import Activation
from weft.layers.position import LearnedPosition, SinusoidalPosition, token_positions
from weft.layers.readout import output_layer
from weft.mixers import build_self
from weft.mixers.base import Mixer
from weft.models.base import Encoded, Features, LinearDecoder, Network, Sizes
from weft.models.blocks import Block, NormOrder, Residual
from weft.state import State, together

Share = Annotated[float, Field(ge=0, lt=1)]


class CausalLayer(nn.Module):
    """Token mixing over what was read so far, then the position-wise network."""

    def __init__(self, block: Block, mixer: Mixer) -> None:
        super().__init__()
        self.mixer, self.network = mixer, block.network(causal=True)
        self.around_mixer, self.around_network = Residual(block), Residual(block)

    def recall(self, memory: Tensor) -> State:
        """The state after having read what the layer was given before, [B, M, D]."""
        return self.mixer.recall(self.around_mixer.enter(memory))

    def forward(self, x: Tensor, state: State, layout: Layout | None, terms: dict[str, Tensor]) -> tuple[Tensor, State]:
        mixed: Attended = self.mixer(self.around_mixer.enter(x), state, layout=layout)
        add_terms(terms, mixed.terms)
        x = self.around_mixer.leave(x, mixed.context)
        return self.around_network.leave(x, self.network(self.around_network.enter(x))), mixed.state


@dataclass
class LanguageState:
    """One state a layer; fed [B]: how many tokens each row has had."""

    own: list[State]
    fed: Tensor


class LanguageDecoder(LinearDecoder):
    """A stack of causal layers. Of a source it asks only how many rows there are (`LanguageModel.nothing`)."""

    def __init__(self, embedding: TokenEmbedding, layers: list[CausalLayer], block: Block, output: nn.Linear) -> None:
        super().__init__()
        self.embedding, self.layers, self.output = embedding, nn.ModuleList(layers), output
        self.norm = block.closing()

    def start(self, source: Encoded, *, room: int | None = None) -> LanguageState:
        rows = source.memory.size(0)
        own = together([layer.mixer.start(rows=rows, room=room) for layer in self._each()])
        return LanguageState(own, self._zeros(rows))

    def recall(self, memory: Sequence[Tensor]) -> LanguageState:
        """The state after an earlier segment, of which the inputs [B, M, D] of every layer are known."""
        own = [layer.recall(each) for layer, each in zip(self._each(), memory, strict=True)]
        return LanguageState(own, self._zeros(memory[0].size(0)))

    def features(self, tokens: Tensor, state: LanguageState, layout: Layout | None = None) -> Features:
        return self.read(tokens, state, layout)[0]

    def read(self, tokens: Tensor, state: LanguageState, layout: Layout | None = None) -> tuple[Features, list[Tensor]]:
        """The same, and the inputs [B, T, D] of every layer, for `recall`."""
        terms: dict[str, Tensor] = {}
        x = self.embedding(tokens, token_positions(tokens, layout) + state.fed[:, None])
        own: list[State] = []
        inputs: list[Tensor] = []
        for layer, before in zip(self._each(), state.own, strict=True):
            inputs.append(x)
            x, after = layer(x, before, layout, terms)
            own.append(after)
        fed = tokens.size(1) if layout is None else layout.lengths
        return Features(self.norm(x), LanguageState(own, state.fed + fed), terms), inputs

    def _zeros(self, rows: int) -> Tensor:
        return torch.zeros(rows, dtype=torch.long, device=self.output.weight.device)

    def _each(self) -> Iterable[CausalLayer]:
        return cast(Iterable[CausalLayer], self.layers)


class LanguageModel(Network):
    """The next token from those before it: a Transformer's causal blocks, or recurrent ones, without a source.

    dim: width of the model
    heads: attention heads; they share the width
    feedforward: width inside the position-wise network
    decoder_layers: blocks on top of each other
    activation: of the position-wise network; swiglu has a gate, and so a third more weights
    norm: post as published, pre for easier training
    dropout: share dropped of embeddings and of what each sub-layer adds
    attention_dropout: share of attention weights dropped
    feedforward_dropout: share dropped inside the position-wise network
    position: how the model knows where a token stands; none if decoder_self knows by itself (xl_relative, rotary, recurrent)
    max_length: positions that learned positions have
    share_embeddings: one table for input and output
    decoder_self: how tokens are mixed with those before them
    """

    decoder: LanguageDecoder
    replays = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: PositiveInt = 256,
        heads: PositiveInt = 4,
        feedforward: PositiveInt = 1024,
        decoder_layers: PositiveInt = 4,
        activation: Activation = "gelu",
        norm: NormOrder = "pre",
        dropout: Share = 0.1,
        attention_dropout: Share = 0.0,
        feedforward_dropout: Share = 0.0,
        position: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        max_length: PositiveInt = 1024,
        share_embeddings: bool = True,
        decoder_self: Annotated[dict[str, Any], Among("weft.mixers:SELF")] = {"kind": "full"},  # noqa: B006
    ) -> None:
        super().__init__()
        self.dim, self.position = dim, position
        block = Block(dim, heads, feedforward, activation, norm, dropout, attention_dropout, feedforward_dropout)
        place: SinusoidalPosition | LearnedPosition | None = None
        if position != "none":
            place = SinusoidalPosition(dim) if position == "sinusoidal" else LearnedPosition(dim, max_length)
        table = embedding_table(sizes.target, dim)
        output = output_layer(table if share_embeddings else embedding_table(sizes.target, dim))
        mixers = [build_self(decoder_self, block.site("causal")) for _ in range(decoder_layers)]
        layers = [CausalLayer(block, mixer) for mixer in mixers]
        self.decoder = LanguageDecoder(TokenEmbedding(table, place, dropout), layers, block, output)
        limits = [max_length if position == "learned" else None, *(mixer.max_length for mixer in mixers)]
        self.max_target = min((limit for limit in limits if limit is not None), default=None)

    def nothing(self, rows: int) -> Encoded:
        """The source of a model that has none, for so many rows."""
        return Encoded(torch.empty(rows, 0, self.dim, device=self.device))

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Features:
        """Hidden states from which each next token is to be guessed, for rows that begin here."""
        return self.decoder.features(tokens, self.decoder.start(self.nothing(tokens.size(0))), layout)
