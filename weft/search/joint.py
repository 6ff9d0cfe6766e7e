"""Joint decoding: texts that attention and CTC propose, ranked by both probabilities (Watanabe et al. 2017, rescoring).

CTC sees every vector once, in order, so it rejects texts in which attention skips or repeats a part of the source.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.batch import BOS, EOS
from weft.models.base import Decoder, Encoded
from weft.objectives.ctc import ctc_loss
from weft.search.noise import in_chains, log_probabilities
from weft.search.tables import Hypothesis

NEVER = -1e9
"""The log-probability of a text that CTC cannot align."""


def rank_jointly(
    decoder: Decoder,
    encoded: Encoded,
    logits: Tensor,
    lengths: Tensor,
    candidates: list[list[list[int]]],
    *,
    blank: int,
    weight: float,
) -> list[list[Hypothesis]]:
    """The candidates of each source, without EOS, by weight · log p_CTC + (1 − weight) · log p_attention, best first.

    logits, lengths: see `ctc_loss`. The texts of the result end with EOS.
    """
    most = max(len(some) for some in candidates)
    texts = [text for some in candidates for text in [*some, *[some[-1]] * (most - len(some))]]
    owners = torch.arange(len(candidates), device=logits.device)
    many = in_chains(encoded, owners, most)
    attention = log_probabilities(decoder, many, [[BOS]] * len(texts), [[*text, EOS] for text in texts])
    counts = [len(text) for text in texts]
    block = torch.zeros(len(texts), max(1, *counts), dtype=torch.long)
    for row, text in zip(block, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    rows = owners.repeat_interleave(most)
    found = ctc_loss(
        logits[rows], lengths[rows], block.to(logits.device), torch.tensor(counts, device=logits.device), blank=blank
    )
    aligned = (-found.nll).where(found.alignable, NEVER).tolist()
    scores = [weight * ours + (1 - weight) * theirs for ours, theirs in zip(aligned, attention, strict=True)]
    ranked = []
    for number, some in enumerate(candidates):
        own = zip(scores[number * most :], some, strict=False)
        ranked.append(sorted((Hypothesis(score, [*text, EOS]) for score, text in own), key=lambda each: -each.score))
    return ranked
