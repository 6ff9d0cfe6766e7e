"""Tagged sentences: their files, the lexicon of the training data, and the corpus with its batches.

Files have `word TAB tag` lines and a blank line after each sentence (also .gz). A sentence is a pair of texts like all other
data: its words, each with `WORD_END` behind it, and its lines as in the file. So a word may contain spaces.

With edges, a third column has the numbers of the words that a word is connected with, counted from 0 in its sentence, or `_`.
Behind the words of a sentence there are a tab and its edges then, as in `weft.tasks.edges_between_words`.

Columns of the corpus: `word`, the id of each word; `piece`, the ids of the subwords of all words; `size`, the subwords of each
word; `tag`; with edges also `edges`, the places of both words of each.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batch import NO_LABEL, UNK, Source, TagBatch
from weft.data.batching import lay_out, spread
from weft.data.column_checks_and_listed_files import DataFormat, read_inputs
from weft.data.corpus import Columns, Encoding, Rows, ids_below
from weft.data.formats import JsonPairs, MappedPairs, Pairs, Texts, combine, is_json
from weft.data.sentence_pairs import PairFilters
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError
from weft.file_access import plain_name, replace_file
from weft.tasks.classification.data import Labels, reading
from weft.tasks.edges_between_words import read_edges, with_graph
from weft.tasks.tagging.metrics import Scheme, convert, split_tags

TAGS, WORDS = "tags.json", "words.json"

WORD_END = "\x1f"
"""The unit separator of ASCII."""

NO_EDGE = "_"
"""Stands in the third column for no word, as in CoNLL-U."""

MOST_SUBWORDS = 24
"""Subwords of a word that a frontend reads. Of longer words, the middle is left out."""


def join_words(words: Iterable[str]) -> str:
    """Words as one text."""
    return "".join(f"{word}{WORD_END}" for word in words)


def split_words(text: str) -> list[str]:
    """The words of a text: those that `join_words` joined, otherwise what stands between spaces; without edges."""
    text = text.partition("\t")[0]
    return text.split(WORD_END)[:-1] if WORD_END in text else text.split()


def spaced_words(pairs: Sequence[Pairs]) -> list[Pairs]:
    """The texts to train a tokenizer on: words with spaces between them."""
    return [MappedPairs(some, lambda words, tags: (" ".join(split_words(words)), tags), "spaced") for some in pairs]


def join_tags(words: Iterable[str], tags: Iterable[str]) -> str:
    """A sentence as in a file, without the blank line."""
    return "\n".join(f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True))


def open_tagged(spec: str, scheme: Scheme | None = None, graph: bool = False) -> Pairs:
    """The tagged sentences of `file.tsv`, of some columns of it, `file.tsv#1,3`, or of what a run has held out (.jsonl)."""
    return JsonPairs(spec, spec, None) if is_json(spec) else TaggedSentences(spec, scheme, graph)


def tagged_inputs(file: Path, graph: bool = False) -> Iterable[str]:
    """The words of a table (.tsv) with their edges, or lines of text."""
    if not plain_name(file.name).endswith(".tsv"):
        return read_inputs(file)
    return (words for words, _ in open_tagged(str(file), graph=graph))


def tagged_format(scheme: Scheme | None, graph: bool = False) -> DataFormat:
    """Tagged sentences, whose tags are rewritten in a scheme if they mark entities. graph: with edges between their words."""
    return DataFormat(partial(open_tagged, scheme=scheme, graph=graph), partial(tagged_inputs, graph=graph))


def edges_of(neighbours: Sequence[str]) -> str:
    """The edges of a sentence such as `0-1 1-2`, given what its third column has for each word."""
    found = [f"{word}-{other}" for word, others in enumerate(neighbours) for other in others.split() if other != NO_EDGE]
    return " ".join(found)


class TaggedSentences(Pairs):
    """The sentences of a table with a word per line. All lines have the same number of columns, separated by tabs.

    scheme: rewrites the tags of every sentence · graph: reads a column with the neighbours of each word as well.
    """

    def __init__(self, spec: str, scheme: Scheme | None = None, graph: bool = False) -> None:
        super().__init__(spec)
        path, mark, columns = spec.rpartition("#")
        chosen = mark and plain_name(path).endswith(".tsv")
        self.path = str(check_file(path if chosen else spec))
        self.scheme, self.graph = scheme, graph
        wanted = ["1", "2", "3"] if graph else ["1", "2"]
        numbers = columns.split(",") if chosen else wanted
        if len(numbers) != len(wanted) or not all(number.strip().isdecimal() and int(number) for number in numbers):
            if graph:
                raise DataError(
                    f"{spec}: write the columns of the word, of its tag and of its neighbours as three numbers from 1 on, like "
                    "file.tsv#1,3,4."
                )
            raise DataError(
                f"{spec}: write the columns of the word and of its tag as two numbers from 1 on, like file.tsv#1,3."
            )
        self.columns = [int(number) - 1 for number in numbers]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for first, rows in self._sentences():
            words, tags = [word for word, *_ in rows], [tag for _, tag, *_ in rows]
            try:
                tags = convert(tags, self.scheme)
            except DataError as error:
                raise DataError(f"{self.path}, sentence at line {first:,}: {error}") from None
            edges = f"\t{edges_of([neighbours for *_, neighbours in rows])}" if self.graph else ""
            yield join_words(words) + edges, join_tags(words, tags)

    def _sentences(self) -> Iterator[tuple[int, list[tuple[str, ...]]]]:
        """The number of the first line of each sentence, and its words with their tags and neighbours."""
        rows: list[tuple[str, ...]] = []
        width, first, empty = 0, 0, True
        for number, line in enumerate(read_lines(self.path), start=1):
            if not line.strip():
                if rows:
                    yield first, rows
                rows = []
                continue
            cells = line.split("\t")
            first, width, empty = first if rows else number, width or len(cells), False
            rows.append(self._row(cells, width, f"{self.path}, line {number:,}"))
        if rows:
            yield first, rows
        if empty:
            raise DataError(f"{self.path} is empty.")

    def _row(self, cells: list[str], width: int, where: str) -> tuple[str, ...]:
        shown = repr("\t".join(cells)[:80])
        if len(cells) != width:
            raise DataError(
                f"{where}: {len(cells)} columns, but the lines before it have {width}: {shown}. Write a word, a tab and a tag."
            )
        if max(self.columns) >= width:
            wanted = "a word, a tag and the numbers of its neighbours" if self.graph else "a word, a tab and a tag"
            raise DataError(
                f"{where}: there is no column {max(self.columns) + 1}, only {width}: {shown}. Write {wanted} on each line, or "
                f"choose columns like {self.path}#{'1,2,3' if self.graph else '1,2'}."
            )
        word, tag, *neighbours = (cells[column].strip() for column in self.columns)
        if not word or not tag:
            missing = f"the tag {tag!r} has no word" if tag else f"the word {word!r} has no tag"
            raise DataError(f"{where}: {missing}: {shown}. Complete the line, or remove it.")
        if WORD_END in word:
            raise DataError(f"{where}: a word contains the control character U+001F: {shown}. Remove it.")
        return word, tag, *neighbours

    def digest(self) -> str:
        # The scheme follows from the task's settings, which are part of the key of a prepared corpus.
        return combine("tagged", *map(str, self.columns), file_digest(self.path))


@dataclass(frozen=True)
class Vocabulary:
    """The words with ids: those that occur at least `least` times, capitals ignored with `lowercase`; at most `most` ids."""

    least: int
    lowercase: bool
    most: int

    def form(self, word: str) -> str:
        return word.lower() if self.lowercase else word

    def choose(self, counts: dict[str, int]) -> dict[str, int]:
        """The ids of forms, most frequent first."""
        forms: Counter[str] = Counter()
        for word, count in counts.items():
            forms[self.form(word)] += count
        kept = sorted((form for form, count in forms.items() if count >= self.least), key=lambda form: (-forms[form], form))
        return {form: number for number, form in enumerate(kept[: max(0, self.most - RESERVED)], start=RESERVED)}


class Lexicon:
    """Words with their counts and their most frequent tags. Words without an id are UNK."""

    def __init__(self, counts: dict[str, int], tags: dict[str, str], vocabulary: Vocabulary) -> None:
        self.counts, self.tags, self.vocabulary = counts, tags, vocabulary
        self.ids = vocabulary.choose(counts)
        rare = [word for word, count in counts.items() if count == 1]
        self._usual = {capital: _first(tags[word] for word in rare if _capital(word) == capital) for capital in (True, False)}
        self._usual_of_all = _first(tags.values())

    @property
    def size(self) -> int:
        """The number of ids, special ones included."""
        return RESERVED + len(self.ids)

    def find(self, words: Iterable[str]) -> list[int]:
        """The id of each word."""
        return [self.ids.get(self.vocabulary.form(word), UNK) for word in words]

    def guess(self, word: str) -> str:
        """The most frequent tag of a word; of an unknown one, that of most words that occur once, with or without a capital."""
        return self.tags.get(word) or self._usual[_capital(word)] or self._usual_of_all

    @staticmethod
    def count(sentences: Iterable[str], vocabulary: Vocabulary) -> Lexicon:
        """The lexicon of sentences as in a file (see `weft.tasks.tagging.data`)."""
        tags_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for word, tag in zip(*split_tags(sentence), strict=True):
                tags_of[word][tag] += 1
        words = sorted(tags_of, key=lambda word: (-tags_of[word].total(), word))
        tags = {word: _first(tags_of[word].elements()) for word in words}
        return Lexicon({word: tags_of[word].total() for word in words}, tags, vocabulary)

    def save(self, path: Path) -> None:
        rows = [[word, count, self.tags[word]] for word, count in self.counts.items()]
        replace_file(path, json.dumps({"words": rows}, ensure_ascii=False, indent=0))

    @staticmethod
    def load(path: Path, vocabulary: Vocabulary) -> Lexicon:
        with reading(path, "words with their tags"):
            rows: Sequence[tuple[str, int, str]] = json.loads(path.read_text(encoding="utf-8"))["words"]
            counts, tags = {str(word): int(count) for word, count, _ in rows}, {str(word): str(tag) for word, _, tag in rows}
            return Lexicon(counts, tags, vocabulary)


def _capital(word: str) -> bool:
    return word[:1].isupper()


def _first(tags: Iterable[str]) -> str:
    """The most frequent tag, of several the first in the alphabet; empty if there is none."""
    counts = Counter(tags)
    return min(counts, key=lambda tag: (-counts[tag], tag), default="")


@dataclass(frozen=True)
class TaggedEncoding:
    """Turns sentences into ids.

    whole: a model reads words, each with its subwords; otherwise all subwords in a row · longest: the most positions of a
    sentence · scheme: of the labels, if they mark entities · graph: whether sentences have edges.
    """

    tokenizer: Tokenizer
    lexicon: Lexicon
    labels: Labels
    whole: bool
    longest: int
    scheme: Scheme | None
    graph: bool = False

    def edges(self, text: str) -> list[int]:
        """The places of both words of each edge of a text."""
        words = split_words(text)
        try:
            return read_edges(text.partition("\t")[2], len(words))
        except DataError as error:
            raise DataError(f"{' '.join(words)[:60]!r}: {error}") from None

    def subwords(self, words: Sequence[str]) -> list[list[int]]:
        """The subwords of each word; at least one."""
        return [self._shorten(ids) or [UNK] for ids in self.tokenizer.encode_batch(words)]

    def _shorten(self, ids: list[int]) -> list[int]:
        half = MOST_SUBWORDS // 2
        return ids if not self.whole or len(ids) <= MOST_SUBWORDS else [*ids[:half], *ids[-half:]]

    def length(self, subwords: Sequence[Sequence[int]]) -> int:
        """The number of positions that words with these subwords take in a source."""
        return len(subwords) if self.whole else sum(map(len, subwords))

    def key(self) -> list[Any]:
        """Identifies everything that the ids depend on."""
        return [self.tokenizer.digest(), list(self.lexicon.ids), self.lexicon.vocabulary.lowercase, self.whole, MOST_SUBWORDS]

    def encoding(self, *, drop_duplicates: bool) -> Encoding:
        """The corpus of tagged sentences. Left out are those that are too long, or have a tag that is not among the labels."""
        labels, filters = self.labels, PairFilters(self.longest, None, drop_duplicates)

        def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
            known: Texts = []
            sentences: list[tuple[list[str], list[str], list[list[int]], list[int]]] = []
            for pair in texts:
                words, tags = split_tags(pair[1])
                if labels.ids.keys() >= set(tags := convert(tags, self.scheme)):
                    known.append(pair)
                    sentences.append((words, tags, self.subwords(words), self.edges(pair[0]) if self.graph else []))
            kept, reasons = filters(known, [range(self.length(subwords)) for _, _, subwords, _ in sentences])
            chosen = [sentences[place] for place in kept]
            columns: Columns = {
                "word": [self.lexicon.find(words) for words, *_ in chosen],
                "piece": [list(chain.from_iterable(subwords)) for _, _, subwords, _ in chosen],
                "size": [[len(each) for each in subwords] for _, _, subwords, _ in chosen],
                "tag": [[labels.ids[tag] for tag in tags] for _, tags, *_ in chosen],
                "edges": [edges for *_, edges in chosen],
                **filters.hashes(known, kept),
            }
            return columns, {"with a tag that training does not have": len(texts) - len(known), **reasons}

        key = ["tagged", self.key(), labels.names, self.scheme or "none", self.longest, drop_duplicates]
        ids = {"word": ids_below(self.lexicon.size), "piece": ids_below(self.tokenizer.size), "tag": ids_below(len(labels))}
        columns = {name: ids.get(name, "uint16") for name in ("word", "piece", "size", "tag", *["edges"] * self.graph)}
        return Encoding(key, encode, columns, ["word" if self.whole else "piece"], unit="sentences")


def make_tagged(
    words: NDArray[Any],
    subwords: NDArray[Any],
    sizes: Rows,
    tags: NDArray[Any],
    lengths: Rows,
    rows: Rows | None = None,
    *,
    whole: bool,
    budget: int = 0,
    rounded: bool = False,
) -> TagBatch:
    """A batch of sentences, given all their words, the subwords of all words, the subwords per word, all tags, and the words
    per sentence [n]."""
    starts: torch.Tensor | None = None
    ends = sizes.cumsum()
    if whole:
        (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
        source = Source(spread(word_table(words, subwords, sizes, rounded=rounded), layout), layout)
    else:
        last = lengths.cumsum() - 1
        before = np.concatenate([[0], ends[last][:-1]])
        long, layout = lay_out(np.stack([ends[last] - before, lengths], 1), budget=budget, rounded=rounded)
        source = Source(spread(subwords, long), long)
        starts = spread(ends - sizes - np.repeat(before, lengths), layout)
    labels = spread(tags, layout).where(layout.mask, NO_LABEL)
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return TagBatch(numbers, source, layout, starts, labels)


def with_edges(batch: TagBatch, places: Rows | Sequence[int], counts: Rows | Sequence[int]) -> TagBatch:
    """A batch with the edges between its words; see `with_graph`."""
    return replace(batch, source=with_graph(batch.source, places, counts))


def random_tagged(length: int, rows: int, words: int, subwords: int, *, whole: bool, rounded: bool) -> TagBatch:
    """Random sentences of `length` words of one subword, with the first tag. words, subwords: the sizes of the vocabularies."""
    count, draw = rows * length, np.random.default_rng(length)
    ids = draw.integers(RESERVED, max(RESERVED + 1, words), count)
    pieces = draw.integers(RESERVED, max(RESERVED + 1, subwords), count) if subwords else ids
    ones, tags, lengths = np.ones(count, np.int64), np.zeros(count, np.int64), np.full(rows, length)
    return make_tagged(ids, pieces, ones, tags, lengths, whole=whole, budget=count, rounded=rounded)


def word_table(words: NDArray[Any], subwords: NDArray[Any], sizes: Rows, *, rounded: bool) -> NDArray[np.int64]:
    """[N, 1 + P]: each word and its subwords. Rounded batches have as many columns as there can be."""
    most = MOST_SUBWORDS if rounded else int(sizes.max())
    table = np.zeros((len(words), 1 + most), np.int64)
    table[:, 0] = words
    table[:, 1:][np.arange(most) < sizes[:, None]] = subwords
    return table
