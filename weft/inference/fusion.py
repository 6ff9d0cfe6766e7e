"""Fusion: another model takes part in every step of a search."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import NonNegativeFloat

from weft.errors import ConfigError, RunError
from weft.models.base import Model
from weft.models.fusion import Fused
from weft.models.language import LanguageModel

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
