"""Formulas of attention with one head over a source: additive, Luong's, local, hard, location-aware."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.reference.formulas import Array, Sentence, formula, sigmoid, softmax


def scored(s: Sentence, score: Callable[[Array, Array], float]) -> Array:
    """c_i = Σ_j α_ij h_j with α_i = softmax(e_i)."""
    rows = []
    for query in s.x:
        alpha = softmax(score(query, key) for key in s.memory)
        rows.append(sum(a * key for a, key in zip(alpha, s.memory, strict=True)))
    return np.array(rows)


def energy(s: Sentence, query: Array, key: Array) -> Array:
    """tanh(W s + b + U h)."""
    return np.tanh(s.linear("head.score.query", query) + s.linear("head.score.key", key))


@formula("additive", "Bahdanau et al. 2015, equations 5 and 6, appendix A.1.2: e = vᵀ tanh(W s + U h)")
def additive(s: Sentence) -> Array:
    return scored(s, lambda query, key: float(s.weights["head.score.score.weight"][0] @ energy(s, query, key)))


@formula("additive_normed", "Bahdanau et al. 2015, equations 5 and 6, with v = g v/‖v‖ of Salimans & Kingma 2016, equation 2")
def additive_normed(s: Sentence) -> Array:
    v, gain = s.weights["head.score.score.weight"][0], s.weights["head.score.gain"][0]
    return scored(s, lambda query, key: float(gain * v / np.sqrt((v**2).sum()) @ energy(s, query, key)))


@formula("dot", "Luong et al. 2015, equation 7 with score dot (memory projected, since it is narrower)")
@formula("general", "Luong et al. 2015, equation 7 with score general: h_tᵀ W h_s")
def general(s: Sentence) -> Array:
    return scored(s, lambda query, key: float(query @ s.linear("head.score.key", key)))


@formula(
    "cosine", "Graves et al. 2014, equations 5 and 6: β uᵀv / ‖u‖‖v‖ (memory projected, since it is narrower)", tolerance=1e-7
)
def cosine(s: Sentence) -> Array:
    def score(query: Array, key: Array) -> float:
        key = s.linear("head.score.key.project", key)
        return float(s.weights["head.score.strength"][0] * (query @ key) / np.sqrt((query @ query) * (key @ key)))

    return scored(s, score)


@formula("concat", "Luong et al. 2015, equation 7 with score concat: vᵀ tanh(W [h_t; h_s])")
def concat(s: Sentence) -> Array:
    both = np.concatenate([s.weights["head.score.query.weight"], s.weights["head.score.key.weight"]], axis=1)
    v = s.weights["head.score.score.weight"][0]
    return scored(s, lambda query, key: float(v @ np.tanh(both @ np.concatenate([query, key]))))


@formula("location", "Luong et al. 2015, equation 8: α = softmax(W h_t)", max_length=9)
def location(s: Sentence) -> Array:
    rows = []
    for query in s.x:
        alpha = softmax((s.weights["head.score.place.weight"] @ query)[: len(s.memory)])
        rows.append(sum(a * key for a, key in zip(alpha, s.memory, strict=True)))
    return np.array(rows)


@formula(
    "local_m", "Luong et al. 2015, section 3.2, local-m: p_t = t, window [p − D, p + D]; p stays at the last token", window=2
)
def local_m(s: Sentence) -> Array:
    rows = []
    for t, query in enumerate(s.x):
        centre = min(t, len(s.memory) - 1)
        seen = [j for j in range(len(s.memory)) if abs(j - centre) <= 2]
        alpha = softmax(float(query @ s.linear("head.score.key", s.memory[j])) for j in seen)
        rows.append(sum(a * s.memory[j] for a, j in zip(alpha, seen, strict=True)))
    return np.array(rows)


@formula(
    "local_p", "Luong et al. 2015, equations 9 and 10: p = S σ(vᵀ tanh(W h)), align · exp(−(s − p)²/2σ²), σ = D/2", window=2
)
def local_p(s: Sentence) -> Array:
    rows = []
    for query in s.x:
        p = len(s.memory) * sigmoid(s.linear("place", np.tanh(s.linear("inner", query)))[0])
        seen = [j for j in range(len(s.memory)) if abs(j - p) <= 2]
        alpha = softmax(float(query @ s.linear("head.score.key", s.memory[j])) for j in seen)
        gauss = [np.exp(-((j - p) ** 2) / (2 * 1.0**2)) for j in seen]
        rows.append(sum(a * g * s.memory[j] for a, g, j in zip(alpha, gauss, seen, strict=True)))
    return np.array(rows)


@formula("hard", "Xu et al. 2015, equations 4, 5 and 9: the annotation of the likeliest place, outside training")
def hard(s: Sentence) -> Array:
    v = s.weights["head.score.score.weight"][0]
    return np.array([max(s.memory, key=lambda key, query=query: v @ energy(s, query, key)) for query in s.x])


@formula(
    "location_aware",
    "Chorowski et al. 2015, equations 8 and 9: f_i = F ∗ α_{i−1}, e = wᵀ tanh(W s + V h + U f + b)",
    filters=2,
    width=3,
)
def location_aware(s: Sentence) -> Array:
    v, filters = s.weights["head.score.score.weight"][0], s.weights["filters.weight"][:, 0]
    keys, rows = len(s.memory), []
    alpha = [1.0] + [0.0] * (keys - 1)
    for query in s.x:
        around = [0.0, *alpha, 0.0]
        scores = []
        for j in range(keys):
            feature = s.weights["feature.weight"] @ (filters @ np.array(around[j : j + 3]))
            inner = s.linear("head.score.query", query) + s.linear("head.score.key", s.memory[j]) + feature
            scores.append(float(v @ np.tanh(inner)))
        alpha = softmax(scores)
        rows.append(sum(a * key for a, key in zip(alpha, s.memory, strict=True)))
    return np.array(rows)
