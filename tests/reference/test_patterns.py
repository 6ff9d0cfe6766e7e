"""Attention by pattern: each pattern against its paper's definition, in its limits, and against the masked full matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.self_attention import DIM, HEADS, make, whole
from weft.attention.base import Attention, Site, Use
from weft.attention.bigbird import BigBird, Random
from weft.attention.core import sparsity_patterns
from weft.attention.core.packed_sequences import RaggedPacking
from weft.attention.core.sparsity_patterns import Pattern
from weft.attention.local import Local
from weft.attention.longformer import Longformer
from weft.attention.sparse_transformer import Strided
from weft.config.registry import build, fill
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft_contract.mechanism_entries import same

USES: tuple[Use, ...] = ("encoder", "causal")

LONG: dict[str, dict[str, Any]] = {
    "local": {"kind": "local", "window": 11},
    "wide": {"kind": "local", "window": 70},
    "strided": {"kind": "strided", "stride": 7},
    "fixed": {"kind": "fixed", "block": 20, "summary": 3},
    "global": {"kind": "global", "tokens": 3},
    "every": {"kind": "global", "tokens": 2, "every": 40},
    "rules": {"kind": "longformer", "window": 9, "tokens": 2, "every": 50},
    "random": {"kind": "random", "block": 16, "blocks": 2},
    "longformer": {"kind": "longformer", "window": 9, "tokens": 2},
    "bigbird": {"kind": "bigbird", "window": 5, "tokens": 2, "block": 16, "blocks": 2},
    "sparse": {"kind": "joined", "patterns": [{"kind": "local", "window": 8}, {"kind": "strided", "stride": 8}]},
    "three": {
        "kind": "joined",
        "patterns": [
            "strided",
            {"kind": "fixed", "block": 24},
            {"kind": "random", "block": 8},
            {"kind": "strided", "stride": 9},
        ],
    },
    "heads": {
        "kind": "mixed",
        "heads": [{"kind": "local", "window": 3}, "local", {"kind": "strided", "stride": 8}, "longformer"],
    },
}
"""Patterns for which tiling pays off in a sequence of a few hundred tokens."""


def found_and_gradients(part: Attention, x: Tensor, layout: Layout | None, need_weights: bool) -> list[Tensor]:
    part.zero_grad()
    x = x.clone().requires_grad_()
    context = part(x, part.init_state(rows=x.size(0)), append=x, layout=layout, need_weights=need_weights).context
    context = context if layout is None else context[layout.mask]
    (context * torch.linspace(-1, 1, context.numel()).view_as(context)).sum().backward()
    assert x.grad is not None
    grads = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
    return [context.detach(), x.grad if layout is None else x.grad[layout.mask], *grads]


LAYOUTS = {
    "alone": (None, (2, 389)),
    "padded": (Layout.padded((389, 200, 1, 77)), (4, 389)),
    "packed": (Layout.pack((200, 1, 389, 60), 670), (1, 670)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("rows", LAYOUTS)
@pytest.mark.parametrize("name", LONG)
def test_the_short_way_is_the_masked_matrix(name: str, rows: str, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights, the full matrix and a mask are used; without them they must not be, and the result is the same."""
    part, (layout, shape) = make(LONG[name], use), LAYOUTS[rows]
    x = torch.randn(*shape, DIM)
    wanted = found_and_gradients(part, x, layout, need_weights=True)
    monkeypatch.setattr(sparsity_patterns, "attend", None)
    for mine, theirs in zip(found_and_gradients(part, x, layout, need_weights=False), wanted, strict=True):
        same(mine, theirs, atol=2e-4)


def windowed(q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], packing: RaggedPacking | None, dropout: float) -> Tensor:
    """What the fused kernel for windows computes: it handles segments, but no padding."""
    place = torch.arange(q.size(2))
    piece = torch.zeros_like(place) if packing is None else torch.bucketize(place, packing.offsets[1:].long(), right=True)
    away = place[:, None] - place
    mask = (away <= window[0]) & (away >= -window[1]) & (piece[:, None] == piece)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("rows", LAYOUTS)
@pytest.mark.parametrize("name", ["wide", "heads"])
def test_a_fused_window_gets_what_it_can_serve(name: str, rows: str, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the GPU kernel replaced by its definition, all layouts match the masked matrix."""
    part, (layout, shape) = make(LONG[name], use), LAYOUTS[rows]
    x = torch.randn(*shape, DIM)
    wanted = found_and_gradients(part, x, layout, need_weights=True)
    monkeypatch.setattr(sparsity_patterns, "flash_available", lambda q: True)
    monkeypatch.setattr(sparsity_patterns, "attend_window", windowed)
    for mine, theirs in zip(found_and_gradients(part, x, layout, need_weights=False), wanted, strict=True):
        same(mine, theirs, atol=2e-4)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "strided", "stride": 1},
        {"kind": "fixed", "block": 1000},
        {"kind": "fixed", "block": 10, "summary": 10},
        {"kind": "global", "tokens": 1000},
        {"kind": "random", "block": 1000},
        {"kind": "longformer", "window": 1000},
        {"kind": "bigbird", "window": 3, "tokens": 1000},
        {"kind": "joined", "patterns": ["full", "strided"]},
        {"kind": "mixed", "heads": ["full", {"kind": "strided", "stride": 1}, {"kind": "global", "tokens": 1000}, "full"]},
    ],
    ids=lambda spec: spec["kind"],
)
@pytest.mark.parametrize("extent", [71, 150])
def test_a_pattern_of_everything_is_full_attention(spec: dict[str, Any], extent: int, use: Use) -> None:
    full, part = make({"kind": "full"}, use), make(spec, use)
    part.load_state_dict(full.state_dict())
    x = torch.randn(2, extent, DIM)
    same(whole(part, x), whole(full, x))


def by_definition(name: str, i: int, j: int, causal: bool) -> bool:
    """The definitions of the papers, for the settings of `test_patterns_are_those_of_the_papers`."""
    if causal and j > i:
        return False
    return {
        "strided": (i - j) % 4 == 0,  # Child et al. 2019, section 4.3: (i − j) mod l = 0
        "fixed": i // 5 == j // 5 or j % 5 in (3, 4),  # ⌊j/l⌋ = ⌊i/l⌋; j mod l ∈ {l − c, …, l − 1}
        "global": j in (0, 1, 2) or i in (0, 1, 2),  # Beltagy et al. 2020: symmetric
        "longformer": (abs(i - j) < 3 if causal else abs(i - j) <= 3) or j in (0, 1) or i in (0, 1),
    }[name]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("strided", {"stride": 4}),
        ("fixed", {"block": 5, "summary": 2}),
        ("global", {"tokens": 3}),
        ("longformer", {"window": 3, "tokens": 2}),
    ],
)
def test_patterns_are_those_of_the_papers(name: str, options: dict[str, int], causal: bool) -> None:
    seen = make({"kind": name, **options}, "causal" if causal else "encoder").sees(23)
    assert seen.tolist() == [[by_definition(name, i, j, causal) for j in range(23)] for i in range(23)]


@pytest.mark.parametrize("causal", [False, True])
def test_bigbird_joins_three_patterns(causal: bool) -> None:
    pattern = BigBird(causal, window=2, tokens=3, block=4, blocks=2, seed=5)
    near, drawn = Longformer(causal, window=2, tokens=3), Random(causal, block=4, blocks=2, seed=5)
    assert torch.equal(pattern.sees(60, causal), near.sees(60, causal) | drawn.sees(60, causal))


def test_one_softmax_over_all_that_is_joined() -> None:
    """A key in two patterns counts once, and the weights of all patterns together sum to one."""
    full = make({"kind": "full"}, "encoder")
    part = make({"kind": "joined", "patterns": [{"kind": "local", "window": 2}, {"kind": "strided", "stride": 2}]}, "encoder")
    part.load_state_dict(full.state_dict())
    x = torch.randn(1, 301, DIM)
    found = whole(part, x)
    for i in (0, 1, 150, 300):
        near = [j for j in range(301) if abs(i - j) <= 2 or (i - j) % 2 == 0]
        same(found[:, i], whole(full, x[:, near].contiguous())[:, near.index(i)])


def test_heads_look_each_by_its_own_pattern() -> None:
    specs = [{"kind": "strided", "stride": 3}, {"kind": "local", "window": 4}, {"kind": "global"}, {"kind": "full"}]
    part, x = make({"kind": "mixed", "heads": specs}, "causal"), torch.randn(1, 40, DIM)
    weights = part(x, part.init_state(rows=1), append=x, need_weights=True).weights
    for head, spec in enumerate(specs):
        alone = make(spec, "causal")
        alone.load_state_dict(part.state_dict())
        same(weights[:, head], alone(x, alone.init_state(rows=1), append=x, need_weights=True).weights[:, head])


def test_parts_share_the_width() -> None:
    """Each part is an attention on its share of the channels; a single part without mixing equals that attention."""
    part, x = make({"kind": "parts", "parts": ["linear", {"kind": "local", "window": 3}]}, "causal"), torch.randn(2, 40, DIM)
    found = [whole(own, share.contiguous()) for own, share in zip(part.parts, part.share(x).chunk(2, -1), strict=True)]
    same(whole(part, x), part.out(torch.cat(found, -1)))
    alone = make({"kind": "parts", "parts": ["full"]}, "causal")
    with torch.no_grad():
        for projection in (alone.share, alone.out):
            projection.weight.copy_(torch.eye(DIM))
            projection.bias.zero_()
    same(whole(alone, x), whole(alone.parts[0], x))


def test_a_short_list_serves_several_heads() -> None:
    part = make({"kind": "mixed", "heads": [{"kind": "local", "window": 2}, {"kind": "strided", "stride": 5}]}, "encoder")
    each = make(
        {"kind": "mixed", "heads": 2 * [{"kind": "local", "window": 2}] + 2 * [{"kind": "strided", "stride": 5}]}, "encoder"
    )
    x = torch.randn(1, 150, DIM)
    same(whole(part, x), whole(each, x))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"kind": "mixed", "heads": ["local", "global", "strided"]}, "3 patterns for 4 heads; name one per head"),
        ({"kind": "mixed", "heads": []}, "0 patterns for 4 heads; name one per head"),
        ({"kind": "mixed", "heads": ["locale"]}, r"heads.0.kind: there is no 'locale'; did you mean 'local'\?"),
        ({"kind": "mixed", "heads": [{"kind": "local", "stride": 3}]}, r"heads.0.stride: there is no such option"),
        ({"kind": "joined", "patterns": []}, "name at least one"),
        ({"kind": "parts", "parts": ["local", "linear", "full"]}, "3 parts for 4 heads and a width of 16"),
        ({"kind": "parts", "parts": ["additive", "local"]}, "does not support encoder use, only cross"),
        ({"kind": "joined", "patterns": ["random", {"kind": "bigbird", "block": 8}]}, "need the same block size, not 8, 64"),
        ({"kind": "fixed", "block": 4, "summary": 5}, "a block of 4 tokens cannot have a summary of 5"),
        (
            {"kind": "joined", "patterns": [{"kind": "fixed", "block": 4, "summary": 5}]},
            "a block of 4 tokens cannot have a summary of 5",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build("weft.attention:ATTENTIONS", spec, Site("encoder", DIM, HEADS))


def test_a_saved_mixture_has_every_default() -> None:
    spec = fill("weft.attention:ATTENTIONS", {"kind": "mixed", "heads": ["local", {"kind": "strided", "stride": 3}]})
    assert spec["heads"] == [{"kind": "local", "window": 64}, {"kind": "strided", "stride": 3}]


def pairs(pattern: Pattern, extent: int) -> int:
    return sum(visit.area(extent) for visit in sparsity_patterns.plan(pattern, causal=True))


@pytest.mark.parametrize("pattern", [Local(True), Longformer(True), BigBird(True)], ids=lambda pattern: type(pattern).__name__)
def test_the_short_way_grows_with_the_length(pattern: Pattern) -> None:
    """Twice the length forms twice the pairs; and a stride divides them."""
    assert pairs(pattern, 8192) == 2 * pairs(pattern, 4096) < 4096**2 / 4
    assert pairs(Strided(True, stride=32), 4096) == 4096**2 // 32


def test_short_rows_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all tokens fit into a window, nothing is cut into groups."""
    monkeypatch.setattr(sparsity_patterns, "mix", None)
    part = make({"kind": "local", "window": 64}, "encoder")
    assert whole(part, torch.randn(1, 120, DIM)).isfinite().all()
