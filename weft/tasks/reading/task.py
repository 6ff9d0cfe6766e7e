"""Reading: a passage and a question, answered by words of the passage; scored by exact matches and F1."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from weft.data.batch import TwoTextBatch
from weft.data.corpus import Corpus, Encoding, Rows
from weft.data.formats import Pairs
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.models.base import Network, Sizes
from weft.tasks.base import Loss, Share, TaskContext, TaskInfo, measures_of
from weft.tasks.classification.data import Labels
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.reading.data import FORMAT, PassageReader, count_words, gather_passages, random_passages
from weft.tasks.reading.metrics import AnswerF1, ExactAnswer
from weft.tasks.reading.model import ReaderSpec, ReadingModel, answer_loss, build_reading_model
from weft.tasks.reading.predictor import Answer, ReadingPredictor, reading_page
from weft.tasks.tagging.data import WORDS, Lexicon, TaggedEncoding, Vocabulary
from weft.tasks.two_texts import spaced

METRICS = (ExactAnswer, AnswerF1)


class ReadingTask(CorpusTask):
    """A passage and a question to an answer, which is a text of the passage. Any encoder with the front `words` reads both.

    Passages and questions are cut after data.max_length words. If an answer occurs at several places, any of them is right.

    reader: bidaf points at the first and last word of an answer, attention_sum at the word that fills a blank
    dropout: share of each vector that is dropped before a layer of the reader
    longest_answer: the most words of an answer
    least_count: words that occur less often have no embedding of their own
    lowercase: words have one embedding for all their capitalisations
    """

    example = "passages.jsonl (passage, question and answer on each line)"
    info = TaskInfo(
        commands=("printf 'A passage.\\tA question?\\n' | weft predict {run}", "weft evaluate {run} --data FILE.jsonl"),
        count_unit="questions",
        inference_kind="forward",
        texts=2,
        metric_types=METRICS,
        several_references=True,
    )
    measures = measures_of(METRICS)
    sentences = (0,)
    tokenized = 0
    data_format = FORMAT

    def __init__(
        self,
        context: TaskContext,
        *,
        reader: ReaderSpec = {"kind": "bidaf"},  # noqa: B006
        dropout: Share = 0.2,
        longest_answer: PositiveInt = 15,
        least_count: PositiveInt = 2,
        lowercase: bool = True,
    ) -> None:
        super().__init__(context)
        self.spec, self.dropout, self.longest = reader, dropout, longest_answer
        self.vocabulary = Vocabulary(least_count, lowercase, self.config.data.vocabulary)

    def learn(self, train: list[Pairs]) -> None:
        """Counts the words as well."""
        train = spaced(train)
        if self.new:
            count_words(train, self.vocabulary).save(self.run / WORDS)
        super().learn(train)

    def reopen(self) -> Sizes:
        super().reopen()
        lexicon, longest = Lexicon.load(self.run / WORDS, self.vocabulary), self.config.data.max_length
        self.reader = PassageReader(TaggedEncoding(self.source, lexicon, Labels(), True, longest, None), longest)
        return Sizes(lexicon.size, reads="words", pieces=self.source.size)

    def placeholder_sizes(self) -> Sizes:
        return Sizes(8, reads="words", pieces=8)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        return build_reading_model(spec, sizes, self.spec, self.dropout)

    def encoding(self, *, training: bool) -> Encoding:
        return self.reader.encoding(drop_duplicates=self.config.data.drop_duplicates and training)

    def collate(
        self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False
    ) -> TwoTextBatch:
        return gather_passages(corpus, np.asarray(rows, dtype=np.int64))

    def losses(self, model: ReadingModel, batch: TwoTextBatch, update: int) -> Iterator[Loss]:
        yield Loss(*self.validation_loss(model, batch))

    def validation_loss(self, model: ReadingModel, batch: TwoTextBatch) -> tuple[Tensor, Tensor]:
        each = answer_loss(model(batch.source, batch.second).logits, batch.labels)
        return each.sum(), torch.tensor(len(each), device=each.device)

    def predictor(self, model: ReadingModel, resolved: DecodingOptions, warn: Warn | None = None) -> ReadingPredictor:
        return ReadingPredictor(model, self.reader, self.longest, resolved, warn)

    def explanation(self, predictor: ReadingPredictor, prediction: Answer, text: str) -> str:
        """The places that the pointers choose, and the attention between passage and question."""
        return reading_page(prediction)

    def describe(self) -> dict[str, Any]:
        return {"words": self.reader.words.lexicon.size, **super().describe()}

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> TwoTextBatch:
        return random_passages(length, rows, sizes.source, sizes.pieces)
