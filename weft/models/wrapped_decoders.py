"""Decoders that wrap other decoders, and two of them: ensembles of models, and the restriction to a shortlist.

The others are with what they are for: the coverage penalty, noisy decoding and shallow fusion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.layers.decoder_state import State
from weft.models.base import Decoder, Encoded, Encoder, HiddenStates, Model, least

T = TypeVar("T")


class WrappedDecoder(Decoder):
    """A decoder that changes what others read, remember or write. What it does not override is done by the first of them.

    The contract is that of every decoder. Above all, logits belong to the caller: a search changes them in place, so `logits`
    must not return its argument. The others are never changed, since other searches may use them at the same time.
    """

    def __init__(self, *decoders: Decoder) -> None:
        super().__init__()
        self.decoders, self.dim, self.scores = nn.ModuleList(decoders), decoders[0].dim, decoders[0].scores
        self.max_length = least(*(decoder.max_length for decoder in decoders))

    @property
    def decoder(self) -> Decoder:
        return cast(Decoder, self.decoders[0])

    def init_state(self, source: Encoded, *, room: int | None = None) -> State:
        return self.decoder.init_state(source, room=room)

    def hidden_states(self, tokens: Tensor, state: State, layout: Layout | None = None) -> HiddenStates:
        return self.decoder.hidden_states(tokens, state, layout)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)


class EnsembleEncoder(Encoder):
    """Each model encodes the source; the results are the parts of one `Encoded`."""

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.width = encoders[0].width

    def forward(self, source: Source) -> Encoded:
        parts = [encoder(source) for encoder in self.encoders]
        return Encoded(parts[0].memory, parts[0].layout, parts=parts)


class EnsembleDecoder(WrappedDecoder):
    """The mean of the models' probabilities. Its hidden states are the logarithms of their sums."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        super().__init__(*decoders)

    def init_state(self, source: Encoded, *, room: int | None = None) -> list[State]:
        return [decoder.init_state(part, room=room) for decoder, part in self._with(source.parts)]

    def hidden_states(self, tokens: Tensor, state: list[State], layout: Layout | None = None) -> HiddenStates:
        steps = [decoder(tokens, mine, layout) for decoder, mine in self._with(state)]
        logp = torch.stack([step.logits.float().log_softmax(-1) for step in steps])
        return HiddenStates(logp.logsumexp(0), [step.state for step in steps])

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden - math.log(len(self.decoders))

    def _with(self, values: Sequence[T]) -> list[tuple[Decoder, T]]:
        return [(cast(Decoder, decoder), value) for decoder, value in zip(self.decoders, values, strict=True)]


class Ensemble(Model):
    """Models over the same vocabularies, of any families."""

    def __init__(self, models: Sequence[Model]) -> None:
        decoder = EnsembleDecoder([model.decoder for model in models])
        super().__init__(EnsembleEncoder([model.encoder for model in models]), decoder)
        self.copies = models[0].copies
        self.max_source = least(*(model.max_source for model in models))
        self.max_target = least(*(model.max_target for model in models))


class ShortlistDecoder(WrappedDecoder):
    """A decoder restricted to the tokens `ids` [N], to save work in its output layer; its token n is token ids[n]."""

    def __init__(self, decoder: Decoder, ids: Tensor) -> None:
        super().__init__(decoder)
        self.ids, self.output = ids, decoder.among(ids)

    def hidden_states(self, tokens: Tensor, state: State, layout: Layout | None = None) -> HiddenStates:
        return self.decoder.hidden_states(self.ids[tokens], state, layout)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.output(hidden)
        return logits


@dataclass(frozen=True)
class BatchVocabulary:
    """The vocabulary of a batch: ids [N] in ascending order, so that the special ones keep their numbers.

    bias [G, N]: 0 where a sentence may use a token, −inf elsewhere.
    """

    ids: Tensor
    bias: Tensor

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        known: NDArray[np.int64] = self.ids.cpu().numpy()
        return known

    def numbers(self, tokens: Sequence[int]) -> list[int]:
        """The indices of these tokens in the vocabulary of the batch."""
        return [int(place) for place in np.searchsorted(self._ids, np.array(tokens, np.int64))]

    def tokens(self, numbers: Sequence[int]) -> list[int]:
        """The tokens at these indices."""
        return [int(self._ids[number]) for number in numbers]
