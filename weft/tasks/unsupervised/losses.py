"""Losses of a model of two languages: texts to restore from any source, words to fill in, and its own translations."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.data.batch import EOS, PAD, Layout, Source, pad
from weft.decoding.decoding_options import changed, resolve_options
from weft.models.base import Decoder, Encoded
from weft.tasks.translation.generation_request import PLAIN, translate_ids
from weft.tasks.translation.task import TranslationTask
from weft.tasks.unsupervised.data import UnpairedBatch
from weft.tasks.unsupervised.model import BilingualModel

HIDDEN = 0.15
"""The share of words that the encoder learns to fill in (Devlin et al. 2019)."""


@dataclass(frozen=True)
class LanguagePair:
    """The marks of two languages, the blank, and the number of ids that texts consist of."""

    first: int
    second: int
    blank: int
    size: int

    def of(self, batch: UnpairedBatch) -> Tensor:
        """The language of each text [B], 0 or 1."""
        return (batch.other == self.first).long()

    def labels(self, model: BilingualModel, batch: UnpairedBatch, labels: Tensor) -> Iterator[tuple[Decoder, Tensor]]:
        """Each decoder with the labels it has to predict: all, or those of its language."""
        for language, decoder in enumerate(model.decoders):
            own = (self.of(batch) == language)[:, None]
            yield decoder, labels if len(model.decoders) == 1 else labels.masked_fill(~own, PAD)


def denoising_loss(
    model: BilingualModel, encoded: Encoded, batch: UnpairedBatch, languages: LanguagePair, smoothing: float
) -> tuple[Tensor, Tensor]:
    """(label-smoothed loss, negative log-likelihood) of the texts of a batch, given an encoded source for each."""
    pairs = []
    for decoder, labels in languages.labels(model, batch, batch.labels):
        hidden = decoder.hidden_states(batch.target, decoder.init_state(encoded), batch.target_layout).hidden
        pairs.append(decoder.loss(hidden, labels, smoothing))
    return _sums(pairs)


def masked_word_loss(model: BilingualModel, batch: UnpairedBatch, languages: LanguagePair) -> tuple[Tensor, Tensor]:
    """The same losses of words that the encoder reads as blanks; the decoder's output layer predicts them from its states."""
    values, layout = batch.clean.values, batch.clean.layout
    hidden = (torch.rand(values.shape, device=values.device) < HIDDEN) & (values > EOS)
    encoded = model.encode(Source(values.masked_fill(hidden, languages.blank), layout))
    true = values.masked_fill(~hidden, PAD)
    return _sums([decoder.loss(encoded.memory, labels) for decoder, labels in languages.labels(model, batch, true)])


def nothing(batch: UnpairedBatch) -> Source:
    """A source without words for each text, which makes the decoder a language model."""
    rows = len(batch.rows)
    ends = torch.full((rows, 1), EOS, device=batch.other.device)
    return Source(ends, Layout.padded([1] * rows).to(ends.device))


def back_translations(
    task: TranslationTask, model: BilingualModel, batch: UnpairedBatch, languages: LanguagePair, bias: Tensor | None = None
) -> Source:
    """Greedy translations of the texts into the other language, without dropout; no gradient passes through them.

    bias: [2, V] added to the logits of each language, if given.
    """
    layout, into = batch.clean.layout, (1 - languages.of(batch)).tolist()
    rows = [row[:length] for row, length in zip(batch.clean.values.tolist(), layout.counts, strict=True)] if layout else []
    most = min(task.config.decode.max_length, task.config.data.max_length)
    changes = {**PLAIN, **task.quick, "min_length": 1, "precision": task.config.train.precision, "max_length": most}
    options = resolve_options(changed(task.config.decode, changes), model.device)
    texts: dict[int, list[int]] = {}
    training = model.training
    model.eval()
    for language in (0, 1) if len(model.decoders) > 1 else (None,):
        mine = [row for row, other in enumerate(into) if language in (None, other)]
        if not mine:
            continue
        results = translate_ids(
            model.writes(language or 0),
            (task.source, task.target),
            [rows[row] for row in mine],
            options,
            prefixes=[[(languages.first, languages.second)[into[row]]] for row in mine],
            bias=None if bias is None else bias[[into[row] for row in mine]],
        )
        for row, (best, *_) in zip(mine, results, strict=True):
            texts[row] = [*(token for token in best.tokens if EOS < token < languages.size), EOS]
    model.train(training)
    ordered = [texts[row] for row in range(len(rows))]
    return Source(pad(ordered), Layout.padded([len(text) for text in ordered])).to(model.device)


def _sums(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    totals, nlls = zip(*pairs, strict=True)
    return torch.stack(totals).sum(), torch.stack(nlls).sum()
