"""Answering: a story, a question about it and an answer; cross-entropy over the answers, scored by accuracy.

Answers come with the facts that a memory network looked at.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from pydantic import NonNegativeInt
from torch import nn

from weft.data.batch import EOS, UNK, LabelBatch, Layout, Source, pad
from weft.data.corpus import Encoding
from weft.decoding.predictor import BatchItem, TextInput
from weft.decoding.search_loop import Cancellation
from weft.explain.html_page import meter
from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import build_encoder
from weft.tasks.base import TaskContext, TaskInfo
from weft.tasks.classification.data import label_encoding, make_labelled, random_words
from weft.tasks.classification.model import ClassifierOutput, classifier
from weft.tasks.classification.predictor import Label, LabelPredictor, probability_table
from weft.tasks.classification.task import LabelTask
from weft_studies.answering.data import FORMAT, StoryReader, join_story, read_story, split_story
from weft_studies.answering.memory_network import MemoryEncoder, MemoryNetwork


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


WORDS = 6
"""Words of a typical sentence."""


class AnsweringTask(LabelTask):
    """A story and a question to an answer, one of those that occur in training.

    The model is a memory network. Any other model with an encoder reads the story as one text and answers from the mean of its
    memory. Of a story with more than data.max_length tokens, only the latest sentences are read.

    linear_start: updates at the start of training in which the memory network has no softmax (Sukhbaatar et al. 2015)
    """

    example = "stories.jsonl (story, question and answer on each line)"
    info = TaskInfo(
        commands=('weft predict {run} "A story. Its end. A question?"', "weft evaluate {run} --data FILES"),
        count_unit="questions",
        inference_kind="forward",
        typical_length=64,
    )
    noun = "answer"
    data_format = FORMAT
    predictor_class = AnsweringPredictor

    def __init__(self, context: TaskContext, *, linear_start: NonNegativeInt = 0) -> None:
        super().__init__(context)
        self.linear_start = linear_start

    def reopen(self) -> Sizes:
        super().reopen()
        return Sizes(max(self.source.size, 1 + max(self.answers)), len(self.labels))

    @property
    def answers(self) -> list[int]:
        """The id of each answer: that of the word it is, or one of its own behind the vocabulary."""
        chosen, free = [], self.source.size
        for ids in self.source.encode_batch(self.labels.names):
            if len(ids) == 1 and ids[0] != UNK:
                chosen.append(ids[0])
            else:
                chosen.append(free)
                free += 1
        return chosen

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        encoder = build_encoder(spec, sizes)
        if isinstance(encoder, MemoryEncoder):
            return MemoryNetwork(encoder, self.answers if self.labels.names else [0])
        return classifier(encoder, {"kind": "mean"}, len(self.labels))

    @property
    def reader(self) -> StoryReader:
        return StoryReader(self.source, self.config.data.max_length)

    def explanation(self, predictor: LabelPredictor, prediction: Label, text: str) -> str:
        return hop_table(prediction, text) if prediction.hops else super().explanation(predictor, prediction, text)

    def classify(self, model: nn.Module, batch: LabelBatch, update: int) -> ClassifierOutput:
        if isinstance(model, MemoryNetwork):
            return model(batch.source, linear=update <= self.linear_start)
        return super().classify(model, batch, update)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> LabelBatch:
        """Random stories with the first answer."""
        words = random_words((rows, length), sizes.source, length)
        words[:, WORDS::WORDS] = words[:, -1] = EOS
        labels, lengths = np.zeros(rows, np.int64), np.full(rows, length)
        return make_labelled(words.ravel(), labels, lengths, budget=rows * length, rounded=rounded)

    def encoding(self, *, training: bool) -> Encoding:
        return label_encoding(self.reader, self.labels)


def hop_table(answer: Label, text: str) -> str:
    """The probabilities of answers, and the facts of the story in order, with a bar for each hop."""
    rows = "".join(
        f"<tr><td>{escape(fact)}</td>{''.join(f'<td>{meter(weight)} {weight:.3f}</td>' for weight in weights)}</tr>"
        for fact, *weights in zip(answer.facts, *answer.hops, strict=True)
    )
    heads = "".join(f"<th>hop {number}</th>" for number in range(1, len(answer.hops) + 1))
    facts = f"<table><tr><th>fact</th>{heads}</tr>{rows}</table>\n<p>{escape(text)}</p>\n"
    return probability_table(answer) + facts
