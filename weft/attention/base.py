"""Interfaces of attention mechanisms, and of mixers: x → x, without a separate query.

Shapes: B rows · T query positions · S key positions · H heads · D model width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from weft.config.plugins import RenamedMembers
from weft.data.batch import Layout
from weft.errors import ConfigError, DataError
from weft.layers.decoder_state import State
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.recurrent import repack, unpack

Use = Literal["encoder", "causal", "cross"]
View = Literal["encoder", "causal", "cross", "target"]
"""Labels of attention weights: the use of a mechanism, or target, if all target tokens see each other."""


@dataclass(frozen=True)
class Site:
    """The place a mechanism is built for: what the model decides, as opposed to the options that a user sets.

    dim is the width of queries and outputs, memory the width of the attended source (cross use only), and dropout the share of
    weights dropped in training. predicts: the model predicts from `Attention.predicting`, not from the whole state. side: whose
    tokens attend; a decoder that writes all tokens at once has encoder use on the target side.
    """

    use: Use
    dim: int
    heads: int = 1
    memory: int | None = None
    dropout: float = 0.0
    predicts: bool = False
    side: Literal["source", "target"] = "source"

    @property
    def view(self) -> View:
        return "target" if self.side == "target" and self.use == "encoder" else self.use

    @property
    def memory_dim(self) -> int:
        return self.dim if self.memory is None else self.memory

    @property
    def head_dim(self) -> int:
        if self.dim % self.heads:
            raise ConfigError(
                f"a width of {self.dim} cannot be divided among {self.heads} heads; choose heads that divide the width"
            )
        return self.dim // self.heads


@dataclass
class Attended:
    """The output of a mechanism.

    context [B, T, context_width], which the surrounding model projects to its own width · weights [B, H, T, S] if requested and
    available · extras: unreduced quantities [B, T] by name, in training only; the task masks, weights and sums them.
    """

    context: Tensor
    state: State = None
    weights: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


def add_extras(extras: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Adds the extras of one more layer to `extras`, name by name."""
    for name, value in more.items():
        extras[name] = extras[name] + value if name in extras else value


class Facts(RenamedMembers, nn.Module):
    """Declared properties of a mechanism, each verified by the contract tests.

    Configuration checks, plots and the trainer, which decides whether to pack batches, read them. An option that changes a
    fact, as rotary positions change `ignores_key_order`, overrides it on the instance.

    paper: where it was published
    cost: operations of a layer over n tokens, as `weft list` shows them
    uses: any of encoder, causal and cross
    instead: for each unsupported use, the reason and an alternative
    weights_sum: the sum of the weights of a query; None if it shows no weights
    receptive_field: the keys that a query may see: all, those of a pattern of positions (`sees`), or those the data decides
    ignores_key_order: keys in another order give the same context
    supports_packing: the mechanism accepts packed rows
    packing_is_quadratic: it does, but forms all pairs of a packed row, which is correct but slow
    extras: names of what `Attended.extras` has in training, such as log_prob, entropy and coverage
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "packs": "supports_packing",
        "packs_square": "packing_is_quadratic",
        "reach": "receptive_field",
        "start": "init_state",
    }
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = "n²"
    uses: ClassVar[frozenset[str]] = frozenset()
    instead: ClassVar[dict[str, str]] = {}
    weights_sum: Literal["one", "at most one"] | None = None
    receptive_field: Literal["all", "pattern", "data"] = "all"
    ignores_key_order: bool = False
    supports_packing: bool = False
    packing_is_quadratic: bool = False
    extras: frozenset[str] = frozenset()

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.use not in self.uses:
            reason = f": {self.instead[site.use]}" if site.use in self.instead else ""
            supported = " or ".join(sorted(self.uses))
            raise ConfigError(f"{type(self).__name__} does not support {site.use} use, only {supported}{reason}")
        self.site = site
        self.max_length: int | None = None
        self.context_width: int = site.dim

    def sees(self, length: int) -> Tensor:
        """[length, length] bool: which keys each query may attend to by position. Used if `receptive_field` is "pattern"."""
        return torch.ones(length, length, dtype=torch.bool)

    @property
    def dropped(self) -> float:
        """The share of weights to drop now: none outside training."""
        return self.site.dropout if self.training else 0.0

    def check_length(self, tokens: Tensor, layout: Layout | None) -> None:
        """Raises a DataError if a sequence of tokens [B, T, …] is longer than `max_length`."""
        longest = tokens.size(1) if layout is None else layout.longest
        if self.max_length is not None and longest > self.max_length:
            raise DataError(
                f"{type(self).__name__} has {self.max_length} positions, but a sequence has {longest} tokens; "
                "raise its max_length and train again, or shorten the text"
            )

    def refresh(self, generator: torch.Generator) -> None:
        """Redraws or updates buffers. The trainer calls it after each step; nothing else changes a buffer."""


class Attention(Facts):
    """Queries attend to keys. One call handles a whole sequence, a chunk of it, or a single step.

    Self-attention always appends: `attention(x, attention.init_state(rows=B), append=x)`, where `append` is the query itself.
    Cross-attention passes memory to `init_state`. In causal use, memory given there is an earlier segment of the same sequence.
    `layout` describes queries and appended tokens alike; masked tokens count as never fed. A call consumes its
    state: to branch, select first. A mechanism defines `run`, and the states of its uses: `read` and `begin` with `extend`.
    """

    def init_state(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        """The initial state. `room` requests a store of fixed size that grows only through `weft.layers.decoder_state.grow`."""
        if self.site.use == "encoder":
            return None
        if self.site.use == "cross":
            assert memory is not None
            return self.read(memory, layout)
        state = self.begin(rows, room)
        return state if memory is None else self.extend(memory, state, layout)

    def forward(
        self,
        query: Tensor,
        state: State,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        """The context of queries [B, T, D], by `run`. Weights are computed only on request."""
        return self.run(query, state, append, layout, need_weights)

    def predicting(self, states: Tensor) -> Tensor:
        """The part of the states […, D] of a recurrent model that its output reads, besides the context: here all of it."""
        return states

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        """The state of a source, memory [G, S, M]; cross use. values [G, S, M]: what is averaged, if not the memory itself."""
        raise NotImplementedError

    def begin(self, rows: int, room: int | None) -> State:
        """The state before the first token; causal use."""
        raise NotImplementedError

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        """The state after tokens x [B, T, D], whose own contexts are not needed; causal use."""
        raise NotImplementedError

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        raise NotImplementedError


class Mixer(Facts, ABC):
    """Mixes the tokens of a row, all at once (encoder) or each with those before it (causal), in chunks of any size.

    reads_graph: tokens look at their neighbours alone if the data has edges (`Layout.graph`).
    """

    reads_graph: ClassVar[bool] = False

    def init_state(self, *, rows: int = 1, room: int | None = None) -> State:
        """The initial state; an encoder has none."""
        return None if self.site.use == "encoder" else self.begin(rows, room)

    def begin(self, rows: int, room: int | None) -> State:
        """The state before the first token; causal use."""
        return None

    @abstractmethod
    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        """x [B, T, D] → context [B, T, D]. Masked tokens count as never fed."""

    def recall(self, memory: Tensor) -> State:
        """The causal state after tokens [B, M, D] of an earlier segment, whose own outputs are not needed."""
        return self(memory, self.init_state(rows=memory.size(0))).state


class RowMixer(Mixer):
    """A mixer for one sentence per row. Packed rows are unpacked to padded rows, mixed, and packed again."""

    supports_packing = True

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        if layout is None or not layout.packed:
            context, state = self.mix(x, state, layout)
            return Attended(context.to(x.dtype), state)
        rows, own = unpack(x, layout)
        context, _ = self.mix(rows, self.init_state(rows=rows.size(0)), own)
        return Attended(repack(context, layout).to(x.dtype), state)

    @abstractmethod
    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        """x [B, T, D], with a sentence or a chunk of one per row → context [B, T, D] and the state after it."""


class SelfAttention(Mixer):
    """An attention over its own sequence. A context of another width is projected to the model's width."""

    uses = frozenset({"encoder", "causal"})

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention.site)
        self.attention = attention
        for fact in ("weights_sum", "receptive_field", "extras", "ignores_key_order", "max_length"):
            setattr(self, fact, getattr(attention, fact))
        combine_packing(self, [attention])
        width, dim = attention.context_width, attention.site.dim
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim)

    def init_state(self, *, rows: int = 1, room: int | None = None) -> State:
        return self.attention.init_state(rows=rows, room=room)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        attended: Attended = self.attention(x, state, append=x, layout=layout, need_weights=need_weights)
        return replace(attended, context=self.project(attended.context))

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.linear(self.project, draft.part(self.attention, x))

    def recall(self, memory: Tensor) -> State:
        return self.attention.init_state(memory, rows=memory.size(0))

    def sees(self, length: int) -> Tensor:
        return self.attention.sees(length)


def combine_packing(whole: Any, parts: Iterable[Any]) -> None:
    """Declares for `whole` which packed rows all of its parts support."""
    parts = list(parts)
    whole.supports_packing = all(part.supports_packing for part in parts)
    whole.packing_is_quadratic = any(part.packing_is_quadratic for part in parts)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·d] → [B, H, T, d]."""
    rows, extent, _ = x.shape
    return x.view(rows, extent, heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, T, d] → [B, T, H·d]."""
    return x.transpose(1, 2).flatten(2)
