"""Parallel data: pairs of texts from files, Hugging Face datasets and generators, named by one short string.

    a.en,a.de                     two text files, aligned line by line
    pairs.tsv   pairs.tsv#3,1     tab-separated columns: the first two, or those with the given numbers or names
    pairs.tsv   pairs.tsv#1,2,4   for tasks that read two texts: the first three, or those given; the last one is the reference
    pairs.csv   pairs.csv#en,de   comma-separated columns with quotes: `source` and `target`, or those given
    pairs.jsonl pairs.jsonl#en,de one JSON object per line: the keys `source` and `target`, or those given (a.b: b inside a)
    docs.jsonl                    documents with labels: the keys `sentences` (a list) or `text`, and `label` (also a list)
    memory.tmx  memory.tmx#en,de  a translation memory; more such formats: `weft.data.file_formats`
    …each also as .gz, .bz2, .xz or .zst, and in another encoding: pairs.csv@cp1252
    corpus-*.tsv   corpus-*.en,corpus-*.de         shards of a corpus, in the order of their names
    https://…/pairs.tsv.gz   s3://…                remote files, copied into the cache (needs the extra `remote`)
    hf:NAME[:CONFIG][@SPLIT]#SOURCE,TARGET         a Hugging Face dataset (needs `pip install 'weft-seq2seq[datasets]'`)
    generated:dates?count=20000&seed=1&split=test  see `weft.data.generators`

Data is streamed line by line and can be read any number of times. Columns are chosen by number, counted from 1, or by name;
names are those of the first row, which is then no pair. The source of a pair may be several texts, with tabs between them.
`corpus#en,de` names the files corpus.en and corpus.de.
"""

import csv
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from weft.data.file_formats import FILE_FORMATS, SUBTITLES
from weft.data.json_text import parse_json
from weft.data.misaligned_lines import explain_mismatch
from weft.data.remote_files import local_copies
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.errors import DataError
from weft.file_access import is_pattern, matching_files, plain_name
from weft.version import install

Texts = list[tuple[str, str]]
Row = tuple[int, list[str]]
"""The number of a line, and its cells."""

FORMS = (
    "'a.en,a.de', 'pairs.tsv' or 'pairs.tsv#2,3', 'pairs.jsonl' or 'pairs.jsonl#en,de', 'pairs.csv' or 'pairs.csv#en,de' "
    f"(each also .gz), {', '.join(FILE_FORMATS)}, 'hf:NAME#SOURCE,TARGET' or 'generated:dates?count=1000'"
)

SOURCES, TARGETS = ("source", "sentences", "text"), ("target", "label", "labels")
"""The keys of JSON records that are looked for if none are chosen, the first ones first."""

Fields = Sequence[Sequence[str]]
"""The columns of an example, each by the names that are looked for; the last one is the reference."""

PAIR: Fields = (SOURCES, TARGETS)

COUNTS = {2: "two", 3: "three", 4: "four"}

DELIMITERS = ",;\t|"
"""Delimiters that a .csv may use."""

SEPARATOR_LINE = re.compile(r"sep=(.)")
"""The first line of a .csv that names its delimiter, as Excel reads it."""

SAMPLE = 50
"""Rows of a .csv that decide which delimiter it uses."""

KEPT = 50_000
"""Maximum number of generated pairs kept in memory: long ones take time to make, and training reads them repeatedly."""


class Pairs(ABC):
    """(source, target) pairs that can be read any number of times, in constant memory.

    left_out: entries of a file that are no pairs, counted by reason each time the pairs are read
    line_files: files with a line for each pair, more or less; none if there are none
    """

    line_files: Sequence[str] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_out: Counter[str] = Counter()

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    @abstractmethod
    def digest(self) -> str:
        """A hash of everything that the pairs depend on."""

    def sources(self) -> Iterator[str]:
        """The texts to translate or to classify. A format may have some without a target."""
        return (source for source, _ in self)


def combine(*parts: str) -> str:
    """One hash of several texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


class MappedPairs(Pairs):
    """The pairs of another source with changed texts. key: identifies the change."""

    def __init__(self, pairs: Pairs, change: Callable[[str, str], tuple[str, str]], key: str) -> None:
        super().__init__(pairs.name)
        self.pairs, self.change, self.key = pairs, change, key
        self.left_out, self.line_files = pairs.left_out, pairs.line_files

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (self.change(*pair) for pair in self.pairs)

    def digest(self) -> str:
        return combine(self.key, self.pairs.digest())


def join_texts(texts: Sequence[str]) -> str:
    """Several texts as one source, with tabs between them; tabs inside become spaces."""
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def open_pairs(spec: str, fields: Fields = PAIR) -> Pairs:
    """Opens the pairs that `spec` names (see the top of this file).

    A wrong name or a missing file is an error here; an error inside a file is raised when it is read.

    fields: the columns of an example; if there are more than two, a source has several texts, see `join_texts`.
    """
    if spec.startswith("generated:"):
        return GeneratedPairs(spec)
    if spec.startswith("hf:"):
        return HuggingFacePairs(spec, fields)
    if "\0" in spec:
        raise DataError(f"{spec!r}: the name of a file has no null character.")
    if "://" in spec:
        copies = local_copies(spec)
        if "://" in copies:
            raise DataError(f"{spec}: this is no address of a file; write one such as https://host/pairs.tsv.gz.")
        return open_pairs(copies, fields)
    path, columns = _columns(spec)
    if any(map(is_pattern, path.split(","))):
        return ShardedPairs(spec, path.split(","), f"#{','.join(columns)}" if columns else "", fields)
    kind = _kind(path)
    check_count(spec, columns, fields)
    if columns and kind == "" and all(os.path.isfile(f"{path}.{language}") for language in columns):
        return TextPairs(spec, *(f"{path}.{language}" for language in columns))
    if os.path.isdir(spec):
        raise DataError(f"{spec} is a folder; name the files in it{_example(Path(spec))}.")
    if kind in TABLES:
        return TABLES[kind](spec, path, columns, fields)
    if kind == ".jsonl":
        return JsonPairs(spec, path, columns, fields)
    if kind in FILE_FORMATS:
        if len(fields) > 2:
            raise DataError(f"{spec}: {kind} files have two texts; this task reads tables: {listed(fields)}.")
        return _file_format(kind)(spec, path, columns)
    if spec.count(",") == 1 and all(part.strip() for part in spec.split(",")):
        if len(fields) > 2:
            raise DataError(f"{spec}: two aligned files have no third column; this task reads tables: {listed(fields)}.")
        source, target = (part.strip() for part in spec.split(","))
        if (kinds := {_kind(source), _kind(target)}) <= set(SUBTITLES):
            return _file_format(min(kinds))(spec, source, target)
        return TextPairs(spec, source, target)
    raise DataError(f"{spec!r} is not a known data format. Write {FORMS}.")


class ShardedPairs(Pairs):
    """The pairs of several files, one after the other: `corpus-*.tsv`, or `corpus-*.en,corpus-*.de`."""

    def __init__(self, spec: str, patterns: Sequence[str], columns: str, fields: Fields) -> None:
        super().__init__(spec)
        sides = [matching_files(pattern.strip()) if is_pattern(pattern.strip()) else [pattern.strip()] for pattern in patterns]
        for pattern, files in zip(patterns, sides):
            if not files:
                raise DataError(f"{pattern}: no file has such a name (looked in {Path(pattern).absolute().parent}).")
        if len({len(files) for files in sides}) > 1:
            found = " and ".join(f"{len(files):,} files match {pattern}" for pattern, files in zip(patterns, sides))
            raise DataError(f"{spec}: {found}; both sides need as many.")
        self.shards = [open_pairs(",".join(files) + columns, fields) for files in zip(*sides)]
        self.line_files = [file for shard in self.shards for file in shard.line_files]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        for shard in self.shards:
            yield from shard
            self.left_out.update(shard.left_out)

    def sources(self) -> Iterator[str]:
        for shard in self.shards:
            yield from shard.sources()

    def digest(self) -> str:
        return combine("shards", *(shard.digest() for shard in self.shards))


def _kind(path: str) -> str:
    """The suffix of a table or of another file with pairs; empty for all other names."""
    suffix = Path(plain_name(path)).suffix.lower()
    return suffix if suffix in (*TABLES, ".jsonl", *FILE_FORMATS, *SUBTITLES) and "," not in path else ""


def _file_format(kind: str) -> Any:
    """The class that reads files of a format of `FILE_FORMATS`."""
    module, _, name = {**FILE_FORMATS, **SUBTITLES}[kind].partition(":")
    return getattr(import_module(module), name)


def check_count(spec: str, columns: Sequence[str] | None, fields: Fields) -> None:
    """Raises DataError if more or fewer columns are chosen than an example has."""
    if columns is None or len(columns) == len(fields):
        return
    advice = "" if len(fields) > 2 else " For two texts and a label, train the task pairs: --set task.kind=pairs."
    raise DataError(
        f"{spec}: {len(columns)} columns are chosen, and this task reads {COUNTS[len(fields)]}: {listed(fields)}.{advice}"
    )


def listed(fields: Fields) -> str:
    """The names of the columns as part of a sentence."""
    *names, last = (known[0] for known in fields)
    return f"{', '.join(names)} and {last}"


def _example(folder: Path) -> str:
    """Data in a folder: a table, or two files whose names differ in their ends."""
    names = sorted(path.name for path in islice(folder.iterdir(), 10_000) if path.is_file())
    if tables := [name for name in names if is_table(name)]:
        return f", for example {folder / min(tables, key=lambda name: 'train' not in name)}"
    stems: dict[str, list[str]] = {}
    for name in names:
        stems.setdefault(Path(plain_name(name)).stem, []).append(name)
    pairs = [files for files in stems.values() if len(files) == 2]
    if pairs:
        return f", for example {','.join(str(folder / name) for name in min(pairs, key=lambda files: 'train' not in files[0]))}"
    return ", for example FOLDER/train.en,FOLDER/train.de or FOLDER/pairs.tsv"


def _columns(spec: str) -> tuple[str, tuple[str, ...] | None]:
    """Splits `path#source,target`. A path may itself contain '#': only one that is followed by several names counts."""
    path, mark, names = spec.rpartition("#")
    if not mark or "," not in names:
        return spec, None
    columns = tuple(name.strip() for name in names.split(","))
    if _kind(path) or all(os.path.isfile(f"{path}.{name}") for name in columns):
        return path, columns
    return spec, None


def is_table(name: str) -> bool:
    """Whether a file holds pairs: a table, JSON lines or another format."""
    return _kind(name) not in ("", *SUBTITLES)


def swapped(spec: str) -> str:
    """Names the same pairs with source and target exchanged."""
    path, columns = _columns(spec)
    if spec.startswith("hf:") or columns:
        path, _, names = spec.rpartition("#")
        return f"{path}#{','.join(reversed(names.split(',')))}"
    if is_table(path):
        return f"{spec}#2,1" if _kind(path) == ".tsv" else f"{spec}#target,source"
    if spec.count(",") == 1 and not spec.startswith("generated:"):
        return ",".join(reversed(spec.split(",")))
    raise DataError(f"{spec}: source and target of this data cannot be exchanged; write it to a file first.")


class TextPairs(Pairs):
    """Two text files, aligned line by line."""

    def __init__(self, name: str, source: str, target: str) -> None:
        super().__init__(name)
        self.source, self.target, self.line_files = source, target, [source]
        for path in (source, target):
            check_file(path)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        empty = True
        for source, target in zip_longest(read_lines(self.source), read_lines(self.target)):
            if source is None or target is None:
                shorter = self.source if source is None else self.target
                raise DataError(f"{shorter} is empty." if empty else explain_mismatch(self.source, self.target))
            empty = False
            yield source, target
        if empty:
            raise DataError(f"{self.source} and {self.target} are empty.")

    def digest(self) -> str:
        return combine("text", file_digest(self.source), file_digest(self.target))


class TablePairs(Pairs):
    """Two or more columns of a table with a pair per row. Blank rows are skipped.

    Every row must have as many columns as the first; otherwise a stray delimiter inside a text would silently truncate it.
    """

    kind: str
    advice: str

    def __init__(self, name: str, path: str, columns: tuple[str, ...] | None, fields: Fields = PAIR) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.chosen, self.fields, self.line_files = columns, fields, [self.path]
        numeric = [column.isdecimal() for column in columns or ()]
        if len(set(numeric)) > 1 or any(number and not int(text) for number, text in zip(numeric, columns or ())):
            count = COUNTS[len(fields)]
            raise DataError(f"{name}: columns are {count} numbers from 1 on, or {count} names from the first row.")
        self.named = not all(numeric)

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All rows, the first one included, that are not blank."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        rows = self.rows()
        number, first = next(rows, (0, []))
        if not first:
            raise DataError(f"{self.path} is empty.")
        *sources, target = self._places(number, first)
        one = sources[0] if len(sources) == 1 else None
        if not self.headed(first):
            yield join_texts([first[place] for place in sources]), first[target]
        pair = (0, [""])
        for pair in rows:
            number, cells = pair
            if len(cells) != len(first):
                raise DataError(
                    f"{self.path}, line {number:,}: {len(cells)} columns, but the lines before it have {len(first)}: "
                    f"{_excerpt(cells)}. {self.advice}"
                )
            yield join_texts([cells[place] for place in sources]) if one is None else cells[one], cells[target]
        if self.headed(first) and not pair[0]:
            raise DataError(f"{self.path} is empty except for its first row, {_excerpt(first)}.")

    def headed(self, first: list[str]) -> bool:
        """Whether the first row, of these cells, names the columns."""
        return self.named

    def head(self, count: int) -> list[list[str]]:
        """The cells of the first rows."""
        return [cells for _, cells in islice(self.rows(), count)]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The indices of the columns, by default the first ones, if they are not chosen by name."""
        return tuple(int(column) - 1 for column in self.chosen) if self.chosen else tuple(range(len(self.fields)))

    def _places(self, number: int, first: list[str]) -> tuple[int, ...]:
        """The indices of the columns."""
        where = f"{self.path}, line {number:,}"
        if self.headed(first):
            names = [cell.strip() for cell in first]
            for column in self.chosen or ():
                if (count := names.count(column)) != 1:
                    raise DataError(
                        f"{where}: {count or 'no'} column is called {column!r}; found {', '.join(map(repr, names))}."
                    )
            return tuple(names.index(column) for column in self.chosen or self.found(names))
        if max(self.numbers) >= len(first):
            example = ",".join(str(place + 2) for place in range(len(self.fields)))
            raise DataError(
                f"{where}: there is no column {max(self.numbers) + 1}, only {len(first)}: {_excerpt(first)}. {self.advice} "
                f"Choose other columns like {self.path}#{example}."
            )
        return self.numbers

    def likely(self, width: int) -> list[int]:
        """Columns to propose: those with the most letters, which hold neither ids nor numbers; of three, the last is the one
        whose cells recur most often."""
        rows = [cells for cells in self.head(SAMPLE) if len(cells) == width][1:]
        letters = [sum(map(str.isalpha, "".join(cells[column] for cells in rows))) for column in range(width)]
        texts = sorted(sorted(range(width), key=lambda column: -letters[column])[:2])
        others = [column for column in range(width) if column not in texts]
        if len(self.fields) == 2 or not others:
            return texts
        return [*texts, min(others, key=lambda column: len({cells[column] for cells in rows}))]

    def found(self, names: Sequence[str]) -> list[str]:
        """The names of the columns among those of the first row; fewer than there are fields if one is missing."""
        fields = [("source",), ("target",)] if self.fields is PAIR else self.fields  # other names of a pair have to be chosen
        each = (next((name for name in known if name in names), None) for known in fields)
        return [name for name in each if name is not None]

    @property
    def default(self) -> tuple[str, ...]:
        """Identifies the columns that are read if none are chosen."""
        return tuple(map(str, range(len(self.fields))))

    def digest(self) -> str:
        columns = self.chosen or self.default
        if self.chosen and not self.named:
            columns = tuple(map(str, self.numbers))
        return combine(self.kind, *columns, file_digest(self.path))


class TsvPairs(TablePairs):
    """Tab-separated columns without quotes."""

    kind, advice = "tsv", "Separate columns by tabs, and check for a missing tab or a tab inside a text."

    def rows(self) -> Iterator[Row]:
        return ((number, line.split("\t")) for number, line in enumerate(read_lines(self.path), start=1) if line)


class CsvPairs(TablePairs):
    """Columns separated by commas, semicolons, tabs or |; a text may be quoted, and then contain delimiters and line ends.

    Unless columns are chosen, they are those called `source` and `target`, or the only two.
    """

    kind, advice = "csv", 'Put texts that contain the delimiter into quotes: "a, b".'

    @property
    def default(self) -> tuple[str, ...]:
        return ("source or first", "target or second") if len(self.fields) == 2 else tuple(known[0] for known in self.fields)

    def rows(self) -> Iterator[Row]:
        return self._parse(*self._dialect())

    def _parse(self, delimiter: str, escape: str | None) -> Iterator[Row]:
        reader = self._reader(delimiter, escape)
        try:
            for cells in reader:
                if any(cells) and not (reader.line_num == 1 and SEPARATOR_LINE.fullmatch(delimiter.join(cells))):
                    yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(f"{self.path}, line {reader.line_num:,}: not valid CSV: {error}. Check its quotes.") from None

    def _reader(self, delimiter: str, escape: str | None) -> Any:
        lines = (f"{line}\n" for line in read_lines(self.path))
        return csv.reader(lines, delimiter=delimiter, strict=True, escapechar=escape, doublequote=escape is None)

    def _dialect(self) -> tuple[str, str | None]:
        """The first delimiter by which all rows of a sample have the same number of columns, and more than one.

        A quote inside a text is doubled or, if this cannot be read, has a backslash before it.
        """
        if first := SEPARATOR_LINE.fullmatch(next(read_lines(self.path), "")):
            return first[1], None
        backslashes = any('\\"' in line for line in islice(read_lines(self.path), SAMPLE))
        for escape in (None, "\\")[: 1 + backslashes]:
            for delimiter in DELIMITERS:
                try:
                    widths = {len(cells) for cells in islice(self._reader(delimiter, escape), SAMPLE) if any(cells)}
                except csv.Error:
                    continue
                if len(widths) == 1 and min(widths) > 1:
                    return delimiter, escape
        return DELIMITERS[0], None

    def headed(self, first: list[str]) -> bool:
        if self.chosen is not None:
            return self.named
        names = [cell.strip() for cell in first]
        if len(self.found(names)) == len(self.fields):
            return True
        if len(first) > len(self.fields):
            places = self.likely(len(first))
            raise DataError(
                f"{self.path} has {len(first)} columns: {', '.join(map(repr, names))}. Choose {COUNTS[len(places)]} by name, "
                f"{self.path}#{','.join(names[place] for place in places)}, or, if the first row is a pair, by number, "
                f"{self.path}#{','.join(str(place + 1) for place in places)}."
            )
        return False


def _excerpt(cells: list[str]) -> str:
    return repr("\t".join(cells)[:80])


TABLES = {".tsv": TsvPairs, ".csv": CsvPairs}


class JsonPairs(Pairs):
    """One JSON object per line. Blank lines are skipped."""

    def __init__(self, name: str, path: str, columns: tuple[str, ...] | None, fields: Fields = PAIR) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.keys, self.fields, self.line_files = columns, fields, [self.path]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for record, where in read_records(self.path):
            *sources, target = self.keys or [find_key(record, names) for names in self.fields]
            yield join_texts([text_at(record, key, where) for key in sources]), text_at(record, target, where)

    def digest(self) -> str:
        return combine("json", *(self.keys or [names[0] for names in self.fields]), file_digest(self.path))


def is_json(path: str | Path) -> bool:
    """Whether a file has JSON lines, by its name."""
    return plain_name(path).endswith(".jsonl")


def read_records(path: str | Path) -> Iterator[tuple[Any, str]]:
    """The value of each JSON line that is not blank, and where it is."""
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            empty, where = False, f"{path}, line {number:,}"
            yield parse_json(line, where), where
    if empty:
        raise DataError(f"{path} is empty.")


def read_sources(path: str | Path, fields: Fields = PAIR) -> Iterator[str]:
    """The source of each record of a file."""
    for record, where in read_records(path):
        yield join_texts([text_at(record, find_key(record, names), where) for names in fields[:-1]])


def read_file_sources(path: str) -> Iterator[str]:
    """The sources in a file of `FILE_FORMATS`, also of entries without a translation."""
    return _file_format(_kind(path))(path, path, None).sources()


def has_file_format(path: str | Path) -> bool:
    """Whether a file has a format of `FILE_FORMATS`, by its name."""
    return _kind(str(path)) in FILE_FORMATS


def holds_pairs(spec: str) -> bool:
    """Whether a name means data of pairs rather than a file of lines."""
    return "#" in spec or "," in spec or bool(_kind(spec))


def find_key(record: Any, names: Sequence[str]) -> str:
    """The first of the names that a record has; the first of all if it has none."""
    return next((name for name in names if isinstance(record, dict) and name in record), names[0])


def text_at(record: Any, key: str, where: str) -> str:
    """The text at `key` of a record; dots in the key lead into nested records.

    A text is a string or a number. A list of sentences or labels becomes the lines of one text, except at the keys `source` and
    `target`, which name single texts.
    """
    value = record
    for step in [key] if isinstance(record, dict) and key in record else key.split("."):
        if not isinstance(value, dict) or step not in value:
            present = ", ".join(map(repr, value)) if isinstance(value, dict) else f"a {type(value).__name__}"
            missing = " or ".join(map(repr, {SOURCES[0]: SOURCES, TARGETS[0]: TARGETS}.get(key, (key,))))
            raise DataError(
                f"{where}: there is no {missing}; found {present or 'nothing'}. Choose keys like pairs.jsonl#en,de."
            )
        value = value[step]
    if isinstance(value, list) and key not in (SOURCES[0], TARGETS[0]):
        return join_sentences([_plain(each, f"{key}[{place}]", where) for place, each in enumerate(value)])
    return _plain(value, key, where)


def join_sentences(sentences: Sequence[str]) -> str:
    """The sentences of a document as one text, each as a line. White space inside a sentence becomes spaces."""
    return "".join(f"{' '.join(sentence.split())}\n" for sentence in sentences)


def _plain(value: Any, key: str, where: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # labels are often numbers
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} must be text, not {value!r}.")
    return value


class HuggingFacePairs(Pairs):
    """Two or more columns of a dataset on the Hugging Face hub, or in a local folder that `datasets` can load."""

    def __init__(self, spec: str, fields: Fields = PAIR) -> None:
        super().__init__(spec)
        place, _, columns = spec.removeprefix("hf:").partition("#")
        place, _, self.split = place.partition("@")
        self.dataset, _, self.config = place.partition(":")
        self.columns = tuple(name.strip() for name in columns.split(","))
        if self.dataset and len(self.columns) > 1:
            check_count(spec, self.columns, fields)
        if not self.dataset or len(self.columns) < 2 or not all(self.columns):
            raise DataError(
                f"{spec!r}: write hf:NAME[:CONFIG][@SPLIT]#SOURCE,TARGET, for example hf:bentrevett/multi30k@train#en,de."
            )
        self._loaded: Any = None

    def _load(self) -> Any:
        if self._loaded is None:
            try:
                import datasets
            except ImportError:
                raise DataError(f"{self.name}: the package `datasets` is missing: {install('datasets')}") from None
            try:
                # Streamed: neither memory nor the disk has to hold the dataset.
                self._loaded = datasets.load_dataset(
                    self.dataset, self.config or None, split=self.split or "train", streaming=True
                )
            except Exception as error:  # the loader of a dataset may raise anything
                raise DataError(f"{self.name}: the dataset could not be loaded: {error}") from None
        return self._loaded

    def __iter__(self) -> Iterator[tuple[str, str]]:
        *sources, target = self.columns
        empty = True
        for number, record in enumerate(self._load(), start=1):
            where = f"{self.name}, record {number:,}"
            empty = False
            yield join_texts([text_at(record, key, where) for key in sources]), text_at(record, target, where)
        if empty:
            raise DataError(f"{self.name} is empty.")

    def digest(self) -> str:
        info = self._load().info  # a stream has no fingerprint
        return combine("hf", self.name, str([info.version, info.download_size, info.dataset_size, info.download_checksums]))


class GeneratedPairs(Pairs):
    """Generated pairs. Small sets are generated once and kept in memory, large ones every time they are read."""

    def __init__(self, spec: str) -> None:
        from weft.data.generators import parse_generator  # most data is not generated

        super().__init__(spec)
        self.generator = parse_generator(spec.removeprefix("generated:"))
        self._kept: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if not self._kept and len(self.generator) <= KEPT:
            self._kept = list(self.generator)
        return iter(self._kept or self.generator)

    def digest(self) -> str:
        return combine("generated", self.generator.digest())
