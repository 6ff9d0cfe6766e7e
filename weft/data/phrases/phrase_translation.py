"""Phrase-based translation, learnt from two texts that are not translations of each other (Lample et al. 2018b, section 3.2).

The first phrase tables are n-grams that lie near each other in one vector space. Then both directions improve each other by
back-translation: one direction translates a text, and phrases of the translations and the text are the next table of the other.
The language models stay the same, and they are why each table is better than the translations that it was made from: they only
see what people wrote. Weights of features are fixed, because there is no translated text to tune them on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from weft.data.phrases.ngram_language_model import NgramModel
from weft.data.phrases.phrase_table import PhraseTable
from weft.data.phrases.stack_decoder import DecodingWeights, StackDecoder
from weft.data.tokenizers.word_character_byte import join_words
from weft.data.word_vectors.bilingual_dictionary import map_texts
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.vectors import split_words, usual_forms
from weft.errors import DataError, RunError
from weft.file_access import MALFORMED, replace_file

ROUNDS = 2
ORDER = 3
"""Of the language models."""
NGRAMS = 3
"""Words of the longest phrases of the first table."""
ABOUT = "phrases.json"


@dataclass(frozen=True)
class Language:
    """A language: its words in lower case, how each is usually written, and a model of its texts."""

    name: str
    words: Sequence[str]
    forms: Sequence[str]
    model: NgramModel

    @staticmethod
    def learn(name: str, lines: Sequence[str]) -> Language:
        written = [split_words(line, lowercase=False) for line in lines]
        texts = [[word.lower() for word in text] for text in written]
        words = sorted({word for text in texts for word in text})
        ids = {word: number for number, word in enumerate(words)}
        endings = [[*(ids[word] for word in text), len(words) + 1] for text in texts]
        return Language(name, words, usual_forms(words, written), NgramModel(endings, len(words) + 2, ORDER))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def written(self, words: Sequence[str], source: str) -> str:
        """A text of these words, which begins with a capital if its source does. Unknown words are written as in the source."""
        unknown = {word.lower(): word for word in split_words(source, lowercase=False)}
        text = join_words([self.forms[self.ids[word]] if word in self.ids else unknown.get(word, word) for word in words])
        return text[:1].upper() + text[1:] if source[:1].isupper() else text


@dataclass(frozen=True)
class PhraseTranslator:
    """Translates between two languages. tables: into the first one, and into the second one."""

    languages: tuple[Language, Language]
    tables: tuple[PhraseTable, PhraseTable]

    weights: DecodingWeights = DecodingWeights()

    @cached_property
    def _decoders(self) -> dict[int, StackDecoder]:
        return {}

    def decoder(self, into: int) -> StackDecoder:
        """The decoder into one of the languages, 0 or 1."""
        if into not in self._decoders:
            language = self.languages[into]
            count = len(language.words)
            self._decoders[into] = StackDecoder(self.tables[into], language.model, language.ids, count, count + 1, self.weights)
        return self._decoders[into]

    def translate(self, texts: Sequence[str], into: str) -> list[str]:
        """The translations of some texts into one of the languages."""
        names = [language.name for language in self.languages]
        if into not in names:
            raise DataError(f"{into}: the phrases translate between {' and '.join(names)}")
        number = names.index(into)
        found = self.decoder(number).translate([split_words(text) for text in texts])
        return [self.languages[number].written(words, text) for words, text in zip(found, texts, strict=True)]

    def save(self, folder: Path) -> None:
        """Writes the files that `load` reads: the tables, which people can read, and the languages."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABOUT).unlink(missing_ok=True)  # without it the folder counts as empty
        about = [{"name": each.name, "words": [*each.words], "forms": [*each.forms]} for each in self.languages]
        for language, table in zip(self.languages, self.tables, strict=True):
            table.write(folder / f"into-{language.name}.tsv")
            language.model.save(folder / f"{language.name}.npz")
        replace_file(folder / ABOUT, json.dumps(about, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> PhraseTranslator:
        """Reads what `save` wrote. Raises RunError or DataError for other files."""
        try:
            first, second = (
                Language(Path(each["name"]).name, list(each["words"]), list(each["forms"]), NgramModel.load(file))
                for each in json.loads((folder / ABOUT).read_text("utf-8"))
                for file in [folder / f"{Path(each['name']).name}.npz"]
            )
        except (OSError, *MALFORMED) as error:
            raise RunError(f"{folder / ABOUT}: this file does not name two languages with their words: {error}") from None
        tables = PhraseTable.read(folder / f"into-{first.name}.tsv"), PhraseTable.read(folder / f"into-{second.name}.tsv")
        return cls((first, second), tables)


def learn_phrases(
    names: tuple[str, str],
    texts: tuple[Iterable[str], Iterable[str]],
    *,
    rounds: int = ROUNDS,
    adversarial: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> PhraseTranslator:
    """Learns to translate between two languages from a text of each. Repeated lines count once.

    rounds: of back-translation, each of which makes a new table of both directions · adversarial: see `map_texts`.
    """
    lines = [list(dict.fromkeys(text)) for text in texts]
    report("learning vectors of phrases of both languages and a map between them")
    translator = translate_by_vectors(names, lines, map_texts(*lines, adversarial=adversarial, ngrams=NGRAMS))
    for number in range(1, rounds + 1):
        report(f"round {number} of {rounds}")
        translator = improved(translator, lines, report)
    return translator


def translate_by_vectors(names: tuple[str, str], lines: Sequence[Sequence[str]], mapped: MappedVectors) -> PhraseTranslator:
    """The first translator, by n-grams that lie near each other."""
    languages = Language.learn(names[0], lines[0]), Language.learn(names[1], lines[1])
    return PhraseTranslator(languages, (PhraseTable.from_vectors(mapped.reversed()), PhraseTable.from_vectors(mapped)))


def improved(
    translator: PhraseTranslator, lines: Sequence[Sequence[str]], report: Callable[[str], None] = lambda message: None
) -> PhraseTranslator:
    """The translator after a round of back-translation: the second table is made with the first one, which is new by then."""
    for into, other in ((0, 1), (1, 0)):
        words = [split_words(line) for line in lines[into]]
        names = [language.name for language in translator.languages]
        report(f"translating {len(words):,} lines of {names[into]} into {names[other]}")
        table = PhraseTable.from_pairs(list(zip(translator.decoder(other).translate(words), words, strict=True)))
        first, second = translator.tables
        translator = replace(translator, tables=(table, second) if into == 0 else (first, table))
    return translator
