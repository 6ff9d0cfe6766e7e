"""Models with an output layer for connectionist temporal classification over the encoder's memory (Graves et al. 2006).

Shapes: G sources · S positions of the memory · V target vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from weft.data.batch import PairBatch, Source
from weft.losses.ctc_loss import CtcLoss, ctc_loss
from weft.models.base import Decoder, Encoded, Encoder, Model, Network, Sizes
from weft.models.encoder_decoder import build_encoder


@dataclass(frozen=True)
class CtcOutputs:
    """logits [G, S, V + 1] of the target tokens and the blank, which is the last id · lengths [G] of the rows."""

    logits: Tensor
    lengths: Tensor

    @property
    def blank(self) -> int:
        return self.logits.size(-1) - 1


class CtcOutput(nn.Module):
    """A linear layer from the memory to the target vocabulary and a blank, whose id follows those of the vocabulary."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, vocabulary + 1)

    def forward(self, encoded: Encoded) -> CtcOutputs:
        return CtcOutputs(self.output(encoded.memory), encoded.lengths)


class CtcModel(Network):
    """An encoder and an output for each position of its memory, without a decoder."""

    def __init__(self, encoder: Encoder, vocabulary: int) -> None:
        super().__init__()
        self.encoder, self.ctc = encoder, CtcOutput(encoder.width, vocabulary)
        self.dim, self.max_source = encoder.width, encoder.max_source
        self.cuda_graph_safe, self.compiles = encoder.cuda_graph_safe, encoder.compiles

    @property
    def repeated(self) -> Sequence[nn.Module]:
        return self.encoder.repeated or [self]

    def encode(self, source: Source) -> Encoded:
        return self.encoder(source)


class JointModel(Model):
    """An encoder and a decoder, with a CTC output over the memory that they share (Kim et al. 2017)."""

    def __init__(self, encoder: Encoder, decoder: Decoder, vocabulary: int) -> None:
        super().__init__(encoder, decoder)
        self.ctc = CtcOutput(encoder.width, vocabulary)


def with_ctc(model: Network | None, spec: Mapping[str, Any], sizes: Sizes) -> CtcModel | JointModel:
    """A model with CTC over its memory as well; if there is none, the encoder of `spec` (the section model) with CTC alone."""
    if isinstance(model, Model):
        return JointModel(model.encoder, model.decoder, sizes.target)
    return CtcModel(build_encoder(spec, sizes), sizes.target)


def attention_and_ctc(
    model: nn.Module, batch: PairBatch, smoothing: float = 0.0
) -> tuple[tuple[Tensor, Tensor] | None, CtcLoss | None]:
    """The loss of the decoder and that of CTC, which is of the labels without EOS, if the model has them."""
    assert isinstance(model, Model | CtcModel)
    encoded, attended, aligned = model.encode(batch.source), None, None
    if isinstance(model, Model):
        features = model.decoder.hidden_states(batch.target, model.decoder.init_state(encoded), batch.target_layout)
        attended = model.decoder.loss(features.hidden, batch.labels, smoothing)
    if isinstance(model, CtcModel | JointModel):
        emitted, counts = model.ctc(encoded), batch.target_layout.lengths - 1
        aligned = ctc_loss(emitted.logits, emitted.lengths, batch.labels, counts, blank=emitted.blank)
    return attended, aligned
