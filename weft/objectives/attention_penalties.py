"""Penalties on attention weights in training, for every model that has them.

Shapes: B rows · H heads · T target positions · S source positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Attention
from weft.attention.core.recording import observe
from weft.attention.core.weight_penalties import coverage_penalty, doubly_stochastic_penalty, guided_penalty
from weft.batch import PairBatch
from weft.errors import ConfigError
from weft.models.base import Model

Watched = Sequence[list[Tensor]]
"""For each observed attention its weights [B, H, t, S], one slice of the target after the other."""


@dataclass(frozen=True)
class Penalties:
    """The weight of each penalty, by name, and the attentions it applies to.

    layers: indices among the decoder's cross-attentions that have weights; −1 is the last.
    """

    weights: Mapping[str, float]
    guided_width: float
    layers: Sequence[int]

    @contextmanager
    def watching(self, model: Model) -> Iterator[Watched]:
        """Inside this context the chosen attentions record their weights."""
        attentions = self._attentions(model) if any(self.weights.values()) else []
        tapes: list[list[Tensor]] = [[] for _ in attentions]
        with ExitStack() as stack:
            for attention, tape in zip(attentions, tapes, strict=True):

                def note(found: Attended, tape: list[Tensor] = tape) -> None:
                    assert found.weights is not None
                    tape.append(found.weights)

                stack.enter_context(observe(attention, note))
            yield tapes

    def sums(self, watched: Watched, batch: PairBatch) -> dict[str, Tensor]:
        """Each penalty with a weight, unweighted: the sum over all tokens, the mean over the chosen attentions."""
        shown = [torch.cat(tape, 2) for tape in watched]
        if any(not weights.requires_grad for weights in shown):
            raise ConfigError(f"{self._named}: the attention weights of this model have no gradient; set it to 0")
        return {
            name: torch.stack([self._sum(name, weights, batch) for weights in shown]).mean()
            for name, weight in self.weights.items()
            if weight
        }

    def _sum(self, name: str, weights: Tensor, batch: PairBatch) -> Tensor:
        layout, source = batch.target_layout, batch.source.layout
        if name == "guided":
            return guided_penalty(weights, layout, source, self.guided_width).sum()
        if name == "coverage":
            return coverage_penalty(weights).where(layout.ok, 0.0).sum()
        return doubly_stochastic_penalty(weights, layout, source).sum()

    @property
    def _named(self) -> str:
        """The first option that sets a penalty."""
        return next(f"task.{name}_weight" for name, weight in self.weights.items() if weight)

    def _attentions(self, model: Model) -> list[Attention]:
        """The attentions that `layers` names."""
        found = [each for each in _crosses(model.decoder) if each.weights_sum is not None]
        if not found:
            raise ConfigError(f"{self._named} needs a model whose cross-attention has weights; set it to 0")
        if wrong := [layer for layer in self.layers if not -len(found) <= layer < len(found)]:
            raise ConfigError(
                f"task.penalty_layers: there is no layer {wrong[0]}; "
                f"the model has {len(found)} with weights, 0 to {len(found) - 1}"
            )
        return [found[layer] for layer in self.layers]


def _crosses(module: nn.Module) -> Iterator[Attention]:
    """The cross-attentions inside a module, in order; parts of an attention are not listed."""
    for child in module.children():
        if not isinstance(child, Attention):
            yield from _crosses(child)
        elif child.site.use == "cross":
            yield child
