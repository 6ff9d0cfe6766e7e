"""The weights that training changes, and at what rates: frozen ones, rates by layer, gradual unfreezing (Howard & Ruder 2018).

All of it is a function of the configuration and the update number, so that resuming needs no other state.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from weft.config.registry import build, matching
from weft.config.sections import TrainSection
from weft.errors import ConfigError

STACKS = ("encoder", "decoder")
"""Modules of a network that hold stacks of layers. All others are its head, on top of them."""

NUMBERED = re.compile(r".*?\.\d+(?=\.)")
"""The beginning of a weight's name that identifies its layer: `encoder.layers.0`."""

OUTPUT = "decoder.output.weight"
"""The output layer of a model that writes."""


class LayerGroups:
    """The layers of a model from the lowest to the highest, and what training does to each of them."""

    def __init__(self, model: nn.Module, config: TrainSection) -> None:
        """Freezes what train.freeze names."""
        named = dict(model.named_parameters())
        for name in matching(config.freeze, named, "train.freeze"):
            named[name].requires_grad_(False)
        self.factor, self.every, self.usual = config.layer_factor, config.unfreeze_every, config.optimizer
        named = bottom_up(model)
        trained = ([named[name] for name in layer if named[name].requires_grad] for layer in layers_of(list(named)))
        self.layers = [layer for layer in trained if layer]
        if not self.layers:
            raise ConfigError("train.freeze: this leaves no weights to train; remove some of its patterns")
        self.weights = sum(weight.numel() for weight in named.values())
        self._active = 0 if config.freeze else len(self.layers)

    def optimizers(
        self, groups: Mapping[str, Sequence[nn.Parameter]], specs: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Optimizer]:
        """An optimiser for each group of weights: the one of `specs`, or else train.optimizer.

        Raises ConfigError if one would have nothing to train in the first step.
        """
        top = {id(weight) for layer in self.layers[-self.active(1) :] for weight in layer}
        for name, group in groups.items():
            if not any(id(weight) in top for weight in group):
                setting = "train.unfreeze_every" if self.every else "train.freeze"
                raise ConfigError(f"{setting}: it leaves the optimiser {name!r} without weights to train; change it")
        return {
            name: build("weft.training:OPTIMIZERS", specs.get(name, self.usual), self.rated(group))
            for name, group in groups.items()
        }

    def rated(self, group: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
        """The weights of an optimiser as parameter groups of torch, each with its `scale`, a factor on the learning rate.

        With a factor of 1 there is one group, as in an optimiser that knows nothing of layers.
        """
        if self.factor == 1:
            return [{"params": list(group), "scale": 1.0}]
        mine = {id(weight) for weight in group}
        parts = [[weight for weight in layer if id(weight) in mine] for layer in self.layers]
        scales = [self.factor ** (place + 1 - len(parts)) for place in range(len(parts))]
        return [{"params": part, "scale": scale} for part, scale in zip(parts, scales, strict=True) if part]

    def active(self, update: int) -> int:
        """The number of layers, from the top, that are trained in an update, which counts from 1."""
        return min(len(self.layers), 1 + (update - 1) // self.every) if self.every else len(self.layers)

    def enter(self, update: int) -> bool:
        """Freezes and unfreezes layers for an update. Returns whether anything is new, so that recorded work is outdated."""
        active = self.active(update)
        if active == self._active:
            return False
        self._active = active
        for place, layer in enumerate(self.layers):
            for weight in layer:
                weight.requires_grad_(place >= len(self.layers) - active)
        return True

    def describe(self) -> str:
        """A clause that says what is trained now."""
        trained = sum(weight.numel() for layer in self.layers[-self._active :] for weight in layer)
        return f"{self._active} of {len(self.layers)} layers are trained, {trained:,} of {self.weights:,} weights"


def bottom_up(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of a model by name, with the output layer of its decoder last.

    A table that embeds the decoder's tokens and is its output layer too counts as the latter, as in the code of Howard & Ruder:
    at the rate of the lowest layer, a language model would hardly learn the words of a new domain. One that the encoder shares
    stays with the embeddings.
    """
    named = dict(model.named_parameters())
    output = dict(model.named_parameters(remove_duplicate=False)).get(OUTPUT)
    first = next((name for name, weight in named.items() if weight is output), "")
    if output is not None and first.startswith("decoder."):
        del named[first]
        named[OUTPUT] = output
    return named


def layers_of(names: Sequence[str]) -> list[list[str]]:
    """The names of weights, in the order of a model, by layer from the lowest to the highest.

    Each numbered layer of a stack is one. What comes before the first layer of an encoder or decoder, such as embeddings,
    belongs to the lowest; what follows a layer, such as the last norm, to that layer; all else to the highest, the head.
    """
    lowest: list[str] = []
    head: list[str] = []
    stacks: dict[str, list[str]] = {}
    current: dict[str, list[str]] = {}
    for name in names:
        part = name.split(".")[0]
        if part not in STACKS:
            head.append(name)
        elif found := NUMBERED.match(name):
            current[part] = stacks.setdefault(found[0], [])
            current[part].append(name)
        else:
            current.get(part, lowest).append(name)
    return [layer for layer in (lowest, *stacks.values(), head) if layer]
