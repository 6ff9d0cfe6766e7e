"""Segment-level recurrence: state that a language model carries from one segment of a text to the next.

Shapes: B rows · T tokens of a segment · M remembered tokens · D width.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from weft.data.batch import TextBatch
from weft.errors import ConfigError
from weft.layers.decoder_state import State, detach, leaves, refill, write_
from weft.models.base import HiddenStates
from weft.models.language_model import LanguageModel

Kind = Literal["nothing", "memory", "state"]


@dataclass(frozen=True)
class SegmentRecurrence:
    """The state that is carried into the next segment.

    nothing: each segment starts afresh. memory: every layer keeps its inputs of the last `memory` tokens, without gradient, and
    attends to them with its current weights (Dai et al. 2019, section 3.2). state: every layer continues with its state,
    without gradient; this needs layers whose state has a fixed size, such as recurrent layers and running sums.
    """

    kind: Kind
    memory: int = 0

    def read(self, model: LanguageModel, tokens: Tensor, carried: State = None) -> tuple[HiddenStates, State]:
        """The hidden states of a segment [B, T], given the carried state (None: none), and the state to carry on."""
        decoder = model.decoder
        if carried is None:
            state = decoder.init_state(model.nothing(tokens.size(0)))
        else:
            state = decoder.recall(carried) if self.kind == "memory" else carried
        features, inputs = decoder.read(tokens, state)
        if self.kind == "state":
            return features, detach(features.state)
        if self.kind == "nothing" or self.memory == 0:
            return features, None
        # The last M inputs of every layer, [B, M, D].
        both = inputs if carried is None else [torch.cat(pair, 1) for pair in zip(carried, inputs, strict=True)]
        return features, [each[:, -self.memory :].detach() for each in both]

    def restore(self, model: LanguageModel, tensors: Sequence[Tensor]) -> State:
        """The carried state, from its tensors in order."""
        if self.kind == "memory":
            return list(tensors)
        return refill(model.decoder.init_state(model.nothing(tensors[0].size(0))), tensors)

    def check(self, model: LanguageModel, segment: int) -> None:
        """Raises ConfigError if a model cannot read a text in this way."""
        needed = segment + (self.memory if self.kind == "memory" else 0)
        if model.max_target is not None and needed > model.max_target:
            raise ConfigError(
                f"task.segment: {needed:,} tokens, with the memory, are more than the model's {model.max_target:,}; "
                "lower task.segment or task.memory, or raise max_length of the model or of its decoder_self"
            )
        if self.kind != "nothing" and model.position != "none":
            raise ConfigError(
                f"model.position: {model.position} positions count from the beginning of a segment, so those of the carried "
                "tokens would be wrong; use position: none with a decoder_self that knows distances (xl_relative, full with "
                "position: rotary) or order (recurrent), or task.carry: nothing"
            )
        if self.kind == "state" and _grows(model):
            raise ConfigError(
                "task.carry: state: with this model the state grows with the text; use carry: memory, which keeps the last "
                "task.memory tokens, a decoder_self whose state has a fixed size (recurrent, convolution, linear), or, with "
                "rnn_language_model, attention key_value with a span"
            )


class StreamStates:
    """The carried states of the streams of a text, by their group, between the batches of training."""

    def __init__(self, carrying: SegmentRecurrence) -> None:
        self.carrying = carrying
        self._carried: dict[int, State] = {}
        self._waiting: dict[int, list[Tensor]] = {}

    def before(self, model: LanguageModel, batch: TextBatch) -> State:
        """The state carried into a batch: none if its streams begin; after a resume, the state in the checkpoint."""
        waiting = self._waiting.pop(batch.group, None)
        if batch.fresh:
            return None
        if waiting is not None and waiting[0].size(0) == batch.tokens.size(0):
            return self.carrying.restore(model, [tensor.to(model.device) for tensor in waiting])
        return self._carried.get(batch.group)

    def carry(self, batch: TextBatch, after: State, loss: Tensor) -> None:
        """Keeps the state after a batch; in place if it can, because a captured graph reads it from there.

        If the loss is not finite, the step is skipped, and the state before the batch stays, or zeros if there is none. The
        device decides, without waiting.
        """
        before = self._carried.get(batch.group)
        old, new = ([(leaf.shape, leaf.dtype) for leaf in leaves(state)] for state in (before, after))
        in_place = before is not None and old == new
        kept = leaves(before) if in_place and not batch.fresh else [torch.zeros_like(leaf) for leaf in leaves(after)]
        pairs = zip(leaves(after), kept, strict=True)
        after = refill(after, [torch.where(loss.isfinite(), leaf, other) for leaf, other in pairs])
        self._carried[batch.group] = write_(before, after) if in_place else after

    def extra_state(self) -> dict[str, Tensor]:
        return {
            f"{self.carrying.kind}/{group}/{place}": leaf.clone()
            for group, state in self._carried.items()
            for place, leaf in enumerate(leaves(state))
        }

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        groups: dict[int, dict[int, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            kind, group, place = name.split("/")
            if kind == self.carrying.kind:  # the setting may have changed since
                groups[int(group)][int(place)] = tensor
        self._waiting = {group: [places[place] for place in sorted(places)] for group, places in groups.items()}


@torch.no_grad()
def _grows(model: LanguageModel) -> bool:
    """Whether the state grows with the number of tokens."""
    was_training, _ = model.training, model.eval()
    before = model.decoder.init_state(model.nothing(1))
    sizes = [leaf.shape for leaf in leaves(before)]
    after = model.decoder.hidden_states(torch.zeros(1, 2, dtype=torch.long, device=model.device), before).state
    model.train(was_training)
    return [leaf.shape for leaf in leaves(after)] != sizes
