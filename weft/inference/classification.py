"""Classification: lines of text to labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.attention.core.recording import first_row, record
from weft.batch import EOS, Layout, Source
from weft.data.labels import Labels
from weft.data.tokenizer import RESERVED, Tokenizer
from weft.inference.predictor import Part, Prediction, Predictor, pad, refuse
from weft.inference.resolve import Resolved
from weft.models.base import Network
from weft.models.classifier import Judged
from weft.search.loop import Control


@dataclass
class Label(Prediction):
    """A label: `text` is its name and `score` its log-probability. A blank line has none."""


@dataclass(frozen=True)
class ClassificationInput:
    """A text to classify. attention: whether to add attention weights."""

    text: str
    attention: bool = False


class ClassificationPredictor(Predictor[ClassificationInput, Label]):
    """A classifier with its tokenizer and labels. It reads the first `longest` tokens of a text.

    Of the decoding options it uses batch_tokens, precision, compile and n_best, the number of labels given.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        source: Tokenizer,
        labels: Labels,
        resolved: Resolved,
        *,
        longest: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.source, self.labels, self.longest = source, labels, longest

    def parse(self, line: str, *, attention: bool = False, **fields: Any) -> ClassificationInput:
        refuse(fields, "a label is not written word by word, so it has no prefix and no terms; leave them out")
        return ClassificationInput(line, attention)

    def read(self, inputs: Sequence[ClassificationInput], first_line: int) -> list[list[Part]]:
        encoded = self.source.encode_batch(["" if given.text.isspace() else given.text for given in inputs])
        for line, ids in enumerate(encoded, start=first_line):
            if len(ids) > self.longest:
                self.warn(f"line {line} has {len(ids):,} tokens; only the first {self.longest:,} are read")
        return [[Part([*ids[: self.longest], EOS])] if ids else [] for ids in encoded]

    def run(self, parts: list[Part], control: Control | None = None) -> list[Label]:
        rows = [part.ids for part in parts]
        logp = self._judge(rows).logits.float().log_softmax(-1)
        scores, places = (each.tolist() for each in logp.topk(min(self.resolved.section.n_best, logp.size(-1))))
        names, results = self.labels.names, []
        for ids, logps, labels in zip(rows, scores, places, strict=True):
            pieces, pairs = self.source.tokens(ids), zip(logps, labels, strict=True)
            best, *rest = (Label(names[at], value, [at + RESERVED], [names[at]], pieces) for value, at in pairs)
            best.alternatives = rest
            results.append(best)
        return results

    def join(self, given: ClassificationInput, parts: list[Part], results: list[Label]) -> Label:
        if not results:
            return Label("", 0.0)
        if given.attention:
            self._add_attention(results[0], parts[0].ids)
        return results[0]

    def _add_attention(self, label: Label, ids: list[int]) -> None:
        """Adds the weights of every layer that has any; those of the pooling are under "pooling"."""
        with record(self.model) as tape:
            pooling = self._judge([ids]).weights
        label.attention, label.uses = first_row(self.model, tape)
        if pooling is not None:
            label.attention["pooling"] = np.asarray(pooling.float().cpu())

    def _judge(self, rows: list[list[int]]) -> Judged:
        device, lengths = self.model.device, [len(ids) for ids in rows]
        layout = None if len(set(lengths)) == 1 else Layout.padded(lengths).to(device)
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            judged: Judged = self.model(Source(pad(rows).to(device), layout))
        return judged
