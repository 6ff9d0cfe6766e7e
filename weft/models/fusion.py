"""Shallow fusion (Gülçehre et al. 2015): a language model of the target language takes part in decoding.

Shapes: B rows · T target positions · V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.batch import BOS, EOS, Layout
from weft.models.base import Decoder, Encoded, Features, Model, least
from weft.models.language import LanguageModel
from weft.state import State


class FusedDecoder(Decoder):
    """Scores log p(y) by the decoder + weight · log p(y) by a language model. They do not sum to one and stay as they are.

    line_end: the token that separates lines in the language model's text. It stands for BOS and EOS, which it has never read.
    """

    scores = True

    def __init__(self, decoder: Decoder, language: LanguageModel, weight: float, line_end: int) -> None:
        super().__init__()
        self.decoder, self.language, self.weight, self.line_end = decoder, language, weight, line_end
        self.dim = decoder.dim
        self.max_length = least(decoder.max_length, language.max_target)

    def start(self, source: Encoded, *, room: int | None = None) -> list[State]:
        nothing = self.language.nothing(source.memory.size(0))
        return [self.decoder.start(source, room=room), self.language.decoder.start(nothing, room=room)]

    def features(self, tokens: Tensor, state: list[State], layout: Layout | None = None) -> Features:
        found = self.decoder(tokens, state[0], layout)
        read = self.language.decoder(tokens.masked_fill(tokens == BOS, self.line_end), state[1], layout)
        likely = read.logits.float().log_softmax(-1)
        likely = torch.cat([likely[..., :EOS], likely[..., self.line_end, None], likely[..., EOS + 1 :]], -1)
        return Features(found.logits.float().log_softmax(-1) + self.weight * likely, [found.state, read.state], found.extras)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.clone()  # a search changes them in place


class Fused(Model):
    """A model whose decoder is fused with a language model over the same target vocabulary."""

    def __init__(self, model: Model, language: LanguageModel, weight: float, line_end: int) -> None:
        super().__init__(model.encoder, FusedDecoder(model.decoder, language, weight, line_end))
        self.max_source = model.max_source
