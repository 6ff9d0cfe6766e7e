"""Passages, questions and answers: their files, their words, and where in a passage an answer is.

    {"passage": "Mary lives in Rome.", "question": "Where does Mary live?", "answer": "Rome"}   JSON lines
    passages.tsv#1,2,3     a table with these columns
    train-v1.1.json        a file in the format of SQuAD

An answer is a text of the passage, word by word; several ones are a list in JSON. The columns of the corpus are `word`, `piece`
and `size` as for tagging, `sentences` with the number of words of passage and question, and `span` with the first and the last
word of each place where an answer is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from weft.data.batch import NO_LABEL, TwoTextBatch
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Fields, Pairs, Texts, combine, join_texts
from weft.data.json_text import parse_json
from weft.data.sentence_pairs import PairFilters
from weft.data.text_lines import check_file, file_digest, read_text
from weft.errors import DataError
from weft.file_access import MALFORMED
from weft.tasks.tagging.data import Lexicon, TaggedEncoding, Vocabulary, word_table
from weft.tasks.two_texts import make_two_texts, split_texts, two_text_format

FIELDS: Fields = (("passage", "context", "story", "source"), ("question",), ("answer", "answers", "target"))
"""The names of the columns."""

WORD = re.compile(r"\w+|[^\w\s]")

Spans = list[tuple[int, int]]
"""First and last places of words in a text, or the first and the last word of each answer."""


class SquadPairs(Pairs):
    """Passages with questions in the format of SQuAD, one JSON document. Questions without an answer are left out."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = str(check_file(path))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        try:
            document = parse_json(read_text(self.path), self.path)
            for article in document["data"]:
                for paragraph in article["paragraphs"]:
                    for asked in paragraph["qas"]:
                        if answers := list(dict.fromkeys(each["text"] for each in asked["answers"])):
                            yield join_texts([paragraph["context"], asked["question"]]), "\n".join(answers)
                        else:
                            self.left_out["questions without an answer"] += 1
        except MALFORMED as error:
            raise DataError(
                f"{self.path}: this is not a file in the format of SQuAD ({type(error).__name__}: {error}); JSON lines with "
                "passage, question and answer end in .jsonl"
            ) from None

    def digest(self) -> str:
        return combine("squad", file_digest(self.path))


def open_passages(spec: str) -> Pairs:
    """Opens SQuAD's .json, or any table or JSON lines with a passage, a question and an answer."""
    return SquadPairs(spec) if spec.endswith(".json") else _TABLES.open(spec)


_TABLES = two_text_format(FIELDS)
FORMAT = replace(_TABLES, open=open_passages)


def find_words(text: str) -> Spans:
    """Beginnings and ends of words: letters and digits, or a single other character."""
    return [match.span() for match in WORD.finditer(text)]


def words_of(text: str) -> list[str]:
    return WORD.findall(text)


def find_answers(passage: Sequence[str], answers: Iterable[str]) -> Spans:
    """The first and the last word of each place in a passage where one of the answers is, capitals ignored."""
    found: Spans = []
    lower = [word.lower() for word in passage]
    for answer in answers:
        wanted = [word.lower() for word in words_of(answer)]
        size = len(wanted)
        if size:
            found += [(at, at + size - 1) for at in range(len(lower) - size + 1) if lower[at : at + size] == wanted]
    return sorted(set(found))


def count_words(train: Sequence[Pairs], vocabulary: Vocabulary) -> Lexicon:
    """The words of passages and questions, most frequent first. A passage that recurs with other questions counts again."""
    counts = Counter(chain.from_iterable(words_of(source) for source, _ in chain.from_iterable(train)))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    return Lexicon({word: counts[word] for word in words}, dict.fromkeys(words, ""), vocabulary)


@dataclass(frozen=True)
class PassageReader:
    """Turns passages and questions into words with their pieces. Each is cut after `longest` words."""

    words: TaggedEncoding
    longest: int

    def cut(self, source: str) -> tuple[list[str], list[str]]:
        """The words of a passage and of a question; none if one of them has none."""
        passage, question = (words_of(text)[: self.longest] for text in split_texts(source))
        return (passage, question) if passage and question else ([], [])

    def encoding(self, *, drop_duplicates: bool) -> Encoding:
        """The corpus. Left out are questions whose answer is not in the passage, or only behind its cut."""
        filters = PairFilters(2 * self.longest, None, drop_duplicates)

        def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
            known: Texts = []
            rows: list[tuple[list[str], list[str], Spans]] = []
            for source, answers in texts:
                passage, question = self.cut(source)
                spans = find_answers(passage, answers.splitlines())
                if spans or not passage:
                    known.append((source, answers))
                    rows.append((passage, question, spans))
            kept, reasons = filters(known, [range(len(passage) + len(question)) for passage, question, _ in rows])
            chosen = [rows[place] for place in kept]
            pieces = [self.words.subwords([*passage, *question]) for passage, question, _ in chosen]
            columns: Columns = {
                "word": [self.words.lexicon.find([*passage, *question]) for passage, question, _ in chosen],
                "piece": [list(chain.from_iterable(each)) for each in pieces],
                "size": [[len(word) for word in each] for each in pieces],
                "sentences": [[len(passage), len(question)] for passage, question, _ in chosen],
                "span": [list(chain.from_iterable(spans)) for _, _, spans in chosen],
                **filters.hashes(known, kept),
            }
            return columns, {"with an answer that is not in the passage": len(texts) - len(known), **reasons}

        key = ["reading", self.words.key(), self.longest, drop_duplicates]
        ids = {"word": ids_below(self.words.lexicon.size), "piece": ids_below(self.words.tokenizer.size)}
        columns = {name: ids.get(name, ids_below(self.longest + 1)) for name in ("word", "piece", "size", "sentences", "span")}
        return Encoding(key, encode, columns, ["word"], unit="questions")

    def batch(self, sources: Sequence[tuple[list[str], list[str]]]) -> TwoTextBatch:
        """A batch of passages with questions, without answers."""
        words = [[*passage, *question] for passage, question in sources]
        pieces = [piece for row in words for piece in self.words.subwords(row)]
        ids = np.array([number for row in words for number in self.words.lexicon.find(row)])
        sizes = np.array([len(piece) for piece in pieces])
        counts = np.array([len(text) for pair in sources for text in pair])
        flat = np.array(list(chain.from_iterable(pieces)))
        return make_passages(ids, flat, sizes, counts, np.zeros((len(sources), 0, 2), np.int64), np.arange(len(sources)))


def make_passages(words: Rows, pieces: Rows, sizes: Rows, counts: Rows, spans: Rows, rows: Rows) -> TwoTextBatch:
    """A batch of passages and questions, given all words, the pieces of all words, the number of pieces per word and of words
    per text [2n], and the first and last words of answers [n, k, 2], `NO_LABEL` where there are fewer."""
    return make_two_texts(word_table(words, pieces, sizes.astype(np.int64), rounded=False), counts, spans, rows)


def gather_passages(corpus: Corpus, rows: Rows) -> TwoTextBatch:
    """The batch of some rows of a corpus."""
    rows = np.asarray(rows, dtype=np.int64)
    (words, _), (pieces, _), (sizes, _), (counts, _) = (
        corpus.gather(name, rows) for name in ("word", "piece", "size", "sentences")
    )
    flat, lengths = corpus.gather("span", rows)
    spans = np.full((len(rows), max(1, int(lengths.max()) // 2) * 2), NO_LABEL, np.int64)
    spans[np.arange(spans.shape[1]) < lengths[:, None]] = flat
    return make_passages(words, pieces, sizes, counts, spans.reshape(len(rows), -1, 2), rows)


def random_passages(length: int, rows: int, words: int, pieces: int) -> TwoTextBatch:
    """Random passages of `length` words with questions of a fifth as many, answered by their first word."""
    draw, counts = np.random.default_rng(length), np.tile([length, max(1, length // 5)], rows)
    total = int(counts.sum())
    ids, flat = draw.integers(4, max(5, words), total), draw.integers(4, max(5, pieces), total)
    return make_passages(ids, flat, np.ones(total, np.int64), counts, np.zeros((rows, 1, 2), np.int64), np.arange(rows))
