"""Global tokens by rule and learned ones: by plain loops in float64, in their limits, and for padded and packed rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.self_attention import DIM, HEADS, make
from weft.attention.base import Attention, Site, Use
from weft.config.registry import build
from weft.data.batch import Layout
from weft.errors import ConfigError

USES: tuple[Use, ...] = ("encoder", "causal")
LENGTHS = [70, 33, 1, 4, 18]
RULES: dict[str, dict[str, Any]] = {
    "first": {"kind": "global", "tokens": 3},
    "every": {"kind": "global", "tokens": 0, "every": 6},
    "end": {"kind": "global", "tokens": 0, "last": 5},
    "all-rules": {"kind": "longformer", "window": 2, "tokens": 1, "every": 16, "last": 2},
    "learned": {"kind": "longformer", "window": 2, "tokens": 1, "every": 16, "learned": 3},
    "learned-alone": {"kind": "global", "tokens": 0, "learned": 2},
    "bigbird": {"kind": "bigbird", "window": 2, "tokens": 1, "last": 1, "learned": 2, "block": 1000},
}


def is_global(spec: dict[str, Any], i: int, length: int) -> bool:
    """Whether token i of a sentence is global."""
    every = spec.get("every", 0)
    return i < spec.get("tokens", 1) or bool(every and i % every == 0) or i >= length - spec.get("last", 0)


def seen_by(spec: dict[str, Any], i: int, length: int, causal: bool) -> list[int]:
    """Beltagy et al. 2020, section 3.1: a token sees its window and the global tokens; a global token sees all."""
    window = length if spec["kind"] == "bigbird" else spec.get("window", 0)
    near = [j for j in range(length) if (i - window < j <= i if causal else abs(i - j) <= window)] if window else []
    far = [j for j in range(length) if is_global(spec, i, length) or is_global(spec, j, length)]
    return sorted({*near, *(j for j in far if j <= i or not causal)})


def softmax_loop(q: Tensor, k: Tensor, v: Tensor, seen: list[int]) -> Tensor:
    """Equation 1 of Vaswani et al. 2017 for one query q [H, d] and the keys `seen` of k, v [n, H, d] → [H · d]."""
    heads = []
    for head in range(HEADS):
        scores = torch.stack([q[head] @ k[j, head] for j in seen]) / math.sqrt(DIM // HEADS)
        heads.append(scores.softmax(0) @ v[seen, head])
    return torch.cat(heads)


def by_token(part: Any, spec: dict[str, Any], use: Use, x: Tensor) -> Tensor:
    """One sentence x [n, D]. Learned tokens e see it first, g = e + attention(e, [e; x]); then all tokens see g as well."""

    def projected(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (each.view(-1, HEADS, DIM // HEADS) for each in part.heads.query_key_value(tokens).chunk(3, -1))
        return q, k, v

    extra = x[:0]
    if part.learned is not None:
        q, k, v = projected(torch.cat([part.learned.vectors, x]))
        everything = list(range(len(k)))
        seen = [softmax_loop(q[e], k, v, everything) for e in range(part.learned.count)]
        extra = part.learned.vectors + part.heads.out(torch.stack(seen))
    q, k, v = projected(torch.cat([extra, x]))
    first, rows = list(range(len(extra))), []
    for i in range(len(x)):
        seen_here = first + [len(extra) + j for j in seen_by(spec, i, len(x), use == "causal")]
        rows.append(softmax_loop(q[len(extra) + i], k, v, seen_here) if seen_here else torch.zeros(DIM, dtype=x.dtype))
    return part.heads.out(torch.stack(rows))


@pytest.mark.parametrize(
    ("name", "use"),
    [(name, use) for name in RULES for use in USES if use == "encoder" or not {"last", "learned"} & RULES[name].keys()],
)
@torch.no_grad()
def test_padded_and_packed_rows_are_the_loop(name: str, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """By groups of queries and, for padded rows with weights, by the masked matrix."""
    part, padded, packed = make(RULES[name], use).double(), Layout.padded(LENGTHS), Layout.pack(LENGTHS, 140)
    x = torch.randn(len(LENGTHS), 70, DIM, dtype=torch.float64)
    wanted = torch.cat([by_token(part, RULES[name], use, x[row, :length]) for row, length in enumerate(LENGTHS)])
    together = torch.zeros(1, 140, DIM, dtype=torch.float64)
    together[packed.mask] = x[padded.mask]
    for short in (0, 1 << 30):
        monkeypatch.setattr("weft.attention.core.dot_product.SHORT", short)
        for layout, rows in ((padded, x), (packed, together)):
            found = part(rows, part.init_state(rows=rows.size(0)), append=rows, layout=layout).context
            torch.testing.assert_close(found[layout.mask], wanted, atol=1e-10, rtol=0)
    weighed = part(x, part.init_state(rows=len(LENGTHS)), append=x, layout=padded, need_weights=True)
    torch.testing.assert_close(weighed.context[padded.mask], wanted, atol=1e-10, rtol=0)
    assert weighed.weights is not None and weighed.weights.shape == (len(LENGTHS), HEADS, 70, 70)


LONG: list[dict[str, Any]] = [
    {"kind": "longformer", "window": 5, "tokens": 0, "last": 4},
    {"kind": "bigbird", "window": 5, "every": 60, "last": 4, "block": 16, "blocks": 1},
    {"kind": "longformer", "window": 5, "learned": 3, "every": 60},
]


@pytest.mark.parametrize("spec", LONG, ids=lambda spec: "-".join(map(str, spec)))
@pytest.mark.parametrize("lengths", [[389, 389], [389, 200, 1, 77]], ids=["alone", "padded"])
def test_groups_of_queries_are_the_masked_matrix(
    spec: dict[str, Any], lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights, a mask; without them, groups of queries: the same outputs and gradients of the inputs."""
    part, layout, found = make(spec, "encoder"), Layout.padded(lengths), []
    x = torch.randn(len(lengths), 389, DIM, requires_grad=True)
    for need_weights in (True, False):
        context = part(x, part.init_state(rows=len(lengths)), append=x, layout=layout, need_weights=need_weights).context[
            layout.mask
        ]
        (grad,) = torch.autograd.grad((context * torch.linspace(-1, 1, context.numel()).view_as(context)).sum(), x)
        found.append((context, grad[layout.mask]))
        monkeypatch.setattr("weft.attention.core.sparsity_patterns.attend", None)
    for wanted, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, atol=2e-4, rtol=1e-3)


def whole(part: Attention, x: Tensor) -> Tensor:
    found: Tensor = part(x, part.init_state(rows=x.size(0)), append=x).context
    return found


def test_every_token_global_is_full_attention() -> None:
    full, x = make({"kind": "full"}, "encoder"), torch.randn(2, 150, DIM)
    for options in ({"every": 1}, {"last": 1000}, {"tokens": 1000}):
        part = make({"kind": "global", "tokens": 0, **options}, "encoder")
        part.load_state_dict(full.state_dict())
        torch.testing.assert_close(whole(part, x), whole(full, x), atol=2e-5, rtol=1e-3)


def test_a_decoders_global_tokens_see_what_is_before_them() -> None:
    """In a row that is long enough for groups of queries: token 80 depends on all before it, and on nothing after it."""
    part, x = make({"kind": "global", "tokens": 2, "every": 40}, "causal"), torch.randn(1, 389, DIM, requires_grad=True)
    (grad,) = torch.autograd.grad(whole(part, x)[0, 80].sum(), x)
    assert grad[0, :81].abs().amax(-1).gt(0).all() and not grad[0, 81:].any()


def test_learned_tokens_carry_everything_in_one_layer() -> None:
    """A change of one token reaches all others through them, and only its window without them."""
    x = torch.randn(1, 90, DIM)
    other = x.clone()
    other[0, 45] += 1
    moved = []
    for learned in (0, 2):
        part = make({"kind": "longformer", "window": 3, "tokens": 0, "every": 89, "learned": learned}, "encoder")
        moved.append(int(((whole(part, x) - whole(part, other)).abs().amax(-1) > 1e-6).sum()))
    assert moved[0] < 12 and moved[1] == 90


@pytest.mark.parametrize(
    ("spec", "use", "text"),
    [
        ({"kind": "longformer", "last": 2}, "causal", "last: a decoder does not know where a text will end"),
        ({"kind": "bigbird", "learned": 2}, "causal", "learned: extra tokens see the whole sentence, so a decoder cannot"),
        ({"kind": "longformer", "tokens": 0}, "encoder", "there is no global token; set tokens, every, last or learned"),
        ({"kind": "local", "learned": 2}, "encoder", "learned: there is no such option"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any], use: Use, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build("weft.attention:ATTENTIONS", spec, Site(use, DIM, HEADS))
