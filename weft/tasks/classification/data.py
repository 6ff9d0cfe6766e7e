"""Texts with labels, as a corpus and as batches.

Columns: `source`, the ids of a text; `label`, those of its labels; and, if texts are read as documents, sentence by sentence,
`sentences`, the number of ids of each. A text with line breaks has one sentence per line; a document with a list of sentences
is read as such a text. Any other text is split into sentences by `weft.data.sentence_splitting`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from weft.data.batch import EOS, NO_LABEL, LabelBatch, Layout, Source
from weft.data.batching import lay_out, spread
from weft.data.column_checks_and_listed_files import ROWS, DataFormat, check_columns
from weft.data.corpus import Columns, Encoding, Rows, ids_below
from weft.data.formats import MappedPairs, Pairs, TablePairs, Texts
from weft.data.sentence_pairs import PairFilters
from weft.data.sentence_splitting import language_of, split
from weft.data.text_lines import read_lines
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError, RunError
from weft.file_access import MALFORMED, replace_file

LABELS = "labels.json"

Document = tuple[list[int], list[int]]
"""The ids of all sentences one after the other, and the number of ids of each sentence."""


SHOWN = 10
"""The most labels that a message lists."""

SEPARATOR = re.compile("[,\n]")
"""Separates the labels of a text that has several."""

NONE = ","
"""Stands for no label where a text may have any number."""


def check_labelled(pairs: Pairs, report: Callable[[str], None]) -> None:
    """Raises DataError if a table has more columns than a text and a label, and none were chosen; see also `check_columns`."""
    check_columns(pairs, report)
    if not isinstance(pairs, TablePairs) or pairs.chosen is not None:
        return
    rows = pairs.head(ROWS)
    width = len(rows[0]) if rows else 0
    if width < 3 or pairs.headed(rows[0]):
        return
    ignored = "the third column" if width == 3 else f"the columns from the third to number {width}"
    kinds = [len({row[place] for row in rows if place < len(row)}) for place in range(width)]
    label = min(range(1, width), key=lambda place: (kinds[place], place))
    columns = f"{pairs.path}#1,2,{label + 1}"
    others = (
        f", or {pairs.path}#1,2 for the first two. If the label belongs to two texts, train the task pairs: weft train "
        f"pairs-attention --data {columns}."
    )
    raise DataError(
        f"{pairs.path} has {width} columns, and a classifier reads two: a text and its label. The label would be "
        f"{rows[0][1][:40]!r}, and {ignored} would be ignored. Choose two, for example "
        f"{pairs.path}#1,{label + 1}{others if label > 1 else '.'}"
    )


LABELLED = DataFormat(check=check_labelled)


def sentences_of(text: str, language: str | None = None) -> list[str]:
    """The sentences of a text (see the top of this file) without the blank ones."""
    lines = text.split("\n") if "\n" in text else split(text, language or "")
    return [line.strip() for line in lines if line.strip()]


def whole_text(text: str) -> str:
    """The text of a list of sentences, which ends in a line break, with spaces between them; any other text as it is."""
    return " ".join(text.split("\n")).strip() if text.endswith("\n") else text


def whole_texts(pairs: Sequence[Pairs]) -> list[Pairs]:
    """The texts to train a tokenizer on: line breaks between the sentences of a document are no part of words."""
    return [MappedPairs(some, lambda text, label: (whole_text(text), label), "whole") for some in pairs]


@dataclass(frozen=True)
class TextReader:
    """Turns texts into token ids, as a whole with EOS at the end, or sentence by sentence.

    longest: the most tokens of a text that are read · by_sentence: read sentences, those of the given language or of the one
    that the suffix of the files tells · kind, unit: what corpora of such texts are called in the cache, and their rows in
    messages.
    """

    kind: ClassVar[str] = "labels"
    unit: ClassVar[str] = "texts"
    tokenizer: Tokenizer
    longest: int
    by_sentence: bool = False
    given_language: str | None = None
    files: Sequence[str] = ()

    @property
    def language(self) -> str | None:
        return language_of(self.given_language, self.files) if self.by_sentence else None

    @property
    def column(self) -> str | None:
        """The column of a corpus with the second part of documents, if it has one."""
        return "sentences" if self.by_sentence else None

    @property
    def most(self) -> int:
        """The most ids of an input."""
        return self.longest + 1

    def length(self, document: Document) -> int:
        """The number of ids that may be too many."""
        return len(document[0])

    def key(self, drop_duplicates: bool) -> list[Any]:
        """Identifies what else a corpus depends on."""
        return [drop_duplicates, *[["by sentence", self.language]] * self.by_sentence]

    def read(self, texts: Sequence[str]) -> list[Document]:
        """Texts as the model reads them."""
        return [self.cut(each) for each in self.encode(texts)]

    def encode(self, texts: Sequence[str]) -> list[Document]:
        """The ids of each text. Sentences without any are left out."""
        if not self.by_sentence:
            return [(ids, [len(ids)]) for ids in self.tokenizer.encode_batch([whole_text(text) for text in texts])]
        sentences = [sentences_of(text, self.language) for text in texts]
        ids = iter(self.tokenizer.encode_batch(list(chain.from_iterable(sentences))))
        encoded = [[each for each in (next(ids) for _ in some) if each] for some in sentences]
        return [(list(chain.from_iterable(some)), [len(each) for each in some]) for some in encoded]

    def cut(self, document: Document) -> Document:
        """The first `longest` ids of a text, as the model reads them; its last sentence may be cut. Nothing if it is empty."""
        ids, sizes = document
        if not self.by_sentence:
            return ([*ids[: self.longest], EOS] if ids else []), []
        ends = [0, *(min(end, self.longest) for end in accumulate(sizes))]
        return ids[: self.longest], [end - start for start, end in pairwise(ends) if end > start]


def document_source(ids: Rows, sizes: Rows, counts: Sequence[int] | Rows) -> Source:
    """Documents as the source of a model: all ids, the number of ids per sentence, and of sentences per document."""
    words = Layout.padded(sizes)
    return Source(spread(ids, words), words, Layout.padded(counts))


class Labels:
    """The names of all labels in alphabetical order; a label's id is its place. White space around a name is ignored.

    texts: what the data has as labels · several: whether a text has any number of labels, separated by commas or line breaks ·
    described: the texts of labels that say more than their names.
    """

    def __init__(self, texts: Iterable[str] = (), *, several: bool = False, described: Mapping[str, str] | None = None) -> None:
        self.several, self.described = several, dict(described or {})
        self.names = sorted({name for text in texts for name in self.split(text)})
        self.ids = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def dtype(self) -> str:
        """The type of a column of labels."""
        return ids_below(len(self))

    def split(self, text: str) -> list[str]:
        """The names of labels in a text; none if it is blank."""
        parts = SEPARATOR.split(text) if self.several else [text]
        return [part.strip() for part in parts if part.strip()]

    def find(self, text: str) -> list[int]:
        """The ids of the labels in a text, each once. Raises DataError for one that is not known."""
        names = self.split(text)
        for name in names:
            if "\n" in name:
                listed = ", ".join(map(repr, name.split("\n")))
                raise DataError(f"a text has several labels, {listed}; set task.multi_label: true")
            if name not in self.ids:
                raise DataError(f"the label {name!r} does not occur in the training data; {self.describe()}")
        return sorted({self.ids[name] for name in names})

    def join(self, ids: Iterable[int]) -> str:
        """The labels with these ids, as `split` reads them."""
        return ",".join(self.names[number] for number in ids)

    def check(self, pairs: Pairs) -> None:
        """Raises DataError at the first pair with a label that is not known. A blank label is none."""
        for number, (_, label) in enumerate(pairs, start=1):
            try:
                self.find(label)
            except DataError as error:
                raise DataError(f"{pairs.name}, pair {number:,}: {error}") from None

    def describe(self) -> str:
        """The labels as half a sentence."""
        shown = ", ".join(repr(name) for name in islice(self.names, SHOWN))
        return f"known labels are {shown}" + (f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else "")

    def read_texts(self, file: Path) -> None:
        """Reads what labels mean: in each line a label, a tab, and a text."""
        for number, line in enumerate(read_lines(file), start=1):
            name, _, text = (part.strip() for part in line.partition("\t"))
            if not name and not text:
                continue
            if name not in self.ids or not text:
                wrong = "there is no text after the label and a tab" if name in self.ids else f"there is no label {name!r}"
                raise DataError(f"{file}, line {number:,}: {wrong}; {self.describe()}")
            self.described[name] = text

    def token_ids(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The ids of the text of each label: what it means, if that is known, else its name."""
        texts = [self.described.get(name, name) for name in self.names]
        found = [list(ids) for ids in tokenizer.encode_batch(texts)]
        for name, text, ids in zip(self.names, texts, found, strict=True):
            if not ids:
                raise DataError(f"the text {text!r} of the label {name!r} has no tokens; give another in task.label_texts")
        return found

    def save(self, path: Path) -> None:
        document = {"labels": self.names} | ({"texts": self.described} if self.described else {})
        replace_file(path, json.dumps(document, ensure_ascii=False, indent=0))

    @staticmethod
    def load(path: Path, *, several: bool = False) -> Labels:
        with reading(path, "labels"):
            document = json.loads(path.read_text(encoding="utf-8"))
            described = {str(name): text.strip() for name, text in (document.get("texts") or {}).items()}
            return Labels(document["labels"], several=several, described=described)


def find_labels(train: Sequence[Pairs], noun: str, *, several: bool, column: str = "second") -> Labels:
    """The labels of training data. Raises DataError if there are fewer than two; messages call a label `noun`.

    column: the one that has the label, in words.
    """
    labels = Labels((label for _, label in chain.from_iterable(train)), several=several)
    if len(labels) < 2:
        only = f"only the {noun} {labels.names[0]!r}" if labels.names else f"no {noun}"
        raise DataError(
            f"{', '.join(some.name for some in train)}: there is {only}, and a model needs at least two to choose from. "
            f"The {noun} is the {column} column; write FILE.tsv#{'2,1' if column == 'second' else '2,3,1'} if it is the first."
        )
    return labels


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Raises RunError if a file of a run cannot be read, or does not hold what it should."""
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such file") from None
    except (OSError, *MALFORMED) as error:
        raise RunError(f"{path}: this file does not hold {what}: {error}") from None


def label_encoding(reader: TextReader, labels: Labels, *, drop_duplicates: bool = False) -> Encoding:
    """The corpus of texts with their labels.

    Texts are cut as `reader` does. Left out are texts that are empty, texts without a label (unless any number is allowed), and
    with `drop_duplicates` texts that occurred before with the same labels.
    """
    filters = PairFilters(reader.most, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        targets = [labels.find(label) for _, label in texts]
        pairs = [(text, labels.join(ids) or NONE * labels.several) for (text, _), ids in zip(texts, targets, strict=True)]
        sources = reader.read([text for text, _ in texts])
        kept, reasons = filters(pairs, [ids for ids, _ in sources])
        columns: Columns = {"source": [sources[i][0] for i in kept], "label": [targets[i] for i in kept]}
        columns |= filters.hashes(pairs, kept)
        return columns | ({reader.column: [sources[i][1] for i in kept]} if reader.column else {}), reasons

    key = [reader.kind, reader.tokenizer.digest(), labels.names, reader.longest, *reader.key(drop_duplicates)]
    columns = {"source": ids_below(reader.tokenizer.size), "label": labels.dtype}
    if reader.column:
        columns[reader.column] = ids_below(reader.longest + 1)
    return Encoding([*key, *["several"] * labels.several], encode, columns, ["source"], unit=reader.unit)


def multi_hot(labels: Rows, counts: Rows, size: int) -> Rows:
    """[n, size]: ones at the labels of each text, given the labels of all texts and their number per text."""
    hot = np.zeros((len(counts), size), np.int64)
    hot[np.repeat(np.arange(len(counts)), counts), labels] = 1
    return hot


def random_words(shape: int | tuple[int, int], size: int, seed: int) -> Rows:
    """Ids below `size` without special tokens, for made-up batches."""
    return np.random.default_rng(seed).integers(RESERVED, max(RESERVED + 1, size), shape)


def make_labelled(
    source: Rows, labels: Rows, lengths: Rows, rows: Rows | None = None, *, budget: int = 0, rounded: bool = False
) -> LabelBatch:
    """A batch of texts, given all their tokens, their labels [n] or multi-hot labels [n, C], and their lengths [n].

    Rows that only fill it up have the label `NO_LABEL`.
    """
    (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
    filled = np.full((len(layout.segments), *labels.shape[1:]), NO_LABEL, np.int64)
    filled[: len(labels)] = labels
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return LabelBatch(numbers, Source(spread(source, layout), layout), torch.from_numpy(filled))
