"""Funnel-Transformer: an encoder whose sequence becomes shorter from block to block (Dai et al. 2020).

Shapes: G sources · S positions · D width.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, add_extras
from weft.attention.mixers import build_self
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.layers.embeddings_and_rotary_positions import token_positions
from weft.layers.linear_norm_dropout import dropout
from weft.models.base import Encoded, least, times
from weft.models.encoder_decoder import VectorEncoder
from weft.models.frontends.base import Frontend
from weft.models.transformer_blocks import Block, EncoderLayer, Residual, SelfSlots, in_turn

STRIDE = 2


def pool_pairs(x: Tensor, layout: Layout | None) -> tuple[Tensor, Layout | None]:
    """The mean of each pair of neighbours [G, ⌈S / 2⌉, D], and its layout; of an odd number, the last one alone."""
    real = x.new_ones(1, x.size(1), 1) if layout is None else layout.mask[..., None].to(x.dtype)
    odd = (0, 0, 0, x.size(1) % STRIDE)
    pairs = F.pad(torch.where(real > 0, x, 0.0), odd).unflatten(1, (-1, STRIDE))
    counts = F.pad(real, odd).unflatten(1, (-1, STRIDE)).sum(2)
    pooled = pairs.sum(2) / counts.clamp_min(1)
    return pooled, None if layout is None else layout.shorten(STRIDE, pooled.size(1))


class ShorteningLayer(nn.Module):
    """h' = pool(h), then h' + attention(query h', keys and values h), then the feed-forward network.

    The keys and values are those of the longer sequence, so that the pooling alone decides nothing but the queries.
    """

    def __init__(self, block: Block, attention: Attention) -> None:
        super().__init__()
        self.attention, self.around = attention, Residual(block)
        self.project = nn.Identity() if attention.context_width == block.dim else nn.Linear(attention.context_width, block.dim)
        self.network = block.network(causal=False)
        self.around_network = None if self.network is None else Residual(block)

    def forward(self, x: Tensor, layout: Layout | None, extras: dict[str, Tensor]) -> tuple[Tensor, Layout | None]:
        """x [G, S, D] → [G, ⌈S / 2⌉, D] and its layout."""
        memory = self.attention.init_state(self.around.prenorm(x), layout)
        x, layout = pool_pairs(x, layout)
        attended = self.attention(self.around.prenorm(x), memory, layout=layout)
        add_extras(extras, attended.extras)
        x = self.around.add_residual(x, self.project(attended.context))
        if self.network is not None and self.around_network is not None:
            x = self.around_network.add_residual(x, self.network.run(self.around_network.prenorm(x), None, layout)[0])
        return x, layout


class FunnelEncoder(VectorEncoder):
    """Blocks of self-attention layers, each block over half as many positions as the one before it (Dai et al. 2020).

    The first layer of every block but the first shortens: its queries are the means of pairs of neighbours, while its keys and
    values are all positions. The memory has one vector for every 2^(blocks − 1) positions; models that need one for each
    position refuse it.

    blocks: number of layers of each block
    mixer: self-attention, or another mixer, of the layers that do not shorten; they take the entries of a list in turn
    shorten: attention of the layers that shorten
    """

    cuda_graph_safe = True

    def __init__(
        self,
        *,
        block: Block,
        blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (2, 2),
        mixer: SelfSlots = {"kind": "full"},  # noqa: B006
        shorten: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "full"},  # noqa: B006
    ) -> None:
        super().__init__()
        site, first = block.site("encoder"), {sum(blocks[:place]) for place in range(1, len(blocks))}
        layers: list[EncoderLayer | ShorteningLayer] = []
        for number, kind in enumerate(in_turn(mixer, sum(blocks), "mixer")):
            if number in first:
                attention = build("weft.attention:ATTENTIONS", shorten, block.site("cross"), where="model.encoder.shorten")
                layers.append(ShorteningLayer(block, attention))
            else:
                layers.append(EncoderLayer(block, build_self(kind, site)))
        self.position, self.dropout, self.layers = block.make_position(), block.dropout, nn.ModuleList(layers)
        self.norm, self.stride = block.final_norm(), STRIDE ** len(first)
        self.input_width = self.width = block.dim
        self.depth = 1
        limits, distance = [block.positions], 1
        for layer in layers:
            own = layer.attention if isinstance(layer, ShorteningLayer) else layer.mixer
            limits.append(times(own.max_length, distance))
            distance *= STRIDE if isinstance(layer, ShorteningLayer) else 1
        self.max_length = least(*limits)

    def attach(self, front: Frontend) -> None:
        super().attach(front)
        self.shortens *= self.stride

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        extras: dict[str, Tensor] = {}
        if self.position is not None:
            x = self.position.join(x, token_positions(x, layout))
        x = dropout(x, self.dropout, self.training)
        for layer in self.layers:
            if isinstance(layer, ShorteningLayer):
                x, layout = layer(x, layout, extras)
            else:
                x = cast(EncoderLayer, layer)(x, layout, extras)
        memory = self.norm(x)
        return Encoded(memory, layout, extras, layers=[memory])
