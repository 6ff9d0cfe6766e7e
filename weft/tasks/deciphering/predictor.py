"""Deciphering: texts in a cipher to plain text, symbol by symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import UNK, pad
from weft.decoding.search_loop import Cancellation
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Prediction, Predictor
from weft.models.base import Network
from weft.tasks.deciphering.data import Alphabet


class DecipheringPredictor(Predictor[str, Prediction]):
    """A model that deciphers. A long text is read in windows of `extent` symbols. `score` is the log-probability of the text.

    period: places after which the cipher repeats.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        options: DecodingOptions,
        alphabet: Alphabet,
        extent: int,
        warn: Callable[[str], None] | None = None,
        *,
        period: int = 1,
    ) -> None:
        super().__init__(model, options, warn)
        self.alphabet, self.extent, self.period = alphabet, extent, period

    def parse_input(self, line: str, **fields: Any) -> str:
        fields.pop("attention", None)  # `mapping` shows the same for all texts
        return str(super().parse_input(line, **fields))

    def encode_input(self, inputs: Sequence[str], first_line: int) -> list[list[BatchItem]]:
        texts = [self.alphabet.read(line) for line in inputs]
        return [[BatchItem(text[at : at + self.extent]) for at in range(0, len(text), self.extent)] for text in texts]

    def run(self, parts: list[BatchItem], control: Cancellation | None = None) -> list[tuple[list[int], float]]:
        with self.options.arithmetic(next(self.model.parameters()).dtype):
            logits = self.model.solve(pad([part.ids for part in parts]).to(self.model.device)).float()
        best = logits.log_softmax(-1).max(-1)
        return [
            (found[: part.size], sum(scores[: part.size]))
            for found, scores, part in zip(best.indices.tolist(), best.values.tolist(), parts, strict=True)
        ]

    def join_outputs(self, given: str, parts: list[BatchItem], results: list[tuple[list[int], float]]) -> Prediction:
        symbols = [symbol for found, _ in results for symbol in found]
        ids, tokens = [symbol + UNK for symbol in symbols], self.alphabet.tokenizer.tokens
        text, given_tokens = self.alphabet.write(symbols), tokens([symbol + UNK for part in parts for symbol in part.ids])
        return Prediction(text, sum(score for _, score in results), ids, tokens(ids), given_tokens)

    @torch.no_grad()
    def mapping(self) -> Tensor:
        """How the model reads each symbol of the cipher [P, V, V]: probabilities of plain symbols, the mean over all places
        of a text that have the same key."""
        size = len(self.alphabet.units)
        every = torch.arange(size, device=self.model.device)[:, None].expand(-1, self.extent)
        chances: Tensor = self.model.solve(every).softmax(-1).cpu()
        return torch.stack([chances[:, place :: self.period].mean(1) for place in range(self.period)])
