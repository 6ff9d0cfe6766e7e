"""Answers to questions about stories, and the page that shows on which facts they are based."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from weft.data.batch import EOS, Layout, Source, pad
from weft.decoding.predictor import BatchItem, TextInput
from weft.decoding.search_loop import Cancellation
from weft.explain.html_page import meter
from weft.tasks.classification.predictor import Label, LabelPredictor, probability_table
from weft_studies.answering.data import StoryReader, join_story, read_story, split_story
from weft_studies.answering.memory_network import MemoryNetwork


class AnsweringPredictor(LabelPredictor):
    """A model that answers questions. The text of an input has the sentences of a story, as `join_story` joins them."""

    reader: StoryReader

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> TextInput:
        return super().parse_input(join_story(read_story(line)), attention=attention, **fields)

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[BatchItem]]:
        stories = [split_story(each.text) for each in inputs]
        encoded = self.reader.encode_stories(stories)
        for line, (story, ids) in enumerate(zip(stories, encoded, strict=True), start=first_line):
            if (read := ids.count(EOS)) < len(story):
                self.warn(f"line {line} has {len(story):,} sentences; only the latest {read:,} are read")
            for word in dict.fromkeys(word for sentence in story for word in self.reader.tokenizer.unknown(sentence)):
                self.warn(f"line {line}: the word {word!r} did not occur in training")
        return [[BatchItem(ids)] if ids else [] for ids in encoded]

    def run(self, parts: list[BatchItem], control: Cancellation | None = None) -> list[Label]:
        rows = [part.ids for part in parts]
        output = self.classify(Source(pad(rows), Layout.padded([len(ids) for ids in rows])))
        results = [
            self.give(logits, self.reader.tokenizer.tokens(ids)) for logits, ids in zip(output.logits.float().cpu(), rows)
        ]
        if isinstance(self.model, MemoryNetwork) and output.weights is not None:
            for answer, ids, weights in zip(results, rows, output.weights.float().cpu(), strict=True):
                seen = min(ids.count(EOS) - 1, weights.size(-1))
                answer.hops = weights[:, :seen].flip(-1).tolist()
        return results

    def join_outputs(self, given: TextInput, parts: list[BatchItem], results: list[Label]) -> Label:
        if not results:
            return Label("", 0.0)
        (answer,) = results
        if answer.hops:
            sentences, seen = split_story(given.text), len(answer.hops[0])
            answer.facts = sentences[len(sentences) - 1 - seen : -1]
            if given.attention:
                answer.attention["hops"] = np.asarray(answer.hops, np.float32)[:, None]
        return answer


def hop_table(answer: Label, text: str) -> str:
    """The probabilities of answers, and the facts of the story in order, with a bar for each hop."""
    rows = "".join(
        f"<tr><td>{escape(fact)}</td>{''.join(f'<td>{meter(weight)} {weight:.3f}</td>' for weight in weights)}</tr>"
        for fact, *weights in zip(answer.facts, *answer.hops, strict=True)
    )
    heads = "".join(f"<th>hop {number}</th>" for number in range(1, len(answer.hops) + 1))
    facts = f"<table><tr><th>fact</th>{heads}</tr>{rows}</table>\n<p>{escape(text)}</p>\n"
    return probability_table(answer) + facts
