"""The registry of formulas: for each mechanism a plain loop over tokens, written from its paper, in float64 with NumPy.

A loop gets one sentence without padding and the weights of the mechanism by name, and returns one vector per token. It shares
no code with the mechanism. `test_every_mechanism_has_a_loop.py` compares the two on padded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sentence:
    """x [T, D]: the tokens, or the queries of cross-attention, which attend to `memory` [S, M]."""

    weights: Mapping[str, Array]
    x: Array
    memory: Array
    causal: bool
    heads: int
    options: Mapping[str, Any]

    def linear(self, name: str, vector: Array) -> Array:
        """W v + b; without b if there is none."""
        return self.weights[f"{name}.weight"] @ vector + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, name: str, vector: Array) -> Array:
        """Layer normalisation (Ba et al. 2016, equation 3)."""
        away = vector - vector.mean()
        return away / np.sqrt((away**2).mean() + 1e-5) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def inside(self, part: str, x: Array | None = None, heads: int = 0) -> Sentence:
        """The sentence with the weights of a part."""
        weights = {name.removeprefix(f"{part}."): value for name, value in self.weights.items() if name.startswith(f"{part}.")}
        x = self.x if x is None else x
        return Sentence(weights, x, x, self.causal, heads or self.heads, self.options)


Loop = Callable[[Sentence], Array]


@dataclass(frozen=True)
class Formula:
    """A loop, the place in the paper that it follows, the options it is for, and how exact the mechanism is in float64.

    tolerance: 1e-9, or more for mechanisms that compute a part in float32 at any precision
    """

    loop: Loop
    paper: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-9


FORMULAS: dict[str, list[Formula]] = {}
"""Kind → its formulas, one for each form of the mechanism."""


def formula(kind: str, paper: str, tolerance: float = 1e-9, **options: Any) -> Callable[[Loop], Loop]:
    """Registers a loop for a kind with these options. Decorate again for another form."""

    def register(loop: Loop) -> Loop:
        FORMULAS.setdefault(kind, []).append(Formula(loop, paper, options, tolerance))
        return loop

    return register


def softmax(scores: Iterable[float]) -> list[float]:
    exps = [np.exp(score) for score in scores]
    return [each / sum(exps) for each in exps]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """x Φ(x) (Hendrycks & Gimpel 2016, equation 1)."""
    from math import erf

    return np.array([value * (1 + erf(value / 2**0.5)) / 2 for value in x.ravel()]).reshape(x.shape)
