"""Random blocks (Zaheer et al. 2020): how many a query sees, what a draw depends on, and attention to them by a plain loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.self_attention import DIM, HEADS, make
from weft.attention.base import Attention, Use
from weft.attention.bigbird import BigBird, Random
from weft.data.batch import Layout

USES: tuple[Use, ...] = ("encoder", "causal")
SPECS: dict[str, dict[str, Any]] = {
    "random": {"kind": "random", "block": 4, "blocks": 3},
    "bigbird": {"kind": "bigbird", "window": 9, "tokens": 5, "block": 4, "blocks": 2},
}


def random_part(name: str, use: Use) -> Random:
    options = {option: value for option, value in SPECS[name].items() if option != "kind"}
    part = Random(use == "causal", **options) if name == "random" else BigBird(use == "causal", **options).parts[-1]
    assert isinstance(part, Random)
    return part


def anyway(name: str, causal: bool, count: int) -> Tensor:
    """[count, count]: whether all queries of a block see all of another by the window of 9 or the five global tokens."""
    place = torch.arange(4 * count)
    away = (place[:, None] - place).abs().view(count, 4, count, 4).amax((1, 3))
    seen = (away <= (8 if causal else 9)) | (4 * torch.arange(count) + 3 < 5)
    return seen if name == "bigbird" else torch.zeros_like(seen)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", SPECS)
def test_every_block_gets_as_many_as_asked_or_all(name: str, use: Use) -> None:
    """In rows of 1 to 128 blocks: `asked` distinct blocks of those that are not visible anyway, or all of these."""
    causal, asked, pattern = use == "causal", SPECS[name]["blocks"], random_part(name, use)
    hidden = ~anyway(name, causal, 128) & ~torch.eye(128, dtype=torch.bool)
    for count in range(1, 129):
        others = (hidden.tril() if causal else hidden)[:count, :count]
        drawn = pattern.draw(torch.arange(count), 4 * count)
        found = torch.zeros(count, count + 1, dtype=torch.int64).scatter_add_(1, drawn % (count + 1), torch.ones_like(drawn))
        found = found[:, :count]
        assert found.max() <= 1 and not found[~others].any(), "repeats, or blocks that cannot be drawn"
        assert torch.equal(found.sum(1), others.sum(1).clamp_max(asked))
        if count in (1, 2, 3, 16, 40):
            seen = pattern.sees(4 * count, causal).view(count, 4, count, 4)
            wanted = (found.bool() | torch.eye(count, dtype=torch.bool))[:, None, :, None].expand_as(seen)
            place = torch.arange(4 * count)
            past = (place <= place[:, None]).view_as(seen)
            assert torch.equal(seen, wanted & past if causal else wanted)


def test_the_figures_of_short_texts() -> None:
    """Three asked, in 3, 5, 8, 16 and 128 blocks: all there are, then three."""
    pattern = Random(False, block=2, blocks=3)
    found = [pattern.sees(2 * count, False)[::2, ::2].sum(1).sub(1).tolist() for count in (3, 5, 8, 16, 128)]
    assert found == [[2] * 3, [3] * 5, [3] * 8, [3] * 16, [3] * 128]


def test_a_causal_draw_is_the_same_at_any_length() -> None:
    """The same seed gives the same blocks to the same queries; another seed gives others."""
    pattern = Random(True, block=4, blocks=2)
    longest = pattern.sees(300, True)
    for length in (1, 5, 64, 299):
        assert torch.equal(pattern.sees(length, True), longest[:length, :length])
    assert not torch.equal(longest, Random(True, block=4, blocks=2, seed=1).sees(300, True))


@pytest.mark.parametrize("use", USES)
def test_every_other_block_is_drawn_equally_often(use: Use) -> None:
    """Over many seeds: a causal block draws those before it, an encoder's all others."""
    causal, own, counts = use == "causal", torch.tensor([12]), torch.zeros(20)
    for seed in range(600):
        drawn = Random(causal, block=1, blocks=3, seed=seed).draw(own, 20)[0]
        counts[drawn] += 1
    others = 12 if causal else 19
    assert counts[12] == 0 and counts[12:].any() != causal
    expected = 600 * 3 / others
    assert (counts[counts > 0] - expected).abs().max() < 4 * expected**0.5 and int((counts > 0).sum()) == others


def neighbourhood(name: str, use: Use, i: int, length: int) -> list[int]:
    """N(i) of section 2: the keys that token i of a sentence of `length` tokens sees."""
    causal = use == "causal"
    blocks = {i // 4, *random_part(name, use).draw(torch.tensor([i // 4]), length)[0].tolist()}
    seen = {j for j in range(length) if j // 4 in blocks}
    if name == "bigbird":
        near = range(i - 8, i + 1) if causal else range(i - 9, i + 10)
        seen |= {j for j in range(length) if j in near or j < 5 or i < 5}
    return sorted(j for j in seen if j <= i or not causal)


def by_token(part: Attention, name: str, use: Use, x: Tensor) -> Tensor:
    """Equation 1 of Zaheer et al. 2020 for one sentence x [n, D], head by head: Σ_h softmax(Q_h(x_i) K_h(X_N(i))ᵀ) V_h(X_N(i)).

    Scores are divided by √d, as in Vaswani et al. 2017.
    """
    heads: Any = part.heads
    q, k, v = (each.view(-1, HEADS, DIM // HEADS) for each in heads.query_key_value(x).chunk(3, -1))
    rows = []
    for i in range(x.size(0)):
        seen = neighbourhood(name, use, i, x.size(0))
        mixed = []
        for head in range(HEADS):
            scores = k[seen, head] @ q[i, head] / math.sqrt(DIM // HEADS)
            mixed.append(scores.softmax(0) @ v[seen, head])
        rows.append(torch.cat(mixed))
    return heads.out(torch.stack(rows))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_padded_packed_and_stepwise_rows_are_the_loop(name: str, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """By groups of queries and by the masked matrix (with weights); in float64."""
    part, lengths = make(SPECS[name], use).double(), [70, 33, 1, 18]
    padded, packed = Layout.padded(lengths), Layout.pack(lengths, 130)
    x = torch.randn(4, 70, DIM, dtype=torch.float64)
    wanted = torch.cat([by_token(part, name, use, x[row, :length]) for row, length in enumerate(lengths)])
    together = torch.zeros(1, 130, DIM, dtype=torch.float64)
    together[packed.mask] = x[padded.mask]
    monkeypatch.setattr("weft.attention.core.dot_product.SHORT", 0)
    for need_weights in (False, True):
        for layout, rows in ((padded, x), (packed, together)):
            found = part(
                rows, part.init_state(rows=rows.size(0)), append=rows, layout=layout, need_weights=need_weights
            ).context
            torch.testing.assert_close(found[layout.mask], wanted, atol=1e-10, rtol=0)
    if use == "causal":
        state = part.init_state(rows=1, room=70)
        for place in range(70):
            token = x[:1, place : place + 1]
            step = part(token, state, append=token)
            state = step.state
            torch.testing.assert_close(step.context[0, 0], wanted[place], atol=1e-6, rtol=0)
