"""Activation checkpointing: the activations of a layer are computed again in the backward pass instead of being stored.

Chen et al. (2016). Only the inputs of the layers stay in memory, and a step takes about a third longer. The random state of the
forward pass is restored, so dropout draws the same numbers, and gradients are those of a plain backward pass, bit for bit.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from weft.errors import ConfigError
from weft.models.transformer_blocks import DecoderLayer, EncoderLayer


def check_layers(model: nn.Module, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError if a model with these settings has no layers whose activations can be computed again."""
    if settings.get("reversible"):
        raise ConfigError("train.recompute: reversible layers already compute their activations again; remove one of the two")
    if not transformer_layers(model):
        raise ConfigError("train.recompute: this model has no layers of a Transformer; remove the setting")


def checkpoint_layers(model: nn.Module) -> None:
    """Lets each layer of a model compute its activations again in the backward pass."""
    for layer in transformer_layers(model):
        name = "read" if isinstance(layer, EncoderLayer) else "forward"
        setattr(layer, name, _recomputed(getattr(layer, name)))


def transformer_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of all Transformer stacks of a model."""
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def _recomputed(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return run(*given, **named)
        return checkpoint(run, *given, use_reentrant=False, **named)

    return call
