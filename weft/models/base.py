"""Interfaces of models: encoders, decoders, and the networks made of them.

Shapes: G sources · B = G·K rows · T target positions · S source positions · D width · V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from weft.attention.base import combine_packing
from weft.config.plugins import RenamedMembers
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.layers.embeddings_and_rotary_positions import EmbeddingTables, GivenVectors, embedding_table
from weft.layers.linear_norm_dropout import linear_with
from weft.layers.step_recorder import record, recording
from weft.losses.cross_entropy import (
    fix_unwritten,
    label_smoothed_cross_entropy,
    linear_cross_entropy,
    restrict_outputs,
    unwritten_fixed,
)

Reads = Literal["tokens", "words", "frames", "image", "sentences"]
"""Kinds of source, with the shapes that `Source` describes."""

Writes = Literal["tokens", "vectors"]
"""Kinds of target: tokens of a vocabulary, or vectors such as frames of sound, which have neither embeddings nor a softmax."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the data gives to a model.

    source: source vocabulary, features per frame, or channels of an image, depending on `reads` · target: target vocabulary ·
    shared: whether source and target have one vocabulary · pieces: vocabulary of the subwords or characters of words · writes:
    the kind of target; that of vectors has no vocabulary, and `target` is the width of the decoder's outputs.
    """

    source: int
    target: int = 0
    shared: bool = False
    reads: Reads = "tokens"
    pieces: int = 0
    writes: Writes = "tokens"


@dataclass
class Encoded:
    """An encoded source: memory [G, S, D] and its layout; extras as in `Attended`; the parts of an ensemble.

    layers: the memory of each encoder layer, lowest first, for decoders that read more than the last one.
    final: the state a decoder may start from, one row per source: the last states of an RNN.
    """

    memory: Tensor
    layout: Layout | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
    parts: list[Encoded] = field(default_factory=list)
    layers: list[Tensor] = field(default_factory=list)
    final: State = None

    @property
    def mask(self) -> Tensor:
        """[G, S] bool: which positions of the memory are not padding."""
        return torch.ones_like(self.memory[..., 0], dtype=torch.bool) if self.layout is None else self.layout.mask

    @property
    def lengths(self) -> Tensor:
        """[G]: positions of each memory."""
        rows, extent = self.memory.shape[:2]
        return torch.full((rows,), extent, device=self.memory.device) if self.layout is None else self.layout.lengths

    @property
    def summary(self) -> Tensor:
        """[G, D]: the last state of an encoder that has one, otherwise the mean of the memory."""
        if self.final is not None:
            return self.final[-1][0]
        if self.layout is None:
            return self.memory.mean(1)
        mask = self.mask[..., None]
        return torch.where(mask, self.memory, 0.0).sum(1) / mask.sum(1).clamp_min(1)


@dataclass
class HiddenStates:
    """Hidden states [B, T, D] before the output layer, the state after them, and extras [B, T]."""

    hidden: Tensor
    state: State
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Decoded:
    """logits [B, T, V], the state after them, and extras [B, T]."""

    logits: Tensor
    state: State
    extras: dict[str, Tensor] = field(default_factory=dict)


class Supports(RenamedMembers, nn.Module):
    """A module that says what it supports.

    supports_packing: works on packed rows · packing_is_quadratic: at the cost of all pairs of their tokens · cuda_graph_safe:
    its work on padded rows depends on their shape alone · compiles: torch.compile is known to work on `repeated`.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "packs": "supports_packing",
        "packs_square": "packing_is_quadratic",
        "replays": "cuda_graph_safe",
        "start": "init_state",
        "features": "hidden_states",
    }
    supports_packing: bool = False
    packing_is_quadratic: bool = False
    cuda_graph_safe: bool = False
    compiles: bool = False

    def combine(self, *parts: Supports) -> None:
        """Supports what all of its parts support."""
        combine_packing(self, parts)
        self.cuda_graph_safe, self.compiles = all(part.cuda_graph_safe for part in parts), all(part.compiles for part in parts)


class Component(Supports):
    """A frontend, encoder or decoder. max_length: of its input, in positions · repeated: layers that share one compilation."""

    max_length: int | None = None
    repeated: Sequence[nn.Module] = ()


class Encoder(Component, ABC):
    """Encodes a source. width: of its memory · max_source: the longest source · shortens: source positions per vector ·
    aligned: the memory has one vector for each vector of the frontend, in order."""

    width: int
    max_source: int | None = None
    shortens: int = 1
    aligned: bool = True

    @abstractmethod
    def forward(self, source: Source) -> Encoded:
        """The memory of a source."""


@dataclass(frozen=True)
class DecoderSite:
    """The place of a decoder, as `Site` is that of an attention: its vocabulary and the encoder that it reads.

    memory, depth, finals, paired: of the encoder, see `VectorEncoder` · source: the embedding tables of the source, if the
    target shares them · tied: the output layer shares the target embeddings · writes: see `Sizes`; a decoder that writes
    vectors is fed vectors [B, T, D] in place of tokens, and its output layer has `vocabulary` outputs.
    """

    vocabulary: int
    memory: int
    depth: int = 0
    finals: Sequence[tuple[int, int]] = ()
    paired: bool = False
    source: EmbeddingTables | None = None
    tied: bool = True
    writes: Writes = "tokens"

    def tables(
        self, dim: int, std: float | None = None, *, bias: bool = False, zero_bos: bool = False
    ) -> tuple[nn.Embedding, nn.Linear]:
        """The target embeddings and the output layer, which may have a bias; zero_bos: see `fix_unwritten`."""
        if self.writes == "vectors":
            return cast(nn.Embedding, GivenVectors(dim)), nn.Linear(dim, self.vocabulary)
        table = None if self.source is None else self.source.table
        if table is not None and table.embedding_dim != dim:
            raise ConfigError(
                "model.share_embeddings: all needs source and target embeddings of the same width, "
                f"not {table.embedding_dim} and {dim}; set them alike, or share_embeddings: output"
            )
        table = embedding_table(self.vocabulary, dim, std) if table is None else table
        weight = (table if self.tied else embedding_table(self.vocabulary, dim, std)).weight
        output = linear_with(weight, nn.Parameter(torch.zeros(self.vocabulary)) if bias else None)
        if zero_bos:
            fix_unwritten(table, output)
        return table, output


class Decoder(Component, ABC):
    """Writes a target. Teacher forcing, a forced prefix and a single step are the same call at different lengths.

    dim: width of the model, for learning-rate schedules · hidden: width of its hidden states · readers: layers that attend to
    the source · max_memory: the longest memory it can attend to · parallel: it writes all tokens at once
    (`NonAutoregressiveDecoder`) · scores: its logits are scores, which a search adds up instead of normalising them.
    """

    dim: int
    hidden: int
    readers: int = 1
    parallel: bool = False
    scores: bool = False
    max_memory: int | None = None

    @abstractmethod
    def init_state(self, source: Encoded, *, room: int | None = None) -> State:
        """The state before the first token. `room` preallocates stores of that many tokens, as the search loop needs."""

    @abstractmethod
    def hidden_states(self, tokens: Tensor, state: State, layout: Layout | None = None) -> HiddenStates:
        """Hidden states of any number of tokens [B, T]. Masked positions leave the state unchanged."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer, applied at each position: [B, T, D] → [B, T, V].

        The result belongs to the caller, who may change it in place: it is no view of hidden states, of weights or of a state.
        """

    def token_scores(self, logits: Tensor) -> Tensor:
        """The terms that a search adds up, in float32: log-probabilities or, if they are `scores`, the logits themselves."""
        return logits.float() if self.scores else logits.float().log_softmax(-1)

    def ending(self, state: State) -> Tensor | None:
        """[B], at most 0: added to the score of a hypothesis that ends now; None: nothing is."""
        return None

    def among(self, tokens: Tensor) -> nn.Module:
        """The output layer restricted to the tokens [N]: [B, T, D] → [B, T, N]."""
        raise ConfigError(
            f"decode.shortlist: the output layer of {type(self).__name__} cannot be restricted to a shortlist; set it to 0"
        )

    def forward(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Decoded:
        features = self.hidden_states(tokens, state, layout)
        return Decoded(self.logits(features.hidden), features.state, features.extras)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """(label-smoothed loss, negative log-likelihood), each summed over the labels that are not PAD."""
        return label_smoothed_cross_entropy(self.logits(hidden), labels, smoothing)


class LinearDecoder(Decoder):
    """A decoder whose output layer is a single matrix, `output`, and perhaps a bias.

    zero_bos: the rows of PAD and BOS stay as `fix_unwritten` has set them.
    """

    output: nn.Linear
    zero_bos: bool = False

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.output(hidden)
        if recording():
            self._record_logits(hidden, logits)
        return logits

    def _record_logits(self, hidden: Tensor, logits: Tensor) -> None:
        """Records logits and their probabilities."""
        if hidden.dim() == 2:  # one position per row, as in a search
            hidden, logits = hidden[:, None], logits[:, None]
        axes, chances = "row token vocabulary", logits.float().softmax(-1)
        if type(self.output) is nn.Linear:
            operands = {"W": (self.output.weight, "vocabulary input"), "x": (hidden, "row token input")}
            if self.output.bias is not None:
                operands["b"] = (self.output.bias, "vocabulary")
            formula = "sum(W * x, input)" + ("" if self.output.bias is None else " + b")
            record("logits", logits, axes, formula, self, **operands)
        else:
            record("logits", logits, axes, "", self)
        record("probabilities", chances, axes, "softmax(logits, vocabulary)", self, logits=(logits, axes))

    def among(self, tokens: Tensor) -> nn.Module:
        return restrict_outputs(self.output, tokens)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        weights: Sequence[Tensor] = (self.output.weight, self.output.bias)
        if self.zero_bos:
            weights = [unwritten_fixed(each) for each in weights]
        return linear_cross_entropy(hidden, weights[0], labels, smoothing, bias=weights[1])


class Network(Supports, ABC):
    """A model of any task, as training, saving and loading see it.

    dim: its width, for schedules that depend on it · max_source, max_target: the longest source and target it has positions
    for · copies: it may write source tokens by id, so unknown source words get ids of their own (`weft.data.copy_vocabulary`) ·
    borrowed: names of weights that belong to the run it started from; they are neither trained nor saved again.
    """

    dim: int
    copies: bool = False
    borrowed: frozenset[str] = frozenset()
    max_source: int | None = None
    max_target: int | None = None

    @property
    def max_length(self) -> int | None:
        """The longest text that fits on both sides; None: any length."""
        return least(self.max_source, self.max_target)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def repeated(self) -> Sequence[nn.Module]:
        """The modules to compile. Layers of one kind are listed one by one, since they share one compilation."""
        return [self]

    def count_parameters(self) -> int:
        """Number of parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Model(Network):
    """An encoder and a decoder."""

    encoder: Encoder
    decoder: Decoder

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder, self.dim = encoder, decoder, decoder.dim
        self.max_source = least(encoder.max_source, times(decoder.max_memory, encoder.shortens))
        self.max_target = decoder.max_length
        self.combine(encoder, decoder)

    @property
    def repeated(self) -> Sequence[nn.Module]:
        below, above = self.encoder.repeated, self.decoder.repeated
        return [*below, *above] if below and above else [self]

    def forward(self, source: Source, target: Tensor, target_layout: Layout | None = None) -> HiddenStates:
        """Teacher forcing: the hidden states from which each next target token is predicted.

        Terms of the encoder, which are over source positions, are named "encoder.…".
        """
        encoded = self.encode(source)
        features = self.decoder.hidden_states(target, self.decoder.init_state(encoded), target_layout)
        features.extras |= {f"encoder.{name}": value for name, value in encoded.extras.items()}
        return features

    def encode(self, source: Source) -> Encoded:
        return self.encoder(source)


def least(*limits: int | None) -> int | None:
    """The smallest limit; None means no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def times(limit: int | None, factor: int) -> int | None:
    """A limit multiplied by a factor."""
    return None if limit is None else limit * factor
