"""A frontend for words: each has an embedding, and a vector made from its subwords, so that unknown words are not all alike.

Shapes: G sentences · W words · P subwords or characters of a word · N = G·W · D width of the vectors.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.batch import PAD, UNK, Layout, Source
from weft.errors import ConfigError
from weft.layers.embedding import embedding_table
from weft.layers.norm_and_dropout import Rate
from weft.layers.recurrent import RecurrentLayer
from weft.models.frontends.base import Frontend, FrontendSite

Spelling = Literal["cnn", "lstm", "mean", "first"]


class WordFrontend(Frontend):
    """A vector for each word: its embedding, next to what its pieces (characters or subwords) say.

    spelling: from pieces to a vector: the maximum of convolutions (cnn; Ma & Hovy 2016), the last states of an LSTM in both
        directions (lstm; Lample et al. 2016), the mean of their embeddings, or that of the first
    spelling_width: entries of a vector that come from the pieces; the others are the embedding of the word
    piece_width: width of the embeddings of pieces
    kernel: pieces that a convolution sees; odd
    word_dropout: share of the words of a training batch that are read as unknown words
    """

    def __init__(
        self,
        site: FrontendSite,
        *,
        spelling: Spelling = "cnn",
        spelling_width: PositiveInt = 64,
        piece_width: PositiveInt = 32,
        kernel: PositiveInt = 3,
        word_dropout: Rate = 0.1,
    ) -> None:
        super().__init__()
        site.check("words", "words")
        width = site.width - spelling_width
        if width < 1:
            raise ConfigError(
                f"model.front.spelling_width: of the {site.width} entries of a vector, some must be left for the embedding of "
                f"the word; set it to at most {site.width - 1}"
            )
        if kernel % 2 == 0:
            raise ConfigError(f"model.front.kernel: it must be odd, not {kernel}")
        self.kind, self.word_dropout = spelling, word_dropout
        self.table = embedding_table(site.sizes.source, width, site.std)
        self.scale = math.sqrt(width) if site.scale is None else site.scale
        self.pieces = embedding_table(site.sizes.pieces, piece_width, 1.0)
        self.spelling: nn.Module
        if spelling == "lstm":
            self.spelling = RecurrentLayer("lstm", piece_width, spelling_width, both=True)
        elif spelling == "cnn":
            self.spelling = nn.Conv1d(piece_width, spelling_width, kernel, padding=kernel // 2)
        else:
            self.spelling = nn.Linear(piece_width, spelling_width)

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        words, pieces = source.values[..., 0], source.values[..., 1:]
        if self.training and self.word_dropout:
            words = torch.where(torch.rand(words.shape, device=words.device) < self.word_dropout, UNK, words)
        spelled = self.spell(pieces.flatten(0, 1)).view(*words.shape, -1)
        return torch.cat([self.table(words) * self.scale, spelled], -1), source.layout

    def spell(self, pieces: Tensor) -> Tensor:
        """[N, P] → [N, spelling_width]."""
        ok = pieces != PAD
        x = self.pieces(pieces) * ok[..., None]
        if isinstance(self.spelling, RecurrentLayer):  # the last states of both directions
            place = torch.arange(x.size(1), device=x.device).expand(x.shape[:2])
            # Without known lengths, padding is computed too; a GPU would have to wait for them.
            known = tuple(ok.sum(1).tolist()) if x.device.type == "cpu" else None
            layout = Layout(ok.to(torch.int32), place, None, x.size(1), known)
            return self.spelling(x, self.spelling.init_state(len(x)), layout)[1][0]
        if self.kind == "cnn":
            return F.relu(self.spelling(x.transpose(1, 2)).masked_fill(~ok[:, None], -torch.inf).amax(2))
        pooled = x[:, 0] if self.kind == "first" else x.sum(1) / ok.sum(1, keepdim=True).clamp_min(1)
        return torch.tanh(self.spelling(pooled))
