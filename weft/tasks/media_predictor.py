"""Predictors that write a text about a file, such as a picture or a recording."""

from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import BOS, EOS, Source
from weft.data.tokenizers import Tokenizer
from weft.decoding.hypotheses import Hypothesis
from weft.inference.decoding_options import DecodingOptions, Warn
from weft.inference.predictor import BatchItem, Prediction, Predictor, refuse
from weft.models.base import Encoded, Model


@dataclass(frozen=True)
class MediaInput:
    """A file to write a text about. attention: whether to add attention weights."""

    path: str
    attention: bool = False


class MediaPredictor(Predictor[MediaInput, Prediction], ABC):
    """A model with the tokenizer of its texts. The score of a text is that of the search. noun: what messages call a file."""

    noun: ClassVar[str]

    def __init__(self, model: Any, tokenizer: Tokenizer, options: DecodingOptions, warn: Warn | None = None) -> None:
        super().__init__(model, options, warn)
        self.tokenizer = tokenizer
        if isinstance(model, Model):
            options.search.wrap_decoder(model.decoder)  # fails now if the search cannot work with this decoder
        if options.config.n_best > 1:
            options.search.check(["n_best"])

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> MediaInput:
        refuse(fields, f"a {self.noun} has no such field; leave it out")
        return MediaInput(line.strip(), attention)

    def write(self, hypothesis: Hypothesis) -> Prediction:
        ids = hypothesis.tokens
        text = self.tokenizer.decode([token for token in ids if token != EOS])
        return Prediction(text, hypothesis.score, ids, self.tokenizer.tokens(ids))

    def join_outputs(self, given: MediaInput, parts: list[BatchItem], results: list[list[Prediction]]) -> Prediction:
        if not results or not results[0]:
            return Prediction("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        return best

    @torch.inference_mode()
    def add_attention(self, written: Prediction, source: Source) -> Encoded:
        """Adds the weights of every layer that has any, and returns what the encoder made of the source."""
        with record(self.model) as recorded:
            encoded: Encoded = self.model.encode(source)
            if isinstance(self.model, Model):
                fed = torch.tensor([[BOS, *written.ids[:-1]]], device=self.model.device)
                self.model.decoder.hidden_states(fed, self.model.decoder.init_state(encoded))
        written.attention, written.uses = first_row(self.model, recorded)
        return encoded
