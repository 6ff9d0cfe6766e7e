"""Classification: a label for each text, or any number of them, scored by loss, accuracy and F1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat

from weft.config.registry import Among, build
from weft.data.batch import LabelBatch
from weft.data.corpus import Corpus
from weft.data.formats import Pairs
from weft.data.sentence_splitting import language_of
from weft.data.tokenizers.base import RESERVED
from weft.inference.decoding_options import DecodingOptions
from weft.models.base import Network, Sizes
from weft.models.composition import build_encoder
from weft.tasks.base import Share, TaskContext
from weft.tasks.classification.data import TextReader, WholeTexts, document_source, make_labelled, mark_labels, prepare_labels
from weft.tasks.classification.label_task import LabelTask
from weft.tasks.classification.model import Classifier, ClassifierEnsemble
from weft.tasks.classification.predictor import ClassificationPredictor

USUAL = 20
"""Words of a made-up sentence."""

Probability = Annotated[float, Field(gt=0, lt=1)]


class ClassificationTask(LabelTask):
    """Text to label: an encoder, a pooling and a linear layer. The label is the second column of the data.

    Texts are cut after data.max_length tokens.

    pooling: how the encoder's vectors become one
    by_sentence: read texts sentence by sentence, for the front `sentences` (hierarchical attention)
    multi_label: a text has any number of labels, separated by commas, and each label has a probability of its own
    threshold: with multi_label, labels that are more probable than this are given
    label_smoothing: share of the probability that is spread evenly over the labels
    dropout: share of the pooled vector that is dropped
    diversity_weight: penalty on hops of a self-attentive pooling that attend to the same tokens (Lin et al. 2017)
    """

    example = "texts.tsv (a text, a tab, a label)"
    commands = ('weft predict {run} "a text"', "weft evaluate {run} --data FILE.tsv")
    counts = "texts"
    capturable = True

    def __init__(
        self,
        setting: TaskContext,
        *,
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "mean"},  # noqa: B006
        label_smoothing: Share = 0.0,
        dropout: Share = 0.1,
        diversity_weight: NonNegativeFloat = 0.0,
        by_sentence: bool = False,
        multi_label: bool = False,
        threshold: Probability = 0.5,
    ) -> None:
        super().__init__(
            setting, several=multi_label, threshold=threshold, smoothing=label_smoothing, diversity=diversity_weight
        )
        self.pooling, self.dropout, self.by_sentence = pooling, dropout, by_sentence

    def reopen(self) -> Sizes:
        return replace(super().reopen(), reads=self.outline().reads)

    def outline(self) -> Sizes:
        return Sizes(8, reads="sentences" if self.by_sentence else "tokens")

    def texts(self, train: list[Pairs]) -> list[Pairs]:
        return [WholeTexts(some) for some in train]

    @property
    def reader(self) -> TextReader:
        data = self.config.data
        language = language_of(data.source_language, data.files) if self.by_sentence else None
        return TextReader(self.source, data.max_length, self.by_sentence, language)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        encoder = build_encoder(spec, sizes)
        pooling = build("weft.models:POOLINGS", self.pooling, encoder.width, where="task.pooling")
        return Classifier(encoder, pooling, max(1, len(self.labels)), self.dropout)

    def join(self, models: Sequence[Network]) -> Network:
        return ClassifierEnsemble(models, self.labels.several)

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> ClassificationPredictor:
        return ClassificationPredictor(model, self.reader, self.labels, resolved, threshold=self.threshold, warn=warn)

    @property
    def typical_length(self) -> int:
        return min(256, self.config.data.max_length)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> LabelBatch:
        """Random texts with the first label; sentences have about `USUAL` words."""
        words = np.random.default_rng(length).integers(RESERVED, max(RESERVED + 1, sizes.source), rows * length)
        labels, lengths = np.zeros(rows, np.int64), np.full(rows, length)
        if self.labels.several:
            labels = mark_labels(labels, np.ones(rows, np.int64), max(1, len(self.labels)))
        batch = make_labelled(words, labels, lengths, budget=rows * length, rounded=rounded and not self.by_sentence)
        if not self.by_sentence:
            return batch
        sizes_of = [len(part) for part in np.array_split(np.arange(length), -(-length // USUAL))]
        source = document_source(words, np.tile(sizes_of, rows), [len(sizes_of)] * rows)
        return replace(batch, source=source)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        return prepare_labels(
            pairs,
            self.reader,
            self.labels,
            folder=folder,
            drop_duplicates=self.config.data.drop_duplicates and training,
            progress=progress,
        )
