"""A model's blocks compile whole, once for all of them, and not again for other batches of the same size."""

from __future__ import annotations

import copy

import torch
from torch._dynamo.testing import CompileCounter

from weft.data.batch import Layout, Source
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model


def test_blocks_compile_once_and_compute_the_same() -> None:
    torch.manual_seed(0)
    spec = {"kind": "transformer", "dim": 16, "heads": 2, "feedforward": 32, "encoder_layers": 3, "decoder_layers": 3}
    model: Model = build_model(spec, Sizes(30, 30, True)).eval()
    compiled, counter = copy.deepcopy(model), CompileCounter()
    torch._dynamo.reset()
    for block in compiled.repeated:
        block.compile(backend=counter, fullgraph=True)
    for lengths in ([5, 9, 3], [7, 7, 2], [1, 1, 1]):
        layout = Layout.pack(lengths, 24, longest=16, pieces=8)
        tokens = torch.randint(4, 30, (1, 24))
        plain = model(Source(tokens, layout), tokens, layout).hidden
        torch.testing.assert_close(compiled(Source(tokens, layout), tokens, layout).hidden, plain)
    assert counter.frame_count == 2  # an encoder layer and a decoder layer
