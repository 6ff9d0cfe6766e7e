"""Taggers: any encoder, a vector for each word, and a softmax or a linear-chain CRF over the tags.

Shapes: B rows · S source positions · W words · D width · C tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.batch import NO_LABEL, Layout, Source
from weft.errors import ConfigError
from weft.layers.linear_norm_dropout import dropout
from weft.models.base import Encoder, Network, Sizes
from weft.models.encoder_decoder import build_encoder
from weft.tasks.edges_between_words import check_model
from weft.tasks.tagging.crf import AllowedTransitions, LinearChainCrf
from weft.tasks.tagging.metrics import Scheme

PerWord = Literal["first", "mean", "front"]
"""A word is its first subword in the memory, the mean of its subwords there, or one vector already behind the frontend."""

Output = Literal["softmax", "crf"]


class Tagger(Network):
    """Scores the tags of each word. Without `chain`, tags are independent of each other (softmax)."""

    def __init__(
        self, encoder: Encoder, tags: int, per_word: PerWord, chain: LinearChainCrf | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if encoder.shortens != 1 or not encoder.aligned:
            raise ConfigError(
                f"model: a {type(encoder).__name__} of these settings does not have one vector per word; choose an encoder "
                "and a front that do, such as transformer or rnn (for bytenet: unfold_ratio: 1)"
            )
        self.encoder, self.per_word, self.dropout, self.chain = encoder, per_word, dropout, chain
        self.dim, self.max_source, self.cuda_graph_safe = encoder.width, encoder.max_source, encoder.cuda_graph_safe
        self.output = nn.Linear(encoder.width, tags)

    def forward(self, source: Source, words: Layout, starts: Tensor | None = None) -> Tensor:
        """The scores [B, W, C] of the tags of all words. starts: as in `TagBatch`."""
        memory = self.encoder(source).memory
        if self.per_word != "front":
            assert starts is not None
            if self.per_word == "first":
                memory = memory.gather(1, starts[..., None].expand(-1, -1, memory.size(-1)))
            else:
                memory = _means(memory, source.layout, words, starts)
        scores: Tensor = self.output(dropout(memory, self.dropout, self.training))
        return scores

    def loss(self, scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The negative log-likelihood of the tags [B, W], summed over all words; a CRF has no label smoothing."""
        if self.chain is None:
            flat = scores.flatten(0, 1).float()
            return F.cross_entropy(flat, labels.flatten(), ignore_index=NO_LABEL, label_smoothing=smoothing, reduction="sum")
        return -self.chain.log_probability(scores, labels, labels != NO_LABEL).sum()

    def best(self, scores: Tensor, words: Layout) -> tuple[Tensor, Tensor]:
        """The best tags [B, W], and the log-probability [B] of all tags of a row."""
        ok = words.mask
        if self.chain is not None:
            tags = self.chain.viterbi(scores, ok)
            return tags, self.chain.log_probability(scores, tags, ok)
        best, tags = scores.float().log_softmax(-1).max(-1)
        return tags, best.where(ok, 0.0).sum(1)


def build_tagger(
    spec: Mapping[str, Any],
    sizes: Sizes,
    tags: Sequence[str],
    per_word: PerWord,
    output: Output,
    scheme: Scheme | None,
    drop: float,
    *,
    graph: bool = False,
) -> Tagger:
    """The encoder that `spec` (the section model) describes, with scores of these tags; a CRF keeps to the scheme.

    graph: whether the encoder has to follow edges between words.
    """
    count = max(1, len(tags))
    allowed = AllowedTransitions.of(tags, scheme) if scheme and tags else None
    crf = LinearChainCrf(count, allowed) if output == "crf" else None
    tagger = Tagger(build_encoder(spec, sizes), count, per_word, crf, drop)
    if graph:
        check_model(tagger)
    return tagger


def _means(memory: Tensor, layout: Layout | None, words: Layout, starts: Tensor) -> Tensor:
    """The mean memory of the subwords of each word, [B, S, D] → [B, W, D]."""
    place = torch.arange(memory.size(1), device=memory.device)
    begun = (starts[:, None] <= place[:, None]) & words.mask[:, None]
    number = begun.sum(2) - 1
    if layout is not None:
        number = number.where(layout.mask, -1)
    member = number[:, None] == torch.arange(starts.size(1), device=memory.device)[:, None]
    return member.to(memory.dtype) @ memory / member.sum(2, keepdim=True).clamp_min(1)
