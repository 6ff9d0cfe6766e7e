"""The predictor of reading: a passage and a question to words of the passage, and the explanation of the choice."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.predictor import BatchItem, Prediction, TextInput, TextPredictor, json_number
from weft.decoding.search_loop import Cancellation
from weft.explain.html_page import shaded_words, weight_table
from weft.tasks.reading.data import FIELDS, PassageReader, find_words, words_of
from weft.tasks.reading.model import Pointed, ReadingModel, best_span
from weft.tasks.two_texts import read_two_texts, split_texts


@dataclass
class Answer(Prediction):
    """An answer: `text` is that of the passage and `score` its log-probability.

    start: where it begins in the passage, in characters · words: of the passage · asked: of the question · pointed: for each
    pointer, the probability of each word · probabilities: of a cloze question, those of its words, the likeliest first.
    """

    start: int = 0
    words: list[str] = field(default_factory=list, repr=False)
    asked: list[str] = field(default_factory=list, repr=False)
    pointed: list[list[float]] = field(default_factory=list, repr=False)
    probabilities: dict[str, float] = field(default_factory=dict, repr=False)

    def document(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"text": self.text, "score": json_number(self.score), "start": self.start}
        if self.probabilities:
            plain["probabilities"] = {word: round(value, 6) for word, value in [*self.probabilities.items()][:SHOWN]}
        return plain


SHOWN = 10
"""The most words whose probabilities are listed."""


@dataclass(eq=False)
class PassagePart(BatchItem):
    """The words of a passage and of a question."""

    words: tuple[list[str], list[str]]


class ReadingPredictor(TextPredictor[Answer]):
    """A model that reads. An input has a passage and a question with a tab between them, or is a JSON object with both.

    longest: the most words of an answer.
    """

    no_fields = "an answer is part of the passage, so it has no prefix and no terms; leave them out"
    reader: PassageReader
    model: ReadingModel

    def __init__(
        self, model: ReadingModel, reader: PassageReader, longest: int, options: DecodingOptions, warn: Warn | None = None
    ) -> None:
        super().__init__(model, reader, options, warn)
        self.longest = longest

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> TextInput:
        return super().parse_input(read_two_texts(line, FIELDS), attention=attention, **fields)

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[PassagePart]]:
        groups = []
        for line, given in enumerate(inputs, start=first_line):
            passage, question = self.reader.cut(given.text)
            longest = max(len(words_of(text)) for text in split_texts(given.text))
            if longest > self.reader.longest:
                self.warn(f"line {line} has {longest:,} words; only the first {self.reader.longest:,} are read")
            ids = [0] * (len(passage) + len(question))  # their number is the size of the part
            groups.append([PassagePart(ids, words=(passage, question))] if passage else [])
        return groups

    def run(self, parts: list[PassagePart], control: Cancellation | None = None) -> list[tuple[Tensor, dict[str, Tensor]]]:
        batch = self.reader.batch([part.words for part in parts]).to(self.model.device)
        pointed: Pointed = self.forward(batch.source, batch.second)
        logits, weights = pointed.logits.float().cpu(), {name: each.float().cpu() for name, each in pointed.weights.items()}
        found = []
        for row, part in enumerate(parts):
            own = {name: each[row] for name, each in weights.items()}
            found.append((logits[row, : len(part.words[0])], own))
        return found

    def join_outputs(
        self, given: TextInput, parts: list[PassagePart], results: list[tuple[Tensor, dict[str, Tensor]]]
    ) -> Answer:
        if not results:
            return Answer("", 0.0)
        (logits, weights), (passage, question) = results[0], parts[0].words
        answer = self.choose(split_texts(given.text)[0], passage, logits)
        answer.words, answer.asked, answer.source_tokens = passage, question, passage
        answer.pointed = logits.softmax(0).T.tolist()
        if given.attention:
            sizes = {"passage": (len(passage), len(question)), "question": (1, len(passage)), "self": (len(passage),) * 2}
            for name, each in weights.items():
                rows, columns = sizes[name]
                table = np.asarray(each if each.dim() == 2 else each[None])
                answer.attention[name] = table[None, :rows, :columns]
        return answer

    def choose(self, text: str, passage: Sequence[str], logits: Tensor) -> Answer:
        """The likeliest answer: a span, or, with a single pointer, the word whose places have the largest sum."""
        places = find_words(text)
        if logits.size(-1) == 2:
            first, last, score = best_span(logits, self.longest)
            start, end = places[first][0], places[last][1]
            return Answer(" ".join(text[start:end].split()), score, start=start, tokens=list(passage[first : last + 1]))
        sums: dict[str, float] = {}
        forms: dict[str, int] = {}
        for place, (word, share) in enumerate(zip(passage, logits[:, 0].softmax(0).tolist(), strict=True)):
            key = word.lower()
            sums[key] = sums.get(key, 0.0) + share
            forms.setdefault(key, place)
        ranked = sorted(sums, key=lambda word: -sums[word])
        best = forms[ranked[0]]
        answer = Answer(
            passage[best], float(np.log(max(sums[ranked[0]], 1e-30))), start=places[best][0], tokens=[passage[best]]
        )
        answer.probabilities = {word: sums[word] for word in ranked}
        return answer


TITLES = {"bidaf": ("the first word of the answer", "the last word of the answer"), "sum": ("the word that fills the blank",)}


def reading_page(answer: Answer) -> str:
    """The passage with the probabilities of the pointers, and the attention between passage and question in both directions."""
    titles = TITLES["bidaf" if len(answer.pointed) == 2 else "sum"]
    body = f"<p>{escape(' '.join(answer.asked))}</p>\n"
    for title, shares in zip(titles, answer.pointed, strict=True):
        body += f"<p class=note>{escape(title)}</p>\n<p>{shaded_words(answer.words, shares)}</p>\n"
    if "passage" in answer.attention:
        shares = answer.attention["question"][0, 0].tolist()
        body += f"<p class=note>the question looks at the passage</p>\n<p>{shaded_words(answer.words, shares)}</p>\n"
        body += weight_table(
            answer.asked, answer.words, answer.attention["passage"][0].T, "each word of the passage looks at the question"
        )
    if "self" in answer.attention:
        body += weight_table(
            answer.words, answer.words, answer.attention["self"][0], "each word of the passage looks at the passage"
        )
    return body
