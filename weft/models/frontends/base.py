"""Frontends, which turn a source of any kind into the vectors that an encoder reads.

Shapes: G sources · S positions · F features of a frame · C channels · D width of the encoder's input.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.embeddings_and_rotary_positions import NGramBag, embedding_table, record_embedding
from weft.layers.kernels.cpp_plan import Maker, NotPlanned, PlanBuilder, Register
from weft.layers.recurrent import CellKind, Recurrence, make_layer
from weft.models.base import Component, Reads, Sizes


@dataclass(frozen=True)
class FrontendSite:
    """The place of a frontend: the kind of source that it reads, and the vectors that its encoder expects.

    width: of the vectors · scale: factor for embeddings, √width if None · std: standard deviation of initial embeddings.
    """

    sizes: Sizes
    width: int
    scale: float | None = None
    std: float | None = None

    def check(self, reads: Reads, kind: str) -> None:
        """Raises ConfigError unless the task's sources are of the kind that this frontend reads."""
        if self.sizes.reads != reads:
            raise ConfigError(
                f"model.front: {kind} reads {reads}, but this task provides {self.sizes.reads}; choose another front"
            )


class Frontend(Component, ABC):
    """Turns a source into vectors. Vector n belongs to source position n · shortens.

    shortens: source positions per vector
    reach: source positions on either side of its own that a vector depends on; None: any
    """

    shortens: int = 1
    reach: int | None = None
    cuda_graph_safe = True
    compiles = True

    @abstractmethod
    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        """Vectors [G, S, D] and their layout."""


class TokenFrontend(Frontend):
    """An embedding for each token, optionally plus those of the n-grams that end with it.

    ngrams: longest n-gram that has an embedding; 1: tokens only
    ngram_buckets: rows of the n-gram table, which n-grams share by their hash
    """

    supports_packing = True

    def __init__(self, site: FrontendSite, *, ngrams: PositiveInt = 1, ngram_buckets: PositiveInt = 20_000) -> None:
        super().__init__()
        site.check("tokens", "tokens")
        self.table = embedding_table(site.sizes.source, site.width, site.std)
        self.ngrams = NGramBag(ngram_buckets, site.width, ngrams) if ngrams > 1 else None
        self.scale = math.sqrt(site.width) if site.scale is None else site.scale

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        tokens, layout = source.values, source.layout
        x = self.table(tokens)
        if self.ngrams is None:
            x = x * self.scale
            record_embedding(tokens, self.table, self.scale, x)
            return x, layout
        grams = self.ngrams.of_tokens(tokens, self.ngrams.init_state(tokens.size(0)), layout)[0]
        record_embedding(tokens, self.table, self.scale, (x + grams) * self.scale, grams)
        return (x + grams) * self.scale, layout

    def plan(self, draft: PlanBuilder, positions: Maker | None) -> Register:
        if self.ngrams is not None:
            raise NotPlanned("an embedding of n-grams")
        return draft.embed(self.table, self.scale, positions)


class FrameFrontend(Frontend):
    """Frames [G, S, F] through convolutions of stride 2 with gated linear units, as speech Transformers use them.

    convolutions: how many; each halves the number of frames
    kernel: frames each convolution sees; odd
    channels: width between them
    """

    def __init__(
        self,
        site: FrontendSite,
        *,
        convolutions: PositiveInt = 2,
        kernel: PositiveInt = 3,
        channels: PositiveInt = 256,
    ) -> None:
        super().__init__()
        site.check("frames", "frames")
        widths = [site.sizes.source, *[channels] * (convolutions - 1), site.width]
        self.layers = nn.ModuleList(
            nn.Conv1d(below, 2 * above, kernel, stride=2, padding=kernel // 2) for below, above in pairwise(widths)
        )
        self.shortens = 2**convolutions
        self.reach = kernel // 2 * (self.shortens - 1)

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        x, layout = source.values, source.layout
        for layer in self.layers:
            if layout is not None:  # padding must not leak into the convolution
                x = torch.where(layout.mask[..., None], x, 0.0)
            x = F.glu(layer(x.transpose(1, 2)), 1).transpose(1, 2)
            layout = None if layout is None else layout.shorten(2, x.size(1))
        return x, layout


class PyramidFrontend(Frontend):
    """Frames [G, S, F] through bidirectional layers that each read pairs of vectors, as in Listen, Attend and Spell.

    The pyramid of Chan et al. 2016; their layer without pairs is the encoder above it. The last of an odd number of vectors
    is paired with zeros.

    layers: how many; each halves the number of vectors
    dim: width of the states, both directions together
    cell: gru, lstm, rnn or sru
    """

    def __init__(self, site: FrontendSite, *, layers: PositiveInt = 2, dim: PositiveInt = 256, cell: CellKind = "lstm") -> None:
        super().__init__()
        site.check("frames", "pyramid")
        widths = [site.sizes.source, *[dim] * (layers - 1)]
        self.layers = nn.ModuleList(make_layer(cell, 2 * width, dim, both=True) for width in widths)
        self.project = nn.Linear(dim, site.width)
        self.shortens = 2**layers

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        x, layout = source.values, source.layout
        for layer in self.layers:
            assert isinstance(layer, Recurrence)
            if layout is not None:  # a row may end with half a pair
                x = torch.where(layout.mask[..., None], x, 0.0)
            x = F.pad(x, (0, 0, 0, x.size(1) % 2)).unflatten(1, (-1, 2)).flatten(2)
            layout = None if layout is None else layout.shorten(2, x.size(1))
            x, _ = layer(x, layer.init_state(x.size(0)), layout)
        return self.project(x), layout


class VectorFrontend(Frontend):
    """Frames [G, S, F], each projected to a vector by itself."""

    reach = 0

    def __init__(self, site: FrontendSite) -> None:
        super().__init__()
        site.check("frames", "vectors")
        self.project = nn.Linear(site.sizes.source, site.width)

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        return self.project(source.values), source.layout
