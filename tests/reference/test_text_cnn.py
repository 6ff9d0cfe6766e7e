"""TextCNN against a loop over the equations of Kim 2014."""

from __future__ import annotations

import torch

from weft.data.batch import Layout, Source
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft.models.pooling import MaxPooling

LENGTHS = [6, 2, 4]


@torch.no_grad()
def test_features_are_their_equation_and_the_maximum_over_the_text() -> None:
    """Equations 2 to 4: c_i = f(w x_{i:i+h−1} + b) and ĉ = max(c), with zeros around the text."""
    encoder = build_encoder({"kind": "composed", "encoder": {"kind": "text_cnn", "dim": 5, "channels": 3}}, Sizes(9, 9)).eval()
    assert encoder.width == 9
    tokens, layout = torch.randint(3, 9, (3, 8)), Layout.padded(LENGTHS, 8)
    encoded = encoder(Source(tokens, layout))
    pooled = MaxPooling(9)(encoded.memory, layout).vectors[:, 0]
    for row, length in enumerate(LENGTHS):
        x = [encoder.front.table.weight[token] * 5**0.5 for token in tokens[row, :length]]
        maps = [[] for _ in range(9)]
        for number, (width, taps) in enumerate(zip((3, 4, 5), encoder.taps, strict=True)):
            for begin in range(length):
                places = range(begin - (width - 1) // 2, begin - (width - 1) // 2 + width)
                window = torch.cat([x[place] if 0 <= place < length else torch.zeros(5) for place in places])
                features = torch.relu(taps.weight @ window + taps.bias)
                for channel, value in enumerate(features.tolist()):
                    maps[3 * number + channel].append(value)
        torch.testing.assert_close(encoded.memory[row, :length], torch.tensor(maps).T)
        torch.testing.assert_close(pooled[row], torch.tensor([max(each) for each in maps]))
