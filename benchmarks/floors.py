"""Floors of the zoo: scores that need no neural network, computed from the same files and the same split.

A mechanism that does not beat its floor has learned no more than counting gives. Two settings were chosen on the validation
data, so these floors are slightly too high: the penalty of the linear models (1e-3, 1e-4, 1e-5 and 1e-6 give 81.9, 84.3, 85.2
and 86.1 % with TF-IDF on AG News), and the longest n-gram.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from ngrams import ngram_losses
from torch import Tensor

Floors = dict[str, float]
"""Description → score, in the unit of the part's headline."""

ORDER = 7
"""The longest character n-gram. Longer ones score worse on tiny Shakespeare."""


def listops(train: str, valid: str) -> Floors:
    """Accuracy of the most frequent label, and of the one that is likeliest after the first operator."""
    known, asked = _labelled(train), _labelled(valid)
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    for text, label in known:
        by_operator[text.split()[0]][label] += 1
    answers = {operator: found.most_common(1)[0][0] for operator, found in by_operator.items()}
    right = sum(answers.get(text.split()[0]) == label for text, label in asked)
    return {**_majority(known, asked), "likeliest label after the first operator": 100 * right / len(asked)}


def topics(train: str, valid: str) -> Floors:
    """Accuracy of the most frequent label, and of linear models on counts of characters and on TF-IDF of words."""
    known, asked = _labelled(train), _labelled(valid)
    return {
        **_majority(known, asked),
        "counts of single characters, linear model": linear(known, asked, lambda text: text),
        "TF-IDF of words and pairs of words, linear model": linear(known, asked, _words_and_pairs),
    }


def copied(train: str, valid: str) -> Floors:
    """BLEU of the source itself as its translation."""
    from weft.data.formats import open_pairs
    from weft.evaluation.metrics import make_metrics, score

    sources, targets = zip(*open_pairs(valid), strict=True)
    return {"source copied": score(list(sources), list(targets), make_metrics(["bleu"]))["BLEU"].value}


def characters(train: str, valid: str) -> Floors:
    """Bits per character of n-gram models with Kneser–Ney smoothing."""
    texts = [Path(file).read_text("utf-8") for file in (train, valid)]
    ids = {character: number for number, character in enumerate(sorted(set("".join(texts))))}
    losses = ngram_losses(*([ids[character] for character in text] for text in texts), len(ids), ORDER)
    names = {1: "single characters", 2: "pairs of characters", 3: "3-grams", 5: "5-grams", ORDER: f"{ORDER}-grams"}
    return {f"{name}, Kneser–Ney": losses[n - 1] / math.log(2) for n, name in names.items()}


def linear(known: Sequence[tuple[str, str]], asked: Sequence[tuple[str, str]], split: Callable[[str], Iterable[str]]) -> float:
    """Accuracy of softmax regression on TF-IDF: (1 + ln tf) · idf, rows of length 1 (Manning et al. 2008, chapter 6)."""
    counts = [Counter(split(text)) for text, _ in known]
    spread = Counter(unit for each in counts for unit in each)
    places = {unit: place for place, unit in enumerate(unit for unit, texts in spread.items() if texts > 1)}
    weights = {unit: math.log((1 + len(known)) / (1 + spread[unit])) + 1 for unit in places}
    labels = {label: number for number, label in enumerate(sorted({label for _, label in known}))}
    targets = [torch.tensor([labels[label] for _, label in pairs]) for pairs in (known, asked)]
    table = regress(_rows(counts, places, weights), targets[0], len(labels))
    said = (_rows([Counter(split(text)) for text, _ in asked], places, weights) @ table).argmax(-1)
    return 100 * (said == targets[1]).double().mean().item()


def regress(rows: Tensor, labels: Tensor, classes: int, penalty: float = 1e-6) -> Tensor:
    """The weights of a softmax regression with an L2 penalty, by L-BFGS."""
    table = torch.zeros(rows.size(1), classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([table], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(rows @ table, labels) + penalty * table.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return table.detach()


def _rows(counts: Sequence[Counter[str]], places: Mapping[str, int], weights: Mapping[str, float]) -> Tensor:
    """A sparse matrix [texts, units] with rows of length 1."""
    rows, columns, values = [], [], []
    for row, each in enumerate(counts):
        found = {unit: (1 + math.log(times)) * weights[unit] for unit, times in each.items() if unit in places}
        length = math.sqrt(sum(value * value for value in found.values())) or 1.0
        rows += [row] * len(found)
        columns += [places[unit] for unit in found]
        values += [value / length for value in found.values()]
    size = (len(counts), len(places))
    cells = torch.tensor([rows, columns])
    return torch.sparse_coo_tensor(cells, values, size, dtype=torch.float64, check_invariants=True).coalesce()


def _words_and_pairs(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return words + [f"{left} {right}" for left, right in pairwise(words)]


def _majority(known: Sequence[tuple[str, str]], asked: Sequence[tuple[str, str]]) -> Floors:
    answer = Counter(label for _, label in known).most_common(1)[0][0]
    return {"most frequent label": 100 * sum(label == answer for _, label in asked) / len(asked)}


def _labelled(file: str) -> list[tuple[str, str]]:
    if ".jsonl" in file:
        from weft.data.formats import open_pairs

        return list(open_pairs(file))
    return [(text, label) for text, label in (line.rsplit("\t", 1) for line in Path(file).read_text("utf-8").splitlines())]
