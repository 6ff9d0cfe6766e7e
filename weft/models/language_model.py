"""Language models: decoders without a source, and those made of causal Transformer blocks.

Shapes: B rows · T positions · M remembered positions · D width of the model.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.mixers import build_self
from weft.data.batch import Layout, Source
from weft.layers.decoder_state import State, share_common
from weft.layers.embeddings_and_rotary_positions import PositionKind, TokenEmbedding, token_positions
from weft.layers.feedforward import Activation
from weft.layers.kernels.cpp_plan import PlanBuilder
from weft.models.base import DecoderSite, Encoded, Encoder, HiddenStates, LinearDecoder, Network, Sizes, least
from weft.models.encoder_decoder import ModelFamily
from weft.models.transformer_blocks import Block, EncoderLayer, SelfSlots, StackState, in_turn


class SourcelessDecoder(LinearDecoder):
    """A decoder whose source only says how many rows there are (`LanguageModel.nothing`)."""

    @abstractmethod
    def read(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[HiddenStates, list[Tensor]]:
        """`hidden_states`, and the inputs [B, T, D] of every layer for `recall`."""

    @abstractmethod
    def recall(self, memory: Sequence[Tensor]) -> State:
        """The state after an earlier segment, from the inputs [B, M, D] of every layer."""

    def hidden_states(self, tokens: Tensor, state: State, layout: Layout | None = None) -> HiddenStates:
        return self.read(tokens, state, layout)[0]


class LanguageModel(Network):
    """A decoder without a source. position: the absolute positions it uses."""

    decoder: SourcelessDecoder
    cuda_graph_safe = True

    def __init__(self, decoder: SourcelessDecoder, position: PositionKind) -> None:
        super().__init__()
        self.decoder, self.position = decoder, position
        self.dim, self.max_target = decoder.dim, decoder.max_length

    def nothing(self, rows: int) -> Encoded:
        """The empty source that the decoder starts from."""
        return Encoded(torch.empty(rows, 0, self.dim, device=self.device))

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> HiddenStates:
        """Hidden states from which each next token is predicted, for rows that begin here."""
        return self.decoder.hidden_states(tokens, self.decoder.init_state(self.nothing(tokens.size(0))), layout)


class LanguageModelEncoder(Encoder):
    """A language model as an encoder, for a classifier (Howard & Ruder 2018): each vector has read the tokens up to its own."""

    cuda_graph_safe = True

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.decoder, self.width, self.max_source = model.decoder, model.decoder.hidden, model.max_target

    def forward(self, source: Source) -> Encoded:
        empty = Encoded(torch.empty(source.values.size(0), 0, self.decoder.dim, device=source.values.device))
        features = self.decoder.hidden_states(source.values, self.decoder.init_state(empty), source.layout)
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

    def init_state(self, source: Encoded, *, room: int | None = None) -> StackState:
        rows = source.memory.size(0)
        own = share_common([layer.mixer.init_state(rows=rows, room=room) for layer in self._each()], self.kinds)
        return StackState(own, [], self._zeros(rows))

    def recall(self, memory: Sequence[Tensor]) -> StackState:
        own = [layer.mixer.recall(layer.around_mixer.prenorm(each)) for layer, each in zip(self._each(), memory, strict=True)]
        return StackState(own, [], self._zeros(memory[0].size(0)))

    def read(self, tokens: Tensor, state: StackState, layout: Layout | None = None) -> tuple[HiddenStates, list[Tensor]]:
        extras: dict[str, Tensor] = {}
        x = self.embedding(tokens, token_positions(tokens, layout) + state.fed[:, None])
        own: list[State] = []
        inputs: list[Tensor] = []
        for layer, before in zip(self._each(), state.own, strict=True):
            inputs.append(x)
            x, after = layer.read(x, before, layout, extras)
            own.append(after)
        fed = tokens.size(1) if layout is None else layout.lengths
        return HiddenStates(self.norm(x), StackState(own, [], state.fed + fed), extras), inputs

    def plan(self, draft: PlanBuilder) -> None:
        draft.stack(self.layers, self.norm, draft.part(self.embedding))

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
