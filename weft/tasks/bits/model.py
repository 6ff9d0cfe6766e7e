"""Any encoder with independent yes-or-no outputs at each position.

Shapes: B rows · S positions · C outputs.
"""

from __future__ import annotations

from torch import Tensor, nn

from weft.data.batch import Source
from weft.models.base import Encoder, Network


class FrameClassifier(Network):
    """The logits [B, S, C] of what an encoder reads."""

    def __init__(self, encoder: Encoder, outputs: int) -> None:
        super().__init__()
        self.encoder, self.dim = encoder, encoder.width
        self.max_source, self.replays = encoder.max_source, encoder.replays
        self.output = nn.Linear(encoder.width, outputs)

    def forward(self, source: Source) -> Tensor:
        logits: Tensor = self.output(self.encoder(source).memory)
        return logits
