"""Means weighted by exponentials, over all prefixes of a row at once, exact for exponents of any size.

Shapes: B rows · T positions · D channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST = -1e30
"""The exponent of masked tokens: finite, so that the difference of two of them is 0 and not NaN."""


@dataclass
class Weighted:
    """Σ eᵏ v and Σ eᵏ over some tokens, both divided by e^top: total, weight and top, each [B, T, D] in float32."""

    total: Tensor
    weight: Tensor
    top: Tensor

    @staticmethod
    def of(k: Tensor, v: Tensor, ok: Tensor | None = None) -> Weighted:
        """Each token separately; tokens that are not `ok` have weight 0."""
        k, v = k.float(), v.float()
        if ok is not None:
            k, v = torch.where(ok, k, LOWEST), torch.where(ok, v, 0.0)
        top = k.detach()
        weight = (k - top).exp()  # equals 1, but carries the gradient
        if ok is not None:
            weight = torch.where(ok, weight, 0.0)
        return Weighted(weight * v, weight, top)

    @staticmethod
    def over(k: Tensor, v: Tensor, seen: Tensor | None, axis: int) -> Weighted:
        """All `seen` tokens along an axis together; the axis is kept with size 1."""
        k, v = k.float(), v.float()
        if seen is not None:
            k = torch.where(seen, k, LOWEST)
        top = k.detach().amax(axis, keepdim=True)
        weight = (k - top).exp()
        if seen is not None:
            weight = torch.where(seen, weight, 0.0)
        return Weighted((weight * v).sum(axis, keepdim=True), weight.sum(axis, keepdim=True), top)

    @staticmethod
    def nothing(rows: int, width: int, device: torch.device) -> Weighted:
        total = torch.zeros(rows, 1, width, device=device)
        return Weighted(total, torch.zeros_like(total), torch.full_like(total, LOWEST))

    def join(self, other: Weighted) -> Weighted:
        """The union of both, position by position. Keeping the larger top avoids overflow and keeps the larger part exact."""
        top = torch.maximum(self.top, other.top)
        mine, theirs = (self.top - top).exp(), (other.top - top).exp()
        total = mine * self.total + theirs * other.total
        return Weighted(total, mine * self.weight + theirs * other.weight, top)

    def mean(self) -> Tensor:
        """Σ eᵏ v / Σ eᵏ, or 0 without tokens."""
        some = self.weight > 0
        return torch.where(some, self.total / torch.where(some, self.weight, 1.0), 0.0)

    def flip(self) -> Weighted:
        """Reverses the positions."""
        return Weighted(self.total.flip(1), self.weight.flip(1), self.top.flip(1))

    def at(self, places: slice) -> Weighted:
        return Weighted(self.total[:, places], self.weight[:, places], self.top[:, places])


def prefixes(parts: Weighted) -> Weighted:
    """All tokens up to each position: joins pairs, computes their prefixes recursively, and fills in the positions between.

    There are at most twice as many joins as tokens, in logarithmically many calls (Blelloch 1990).
    """
    extent = parts.top.size(1)
    if extent < 2:
        return parts
    even, odd = parts.at(slice(0, None, 2)), parts.at(slice(1, None, 2))
    pairs = prefixes(even.at(slice(0, extent // 2)).join(odd))
    between = pairs.at(slice(0, (extent - 1) // 2)).join(even.at(slice(1, None)))
    return Weighted(
        _braid(even.total[:, :1], between.total, pairs.total),
        _braid(even.weight[:, :1], between.weight, pairs.weight),
        _braid(even.top[:, :1], between.top, pairs.top),
    )


def _braid(first: Tensor, evens: Tensor, odds: Tensor) -> Tensor:
    """Interleaves positions 0, 2, 4, … (the first of them given separately) and 1, 3, 5, …."""
    evens = torch.cat([first, evens], 1)
    shared = odds.size(1)
    both = torch.stack([evens[:, :shared], odds], 2).flatten(1, 2)
    return torch.cat([both, evens[:, shared:]], 1)
