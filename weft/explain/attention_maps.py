"""The attention maps of a model for one sentence pair: weights where a mechanism has them, influence elsewhere.

To measure the influence of a token on others, it is replaced. Shapes: T target tokens · S source tokens · D width.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Facts, Mixer, SelfAttention, View
from weft.config.registry import find_table
from weft.data.batch import BOS, UNK, Source
from weft.decoding.score_given_targets import TeacherForced, teacher_force
from weft.explain.explanation import SIDES, AttentionMap, Side, Weights, fed, shown
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


TOKENS = 16_384
"""Maximum number of tokens in one forward pass."""

LARGEST = 30.0
"""Upper bound of a change, in nats: without its source, a word that could only be copied has probability 0."""


@contextmanager
def observed(modules: Mapping[str, nn.Module], note: Callable[[str, Any, Any], object]) -> Iterator[None]:
    """Inside this context, `note` receives the name, first argument and output of each call of these modules."""

    def hook(name: str, _: nn.Module, args: Any, output: Any) -> None:
        note(name, args[0], output)

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(partial(hook, name)).remove)
        yield


@torch.inference_mode()
def mixer_influence(mixer: Mixer, x: Tensor) -> Weights:
    """[T, T]: how far a mixer's output at each token (row) moves when a token (column) is replaced by the mean of all.

    x [1, T, D]: the mixer's input. Rows sum to one.
    """

    def context(x: Tensor) -> Tensor:
        attended: Attended = mixer(x, mixer.init_state(rows=x.size(0)))
        return attended.context.float()

    length, base = x.size(1), context(x)
    moved = []
    for places in torch.arange(length, device=x.device).split(max(1, TOKENS // length)):
        batch = x.repeat(places.numel(), 1, 1)
        batch[torch.arange(places.numel(), device=x.device), places] = x.mean((0, 1))
        moved.append((context(batch) - base).norm(dim=-1))
    return _shares(torch.cat(moved).T)


@torch.inference_mode()
def source_influence(
    model: Model, source: Sequence[int], target: Sequence[int], watched: Mapping[str, nn.Module]
) -> dict[str, Weights]:
    """Returns arrays [T, S]: the change at each target token when a source token is replaced by UNK. Rows sum to one.

    The key "" holds the change of the token's log-probability; the name of each watched attention holds that of its context.
    """
    device, count = model.device, len(source)
    ids = torch.tensor([list(source)] * (count + 1), device=device)
    ids[torch.arange(1, count + 1), torch.arange(count)] = UNK
    inputs, labels = (torch.tensor([row], device=device) for row in ([BOS, *target[:-1]], list(target)))
    base: dict[str, Tensor] = {}
    moved: dict[str, list[Tensor]] = {}
    size = max(1, TOKENS // (count + len(target)))
    for rows in [ids[:1], *ids[1:].split(size)]:
        for name, values in _run(model, rows, inputs.expand(len(rows), -1), labels.expand(len(rows), -1), watched).items():
            if name in base:
                moved.setdefault(name, []).append((values - base[name]).norm(dim=-1).clamp_max(LARGEST))
            else:
                base[name] = values
    return {name: _shares(torch.cat(each).T) for name, each in moved.items()}


def _run(model: Model, source: Tensor, inputs: Tensor, labels: Tensor, watched: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Returns tensors [B, T, …]: the log-probabilities of the target, and the context of each watched attention."""
    contexts: dict[str, list[Tensor]] = {name: [] for name in watched}
    with observed(watched, lambda name, _, attended: contexts[name].append(attended.context.float())):
        logits = model.decoder(inputs, model.decoder.init_state(model.encode(Source(source)))).logits
    logp = logits.float().log_softmax(-1).gather(-1, labels[..., None]).clamp_min(-LARGEST)
    return {"": logp, **{name: torch.cat(each, 1) for name, each in contexts.items() if each}}


def _shares(moved: Tensor) -> Weights:
    """Divides rows by their sums. A row without any change stays 0."""
    return np.asarray((moved / moved.sum(-1, keepdim=True).clamp_min(1e-12)).float().cpu())


@dataclass(frozen=True)
class TextAxes:
    """Names for the axes of the steps of a model that reads and writes text: tokens of the source and of the target.

    vocabulary: a readable text for each of some ids.
    """

    slots: Sequence[Slot]
    source: Side
    target: Side
    vocabulary: Callable[[Sequence[int]], list[str]]

    def __call__(self, step: str, axis: str, size: int) -> Sequence[str] | None:
        if axis == "vocabulary":
            return [shown(token) for token in self.vocabulary(range(size))]
        if axis not in ("query", "key", "token"):
            return None
        texts = {"source": self.source, "target": self.target, "previous target": fed(self.target)}
        found = (texts[name].tokens for name in self._sides(step, axis))
        return next(([shown(token) for token in tokens] for tokens in found if len(tokens) == size), None)

    def _sides(self, step: str, axis: str) -> Sequence[str]:
        """The texts that may lie along an axis, the likeliest first."""
        slot = next((slot for slot in self.slots if step.startswith(f"{slot.name}.")), None)
        if slot is not None:
            rows, columns = SIDES[slot.use]
            return {"query": [rows], "key": [columns], "token": [columns, rows]}[axis]
        if "decoder" not in step.split("."):
            return ["source"]
        return ["previous target" if ".embedding." in step else "target"]
