"""Mechanisms as plain PyTorch modules, for models of your own::

    attention = weft.nn.Attention("general", 256)
    context, weights = attention(query, keys, values, mask)  # attends to another sequence

    mixing = weft.nn.SelfAttention({"kind": "local", "window": 8}, 256, heads=4, causal=True)
    y = mixing(x, mask)  # attends within the sequence

`weft list attentions` and `weft list mixers` name the kinds; those of installed packages are among them.

Shapes: B rows · T queries · S keys · D width of queries and outputs · M width of keys and values · H heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.attention.base import Attention as Mechanism
from weft.attention.base import Facts, Mixer, Site
from weft.attention.mixers import build_self
from weft.config.registry import build
from weft.data.batch import Layout
from weft.errors import ConfigError, InputError

__all__ = ["Attention", "Memory", "SelfAttention"]

Kind = Mapping[str, Any] | str
"""A mechanism: its name, or a mapping with its name as `kind` and its options, as in a configuration."""


class _Layer(nn.Module):
    """A mechanism without its state and layout. extras: further tensors [B, T] of the last call in training, by name."""

    mechanism: Facts
    extras: dict[str, Tensor]

    def refresh(self, generator: torch.Generator | None = None) -> None:
        """Redraws random features and rotations, and moves centroids, of the mechanisms that have some.

        Call it after each step of the optimiser. For all other mechanisms it does nothing.
        """
        generator = generator or torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        for module in self.mechanism.modules():
            if callable(refresh := getattr(module, "refresh", None)):
                refresh(generator)


class Attention(_Layer):
    """Attention of queries to the keys and values of another sequence: any cross-attention of weft.

    kind: the mechanism, such as "additive", "general", "full" or "monotonic", or a mapping with its options
    dim: D, the width of queries
    memory_dim: M, the width of keys and values; None: D
    heads: H, for mechanisms with several heads
    dropout: share of the weights dropped in training
    options: options of the mechanism, as in a configuration

    Attributes:

    context_dim: the width of the context: M for mechanisms that average values as they are, otherwise D
    extras: in training, what a loss may need of the last call: log_prob and entropy of "hard", coverage of
        "location_aware" with coverage=True
    """

    mechanism: Mechanism

    def __init__(
        self, kind: Kind, dim: int, *, memory_dim: int | None = None, heads: int = 1, dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        # A recurrent model may predict from another part of its state than the one that attends.
        site = Site("cross", dim, heads, memory=memory_dim, dropout=dropout, predicts=True)
        self.mechanism = build("weft.attention:CROSS", _spec(kind, options), site)
        self.context_dim, self.extras = self.mechanism.context_width, {}

    def forward(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """The context [B, T, context_dim] of queries [B, T, D], and the weights [B, H, T, S].

        keys, values [B, S, M]: where to look, and what to average; without values, the keys · mask [B, S] bool: True where
        there is a key, so False on padding. A row without keys gets 0. The weights are None for mechanisms that compute
        none, such as "linear", and without `need_weights`, which is faster. Mechanisms that follow the order of the queries
        take the first of them as the first of the sequence; use `memory` to attend step by step.
        """
        return self.memory(keys, values, mask)(query, need_weights=need_weights)

    def memory(self, keys: Tensor, values: Tensor | None = None, mask: Tensor | None = None) -> Memory:
        """Keys and values [B, S, M], projected once for all steps of a decoder."""
        values = keys if values is None else values
        _check(keys, self.mechanism.site.memory_dim, "keys", mask)
        if values.shape != keys.shape:
            raise InputError(f"values must have the shape of the keys, {list(keys.shape)}, not {list(values.shape)}")
        return Memory(self, keys, values, mask)


class Memory:
    """Keys and values that one query after the other attends to: `context, weights = memory(query)`.

    A call continues after the queries of earlier calls, as "monotonic", "local_m" and "location_aware" need it.
    """

    def __init__(self, layer: Attention, keys: Tensor, values: Tensor, mask: Tensor | None) -> None:
        self._layer, self._rows = layer, _Rows(mask)
        layout, mechanism = self._rows.layout, layer.mechanism
        ordered = self._rows.gather(keys)
        if "values" in inspect.signature(mechanism.read).parameters:
            own = ordered if values is keys else self._rows.gather(values)
            self._state = mechanism.read(ordered, layout, own)
        elif values is keys:
            self._state = mechanism.init_state(ordered, layout)
        else:
            raise ConfigError(f"{type(mechanism).__name__} has no values beside its keys; leave out `values`")
        self._batch = keys.size(0)

    def __call__(self, query: Tensor, *, need_weights: bool = True) -> tuple[Tensor, Tensor | None]:
        """The context [B, T, context_dim] of the next queries [B, T, D], and the weights [B, H, T, S]."""
        mechanism = self._layer.mechanism
        _check(query, mechanism.site.dim, "query")
        if query.size(0) != self._batch:
            raise InputError(f"there are {query.size(0)} rows of queries, but {self._batch} of keys")
        attended = mechanism(query, self._state, need_weights=need_weights)
        self._state, self._layer.extras = attended.state, attended.extras
        weights = attended.weights
        return attended.context, None if weights is None else self._rows.scatter(weights, -1)


class SelfAttention(_Layer):
    """Attention of a sequence to itself, or mixing of its positions without a query: any mechanism of a `self` slot.

    kind: the mechanism, such as "full", "local", "performer", "fnet" or "recurrent", or a mapping with its options
    dim: D, the width of inputs and outputs
    heads: H, for mechanisms with several heads
    causal: whether a position sees only itself and those before it
    dropout: share of the weights dropped in training
    options: options of the mechanism, as in a configuration
    """

    mechanism: Mixer

    def __init__(
        self, kind: Kind, dim: int, *, heads: int = 1, causal: bool = False, dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        site = Site("causal" if causal else "encoder", dim, heads, dropout=dropout)
        self.mechanism, self.extras = build_self(_spec(kind, options), site), {}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D] → [B, T, D]. mask [B, T] bool: True where there is a token. Outputs at padding mean nothing."""
        return self._attend(x, mask, need_weights=False)[0]

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """The weights [B, H, T, T] with which x [B, T, D] attends to itself; None for mechanisms that compute none."""
        return self._attend(x, mask, need_weights=True)[1]

    def _attend(self, x: Tensor, mask: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        _check(x, self.mechanism.site.dim, "x", mask)
        rows, state = _Rows(mask), self.mechanism.init_state(rows=x.size(0))
        attended = self.mechanism(rows.gather(x), state, layout=rows.layout, need_weights=need_weights)
        self.extras, weights = attended.extras, attended.weights
        context = rows.scatter(attended.context, 1)
        return context, None if weights is None else rows.scatter(rows.scatter(weights, -1), -2)


class _Rows:
    """Tokens moved to the left of their rows, where mechanisms expect them, and results moved back to their places."""

    def __init__(self, mask: Tensor | None) -> None:
        self.layout, self.order = None, None
        if mask is not None:
            self.layout = Layout.padded(mask.sum(1), mask.size(1))
            if not torch.equal(self.layout.mask, mask):
                self.order = mask.int().argsort(dim=1, descending=True, stable=True)

    def gather(self, x: Tensor) -> Tensor:
        """x [B, S, …] with the tokens of each row first."""
        return x if self.order is None else x.gather(1, self.order[..., None].expand_as(x))

    def scatter(self, x: Tensor, axis: int) -> Tensor:
        """The opposite, along an axis of x [B, …]."""
        if self.order is None:
            return x
        shape = [1] * x.dim()
        shape[0], shape[axis] = self.order.shape
        return torch.zeros_like(x).scatter(axis, self.order.view(shape).expand_as(x), x)


def _spec(kind: Kind, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**({"kind": kind} if isinstance(kind, str) else kind), **options}


def _check(x: Tensor, width: int, name: str, mask: Tensor | None = None) -> None:
    """Raises an error about a tensor that is not [B, T, width], or about its mask."""
    if x.dim() != 3 or x.size(-1) != width:
        raise InputError(f"{name} must be [rows, length, {width}], not {list(x.shape)}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
        raise InputError(
            f"the mask must be bool {list(x.shape[:2])}, True where there is a token, not {mask.dtype} {list(mask.shape)}"
        )
