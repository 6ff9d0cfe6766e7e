"""Prefix language models: one stack reads the source and writes the target (Dong et al. 2019; Raffel et al. 2020).

A source token attends to the whole source, a target token to the whole source and to the target tokens before it: the mask
for sequence-to-sequence tasks of UniLM. Because no source token sees the target, the source is read first, as by an encoder,
and each layer keeps its keys and values for the target.

Shapes: G sources · B rows · S source positions · T target positions · D width.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attention, SelfAttention, combine_packing
from weft.attention.mixers import build_self
from weft.config.registry import Among
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State, grow, share_common
from weft.layers.embeddings_and_rotary_positions import TokenEmbedding, token_positions
from weft.layers.linear_norm_dropout import dropout
from weft.models.base import DecoderSite, Encoded, HiddenStates, LinearDecoder, Model, Sizes, least
from weft.models.encoder_decoder import ModelFamily, VectorEncoder
from weft.models.frontends.base import FrontendSite, TokenFrontend
from weft.models.language_model import LanguageBlock
from weft.models.transformer_blocks import EncoderLayer

SOURCE, TARGET = 0, 1
"""The segments of a row, each with a learned vector."""


@dataclass
class PrefixState:
    """The states of the layers, fed [B]: tokens of source and target that each row has consumed, and the room for the source.

    A search knows of the target alone when it grows the state, so the room for the source is added here.
    """

    own: list[State]
    fed: Tensor
    extent: int

    def grow(self, room: int) -> "PrefixState":
        return replace(self, own=grow(self.own, room + self.extent))


class PrefixDecoder(LinearDecoder):
    """The stack, which writes the target behind the source.

    layers: of causal attention · segments: the vectors of source and target.
    """

    cuda_graph_safe = True

    def __init__(
        self, embedding: TokenEmbedding, segments: nn.Embedding, layers: list[EncoderLayer], norm: nn.Module, output: nn.Linear
    ) -> None:
        super().__init__()
        self.embedding, self.segments, self.norm, self.output = embedding, segments, norm, output
        self.layers, self.repeated = nn.ModuleList(layers), layers
        self.dim = self.hidden = output.in_features
        self.readers = len(layers)

    def init_state(self, source: Encoded, *, room: int | None = None) -> PrefixState:
        rows, extent, _ = source.memory.shape
        room = None if room is None else room + extent
        own: list[State] = []
        for layer, below in zip(cast(Iterable[EncoderLayer], self.layers), source.layers, strict=True):
            attention = cast(SelfAttention, layer.mixer).attention
            own.append(attention.init_state(layer.around_mixer.prenorm(below), source.layout, rows=rows, room=room))
        return PrefixState(share_common(own), source.lengths, extent)

    def hidden_states(self, tokens: Tensor, state: PrefixState, layout: Layout | None = None) -> HiddenStates:
        extras: dict[str, Tensor] = {}
        x = self.embedding(tokens, token_positions(tokens, layout) + state.fed[:, None])
        x = x + self.segments.weight[TARGET].to(x.dtype)
        own: list[State] = []
        for layer, before in zip(cast(Iterable[EncoderLayer], self.layers), state.own, strict=True):
            x, after = layer.read(x, before, layout, extras)
            own.append(after)
        fed = tokens.size(1) if layout is None else layout.lengths
        return HiddenStates(self.norm(x), PrefixState(own, state.fed + fed, state.extent), extras)


class PrefixEncoder(VectorEncoder):
    """The same stack over the source, whose tokens see each other in both directions. Its weights are those of the decoder."""

    cuda_graph_safe = True

    def __init__(self, decoder: PrefixDecoder, layers: list[EncoderLayer]) -> None:
        super().__init__()
        self.embedding, self.segments, self.norm = decoder.embedding, decoder.segments, decoder.norm
        self.layers, self.repeated = nn.ModuleList(layers), layers
        for mine, theirs in zip(layers, cast(Iterable[EncoderLayer], decoder.layers), strict=True):
            share_weights(mine, theirs)
        self.input_width = self.width = decoder.dim
        self.depth = len(layers)

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        """`Encoded.layers` has the input of every layer, from which the decoder makes keys and values."""
        extras: dict[str, Tensor] = {}
        position = self.embedding.position
        if position is not None:
            x = position.join(x, token_positions(x, layout))
        x = dropout(x, self.embedding.dropout, self.training) + self.segments.weight[SOURCE].to(x.dtype)
        inputs = []
        for layer in cast(Iterable[EncoderLayer], self.layers):
            inputs.append(x)
            x = layer(x, layout, extras)
        return Encoded(self.norm(x), layout, extras, layers=inputs)


def share_weights(layer: nn.Module, other: nn.Module) -> None:
    """Gives a layer the parameters of another, which must have the same names and shapes."""
    shapes = [{name: value.shape for name, value in each.named_parameters()} for each in (layer, other)]
    if shapes[0] != shapes[1]:
        raise ConfigError(
            "model.attention: this attention has other weights where it sees both directions, so that one stack cannot be "
            "encoder and decoder; choose another, such as full"
        )
    for name, module in layer.named_modules():
        module._parameters.update(other.get_submodule(name)._parameters)


class PrefixLanguageModelFamily(ModelFamily):
    """One stack of attention layers that reads the source in both directions and writes the target behind it (UniLM's mask).

    It has half the weights of a Transformer of the same depth on either side. Source and target need one vocabulary.

    layers: number of layers
    attention: self-attention of every layer; positions of the target go on where those of the source end
    scale_embeddings: multiply token embeddings by √dim (Vaswani et al. 2017)
    """

    def __init__(
        self,
        *,
        block: LanguageBlock,
        layers: PositiveInt = 6,
        attention: Annotated[dict[str, Any], Among("weft.attention:ATTENTIONS")] = {"kind": "full"},  # noqa: B006
        scale_embeddings: bool = True,
    ) -> None:
        self.block, self.layers, self.attention = block, layers, attention
        self.scale = None if scale_embeddings else 1.0

    def build(self, sizes: Sizes) -> Model:
        if not sizes.shared:
            raise ConfigError(
                "model.kind: prefix_language_model reads source and target with one table of embeddings; set "
                "data.shared_vocabulary: true"
            )
        block, dim = self.block, self.block.dim
        front = TokenFrontend(FrontendSite(sizes, dim, self.scale))
        _, output = DecoderSite(sizes.target, dim, source=front).tables(dim)
        embedding = TokenEmbedding(front.table, block.make_position(), block.dropout, self.scale)
        above, below = ([EncoderLayer(block, mixer) for mixer in self._mixers(use)] for use in ("causal", "encoder"))
        segments = nn.Embedding(2, dim)
        nn.init.normal_(segments.weight, std=dim**-0.5)
        decoder = PrefixDecoder(embedding, segments, above, block.final_norm(), output)
        encoder = PrefixEncoder(decoder, below)
        mixers = [layer.mixer for layer in (*above, *below)]
        decoder.max_length = least(block.positions, *(each.max_length for each in mixers))
        encoder.max_length = decoder.max_length
        combine_packing(encoder, [layer.mixer for layer in below])
        encoder.attach(front)
        return PrefixLanguageModel(encoder, decoder)

    def _mixers(self, use: Any) -> list[SelfAttention]:
        made = [build_self(self.attention, self.block.site(use)) for _ in range(self.layers)]
        assert all(isinstance(each, SelfAttention) and isinstance(each.attention, Attention) for each in made)
        return cast(list[SelfAttention], made)


class PrefixLanguageModel(Model):
    """A prefix language model as an encoder and a decoder with the same weights."""

    def __init__(self, encoder: PrefixEncoder, decoder: PrefixDecoder) -> None:
        super().__init__(encoder, decoder)
        self.supports_packing = False  # the target of a packed row would see the sources of its neighbours
