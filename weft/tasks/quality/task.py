"""Quality estimation: a source and its translation to a score, and to OK or BAD for each word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from weft.config.registry import Among
from weft.data.batch import NO_LABEL, QualityBatch
from weft.data.corpus import Corpus, Encoding, Rows
from weft.data.formats import Pairs
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.models.base import Network, Sizes
from weft.tasks.base import Loss, Share, TaskContext, TaskInfo, measures_of
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.pairs.data import NUMBERS, Numbers, find_numbers
from weft.tasks.quality.data import (
    Output,
    QualityReader,
    both_texts,
    gather_quality,
    quality_format,
    random_quality,
    scores_only,
)
from weft.tasks.quality.metrics import METRICS, floors
from weft.tasks.quality.model import QualityModel, forces, quality_model
from weft.tasks.quality.predictor import Quality, QualityPredictor, quality_page
from weft.tasks.quality.tokenizers import TokenizerPair, check_shared, quality_tokenizers


class QualityTask(CorpusTask):
    """The quality of a translation, from it and its source: a score, such as sentence chrF, and OK or BAD for each word.

    `weft quality data` makes the data: source, translation, score and tags. Each text is cut after data.max_length tokens.

    estimator: what reads both texts. translator: a translation model, that of --from RUN, reads them by teacher forcing, and a
        second encoder reads its states; the others are the comparisons of the task pairs
    output: both; number: scores only; tags: tags only
    hidden: width of a layer between the vector of both texts and the score; 0: none
    tags_weight: of the loss of words beside that of scores
    dropout: share of each vector that is dropped before a layer of the estimator or of the output
    """

    example = "quality.jsonl (source, translation, score and tags on each line)"
    info = TaskInfo(
        commands=("printf 'a source\\tits translation\\n' | weft predict {run}", "weft evaluate {run} --data FILE.jsonl"),
        count_unit="translations",
        inference_kind="forward",
        texts=2,
    )

    def __init__(
        self,
        context: TaskContext,
        *,
        estimator: Annotated[dict[str, Any], Among("weft.tasks.quality:ESTIMATORS")] = {"kind": "esim"},  # noqa: B006
        output: Output = "both",
        hidden: NonNegativeInt = 0,
        tags_weight: NonNegativeFloat = 1.0,
        dropout: Share = 0.1,
    ) -> None:
        super().__init__(context)
        self.estimator, self.output, self.hidden, self.dropout = estimator, output, hidden, dropout
        self.tags_weight = 0.0 if output == "number" else tags_weight
        self.numbers = Numbers()
        self.data_format = quality_format(output)
        self.measures, self.info = measures_of(METRICS[output]), replace(self.info, metric_types=METRICS[output])

    def learn(self, train: list[Pairs]) -> None:
        """Finds the mean and the deviation of the scores as well."""
        if self.new:
            if forces(self.estimator) and not self.config.start.run:
                self.report("warning: the estimator translator reads with a model that knows nothing; name one with --from RUN")
            found = find_numbers(scores_only(train))
            self.report(f"scores with a mean of {found.mean:.1f} and a standard deviation of {found.deviation:.1f}")
            found.save(self.run / NUMBERS)
        super().learn(both_texts(train))

    def tokenizers(self, train: list[Pairs]) -> TokenizerPair:
        """Those of sources and of translations; the same ones for an estimator with one encoder for both."""
        self.config, pair = quality_tokenizers(self.config, train, self.report, apart=forces(self.estimator))
        return pair

    def reopen(self) -> Sizes:
        super().reopen()
        self.numbers = Numbers.load(self.run / NUMBERS)
        if not forces(self.estimator):
            check_shared(self.source, self.target, self.config)
        return Sizes(self.source.size, self.target.size, self.source is self.target)

    @property
    def reader(self) -> QualityReader:
        return QualityReader(self.source, self.config.data.max_length, target=self.target)

    def encoding(self, *, training: bool) -> Encoding:
        return self.reader.encoding(self.output, drop_duplicates=self.config.data.drop_duplicates and training)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        return quality_model(spec, sizes, self.estimator, self.hidden, self.dropout, tags=self.output != "number")

    def collate(
        self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False
    ) -> QualityBatch:
        return gather_quality(corpus, np.asarray(rows, dtype=np.int64))

    def losses(self, model: QualityModel, batch: QualityBatch, update: int) -> Iterator[Loss]:
        yield Loss(*self.validation_loss(model, batch))

    def validation_loss(self, model: QualityModel, batch: QualityBatch) -> tuple[Tensor, Tensor]:
        """The squared error of scores in units of their deviation and, weighted, the mean cross-entropy of each one's tags."""
        found = model(batch.source, batch.second, batch.spans)
        goal = (batch.labels - self.numbers.mean) / self.numbers.deviation
        total = ((found.number.float() - goal) ** 2).sum()
        if found.words is not None:
            real = batch.tags != NO_LABEL
            each = F.binary_cross_entropy_with_logits(found.words.float(), batch.tags.float().clamp_min(0), reduction="none")
            total = total + self.tags_weight * (each.where(real, 0.0).sum(1) / real.sum(1).clamp_min(1)).sum()
        return total, torch.tensor(len(batch.labels), device=total.device)

    def remarks(self, pairs: Pairs) -> Iterator[str]:
        """The scores of the simplest estimates."""
        mean = None if self.output == "tags" else self.numbers.mean
        for name, scores in floors(list(pairs), mean, self.metrics()).items():
            yield f"{pairs.name}: {name} would have: {', '.join(f'{key} {value:.1f}' for key, value in scores.items())}"

    @property
    def decoded_examples(self) -> list[tuple[str, str]]:  # type: ignore[override]
        """All validation examples."""
        return list(chain.from_iterable(self.references))

    def predictor(self, model: QualityModel, resolved: DecodingOptions, warn: Warn | None = None) -> QualityPredictor:
        return QualityPredictor(model, self.reader, self.numbers, resolved, self.output, run=self.run, warn=warn)

    def explanation(self, predictor: QualityPredictor, prediction: Quality, text: str) -> str:
        """The confidence in the translation and its words, and the attention between the texts."""
        return quality_page(prediction)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> QualityBatch:
        return random_quality(length, rows, sizes.source, sizes.target)
