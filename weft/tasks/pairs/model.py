"""Models of two texts: siamese, with attention between them, or with both texts in one stream.

Shapes: B rows · N positions of the first text · M of the second · D width of the encoder · C labels, or 1 for a number.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.core.two_way import two_way_weights
from weft.config.registry import Among, build
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.embeddings_and_rotary_positions import embedding_table
from weft.layers.linear_norm_dropout import dropout
from weft.models.base import Encoder, Network, Sizes
from weft.models.encoder_decoder import VectorEncoder, build_encoder
from weft.models.pooling import Pooled, Pooling, build_pooling
from weft.tasks.classification.model import ClassifierOutput

ComparisonSpec = Annotated[dict[str, Any], Among("weft.tasks.pairs:COMPARISONS")]
"""A comparison and its options, as configurations write them."""

BETWEEN = ("first", "second")
"""The names of the attention weights of each text over the other one."""


@dataclass
class Compared:
    """vector [B, width] · states [B, M, state_width]: of the positions of the second text, which have seen the first, if the
    comparison is one that lets them · weights: attention between the texts, by name · extras: values [B] for auxiliary losses.
    """

    vector: Tensor
    states: Tensor
    weights: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, Tensor] = field(default_factory=dict)


class Comparison(nn.Module, ABC):
    """Turns two texts, which one encoder reads, into a vector of `width` entries. dropout: its share in feed-forward networks.

    state_width: of the vectors of positions, see `Compared` · streams: the number of streams in which the encoder reads both
    texts.
    """

    width: int
    state_width: int
    streams: int = 2

    def __init__(self, encoder: Encoder, dropout: float) -> None:
        super().__init__()
        self.encoder, self.dropout = encoder, dropout

    @abstractmethod
    def forward(self, first: Source, second: Source) -> Compared: ...

    def drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


def _pooling(spec: Mapping[str, Any], width: int) -> Pooling:
    return build_pooling(spec, width, where="task.comparison.pooling")


class Siamese(Comparison):
    """[u; v; |u − v|; u ⊙ v] of the pooled vectors u and v of both texts, which are read apart (Conneau et al. 2017).

    pooling: how the vectors of a text become one
    """

    def __init__(
        self,
        encoder: Encoder,
        dropout: float = 0.0,
        *,
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "max"},  # noqa: B006
    ) -> None:
        super().__init__(encoder, dropout)
        self.pooling = _pooling(pooling, encoder.width)
        self.width, self.state_width = 4 * self.pooling.rows * encoder.width, encoder.width

    def forward(self, first: Source, second: Source) -> Compared:
        both = [self.encoder(text) for text in (first, second)]
        pooled: list[Pooled] = [self.pooling(each.memory, each.layout) for each in both]
        u, v = (each.vectors.flatten(1) for each in pooled)
        weights = {name: each.weights for name, each in zip(BETWEEN, pooled, strict=True) if each.weights is not None}
        extras = {name: pooled[0].extras[name] + pooled[1].extras[name] for name in pooled[0].extras}
        vector = torch.cat([u, v, (u - v).abs(), u * v], -1)
        return Compared(vector, both[1].memory, {f"pooling.{name}": w for name, w in weights.items()}, extras)


class ReluNetwork(nn.Module):
    """Two layers with ReLU, each after dropout: the feed-forward networks F, G and H of Parikh et al. 2016."""

    def __init__(self, inputs: int, outputs: int, share: float) -> None:
        super().__init__()
        self.lower, self.upper, self.share = nn.Linear(inputs, outputs), nn.Linear(outputs, outputs), share

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.lower, self.upper):
            x = F.relu(layer(dropout(x, self.share, self.training)))
        return x


class DecomposableAttention(Comparison):
    """Decomposable attention (Parikh et al. 2016): attend, compare, aggregate.

    e_ij = F(a_i)ᵀ F(b_j); β_i is the mean of the b_j under softmax_j(e_ij), and α_j that of the a_i under softmax_i(e_ij).
    The vector is [Σ_i G([a_i; β_i]); Σ_j G([b_j; α_j])], where F and G are feed-forward networks. In the paper a and b are
    embeddings: `model.encoder: identity`.

    hidden: width of F and G
    pooling: how the comparisons of a text become one vector; the paper adds them up
    """

    def __init__(
        self,
        encoder: Encoder,
        dropout: float = 0.0,
        *,
        hidden: PositiveInt = 200,
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "sum"},  # noqa: B006
    ) -> None:
        super().__init__(encoder, dropout)
        self.attend = ReluNetwork(encoder.width, hidden, dropout)
        self.compare = ReluNetwork(2 * encoder.width, hidden, dropout)
        self.pooling = _pooling(pooling, hidden)
        self.width, self.state_width = 2 * self.pooling.rows * hidden, hidden

    def forward(self, first: Source, second: Source) -> Compared:
        one, other = self.encoder(first), self.encoder(second)
        a, b = one.memory, other.memory
        weights = two_way_weights(self.attend(a) @ self.attend(b).transpose(1, 2), one.mask, other.mask)
        pooled, compared = [], a
        for own, seen, layout in ((a, weights.first @ b, one.layout), (b, weights.second @ a, other.layout)):
            compared = self.compare(torch.cat([own, seen], -1))
            each: Pooled = self.pooling(compared, layout)
            pooled.append(each.vectors.flatten(1))
        return Compared(torch.cat(pooled, -1), compared, vars(weights))


class Esim(Comparison):
    """Enhanced sequential inference (Chen et al. 2017): a second encoder reads what the states of each text see in the other.

    e_ij = a_iᵀ b_j; ã_i is the mean of the b_j under softmax_j(e_ij), and b̃_j likewise. The second encoder reads
    ReLU(W [a; ã; a − ã; a ⊙ ã]) of each text, and a pooling joins its vectors.

    composition: the second encoder
    pooling: how its vectors become one; the paper has the mean and the maximum
    """

    def __init__(
        self,
        encoder: Encoder,
        dropout: float = 0.0,
        *,
        composition: Annotated[dict[str, Any], Among("weft.models:ENCODERS")] = {"kind": "rnn", "cell": "lstm"},  # noqa: B006
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "mean_max"},  # noqa: B006
    ) -> None:
        super().__init__(encoder, dropout)
        self.composition: VectorEncoder = build("weft.models:ENCODERS", composition, where="task.comparison.composition")
        self.project = nn.Linear(4 * encoder.width, self.composition.input_width)
        self.pooling = _pooling(pooling, self.composition.width)
        self.width, self.state_width = 2 * self.pooling.rows * self.composition.width, self.composition.width

    def forward(self, first: Source, second: Source) -> Compared:
        one, other = self.encoder(first), self.encoder(second)
        a, b = one.memory, other.memory
        weights = two_way_weights(a @ b.transpose(1, 2), one.mask, other.mask)
        pooled, again = [], one
        for own, seen, layout in ((a, weights.first @ b, one.layout), (b, weights.second @ a, other.layout)):
            joined = torch.cat([own, seen, own - seen, own * seen], -1)
            again = self.composition.read(F.relu(self.project(self.drop(joined))), layout)
            each: Pooled = self.pooling(again.memory, again.layout)
            pooled.append(each.vectors.flatten(1))
        return Compared(torch.cat(pooled, -1), again.memory, vars(weights))


class Joined(Comparison):
    """Both texts in one stream, with segment vectors (Devlin et al. 2019).

    The second text follows the first, and the encoder reads both at once. Each text has a learned vector, which is added to its
    embeddings.

    pooling: how the vectors of the stream become one
    """

    streams = 1

    def __init__(
        self,
        encoder: Encoder,
        dropout: float = 0.0,
        *,
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "mean"},  # noqa: B006
    ) -> None:
        super().__init__(encoder, dropout)
        if not isinstance(encoder, VectorEncoder) or encoder.shortens != 1:
            raise ConfigError(
                f"task.comparison: joined adds a vector to each embedding, which a {type(encoder).__name__} with this front "
                "does not allow; choose another front, or the comparison siamese"
            )
        self.segments = embedding_table(2, encoder.input_width, 0.1)
        self.pooling = _pooling(pooling, encoder.width)
        self.width, self.state_width = self.pooling.rows * encoder.width, encoder.width

    def forward(self, first: Source, second: Source) -> Compared:
        stream, segments = join_sources(first, second)
        assert isinstance(self.encoder, VectorEncoder)
        x, layout = self.encoder.front(stream)
        encoded = self.encoder.read(x + self.segments(segments), layout)
        pooled: Pooled = self.pooling(encoded.memory, encoded.layout)
        weights = {} if pooled.weights is None else {"pooling.stream": pooled.weights}
        return Compared(pooled.vectors.flatten(1), split_second(encoded.memory, first, second), weights, pooled.extras)


def join_sources(first: Source, second: Source) -> tuple[Source, Tensor]:
    """One stream of both texts of each row [B, S], and to which text, 0 or 1, each of its tokens belongs."""
    assert first.layout is not None and second.layout is not None
    lengths = [one + other for one, other in zip(first.layout.counts, second.layout.counts, strict=True)]
    layout = Layout.padded(lengths).to(first.values.device)
    begins, extent = first.layout.lengths[:, None], first.values.size(1)
    place, both = layout.positions, torch.cat([first.values, second.values], 1)
    segments = (place >= begins).long()
    found = both.gather(1, torch.where(segments > 0, extent + place - begins, place).clamp_max(both.size(1) - 1))
    return Source(found.where(layout.mask, 0), layout), segments


def split_second(stream: Tensor, first: Source, second: Source) -> Tensor:
    """[B, M, D]: the vectors of the second text, from those [B, S, D] of the stream that `join_sources` makes."""
    assert first.layout is not None and second.layout is not None
    places = (first.layout.lengths[:, None] + second.layout.positions).clamp_max(stream.size(1) - 1)
    return stream.gather(1, places[..., None].expand(-1, -1, stream.size(-1)))


class PairModel(Network):
    """A comparison of two texts, perhaps a hidden layer, and an output layer.

    hidden: width of the hidden layer, tanh(W x); 0: none.
    """

    def __init__(self, comparison: Comparison, outputs: int, hidden: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        encoder = comparison.encoder
        self.comparison, self.dropout, self.dim = comparison, dropout, encoder.width
        self.max_source = encoder.max_source if comparison.streams == 2 else _half(encoder.max_source)
        self.hidden = nn.Linear(comparison.width, hidden) if hidden else None
        self.output = nn.Linear(hidden or comparison.width, outputs)

    def forward(self, first: Source, second: Source) -> ClassifierOutput:
        """The logits [B, C] of the labels, or a number [B, 1]."""
        compared: Compared = self.comparison(first, second)
        return ClassifierOutput(self.score(compared.vector), None, compared.extras, compared.weights)

    def score(self, vector: Tensor) -> Tensor:
        """The output layer over a vector of both texts, behind the hidden layer."""
        vector = dropout(vector, self.dropout, self.training)
        if self.hidden is not None:
            vector = dropout(torch.tanh(self.hidden(vector)), self.dropout, self.training)
        scores: Tensor = self.output(vector)
        return scores


def _half(limit: int | None) -> int | None:
    return None if limit is None else limit // 2


def build_pair_model(
    spec: Mapping[str, Any], sizes: Sizes, comparison: Mapping[str, Any], outputs: int, hidden: int, dropout: float
) -> PairModel:
    """The encoder that `spec` (the section model) describes, a comparison (task.comparison) and an output layer."""
    compared = build("weft.tasks.pairs:COMPARISONS", comparison, build_encoder(spec, sizes), dropout, where="task.comparison")
    return PairModel(compared, max(1, outputs), hidden, dropout)
