"""Translations with their quality: their files, their words, and how good they are.

    {"source": "A dog runs.", "translation": "Ein Hund rennt.", "score": 63.1, "tags": "OK OK BAD OK"}   JSON lines
    quality.tsv#1,2,3,4     a table with these columns; without tags or without scores it has three

The label of an example is a text: the score, a tab and the tags, or one of both. Columns of the corpus: `source` and
`sentences` as for two texts; `label`, the score; `tag`, 1 for OK and 0 for BAD; `span`, the first and the last token of each
word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from weft.data.batch import NO_LABEL, QualityBatch
from weft.data.column_checks_and_listed_files import DataFormat
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Fields, MappedPairs, Pairs, Texts, combine
from weft.data.sentence_pairs import PairFilters
from weft.data.tokenizers import Tokenizer
from weft.errors import DataError
from weft.tasks.pairs.metrics import number_of
from weft.tasks.quality.labels import OK, TAGS, parse_tags
from weft.tasks.translation.attention_alignment import CharacterCounter, unit_character_ranges, units
from weft.tasks.two_texts import TwoTextReader, make_two_texts, split_texts, two_text_format

Output = Literal["both", "number", "tags"]

TEXTS: Fields = (("source", "src", "original"), ("translation", "mt", "hypothesis", "target"))
SCORE, WORDS = ("score", "chrf", "label"), ("tags", "labels")
FIELDS: dict[str, Fields] = {
    "both": (*TEXTS, SCORE, WORDS),
    "number": (*TEXTS, SCORE),
    "tags": (*TEXTS, WORDS),
}
"""The names of the columns, by what is learnt."""

INPUT: Fields = FIELDS["number"]
"""An input has the first two of these."""


def join_label(score: str, tags: Sequence[str]) -> str:
    """A label as a text. score: empty if there is none."""
    return "\t".join(part for part in (score, " ".join(tags)) if part)


def split_label(text: str) -> tuple[str, list[str]]:
    """The score of a label, empty if it has none, and its tags."""
    first, _, rest = text.partition("\t")
    return ("", first.split()) if first.split()[:1] and first.split()[0] in TAGS else (first.strip(), rest.split())


class QualityPairs(Pairs):
    """The examples of a file, each checked: a source and a translation with a tab between them, and their label."""

    def __init__(self, pairs: Pairs, output: Output) -> None:
        super().__init__(pairs.name)
        self.pairs, self.output, self.left_out = pairs, output, pairs.left_out

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, (source, target) in enumerate(self.pairs, start=1):
            first, second, *scores = source.split("\t")
            score = scores[0] if scores else target if self.output == "number" else ""
            try:
                if self.output != "tags":
                    score = f"{_score(score):g}"
                tags = [] if self.output == "number" else parse_tags(target, second)
            except DataError as error:
                raise DataError(f"{self.name}, example {number:,}: {error}") from None
            yield f"{first}\t{second}", join_label(score, tags)

    def digest(self) -> str:
        return combine("quality", self.output, self.pairs.digest())


def _score(text: str) -> float:
    try:
        return number_of(text)
    except DataError:
        raise DataError(f"the score {text.strip()[:40]!r} is not a number") from None


def quality_format(output: Output) -> DataFormat:
    """The format of data with a score, tags or both."""
    known = two_text_format(FIELDS[output])

    def check(pairs: Pairs, report: Callable[[str], None]) -> None:
        known.check(pairs.pairs if isinstance(pairs, QualityPairs) else pairs, report)

    return replace(known, open=lambda spec: QualityPairs(known.open(spec), output), check=check)


def both_texts(pairs: Sequence[Pairs]) -> list[Pairs]:
    """Sources with their translations, to train tokenizers on."""
    return [MappedPairs(some, lambda source, label: split_texts(source), "both") for some in pairs]


def score_of(label: str) -> float:
    """The score of a label; without one, the words that are OK in percent."""
    score, tags = split_label(label)
    return float(score) if score else 100 * tags.count(OK) / max(1, len(tags))


def scores_only(pairs: Sequence[Pairs]) -> list[Pairs]:
    """Examples with their scores as labels."""
    return [MappedPairs(some, lambda source, label: (source, repr(score_of(label))), "scores") for some in pairs]


@dataclass(frozen=True)
class QualityReader(TwoTextReader):
    """Turns sources and translations into token ids, and finds the tokens of each word of a translation."""

    kind: ClassVar[str] = "quality"
    unit: ClassVar[str] = "translations"
    target: Tokenizer = field(kw_only=True)

    @property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        return self.tokenizer, self.target

    def spans(self, counter: CharacterCounter, ids: Sequence[int], text: str) -> list[tuple[int, int]]:
        """The first and the last token, exclusive, of each word of a translation; every word has at least one.

        ids: of the whole translation. It may be cut after `longest` of them; words behind the cut have the last token.
        """
        words = unit_character_ranges(text, units(text))
        begins, ends = np.array(counter(ids, text), np.float64).reshape(-1, 2).T
        last = min(len(ids), self.longest) - 1
        spans = []
        for begin, end in words:
            first = min(int(np.searchsorted(ends, begin + NEAR, side="right")), last)
            spans.append((first, min(max(int(np.searchsorted(begins, end - NEAR, side="left")), first + 1), last + 1)))
        return spans

    def encoding(self, output: Output, *, drop_duplicates: bool) -> Encoding:
        """The corpus of translations with their labels; both texts are cut after `longest` tokens."""
        filters = PairFilters(self.most, None, drop_duplicates)
        counter = CharacterCounter(self.target)

        def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
            whole = self.encode([source for source, _ in texts])
            read = [self.cut(document) for document in whole]
            kept, reasons = filters(texts, [ids for ids, _ in read])
            spans, labels = [], [texts[place][1] for place in kept]
            for place in kept:
                ids, sizes = whole[place]
                spans.append(self.spans(counter, ids[sizes[0] :], split_texts(texts[place][0])[1]))
            columns: Columns = {
                "source": [read[place][0] for place in kept],
                "sentences": [read[place][1] for place in kept],
                "label": [[score_of(label)] for label in labels],
                "span": [list(chain.from_iterable(each)) for each in spans],
                **filters.hashes(texts, kept),
            }
            if output != "number":
                columns["tag"] = [[int(tag == OK) for tag in split_label(label)[1]] for label in labels]
            return columns, reasons

        ids = ids_below(max(self.tokenizer.size, self.target.size))
        place = ids_below(self.longest + 2)
        types = {"source": ids, "sentences": place, "label": "float32", "span": place}
        types |= {"tag": "uint8"} if output != "number" else {}
        key = [self.kind, output, self.tokenizer.digest(), self.target.digest(), self.longest, drop_duplicates]
        return Encoding(key, encode, types, ["source"], unit=self.unit)


NEAR = 1e-6
"""Ranges of characters that overlap by less do not overlap."""


def gather_quality(corpus: Corpus, rows: Rows) -> QualityBatch:
    """The batch of some rows of a corpus."""
    (ids, _), (sizes, _), (scores, _) = (corpus.gather(name, rows) for name in ("source", "sentences", "label"))
    spans, ends = corpus.gather("span", rows)
    tags = corpus.gather("tag", rows) if "tag" in corpus.values else (np.zeros(0, np.int64), np.zeros_like(ends))
    return make_quality(ids, sizes, scores, tags, spans.reshape(-1, 2), ends // 2, rows)


def make_quality(
    ids: Rows, sizes: Rows, scores: Any, tags: tuple[Rows, Rows], spans: Rows, words: Rows, rows: Rows
) -> QualityBatch:
    """A batch, given all ids, the number of ids of each text, the scores, all tags with their number per row, the spans of all
    words [N, 2], and the number of words per row."""
    both = make_two_texts(ids, sizes, scores, rows)
    marks = np.full((len(rows), max(1, int(words.max(initial=0)))), NO_LABEL, np.int64)
    marks[np.arange(marks.shape[1]) < tags[1][:, None]] = tags[0]
    return QualityBatch(both.rows, both.source, both.labels, both.second, pad_spans(spans, words), torch.from_numpy(marks))


def pad_spans(spans: Rows | Sequence[tuple[int, int]], words: Rows | Sequence[int]) -> torch.Tensor:
    """[B, W, 2]: the spans of all words [N, 2], and the number of words per row; −1 on padding."""
    counts = np.asarray(words, np.int64)
    table = np.full((len(counts), max(1, int(counts.max(initial=0))), 2), -1, np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = np.asarray(spans, np.int64).reshape(-1, 2)
    return torch.from_numpy(table)


def random_quality(length: int, rows: int, source: int, target: int) -> QualityBatch:
    """Random texts of `length` tokens, each of which is a word that is right, with a score of 0."""
    draw = np.random.default_rng(length)
    sides = [draw.integers(4, max(5, size), (rows, length)) for size in (source, target or source)]
    places = np.stack([np.arange(length), np.arange(length) + 1], 1)
    words, ones = np.full(rows, length), np.ones(rows * length, np.int64)
    ids, scores = np.concatenate(sides, 1).ravel(), np.zeros(rows, np.float32)
    return make_quality(
        ids, np.full(2 * rows, length), scores, (ones, words), np.tile(places, (rows, 1)), words, np.arange(rows)
    )
