"""Low-rank adapters (LoRA, Hu et al. 2022): a few weights beside linear layers that stay as they are."""

from __future__ import annotations

import math
from collections import Counter

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from weft.config.patterns import matching
from weft.config.registry import Options
from weft.errors import ConfigError

ADAPTER = (".lora_a", ".lora_b")
"""How the names of adapter weights end."""


class Lora(Options):
    """Low-rank adapters: train a product of two narrow matrices beside each linear layer, instead of its weights."""

    rank: PositiveInt = Field(default=8, description="width between the two matrices; 8: a few percent of the weights")
    alpha: PositiveFloat = Field(default=16.0, description="the product is multiplied by alpha / rank")
    match: list[str] = Field(default=["*"], description="linear layers that get an adapter, by patterns of their names")


class LoraLinear(nn.Linear):
    """W x + b + (alpha / rank) · B A x, where B starts at 0. W and b keep their names, and are not trained."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # the weights are those of the layer
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias, self.scale = layer.weight, layer.bias, alpha / rank
        self.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain layer with the same outputs."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        layer.weight, layer.bias = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a), self.bias
        return layer.train(self.training)


def add_adapters(model: nn.Module, lora: Lora) -> None:
    """Puts an adapter beside the linear layers that `lora` names. Layers narrower than the rank, and tied ones, get none."""
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    owners = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    wide = {name: layer for name, layer in layers.items() if min(layer.weight.shape) > lora.rank}
    free = [name for name, layer in wide.items() if owners[id(layer.weight)] == 1]
    if not free:
        raise ConfigError(
            f"model.lora: this model has no linear layer of its own that is wider than the rank, {lora.rank}; lower "
            "model.lora.rank, or train the weights themselves"
        )
    for name in matching(lora.match, free, "model.lora.match"):
        model.set_submodule(name, LoraLinear(layers[name], lora.rank, lora.alpha))


def merge_adapters(model: nn.Module) -> None:
    """Replaces every adapter by a plain layer with the same outputs."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoraLinear):
            model.set_submodule(name, layer.merged())
