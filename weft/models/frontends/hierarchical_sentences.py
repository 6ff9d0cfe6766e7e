"""The lower level of a hierarchical model: each sentence of a document becomes one vector (Yang et al. 2016).

Shapes: N sentences of all documents · W words of a sentence · G documents · S sentences of a document · D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from torch import Tensor

from weft.config.registry import Among, build
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.composition import VectorEncoder
from weft.models.frontends.base import Frontend, FrontendSite, TokenFrontend
from weft.models.pooling import Pooled, Pooling


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
        self.pooling: Pooling = build("weft.models:POOLINGS", pooling, words.width, where="model.front.pooling")
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
