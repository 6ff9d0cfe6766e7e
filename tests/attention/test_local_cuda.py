"""Windows on a GPU: FlashAttention's own, and groups of queries where rows are padded, against the masked matrix in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.base import Attention, Site, Use
from weft.config.registry import build
from weft.data.batch import Layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LAYOUTS = {
    "alone": (None, (2, 700)),
    "full": (Layout.padded((700, 700)), (2, 700)),
    "padded": (Layout.padded((700, 123, 1)), (3, 700)),
    "packed": (Layout.pack((200, 1, 389, 60), 700), (1, 700)),
}

SPECS: dict[str, dict[str, Any]] = {
    "local": {"kind": "local", "window": 50},
    "strided": {"kind": "strided", "stride": 8},
    "bigbird": {"kind": "bigbird", "window": 20, "block": 32, "blocks": 2},
    "joined": {"kind": "joined", "patterns": [{"kind": "local", "window": 16}, {"kind": "strided", "stride": 16}]},
    "alibi": {"kind": "full", "position": "alibi"},
}


def work(part: Attention, x: Tensor, layout: Layout | None, need_weights: bool) -> tuple[Tensor, Tensor]:
    part.zero_grad()
    context = part(x, part.init_state(rows=x.size(0)), append=x, layout=layout, need_weights=need_weights).context.float()
    context = context if layout is None else context[layout.mask]
    context.sin().sum().backward()
    grads = [parameter.grad.flatten() for parameter in part.parameters() if parameter.grad is not None]
    return context.detach(), torch.cat(grads).clone()


@pytest.mark.parametrize("use", ["encoder", "causal"])
@pytest.mark.parametrize("rows", LAYOUTS)
@pytest.mark.parametrize("name", SPECS)
def test_half_precision_is_the_masked_matrix(name: str, rows: str, use: Use) -> None:
    torch.manual_seed(0)
    part: Attention = build("weft.attention:ATTENTIONS", SPECS[name], Site(use, 64, 4)).cuda()
    layout, shape = LAYOUTS[rows]
    layout, x = None if layout is None else layout.to("cuda"), torch.randn(*shape, 64, device="cuda")
    context, gradient = work(part, x, layout, need_weights=True)
    with torch.autocast("cuda", torch.bfloat16):
        found, half = work(part, x, layout, need_weights=False)
    torch.testing.assert_close(found, context, atol=0.03, rtol=0.03)
    assert torch.cosine_similarity(half, gradient, 0) > 0.999
