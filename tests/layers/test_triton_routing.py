"""What training passes to the Triton kernels, checked by plain stand-ins: a model learns the same with and without them."""

import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.core import packed_sequences as packed_rows
from weft.data.batch import Layout, Source
from weft.layers import feedforward
from weft.layers import linear_norm_dropout as norm
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model

VOCABULARY, LAYERS = 40, 2
SOURCES, TARGETS = [7, 20, 1, 12], [9, 11, 4, 15]


def attend_pieces(parts: list[Tensor], *where: Any) -> tuple[Tensor, None]:
    queries, _, keys, _, seed, share, longest, causal = where
    assert seed is None and share == 0 and longest >= max(*SOURCES, *TARGETS)
    q, k, v = (each.float() for part in parts for each in part.unbind(1))
    seen = (queries[:, None] == keys) & (queries > 0)[:, None]
    seen = seen.tril() if causal else seen
    scores = (torch.einsum("thd,shd->hts", q, k) / q.size(-1) ** 0.5).masked_fill(~seen, -1e30)
    return torch.einsum("hts,shd->thd", scores.softmax(-1).masked_fill(~seen, 0.0), v).to(parts[0].dtype), None


def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, share: float, least: float
) -> list[Tensor]:
    assert seed is None and share == 0
    return [F.layer_norm(x.float() + y.float(), y.shape[-1:], weight, bias, least).to(y.dtype)]


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias).relu()


PARTS = {"attention": attend_pieces, "add_norm": add_norm, "linear_relu": linear_relu}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Replaces the kernels by stand-ins for any device, and counts their calls."""
    count: Counter[str] = Counter()
    for name, part in PARTS.items():

        def counted(*given: Any, name: str = name, part: Any = part) -> Any:
            count[name] += 1
            return part(*given)

        module = ModuleType(f"weft.layers.kernels.triton.{name}")
        setattr(module, part.__name__, counted)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for place in (packed_rows, feedforward, norm):
        monkeypatch.setattr(place, "triton_available", lambda tensor: True)
    monkeypatch.setattr(packed_rows, "modern", lambda device: True)
    return count


def model(order: str, **more: Any) -> Model:
    torch.manual_seed(0)
    sizes = {"dim": 32, "heads": 2, "feedforward": 48, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "dropout": 0.0}
    spec = {"kind": "transformer", **sizes, "norm": order, **more}
    made: Model = build_model(spec, Sizes(VOCABULARY, VOCABULARY, True))
    return made.train()


def learnt(network: Model, *, half: bool) -> tuple[Tensor, Tensor]:
    """The loss of one packed batch, and all gradients."""
    layouts = [Layout.pack(lengths, 48, longest=20) for lengths in (SOURCES, TARGETS)]
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (1, 48), generator=generator) * layout.mask for layout in layouts)
    network.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        hidden = network(Source(source, layouts[0]), target.roll(1), layouts[1]).hidden
    loss, _ = network.decoder.loss(hidden.float(), target, 0.1)
    loss.backward()
    return loss.detach(), torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None])


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_model_learns_the_same_with_them(order: str, called: Counter[str]) -> None:
    network = model(order)
    wanted, slope = learnt(network, half=False)
    called.clear()
    found, mine = learnt(network, half=True)
    # An encoder layer has two sub-layers and a decoder layer three; one and two of them are attention.
    norms = {"add_norm": 5 * LAYERS} if order == "post" else {}
    assert called == Counter({"attention": 3 * LAYERS, "linear_relu": 2 * LAYERS, **norms})
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=0.0)
    assert torch.cosine_similarity(mine, slope, 0) > 0.999


def test_positions_that_turn_queries_and_keys_need_them_apart(called: Counter[str]) -> None:
    rotary = {"kind": "full", "position": "rotary"}
    network = model("pre", encoder_self=rotary, decoder_self=rotary)
    wanted, slope = learnt(network, half=False)
    called.clear()
    found, mine = learnt(network, half=True)
    assert called["attention"] == 3 * LAYERS
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=0.0)
    assert torch.cosine_similarity(mine, slope, 0) > 0.999


def test_a_model_at_work_does_without_those_of_training(called: Counter[str]) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        tokens, layout = torch.randint(4, VOCABULARY, (1, 48)), Layout.pack(SOURCES, 48, longest=20)
        model("post").eval().encoder(Source(tokens, layout))
    assert not called["add_norm"] and not called["linear_relu"]
