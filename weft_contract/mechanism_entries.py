"""Every entry of the tables of attentions and mixers, behind one interface.

A new line in a table becomes an entry here, with its default options, for every use it declares. `VARIANTS` lists further
options to test. Shapes: B rows · T queries · S keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from weft.attention import ATTENTIONS
from weft.attention.base import Attended, Facts, Site, Use
from weft.attention.mixers import MIXERS, build_self
from weft.config.registry import build, find_table, load
from weft.data.batch import Layout
from weft.layers.decoder_state import State

Module = TypeVar("Module", bound=nn.Module)

DIM, HEADS, MEMORY = 16, 4, 24
"""Model width, number of heads, and (in cross use) memory width."""

EXTENT, LENGTHS = 71, (71, 26, 65, 1)
"""Rows longer than any block (such as 64 and 2 × 32), with lengths that are not multiples of one."""

QUERIES = 37

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "full": {
        "rotary": {"position": "rotary"},
        "alibi": {"position": "alibi"},
        "shaw": {"position": "shaw", "shaw_distance": 5},
        "one-head": {"site.heads": 1},
    },
    "xl_relative": {"near": {"max_distance": 5}},
    "local": {"window-3": {"window": 3}},
    "strided": {"stride-3": {"stride": 3}},
    "fixed": {"block-5": {"block": 5, "summary": 2}},
    "global": {"three": {"tokens": 3}, "every-7": {"tokens": 0, "every": 7}},
    "random": {"block-8": {"block": 8, "blocks": 2}},
    "longformer": {
        "window-3": {"window": 3, "tokens": 2},
        "end": {"window": 3, "last": 3},
        "learned": {"window": 3, "learned": 2},
    },
    "bigbird": {
        "window-3": {"window": 3, "block": 8, "blocks": 1},
        "rules": {"window": 3, "every": 20, "last": 2, "block": 8, "blocks": 1, "learned": 3},
    },
    "joined": {"sparse": {"patterns": [{"kind": "local", "window": 3}, {"kind": "strided", "stride": 4}]}},
    "mixed": {"four": {"heads": [{"kind": "local", "window": 3}, {"kind": "strided", "stride": 4}, "full", "global"]}},
    "performer": {"few": {"features": 5, "orthogonal": False}},
    "linformer": {"rank-30": {"rank": 30, "share": "none", "max_length": 75}, "one-mix": {"rank": 80, "share": "key_value"}},
    "compressed": {"stride-5": {"stride": 5}, "stride-1": {"stride": 1}},
    "parts": {
        "weights": {"parts": [{"kind": "local", "window": 3}, {"kind": "full", "position": "alibi"}]},
        "mixers": {"parts": ["convolution", {"kind": "lsh", "window": 3, "buckets": 4}]},
    },
    "synthesizer": {
        "random": {"form": "random"},
        "fixed": {"form": "fixed"},
        "factored-dense": {"form": "factored_dense", "layers": 1},
        "factored-random": {"form": "factored_random", "rank": 3},
    },
    "additive": {"hidden-7": {"hidden": 7}},
    "dot": {"scaled": {"scale": True}},
    "local_m": {"window-2-concat": {"window": 2, "score": "concat"}},
    "local_p": {"window-3-dot": {"window": 3, "score": "dot"}},
    "key_value": {"one-part": {"parts": 1}, "predict": {"parts": 3}, "span-3": {"span": 3}},
    "monotonic": {
        "forced": {"forced": True},
        "hold": {"hold": True},
        "forced-hold": {"forced": True, "hold": True},
        "total": {"stops": "total", "bias": -2.0},
    },
    "location_aware": {
        "sharp": {"sharpening": 2.0, "top": 3},
        "window-4": {"window": 4, "width": 5},
        "coverage": {"coverage": True, "filters": 1, "width": 1},
    },
    "recurrent": {"two-layers": {"layers": 2}, "lstm": {"cell": "lstm"}, "plain": {"cell": "rnn"}, "sru": {"cell": "sru"}},
    "convolution": {"width-5": {"width": 5}},
    "lsh": {"narrow": {"window": 3, "buckets": 4, "rounds": 3}},
    "routing": {"narrow": {"window": 3, "clusters": 3}},
    "sinkhorn": {"small": {"block": 11, "max_length": 430}},
    "fnet": {"published": {"norm": "none"}},
    "aft": {
        "local": {"form": "local", "window": 4},
        "full": {"form": "full"},
        "full-matrix": {"form": "full", "rank": 0},
        "conv": {"form": "conv", "window": 5},
    },
    "gmlp": {"hidden-20": {"hidden": 20}},
    "gat": {"distance-4": {"distance": 4}},
    "isab": {"points-3": {"points": 3}},
}
"""kind → name → options (and `site.heads`, which belongs to the site)."""

ENCODER_ONLY = (("longformer", "end"), ("longformer", "learned"), ("bigbird", "rules"))
REFUSED = [
    *(("full", options, "cross") for options in VARIANTS["full"].values() if "position" in options),
    *((kind, VARIANTS[kind][name], "causal") for kind, name in ENCODER_ONLY),
    ("key_value", VARIANTS["key_value"]["span-3"], "cross"),
]
"""Uses that an option rules out although the kind supports them."""


@dataclass(frozen=True)
class Variant:
    """A part of a table with some options, which `variant` names."""

    kind: str
    variant: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join(filter(None, [self.kind, self.variant]))


@dataclass(frozen=True)
class Entry:
    """One mechanism with its options in one use; `wrapped`: an attention in the self slot of a block."""

    kind: str
    use: Use
    variant: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    heads: int = HEADS
    wrapped: bool = False

    def __str__(self) -> str:
        return "-".join(filter(None, ["mixer" if self.wrapped else "", self.kind, self.variant, self.use]))

    def make(self, *, seed: int = 0, dropout: float = 0.0, train: bool = False) -> Mechanism:
        """The mechanism with random weights, biases included."""
        memory = MEMORY if self.use == "cross" else None
        site = Site(self.use, DIM, self.heads, memory=memory, dropout=dropout, predicts=not self.wrapped)
        spec = {"kind": self.kind, **self.options}
        torch.manual_seed(seed)
        part = build("weft.attention:ATTENTIONS", spec, site) if self.direct else build_self(spec, site)
        return Mechanism(perturbed(part, 0.1).train(train), self.use, self.direct)

    def steps(self) -> MechanismSteps:
        return MechanismSteps(self.make())

    @property
    def direct(self) -> bool:
        """Whether it is called through the interface of attentions."""
        return self.kind in find_table("weft.attention:ATTENTIONS") and not self.wrapped

    @property
    def facts(self) -> Facts:
        part: Facts = self.make().part
        return part


@dataclass
class Mechanism:
    """A mechanism of either table behind one interface. Tests vary `keys`, the tokens that are attended to."""

    part: Any
    use: Use
    direct: bool

    def init_state(
        self, rows: int, memory: Tensor | None = None, layout: Layout | None = None, room: int | None = None
    ) -> State:
        return (
            self.part.init_state(memory, layout, rows=rows, room=room)
            if self.direct
            else self.part.init_state(rows=rows, room=room)
        )

    def feed(self, x: Tensor, state: State, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        if self.direct and self.use != "cross":
            return self.part(x, state, append=x, layout=layout, need_weights=need_weights)
        return self.part(x, state, layout=layout, need_weights=need_weights)

    def attend(
        self, keys: Tensor, layout: Layout | None = None, *, queries: Tensor | None = None, need_weights: bool = False
    ) -> Attended:
        """Computes everything at once. In self use the keys are the queries; in cross use the queries are given, or fixed.

        Every call draws the same random numbers in training, so that two calls can be compared.
        """
        if self.part.training:
            torch.manual_seed(7)
        if self.use != "cross":
            return self.feed(keys, self.init_state(keys.size(0)), layout, need_weights)
        queries = vectors(keys.size(0), QUERIES, DIM, seed=5).to(keys) if queries is None else queries
        return self.feed(queries, self.init_state(keys.size(0), keys, layout), None, need_weights)

    def keys(self, rows: int = len(LENGTHS), extent: int = EXTENT, seed: int = 1) -> Tensor:
        return vectors(rows, extent, MEMORY if self.use == "cross" else DIM, seed)

    def real(self, context: Tensor, layout: Layout) -> Tensor:
        """The outputs of real queries."""
        return context if self.use == "cross" else context[layout.mask]


@dataclass
class MechanismSteps:
    """A mechanism fed step by step, as `decoding_state_checks` expects. In cross use every source has its memory."""

    mechanism: Mechanism
    extent: int = EXTENT

    def draw(self, rows: int, count: int, seed: int) -> Tensor:
        return vectors(rows, count, DIM, seed)

    @torch.no_grad()
    def init_state(self, sources: Tensor, room: int | None = None) -> State:
        if self.mechanism.use != "cross":
            return self.mechanism.init_state(len(sources), room=room)
        memory, layout = self.mechanism.keys(), Layout.padded(LENGTHS)
        return self.mechanism.init_state(len(sources), memory[sources], layout.select(sources), room)

    @torch.no_grad()
    def feed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Tensor, State]:
        found = self.mechanism.feed(tokens, state, layout)
        return found.context, found.state


def perturbed(module: Module, by: float = 0.5) -> Module:
    """The module with every parameter moved from its initial value, in evaluation mode."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += by * torch.randn_like(parameter)
    return module.eval()


def vectors(rows: int, extent: int, width: int, seed: int) -> Tensor:
    return 2 * torch.randn(rows, extent, width, generator=torch.Generator().manual_seed(seed))


def same(a: Tensor, b: Tensor, what: str = "", atol: float = 2e-5) -> None:
    """Asserts equality up to float32 rounding."""
    if a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, atol=atol, rtol=1e-3):
        return  # ten times as fast as to prepare a message
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3, msg=lambda text: f"{what}: {text}")


def facts_of(kind: str) -> type[Facts]:
    """The class of an attention or mixer, built in or installed."""
    part: type[Facts] = load(find_table("weft.attention.mixers:SELF"), kind)
    return part


def entries(attentions: Collection[str] = ATTENTIONS, mixers: Collection[str] = MIXERS) -> Iterator[Entry]:
    """The attentions, then everything that a self slot accepts. By default these are all that are built in."""
    for kind in attentions:
        yield from _of_kind(kind, wrapped=False)
    for kind in (*attentions, *mixers):
        yield from _of_kind(kind, wrapped=kind in attentions)


def _of_kind(kind: str, wrapped: bool) -> Iterator[Entry]:
    refused = [(name, options, use) for name, options, use in REFUSED if name == kind]
    # The adapter of a self slot does not depend on options, so the defaults are enough.
    variants = {"": {}} if wrapped else {"": {}, **VARIANTS.get(kind, {})}
    for use in sorted(facts_of(kind).uses - ({"cross"} if wrapped else set())):
        for variant, given in variants.items():
            options = {name: value for name, value in given.items() if name != "site.heads"}
            if (kind, options, use) not in refused:
                yield Entry(kind, use, variant, options, given.get("site.heads", HEADS), wrapped)
