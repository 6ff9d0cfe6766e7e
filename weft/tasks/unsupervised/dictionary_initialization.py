"""What a model of two languages begins with: translations word by word and word vectors, from its training texts alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from torch import Tensor

from weft.data.corpus_cache import find_or_build
from weft.data.tokenizers.base import Tokenizer
from weft.data.word_vectors.bilingual_dictionary import channel, map_texts
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.token_embeddings import token_vectors
from weft.tasks.unsupervised.data import Monolingual, Translate

METHOD = 4
"""How dictionaries are learnt. Prepared data with translations by another method is not used."""


@dataclass(frozen=True)
class DictionaryInitialization:
    """The words of two texts, learnt when they are needed and once for the same texts.

    languages: of the texts · adversarial: see `map_texts` · cache: the folder that keeps what was learnt.
    """

    texts: Sequence[Monolingual]
    languages: Sequence[str]
    adversarial: bool
    cache: Path
    tell: Callable[[str], None]

    @property
    def key(self) -> list[Any]:
        """What the words follow from."""
        return [METHOD, *["adversarial"] * self.adversarial, *(text.digest() for text in self.texts)]

    @cached_property
    def mapped(self) -> MappedVectors:
        """The vectors of both languages in one space."""
        return find_or_build(self.cache, ["mapped", *self.key], MappedVectors.load, self._map)

    def _map(self, folder: Path) -> None:
        self.tell("learning word vectors of both languages and a map between them")
        first, second = (text.lines() for text in self.texts)
        map_texts(first, second, adversarial=self.adversarial).save(folder)

    def translator(self) -> Translate:
        """Translates word by word. Words are drawn, so that the model reads most words of a language; draws follow from the
        text."""
        known = dict(zip(self.languages, (channel(self.mapped), channel(self.mapped.turned())), strict=True))
        return lambda text, language: known[language].translate(text, Random(text))

    def vectors(self, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
        """The tokens that are whole words of either language, and their vectors in the common space."""
        sides = self.mapped.source, self.mapped.target
        words = [word for side in sides for word in side.words]
        return token_vectors(words, np.concatenate([side.vectors for side in sides]), tokenizer)
