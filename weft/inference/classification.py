"""Classification: lines of text to labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from torch import Tensor, nn

from weft.attention.core.recording import first_row, record
from weft.batch import Layout, Source
from weft.data.documents import TextReader, document_source
from weft.data.labels import Labels
from weft.inference.labels import NO_PREFIX, Label, LabelPredictor
from weft.inference.predictor import Part, pad, refuse
from weft.inference.resolve import Resolved
from weft.models.base import Network
from weft.pooling.base import Pooled, Pooling
from weft.search.loop import Control

POOLINGS = {"pooling": "pooling", "words": "encoder.front.pooling"}
"""What the weights of a pooling are called → the module of a classifier."""


@dataclass(eq=False)
class TextPart(Part):
    """sizes: the number of ids of each sentence, if the model reads sentences."""

    sizes: list[int] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class ClassificationInput:
    """A text to classify. attention: whether to add attention weights."""

    text: str
    attention: bool = False


class ClassificationPredictor(LabelPredictor[ClassificationInput]):
    """A classifier. `reader` says how it reads a text."""

    def __init__(
        self,
        model: Network,
        reader: TextReader,
        labels: Labels,
        resolved: Resolved,
        *,
        threshold: float = 0.5,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, labels, resolved, threshold=threshold, warn=warn)
        self.reader, self.source = reader, reader.tokenizer

    def parse(self, line: str, *, attention: bool = False, **fields: Any) -> ClassificationInput:
        refuse(fields, NO_PREFIX)
        return ClassificationInput(line, attention)

    def read(self, inputs: Sequence[ClassificationInput], first_line: int) -> list[list[TextPart]]:
        encoded = self.reader.encode(["" if given.text.isspace() else given.text for given in inputs])
        longest = self.reader.longest
        for line, (ids, _) in enumerate(encoded, start=first_line):
            if len(ids) > longest:
                self.warn(f"line {line} has {len(ids):,} tokens; only the first {longest:,} are read")
        cut = [self.reader.cut(each) for each in encoded]
        return [[TextPart(ids, sizes=sizes)] if ids else [] for ids, sizes in cut]

    def run(self, parts: list[TextPart], control: Control | None = None) -> list[Label]:
        logits = self.judge(self._lay_out(parts)).logits.float().cpu()
        results = [self.give(row, self.source.tokens(part.ids)) for row, part in zip(logits, parts, strict=True)]
        for label, part in zip(results, parts, strict=True):
            ends = accumulate(part.sizes, initial=0)
            label.sentences = [label.source_tokens[start:end] for start, end in pairwise(ends)]
        return results

    def join(self, given: ClassificationInput, parts: list[TextPart], results: list[Label]) -> Label:
        if not results:
            return Label("", 0.0)
        if given.attention:
            self._add_attention(results[0], parts[0])
        return results[0]

    def _add_attention(self, label: Label, part: TextPart) -> None:
        """Adds the weights of every layer that has any.

        Those of the pooling are under "pooling", and those of words in sentences [sentences, rows, words] under "words".
        """
        with record(self.model) as tape, record_poolings(self.model) as pooled:
            self.judge(self._lay_out([part]))
        label.attention, label.uses = first_row(self.model, tape)
        for key, name in POOLINGS.items():
            if name in pooled:
                label.attention[key] = np.asarray(pooled[name].float().cpu())

    def _lay_out(self, parts: Sequence[TextPart]) -> Source:
        if self.reader.by_sentence:
            ids, sizes = (np.array([*chain.from_iterable(each)]) for each in zip(*((p.ids, p.sizes) for p in parts)))
            return document_source(ids, sizes, [len(part.sizes) for part in parts])
        lengths = [part.size for part in parts]
        return Source(pad([part.ids for part in parts]), None if len(set(lengths)) == 1 else Layout.padded(lengths))


@contextmanager
def record_poolings(model: Network) -> Iterator[dict[str, Tensor]]:
    """Inside this context the weights of every pooling of `model` are collected under its name, if it has any."""
    tape: dict[str, Tensor] = {}

    def note(name: str, _: nn.Module, __: Any, pooled: Pooled) -> None:
        if pooled.weights is not None:
            tape[name] = pooled.weights

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Pooling):
                stack.callback(module.register_forward_hook(partial(note, name)).remove)
        yield tape
