"""Classification: a label for each text, or any number of them, scored by loss, accuracy and F1; and the base of such tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from weft.data.batch import NO_LABEL, LabelBatch
from weft.data.corpus import Corpus, Encoding, Rows
from weft.data.formats import Pairs
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.errors import ConfigError
from weft.evaluation.metrics import Metric
from weft.models.base import Network, Sizes
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext, TaskInfo, all_metrics, text_scores
from weft.tasks.classification.data import (
    LABELLED,
    LABELS,
    Labels,
    TextReader,
    document_source,
    find_labels,
    label_encoding,
    make_labelled,
    multi_hot,
    random_words,
    whole_texts,
)
from weft.tasks.classification.metrics import LabelAccuracy, MacroF1, MicroF1
from weft.tasks.classification.model import ClassifierEnsemble, ClassifierOutput, PoolingSpec, build_classifier
from weft.tasks.classification.predictor import (
    ClassificationPredictor,
    Label,
    LabelPredictor,
    label_page,
)
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.edges_between_words import FORMAT as GRAPH_FORMAT
from weft.tasks.edges_between_words import GraphReader, check_model, check_tokenizer, with_graph, without_edges


class LabelTask(CorpusTask):
    """A task from texts to labels, which are those of the training data.

    noun: what a label is called in messages · column: of the data that has it, in words · predictor_class: of its predictor ·
    reader: how an input is read · threshold: if an input has any number of labels, those that are more probable are given ·
    smoothing, diversity, label_texts: see `ClassificationTask`.
    """

    measures: Sequence[Measure] = (Measure("accuracy", "accuracy"), Measure("macro_f1", "macro F1"), LOSS)
    noun: ClassVar[str] = "label"
    column: str = "second"
    predictor_class: ClassVar[type[LabelPredictor]]
    reader: Any
    threshold: float = 0.5
    smoothing: float = 0.0
    diversity: float = 0.0
    label_texts: str | None = None
    sentences = (0,)
    tokenized = 0

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.labels = Labels()

    def learn(self, train: list[Pairs]) -> None:
        """Collects the labels as well."""
        if self.new:
            self.learn_labels(train)
        super().learn(whole_texts(train))

    def learn_labels(self, train: list[Pairs]) -> None:
        """Saves the labels of the training data in the folder of the run."""
        labels = find_labels(train, self.noun, several=self.labels.several, column=self.column)
        self.report(f"{len(labels):,} {self.noun}s")
        if self.label_texts:
            labels.read_texts(Path(self.label_texts))
        labels.save(self.run / LABELS)

    @property
    def output_names(self) -> Sequence[str]:
        return self.labels.names

    def load_labels(self) -> Labels:
        """The labels in the folder of the run."""
        return Labels.load(self.run / LABELS, several=self.labels.several)

    def reopen(self) -> Sizes:
        super().reopen()
        self.labels = self.load_labels()
        return Sizes(self.source.size)

    def check(self, valid: list[Pairs]) -> None:
        for pairs in valid:
            self.labels.check(pairs)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        if self.info.metric_types:
            return super().metrics()
        if self.labels.several:
            split = self.labels.split
            return [MicroF1(split), LabelAccuracy(split), MacroF1(self.labels.names, split)]
        return [LabelAccuracy(), MacroF1(self.labels.names)]

    def collate(
        self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False
    ) -> LabelBatch:
        """Texts with their labels. Documents of sentences are only padded."""
        rows = np.asarray(rows, dtype=np.int64)
        (ids, lengths), (true, counts) = corpus.gather("source", rows), corpus.gather("label", rows)
        if self.labels.several:
            true = multi_hot(true, counts, len(self.labels))
        if "sentences" not in corpus.values:
            batch = make_labelled(ids, true, lengths, rows, budget=budget, rounded=rounded)
            edges = "edges" in corpus.values
            return replace(batch, source=with_graph(batch.source, *corpus.gather("edges", rows))) if edges else batch
        source = document_source(ids, *corpus.gather("sentences", rows))
        return LabelBatch(torch.from_numpy(rows), source, torch.from_numpy(true.astype(np.int64)))

    def classify(self, model: nn.Module, batch: LabelBatch, update: int) -> ClassifierOutput:
        """The output of the model for a training batch in an update."""
        return self.run_model(model, batch)

    def run_model(self, model: nn.Module, batch: Any) -> ClassifierOutput:
        """The output of the model for a batch."""
        output: ClassifierOutput = model(batch.source)
        return output

    def losses(self, model: nn.Module, batch: LabelBatch, update: int) -> Iterator[Loss]:
        output, labels = self.classify(model, batch, update), batch.labels
        total, predicted = self._loss(output.logits, labels, self.smoothing), self._choose(output.logits)
        right, real = predicted == labels, labels != NO_LABEL
        if self.labels.several:
            right, real = right.all(-1), real[:, 0]
        if "diversity" in output.extras:
            total = total + self.diversity * output.extras["diversity"].where(real, 0.0).sum()
        yield Loss(total, real.sum(), {"accuracy": 100 * right.sum()})

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy, summed over inputs and, if there are several, over labels."""
        if not self.labels.several:
            return F.cross_entropy(logits, labels, ignore_index=NO_LABEL, label_smoothing=smoothing, reduction="sum")
        goal = labels.to(logits.dtype) * (1 - smoothing) + smoothing / 2
        each = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
        return torch.where(labels == NO_LABEL, 0.0, each).sum()

    def _choose(self, logits: Tensor) -> Tensor:
        """The label that is given [B], or ones for those that are [B, C]."""
        return (logits.sigmoid() > self.threshold).long() if self.labels.several else logits.argmax(-1)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self.valid is None:
            return {}
        total, predicted, true = 0.0, list[str](), list[str]()
        for batch in self.validation(model):
            logits = self.run_model(model, batch).logits.float()
            total += self._loss(logits, batch.labels).item()
            predicted += self._names(self._choose(logits))
            true += self._names(batch.labels)
        return {"loss": total / len(true), **text_scores(predicted, true, all_metrics(self))}

    def _names(self, labels: Tensor) -> list[str]:
        """The labels of each input as the data has them."""
        if self.labels.several:
            return [self.labels.join(row.nonzero()[:, 0].tolist()) for row in labels.cpu()]
        return [self.labels.names[label] for label in labels.tolist()]

    def predictor(self, model: Network, resolved: DecodingOptions, warn: Warn | None = None) -> LabelPredictor:
        return self.predictor_class(model, self.reader, self.labels, resolved, threshold=self.threshold, warn=warn)

    def explanation(self, predictor: LabelPredictor, prediction: Label, text: str) -> str:
        return label_page(prediction)

    def describe(self) -> dict[str, int]:
        return {"ids": self.source.size, f"{self.noun}s": len(self.labels), **super().describe()}


USUAL = 20
"""Words of a made-up sentence."""

Probability = Annotated[float, Field(gt=0, lt=1)]


class ClassificationTask(LabelTask):
    """Text to label: an encoder, a pooling and a linear layer. The label is the second column of the data.

    Texts are cut after data.max_length tokens. With edges the columns are text, edges and label.

    pooling: how the encoder's vectors become one
    by_sentence: read texts sentence by sentence, for the front `sentences` (hierarchical attention)
    multi_label: a text has any number of labels, separated by commas, and each label has a probability of its own
    threshold: with multi_label, labels that are more probable than this are given
    label_smoothing: share of the probability that is spread evenly over the labels
    label_texts: for a pooling whose queries are texts: a file with a label, a tab and what it means in each line; a label
        without a line has its name as its text
    graph: the data has a column of edges between words, such as 0-1 1-2, which graph attention (gat) follows
    dropout: share of the pooled vector that is dropped
    diversity_weight: penalty on hops of a self-attentive pooling that attend to the same tokens (Lin et al. 2017)
    """

    example = "texts.tsv (a text, a tab, a label)"
    info = TaskInfo(
        commands=('weft predict {run} "a text"', "weft evaluate {run} --data FILE.tsv"),
        count_unit="texts",
        inference_kind="forward",
        capturable=True,
        typical_length=256,
    )
    data_format = LABELLED
    predictor_class = ClassificationPredictor

    def __init__(
        self,
        context: TaskContext,
        *,
        pooling: PoolingSpec = {"kind": "mean"},  # noqa: B006
        label_smoothing: Share = 0.0,
        dropout: Share = 0.1,
        diversity_weight: NonNegativeFloat = 0.0,
        by_sentence: bool = False,
        multi_label: bool = False,
        threshold: Probability = 0.5,
        label_texts: str | None = None,
        graph: bool = False,
    ) -> None:
        super().__init__(context)
        self.labels = Labels(several=multi_label)
        if multi_label:
            self.measures = (Measure("micro_f1", "micro F1"), *self.measures)
        self.threshold, self.smoothing, self.diversity = threshold, label_smoothing, diversity_weight
        self.pooling, self.dropout, self.by_sentence, self.label_texts = pooling, dropout, by_sentence, label_texts
        self.graph = graph
        if graph:
            self.data_format, self.column = GRAPH_FORMAT, "third"
            commands = ("printf 'a text\\t0-1\\n' | weft predict {run}", "weft evaluate {run} --data FILE.tsv#1,2,3")
            self.info = replace(self.info, commands=commands)
        if graph and by_sentence:
            raise ConfigError("task.graph: edges are between the words of a whole text, and task.by_sentence reads sentences")
        described = pooling.get("queries") == "text"
        if described and by_sentence:
            raise ConfigError("task.pooling: queries: text compares labels with words, and task.by_sentence reads sentences")
        if label_texts and not described:
            raise ConfigError("task.label_texts: give them to task.pooling: {kind: label_attentive, queries: text}")

    def learn(self, train: list[Pairs]) -> None:
        super().learn(without_edges(train) if self.graph else train)

    def reopen(self) -> Sizes:
        sizes = replace(super().reopen(), reads=self.placeholder_sizes().reads)
        if self.graph:
            check_tokenizer(self.source)
        return sizes

    def placeholder_sizes(self) -> Sizes:
        return Sizes(8, reads="sentences" if self.by_sentence else "tokens")

    @property
    def reader(self) -> TextReader:
        data = self.config.data
        if self.graph:
            return GraphReader(self.source, data.max_length)
        return TextReader(self.source, data.max_length, self.by_sentence, data.source_language, data.files)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        texts = (lambda: self.labels.token_ids(self.source)) if len(self.labels) else None
        model = build_classifier(spec, sizes, self.pooling, len(self.labels), self.dropout, texts)
        if self.graph:
            check_model(model)
        return model

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), *self.labels.names]

    def ensemble(self, models: Sequence[Network]) -> Network:
        return ClassifierEnsemble(models, self.labels.several)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> LabelBatch:
        """Random texts with the first label; sentences have about `USUAL` words."""
        words = random_words(rows * length, sizes.source, length)
        labels, lengths = np.zeros(rows, np.int64), np.full(rows, length)
        if self.labels.several:
            labels = multi_hot(labels, np.ones(rows, np.int64), max(1, len(self.labels)))
        batch = make_labelled(words, labels, lengths, budget=rows * length, rounded=rounded and not self.by_sentence)
        if self.graph:
            return replace(batch, source=with_graph(batch.source, [], [0] * rows))
        if not self.by_sentence:
            return batch
        sizes_of = [len(part) for part in np.array_split(np.arange(length), -(-length // USUAL))]
        source = document_source(words, np.tile(sizes_of, rows), [len(sizes_of)] * rows)
        return replace(batch, source=source)

    def encoding(self, *, training: bool) -> Encoding:
        return label_encoding(self.reader, self.labels, drop_duplicates=self.config.data.drop_duplicates and training)
