"""Pairs: a label or a number for two texts. Labels are scored by accuracy and F1, numbers by correlation and squared error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from weft.data.batch import LabelBatch, TwoTextBatch
from weft.data.corpus import Corpus, Encoding, Rows
from weft.data.formats import Pairs
from weft.models.base import Network, Sizes
from weft.tasks.base import Loss, Share, TaskContext, TaskInfo, measures_of
from weft.tasks.classification.data import label_encoding, random_words
from weft.tasks.classification.model import ClassifierEnsemble, ClassifierOutput
from weft.tasks.classification.predictor import Label, LabelPredictor
from weft.tasks.classification.task import LabelTask
from weft.tasks.pairs.data import FORMAT, NUMBERS, Numbers, find_numbers
from weft.tasks.pairs.metrics import NUMBER_METRICS
from weft.tasks.pairs.model import ComparisonSpec, build_pair_model
from weft.tasks.pairs.predictor import PairPredictor, comparison_page
from weft.tasks.two_texts import TwoTextReader, make_two_texts, spaced


class PairsTask(LabelTask):
    """Two texts to a label, such as entailment or paraphrase, or to a number, such as relatedness.

    The data has three columns: both texts, then the label or the number. Each text is cut after data.max_length tokens.

    comparison: how both texts become one vector: siamese, decomposable, esim or joined
    output: label, or number, which is learnt by squared error
    hidden: width of a layer between that vector and the output; 0: none
    label_smoothing: share of the probability that is spread evenly over the labels
    dropout: share of each vector that is dropped before a layer of the comparison or of the output
    """

    example = "pairs.tsv#1,2,4 (the columns of two texts and a label)"
    info = TaskInfo(
        commands=("printf 'a text\\tanother text\\n' | weft predict {run}", "weft evaluate {run} --data FILE.tsv#1,2,3"),
        count_unit="pairs",
        inference_kind="forward",
        texts=2,
    )
    column = "third"
    data_format = FORMAT
    predictor_class = PairPredictor
    labels: Any

    def __init__(
        self,
        context: TaskContext,
        *,
        comparison: ComparisonSpec = {"kind": "siamese"},  # noqa: B006
        output: Literal["label", "number"] = "label",
        hidden: NonNegativeInt = 0,
        label_smoothing: Share = 0.0,
        dropout: Share = 0.1,
    ) -> None:
        super().__init__(context)
        self.comparison, self.hidden, self.smoothing, self.dropout = comparison, hidden, label_smoothing, dropout
        self.numeric = output == "number"
        if self.numeric:
            self.labels, self.measures = Numbers(), measures_of(NUMBER_METRICS)
            self.info = replace(self.info, metric_types=NUMBER_METRICS)

    def learn(self, train: list[Pairs]) -> None:
        super().learn(spaced(train))

    def learn_labels(self, train: list[Pairs]) -> None:
        if not self.numeric:
            super().learn_labels(train)
            return
        found = find_numbers(train)
        self.report(f"numbers with a mean of {found.mean:.3f} and a standard deviation of {found.deviation:.3f}")
        found.save(self.run / NUMBERS)

    def load_labels(self) -> Any:
        return Numbers.load(self.run / NUMBERS) if self.numeric else super().load_labels()

    def placeholder_sizes(self) -> Sizes:
        return Sizes(8)

    @property
    def reader(self) -> TwoTextReader:
        return TwoTextReader(self.source, self.config.data.max_length)

    def encoding(self, *, training: bool) -> Encoding:
        return label_encoding(self.reader, self.labels, drop_duplicates=self.config.data.drop_duplicates and training)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        return build_pair_model(spec, sizes, self.comparison, len(self.labels), self.hidden, self.dropout)

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), *self.labels.names]

    def ensemble(self, models: Sequence[Network]) -> Network:
        return ClassifierEnsemble(models, number=self.numeric)

    def collate(
        self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False
    ) -> TwoTextBatch:
        rows = np.asarray(rows, dtype=np.int64)
        (ids, _), (sizes, _), (true, _) = (corpus.gather(name, rows) for name in ("source", "sentences", "label"))
        return make_two_texts(ids, sizes, true if self.numeric else true.astype(np.int64), rows)

    def run_model(self, model: nn.Module, batch: LabelBatch) -> ClassifierOutput:
        assert isinstance(batch, TwoTextBatch)
        output: ClassifierOutput = model(batch.source, batch.second)
        return output

    def losses(self, model: nn.Module, batch: LabelBatch, update: int) -> Iterator[Loss]:
        if not self.numeric:
            yield from super().losses(model, batch, update)
            return
        total = self._loss(self.classify(model, batch, update).logits, batch.labels)
        yield Loss(total, torch.tensor(len(batch.labels), device=total.device))

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """For numbers, the squared error in units of their standard deviation, summed."""
        if not self.numeric:
            return super()._loss(logits, labels, smoothing)
        return ((logits[:, 0].float() - (labels - self.labels.mean) / self.labels.deviation) ** 2).sum()

    def _choose(self, logits: Tensor) -> Tensor:
        return self.labels.mean + self.labels.deviation * logits[:, 0] if self.numeric else super()._choose(logits)

    def _names(self, labels: Tensor) -> list[str]:
        return [self.labels.join([value]) for value in labels.tolist()] if self.numeric else super()._names(labels)

    def explanation(self, predictor: LabelPredictor, prediction: Label, text: str) -> str:
        """The probabilities of labels, and the attention between the texts."""
        return comparison_page(prediction)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> TwoTextBatch:
        """Random texts of this length with the first label."""
        ids, each = random_words(2 * rows * length, sizes.source, length), np.full(2 * rows, length)
        labels = np.zeros(rows, np.float32 if self.numeric else np.int64)
        return make_two_texts(ids, each, labels, np.arange(rows))
