"""Translation by a model of two languages, in either direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.data.tokenizers.base import Tokenizer
from weft.inference.decoding_options import DecodingOptions
from weft.models.base import Model
from weft.tasks.translation.predictor import TranslationInput, TranslationPredictor
from weft.tasks.translation.segmenter import TextSegment


class BilingualPredictor(TranslationPredictor):
    """Every translation begins with the mark `into` of a language, which is not part of its text."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        resolved: DecodingOptions,
        into: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, tokenizer, tokenizer, resolved, warn=warn)
        self.into = into

    def read(self, inputs: Sequence[TranslationInput], first_line: int) -> list[list[TextSegment]]:
        groups = super().read(inputs, first_line)
        for piece in (piece for pieces in groups for piece in pieces):
            piece.prefix = [self.into, *piece.prefix]
        return groups
