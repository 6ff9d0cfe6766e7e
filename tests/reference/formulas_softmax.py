"""Formulas of multi-head attention with a softmax: full, by patterns, relative, synthesised, and over shortened memories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.reference.formulas import Array, Sentence, formula, softmax

Allows = Callable[[int, int], bool]


def project(s: Sentence) -> tuple[list[Array], list[Array], list[Array]]:
    """Queries, keys and values, one vector per token (Vaswani et al. 2017, section 3.2.2)."""
    if "heads.query.weight" in s.weights:
        q = [s.linear("heads.query", token) for token in s.x]
        both = [np.split(s.linear("heads.key_value", token), 2) for token in s.memory]
        return q, [k for k, _ in both], [v for _, v in both]
    parts = [np.split(s.linear("heads.query_key_value", token), 3) for token in s.x]
    return [q for q, _, _ in parts], [k for _, k, _ in parts], [v for _, _, v in parts]


def channels(vector: Array, head: int, heads: int) -> Array:
    return np.split(vector, heads)[head]


def attend(s: Sentence, allows: Callable[[int, int, int], bool]) -> Array:
    """Concat(head₁, …) W_O with softmax(q·k/√d) over the keys j that head h of query i may see, by allows(h, i, j)."""
    queries, keys, values = project(s)
    rows = []
    for i, query in enumerate(queries):
        found = []
        for h in range(s.heads):
            q = channels(query, h, s.heads)
            seen = [j for j in range(len(keys)) if allows(h, i, j) and not (s.causal and j > i)]
            alpha = softmax(q @ channels(keys[j], h, s.heads) / np.sqrt(len(q)) for j in seen)
            found.append(sum(a * channels(values[j], h, s.heads) for a, j in zip(alpha, seen, strict=True)))
        rows.append(s.linear("heads.out", np.concatenate(found)))
    return np.array(rows)


@formula("full", "Vaswani et al. 2017, equation 1 and section 3.2.2")
def full(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: True)


def near(s: Sentence, i: int, j: int, window: int) -> bool:
    return i - j < window if s.causal else abs(i - j) <= window


@formula("local", "Beltagy et al. 2020, section 3.1, sliding window", window=2)
def local(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: near(s, i, j, 2))


def strides(i: int, j: int, length: int) -> bool:
    return (i - j) % length == 0


@formula("strided", "Child et al. 2019, section 4.3: A⁽²⁾ = {j : (i − j) mod l = 0}", stride=3)
def strided(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: strides(i, j, 3))


@formula("fixed", "Child et al. 2019, section 4.3: ⌊j/l⌋ = ⌊i/l⌋, and j mod l ∈ {l − c, …, l − 1}", block=3, summary=1)
def fixed(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: j // 3 == i // 3 or j % 3 == 2)


@formula("global", "Beltagy et al. 2020, section 3.1, global attention", tokens=2)
def global_(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: i < 2 or j < 2)


@formula("longformer", "Beltagy et al. 2020, section 3.1: a window and global tokens", window=1, tokens=2)
def longformer(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: near(s, i, j, 1) or i < 2 or j < 2)


LOCAL, STRIDED = {"kind": "local", "window": 1}, {"kind": "strided", "stride": 3}


@formula("joined", "Child et al. 2019, section 5.1: one softmax over ∪ A⁽ᵐ⁾", patterns=[LOCAL, STRIDED])
def joined(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: near(s, i, j, 1) or strides(i, j, 3))


@formula("mixed", "Child et al. 2019, section 5.1: A⁽ᵐ⁾ by head", heads=[LOCAL, STRIDED])
def mixed(s: Sentence) -> Array:
    return attend(s, lambda h, i, j: strides(i, j, 3) if h else near(s, i, j, 1))


@formula("parts", "Wu et al. 2020, section 4: branches over halves of the width", parts=[LOCAL, STRIDED])
def parts(s: Sentence) -> Array:
    shares = np.array([s.linear("share", token) for token in s.x])
    left, right = np.split(shares, 2, axis=1)
    found = [
        attend(s.inside("parts.0", left, 1), lambda h, i, j: near(s, i, j, 1)),
        attend(s.inside("parts.1", right, 1), lambda h, i, j: strides(i, j, 3)),
    ]
    return np.array([s.linear("out", token) for token in np.concatenate(found, axis=1)])


@formula(
    "xl_relative",
    "Dai et al. 2019, section 3.3: A^rel, terms (a) to (d); R by Vaswani et al. 2017, section 3.5",
    tolerance=1e-5,
)
def xl_relative(s: Sentence) -> Array:
    queries, keys, values = project(s)
    u, v = (s.weights[f"heads.look.{name}_bias"][:, 0] for name in ("content", "distance"))
    rows = []
    for i, query in enumerate(queries):
        found = []
        for h in range(s.heads):
            q, scores, seen = channels(query, h, s.heads), [], range(i + 1 if s.causal else len(keys))
            for j in seen:
                turn = [(i - j) / 10000 ** (2 * c / len(query)) for c in range(len(query) // 2)]
                sinusoids = np.array([f(angle) for angle in turn for f in (np.sin, np.cos)])
                r = channels(s.weights["heads.look.distances.weight"] @ sinusoids, h, s.heads)
                k = channels(keys[j], h, s.heads)
                scores.append((q @ k + q @ r + u[h] @ k + v[h] @ r) / np.sqrt(len(q)))
            found.append(sum(a * channels(values[j], h, s.heads) for a, j in zip(softmax(scores), seen, strict=True)))
        rows.append(s.linear("heads.out", np.concatenate(found)))
    return np.array(rows)


def synthesize(s: Sentence, score: Callable[[int, int, int], float]) -> Array:
    """softmax(B) G(X) with B by score(h, i, j)."""
    values, rows = [s.linear("value", token) for token in s.memory], []
    for i in range(len(s.x)):
        seen = range(i + 1 if s.causal else len(values))
        found = []
        for h in range(s.heads):
            alpha = softmax(score(h, i, j) for j in seen)
            found.append(sum(a * channels(values[j], h, s.heads) for a, j in zip(alpha, seen, strict=True)))
        rows.append(s.linear("out", np.concatenate(found)))
    return np.array(rows)


@formula("synthesizer", "Tay et al. 2020 (Synthesizer), equations 1 to 3: softmax(F(X)) G(X), dense", max_length=9)
def dense(s: Sentence) -> Array:
    def score(h: int, i: int, j: int) -> float:
        hidden = channels(np.maximum(s.linear("scores.network.hidden", s.x[i]), 0), h, s.heads)
        column = s.weights["scores.network.weight"][h][:, j]
        return float(hidden @ column + s.weights["scores.network.bias"][h, 0, j])

    return synthesize(s, score)


@formula("synthesizer", "Tay et al. 2020 (Synthesizer), section 3.2: a random R", form="random", max_length=9)
def random(s: Sentence) -> Array:
    return synthesize(s, lambda h, i, j: float(s.weights["scores.table"][h, i, j]))


@formula("linformer", "Wang et al. 2020, equation 7: softmax(Q (E K)ᵀ / √d) F V", rank=3, max_length=9)
def linformer(s: Sentence) -> Array:
    queries, keys, values = project(s)
    e, f = s.weights["mix"][0, 0], s.weights["mix"][1, 0]
    short_keys = [sum(e[r, j] * key for j, key in enumerate(keys)) for r in range(3)]
    short_values = [sum(f[r, j] * value for j, value in enumerate(values)) for r in range(3)]
    return over(s, queries, short_keys, short_values, lambda i, r: True)


@formula("compressed", "Liu et al. 2018, section 4.2.4: keys and values by a strided convolution; complete windows if causal")
def compressed(s: Sentence) -> Array:
    queries, keys, values = project(s)
    stride, zeros = 3, np.zeros_like(keys[0])
    windows = range(0, len(keys), stride)
    cut = [[[*(part[w : w + stride]), *[zeros] * stride][:stride] for w in windows] for part in (keys, values)]
    short_keys = [s.linear("keys", np.concatenate(window)) for window in cut[0]]
    short_values = [s.linear("values", np.concatenate(window)) for window in cut[1]]
    return over(s, queries, short_keys, short_values, lambda i, w: not s.causal or (w + 1) * stride <= i + 1)


def over(s: Sentence, queries: list[Array], keys: list[Array], values: list[Array], allows: Allows) -> Array:
    """softmax(q·k/√d) over given keys and values; 0 for a query that sees none."""
    rows = []
    for i, query in enumerate(queries):
        found = []
        for h in range(s.heads):
            q, seen = channels(query, h, s.heads), [r for r in range(len(keys)) if allows(i, r)]
            alpha = softmax(q @ channels(keys[r], h, s.heads) / np.sqrt(len(q)) for r in seen)
            mixed = [a * channels(values[r], h, s.heads) for a, r in zip(alpha, seen, strict=True)]
            found.append(sum(mixed, np.zeros_like(q)))
        rows.append(s.linear("heads.out", np.concatenate(found)))
    return np.array(rows)
