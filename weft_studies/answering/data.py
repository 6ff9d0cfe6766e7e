"""Stories with a question and an answer each, as pairs of texts, as a corpus, and as batches.

The source of a pair is a story: its sentences and, last, the question. It can be written in three ways:

    {"story": ["Mary went home.", "John slept."], "question": "Where is Mary?"}   a JSON object
    Mary went home.⇥John slept.⇥Where is Mary?                                   sentences with a tab (⇥) between them
    Mary went home. John slept. Where is Mary?                                   plain text, split after . ? and !

The columns of the corpus are `source`, in which every sentence ends with EOS, and `label`, the answer.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from weft.data.batch import EOS
from weft.data.column_checks_and_listed_files import DataFormat
from weft.data.formats import Pairs, combine, open_pairs
from weft.data.json_text import parse_json
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.errors import DataError
from weft.tasks.classification.data import Document, TextReader

END = re.compile(r"(?<=[.?!])\s+")
SHAPE = '{"story": ["a sentence", "another"], "question": "…", "answer": "…"}'


def read_story(text: str) -> list[str]:
    """The sentences of a story, the question last. Raises DataError if a JSON object lacks something."""
    if text.lstrip().startswith("{"):
        record = parse_json(text, "this story")
        return [*_sentences(record), _text(record, "question")]
    parts = text.split("\t") if "\t" in text else END.split(text)
    return [sentence for part in parts if (sentence := " ".join(part.split()))]


def join_story(sentences: Sequence[str]) -> str:
    """Sentences as one text."""
    return "\t".join(sentences)


def split_story(text: str) -> list[str]:
    """The sentences that `join_story` joined."""
    return text.split("\t") if text else []


def _sentences(record: dict[str, Any]) -> list[str]:
    story = record.get("story")
    if isinstance(story, str):
        return read_story(story) if story.strip() else []
    if not isinstance(story, list) or not all(isinstance(sentence, str) for sentence in story):
        raise DataError(f"`story` must be a text or a list of sentences, not {story!r:.60}; write {SHAPE}")
    return [one for sentence in story if (one := " ".join(sentence.split()))]


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"there is no `{key}`; write {SHAPE}")
    return " ".join(value.split())


class QuestionPairs(Pairs):
    """JSON lines with `story`, `question` and `answer`. Blank lines are skipped."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = str(check_file(path))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        empty = True
        for number, line in enumerate(read_lines(self.path), start=1):
            if not line.strip():
                continue
            empty = False
            try:
                if not line.lstrip().startswith("{"):
                    raise DataError(f"each line must be a JSON object; write {SHAPE}")
                yield join_story(read_story(line)), _text(parse_json(line, "this line"), "answer")
            except DataError as error:
                raise DataError(f"{self.path}, line {number:,}: {error}") from None
        if empty:
            raise DataError(f"{self.path} is empty.")

    def digest(self) -> str:
        return combine("stories", file_digest(self.path))


def open_stories(spec: str) -> Pairs:
    """Stories with answers: a JSON lines file, or pairs of texts in any other format that `open_pairs` knows."""
    plain = spec.removesuffix(".gz")
    return QuestionPairs(spec) if plain.endswith(".jsonl") and "," not in spec else open_pairs(spec)


FORMAT = DataFormat(open_stories, read_lines)
"""A line of inputs is a story, in any of the ways that stories are written."""


class StoryReader(TextReader):
    """Turns stories into token ids, with EOS after each sentence. Of a story with more than `longest`, the latest are read."""

    kind, unit = "stories", "questions"

    def key(self, drop_duplicates: bool) -> list[Any]:
        return []

    def read(self, texts: Sequence[str]) -> list[Document]:
        return [(ids, []) for ids in self.encode_stories([read_story(text) for text in texts])]

    def encode_stories(self, stories: Sequence[Sequence[str]]) -> list[list[int]]:
        """The ids of the sentences of each story."""
        ids = iter(self.tokenizer.encode_batch(list(chain.from_iterable(stories))))
        encoded = []
        for story in stories:
            sentences = [[*next(ids)[: self.longest - 1], EOS] for _ in story]
            room, kept = self.longest, len(sentences)
            while kept and len(sentences[kept - 1]) <= room:
                kept -= 1
                room -= len(sentences[kept])
            encoded.append(list(chain.from_iterable(sentences[kept:])))
        return encoded
