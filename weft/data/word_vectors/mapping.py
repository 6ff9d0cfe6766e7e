"""Maps the word vectors of one text onto those of another, without translated text.

Words that both texts spell alike, or nearly so, are the first dictionary. It gives an orthogonal map (Procrustes), the map a
larger dictionary, that a better map, and so on (self-learning, Artetxe et al. 2018). Neighbours are found by CSLS (Lample et
al. 2018), which keeps words that are near to everything from translating everything.

Without such words, the first map is adversarial (Lample et al. 2018, "Word translation without parallel data"): a discriminator
learns to tell mapped source vectors from target vectors, and the map learns to fool it. Of all maps on the way, the one is
taken whose frequent words are nearest to their translations.

Shapes: V, W words of the two texts · D width of a vector · N pairs of words.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.array_files import read_array
from weft.data.word_vectors.vectors import Vectors, WordVectors
from weft.errors import DataError, RunError
from weft.file_access import MALFORMED

Pairs = NDArray[np.int64]
"""[N, 2] numbers of words that translate each other."""

FindPairs = Callable[[Vectors, Vectors, int], Pairs]
"""Finds pairs of words from the vectors of both texts; the number says how many frequent words of each to use."""

WORDS = "words.json"

EPOCHS, STEPS, BATCH = 10, 200, 64
DISCRIMINATOR_STEPS = 2
"""Steps of the discriminator for each one of the map."""
HIDDEN, DROPOUT, SMOOTHING = 128, 0.1, 0.1
RATES, DECAY = (5e-3, 1e-2), 0.9
"""The first learning rates of the discriminator and of the map, and the factor that lowers them after each epoch."""
ORTHOGONAL = 0.01
"""Strength of the pull of the map towards an orthogonal one."""

NEIGHBOURS = 10
"""Words that CSLS takes for the surroundings of a word."""
TINY = 1e-6
"""Singular values up to this are 0."""
SHORTEST = 4
"""Letters of a word that may have a cognate; short words resemble each other by chance."""


@dataclass(frozen=True)
class MappingOptions:
    """Options of learning a map.

    rounds: of self-learning · frequent: words of each text, the most frequent ones, that the dictionary of a round is made of ·
    likeness: the least similarity of the spellings of cognates, 1 for equal ones · ratio: words spelt alike are no seeds if one
    is this many times as frequent as the other · frequency: the penalty for a difference of 1 between the logarithms of their
    frequencies · weight: the power of the correlations by which mapped dimensions are weighted.
    """

    rounds: int = 10
    frequent: int = 4000
    likeness: float = 0.85
    ratio: float = 10.0
    frequency: float = 0.05
    weight: float = 0.5


@dataclass(frozen=True)
class MappedVectors:
    """The vectors of both texts in one space, of unit length, and the seeds by which they were mapped.

    frequency: see `MappingOptions`.
    """

    source: WordVectors
    target: WordVectors
    seeds: Pairs
    frequency: float = 0.0

    def reversed(self) -> MappedVectors:
        """The other direction."""
        return MappedVectors(self.target, self.source, self.seeds[:, ::-1], self.frequency)

    def save(self, folder: Path) -> None:
        """Writes the files that `load` reads."""
        sides = {"source": self.source, "target": self.target}
        words = {name: [list(side.words), list(map(int, side.counts)), list(side.forms)] for name, side in sides.items()}
        (folder / WORDS).write_text(json.dumps({**words, "frequency": self.frequency}), "utf-8")
        for name, array in (("source", self.source.vectors), ("target", self.target.vectors), ("seeds", self.seeds)):
            np.save(folder / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> MappedVectors:
        """Reads what `save` wrote. Raises RunError for other files."""
        try:
            saved = json.loads((folder / WORDS).read_text("utf-8"))
            source, target = (
                WordVectors(list(words), list(counts), read_array(folder / f"{name}.npy"), list(forms))
                for name, (words, counts, forms) in ((name, saved[name]) for name in ("source", "target"))
            )
            seeds, frequency = read_array(folder / "seeds.npy"), float(saved["frequency"])
        except (OSError, *MALFORMED) as error:
            raise RunError(f"{folder / WORDS}: this file does not hold two lists of words: {error}") from None
        if any(len(side.words) != len(side.vectors) for side in (source, target)):
            raise RunError(f"{folder / WORDS}: there are not as many words as vectors")
        return cls(source, target, seeds, frequency)

    def scores(self) -> Vectors:
        """[V, W]: how well the words of both texts translate each other."""
        return csls(self.source.vectors, self.target.vectors) - self.frequency * contrasts(self.source, self.target)


def map_vectors(
    source: WordVectors, target: WordVectors, options: MappingOptions, find_pairs: FindPairs | None = None
) -> MappedVectors:
    """Both texts' vectors in one space. Raises DataError if no word is spelt alike in both texts.

    The map is learnt from words, and n-grams follow. find_pairs: finds the first pairs from the vectors, not from the spellings
    of words.
    """
    width = min(source.vectors.shape[1], target.vectors.shape[1])  # a text of few words has narrow vectors
    words, others = source.words[: source.singles], target.words[: target.singles]
    x, y = (_normal(side.vectors[:, :width], side.singles) for side in (source, target))
    limits = slice(min(options.frequent, len(words))), slice(min(options.frequent, len(others)))
    contrast = contrasts(source, target, len(words), len(others))
    if find_pairs is None:
        alike = find_seeds(words, others, options.likeness)
        pairs = seeds = alike[contrast[alike[:, 0], alike[:, 1]] <= np.log(options.ratio)]
    else:
        pairs, seeds = find_pairs(x[: len(words)], y[: len(others)], options.frequent), np.zeros((0, 2), np.int64)
    if len(pairs) == 0:
        raise DataError(
            "no word occurs about equally often in both texts, not even nearly alike; a dictionary is learnt from such words. "
            "Use weft dictionary --adversarial or, in training, task.adversarial_dictionary=true, which does without them; or "
            "train without a dictionary: task.dictionary_steps=0 task.vectors=false"
        )
    for _ in range(options.rounds):
        mapped = align(x, y, pairs, options.weight)
        scores = csls(mapped[0][limits[0]], mapped[1][limits[1]]) - options.frequency * contrast[limits]
        pairs = np.unique(np.concatenate([seeds, mutual(scores)]), axis=0)
    first, second = align(x, y, pairs, options.weight)
    return MappedVectors(replace(source, vectors=first), replace(target, vectors=second), seeds, options.frequency)


def contrasts(source: WordVectors, target: WordVectors, most: int | None = None, others: int | None = None) -> Vectors:
    """[V, W]: the differences of the logarithms of frequencies. Translations are about as frequent in texts of one kind.

    most, others: only of the first ones of each side.
    """
    first, second = (
        np.log(np.array(each.counts[:count], np.float32) / sum(each.counts[: each.singles]))
        for each, count in ((source, most), (target, others))
    )
    differences: Vectors = np.abs(first[:, None] - second[None])
    return differences


def align(x: Vectors, y: Vectors, pairs: Pairs, weight: float) -> tuple[Vectors, Vectors]:
    """Both sets of vectors, turned to lie on each other where `pairs` say so, and of unit length.

    U Σ Vᵀ of Σ xᵀy over all pairs gives the orthogonal map (Schönemann 1966). Dimensions in which both agree count more: they
    are multiplied by Σ^weight (Artetxe, Labaka & Agirre 2018). Raises DataError if the vectors of all pairs are 0.
    """
    u, values, v = np.linalg.svd(x[pairs[:, 0]].T @ y[pairs[:, 1]])
    if not values[0] > TINY:
        raise DataError(
            "the words by which two texts are mapped onto each other have no word vectors, since they occur in the company of "
            "all words alike; give longer texts"
        )
    scale = (values / values[0]) ** weight
    return _unit(x @ u * scale), _unit(y @ v.T * scale)


def csls(x: Vectors, y: Vectors) -> Vectors:
    """CSLS [V, W]: twice the cosine, less the mean cosine of each word with its nearest neighbours on the other side."""
    cosine = x @ y.T
    return 2 * cosine - _density(cosine, 1)[:, None] - _density(cosine, 0)[None]


def mutual(scores: Vectors) -> Pairs:
    """The pairs of words that are each other's best."""
    forth, back = scores.argmax(1), scores.argmax(0)
    first = np.arange(len(forth))
    agreed = back[forth] == first
    return np.stack([first[agreed], forth[agreed]], 1)


def find_seeds(source: Sequence[str], target: Sequence[str], likeness: float) -> Pairs:
    """Words with letters that both texts have, and words that resemble each other more than any other word does."""
    numbers = {word: number for number, word in enumerate(target)}
    same = [(number, numbers[word]) for number, word in enumerate(source) if word in numbers]
    taken = {one for one, _ in same}, {other for _, other in same}
    first, second = (
        {word: n for n, word in enumerate(words) if n not in used and len(word) >= SHORTEST and word.isalpha()}
        for words, used in zip((source, target), taken, strict=True)
    )
    return np.array([*same, *_cognates(first, second, likeness)], np.int64).reshape(-1, 2)


def _cognates(source: Mapping[str, int], target: Mapping[str, int], likeness: float) -> list[tuple[int, int]]:
    """Pairs of words whose sets of letter trigrams have the largest Dice coefficient, for both words."""
    if likeness >= 1 or not source or not target:
        return []
    holders: defaultdict[str, list[int]] = defaultdict(list)
    names = list(target)
    sizes = np.array([len(_trigrams(word)) for word in names])
    for number, word in enumerate(names):
        for trigram in _trigrams(word):
            holders[trigram].append(number)
    best: dict[int, tuple[float, int]] = {}
    for word, first in source.items():
        grams = _trigrams(word)
        shared = np.bincount([n for gram in grams for n in holders.get(gram, ())], minlength=len(names))
        dice = 2 * shared / (sizes + len(grams))
        second = int(dice.argmax())
        score = float(dice[second])
        if score >= likeness and score > best.get(second, (0.0, 0))[0]:
            best[second] = score, first
    return [(first, target[names[second]]) for second, (_, first) in best.items()]


def _trigrams(word: str) -> set[str]:
    padded = f"^{word}$"
    return {padded[at : at + 3] for at in range(len(padded) - 2)}


def _normal(vectors: Vectors, words: int) -> Vectors:
    """Unit length, then mean zero over the words, which come first, then unit length again."""
    unit = _unit(vectors)
    return _unit(unit - unit[:words].mean(0))


def _unit(vectors: Vectors) -> Vectors:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _density(cosine: Vectors, axis: int) -> Vectors:
    """The mean of the largest cosines along an axis."""
    count = min(NEIGHBOURS, cosine.shape[axis])
    best: Vectors = np.partition(cosine, -count, axis).take(range(-count, 0), axis).mean(axis)
    return best


def adversarial_pairs(x: Vectors, y: Vectors, frequent: int, *, epochs: int = EPOCHS) -> Pairs:
    """[N, 2]: words that translate each other according to a map that is learnt from the vectors [V, D] and [W, D] alone.

    frequent: words of each side, from the first on, that are learnt from.
    """
    first, second = (torch.from_numpy(np.ascontiguousarray(side[:frequent])) for side in (x, y))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        rotation = _learn(first, second, epochs)
    return mutual(csls(F.normalize(first @ rotation).numpy(), second.numpy()))


def _learn(x: Tensor, y: Tensor, epochs: int) -> Tensor:
    """The map [D, D] from x to y."""
    width = x.size(1)
    discriminator = nn.Sequential(
        nn.Dropout(DROPOUT), nn.Linear(width, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, HIDDEN), nn.LeakyReLU(0.2),
        nn.Linear(HIDDEN, 1),
    )  # fmt: skip
    rotation = torch.eye(width, requires_grad=True)
    optimizers = [
        torch.optim.Adam(parameters, rate, betas=(0.0, 0.9))
        for parameters, rate in zip((discriminator.parameters(), [rotation]), RATES, strict=True)
    ]
    best, chosen = -1.0, torch.eye(width)
    for _ in range(epochs):
        for _ in range(STEPS):
            for _ in range(DISCRIMINATOR_STEPS):
                _step(optimizers[0], _loss(discriminator, rotation.detach(), x, y))
            _step(optimizers[1], -_loss(discriminator, rotation, x, y))
            with torch.no_grad():
                rotation.copy_((1 + ORTHOGONAL) * rotation - ORTHOGONAL * rotation @ rotation.T @ rotation)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] *= DECAY
        if (now := _nearness(x @ rotation.detach(), y)) > best:
            best, chosen = now, rotation.detach().clone()
    return chosen


def _loss(discriminator: nn.Module, rotation: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of the discriminator on a random batch of each side."""
    some = [side[torch.randint(len(side), (BATCH,))] for side in (x, y)]
    logits = discriminator(torch.cat([some[0] @ rotation, some[1]]))[:, 0]
    labels = torch.cat([torch.full((BATCH,), value) for value in (SMOOTHING, 1 - SMOOTHING)])
    return F.binary_cross_entropy_with_logits(logits, labels)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _nearness(x: Tensor, y: Tensor) -> float:
    """The mean cosine of the words of x with their nearest words by CSLS."""
    x, y = F.normalize(x), F.normalize(y)
    best = csls(x.numpy(), y.numpy()).argmax(1)
    return float((x * y[torch.from_numpy(best)]).sum(1).mean())
