"""Recurrent language models: plain, with attention to their own past, and over n-grams of states (Daniluk et al. 2017).

Shapes: B rows · T positions · M remembered positions · E width of embeddings · D width of states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, Site
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State
from weft.layers.embedding import TokenEmbedding
from weft.layers.kernels.cpp_plan import NotPlanned, PlanBuilder
from weft.layers.norm_and_dropout import Rate
from weft.layers.recurrent import Cell, Readout, RecurrentOptions, RecurrentStack
from weft.models.base import DecoderSite, Encoded, Features, Sizes
from weft.models.language_model import LanguageFamily, LanguageModel, SourcelessDecoder

Style = Literal["plain", "attention", "ngram"]


@dataclass
class RecurrentTextState:
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

    def start(self, source: Encoded, *, room: int | None = None) -> RecurrentTextState:
        return self._begin(source.memory.size(0), room)

    def recall(self, memory: Sequence[Tensor]) -> RecurrentTextState:
        return self._read(memory[0], self._begin(memory[0].size(0), None), None).state

    def read(self, tokens: Tensor, state: RecurrentTextState, layout: Layout | None = None) -> tuple[Features, list[Tensor]]:
        x = self.noise(self.embedding(tokens))
        return self._read(x, state, layout), [x]

    def plan(self, draft: PlanBuilder) -> None:
        if self.look is not None:
            raise NotPlanned(type(self.look).__name__)
        states = [draft.state(sum(part.size(1) for part in cell)) for cell in self.stack.start(1)]
        draft.part(self.readout, draft.part(self.stack, draft.part(self.embedding), states))

    def _begin(self, rows: int, room: int | None) -> RecurrentTextState:
        past: State = None
        if isinstance(self.look, Attention):
            past = self.look.start(rows=rows, room=room)
        elif self.look is not None:
            past = self.look.window.start(rows, self.output.weight)
        return RecurrentTextState(self.stack.start(rows), past)

    def _read(self, x: Tensor, state: RecurrentTextState, layout: Layout | None) -> Features:
        outputs, layers = self.stack(x, state.layers, layout)
        read, past, extras = outputs, state.past, {}
        if isinstance(self.look, Attention):
            found = self.look(outputs, past, append=outputs, layout=layout)
            past, extras = found.state, found.extras
            read = torch.cat([self.look.predicting(outputs), found.context.to(outputs.dtype)], -1)
        elif self.look is not None:
            read, past = self.look(outputs, past, layout)
        return Features(self.noise(self.readout(read)), RecurrentTextState(layers, past), extras)


class RecurrentLanguageModelFamily(LanguageFamily):
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
        style: Style = "attention",
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
