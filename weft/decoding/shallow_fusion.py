"""Shallow fusion (Gülçehre et al. 2015): a language model of the target language takes part in every step of a search.

Shapes: B rows · T target positions · V vocabulary.
"""

from collections.abc import Callable

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from weft.data.batch import BOS, EOS, Layout
from weft.errors import ConfigError, RunError
from weft.layers.decoder_state import State
from weft.models.base import Decoder, Encoded, HiddenStates, Model, least
from weft.models.ensembles_and_wrapped_decoders import WrappedDecoder
from weft.models.language_model import LanguageModel


class FusedDecoder(WrappedDecoder):
    """Scores log p(y) by the decoder + weight · log p(y) by a language model. These scores are not normalised.

    line_end: the token that separates lines in the language model's text. It stands for BOS and EOS, which it has never read.
    """

    def __init__(self, decoder: Decoder, language: LanguageModel, weight: float, line_end: int) -> None:
        super().__init__(decoder)
        self.language, self.weight, self.line_end, self.scores = language, weight, line_end, True
        self.max_length = least(decoder.max_length, language.max_target)

    def init_state(self, source: Encoded, *, room: int | None = None) -> list[State]:
        nothing = self.language.nothing(source.memory.size(0))
        return [self.decoder.init_state(source, room=room), self.language.decoder.init_state(nothing, room=room)]

    def hidden_states(self, tokens: Tensor, state: list[State], layout: Layout | None = None) -> HiddenStates:
        decoded = self.decoder(tokens, state[0], layout)
        read = self.language.decoder(tokens.masked_fill(tokens == BOS, self.line_end), state[1], layout)
        likely = read.logits.float().log_softmax(-1)
        likely = torch.cat([likely[..., :EOS], likely[..., self.line_end, None], likely[..., EOS + 1 :]], -1)
        return HiddenStates(
            self.decoder.token_scores(decoded.logits) + self.weight * likely, [decoded.state, read.state], decoded.extras
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.clone()  # since logits belong to the caller

    def inner_state(self, state: list[State]) -> State:
        return state[0]

    def among(self, tokens: Tensor) -> nn.Module:
        return Decoder.among(self, tokens)  # its output is no single layer


class Fused(Model):
    """A model whose decoder is fused with a language model over the same target vocabulary."""

    def __init__(self, model: Model, language: LanguageModel, weight: float, line_end: int) -> None:
        super().__init__(model.encoder, FusedDecoder(model.decoder, language, weight, line_end))
        self.max_source = model.max_source


OpenLanguage = Callable[[str], tuple[LanguageModel, int]]
"""Opens the language model in a run folder, over the target vocabulary; and its token for the end of a line."""


def no_fusion(open_language: OpenLanguage | None) -> None:
    """The model decodes by itself."""


class ShallowFusion:
    """Adds the log-probability of a language model, times a weight, to that of the model (Gülçehre et al. 2015).

    run: folder of the language model, trained with data.tokenizer_of
    weight: factor of its log-probabilities
    """

    def __init__(self, open_language: OpenLanguage | None, *, run: str, weight: NonNegativeFloat = 0.2) -> None:
        if open_language is None:
            raise ConfigError("decode.fusion: a language model cannot be opened here; set decode.fusion: none")
        self.weight = weight
        try:
            self.language, self.line_end = open_language(run)
        except RunError as error:
            raise RunError(f"decode.fusion.run: {error}") from None

    def __call__(self, model: Model) -> Model:
        if model.copies:
            raise ConfigError("decode.fusion: a model that copies source words cannot be fused; set it to none")
        return Fused(model, self.language, self.weight, self.line_end).eval()
