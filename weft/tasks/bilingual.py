"""What a model of two languages learns from: texts to restore from any source, words to fill in, and its own translations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.batch import BOS, EOS, PAD, Layout, Source
from weft.data.unpaired import UnpairedBatch
from weft.inference.predictor import pad
from weft.models.base import Decoder, Encoded
from weft.models.bilingual import Bilingual
from weft.search.choosers import Greedy, Limits
from weft.search.loop import generate

LONGER = 1.5
"""A back-translation may have this many tokens per token of the text, plus 5."""
HIDDEN = 0.15
"""The share of words that the encoder learns to fill in (Devlin et al. 2019)."""


@dataclass(frozen=True)
class Languages:
    """The marks of two languages, the blank, and the number of ids that texts consist of."""

    first: int
    second: int
    blank: int
    size: int

    def of(self, batch: UnpairedBatch) -> Tensor:
        """The language of each text [B], 0 or 1."""
        return (batch.other == self.first).long()

    def labels(self, model: Bilingual, batch: UnpairedBatch, labels: Tensor) -> Iterator[tuple[Decoder, Tensor]]:
        """Each decoder with the labels it has to predict: all, or those of its language."""
        for language, decoder in enumerate(model.decoders):
            own = (self.of(batch) == language)[:, None]
            yield decoder, labels if len(model.decoders) == 1 else labels.masked_fill(~own, PAD)


def restore(
    model: Bilingual, encoded: Encoded, batch: UnpairedBatch, languages: Languages, smoothing: float
) -> tuple[Tensor, Tensor]:
    """(label-smoothed loss, negative log-likelihood) of the texts of a batch, given an encoded source for each."""
    pairs = []
    for decoder, labels in languages.labels(model, batch, batch.labels):
        hidden = decoder.features(batch.target, decoder.start(encoded), batch.target_layout).hidden
        pairs.append(decoder.loss(hidden, labels, smoothing))
    return _sums(pairs)


def fill_in(model: Bilingual, batch: UnpairedBatch, languages: Languages) -> tuple[Tensor, Tensor]:
    """The same of words that the encoder reads as blanks, predicted from its states by the output layer of the decoder."""
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


@torch.no_grad()
def back_translate(model: Bilingual, batch: UnpairedBatch, languages: Languages, longest: int) -> Source:
    """Greedy translations of the texts into the other language, without dropout; no gradient passes through them."""
    training, other = model.training, batch.other
    model.eval()
    texts: dict[int, list[int]] = {}
    for language, decoder in enumerate(model.decoders):
        rows = torch.arange(len(other), device=other.device)
        if len(model.decoders) > 1:
            rows = (languages.of(batch) != language).nonzero()[:, 0]
        for row, text in zip(rows.tolist(), _written(model, decoder, batch, rows, longest), strict=True):
            texts[row] = [*(token for token in text if EOS < token < languages.size), EOS]
    model.train(training)
    ordered = [texts[row] for row in range(len(other))]
    return Source(pad(ordered), Layout.padded([len(text) for text in ordered])).to(other.device)


def _written(model: Bilingual, decoder: Decoder, batch: UnpairedBatch, rows: Tensor, most: int) -> list[list[int]]:
    """Greedy translations of some rows by one decoder."""
    layout, other = batch.clean.layout, batch.other[rows]
    assert layout is not None
    if len(rows) == 0:
        return []
    some = Source(batch.clean.values[rows], layout.select(rows))
    longest = (layout.lengths[rows] * LONGER).long() + 5
    limits = Limits(longest.clamp_max(most), torch.ones_like(longest), batch.rows[rows])
    first = torch.stack([torch.full_like(other, BOS), other], 1)
    found, _ = generate(decoder, model.encode(some), Greedy(), first=first, limits=limits, best=1)
    return [best.tokens for best, *_ in found]


def _sums(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    totals, nlls = zip(*pairs, strict=True)
    return torch.stack(totals).sum(), torch.stack(nlls).sum()
