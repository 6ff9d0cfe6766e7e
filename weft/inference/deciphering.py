"""Deciphering: texts in a cipher to plain text, symbol by symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from weft.batch import UNK
from weft.data.ciphers import read_symbols, write_symbols
from weft.data.tokenizer import Tokenizer
from weft.inference.predictor import Part, Prediction, Predictor, pad
from weft.inference.resolve import Resolved
from weft.models.base import Network
from weft.search.loop import Control


class DecipheringPredictor(Predictor[str, Prediction]):
    """A model that deciphers. A long text is read in windows of `extent` symbols. `score` is the log-probability of the text.

    separator: what stands between symbols.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        resolved: Resolved,
        symbols: Tokenizer,
        extent: int,
        separator: str,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.symbols, self.extent, self.separator = symbols, extent, separator

    def read(self, inputs: Sequence[str], first_line: int) -> list[list[Part]]:
        texts = [read_symbols(self.symbols, line) for line in inputs]
        return [[Part(text[at : at + self.extent]) for at in range(0, len(text), self.extent)] for text in texts]

    def run(self, parts: list[Part], control: Control | None = None) -> list[tuple[list[int], float]]:
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            logits = self.model.solve(pad([part.ids for part in parts]).to(self.model.device)).float()
        best = logits.log_softmax(-1).max(-1)
        return [
            (found[: part.size], sum(scores[: part.size]))
            for found, scores, part in zip(best.indices.tolist(), best.values.tolist(), parts, strict=True)
        ]

    def join(self, given: str, parts: list[Part], results: list[tuple[list[int], float]]) -> Prediction:
        symbols = [symbol for found, _ in results for symbol in found]
        ids = [symbol + UNK for symbol in symbols]
        text = write_symbols(self.symbols, symbols, self.separator)
        return Prediction(text, sum(score for _, score in results), ids, self.symbols.tokens(ids))


def mapping(model: Network, extent: int, symbols: int) -> torch.Tensor:
    """How a model reads each symbol of the cipher [V, V]: probabilities of plain symbols, the mean over all places."""
    with torch.no_grad():
        every = torch.arange(symbols, device=model.device)[:, None].expand(-1, extent)
        found: torch.Tensor = model.solve(every).softmax(-1).mean(1).cpu()  # type: ignore[operator]
    return found
