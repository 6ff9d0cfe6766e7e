"""LSH attention against transformers' Reformer with the same weights and the same rotations.

The Reformer lets a token see its chunk of the sorted row and the chunk before it, also across buckets. weft lets it see the
last `window` tokens of its bucket. The tests choose chunks and buckets so that both see the same tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.base import Site, Use
from weft.attention.mixers.lsh_and_routing import LshMixer
from weft.data.batch import Layout
from weft_contract.mechanism_entries import perturbed, same

transformers = pytest.importorskip("transformers")

DIM, HEADS = 24, 3
WIDTH = DIM // HEADS
USES: tuple[Use, ...] = ("encoder", "causal")


def reformer(part: LshMixer, **options: Any) -> Any:
    """transformers' LSH attention with the weights of `part`, which has no bias and no output projection here."""
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = transformers.ReformerConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        attention_head_size=WIDTH,
        num_buckets=part.kinds,
        num_hashes=part.rounds,
        is_decoder=part.site.use == "causal",
        lsh_attention_probs_dropout_prob=0.0,
        **{"lsh_num_chunks_before": 0, "lsh_num_chunks_after": 0, **options},
    )
    theirs = LSHSelfAttention(config).eval()
    with torch.no_grad():
        part.query_value.bias.zero_()
        part.out.weight.copy_(torch.eye(DIM))
        part.out.bias.zero_()
        for linear, rows in zip((theirs.query_key, theirs.value), part.query_value.weight.chunk(2), strict=True):
            linear.weight.copy_(rows)
    return theirs


def check(part: LshMixer, theirs: Any, x: Tensor, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares the real tokens of padded rows in float64. transformers draws new rotations; here it gets those of `part`."""
    part, theirs, x, layout = part.double(), theirs.double(), x.double(), Layout.padded(lengths, x.size(1))
    monkeypatch.setattr(torch, "randn", lambda *args, **kwargs: part.rotations.transpose(1, 2).contiguous())
    with torch.no_grad():
        wanted = theirs(x, attention_mask=layout.mask).hidden_states
    monkeypatch.undo()
    same(part(x, part.init_state(rows=x.size(0)), layout=layout).context[layout.mask], wanted[layout.mask])


@pytest.mark.parametrize("use", USES)
def test_one_chunk(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without buckets: shared queries and keys, the scale of the scores, and no token that attends to itself."""
    part, x = perturbed(LshMixer(Site(use, DIM, HEADS), buckets=2, window=40)), torch.randn(3, 40, DIM)
    part.rotations.zero_()
    check(part, reformer(part, lsh_attn_chunk_length=40), x, [40, 17, 1], monkeypatch)


def legible(part: LshMixer) -> None:
    """The first WIDTH channels become the query of every head, and the rotations of each round look at axes of its own."""
    half = part.kinds // 2
    with torch.no_grad():
        part.query_value.weight[:DIM] = torch.eye(WIDTH, DIM).repeat(HEADS, 1)
        part.rotations.zero_()
        for own in range(part.rounds):
            part.rotations[:, own, own * half : (own + 1) * half] = torch.eye(half)


def tokens(part: LshMixer, buckets: list[list[int]]) -> Tensor:
    """x [1, T, DIM], whose buckets in round r are buckets[r] if `part` is legible."""
    half, x = part.kinds // 2, 0.2 * torch.randn(1, len(buckets[0]), DIM)
    for own, row in enumerate(buckets):
        for place, bucket in enumerate(row):
            x[0, place, own * half + bucket % half] += 1.5 if bucket < half else -1.5
    return x


@pytest.mark.parametrize("use", USES)
def test_several_rounds_whose_buckets_fill_a_chunk(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen tokens in four buckets of four by their row, then by their column: each round finds other pairs."""
    buckets = [[place // 4 for place in range(16)], [place % 4 for place in range(16)]]
    part = perturbed(LshMixer(Site(use, DIM, HEADS), buckets=4, rounds=2, window=4))
    legible(part)
    theirs = reformer(part, lsh_attn_chunk_length=4)
    x = tokens(part, buckets)
    assert part.assign(torch.stack([x[..., :WIDTH]] * HEADS, 1), None)[0, 0].tolist() == buckets
    check(part, theirs, x, [16], monkeypatch)


def test_looking_back_in_several_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one token that look back by window − 1 chunks see the last `window` tokens.

    Buckets with smaller numbers hold later tokens, so causality hides the bucket before. Padding, which transformers sorts to
    the end, hides the end of the row from its beginning.
    """
    window, buckets = 4, [[3] * 9 + [2] * 2 + [1] * 13 + [0] * 6 + [0] * 6]
    part = perturbed(LshMixer(Site("causal", DIM, HEADS), buckets=4, rounds=1, window=window))
    legible(part)
    theirs = reformer(part, lsh_attn_chunk_length=1, lsh_num_chunks_before=window - 1)
    check(part, theirs, torch.cat([tokens(part, buckets), tokens(part, buckets)]), [30, 27], monkeypatch)


def test_random_rotations_give_the_same_buckets() -> None:
    """transformers' hash of random vectors with weft's rotations."""
    part = LshMixer(Site("encoder", DIM, HEADS), buckets=8, rounds=3)
    theirs, vectors = reformer(part, lsh_attn_chunk_length=4), torch.randn(2, HEADS, 20, WIDTH)
    theirs.hash_seed = 5
    torch.manual_seed(5)
    part.rotations.copy_(torch.randn(HEADS, WIDTH, 3, 4).transpose(1, 2))
    found = theirs._hash_vectors(vectors, 3, None).view(2, HEADS, 3, 20) - 8 * torch.arange(3)[:, None]
    assert torch.equal(found, part.assign(vectors, None))
