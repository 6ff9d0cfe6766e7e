"""From lines of text to their labels: streaming and in order, as `weft.tasks.decoding` does with translations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from weft.attention.core.recording import record
from weft.batch import EOS, Layout, Source
from weft.config.sections import DecodeSection
from weft.data.labels import Labels
from weft.data.tokenizer import RESERVED, Tokenizer
from weft.errors import DataError
from weft.models.base import Network
from weft.models.classifier import Judged
from weft.tasks.decoding import WINDOWS, Translation, pad
from weft.tasks.placing import budget, settled
from weft.tasks.terms import Terms


class Labelling:
    """A classifier with its tokenizer and labels. Of a text, the first `longest` tokens are read; `warn` is told of the rest.

    Of the settings of decoding it heeds batch_tokens, precision, and n_best, the number of labels given.
    """

    def __init__(
        self,
        model: Network,
        source: Tokenizer,
        labels: Labels,
        options: DecodeSection,
        *,
        longest: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.model, self.source, self.labels, self.longest = model, source, labels, longest
        self.options = settled(options, model.device)
        self.warn = warn or (lambda message: None)

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        terms: Iterable[Terms] | None = None,
        attention: bool = False,
        first_line: int = 1,
    ) -> Iterator[Translation]:
        """A label for each line, in order: its text is the label and its score the log-probability. A blank line has none."""
        if prefixes is not None or terms is not None:
            raise DataError(
                "a label is not written word by word, so it cannot be begun by a prefix or be asked for terms; leave them away"
            )
        texts, number, turn = iter(lines), first_line, 0
        while window := list(islice(texts, WINDOWS[min(turn, len(WINDOWS) - 1)])):
            yield from self._window(window, number, attention)
            number, turn = number + len(window), turn + 1

    def _window(self, lines: Sequence[str], number: int, attention: bool) -> list[Translation]:
        encoded = self.source.encode_batch(["" if line.isspace() else line for line in lines])
        for at, ids in enumerate(encoded, start=number):
            if len(ids) > self.longest:
                self.warn(f"line {at} has {len(ids):,} tokens; only the first {self.longest:,} are read")
        rows = [[*ids[: self.longest], EOS] if ids else [] for ids in encoded]
        found = [Translation("", 0.0) for _ in rows]
        waiting = sorted((row for row, ids in enumerate(rows) if ids), key=lambda row: -len(rows[row]))
        while waiting:
            most = max(1, budget(self.options) // len(rows[waiting[0]]))
            batch, waiting = waiting[:most], waiting[most:]
            for row, best in zip(batch, self._label([rows[row] for row in batch]), strict=True):
                found[row] = best
                if attention:
                    self._look(best, rows[row])
        return found

    def _label(self, rows: list[list[int]]) -> list[Translation]:
        chances = self._judge(rows).logits.float().log_softmax(-1)
        scores, places = (part.tolist() for part in chances.topk(min(self.options.n_best, chances.size(-1))))
        return [self._translation(*row) for row in zip(rows, scores, places, strict=True)]

    def _translation(self, ids: list[int], scores: list[float], places: list[int]) -> Translation:
        pieces = self.source.tokens(ids)
        best, *rest = (
            Translation(self.labels.names[place], score, [place + RESERVED], [self.labels.names[place]], pieces)
            for score, place in zip(scores, places, strict=True)
        )
        best.alternatives = rest
        return best

    def _look(self, found: Translation, ids: list[int]) -> None:
        """The weights of every layer that has any, and those of the pooling, under "pooling"."""
        with record(self.model) as tape:
            weights = self._judge([ids]).weights
        seen: dict[str, Tensor] = {name: torch.cat(each, 2)[0] for name, each in tape.items()}
        if weights is not None:
            seen["pooling"] = weights
        found.attention = {name: np.asarray(each.float().cpu()) for name, each in seen.items()}

    def _judge(self, rows: list[list[int]]) -> Judged:
        device, lengths = self.model.device, [len(ids) for ids in rows]
        layout = None if len(set(lengths)) == 1 else Layout.padded(lengths).to(device)
        half = torch.autocast(device.type, torch.bfloat16, enabled=self.options.precision == "bf16")
        with torch.inference_mode(), half:
            judged: Judged = self.model(Source(pad(rows).to(device), layout))
        return judged
