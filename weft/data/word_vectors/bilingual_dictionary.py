"""Bilingual dictionaries: learnt from two texts that are not translations of each other, read from files, applied to texts.

A file has a source word, a translation and a score per line, separated by tabs; the best translation of a word comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from weft.data.text_lines import read_lines
from weft.data.tokenizers.word_character_byte import join_words
from weft.data.word_vectors.mapping import MappedVectors, MappingOptions, adversarial_pairs, map_vectors
from weft.data.word_vectors.vectors import Vectors, learn_vectors, split_words
from weft.errors import DataError

Entries = Mapping[str, Sequence[tuple[str, float]]]
"""The translations of each word with their scores, best first."""


@dataclass(frozen=True)
class Precision:
    """The number of words with a right first translation, of those that gold and dictionary both contain.

    known: words of the gold file that the dictionary translates · words: all words of the gold file.
    """

    right: int
    known: int
    words: int

    @property
    def percent(self) -> float:
        """Precision at 1: words without a translation do not count."""
        return 100 * self.right / max(1, self.known)


class Dictionary:
    """Translations of single words. Texts are translated word by word; a word that is not known stays as it is.

    A word is also found in another case than its entry has.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self._forms: dict[str, str] = {}
        for word in entries:
            self._forms.setdefault(word.lower(), word)

    @staticmethod
    def read(path: str | Path) -> Dictionary:
        """Reads a dictionary or a gold file; the third column may be missing."""
        entries: dict[str, list[tuple[str, float]]] = {}
        for number, line in enumerate(read_lines(path), start=1):
            source, _, rest = line.partition("\t")
            target, _, score = rest.partition("\t")
            if not source or not target:
                raise DataError(f"{path}, line {number:,}: write a word, a tab and its translation.")
            try:
                value = float(score or 0)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise DataError(f"{path}, line {number:,}: the score {score!r} is not a finite number.")
            entries.setdefault(source, []).append((target, value))
        if not entries:
            raise DataError(f"{path}: there are no words in it; learn a dictionary with --data.")
        return Dictionary(entries)

    def lines(self) -> Iterable[str]:
        """The lines of the file."""
        for source, translations in self.entries.items():
            for target, score in translations:
                yield f"{source}\t{target}\t{score:.4f}"

    def precision(self, gold: Dictionary) -> Precision:
        """Compares first translations with those of `gold`, in any case."""
        known = {word: translations for word in gold.entries if (translations := self._translations(word))}
        wanted = {word: {target.lower() for target, _ in gold.entries[word]} for word in known}
        right = sum(translations[0][0].lower() in wanted[word] for word, translations in known.items())
        return Precision(right, len(known), len(gold.entries))

    def translate(self, text: str, draw: Random | None = None) -> str:
        """A text word by word, in its order. Capitals that a word usually does not have are kept in its translation.

        draw: draws translations by their scores, which must be probabilities then, instead of taking the first ones.
        """
        words = split_words(text, lowercase=False)
        return join_words([self._word(word, number == 0, draw) for number, word in enumerate(words)])

    def _translations(self, word: str) -> Sequence[tuple[str, float]]:
        return self.entries.get(word) or self.entries.get(self._forms.get(word.lower(), ""), ())

    def _word(self, word: str, first: bool, draw: Random | None) -> str:
        translations = self._translations(word)
        if not translations:
            return word
        best = translations[0][0]
        if draw is not None:
            words, scores = zip(*translations, strict=True)
            best = draw.choices(words, scores)[0]
        capital = word[:1].isupper() and (first or word not in self.entries)
        return best[:1].upper() + best[1:] if capital else best


def learn_dictionary(
    source: Iterable[str], target: Iterable[str], *, best: int = 5, adversarial: bool = False
) -> tuple[Dictionary, Dictionary]:
    """The dictionaries of two texts in both directions, with up to `best` translations per word; see `map_texts`."""
    mapped = map_texts(source, target, adversarial=adversarial)
    return nearest(mapped, best), nearest(mapped.reversed(), best)


def map_texts(source: Iterable[str], target: Iterable[str], *, adversarial: bool = False, ngrams: int = 1) -> MappedVectors:
    """The word vectors of two texts in one space. Repeated lines count once.

    adversarial: begin with a map that is learnt against a discriminator, not with words that are spelt alike. ngrams: see
    `learn_vectors`.
    """
    texts = {f"the {which} text, without repeated lines,": text for which, text in (("first", source), ("second", target))}
    first, second = (learn_vectors(dict.fromkeys(lines), ngrams=ngrams, name=name) for name, lines in texts.items())
    return map_vectors(first, second, MappingOptions(), adversarial_pairs if adversarial else None)


def nearest(mapped: MappedVectors, best: int) -> Dictionary:
    """The `best` target words of each source word by CSLS and frequency."""
    return _highest(mapped, mapped.scores(), best)


def channel(mapped: MappedVectors, best: int = 10, temperature: float = 0.03) -> Dictionary:
    """The words that each source word may be a translation of, with probabilities P(target | source) by Bayes' rule.

    P(source | target) ∝ P(source) exp(score / temperature), and words are as probable as they are frequent. Texts translated
    by draws from these have words about as frequent as those of the target language, while the nearest words leave out many.
    """
    joint = mapped.scores()
    joint -= joint.max(0)
    joint /= temperature
    np.exp(joint, out=joint)
    joint *= np.asarray(mapped.source.counts, joint.dtype)[:, None]
    joint *= np.asarray(mapped.target.counts, joint.dtype) / joint.sum(0)
    joint /= joint.sum(1, keepdims=True)
    return _highest(mapped, joint, best)


def _highest(mapped: MappedVectors, scores: Vectors, best: int) -> Dictionary:
    """The `best` target words of each source word by scores [V, W]."""
    order = np.argsort(-scores, 1, kind="stable")[:, :best]
    highest = np.take_along_axis(scores, order, 1)
    words = [[mapped.target.forms[number] for number in row] for row in order.tolist()]
    rows = (list(zip(*row, strict=True)) for row in zip(words, highest.tolist(), strict=True))
    return Dictionary(dict(zip(mapped.source.forms, rows, strict=True)))
