"""Poolings, which reduce a sequence to one or a few vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.multihead import MultiheadBlock
from weft.config.registry import build, fill, find_table, load
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.step_recorder import record, recording


@dataclass
class Pooled:
    """vectors [B, r, D] · weights [B, r, S] if there are any · extras: unreduced quantities [B] by name, in training only."""

    vectors: Tensor
    weights: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Pooling(nn.Module, ABC):
    """Reduces a padded sequence to r vectors. Its facts are verified by tests.

    paper: where it was published
    weights_sum: the sum of the weights of a vector; None if it shows no weights
    ignores_key_order: tokens in another order give the same vectors
    receptive_field: whether all tokens matter, or the data decides which do
    extras: names of what `Pooled.extras` has in training, such as diversity
    per_label: it has a vector for each label, whose number is the second argument of its constructor
    """

    paper: ClassVar[str] = ""
    weights_sum: ClassVar[Literal["one"] | None] = None
    ignores_key_order: ClassVar[bool] = True
    receptive_field: ClassVar[Literal["all", "data"]] = "all"
    extras: ClassVar[frozenset[str]] = frozenset()
    per_label: ClassVar[bool] = False

    def __init__(self, dim: int, rows: int = 1) -> None:
        super().__init__()
        self.dim, self.rows = dim, rows

    @abstractmethod
    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        """memory [B, S, D] → vectors [B, r, D]; an empty row gives zeros."""


def build_pooling(spec: Mapping[str, Any] | str, width: int, *, where: str, labels: int = 0) -> Pooling:
    """Builds the pooling that `spec` describes, for vectors of this width. labels: how many there are; 0: none are scored."""
    kind = fill("weft.models:POOLINGS", spec, where)["kind"]
    context = [width]
    if getattr(load(find_table("weft.models:POOLINGS"), kind), "per_label", False):
        if not labels:
            raise ConfigError(f"{where}: {kind} has a vector for each label, and no labels are scored here; choose another")
        context.append(labels)
    pooling: Pooling = build("weft.models:POOLINGS", spec, *context, where=where)
    return pooling


class MeanPooling(Pooling):
    """The mean of the real tokens."""

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        if layout is None:
            mean = memory.mean(1, keepdim=True)
        else:
            total = torch.where(layout.mask[..., None], memory, 0.0).sum(1, keepdim=True)
            mean = total / layout.lengths.clamp_min(1)[:, None, None]
        if recording():
            real = memory.new_ones(memory.shape[:2]) if layout is None else layout.mask.to(memory.dtype)
            share = real / real.sum(1, keepdim=True).clamp_min(1)
            operands = {"share": (share, "row key"), "x": (memory, "row key channel")}
            record("mean", mean, "row query channel", "sum(share * x, key)", **operands)
        return Pooled(mean)


class MaxPooling(Pooling):
    """The largest value of each channel over the real tokens."""

    receptive_field = "data"

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        if layout is None:
            top = memory.amax(1, keepdim=True)
        else:
            top = memory.masked_fill(~layout.mask[..., None], -torch.inf).amax(1, keepdim=True)
            top = torch.where(layout.mask.any(1)[:, None, None], top, 0.0)
        record("max", top, "row query channel", x=(memory, "row key channel"))
        return Pooled(top)


class SumPooling(Pooling):
    """The sum of the real tokens, as decomposable attention adds up its comparisons."""

    paper = "Parikh et al. 2016"

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        real = memory if layout is None else torch.where(layout.mask[..., None], memory, 0.0)
        total = real.sum(1, keepdim=True)
        record("sum", total, "row query channel", "sum(x, key)", x=(real, "row key channel"))
        return Pooled(total)


class MeanMaxPooling(Pooling):
    """The mean and the largest values, side by side, as ESIM joins the vectors of a text."""

    paper = "Chen et al. 2017"

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 2)
        self.mean, self.max = MeanPooling(dim), MaxPooling(dim)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        return _side_by_side(self.mean(memory, layout).vectors, self.max(memory, layout).vectors)


class LastMaxMeanPooling(Pooling):
    """The last vector, the largest values and the mean, side by side: for language models as encoders."""

    paper = "Howard & Ruder 2018"
    ignores_key_order = False

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 3)
        self.max, self.mean = MaxPooling(dim), MeanPooling(dim)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        last = memory[:, -1:]
        if layout is not None:
            places = (layout.lengths - 1).clamp_min(0)[:, None, None].expand(-1, 1, memory.size(2))
            last = torch.where(layout.mask.any(1)[:, None, None], memory.gather(1, places), 0.0)
        return _side_by_side(last, self.max(memory, layout).vectors, self.mean(memory, layout).vectors)


def _side_by_side(*vectors: Tensor) -> Pooled:
    """Several vectors [B, 1, D] of a text as one result."""
    names, joined = "abc"[: len(vectors)], torch.cat(vectors, 1)
    axes = "row vector channel"
    operands = {name: (each, axes) for name, each in zip(names, vectors, strict=True)}
    record("pooled", joined, axes, f"join({', '.join(names)}, vector)", **operands)
    return Pooled(joined)


def over_tokens(scores: Tensor, layout: Layout | None) -> Tensor:
    """The softmax of scores [B, r, S] over the real tokens."""
    return masked_softmax(scores, None if layout is None else layout.mask[:, None].expand_as(scores))


class SelfAttentivePooling(Pooling):
    """A = softmax(U tanh(W H)) applies `rows` learned queries to a sequence H; the vectors are A H.

    One row is the static attention of Yang et al. 2016; several add the term "diversity", ‖AAᵀ − I‖² (Lin et al. 2017).

    rows: number of learned queries and of pooled vectors
    hidden: width of the scoring network; 0: the width of the sequence
    """

    paper = "Lin et al. 2017; Yang et al. 2016"
    weights_sum = "one"
    extras = frozenset({"diversity"})

    def __init__(self, dim: int, *, rows: PositiveInt = 1, hidden: NonNegativeInt = 0) -> None:
        super().__init__(dim, rows)
        self.hidden = nn.Linear(dim, hidden or dim)
        self.questions = nn.Linear(hidden or dim, rows, bias=False)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        hidden = self.hidden(memory)
        active = torch.tanh(hidden)
        scores = self.questions(active).transpose(1, 2)
        weights = over_tokens(scores, layout)
        if recording():
            record("hidden", active, "row token channel", "tanh(x)", x=(hidden, "row token channel"))
            operands = {"weights": (weights, "row query key"), "v": (memory, "row key channel")}
            record("pooled", weights @ memory, "row query channel", "sum(weights * v, key)", **operands)
        extras = {}
        if self.training:
            one = torch.eye(weights.size(1), device=weights.device, dtype=weights.dtype)
            extras["diversity"] = (weights @ weights.transpose(1, 2) - one).pow(2).sum((1, 2))
        return Pooled(weights @ memory, weights, extras)


class ChannelAttentivePooling(Pooling):
    """Attention with weights of its own for each channel: softmax over the tokens of W₂ elu(W₁ h + b) (Shen et al. 2018).

    A channel may come from another token than its neighbour. The weights that it shows are the mean over the channels.

    hidden: width of the scoring network; 0: the width of the sequence
    """

    paper = "Shen et al. 2018"
    weights_sum = "one"

    def __init__(self, dim: int, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(dim)
        self.hidden, self.scores = nn.Linear(dim, hidden or dim), nn.Linear(hidden or dim, dim, bias=False)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        scores = self.scores(F.elu(self.hidden(memory))).transpose(1, 2)
        weights = over_tokens(scores, layout)
        if layout is not None:
            memory = torch.where(layout.mask[..., None], memory, 0.0)
        return Pooled((weights * memory.transpose(1, 2)).sum(2)[:, None], weights.mean(1, keepdim=True))


class MultiheadPooling(Pooling):
    """Learned seeds attend to the whole sequence with several heads: PMA(Z) = MAB(S, rFF(Z)) of the Set Transformer.

    After an encoder that ignores order (position: none, encoder_self: isab) the pooled vectors do not depend on the order of
    tokens.

    rows: number of seeds and of pooled vectors
    heads: attention heads, which divide the width
    """

    paper = "Lee et al. 2019"
    weights_sum = "one"

    def __init__(self, dim: int, *, rows: PositiveInt = 1, heads: PositiveInt = 4) -> None:
        super().__init__(dim, rows)
        self.seeds = nn.Parameter(torch.empty(rows, dim))
        self.network = nn.Linear(dim, dim)
        self.block = MultiheadBlock(Site("cross", dim, heads))
        nn.init.xavier_uniform_(self.seeds)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        seeds = self.seeds.expand(memory.size(0), -1, -1)
        vectors, weights = self.block(seeds, F.relu(self.network(memory)), layout, need_weights=True)
        if layout is not None:
            vectors = torch.where(layout.mask.any(1)[:, None, None], vectors, 0.0)
        return Pooled(vectors, weights.mean(1))


class LabelAttentivePooling(Pooling):
    """A vector c_l for each label l, whose vector e_l is the query: α_l = softmax over the tokens of tanh(W h + b)·e_l.

    A classifier scores all labels by the same weights, e_l · ReLU(W′ c_l + b′): those with few examples learn from the others.

    queries: learned: each label has a vector of its own; text: it is the mean embedding of the label's text
    """

    paper = "Mullenbach et al. 2018; Rios & Kavuluru 2018"
    weights_sum = "one"
    per_label = True

    def __init__(self, dim: int, labels: int = 2, *, queries: Literal["learned", "text"] = "learned") -> None:
        super().__init__(dim, labels)
        self.keys = nn.Linear(dim, dim)
        self.labels = nn.Parameter(torch.empty(labels, dim)) if queries == "learned" else None
        if self.labels is not None:
            nn.init.normal_(self.labels, std=dim**-0.5)

    def forward(self, memory: Tensor, layout: Layout | None = None, labels: Tensor | None = None) -> Pooled:
        """memory [B, S, D] → vectors [B, C, D]. labels [C, D]: the vectors of labels, unless they are learned."""
        queries = self.labels if labels is None else labels
        assert queries is not None
        scores = (torch.tanh(self.keys(memory)) @ queries.to(memory.dtype).T).transpose(1, 2)
        weights = over_tokens(scores, layout)
        return Pooled(weights @ memory, weights)
