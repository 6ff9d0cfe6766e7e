"""Tagging: sentences to a tag for each word."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import TagBatch
from weft.decoding.predictor import BatchItem, Prediction, TextInput, TextPredictor, json_number
from weft.decoding.search_loop import Cancellation
from weft.errors import DataError
from weft.explain.html_page import head_images, meter, notes
from weft.layers import step_recorder
from weft.tasks.tagging.data import TaggedEncoding, join_tags, make_tagged, split_words, with_edges
from weft.tasks.tagging.metrics import convert


@dataclass
class Tagged(Prediction):
    """A tagged sentence: `text` has a word, a tab and its tag on each line, and `score` is the log-probability of the tags.

    probabilities: of each tag, by the scores of its word alone.
    """

    words: list[str] = field(default_factory=list, repr=False)
    tags: list[str] = field(default_factory=list, repr=False)
    probabilities: list[float] = field(default_factory=list, repr=False)

    def lines(self) -> str:
        """A blank line ends a sentence."""
        return f"{self.text}\n" if self.text else ""

    def document(self) -> dict[str, Any]:
        return {"words": self.words, "tags": self.tags, "score": json_number(self.score)}


@dataclass(eq=False)
class TagPart(BatchItem):
    """Some words of a sentence. ids: those of the words · subwords: of each word · edges: the places of both words of each."""

    subwords: list[list[int]]
    edges: list[int] = field(default_factory=list)


class TaggingPredictor(TextPredictor[Tagged]):
    """A tagger with its tokenizer, lexicon and tags. A sentence is cut where it exceeds the longest that the model reads.

    The words of a text stand between spaces, or `weft.tasks.tagging.data.join_words` joined them. Of the decoding options it
    uses batch_tokens, precision and compile.
    """

    no_fields = "a tagger gives one tag per word, so there is no prefix and no term; leave them out"

    reader: TaggedEncoding

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> TextInput:
        if "\t" in line and not self.reader.graph:
            raise DataError(
                f"there is a tab in the text {line[:80]!r}; separate words by spaces, or give a table with a word per line as "
                "a file whose name ends in .tsv"
            )
        return super().parse_input(line, attention=attention, **fields)

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[TagPart]]:
        return [self._parts(given.text, line) for line, given in enumerate(inputs, start=first_line)]

    def _parts(self, text: str, line: int) -> list[TagPart]:
        parts: list[TagPart] = []
        words, places = split_words(text), self.reader.edges(text) if self.reader.graph else []
        edges = list(zip(places[::2], places[1::2], strict=True))
        if self.reader.graph and words and "\t" not in text:
            self.warn(f"line {line} has no edges; write them after a tab, as in 0-1 1-2")
        ids, subwords = self.reader.lexicon.find(words), self.reader.subwords(words) if words else []
        begin, longest = 0, self.reader.longest
        while begin < len(words):
            end, width = begin, 0
            while end < len(words) and (end == begin or width + self.reader.length([subwords[end]]) <= longest):
                width, end = width + self.reader.length([subwords[end]]), end + 1
            own = [place - begin for edge in edges if min(edge) >= begin and max(edge) < end for place in edge]
            parts.append(TagPart(ids[begin:end], [each[:longest] for each in subwords[begin:end]], own, length=width))
            begin = end
        if len(parts) > 1:
            self.warn(f"line {line} is tagged in {len(parts)} pieces, because the model reads {longest:,} positions")
        return parts

    def run(self, parts: list[TagPart], control: Cancellation | None = None) -> list[tuple[list[tuple[str, float]], float]]:
        """The tags of each part with their probabilities, and the score of all."""
        batch, names = self._batch(parts), self.reader.labels.names
        scores = self._scores(batch)
        tags, values = self.model.best(scores, batch.words)
        shares = scores.float().softmax(-1).gather(2, tags[..., None])[..., 0].tolist()
        rows = [
            [(names[tag], share) for tag, share, _ in zip(row, likely, part.ids, strict=False)]
            for row, likely, part in zip(tags.tolist(), shares, parts, strict=True)
        ]
        return list(zip(rows, values.tolist(), strict=True))

    def _batch(self, parts: list[TagPart]) -> TagBatch:
        words = np.array([number for part in parts for number in part.ids])
        subwords = np.array([subword for part in parts for each in part.subwords for subword in each])
        sizes = np.array([len(each) for part in parts for each in part.subwords])
        lengths = np.array([len(part.ids) for part in parts])
        batch = make_tagged(words, subwords, sizes, np.zeros_like(words), lengths, whole=self.reader.whole)
        if self.reader.graph:
            places, counts = [place for part in parts for place in part.edges], [len(part.edges) for part in parts]
            batch = with_edges(batch, places, counts)
        return batch.to(self.model.device)

    def _scores(self, batch: TagBatch) -> Tensor:
        scores: Tensor = self.forward(batch.source, batch.words, batch.starts)
        if step_recorder.recording():
            logits, axes = scores.float(), "row token label"
            step_recorder.record("probabilities", logits.softmax(-1), axes, "softmax(logits, label)", logits=(logits, axes))
        return scores

    def join_outputs(
        self, given: TextInput, parts: list[TagPart], results: list[tuple[list[tuple[str, float]], float]]
    ) -> Tagged:
        if not results:
            return Tagged("", 0.0)
        words, shares = split_words(given.text), [share for row, _ in results for _, share in row]
        tags, score = [tag for row, _ in results for tag, _ in row], sum(value for _, value in results)
        tags = convert(tags, "iob2" if self.reader.scheme == "bioes" else None)
        tagged = Tagged(join_tags(words, tags), score, tokens=tags, words=words, tags=tags, probabilities=shares)
        if given.attention:
            self._add_attention(tagged, parts[0])
        return tagged

    def _add_attention(self, tagged: Tagged, part: TagPart) -> None:
        """Adds the weights of every layer that has any, over the words or subwords of a sentence (of its first part)."""
        with record(self.model) as recorded:
            self._scores(self._batch([part]))
        tagged.attention, tagged.uses = first_row(self.model, recorded)
        subwords = [subword for each in part.subwords for subword in each]
        tagged.source_tokens = tagged.words[: len(part.ids)] if self.reader.whole else self.reader.tokenizer.tokens(subwords)


def tagging_page(tagged: Tagged, *, sequence: bool) -> str:
    """The probabilities of tags, and the heads of the encoder."""
    return tag_table(tagged, sequence=sequence) + head_images(tagged.attention, tagged.uses)


def tag_table(tagged: Tagged, *, sequence: bool) -> str:
    """Each word with its tag and the probability that its own scores give to this tag. sequence: tags depend on each other."""
    rows = "".join(
        f"<tr><td>{escape(word)}</td><td>{escape(tag)}</td><td>{share:.3f}</td><td>{meter(share)}</td></tr>"
        for word, tag, share in zip(tagged.words, tagged.tags, tagged.probabilities, strict=True)
    )
    note = "Probabilities are those of a word by itself; the tags are the best sequence."
    return f"<table>{rows}</table>\n{notes([note] if sequence else [])}"
