"""Decoders that wrap other decoders, and two of them: ensembles of models, and the restriction to a shortlist.

The others are with what they are for: the coverage penalty, noisy decoding and shallow fusion.
"""

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

    Wrappers can be nested in any order, because all of them keep this contract:

    - Logits belong to the caller, who changes them in place: `logits` returns a new tensor, never its argument, a view of it,
      or part of a state. The wrapped decoders and their weights are never changed: other searches may use them as well.
    - If `scores` of a wrapped decoder is set, its logits are used as they are; otherwise they are normalised first. A wrapper
      that mixes decoders asks `Decoder.token_scores`, and never calls log_softmax itself. What it gives is `scores` if one of
      its parts is, or if it does not sum to one.
    - The state contains that of the wrapped decoder (`inner_state`), so that selecting rows selects them in both.
    - `ending` adds its own part to that of the wrapped decoder.
    - A wrapper whose `logits` are those of the wrapped decoder can be restricted to a shortlist (`among`) if that one can.
    """

    def __init__(self, *decoders: Decoder) -> None:
        super().__init__()
        self.decoders, self.dim, self.readers = nn.ModuleList(decoders), decoders[0].dim, decoders[0].readers
        self.scores = any(decoder.scores for decoder in decoders)
        self.max_length = least(*(decoder.max_length for decoder in decoders))
        self.max_memory = least(*(decoder.max_memory for decoder in decoders))

    @property
    def decoder(self) -> Decoder:
        return cast(Decoder, self.decoders[0])

    def init_state(self, source: Encoded, *, room: int | None = None) -> State:
        return self.decoder.init_state(source, room=room)

    def hidden_states(self, tokens: Tensor, state: State, layout: Layout | None = None) -> HiddenStates:
        return self.decoder.hidden_states(tokens, state, layout)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def inner_state(self, state: State) -> State:
        """The state of the first wrapped decoder, inside the state of this one: here they are the same."""
        return state

    def ending(self, state: State) -> Tensor | None:
        return self.decoder.ending(self.inner_state(state))

    def among(self, tokens: Tensor) -> nn.Module:
        return self.decoder.among(tokens)


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
        steps = [(decoder, decoder(tokens, mine, layout)) for decoder, mine in self._with(state)]
        scores = torch.stack([decoder.token_scores(step.logits) for decoder, step in steps])
        return HiddenStates(scores.logsumexp(0), [step.state for _, step in steps])

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden - math.log(len(self.decoders))

    def ending(self, state: list[State]) -> Tensor | None:
        """The mean over the models; those without an ending have 0."""
        endings = [decoder.ending(mine) for decoder, mine in self._with(state)]
        known = [each for each in endings if each is not None]
        return torch.stack(known).sum(0) / len(endings) if known else None

    def among(self, tokens: Tensor) -> nn.Module:
        return Decoder.among(self, tokens)  # its output is no single layer

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

    def among(self, tokens: Tensor) -> nn.Module:
        return self.decoder.among(self.ids[tokens])


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
