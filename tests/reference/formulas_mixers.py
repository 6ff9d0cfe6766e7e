"""Formulas of mixers and poolings: recurrence, convolution, sorting, transforms, gates, and sets."""

from __future__ import annotations

import numpy as np

from tests.reference.formulas import Array, Sentence, formula, gelu, sigmoid, softmax
from tests.reference.formulas_softmax import channels


def run_gru(s: Sentence, tokens: Array, direction: str) -> list[Array]:
    """Cho et al. 2014, equations 5 to 8, with biases and the reset gate after the product, as in cuDNN."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, u, b, c = (s.weights[f"stack.layers.0.rnn.{name}_l0{direction}"] for name in names)
    h, states = np.zeros(u.shape[1]), []
    for x in tokens:
        (wr, wz, wn), (ur, uz, un) = np.split(w @ x + b, 3), np.split(u @ h + c, 3)
        r, z = sigmoid(wr + ur), sigmoid(wz + uz)
        h = (1 - z) * np.tanh(wn + r * un) + z * h
        states.append(h)
    return states


@formula("recurrent", "Cho et al. 2014, equations 5 to 8; in both directions Bahdanau et al. 2015, section 3.2")
def recurrent(s: Sentence) -> Array:
    forth = run_gru(s, s.x, "")
    if s.causal:
        return np.array([s.linear("out", h) for h in forth])
    back = run_gru(s, s.x[::-1], "_reverse")[::-1]
    return np.array([s.linear("out", np.concatenate(pair)) for pair in zip(forth, back, strict=True)])


@formula("convolution", "Gehring et al. 2017, section 3.2: v([A B]) = A ⊗ σ(B) of W X + b")
def convolution(s: Sentence) -> Array:
    zeros, rows = np.zeros(s.x.shape[1]), []
    for t in range(len(s.x)):
        places = (t - 2, t - 1, t) if s.causal else (t - 1, t, t + 1)
        window = np.concatenate([s.x[p] if 0 <= p < len(s.x) else zeros for p in places])
        a, b = np.split(s.linear("taps", window), 2)
        rows.append(s.linear("out", a * sigmoid(b)))
    return np.array(rows)


@formula("fnet", "Lee-Thorp et al. 2022, equation 3: Re F_seq(F_hidden(x)), divided by √(T D)", tolerance=1e-5)
def fnet(s: Sentence) -> Array:
    extent, width = s.x.shape
    found = np.zeros((extent, width))
    for t in range(extent):
        for c in range(width):
            turns = ((np.outer(np.arange(extent) * t / extent, np.ones(width))) + np.arange(width) * c / width) * 2 * np.pi
            found[t, c] = (s.x * np.cos(turns)).sum() / np.sqrt(extent * width)
    return found


@formula("aft", "Zhai et al. 2021, equation 2 without w (AFT-simple)", tolerance=1e-5)
@formula("aft", "Zhai et al. 2021, equation 2 (AFT-full)", tolerance=1e-5, form="full", rank=0, max_length=9)
def aft(s: Sentence) -> Array:
    parts = [np.split(s.linear("query_key_value", token), 3) for token in s.x]
    rows = []
    for t, (q, _, _) in enumerate(parts):
        total, norm = 0.0, 0.0
        for j in range(t + 1 if s.causal else len(parts)):
            _, k, v = parts[j]
            weight = np.exp(k + (s.weights["rows"][t, j] if "rows" in s.weights else 0.0))
            total, norm = total + weight * v, norm + weight
        rows.append(s.linear("out", sigmoid(q) * total / norm))
    return np.array(rows)


@formula("gmlp", "Liu et al. 2021, equations 1, 2 and 4: Z = σ(X U), Z₁ ⊙ (W norm(Z₂) + b), then V", max_length=9)
def gmlp(s: Sentence) -> Array:
    halves = [np.split(gelu(s.linear("up", token)), 2) for token in s.x]
    normed = [s.norm("norm", v) for _, v in halves]
    rows = []
    for t, (u, _) in enumerate(halves):
        gate = s.weights["bias"][t] + sum(
            s.weights["weight"][t, j] * normed[j] for j in range(t + 1 if s.causal else len(normed))
        )
        rows.append(s.linear("down", u * gate))
    return np.array(rows)


@formula("mlp_mixer", "Tolstikhin et al. 2021, equation 1, without its norm and residual: W₂ σ(W₁ X)", hidden=5, max_length=9)
def mlp_mixer(s: Sentence) -> Array:
    up, down = s.weights["up"], s.weights["down"]
    hidden = [gelu(s.weights["up_bias"][c] + sum(up[c, t] * token for t, token in enumerate(s.x))) for c in range(5)]
    return np.array([s.weights["down_bias"][t] + sum(down[t, c] * hidden[c] for c in range(5)) for t in range(len(s.x))])


def multihead(s: Sentence, name: str, queries: Array, memory: Array) -> Array:
    """Multihead(X, Y, Y) of Lee et al. 2019, equations 2 to 4."""
    both = [np.split(s.linear(f"{name}.key_value", token), 2) for token in memory]
    rows = []
    for query in queries:
        found = []
        for h in range(s.heads):
            q = channels(s.linear(f"{name}.query", query), h, s.heads)
            alpha = softmax(q @ channels(k, h, s.heads) / np.sqrt(len(q)) for k, _ in both)
            found.append(sum(a * channels(v, h, s.heads) for a, (_, v) in zip(alpha, both, strict=True)))
        rows.append(s.linear(f"{name}.out", np.concatenate(found)))
    return np.array(rows)


def mab(s: Sentence, name: str, x: Array, y: Array) -> Array:
    """Lee et al. 2019, equations 6 and 7: norm(H + rFF(H)), H = norm(X + Multihead(X, Y, Y)); rFF is relu(W H + b)."""
    rows = []
    for own, found in zip(x, multihead(s, f"{name}.attention", x, y), strict=True):
        hidden = s.norm(f"{name}.norm_attention", own + found)
        rows.append(s.norm(f"{name}.norm_network", hidden + np.maximum(s.linear(f"{name}.network", hidden), 0)))
    return np.array(rows)


@formula("isab", "Lee et al. 2019, equations 9 and 10: H = MAB(I, X); the outer MAB without norm, residual and rFF", points=3)
def isab(s: Sentence) -> Array:
    return multihead(s, "spread", s.x, mab(s, "gather", s.weights["points"], s.x))


@formula("sinkhorn", "Tay et al. 2020 (Sinkhorn), section 3.1; causal: section 3.3, by prefixes", block=3, max_length=9)
def sinkhorn(s: Sentence) -> Array:
    """Blocks of 3; S(R) by 8 normalisations of columns and rows of exp(R/τ); attention to the own and the sorted block."""
    extent, width = s.x.shape
    count = -(-extent // 3)
    parts = [np.split(s.linear("query_key_value", token), 3) for token in s.x]
    rows: list[list[Array]] = [[] for _ in range(extent)]
    for h in range(s.heads):
        order = sorting(s, h, count)
        cells = [[channels(part, h, s.heads) for part in parts[j]] if j < extent else None for j in range(3 * count)]
        zeros = np.zeros(width // s.heads)
        for i in range(extent):
            own = i // 3
            seen = [cells[j] for j in range(3 * own, min(extent, 3 * own + 3)) if not s.causal or j <= i]
            pairs = [(cell[1], cell[2]) for cell in seen if cell is not None]
            for c in range(3 if s.causal else min(3, extent)):
                if s.causal and own == 0:
                    break
                beside = [cells[3 * m + c] or [zeros] * 3 for m in range(count)]
                pairs.append(tuple(sum(order[own][m] * cell[p] for m, cell in enumerate(beside)) for p in (1, 2)))
            q = channels(parts[i][0], h, s.heads)
            alpha = softmax(q @ k / np.sqrt(len(q)) for k, _ in pairs)
            rows[i].append(sum(a * v for a, (_, v) in zip(alpha, pairs, strict=True)))
    return np.array([s.linear("out", np.concatenate(row)) for row in rows])


def sorting(s: Sentence, h: int, count: int) -> Array:
    """The soft permutation of the blocks for one head; in causal use block n chooses among earlier ones."""
    logits = np.full((count, count), -np.inf)
    for n in range(count):
        mean = (s.x[: 3 * n + 1] if s.causal else s.x[3 * n : 3 * n + 3]).mean(0)
        wanted = np.split(s.linear("want.2", gelu(s.linear("want.0", mean))), s.heads)[h]
        for m in range(n if s.causal else count):
            logits[n, m] = wanted[m] / 0.75
    p = np.exp(logits)
    for _ in range(8):
        columns = np.cumsum(p, 0) if s.causal else np.broadcast_to(p.sum(0), p.shape)
        p = np.divide(p, columns, out=np.zeros_like(p), where=p > 0)
        totals = np.broadcast_to(p.sum(1, keepdims=True), p.shape)
        p = np.divide(p, totals, out=np.zeros_like(p), where=p > 0)
    return p


@formula("gat", "Veličković et al. 2018, equations 1 to 4: LeakyReLU(aᵀ[W h_i; W h_j]), σ(Σ_j α_ij W h_j), heads side by side")
@formula("gat", "the same, section 2.1, where the neighbourhood is a chain", distance=2)
def gat(s: Sentence) -> Array:
    width, rows = s.x.shape[1] // s.heads, []
    h = [s.linear("project", x) for x in s.x]
    for i in range(len(h)):
        near = [j for j in range(len(h)) if abs(i - j) <= s.options.get("distance", len(h))]
        heads = []
        for head in range(s.heads):
            part = slice(head * width, (head + 1) * width)
            a = np.concatenate([s.weights["target"][head, :, 0], s.weights["source"][head, :, 0]])
            raw = [float(a @ np.concatenate([h[i][part], h[j][part]])) for j in near]
            alpha = softmax(e if e > 0 else 0.2 * e for e in raw)
            mixed = sum(weight * h[j][part] for weight, j in zip(alpha, near, strict=True))
            heads.append(np.where(mixed > 0, mixed, np.exp(mixed) - 1))
        rows.append(np.concatenate(heads))
    return np.array(rows)


@formula("mean", "no paper: Σ h_j / n")
def mean(s: Sentence) -> Array:
    return np.array([sum(s.x) / len(s.x)])


@formula("max", "no paper: max_j h_jc")
def maximum(s: Sentence) -> Array:
    return np.array([[max(channel) for channel in s.x.T]])


@formula("sum", "Parikh et al. 2016, equation 4: Σ_i v_i")
def total(s: Sentence) -> Array:
    return np.array([sum(s.x)])


@formula("mean_max", "Chen et al. 2017, equations 18 and 19: [Σ v_i / n; max_i v_i]")
def mean_max(s: Sentence) -> Array:
    return np.array([sum(s.x) / len(s.x), [max(channel) for channel in s.x.T]])


@formula("last_max_mean", "Howard & Ruder 2018, section 3.3: [h_T; maxpool(H); meanpool(H)]")
def last_max_mean(s: Sentence) -> Array:
    return np.array([s.x[-1], [max(channel) for channel in s.x.T], sum(s.x) / len(s.x)])


@formula("label_attentive", "Mullenbach et al. 2018, section 2.2; keys of Rios & Kavuluru 2018, section 3: tanh(H W + b)")
def label_attentive(s: Sentence) -> Array:
    keys, rows = [np.tanh(s.linear("keys", token)) for token in s.x], []
    for label in s.weights["labels"]:
        alpha = softmax(float(label @ key) for key in keys)
        rows.append(sum(a * token for a, token in zip(alpha, s.x, strict=True)))
    return np.array(rows)


@formula("self_attentive", "Lin et al. 2017, equations 5 to 7: A = softmax(W₂ tanh(W₁ Hᵀ)), M = A H", rows=2)
def self_attentive(s: Sentence) -> Array:
    inner = [np.tanh(s.linear("hidden", token)) for token in s.x]
    rows = []
    for question in s.weights["questions.weight"]:
        alpha = softmax(float(question @ each) for each in inner)
        rows.append(sum(a * token for a, token in zip(alpha, s.x, strict=True)))
    return np.array(rows)


@formula("pma", "Lee et al. 2019, equation 11: MAB(S, rFF(Z))", rows=2, heads=2)
def pma(s: Sentence) -> Array:
    return mab(s, "block", s.weights["seeds"], np.array([np.maximum(s.linear("network", token), 0) for token in s.x]))


@formula(
    "channel_attentive", "Shen et al. 2018, equations 11 and 12: softmax over i of Wᵀσ(W⁽¹⁾x_i + b⁽¹⁾), channel by channel"
)
def channel_attentive(s: Sentence) -> Array:
    scores = []
    for x in s.x:
        inner = s.linear("hidden", x)
        scores.append(s.linear("scores", np.where(inner > 0, inner, np.exp(inner) - 1)))
    vector = []
    for channel in range(s.x.shape[1]):
        weights = softmax(score[channel] for score in scores)
        vector.append(sum(weight * x[channel] for weight, x in zip(weights, s.x, strict=True)))
    return np.array([vector])
