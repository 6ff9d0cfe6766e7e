"""A Transformer decoder that writes all target tokens at once (Gu et al. 2018; Ghazvininejad et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.mixers import build_self
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.layers.embedding import first_positions
from weft.layers.kernels.cpp_plan import Opening, PlanBuilder
from weft.layers.norm_and_dropout import dropout, residual
from weft.layers.positions import token_positions
from weft.models.base import DecoderSite, Encoded, HiddenStates, least
from weft.models.nonautoregressive import LengthPredictor, NonAutoregressiveDecoder, TargetCanvas
from weft.models.transformer_blocks import CrossSlots, DecoderLayer, SelfSlots, TransformerBlock, in_turn


@dataclass
class CanvasState:
    """The state of each layer's attention to the source, and the inputs of blanks [B, T, D], if not one embedding."""

    source: list[State]
    inputs: Tensor | None = None


class NonAutoregressiveTransformerDecoder(NonAutoregressiveDecoder):
    """A stack of layers in which every target position attends to all others and to the source.

    layers: number of layers
    mixer: how target positions are mixed: self-attention of any kind that sees both directions, or another mixer; the layers
      take the entries of a list in turn
    cross: attention to the source; the layers take the entries of a list in turn
    canvas: how many positions there are, and what they read before anything is written
    """

    def __init__(
        self,
        site: DecoderSite,
        *,
        block: TransformerBlock,
        layers: PositiveInt = 4,
        mixer: SelfSlots = {"kind": "full"},  # noqa: B006
        cross: CrossSlots = {"kind": "full"},  # noqa: B006
        canvas: Annotated[dict[str, Any], Among("weft.models:CANVASES")] = {"kind": "upsampled"},  # noqa: B006
    ) -> None:
        super().__init__()
        if block.reversible or site.paired:
            reason = "reversible layers" if block.reversible else "an encoder with separate keys and values, such as convs2s"
            raise ConfigError(f"model.decoder: parallel does not support {reason}; set reversible: false, or choose another")
        table, output = site.tables(block.dim)
        own = replace(block.site("encoder"), side="target")
        source = replace(block.site("cross"), memory=None if site.memory == block.dim else site.memory, side="target")
        mixers, crosses = in_turn(mixer, layers, "mixer"), in_turn(cross, layers, "cross")
        made = [
            DecoderLayer(block, build_self(mine, own), build("weft.attention:ATTENTIONS", other, source), causal=False)
            for mine, other in zip(mixers, crosses, strict=True)
        ]
        self.table, self.position, self.dropout = table, block.make_position(), block.dropout
        self.canvases: LengthPredictor = build(
            "weft.models:CANVASES", canvas, site.memory, block.dim, where="model.decoder.canvas"
        )
        if self.canvases.alike and self.position is None:
            raise ConfigError(
                "model.decoder.position: none would make all blanks of this canvas alike; set it to sinusoidal or learned"
            )
        self.layers, self.output, self.blank = nn.ModuleList(made), output, site.vocabulary - 1
        self.norm, self.post = block.final_norm(), block.norm == "post"
        self.dim, self.hidden, self.readers, self.repeated = block.dim, block.dim, layers, made
        self.max_length = least(block.positions, *(each.mixer.max_length for each in made))
        fits = None if self.max_length is None else self.canvases.longest_source(self.max_length)
        self.max_memory = least(fits, *(each.cross.max_length for each in made))
        self.cuda_graph_safe = True

    def init_state(self, source: Encoded, *, room: int | None = None) -> CanvasState:
        layers = cast(Iterable[DecoderLayer], self.layers)
        return CanvasState([each.cross.init_state(source.memory, source.layout) for each in layers])

    def open(self, source: Encoded, canvas: TargetCanvas) -> CanvasState:
        return replace(self.init_state(source), inputs=self.canvases.inputs(source, canvas))

    def embed(self, tokens: Tensor, state: CanvasState, layout: Layout | None = None) -> Tensor:
        x: Tensor = self.table(tokens) * self.dim**0.5
        if state.inputs is not None:
            x = torch.where((tokens == self.blank)[..., None], state.inputs.to(x.dtype), x)
        return x if self.position is None else x + self.position(token_positions(tokens, layout)).to(x.dtype)

    def hidden_states(self, tokens: Tensor, state: CanvasState, layout: Layout | None = None) -> HiddenStates:
        extras: dict[str, Tensor] = {}
        x = dropout(self.embed(tokens, state, layout), self.dropout, self.training)
        if self.post:
            x = residual(x, self.training)
        for layer, cross in zip(cast(Iterable[DecoderLayer], self.layers), state.source, strict=True):
            x, _, _ = layer(x, (layer.mixer.init_state(rows=x.size(0)), None), cross, layout, extras)
        return HiddenStates(self.norm(x), state, extras)

    def plan(self, draft: PlanBuilder) -> None:
        if self.canvases.holds == "path":  # one pass over blanks alone
            x = draft.part(self.canvases, first_positions(self.position))
        else:
            draft.opens(lambda decoder, state: Opening(state.source))
            x = draft.given(self.dim)
        for layer in self.layers:
            x = draft.part(layer, x)
        draft.norm(self.norm, x)
