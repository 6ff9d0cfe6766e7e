"""Formulas of attention without a softmax over pairs: linear, random features, efficient; all pairs are formed here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.reference.formulas import Array, Sentence, formula, sigmoid, softmax
from tests.reference.formulas_softmax import channels, project

SHARPEST = 2**0.5


def kernel_mean(
    s: Sentence, kernel: Callable[[int, Array, Array], float], least: Callable[[int], float] = lambda h: 0.0
) -> Array:
    """Σ_j κ(q_i, k_j) v_j / Σ_j κ(q_i, k_j); a norm is at least `least` per key."""
    queries, keys, values = project(s)
    rows = []
    for i, query in enumerate(queries):
        found = []
        for h in range(s.heads):
            seen = range(i + 1 if s.causal else len(keys))
            weights = [kernel(h, channels(query, h, s.heads), channels(keys[j], h, s.heads)) for j in seen]
            total = sum(a * channels(values[j], h, s.heads) for a, j in zip(weights, seen, strict=True))
            found.append(total / max(sum(weights), least(h) * len(seen)))
        rows.append(s.linear("heads.out", np.concatenate(found)))
    return np.array(rows)


def elu_plus_one(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(x))


@formula("linear", "Katharopoulos et al. 2020, equation 4 with φ of equation 7; causal: equation 9")
def linear(s: Sentence) -> Array:
    return kernel_mean(s, lambda h, q, k: float(elu_plus_one(q) @ elu_plus_one(k)))


def waves(s: Sentence, h: int, x: Array) -> Array:
    """φ(x) = [sin(ωᵀx̂), cos(ωᵀx̂)], ω ~ N(0, σ²), x̂ of length 1 (Peng et al. 2021, equation 2 and section 3.3)."""
    sigma = SHARPEST * sigmoid(s.weights["sharpness"][h, 0])
    angle = (s.weights["directions"] * sigma) @ (x / np.linalg.norm(x))
    return np.concatenate([np.sin(angle), np.cos(angle)])


@formula("rfa", "Peng et al. 2021, equation 5; norms bounded by the kernel's minimum", tolerance=1e-5, features=40)
def rfa(s: Sentence) -> Array:
    def least(h: int) -> float:
        sigma = SHARPEST * sigmoid(s.weights["sharpness"][h, 0])
        return 40 * np.exp(-2 * sigma.max() ** 2)

    return kernel_mean(s, lambda h, q, k: float(waves(s, h, q) @ waves(s, h, k)), least)


@formula(
    "gated_rfa", "Peng et al. 2021, equation 7: S_t = g S_{t−1} + (1 − g) φ(k) ⊗ v, z_t likewise", tolerance=1e-5, features=40
)
def gated_rfa(s: Sentence) -> Array:
    queries, keys, values = project(s)
    found = np.zeros_like(s.x)
    for h in range(s.heads):
        sigma = SHARPEST * sigmoid(s.weights["sharpness"][h, 0])
        total, norm, mass, width = 0.0, 0.0, 0.0, s.x.shape[1] // s.heads
        for t, token in enumerate(s.x):
            g = sigmoid(s.linear("gate", token)[h])
            feature = waves(s, h, channels(keys[t], h, s.heads))
            total = g * total + (1 - g) * np.outer(feature, channels(values[t], h, s.heads))
            norm = g * norm + (1 - g) * feature
            mass = g * mass + (1 - g)
            query = waves(s, h, channels(queries[t], h, s.heads))
            bound = mass * 40 * np.exp(-2 * sigma.max() ** 2)
            found[t, h * width : (h + 1) * width] = query @ total / max(query @ norm, bound)
    return np.array([s.linear("heads.out", row) for row in found])


@formula("efficient", "Shen et al. 2021, section 3.2, softmax normalisation; causal: over the tokens so far", tolerance=1e-5)
def efficient(s: Sentence) -> Array:
    queries, keys, values = project(s)
    rows = []
    for i, query in enumerate(queries):
        seen = range(i + 1 if s.causal else len(keys))
        found = []
        for h in range(s.heads):
            q, v = softmax(channels(query, h, s.heads)), [channels(values[j], h, s.heads) for j in seen]
            mixed = np.zeros_like(v[0])
            for c, share in enumerate(q):
                alpha = softmax(channels(keys[j], h, s.heads)[c] for j in seen)
                mixed += share * sum(a * value for a, value in zip(alpha, v, strict=True))
            found.append(mixed)
        rows.append(s.linear("heads.out", np.concatenate(found)))
    return np.array(rows)
