"""Embeddings joined with the contextual vectors of a frozen language model: ELMo (Peters et al. 2018).

Shapes: G sources · S positions · D width of the encoder's input · M width of the language model · L its layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config.registry import build
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.embeddings_and_rotary_positions import embedding_table
from weft.layers.linear_norm_dropout import Rate, dropout
from weft.models.base import Encoded, Sizes
from weft.models.frontends.base import Frontend, FrontendSite
from weft.models.language_model import LanguageModel, LanguageModelFamily


class ContextualFrontend(Frontend):
    """[E(x); γ Σ_j s_j h_j]: embeddings of tokens, and a mix of the layers of a frozen language model (Peters et al. 2018).

    h_0 are the embeddings of the language model, h_1 … h_L the outputs of its layers, s a softmax; γ and s are learned for the
    task. The paper joins a model of each direction; a language model of weft reads from left to right. The trained run has the
    language model in it. Its embeddings E have the remaining width, D − M.

    run: run folder of the language model, whose tokenizer the new run takes too
    language_model: the model of that run; written here when training begins
    layer_norm: normalise each layer before the mix
    dropout: dropout rate of the mix
    """

    def __init__(
        self,
        site: FrontendSite,
        *,
        run: str | None = None,
        language_model: dict[str, Any] | None = None,
        layer_norm: bool = False,
        dropout: Rate = 0.5,
    ) -> None:
        super().__init__()
        site.check("tokens", "contextual")
        if language_model is None:
            raise ConfigError("model.front.run: contextual needs a trained language model; name the folder of its run")
        family = build("weft.models:MODELS", language_model, where="model.front.language_model")
        if not isinstance(family, LanguageModelFamily):
            raise ConfigError(
                f"model.front.run: {run} is a {language_model['kind']}, not a language model; name the run of one"
            )
        self.language_model: LanguageModel = family.build(Sizes(site.sizes.source, site.sizes.source, shared=True))
        width = self.language_model.decoder.hidden
        if site.width <= width:
            raise ConfigError(
                f"model.front: the language model has a width of {width}, and the encoder reads vectors of {site.width}, which "
                f"leaves nothing for embeddings; set the encoder's dim (of rnn: embedding) to more than {width}"
            )
        self.table = embedding_table(site.sizes.source, site.width - width, site.std)
        self.scale = math.sqrt(site.width) if site.scale is None else site.scale
        self.mixture = nn.Parameter(torch.zeros(self._layers()))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm, self.dropout, self.max_length = layer_norm, dropout, self.language_model.max_target
        self.cuda_graph_safe, self.compiles = self.language_model.cuda_graph_safe, False
        for parameter in self.language_model.parameters():
            parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> ContextualFrontend:
        super().train(mode)
        self.language_model.eval()
        return self

    def forward(self, source: Source) -> tuple[Tensor, Layout | None]:
        layers = self.layers(source.values, source.layout)
        if self.layer_norm:
            layers = [F.layer_norm(layer, layer.shape[-1:]) for layer in layers]
        weights = self.mixture.softmax(0)
        mixed = self.gamma * sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
        own = self.table(source.values) * self.scale
        return torch.cat([own, dropout(mixed.to(own.dtype), self.dropout, self.training)], -1), source.layout

    @torch.no_grad()
    def layers(self, tokens: Tensor, layout: Layout | None) -> list[Tensor]:
        """h_0 … h_L, each [G, S, M]."""
        decoder = self.language_model.decoder
        nothing = Encoded(torch.empty(tokens.size(0), 0, decoder.dim, device=tokens.device))
        features, inputs = decoder.read(tokens, decoder.init_state(nothing), layout)
        return [*inputs, features.hidden]

    def _layers(self) -> int:
        """1 + L: what `layers` returns, counted with one token."""
        device = self.language_model.device
        return len(self.layers(torch.zeros(1, 1, dtype=torch.long, device=device), None))
