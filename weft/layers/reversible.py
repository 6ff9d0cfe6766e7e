"""Reversible residual layers, whose activations training does not store (Gomez et al. 2017; Kitaev et al. 2020).

There are two streams, both initially the input. Sub-layers alternate: each reads one stream and adds its output to the other,
(a, b) → (b, a + f(b)). The streams before a sub-layer follow from those after it, a = b′ − f(a′), by running it once more. The
backward pass does so from the last sub-layer to the first. Only the two final streams are stored, at any depth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.layers.decoder_state import State


@dataclass
class Added:
    """The output of a sub-layer: a value to add to a stream; extras by name, summed over sub-layers; and a state."""

    value: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)
    state: State = None


class SubLayer:
    """A function of one stream, and all other tensors that it may send a gradient to."""

    def __init__(self, run: Callable[[Tensor], Added], modules: Sequence[nn.Module], tensors: Sequence[Tensor] = ()) -> None:
        self.run = run
        weights = [weight for module in modules for weight in module.parameters()]
        self.sources = [each for each in (*weights, *tensors) if each.requires_grad]


@dataclass
class ReversibleStreams:
    """The two streams after all sub-layers, the sums of their extras, and the state of each sub-layer."""

    a: Tensor
    b: Tensor
    extras: dict[str, Tensor]
    states: list[State]

    @property
    def mean(self) -> Tensor:
        return (self.a + self.b) / 2


def run_reversible(x: Tensor, sublayers: Sequence[SubLayer]) -> ReversibleStreams:
    """Runs x [B, T, D] through two or more sub-layers. States carry no gradient.

    With gradients, the streams are float32 at least: in bf16 they could not be recomputed exactly enough.
    """
    sources = list({id(each): each for sublayer in sublayers for each in sublayer.sources}.values())
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in (x, *sources)):
        return _forward(x, sublayers)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    passed = _Pass(sublayers, sources, x.device)
    a, b, *extras = _Recompute.apply(passed, x, *sources)
    return ReversibleStreams(a, b, dict(zip(passed.names, extras, strict=True)), passed.states)


def _forward(x: Tensor, sublayers: Sequence[SubLayer], before: Callable[[], None] = lambda: None) -> ReversibleStreams:
    """The plain computation; `before` is called before each sub-layer."""
    streams = ReversibleStreams(x, x, {}, [])
    for sublayer in sublayers:
        before()
        added = sublayer.run(streams.b)
        streams.a, streams.b = streams.b, streams.a + added.value
        for name, term in added.extras.items():
            streams.extras[name] = streams.extras[name] + term if name in streams.extras else term
        streams.states.append(added.state)
    return streams


class _Pass:
    """The conditions of the forward pass, under which the backward pass runs each sub-layer again."""

    def __init__(self, sublayers: Sequence[SubLayer], sources: list[Tensor], device: torch.device) -> None:
        self.sublayers, self.sources, self.device = sublayers, sources, device
        self.enabled = torch.is_autocast_enabled(device.type)
        self.dtype = torch.get_autocast_dtype(device.type)
        self.draws: list[list[Tensor]] = []
        self.names: list[str] = []
        self.states: list[State] = []

    def autocast(self) -> torch.autocast:
        """The autocast state of the forward pass. The cache is off, since weights cast without gradients must not be reused."""
        return torch.autocast(self.device.type, self.dtype, self.enabled, cache_enabled=False)

    def save_generators(self) -> None:
        """Called before each sub-layer: sub-layers run in reverse cannot continue from a single snapshot."""
        on_device = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        self.draws.append([torch.get_rng_state(), *on_device])

    def rewind(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.device)


class _Recompute(torch.autograd.Function):
    """All sub-layers as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, passed: _Pass, x: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        with passed.autocast():
            streams = _forward(x, passed.sublayers, passed.save_generators)
        ctx.passed, passed.names, passed.states = passed, list(streams.extras), streams.states
        ctx.save_for_backward(streams.a, streams.b)
        return streams.a, streams.b, *streams.extras.values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        passed: _Pass = ctx.passed
        a, b = ctx.saved_tensors
        da, db, *rest = grads
        dterms = dict(zip(passed.names, rest, strict=True))
        total: dict[int, Tensor] = {}
        with torch.random.fork_rng([passed.device] if passed.device.type == "cuda" else []):
            for sublayer, draws in zip(reversed(passed.sublayers), reversed(passed.draws), strict=True):
                passed.rewind(draws)
                value, dx, grads_of_sources = _undo(passed, sublayer, a, db, dterms)
                a, b, da, db = b - value, a, db, da + dx
                for source, grad in zip(sublayer.sources, grads_of_sources, strict=True):
                    if grad is not None:
                        total[id(source)] = total[id(source)] + grad if id(source) in total else grad
        return None, da + db, *(total.get(id(source)) for source in passed.sources)


def _undo(
    passed: _Pass, sublayer: SubLayer, x: Tensor, grad: Tensor, dterms: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    """Recomputes a sub-layer's value at x; also returns the gradients of its input and sources, given that of its value."""
    x = x.detach().requires_grad_()
    with torch.enable_grad(), passed.autocast():
        added = sublayer.run(x)
    pairs = [(added.value, grad), *((term, dterms[name]) for name, term in added.extras.items())]
    pairs = [(output, back.to(output.dtype)) for output, back in pairs if output.requires_grad]
    outputs, slopes = zip(*pairs, strict=True)
    dx, *grads = torch.autograd.grad(outputs, [x, *sublayer.sources], slopes, allow_unused=True)
    return added.value.detach(), torch.zeros_like(x) if dx is None else dx, grads
