"""The attention maps of a model for one sentence pair: weights where a mechanism has them, influence elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from weft.attention.base import Facts, Mixer, SelfAttention, View
from weft.config.registry import find_table
from weft.explain.explanation import SIDES, AttentionMap, Weights
from weft.explain.input_influence import mixer_influence, observed, source_influence
from weft.inference.teacher_forcing import TeacherForced, teacher_force
from weft.models.base import Model

AT_MOST_ONE = "{kind}: the weights of a row sum to one or less"
MECHANISM = "{kind} has no weights to show; this is how far its output at each row moves when the token of a column is removed"
WHOLE_MODEL = "not weights, but the change of each token's log-probability when a source token is replaced by <unk>"
ORDER = ("cross", "encoder", "causal", "target")
PART = re.compile(r"\.(?:encoders|decoders)\.(\d+)\.")


@dataclass(frozen=True)
class Slot:
    """An attention or mixer in a model. model: number in an ensemble, from 1 · layer: counted from 1."""

    name: str
    part: Facts
    model: int | None
    layer: int

    @property
    def use(self) -> View:
        return self.part.site.view

    @property
    def title(self) -> str:
        return f"layer {self.layer}" if self.model is None else f"model {self.model}, layer {self.layer}"

    @property
    def kind(self) -> str:
        """The name of the mechanism in a configuration."""
        part = self.part.attention if isinstance(self.part, SelfAttention) else self.part
        path = f"{type(part).__module__}:{type(part).__name__}"
        return next(
            (kind for kind, entry in find_table("weft.attention.mixers:SELF").items() if entry == path), type(part).__name__
        )

    def influence(self, shares: Weights) -> AttentionMap:
        """The map of a mechanism without weights, from the influence [rows, columns] of its tokens."""
        note = MECHANISM.format(kind=self.kind)
        return AttentionMap(self.name, self.title, self.kind, self.use, "influence", shares[None], note)


def find_slots(model: Model) -> list[Slot]:
    """Lists the attentions and mixers of a model, without those nested inside others."""
    slots: list[Slot] = []
    layers: Counter[tuple[int | None, str]] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, Facts) and not any(name.startswith(f"{outer.name}.") for outer in slots):
            part = PART.search(name)
            stack = (int(part[1]) + 1 if part else None, module.site.view)
            layers[stack] += 1
            slots.append(Slot(name, module, stack[0], layers[stack]))
    return slots


def find_maps(
    model: Model, source: Sequence[int], target: Sequence[int], *, influence: bool | None = None, uses: Sequence[str] = ORDER
) -> tuple[TeacherForced, list[AttentionMap]]:
    """Runs teacher forcing and returns its result with the attention maps of these uses, cross-attention first.

    influence: add the influence of source tokens on the whole model; None: only if no cross-attention has weights.
    """
    slots = [slot for slot in find_slots(model) if slot.use in uses]
    mixers = {slot.name: slot.part for slot in slots if isinstance(slot.part, Mixer)}
    inputs: dict[str, Tensor] = {}
    with observed(mixers, lambda name, x, _: inputs.update({name: x})):
        forced = teacher_force(model, source, target)
    texts = {"source": len(source), "target": len(target), "previous target": len(target)}
    counts = {use: (texts[rows], texts[columns]) for use, (rows, columns) in SIDES.items()}
    maps = []
    for slot in slots:
        rows, columns = counts[slot.use]
        # A slot may hold nested attentions: take the first that has all rows.
        inside = (weights for name, weights in forced.weights.items() if f"{name}.".startswith(f"{slot.name}."))
        weights = next((weights for weights in inside if weights.shape[1] == rows), None)
        if weights is not None:
            note = AT_MOST_ONE.format(kind=slot.kind) if slot.part.weights_sum == "at most one" else ""
            aligned = weights.shape[-1] == columns
            maps.append(AttentionMap(slot.name, slot.title, slot.kind, slot.use, "weights", weights, note, aligned))
    recorded = {each.name for each in maps}
    whole = not any(each.use == "cross" for each in maps) if influence is None else influence
    if model.decoder.parallel:
        return forced, sorted(maps, key=lambda each: ORDER.index(each.use))
    weightless = [slot for slot in slots if slot.name not in recorded]
    mixing = [slot for slot in weightless if slot.name in inputs]
    maps += [slot.influence(mixer_influence(mixers[slot.name], inputs[slot.name])) for slot in mixing]
    maps += _source_maps(model, source, target, [slot for slot in weightless if slot.use == "cross"], whole)
    return forced, sorted(maps, key=lambda each: ORDER.index(each.use))


def _source_maps(
    model: Model, source: Sequence[int], target: Sequence[int], slots: Sequence[Slot], whole: bool
) -> list[AttentionMap]:
    """Returns the influence of source tokens on each of these cross-attentions and, if `whole`, on the whole model."""
    if not (slots or whole):
        return []
    shares = source_influence(model, source, target, {slot.name: slot.part for slot in slots})
    maps = [slot.influence(shares[slot.name]) for slot in slots if slot.name in shares]
    if whole:
        name = type(model).__name__
        maps.insert(0, AttentionMap("", "whole model", name, "cross", "influence", shares[""][None], WHOLE_MODEL))
    return maps
