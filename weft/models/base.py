"""What the search loop and the tasks know of a model: an encoder, a decoder, and nothing of their insides.

Shapes: G sources · B = G·K rows · T target positions · S source positions · D width · V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weft.batch import Layout
from weft.errors import ConfigError
from weft.layers.readout import linear_loss, rows_of, smoothed_loss
from weft.state import State


@dataclass(frozen=True)
class Sizes:
    """How many tokens the two vocabularies have, and whether they are one."""

    source: int
    target: int
    shared: bool = False


@dataclass
class Encoded:
    """A source after reading: memory [G, S, D] and its layout; terms as in `Attended`; an ensemble's parts.

    layers: one memory for each layer of the encoder, the lowest first, where the decoder reads others than the last.
    final: what a decoder begins with besides, one row a source: an RNN's last states.
    """

    memory: Tensor
    layout: Layout | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)
    parts: list[Encoded] = field(default_factory=list)
    layers: list[Tensor] = field(default_factory=list)
    final: State = None


@dataclass
class Features:
    """Hidden states [B, T, D] before the output layer, the state after them, and terms [B, T]."""

    hidden: Tensor
    state: State
    terms: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Decoded:
    """logits [B, T, V], the state after them, and terms [B, T]."""

    logits: Tensor
    state: State
    terms: dict[str, Tensor] = field(default_factory=dict)


class Encoder(nn.Module, ABC):
    """Reads a source. width: that of the memory it gives."""

    width: int

    @abstractmethod
    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        """tokens [G, S] → memory."""


class Decoder(nn.Module, ABC):
    """Writes a target. Teacher forcing, a forced prefix and one step are the same call at different lengths."""

    @abstractmethod
    def start(self, source: Encoded, *, room: int | None = None) -> State:
        """The state before the first token. `room` asks for stores of fixed size, as the search loop wants them."""

    @abstractmethod
    def features(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Features:
        """tokens [B, T], any number of them. Tokens that are not `ok` in the layout were never fed."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer, position by position: [B, T, D] → [B, T, V]."""

    def among(self, tokens: Tensor) -> nn.Module:
        """The output layer for these tokens [N] alone: [B, T, D] → [B, T, N]."""
        raise ConfigError(
            f"decode.shortlist: a {type(self).__name__} has no output layer of which a part could be computed; set it to 0"
        )

    def forward(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Decoded:
        found = self.features(tokens, state, layout)
        return Decoded(self.logits(found.hidden), found.state, found.terms)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """(label-smoothed loss, negative log-likelihood) as sums over the labels that are not PAD."""
        return smoothed_loss(self.logits(hidden), labels, smoothing)


class LinearDecoder(Decoder):
    """A decoder whose output layer is one product with a matrix, `output`."""

    output: nn.Linear

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.output(hidden)
        return logits

    def among(self, tokens: Tensor) -> nn.Module:
        return rows_of(self.output, tokens)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return linear_loss(hidden, self.output.weight, labels, smoothing)


class Network(nn.Module, ABC):
    """What training, saving and loading know of a model, whatever its task.

    dim: its width, for schedules that depend on it · max_source, max_target: the most tokens it has positions for · packs:
    whether it works on packed rows · packs_square: whether it does so at the cost of all pairs of their tokens · replays:
    whether a GPU can repeat its work on padded rows, which must follow from their shape alone (`Layout.known`) · copies:
    whether it may write source tokens by their ids, so that unknown ones are given ids of their own (`weft.data.copying`) ·
    compiles: whether torch.compile is known to serve its blocks.
    """

    dim: int
    copies: bool = False
    max_source: int | None = None
    max_target: int | None = None
    packs: bool = False
    packs_square: bool = False
    replays: bool = False
    compiles: bool = False

    @property
    def longest(self) -> int | None:
        """The most tokens it has positions for on both sides; None: any number."""
        return min((most for most in (self.max_source, self.max_target) if most is not None), default=None)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The parts to be compiled. Those that repeat are named one by one, for then what they do is compiled once."""
        return [self]

    def count_parameters(self) -> int:
        """Trained numbers, those shared between parts counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Model(Network):
    """An encoder and a decoder that belong together."""

    encoder: Encoder
    decoder: Decoder

    def forward(self, source: Tensor, source_layout: Layout | None, target: Tensor, target_layout: Layout | None) -> Features:
        """Teacher forcing: the hidden states from which each next target token is to be guessed.

        Terms of the encoder, which are over source positions, come under "encoder.…".
        """
        encoded = self.encode(source, source_layout)
        found = self.decoder.features(target, self.decoder.start(encoded), target_layout)
        for name, value in encoded.terms.items():
            found.terms[f"encoder.{name}"] = value
        return found

    def encode(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        encoded: Encoded = self.encoder(tokens, layout)
        return encoded


def with_source(network: Network, where: str) -> Model:
    """The network, if it reads a source and writes a target; otherwise an error about the key `where`."""
    if isinstance(network, Model):
        return network
    raise ConfigError(
        f"{where}: a {type(network).__name__} has no encoder to read a source with; name a model with an encoder and a "
        "decoder, such as transformer"
    )
