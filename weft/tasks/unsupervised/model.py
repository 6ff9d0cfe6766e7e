"""A model of two languages, with one encoder for both and one decoder for both or one for each, and its initialization.

It begins with translations word by word and with word vectors, from its training texts alone.

Shapes: B texts · S source positions · D width of the memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.corpus import find_or_build
from weft.data.phrases.phrase_translation import PhraseTranslator, learn_phrases
from weft.data.tokenizers import Tokenizer
from weft.data.word_vectors.bilingual_dictionary import channel, map_texts
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.vectors import place_vectors, token_tables, token_vectors
from weft.models.base import Decoder, Encoded, Model, Network
from weft.tasks.unsupervised.data import Monolingual, Translate

METHOD, PHRASES = 4, 1
"""The versions of learning dictionaries and phrases. Prepared data with translations of another version is not used."""

SLOPE = 0.2
SMOOTHING = 0.1
"""Of the labels that the discriminator learns."""


@dataclass(frozen=True)
class DictionaryInitialization:
    """The words of two texts, learnt when they are needed and once for the same texts.

    languages: of the texts · adversarial: see `map_texts` · cache: the folder that keeps what was learnt · phrase_rounds: of
    back-translation by phrases, whose translations take the place of those word by word; 0: no phrases.
    """

    texts: Sequence[Monolingual]
    languages: Sequence[str]
    adversarial: bool
    cache: Path
    report: Callable[[str], None]
    phrase_rounds: int = 0

    @property
    def key(self) -> list[Any]:
        """Plain data that determines the words."""
        return [METHOD, *["adversarial"] * self.adversarial, *(text.digest() for text in self.texts)]

    @cached_property
    def mapped(self) -> MappedVectors:
        """The vectors of both languages in one space."""
        return find_or_build(self.cache, ["mapped", *self.key], MappedVectors.load, self._map)

    def _map(self, folder: Path) -> None:
        self.report("learning word vectors of both languages and a map between them")
        first, second = (text.lines() for text in self.texts)
        map_texts(first, second, adversarial=self.adversarial).save(folder)

    @property
    def translator_key(self) -> list[Any]:
        """Plain data that determines the first translations."""
        return [*self.key, *["phrases", PHRASES, self.phrase_rounds] * (self.phrase_rounds > 0)]

    @cached_property
    def phrases(self) -> PhraseTranslator:
        """The phrases of both languages."""
        return find_or_build(self.cache, self.translator_key, PhraseTranslator.load, self._learn_phrases)

    def _learn_phrases(self, folder: Path) -> None:
        names, (first, second) = (self.languages[0], self.languages[1]), (text.lines() for text in self.texts)
        learnt = learn_phrases(
            names, (first, second), rounds=self.phrase_rounds, adversarial=self.adversarial, report=self.report
        )
        learnt.save(folder)

    def translator(self) -> Translate:
        """Translates by phrases or word by word. Words are drawn, so that the model reads most words of a language; draws
        follow from the text."""
        if self.phrase_rounds:
            return self._by_phrases
        known = dict(zip(self.languages, (channel(self.mapped), channel(self.mapped.reversed())), strict=True))
        return lambda pairs: [known[language].translate(text, Random(text)) for text, language in pairs]

    def _by_phrases(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        found: dict[int, str] = {}
        for language, other in (self.languages, self.languages[::-1]):
            rows = [row for row, pair in enumerate(pairs) if pair[1] == language]
            found |= zip(rows, self.phrases.translate([pairs[row][0] for row in rows], other), strict=True)
        return [found[row] for row in range(len(pairs))]

    def vectors(self, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
        """The tokens that are whole words of either language, and their vectors in the common space."""
        sides = self.mapped.source, self.mapped.target
        words = [word for side in sides for word in side.words]
        return token_vectors(words, np.concatenate([side.vectors for side in sides]), tokenizer)

    def place_vectors(self, model: Model, tokenizer: Tokenizer) -> None:
        """Makes the vectors the first embeddings of these tokens."""
        place_vectors(token_tables(model, tokenizer.size).values(), *self.vectors(tokenizer))


class LanguageDiscriminator(nn.Module):
    """Tells from each state of the encoder [B, S, D] which language was read: logits [B, S] of the second language."""

    def __init__(self, width: int, hidden: int = 1024) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, hidden) for size in (width, hidden, hidden))
        self.last = nn.Linear(hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = F.leaky_relu(layer(states), SLOPE)
        logits: Tensor = self.last(states)[..., 0]
        return logits


class BilingualModel(Model):
    """A model whose decoder writes both languages, or with `second` only the first one, while `second` writes the other.

    judge: a discriminator of languages by the states of the encoder, which learns to fool it (Lample et al. 2018).
    """

    def __init__(self, model: Model, second: Decoder | None = None, judge: LanguageDiscriminator | None = None) -> None:
        super().__init__(model.encoder, model.decoder)
        self.second, self.judge = second, judge
        # Not registered. Kept, because recorded searches belong to a model.
        self._others = () if second is None else (Model(model.encoder, second),)

    @property
    def decoders(self) -> Sequence[Decoder]:
        """The decoder of both languages, or one for each."""
        return [self.decoder] if self.second is None else [self.decoder, self.second]

    @property
    def repeated(self) -> Sequence[nn.Module]:
        return [*super().repeated, *(() if self.second is None else self.second.repeated)]

    def writes(self, language: int) -> Model:
        """The model that writes one of the languages, 0 or 1, with the same weights."""
        return self._others[0] if language and self._others else self

    def discriminator_loss(self, encoded: Encoded, language: Tensor) -> Tensor:
        """The discriminator's loss: the cross-entropy of the true languages [B], summed over all states. The encoder gets no
        gradient."""
        assert self.judge is not None
        smooth = SMOOTHING + (1 - 2 * SMOOTHING) * language.to(encoded.memory.dtype)
        return _entropy(self.judge(encoded.memory.detach()), smooth, encoded)

    def confusion_loss(self, encoded: Encoded, language: Tensor) -> Tensor:
        """The encoder's loss: the cross-entropy of the wrong languages. The discriminator gets no gradient."""
        assert self.judge is not None
        fixed = {name: parameter.detach() for name, parameter in self.judge.named_parameters()}
        logits = torch.func.functional_call(self.judge, fixed, (encoded.memory,))
        return _entropy(logits, 1 - language.to(encoded.memory.dtype), encoded)


def _entropy(logits: Tensor, languages: Tensor, encoded: Encoded) -> Tensor:
    each = F.binary_cross_entropy_with_logits(logits, languages[:, None].expand_as(logits), reduction="none")
    return (each if encoded.layout is None else each.masked_fill(~encoded.layout.mask, 0.0)).sum()


def second_decoder(model: Model, other: Network) -> Decoder:
    """The decoder of `other`, a model like `model`, with the weights that decoders share with encoders taken from `model`."""
    assert isinstance(other, Model)
    shared = {id(parameter) for parameter in other.encoder.parameters()}
    for path, module in other.decoder.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in shared:
                setattr(module, name, model.decoder.get_submodule(path).get_parameter(name))
    return other.decoder
