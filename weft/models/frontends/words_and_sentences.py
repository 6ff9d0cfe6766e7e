"""Frontends for words, and for the sentences of a document.

Words have an embedding and a vector made from their subwords, so that unknown words are not all alike. In a hierarchical model,
each sentence of a document becomes one vector (Yang et al. 2016).

Shapes: G sentences · W words · P subwords or characters of a word · N = G·W · D width of the vectors. Of documents: N sentences
of all documents · W words of a sentence · G documents · S sentences of a document.
"""

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.config.registry import Among, build
from weft.data.batch import PAD, UNK, Layout, Source
from weft.errors import ConfigError
from weft.layers.embeddings_and_rotary_positions import embedding_table, record_embedding
from weft.layers.linear_norm_dropout import Rate
from weft.layers.recurrent import RecurrentLayer
from weft.layers.step_recorder import record, recording
from weft.models.encoder_decoder import VectorEncoder
from weft.models.frontends.base import Frontend, FrontendSite, TokenFrontend
from weft.models.pooling import Pooled, build_pooling

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
        embedded = self.table(words) * self.scale
        joined = torch.cat([embedded, spelled], -1)
        if recording():
            axes = "row token channel"
            record_embedding(words, self.table, self.scale, embedded)
            record("spelling", spelled, axes)
            record("words and spelling", joined, axes, "join(x, s, channel)", x=(embedded, axes), s=(spelled, axes))
        return joined, source.layout

    def spell(self, pieces: Tensor) -> Tensor:
        """[N, P] → [N, spelling_width]."""
        mask = pieces != PAD
        x = self.pieces(pieces) * mask[..., None]
        if isinstance(self.spelling, RecurrentLayer):  # the last states of both directions
            place = torch.arange(x.size(1), device=x.device).expand(x.shape[:2])
            # Without known lengths, padding is computed too; a GPU would have to wait for them.
            known = tuple(mask.sum(1).tolist()) if x.device.type == "cpu" else None
            layout = Layout(mask.to(torch.int32), place, None, x.size(1), known)
            return self.spelling(x, self.spelling.init_state(len(x)), layout)[1][0]
        if self.kind == "cnn":
            return F.relu(self.spelling(x.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf).amax(2))
        pooled = x[:, 0] if self.kind == "first" else x.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        return torch.tanh(self.spelling(pooled))


class SentenceFrontend(Frontend):
    """A vector for each sentence of a document: an encoder reads its words, and a pooling joins them.

    With recurrent encoders and self-attentive poolings at both levels this is the hierarchical attention network (HAN) of
    Yang et al. 2016.

    encoder: reads the words of a sentence
    pooling: joins the words of a sentence to one vector
    """

    cuda_graph_safe = False

    def __init__(
        self,
        site: FrontendSite,
        *,
        encoder: Annotated[dict[str, Any], Among("weft.models:ENCODERS")] = {"kind": "rnn"},  # noqa: B006
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "self_attentive"},  # noqa: B006
    ) -> None:
        super().__init__()
        site.check("sentences", "sentences")
        words: VectorEncoder = build("weft.models:ENCODERS", encoder, where="model.front.encoder")
        below = replace(site.sizes, reads="tokens")
        words.attach(TokenFrontend(FrontendSite(below, words.input_width, words.embedding_scale, words.embedding_std)))
        self.words = words
        self.pooling = build_pooling(pooling, words.width, where="model.front.pooling")
        self.compiles = words.compiles
        self.max_length = words.max_source
        width = self.pooling.rows * self.pooling.dim
        if width != site.width:
            raise ConfigError(
                f"model.front: the vectors of sentences have a width of {width}, but model.encoder reads {site.width}; "
                "set the dim of model.front.encoder and that of model.encoder (or its embedding) alike"
            )

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        """The vectors of sentences [G, S, D]. Without `source.documents`, each row is a document of one sentence."""
        encoded = self.words(Source(source.values, source.layout))
        pooled: Pooled = self.pooling(encoded.memory, encoded.layout)
        vectors, documents = pooled.vectors.flatten(1), source.documents
        if documents is None:
            return vectors[:, None], None
        blank = vectors.new_zeros(*documents.segments.shape, vectors.size(-1))
        return blank.masked_scatter(documents.mask[..., None], vectors), documents
