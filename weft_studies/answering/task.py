"""Answering: a story, a question about it and an answer; cross-entropy over the answers, scored by accuracy.

Answers come with the facts that a memory network looked at.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import NonNegativeInt
from torch import nn

from weft.data.batch import EOS, UNK, LabelBatch
from weft.data.corpus import Encoding
from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import build_encoder
from weft.models.pooling import MeanPooling
from weft.tasks.base import TaskContext, TaskInfo
from weft.tasks.classification.data import label_encoding, make_labelled, random_words
from weft.tasks.classification.model import Classifier, ClassifierOutput
from weft.tasks.classification.predictor import Label, LabelPredictor
from weft.tasks.classification.task import LabelTask
from weft_studies.answering.data import FORMAT, StoryReader
from weft_studies.answering.memory_network import MemoryEncoder, MemoryNetwork
from weft_studies.answering.predictor import AnsweringPredictor, hop_table

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
        return Classifier(encoder, MeanPooling(encoder.width), max(1, len(self.labels)))

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
