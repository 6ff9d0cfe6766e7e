"""Language models: decoders without a source, as causal Transformer blocks or recurrent networks.

Shapes: B rows · T positions · M remembered positions · E width of embeddings · D width of the model or of states.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, Site
from weft.attention.mixers import build_self
from weft.config.registry import Among, build
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State, share_common
from weft.layers.embedding import TokenEmbedding
from weft.layers.feedforward import Activation
from weft.layers.kernels.cpp_plan import NotPlanned, PlanBuilder
from weft.layers.norm_and_dropout import Rate
from weft.layers.positions import PositionKind, token_positions
from weft.layers.recurrent import Cell, Readout, RecurrentOptions, RecurrentStack
from weft.models.base import DecoderSite, Encoded, Encoder, Features, LinearDecoder, Network, Sizes, least
from weft.models.composition import ModelFamily
from weft.models.transformer_blocks import Block, EncoderLayer, SelfSlots, StackState, in_turn


class SourcelessDecoder(LinearDecoder):
    """A decoder whose source only says how many rows there are (`LanguageModel.nothing`)."""

    @abstractmethod
    def read(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Features, list[Tensor]]:
        """`features`, and the inputs [B, T, D] of every layer for `recall`."""

    @abstractmethod
    def recall(self, memory: Sequence[Tensor]) -> State:
        """The state after an earlier segment, from the inputs [B, M, D] of every layer."""

    def features(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Features:
        return self.read(tokens, state, layout)[0]


class LanguageModel(Network):
    """A decoder without a source. position: the absolute positions it uses."""

    decoder: SourcelessDecoder
    replays = True

    def __init__(self, decoder: SourcelessDecoder, position: PositionKind) -> None:
        super().__init__()
        self.decoder, self.position = decoder, position
        self.dim, self.max_target = decoder.dim, decoder.max_length

    def nothing(self, rows: int) -> Encoded:
        """The empty source that the decoder starts from."""
        return Encoded(torch.empty(rows, 0, self.dim, device=self.device))

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Features:
        """Hidden states from which each next token is predicted, for rows that begin here."""
        return self.decoder.features(tokens, self.decoder.start(self.nothing(tokens.size(0))), layout)


class LanguageModelEncoder(Encoder):
    """A language model as an encoder, for a classifier (Howard & Ruder 2018): each vector has read the tokens up to its own."""

    replays = True

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.decoder, self.width, self.max_source = model.decoder, model.decoder.hidden, model.max_target

    def forward(self, source: Source) -> Encoded:
        empty = Encoded(torch.empty(source.values.size(0), 0, self.decoder.dim, device=source.values.device))
        features = self.decoder.features(source.values, self.decoder.start(empty), source.layout)
        return Encoded(features.hidden, source.layout, features.extras)


class LanguageModelFamily(ModelFamily):
    """A kind of language model."""

    @abstractmethod
    def build(self, sizes: Sizes) -> LanguageModel:
        """A model with its initial weights."""

    def build_encoder(self, sizes: Sizes) -> LanguageModelEncoder:
        return LanguageModelEncoder(self.build(Sizes(sizes.source, sizes.source, shared=True)))


class TransformerLanguageDecoder(SourcelessDecoder):
    """A stack of causal layers, of `kinds` kinds in turn."""

    def __init__(
        self, embedding: TokenEmbedding, layers: list[EncoderLayer], block: Block, output: nn.Linear, kinds: int = 1
    ) -> None:
        super().__init__()
        self.kinds = kinds
        self.embedding, self.layers, self.output = embedding, nn.ModuleList(layers), output
        self.norm, self.dim, self.hidden = block.final_norm(), block.dim, block.dim
        self.max_length = least(block.positions, *(layer.mixer.max_length for layer in layers))

    def start(self, source: Encoded, *, room: int | None = None) -> StackState:
        rows = source.memory.size(0)
        own = share_common([layer.mixer.start(rows=rows, room=room) for layer in self._each()], self.kinds)
        return StackState(own, [], self._zeros(rows))

    def recall(self, memory: Sequence[Tensor]) -> StackState:
        own = [layer.mixer.recall(layer.around_mixer.enter(each)) for layer, each in zip(self._each(), memory, strict=True)]
        return StackState(own, [], self._zeros(memory[0].size(0)))

    def read(self, tokens: Tensor, state: StackState, layout: Layout | None = None) -> tuple[Features, list[Tensor]]:
        extras: dict[str, Tensor] = {}
        x = self.embedding(tokens, token_positions(tokens, layout) + state.fed[:, None])
        own: list[State] = []
        inputs: list[Tensor] = []
        for layer, before in zip(self._each(), state.own, strict=True):
            inputs.append(x)
            x, after = layer.read(x, before, layout, extras)
            own.append(after)
        fed = tokens.size(1) if layout is None else layout.lengths
        return Features(self.norm(x), StackState(own, [], state.fed + fed), extras), inputs

    def plan(self, draft: PlanBuilder) -> None:
        x = draft.part(self.embedding)
        for layer in self._each():
            x = draft.part(layer, x)
        draft.norm(self.norm, x)

    def _zeros(self, rows: int) -> Tensor:
        return torch.zeros(rows, dtype=torch.long, device=self.output.weight.device)

    def _each(self) -> Iterable[EncoderLayer]:
        return cast(Iterable[EncoderLayer], self.layers)


@dataclass(frozen=True)
class LanguageBlock(Block):
    """The options of `Block`, with another default."""

    activation: Activation = "gelu"


class TransformerLanguageModelFamily(LanguageModelFamily):
    """Predicts each token from those before it: the causal blocks of a Transformer, or recurrent ones, without a source.

    decoder_layers: number of blocks
    share_embeddings: one table for input and output
    scale_embeddings: multiply token embeddings by √dim (Vaswani et al. 2017); without it, as in GPT-2, learned positions start
      as large as tokens, and are learned faster
    decoder_self: how tokens are mixed with earlier ones; the blocks take the entries of a list in turn
    """

    def __init__(
        self,
        *,
        block: LanguageBlock,
        decoder_layers: PositiveInt = 4,
        share_embeddings: bool = True,
        scale_embeddings: bool = True,
        decoder_self: SelfSlots = {"kind": "full"},  # noqa: B006
    ) -> None:
        self.block, self.layers, self.share, self.mixer = block, decoder_layers, share_embeddings, decoder_self
        self.scale = None if scale_embeddings else 1.0

    def build(self, sizes: Sizes) -> LanguageModel:
        table, output = DecoderSite(sizes.target, 0, tied=self.share).tables(self.block.dim)
        kinds = in_turn(self.mixer, self.layers, "decoder_self")
        layers = [EncoderLayer(self.block, build_self(kind, self.block.site("causal")), causal=True) for kind in kinds]
        embedding = TokenEmbedding(table, self.block.make_position(), self.block.dropout, self.scale)
        turns = len(self.mixer) if isinstance(self.mixer, list) else 1
        return LanguageModel(TransformerLanguageDecoder(embedding, layers, self.block, output, turns), self.block.position)


@dataclass
class RecurrentLanguageState:
    """layers: their states, [B, D] · past: that of the attention, or the last states for n-grams."""

    layers: list[Cell]
    past: State = None


class StateNGram(nn.Module):
    """[h¹_t; h²_{t−1}; …]: a state is split into as many parts as states are read, and the i-th part predicts i tokens ahead.

    size: states that are read; N − 1 for the N-gram RNN of Daniluk et al. 2017, section 2.4.
    """

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        if dim % size:
            raise ConfigError(f"model.dim: states of width {dim} cannot be split into {size} equal parts; change dim or ngram")
        self.part, self.window = dim // size, TokenWindow(dim, size, causal=True)

    def forward(self, outputs: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """outputs [B, T, D] → [B, T, D], part i from i − 1 states ago; and the last states."""
        windows, tail = self.window(outputs, tail, layout)
        newest_first = windows.unflatten(-1, (self.window.width, -1)).flip(-2)
        parts = newest_first.unflatten(-1, (self.window.width, self.part))
        return parts.diagonal(dim1=-3, dim2=-2).transpose(-1, -2).flatten(-2), tail


class RecurrentLanguageDecoder(SourcelessDecoder):
    """A recurrent network over a text. Its output reads h̃ = tanh(W [r; h]), where r is what attention finds in the past."""

    def __init__(
        self, tables: tuple[nn.Embedding, nn.Linear], stack: RecurrentStack, look: Attention | StateNGram | None
    ) -> None:
        super().__init__()
        table, output = tables
        self.embedding, self.noise, self.output = TokenEmbedding(table, None), stack.noise, output
        self.stack, self.look = stack, look
        reads = dim = stack.width
        if isinstance(look, Attention):
            reads = look.predicting(torch.empty(0, dim, device="meta")).size(-1) + look.context_width
            self.max_length = look.max_length
        self.readout = Readout("tanh", reads, table.embedding_dim)
        self.dim, self.hidden = dim, table.embedding_dim

    def start(self, source: Encoded, *, room: int | None = None) -> RecurrentLanguageState:
        return self._begin(source.memory.size(0), room)

    def recall(self, memory: Sequence[Tensor]) -> RecurrentLanguageState:
        return self._read(memory[0], self._begin(memory[0].size(0), None), None).state

    def read(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Features, list[Tensor]]:
        x = self.noise(self.embedding(tokens))
        return self._read(x, state, layout), [x]

    def plan(self, draft: PlanBuilder) -> None:
        if self.look is not None:
            raise NotPlanned(type(self.look).__name__)
        states = [draft.state(sum(part.size(1) for part in cell)) for cell in self.stack.start(1)]
        draft.part(self.readout, draft.part(self.stack, draft.part(self.embedding), states))

    def _begin(self, rows: int, room: int | None) -> RecurrentLanguageState:
        past: State = None
        if isinstance(self.look, Attention):
            past = self.look.start(rows=rows, room=room)
        elif self.look is not None:
            past = self.look.window.start(rows, self.output.weight)
        return RecurrentLanguageState(self.stack.start(rows), past)

    def _read(self, x: Tensor, state: RecurrentLanguageState, layout: Layout | None) -> Features:
        outputs, layers = self.stack(x, state.layers, layout)
        read, past, extras = outputs, state.past, {}
        if isinstance(self.look, Attention):
            attended = self.look(outputs, past, append=outputs, layout=layout)
            past, extras = attended.state, attended.extras
            read = torch.cat([self.look.predicting(outputs), attended.context.to(outputs.dtype)], -1)
        elif self.look is not None:
            read, past = self.look(outputs, past, layout)
        return Features(self.noise(self.readout(read)), RecurrentLanguageState(layers, past), extras)


class RecurrentLanguageModelFamily(LanguageModelFamily):
    """A recurrent language model, plain or with attention to its own past states (Daniluk et al. 2017).

    style: what the output reads. plain: the state, h̃ = tanh(W h); attention: the state and what attention finds among earlier
        states, h̃ = tanh(W [r; h]); ngram: parts of the last states
    dim: width of the states
    layers: number of recurrent layers
    attention: attention to earlier states, in the style attention. key_value is the published one: parts 1, 2 or 3, and span,
        the number of states it attends to
    ngram: N of the style ngram, which reads parts of the last N − 1 states
    heads: attention heads, for attentions that have heads; they share the width
    attention_dropout: dropout rate of attention weights
    share_embeddings: one table for input and output
    """

    def __init__(
        self,
        *,
        recurrence: RecurrentOptions,
        style: Literal["plain", "attention", "ngram"] = "attention",
        dim: PositiveInt = 256,
        layers: PositiveInt = 1,
        attention: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "key_value", "span": 5},  # noqa: B006
        ngram: Annotated[int, Field(ge=2)] = 4,
        heads: PositiveInt = 1,
        attention_dropout: Rate = 0.0,
        share_embeddings: bool = True,
    ) -> None:
        self.options, self.style, self.dim, self.layers, self.ngram = recurrence, style, dim, layers, ngram
        self.attention, self.share = attention, share_embeddings
        self.site = Site("causal", dim, heads, dropout=attention_dropout, predicts=True)

    def build(self, sizes: Sizes) -> LanguageModel:
        options, width = self.options, self.options.embedding or self.dim
        tables = DecoderSite(sizes.target, 0, tied=self.share).tables(width)
        stack = RecurrentStack(options.cell, width, self.dim, self.layers, options.noise(), residual=options.residual)
        look: Attention | StateNGram | None = None
        if self.style == "attention":
            look = build("weft.attention:ATTENTIONS", self.attention, self.site, where="model.attention")
        elif self.style == "ngram":
            look = StateNGram(self.dim, self.ngram - 1)
        return LanguageModel(RecurrentLanguageDecoder(tables, stack, look), "none")
