"""Plain texts of texts in a cipher, their accuracy, and a picture of the learnt cipher.

Shapes: P places after which the cipher repeats · V symbols of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batch import UNK, pad
from weft.decoding.search_loop import Cancellation
from weft.evaluation.metrics import Counts, Metric
from weft.explain.explanation import shown
from weft.explain.html_parts import image
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Prediction, Predictor
from weft.models.base import Network
from weft_studies.deciphering.data import Alphabet


class SymbolAccuracy(Metric):
    """The share of symbols that are right, place by place; places where the reference has `unknown` do not count.

    separator: what stands between symbols; nothing if each character is one.
    """

    name = "accuracy"

    def __init__(self, separator: str, unknown: str) -> None:
        self.separator, self.unknown = separator, unknown

    @property
    def signature(self) -> str:
        return f"symbols:{'words' if self.separator else 'characters'}|unknown:not counted"

    def units(self, text: str) -> Sequence[str]:
        return text.split(self.separator) if self.separator else list(text)

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        rows = []
        for ours, theirs in zip(map(self.units, hypotheses), map(self.units, references), strict=True):
            counted = [n for n, unit in enumerate(theirs) if unit != self.unknown]
            rows.append([sum(n < len(ours) and ours[n] == theirs[n] for n in counted), len(counted)])
        return np.array(rows, np.float64).reshape(-1, 2)


class DecipheringPredictor(Predictor[str, Prediction]):
    """A model that deciphers. A long text is read in windows of `extent` symbols. `score` is the log-probability of the text.

    period: places after which the cipher repeats.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        resolved: DecodingOptions,
        alphabet: Alphabet,
        extent: int,
        warn: Callable[[str], None] | None = None,
        *,
        period: int = 1,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.alphabet, self.extent, self.period = alphabet, extent, period

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


def learnt_mapping(mapping: NDArray[np.float32], prediction: Prediction) -> str:
    """For each place of the key, a picture: a row per symbol of the cipher, a column per plain symbol, dark where the model
    expects that one; and the symbols of the text with the plain symbols they were read as. mapping: [P, V, V]."""
    pictures = ""
    for place, chances in enumerate(mapping, start=1):
        shade = (255 * (1 - chances)).astype(np.uint8)
        pictures += f"<figure class='picture exact'>{image(shade, 'the learnt mapping')}"
        pictures += f"<figcaption>place {place} of the key: cipher ↓ plain →</figcaption></figure>\n"
    pairs = dict.fromkeys(zip(prediction.source_tokens, prediction.tokens, strict=True))
    rows = "".join(f"<tr><th>{escape(shown(one))}</th><td>{escape(shown(other))}</td></tr>\n" for one, other in pairs)
    return f"{pictures}<table class=sound>\n{rows}</table>\n"
