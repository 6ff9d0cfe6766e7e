"""Models that read a passage and a question and point at words of the passage.

Shapes: B rows · T words of the passage · J words of the question · D width of the encoder · M width of the modelling encoder.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.two_way import two_way_weights
from weft.config.registry import Among, build
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.linear_norm_dropout import dropout
from weft.layers.recurrent import RecurrentLayer
from weft.models.base import Encoded, Encoder, Network, Sizes
from weft.models.encoder_decoder import VectorEncoder, build_encoder
from weft.models.pooling import SelfAttentivePooling

ReaderSpec = Annotated[dict[str, Any], Among("weft.tasks.reading:READERS")]
"""A reader and its options, as configurations write them."""


@dataclass
class Pointed:
    """logits [B, T, pointers], −∞ on padding · weights: attention by name: "passage" [B, T, J] of each word of the passage over
    the question, "question" [B, T] of the question over the passage, "self" [B, T, T]."""

    logits: Tensor
    weights: dict[str, Tensor] = field(default_factory=dict)


class Reader(nn.Module, ABC):
    """Points at words of a passage. pointers: 2 for the first and last word of an answer, 1 for a single word."""

    pointers: int

    def __init__(self, encoder: Encoder, dropout: float) -> None:
        super().__init__()
        if encoder.shortens != 1 or not encoder.aligned:
            raise ConfigError(
                f"model: a {type(encoder).__name__} of these settings does not have one vector per word; choose rnn"
            )
        self.encoder, self.dropout = encoder, dropout

    @abstractmethod
    def forward(self, passage: Source, question: Source) -> Pointed: ...

    def drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class AlignedQuestion(nn.Module):
    """Adds to each word of a passage a projection of the question words that it resembles, Σ_j a_ij E(q_j) (Chen et al. 2017).

    a_ij = softmax_j(α(E(p_i)) · α(E(q_j))), where α is a linear layer with ReLU.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.project = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, q: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, E], q [B, J, E] → [B, T, E]. mask [B, J]."""
        scores = F.relu(self.alpha(x)) @ F.relu(self.alpha(q)).transpose(1, 2)
        weights = masked_softmax(scores, None if mask is None else mask[:, None].expand_as(scores))
        return x + self.project(weights @ q)


class SelfMatching(nn.Module):
    """Each word of a passage attends to all words of it; a gate and a recurrent network follow (Wang et al. 2017, R-Net).

    s_tj = vᵀ tanh(W m_j + U m_t), c_t = Σ_j softmax_j(s_tj) m_j, h = BiGRU(g ⊙ [m; c]) with g = σ(G [m; c]).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.keys, self.queries = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.score, self.gate = nn.Linear(width, 1, bias=False), nn.Linear(2 * width, 2 * width, bias=False)
        self.rnn = RecurrentLayer("gru", 2 * width, width, both=True)

    def forward(self, m: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
        """m [B, T, M] → states [B, T, M] and weights [B, T, T]."""
        scores = self.score(torch.tanh(self.queries(m)[:, :, None] + self.keys(m)[:, None]))[..., 0]
        weights = masked_softmax(scores, None if layout is None else layout.mask[:, None].expand_as(scores))
        both = torch.cat([m, weights @ m], -1)
        states, _ = self.rnn(self.gate(both).sigmoid() * both, self.rnn.init_state(m.size(0)), layout)
        return states, weights


def _over_words(scores: Tensor, mask: Tensor) -> Tensor:
    """The softmax of scores [B, T] over the words of a passage."""
    return masked_softmax(scores[:, None], mask[:, None])[:, 0]


class PointerNetwork(nn.Module):
    """Two pointers, the second of which knows where the first one points (Vinyals et al. 2015, as in R-Net).

    The state h begins as an attentive pooling of the question: s_t = vᵀ tanh(W m_t + U h), h' = GRU(Σ_t softmax(s)_t m_t, h).
    """

    def __init__(self, width: int, question: int) -> None:
        super().__init__()
        self.pooling = SelfAttentivePooling(question)
        self.keys, self.queries = nn.Linear(width, width, bias=False), nn.Linear(question, width, bias=False)
        self.score, self.cell = nn.Linear(width, 1, bias=False), nn.GRUCell(width, question)

    def forward(self, m: Tensor, mask: Tensor, question: Encoded) -> Tensor:
        """m [B, T, M] → logits [B, T, 2]."""
        state, logits = self.pooling(question.memory, question.layout).vectors[:, 0], []
        for _ in range(2):
            scores = self.score(torch.tanh(self.keys(m) + self.queries(state)[:, None]))[..., 0]
            state = self.cell((_over_words(scores, mask)[:, None] @ m)[:, 0], state)
            logits.append(scores)
        return torch.stack(logits, -1)


class Bidaf(Reader):
    """Attention both ways between passage and question, and pointers to the first and last word (BiDAF, Seo et al. 2017).

    s_tj = wᵀ [h_t; u_j; h_t ⊙ u_j]; ũ_t is the mean of the u_j under softmax_j(s_tj), and h̃ that of the h_t under
    softmax_t(max_j s_tj). The modelling encoder reads g = [h; ũ; h ⊙ ũ; h ⊙ h̃] and gives m. The first word has the score
    w₁ᵀ [g; m], the last one w₂ᵀ [g; m'], where another encoder makes m' of m.

    modeling: the encoder that reads passage words with what they found in the question
    ending: the encoder before the pointer to the last word
    aligned: add to each passage word the question words that it resembles, before the encoder (Chen et al. 2017)
    self_matching: passage words attend to each other after the modelling encoder (R-Net, Wang et al. 2017)
    pointers: independent, or network: the second pointer knows the first one (R-Net)
    """

    pointers = 2

    def __init__(
        self,
        encoder: Encoder,
        dropout: float = 0.0,
        *,
        modeling: Annotated[dict[str, Any], Among("weft.models:ENCODERS")] = {"kind": "rnn", "cell": "lstm", "layers": 2},  # noqa: B006
        ending: Annotated[dict[str, Any], Among("weft.models:ENCODERS")] = {"kind": "rnn", "cell": "lstm"},  # noqa: B006
        aligned: bool = False,
        self_matching: bool = False,
        pointer: Literal["independent", "network"] = "independent",
    ) -> None:
        super().__init__(encoder, dropout)
        width = encoder.width
        self.aligned: AlignedQuestion | None = None
        if aligned:
            if not isinstance(encoder, VectorEncoder):
                raise ConfigError(f"task.reader.aligned: a {type(encoder).__name__} has no frontend; set it to false")
            self.aligned = AlignedQuestion(encoder.input_width)
        self.similarity = nn.Linear(3 * width, 1, bias=False)
        self.modeling: VectorEncoder = build("weft.models:ENCODERS", modeling, where="task.reader.modeling")
        self.enter = _fit(4 * width, self.modeling.input_width)
        self.matching = SelfMatching(self.modeling.width) if self_matching else None
        self.first: nn.Module
        if pointer == "network":
            self.network: PointerNetwork | None = PointerNetwork(self.modeling.width, width)
            return
        self.network = None
        self.ending: VectorEncoder = build("weft.models:ENCODERS", ending, where="task.reader.ending")
        self.between = _fit(self.modeling.width, self.ending.input_width)
        self.first = nn.Linear(4 * width + self.modeling.width, 1, bias=False)
        self.last = nn.Linear(4 * width + self.ending.width, 1, bias=False)

    def forward(self, passage: Source, question: Source) -> Pointed:
        asked = self.encoder(question)
        read = self._read(passage, question)
        h, u, mask = read.memory, asked.memory, read.mask
        a, b, c = self.similarity.weight[0].chunk(3)
        scores = (h @ a)[:, :, None] + (u @ b)[:, None] + (h * c) @ u.transpose(1, 2)
        weights = two_way_weights(scores, None, asked.mask).first
        seen = _over_words(scores.masked_fill(~asked.mask[:, None], -torch.inf).amax(2), mask)
        found, summary = weights @ u, seen[:, None] @ h
        g = torch.cat([h, found, h * found, h * summary], -1)
        m = self.modeling.read(self.enter(self.drop(g)), read.layout).memory
        shown = {"passage": weights, "question": seen}
        if self.matching is not None:
            m, shown["self"] = self.matching(m, read.layout)
        if self.network is not None:
            logits = self.network(self.drop(m), mask, asked)
        else:
            last = self.ending.read(self.between(m), read.layout).memory
            logits = torch.cat(
                [self.first(self.drop(torch.cat([g, m], -1))), self.last(self.drop(torch.cat([g, last], -1)))], -1
            )
        return Pointed(logits.float().masked_fill(~mask[..., None], -torch.inf), shown)

    def _read(self, passage: Source, question: Source) -> Encoded:
        if self.aligned is None:
            return self.encoder(passage)
        assert isinstance(self.encoder, VectorEncoder)
        (x, layout), (q, below) = self.encoder.front(passage), self.encoder.front(question)
        return self.encoder.read(self.aligned(x, q, None if below is None else below.mask), layout)


def _fit(width: int, wanted: int) -> nn.Module:
    """A projection, unless the widths are equal."""
    return nn.Identity() if width == wanted else nn.Linear(width, wanted)


class AttentionSum(Reader):
    """The attention-sum reader for questions with a blank (Kadlec et al. 2016).

    The score of each word of the passage is the product of its state and the last states of the question. The probability of an
    answer is the sum of those of its places.
    """

    pointers = 1

    def __init__(self, encoder: Encoder, dropout: float = 0.0) -> None:
        super().__init__(encoder, dropout)

    def forward(self, passage: Source, question: Source) -> Pointed:
        read, asked = self.encoder(passage), self.encoder(question)
        scores = (self.drop(read.memory) @ asked.summary[..., None]).float().masked_fill(~read.mask[..., None], -torch.inf)
        return Pointed(scores, {"question": scores[..., 0].softmax(-1)})


class ReadingModel(Network):
    """A reader over any encoder."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader, self.dim, self.max_source = reader, reader.encoder.width, reader.encoder.max_source

    def forward(self, passage: Source, question: Source) -> Pointed:
        pointed: Pointed = self.reader(passage, question)
        return pointed


def build_reading_model(spec: Mapping[str, Any], sizes: Sizes, reader: Mapping[str, Any], dropout: float) -> ReadingModel:
    """The encoder that `spec` (the section model) describes, with a reader (task.reader)."""
    return ReadingModel(build("weft.tasks.reading:READERS", reader, build_encoder(spec, sizes), dropout, where="task.reader"))


def answer_loss(logits: Tensor, spans: Tensor) -> Tensor:
    """[B]: −log of the sum of the probabilities of all places where the answer is.

    logits [B, T, pointers] · spans [B, k, 2]: first and last words, negative where there are fewer places. With one place this
    is the loss of BiDAF, with one pointer that of the attention-sum reader.
    """
    logs, real = logits.log_softmax(1), spans[..., 0] >= 0
    places = spans[..., : logits.size(-1)].clamp_min(0)
    each = logs.gather(1, places).sum(-1)  # [B, k]
    return -each.masked_fill(~real, -torch.inf).logsumexp(1)


def best_span(logits: Tensor, longest: int) -> tuple[int, int, float]:
    """The first and last word of the likeliest answer of at most `longest` words, and its log-probability; logits [T, 2]."""
    logs = logits.log_softmax(0)
    table = logs[:, :1] + logs[:, 1]
    place = torch.arange(len(logs))
    away = place - place[:, None]
    table = table.masked_fill((away < 0) | (away >= longest), -torch.inf)
    best = int(table.argmax())
    return best // len(logs), best % len(logs), float(table.flatten()[best])
