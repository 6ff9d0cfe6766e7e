"""End-to-end memory networks (Sukhbaatar et al. 2015): a question looks at the sentences of a story, several times.

The source is a story: sentences that end with EOS, the question last. Sentences are numbered by age: 0 is the question, 1 the
latest fact.

Shapes: B stories · S tokens · N facts · W words of a sentence · K hops · D width · C answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.data.batch import EOS, Layout, Source
from weft.layers.step_recorder import record, recording
from weft.models.base import Encoded, Encoder, Network, Sizes
from weft.models.encoder_decoder import ModelFamily
from weft.tasks.classification.model import ClassifierOutput

Tying = Literal["adjacent", "layer_wise"]
STD = 0.1
"""Standard deviation of all initial weights."""


@dataclass(frozen=True)
class StorySentences:
    """Tokens in sentences. words: [B, 1 + N, W] by age, PAD where there is none · facts: [B, N], True where there is one."""

    words: Tensor
    facts: Tensor


def split_sentences(tokens: Tensor, layout: Layout | None, most: int) -> StorySentences:
    """The question and the `most` latest facts of each story, given its tokens [B, S]."""
    place = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    real = torch.ones_like(tokens, dtype=torch.bool) if layout is None else layout.mask
    ends = (tokens == EOS) & real
    number = ends.cumsum(1) - ends.long()
    age = ends.sum(1, keepdim=True) - 1 - number
    starts = F.pad(ends[:, :-1], (1, 0))
    inside = place - torch.where(starts, place, 0).cummax(1).values
    kept = real & ~ends & (age <= most)
    facts = (ends.sum(1) - 1).clamp(0, most)
    extent = int(facts.max()), int(inside[kept].max()) + 1 if bool(kept.any()) else 1
    words = tokens.new_zeros(len(tokens), 1 + extent[0], extent[1])
    row, column = kept.nonzero(as_tuple=True)
    words[row, age[row, column], inside[row, column]] = tokens[row, column]
    return StorySentences(words, torch.arange(extent[0], device=tokens.device) < facts[:, None])


def word_weights(words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Position encoding (section 4.1), l_kj = (1 − j/J) − (k/d)(1 − 2j/J), as its two factors of j, each […, W]."""
    real = (words != 0).to(dtype)
    share = torch.arange(1, words.size(-1) + 1, device=words.device, dtype=dtype) / real.sum(-1, keepdim=True).clamp_min(1)
    return (1 - share) * real, (1 - 2 * share) * real


class MemoryEncoder(Encoder):
    """The state of the question after all hops, a memory of one vector.

    Tables are numbered: hop k reads addresses from table `addresses[k]` and contents from table `contents[k]`.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        dim: int,
        hops: int,
        memory: int,
        tying: Tying,
        position: bool,
        temporal: bool,
        empty: float,
    ) -> None:
        super().__init__()
        adjacent = tying == "adjacent"
        self.addresses = list(range(hops)) if adjacent else [0] * hops
        self.contents = list(range(1, hops + 1)) if adjacent else [1] * hops
        self.question = 0 if adjacent else 2
        count = 1 + max(self.contents)
        self.tables = nn.ModuleList(nn.Embedding(vocabulary, dim) for _ in range(count + (not adjacent)))
        self.times = nn.ParameterList(nn.Parameter(torch.empty(memory, dim)) for _ in range(count if temporal else 0))
        self.update = None if adjacent else nn.Linear(dim, dim, bias=False)
        self.width, self.hops, self.memory = dim, hops, memory
        self.position, self.empty, self.tying = position, empty, tying
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=STD)

    def forward(self, source: Source) -> Encoded:
        return Encoded(self.look(source)[0][:, None])

    def look(self, source: Source, *, linear: bool = False) -> tuple[Tensor, Tensor]:
        """The state [B, D] after the last hop and the weights [B, K, N] of all. linear: without the softmax."""
        story = split_sentences(source.values, source.layout, self.memory)
        times = self._times(story.facts)
        state, looks = self._bags(self.question, story.words[:, :1])[:, 0], []
        states: list[Tensor] = []
        kept: dict[int, Tensor] = {}
        for address, content in zip(self.addresses, self.contents, strict=True):
            for table in (address, content):
                if table not in kept:
                    kept[table] = self._bags(table, story.words[:, 1:])
                    if times is not None:
                        kept[table] = kept[table] + self.times[table][times]
            scores = (kept[address] @ state[..., None])[..., 0]
            weights = scores if linear else scores.masked_fill(~story.facts, torch.finfo(scores.dtype).min).softmax(-1)
            weights = weights * story.facts
            content_read = (weights[:, None] @ kept[content])[:, 0]
            before, passed = state, state if self.update is None else self.update(state)
            state = content_read + passed
            looks.append(weights)
            states.append(state)
            if recording() and not linear:
                memories = kept[address], kept[content]
                self._record_hop(memories, story.facts, scores, weights, (before, passed, content_read, state))
        vectors = "row hop channel"
        record("last state", state[:, None], vectors, "", self, states=(torch.stack(states, 1), vectors))
        return state, torch.stack(looks, 1)

    def _record_hop(
        self, memories: tuple[Tensor, Tensor], facts: Tensor, scores: Tensor, weights: Tensor, states: Sequence[Tensor]
    ) -> None:
        """Records a hop. memories [B, N, D]: addresses and contents · states [B, D]: before, passed on, read and after."""
        rows, cells, vectors = "row hop fact", "row hop fact channel", "row hop channel"
        (address, content), (before, passed, found, after) = ((each[:, None] for each in group) for group in (memories, states))
        scores, weights, seen = scores[:, None], weights[:, None], facts[:, None]
        record("state before", before, vectors, "", self, states=(after, vectors))
        record("addresses", address, cells, "", self)
        record("contents", content, cells, "", self)
        record("scores", scores, rows, "sum(m * u, channel)", self, m=(address, cells), u=(before, vectors))
        masked = scores.masked_fill(~seen, float("-inf"))
        record("masked scores", masked, rows, "where(real, scores, -inf)", self, real=(seen, rows), scores=(scores, rows))
        record("weights", weights, rows, "softmax(scores, fact)", self, scores=(masked, rows))
        record("read", found, vectors, "sum(weights * c, fact)", self, weights=(weights, rows), c=(content, cells))
        record("state", after, vectors, "read + u", self, read=(found, vectors), u=(passed, vectors))

    def _times(self, facts: Tensor) -> Tensor | None:
        """The row of the temporal tables for each fact. In training, empty memories at random make facts older."""
        if not self.times:
            return None
        times = torch.arange(facts.size(1), device=facts.device).expand_as(facts)
        if self.training and self.empty:
            times = times + (torch.rand(facts.shape, device=facts.device) < self.empty).cumsum(1)
        return times.clamp_max(self.memory - 1)

    def _bags(self, number: int, words: Tensor) -> Tensor:
        """A vector for each sentence, the weighted sum of its words: [B, N, W] → [B, N, D]."""
        table = self.tables[number].weight
        assert isinstance(table, Tensor)
        flat = words.flatten(0, 1)

        def bag(weights: Tensor) -> Tensor:
            summed = F.embedding_bag(flat, table, mode="sum", per_sample_weights=weights.flatten(0, 1))
            return summed.view(*words.shape[:2], self.width)

        if not self.position:
            return bag((words != 0).to(table.dtype))
        constant, slope = word_weights(words, table.dtype)
        share = torch.arange(1, self.width + 1, device=words.device, dtype=table.dtype) / self.width
        return bag(constant) - share * bag(slope)


class MemoryNetwork(Network):
    """A memory network and its answers. With adjacent tying the answers are rows of the last table, `answers` by id."""

    def __init__(self, encoder: MemoryEncoder, answers: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.dim, self.answers = encoder, encoder.width, list(answers)
        self.output = None if encoder.tying == "adjacent" else nn.Linear(encoder.width, len(answers), bias=False)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=STD)

    def forward(self, source: Source, *, linear: bool = False) -> ClassifierOutput:
        """The logits of the answers, and how much each hop looks at each fact [B, K, N], the latest fact first.

        linear: hops without the softmax, at the start of training (section 4.2).
        """
        state, weights = self.encoder.look(source, linear=linear)
        if self.output is not None:
            return ClassifierOutput(self.output(state), weights)
        rows = self.encoder.tables[-1].weight
        assert isinstance(rows, Tensor)
        answers = rows[torch.tensor(self.answers, device=rows.device)]
        logits = F.linear(state, answers)
        operands = {"W": (answers, "label input"), "x": (state, "row input")}
        record("logits", logits, "row label", "sum(W * x, input)", **operands)
        return ClassifierOutput(logits, weights)


@dataclass(frozen=True, kw_only=True)
class MemoryNetworkFamily(ModelFamily):
    """End-to-end memory network: answers a question by looking at the sentences of a story, `hops` times.

    dim: width of the embeddings
    hops: how many times the network looks at the facts
    memory: facts it can look at, the latest ones
    tying: adjacent: the contents of a hop are the addresses of the next one; layer_wise: all hops share their tables
    position: weight the words of a sentence by their places; otherwise a sentence is a bag of words
    temporal: learn a vector for the age of a fact
    empty: probability of an empty memory before each fact in training, so that ages vary
    """

    dim: PositiveInt = 20
    hops: PositiveInt = 3
    memory: PositiveInt = 50
    tying: Tying = "adjacent"
    position: bool = True
    temporal: bool = True
    empty: Annotated[float, Field(ge=0, lt=1)] = 0.1

    def build_encoder(self, sizes: Sizes) -> MemoryEncoder:
        return MemoryEncoder(sizes.source, **vars(self))

    def build(self, sizes: Sizes) -> MemoryNetwork:
        """A network whose answers are the last `sizes.target` ids; the task `answering` chooses them by their words."""
        return MemoryNetwork(self.build_encoder(sizes), range(sizes.source - sizes.target, sizes.source))
