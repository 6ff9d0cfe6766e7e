"""Every attention and mixer of a model, with what can be seen of it on one pair of texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from weft.attention import ATTENTIONS
from weft.attention.base import Facts
from weft.explain.explanation import Look
from weft.explain.influence import inputs_of, mixer_influence, source_influence
from weft.explain.text import Weights
from weft.inference.teacher_forcing import Forced, force
from weft.mixers import MIXERS
from weft.mixers.base import Mixer, SelfAttention
from weft.models.base import Model

LESS = "{kind}: the weights of a row sum to one or less"
MOVED = (
    "{kind} has no weights to show: this is how far what it finds at each row moves when the token of a column is taken away"
)
SAID = "no weights, but how much the log-probability of each token changes when a source token is replaced by <unk>"
ORDER = ("cross", "encoder", "causal")
PART = re.compile(r"\.(?:encoders|decoders)\.(\d+)\.")


@dataclass(frozen=True)
class Slot:
    """A place in a model where tokens are mixed or looked at; model: its number in an ensemble; layer: counted from 1."""

    name: str
    part: Facts
    model: int | None
    layer: int

    @property
    def use(self) -> str:
        return self.part.site.use

    @property
    def title(self) -> str:
        return f"layer {self.layer}" if self.model is None else f"model {self.model}, layer {self.layer}"

    @property
    def kind(self) -> str:
        """What a configuration calls the mechanism."""
        part = self.part.attention if isinstance(self.part, SelfAttention) else self.part
        place = f"{type(part).__module__}:{type(part).__name__}"
        return next((kind for kind, path in {**ATTENTIONS, **MIXERS}.items() if path == place), type(part).__name__)


def find_slots(model: Model) -> list[Slot]:
    """The attentions and mixers of a model; not those that others are made of."""
    found: list[Slot] = []
    layers: Counter[tuple[int | None, str]] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, Facts) and not any(name.startswith(f"{outer.name}.") for outer in found):
            part = PART.search(name)
            place = (int(part[1]) + 1 if part else None, module.site.use)
            layers[place] += 1
            found.append(Slot(name, module, place[0], layers[place]))
    return found


def look_closely(
    model: Model,
    source: Sequence[int],
    target: Sequence[int],
    *,
    influence: bool | None = None,
    uses: Sequence[str] = ORDER,
) -> tuple[Forced, list[Look]]:
    """Teacher forcing, and every look there is on the way, of these uses; those at the source first.

    `influence`: also how much each token depends on those of the source; None: where nothing shows weights over the source.
    """
    slots = [slot for slot in find_slots(model) if slot.use in uses]
    with inputs_of({slot.name: slot.part for slot in slots if isinstance(slot.part, Mixer)}) as given:
        forced = force(model, source, target)
    counts = {"encoder": (len(source), len(source)), "cross": (len(target), len(source)), "causal": (len(target),) * 2}
    looks = []
    for slot in slots:
        rows, columns = counts[slot.use]
        weights = _recorded(slot.name, forced.weights, rows)
        if weights is not None:
            note = LESS.format(kind=slot.kind) if slot.part.weights_sum == "at most one" else ""
            aligned = weights.shape[-1] == columns
            looks.append(Look(slot.name, slot.title, slot.kind, slot.part.site.use, "weights", weights, note, aligned))
    shown = {look.name for look in looks}
    asked = not any(look.use == "cross" for look in looks) if influence is None else influence
    blind = [slot for slot in slots if slot.name not in shown]
    looks += [look for slot in blind for look in _within(slot, given)]
    looks += _over_source(model, source, target, [slot for slot in blind if slot.use == "cross"], asked)
    return forced, sorted(looks, key=lambda look: ORDER.index(look.use))


def _recorded(slot: str, tape: Mapping[str, Weights], rows: int) -> Weights | None:
    """[H, rows, columns] of the attention in a slot, or of the first inside it that looks from every row."""
    inside = (weights for name, weights in tape.items() if name == slot or name.startswith(f"{slot}."))
    return next((weights for weights in inside if weights.shape[1] == rows), None)


def _over_source(model: Model, source: Sequence[int], target: Sequence[int], blind: Sequence[Slot], asked: bool) -> list[Look]:
    """Influence in place of weights: of the whole model where it is asked for, and of each cross slot without weights."""
    if not (blind or asked):
        return []
    moved = source_influence(model, source, target, {slot.name: slot.part for slot in blind})
    looks = [_moved(slot, moved[slot.name]) for slot in blind if slot.name in moved]
    if asked:
        looks.insert(0, Look("", "whole model", type(model).__name__, "cross", "influence", moved[""][None], SAID))
    return looks


def _within(slot: Slot, given: Mapping[str, Tensor]) -> list[Look]:
    """The influence of tokens of one sequence on each other, where a mixer shows no weights."""
    if not isinstance(slot.part, Mixer) or slot.name not in given:
        return []
    return [_moved(slot, mixer_influence(slot.part, given[slot.name]))]


def _moved(slot: Slot, shares: Weights) -> Look:
    use = slot.part.site.use
    return Look(slot.name, slot.title, slot.kind, use, "influence", shares[None], MOVED.format(kind=slot.kind))
