"""Two texts and what is said about them: their files, their token ids, and batches of them.

Both texts of an example are one source with a tab between them (`weft.data.formats.join_texts`). In a corpus they are a
document of two sentences: the column `source` has the ids of both, and `sentences` the number of ids of each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batch import EOS, Layout, Source, TwoTextBatch
from weft.data.batching import spread
from weft.data.column_checks_and_listed_files import ROWS, DataFormat, check_columns
from weft.data.corpus import Rows
from weft.data.formats import (
    Fields,
    MappedPairs,
    Pairs,
    TablePairs,
    find_key,
    is_json,
    join_texts,
    listed,
    open_pairs,
    read_sources,
    text_at,
)
from weft.data.json_text import parse_json
from weft.data.text_lines import read_lines
from weft.data.tokenizers import Tokenizer
from weft.errors import DataError
from weft.file_access import plain_name
from weft.tasks.classification.data import Document, TextReader


def split_texts(source: str) -> tuple[str, str]:
    """Both texts of a source; empty ones of a blank source."""
    first, _, second = source.partition("\t")
    return first, second


def spaced(pairs: Sequence[Pairs]) -> list[Pairs]:
    """Pairs with a space between both texts, to train a tokenizer on."""
    return [MappedPairs(some, lambda source, target: (source.replace("\t", " "), target), "spaced") for some in pairs]


def two_text_format(fields: Fields) -> DataFormat:
    """The format of data with these three fields; `check` refuses tables of other widths unless columns are chosen."""
    return DataFormat(partial(open_pairs, fields=fields), partial(_read_inputs, fields=fields), partial(_check, fields=fields))


def _check(pairs: Pairs, report: Callable[[str], None], fields: Fields) -> None:
    check_columns(pairs, report)
    if not isinstance(pairs, TablePairs) or pairs.chosen is not None:
        return
    rows = pairs.head(ROWS)
    width, names = len(rows[0]) if rows else 0, listed(fields)
    if width == len(fields) or not width or pairs.headed(rows[0]):
        return
    if width < len(fields):
        raise DataError(f"{pairs.path} has {width} columns, and this task reads {len(fields)}: {names}")
    columns = ",".join(str(place + 1) for place in pairs.likely(width))
    raise DataError(
        f"{pairs.path} has {width} columns, and this task reads {len(fields)}: {names}. Choose them, for example "
        f"{pairs.path}#{columns}, or {pairs.path}#1,2,3 for the first three"
    )


def _read_inputs(file: Path, fields: Fields) -> Iterable[str]:
    """The two texts of each line of a file: JSON lines, or the first two columns of a .tsv."""
    if is_json(file):
        return read_sources(file, fields)
    if plain_name(file.name).endswith(".tsv"):
        return ("\t".join(line.split("\t")[:2]) for line in read_lines(file))
    return read_lines(file)


def read_two_texts(line: str, fields: Fields) -> str:
    """A source from a line: two texts with a tab between them, or a JSON object with both. A blank line stays blank."""
    if not line.strip():
        return ""
    form = f'write both with a tab between them, or {{"{fields[0][0]}": "…", "{fields[1][0]}": "…"}}'
    texts = line.split("\t")
    if len(texts) == 1 and line.lstrip().startswith("{"):  # a text may begin so, as in {0} files
        record = parse_json(line, "this input")
        texts = [text_at(record, find_key(record, known), "the input") for known in fields[:-1]]
    if len(texts) != 2:
        raise DataError(f"an input has two texts, a {fields[0][0]} and a {fields[1][0]}, and there are {len(texts)}; {form}")
    for text, known in zip(texts, fields):
        if not text.strip():
            raise DataError(f"the {known[0]} is empty; {form}")
    return join_texts(texts)


@dataclass(frozen=True)
class TwoTextReader(TextReader):
    """Turns two texts into token ids, each with EOS at the end. Each is cut after `longest` tokens."""

    kind: ClassVar[str] = "two texts"
    unit: ClassVar[str] = "pairs"
    by_sentence: bool = True

    @property
    def most(self) -> int:
        return 2 * (self.longest + 1)

    def length(self, document: Document) -> int:
        return max(document[1], default=0)

    def key(self, drop_duplicates: bool) -> list[Any]:
        return [drop_duplicates]

    @property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Those of the first and of the second text."""
        return self.tokenizer, self.tokenizer

    def encode(self, texts: Sequence[str]) -> list[Document]:
        """The ids of both texts; none if one of them is empty."""
        pairs = [split_texts(text) for text in texts]
        sides = (each.encode_batch([pair[side] for pair in pairs]) for side, each in enumerate(self.tokenizers))
        both = zip(*sides, strict=True)
        return [([*first, *second], [len(first), len(second)]) if first and second else ([], []) for first, second in both]

    def cut(self, document: Document) -> Document:
        ids, sizes = document
        if not ids:
            return [], []
        kept = [[*text[: self.longest], EOS] for text in (ids[: sizes[0]], ids[sizes[0] :])]
        return list(chain.from_iterable(kept)), [len(text) for text in kept]


def two_sources(ids: NDArray[Any], sizes: Rows) -> tuple[Source, Source]:
    """Two texts a row as sources, given all ids, and the number of ids of each text, the first one of a row first."""
    lengths = np.asarray(sizes, np.int64).reshape(-1, 2)
    mine = np.repeat(np.tile([True, False], len(lengths)), lengths.ravel())
    first, second = (Layout.padded(column) for column in lengths.T)
    return Source(spread(ids[mine], first), first), Source(spread(ids[~mine], second), second)


def make_two_texts(ids: NDArray[Any], sizes: Rows, labels: NDArray[Any], rows: Rows) -> TwoTextBatch:
    """A batch of two texts a row with their labels; see `two_sources`."""
    first, second = two_sources(ids, sizes)
    return TwoTextBatch(torch.from_numpy(rows), first, torch.from_numpy(labels), second)
