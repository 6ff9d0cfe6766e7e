"""Models that write a text about a file, such as a picture or a recording."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import BOS, EOS, Source
from weft.data.tokenizers.base import Tokenizer
from weft.decoding.beam_greedy_sample import LengthLimits
from weft.decoding.constraints import usual_constraints
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.search_loop import Cancellation
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Prediction, Predictor
from weft.models.base import Encoded, Model

Input = TypeVar("Input")


class MediaPredictor(Predictor[Input, Prediction], ABC, Generic[Input]):
    """A model with the tokenizer of its texts. The score of a text is that of the search."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(model, resolved, warn)
        self.tokenizer = tokenizer
        if isinstance(model, Model):
            resolved.search.wrap_decoder(model.decoder)  # fails now if the search cannot work with this decoder
        if resolved.section.n_best > 1:
            resolved.search.check(["n_best"])

    def find(
        self, encoded: Encoded, longest: Sequence[int], names: Sequence[int], best: int, control: Cancellation | None
    ) -> list[list[Hypothesis]]:
        """The texts that the decoder finds, of at most `longest` tokens each. names: numbers that name inputs to sampling."""
        section, device = self.resolved.section, self.model.device
        longest = [self.limited(each) for each in longest]
        columns = longest, [min(section.min_length, each - 1) for each in longest], names
        found, _ = self.resolved.search.find(
            self.model.decoder,
            encoded,
            limits=LengthLimits(*(torch.tensor(each, device=device) for each in columns)),
            first=torch.full((len(longest), 1), BOS, device=device),
            best=best,
            constraints=usual_constraints(section.no_repeat_ngram, max(longest) + 1),
            control=control,
        )
        return found

    def limited(self, longest: int) -> int:
        """As many tokens as the settings and the model allow, of `longest`."""
        limit, most = self.resolved.section.max_length, self.model.max_target
        return max(1, min(longest, limit, limit if most is None else most - 1))

    def write(self, hypothesis: Hypothesis) -> Prediction:
        ids = hypothesis.tokens
        text = self.tokenizer.decode([token for token in ids if token != EOS])
        return Prediction(text, hypothesis.score, ids, self.tokenizer.tokens(ids))

    def join(self, given: Input, parts: list[BatchItem], results: list[list[Prediction]]) -> Prediction:
        if not results or not results[0]:
            return Prediction("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        return best

    @torch.inference_mode()
    def add_attention(self, written: Prediction, source: Source) -> Encoded:
        """Adds the weights of every layer that has any, and returns what the encoder made of the source."""
        with record(self.model) as tape:
            encoded: Encoded = self.model.encode(source)
            if isinstance(self.model, Model):
                fed = torch.tensor([[BOS, *written.ids[:-1]]], device=self.model.device)
                self.model.decoder.features(fed, self.model.decoder.start(encoded))
        written.attention, written.uses = first_row(self.model, tape)
        return encoded
