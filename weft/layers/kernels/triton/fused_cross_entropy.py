"""Log-likelihoods of labels over a large vocabulary, and the gradient of the softmax in place of the logits.

Each row of logits is read twice and written once, in its own precision.

Shapes: N tokens · V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8
"""Logits read at a time, and the warps that read them."""


@triton.jit
def _row(logits, gold, likelihood, norm, by_row, vocabulary, share, WANTED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * by_row
    label = tl.load(gold + row)
    chosen = tl.load(logits + label).to(tl.float32)
    place = tl.arange(0, BLOCK)
    # Every lane has its own maximum and sum; they are combined once, at the end.
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        tokens = start + place
        scores = tl.load(logits + tokens, mask=tokens < vocabulary, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(best, scores)
        level = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(best - level) + tl.exp(scores - level)
        best = higher
    level = tl.max(best, 0)
    whole = level + tl.log(tl.sum(total * tl.exp(best - level), 0))
    tl.store(likelihood + row, chosen - whole)
    tl.store(norm + row, whole)
    if WANTED:
        tl.debug_barrier()  # no warp may overwrite the chosen logit before all have read it
        for start in range(0, vocabulary, BLOCK):
            tokens = start + place
            inside = tokens < vocabulary
            scores = tl.load(logits + tokens, mask=inside, other=-float("inf")).to(tl.float32)
            slope = tl.exp(scores - whole) - tl.where(tokens == label, share, 0.0)
            tl.store(logits + tokens, slope.to(logits.dtype.element_ty), mask=inside)


def likelihoods(logits: Tensor, gold: Tensor, share: float, wanted: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-likelihoods [N] of labels gold [N] under logits [N, V], and log-denominators of the softmax [N], in float32.

    If `wanted`, the third result is softmax − share · gold, which overwrites the logits.
    """
    rows, vocabulary = logits.shape
    likelihood, norm = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    _row[(rows,)](
        *(logits, gold, likelihood, norm, logits.stride(0), vocabulary, share), WANTED=wanted, BLOCK=BLOCK, num_warps=WARPS
    )
    return likelihood, norm, logits if wanted else None
