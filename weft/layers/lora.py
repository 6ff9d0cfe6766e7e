"""Low-rank adapters (LoRA, Hu et al. 2022): a few weights beside layers and tables that stay as they are."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from weft.config.registry import Options, matching
from weft.errors import ConfigError
from weft.layers.linear_norm_dropout import linear_with, replace_layers

ADAPTER = (".lora_a", ".lora_b")
"""Ends of the names of adapter weights."""

OUTPUT = "output"
"""Names of output layers."""


class Lora(Options):
    """Low-rank adapters: train a product of two narrow matrices beside each linear layer, instead of its weights."""

    rank: PositiveInt = Field(default=8, description="width between the two matrices; 8: a few percent of the weights")
    alpha: PositiveFloat = Field(default=16.0, description="the product is multiplied by alpha / rank")
    match: list[str] = Field(default=["*"], description="linear layers that get an adapter, by patterns of their names")
    embedding_rank: NonNegativeInt | Literal["auto"] = Field(
        default="auto",
        description="rank of the adapters of embeddings and output layers; 0: none; auto: rank, or 0 with start.extend",
    )


class LoraLinear(nn.Linear):
    """W x + b + (alpha / rank) · B A x, where B starts at 0. W and b keep their names, and are not trained."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # the weights are those of the layer
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias, self.scale = layer.weight, layer.bias, alpha / rank
        self.lora_a, self.lora_b = _factors(layer.weight, rank)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain layer with the same outputs."""
        merged = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a)
        return linear_with(merged, self.bias).train(self.training)


class LoraTable(nn.Module, ABC):
    """A layer whose `weight` is W + (alpha / rank) · B A, so that everything that reads it, such as the loss, gets the sum.

    The parameter W keeps its name, and is not trained. Tied layers share W, A and B. Shapes: W [V, D] · B [V, R] · A [R, D].
    """

    def __init__(self, layer: nn.Module, factors: tuple[nn.Parameter, nn.Parameter], alpha: float) -> None:
        nn.Module.__init__(self)
        self._parameters["weight"] = layer.get_parameter("weight")
        (self.lora_a, self.lora_b), self.scale = factors, alpha / factors[0].size(0)

    @property
    def weight(self) -> Tensor:
        return self.frozen + self.scale * (self.lora_b @ self.lora_a)

    @property
    def frozen(self) -> Tensor:
        """W."""
        weight = self._parameters["weight"]
        assert weight is not None
        return weight

    @abstractmethod
    def plain(self, weight: nn.Parameter) -> nn.Module:
        """The layer with another weight and without an adapter."""


class LoraEmbedding(LoraTable, nn.Embedding):  # type: ignore[override]  # a property instead of a parameter
    """An embedding with an adapter. A lookup multiplies only the rows that it reads."""

    def __init__(self, layer: nn.Embedding, factors: tuple[nn.Parameter, nn.Parameter], alpha: float) -> None:
        LoraTable.__init__(self, layer, factors, alpha)
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.padding_idx = layer.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        rows = F.embedding(tokens, self.frozen, self.padding_idx)
        return rows + self.scale * (F.embedding(tokens, self.lora_b, self.padding_idx) @ self.lora_a)

    def plain(self, weight: nn.Parameter) -> nn.Embedding:
        layer = nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, device="meta")
        layer.weight = weight
        return layer.train(self.training)


class LoraOutput(LoraTable, nn.Linear):  # type: ignore[override]  # a property instead of a parameter
    """An output layer with an adapter. Its loss reads `weight`, so forward does too."""

    def __init__(self, layer: nn.Linear, factors: tuple[nn.Parameter, nn.Parameter], alpha: float) -> None:
        LoraTable.__init__(self, layer, factors, alpha)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias

    def plain(self, weight: nn.Parameter) -> nn.Linear:
        return linear_with(weight, self.bias).train(self.training)


def add_adapters(model: nn.Module, lora: Lora) -> None:
    """Puts adapters beside the linear layers that `lora` names, and beside embeddings and output layers if it says so.

    Layers that are no wider than the rank get none, nor do weights that other kinds of layers share. An `embedding_rank` of
    auto is 0 here; a run has replaced it by a number.
    """
    users: dict[Tensor, list[nn.Module]] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            users.setdefault(weight, []).append(module)
    named = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    outputs = {layer for name, layer in named.items() if name.rpartition(".")[2] == OUTPUT}
    inner = {name: layer for name, layer in named.items() if layer not in outputs and min(layer.weight.shape) > lora.rank}
    free = [name for name, layer in inner.items() if len(users[layer.weight]) == 1]
    rank = 0 if lora.embedding_rank == "auto" else lora.embedding_rank
    # Matrices that only embeddings and output layers use.
    shared = [
        weight
        for weight, layers in users.items()
        if weight.dim() == 2 and all(type(layer) is nn.Embedding or layer in outputs for layer in layers)
    ]
    tables = [weight for weight in shared if 0 < rank < min(weight.shape)]
    if not free and not tables:
        raise ConfigError(
            f"model.lora: this model has no linear layer of its own that is wider than the rank, {lora.rank}; lower "
            "model.lora.rank, or train the weights themselves"
        )
    adapted: dict[nn.Module, nn.Module] = {
        named[name]: LoraLinear(named[name], lora.rank, lora.alpha)
        for name in (matching(lora.match, free, "model.lora.match") if free else [])
    }
    for table in tables:
        factors = _factors(table, rank)
        for layer in users[table]:
            if isinstance(layer, nn.Embedding):
                adapted[layer] = LoraEmbedding(layer, factors, lora.alpha)
            elif isinstance(layer, nn.Linear):
                adapted[layer] = LoraOutput(layer, factors, lora.alpha)
    replace_layers(model, adapted)


@torch.no_grad()
def merge_adapters(model: nn.Module) -> None:
    """Replaces every adapter by a plain layer with the same outputs. Tied layers stay tied."""
    merged: dict[nn.Module, nn.Module] = {}
    tables: dict[nn.Parameter, nn.Parameter] = {}
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            merged[layer] = layer.merged()
        elif isinstance(layer, LoraTable):
            if layer.lora_b not in tables:
                tables[layer.lora_b] = nn.Parameter(layer.weight)
            merged[layer] = layer.plain(tables[layer.lora_b])
    replace_layers(model, merged)


def _factors(weight: Tensor, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A [rank, inputs], random, and B [outputs, rank], zeros, so that a new adapter changes nothing."""
    a, b = nn.Parameter(weight.new_empty(rank, weight.size(1))), nn.Parameter(weight.new_zeros(weight.size(0), rank))
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    return a, b
