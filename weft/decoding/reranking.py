"""Reranking: a second opinion on the texts that a search found.

Shapes: N candidates of one source · V different n-grams among them.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from weft.decoding.predictor import Prediction
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import Bleu, Chrf

Matrix = NDArray[np.float64]


@runtime_checkable
class Scorer(Protocol):
    """A run that can score texts."""

    def log_likelihoods(self, source: str, targets: Sequence[str]) -> list[tuple[float, int]]:
        """For each target its log-probability given the source, and its number of tokens, EOS included."""
        ...


OpenScorer = Callable[[str], Scorer]
"""Opens the run in a folder, or gives the one that is open already."""


class Rerank(ABC):
    """Scores the candidates of a source; the best score wins.

    candidates: texts per source that the search finds for it.
    """

    candidates: int

    @abstractmethod
    def scores(self, source: str, candidates: Sequence[Prediction]) -> list[float]:
        """A score per candidate, higher is better. It depends on this source and its candidates only."""


def no_rerank(open_scorer: OpenScorer | None) -> None:
    """Keeps the order of the search."""


class MinimumBayesRisk(Rerank):
    """Prefers the text that agrees most with all candidates (minimum Bayes risk; Kumar & Byrne 2004, Eikema & Aziz 2020).

    A score is the mean utility of the text with each candidate, itself included, as the reference.

    utility: the measure of agreement, sacreBLEU's sentence score
    candidates: texts per source, drawn by the search: the n best of a beam, or samples
    """

    def __init__(
        self,
        open_scorer: OpenScorer | None,
        *,
        utility: Literal["chrf", "bleu"] = "chrf",
        candidates: PositiveInt = 32,
    ) -> None:
        self.utility, self.candidates = utility, candidates

    def scores(self, source: str, candidates: Sequence[Prediction]) -> list[float]:
        texts = Counter(each.text for each in candidates)
        utilities = pairwise(list(texts), self.utility)
        shares = np.array(list(texts.values())) / len(candidates)
        expected = dict(zip(texts, (utilities @ shares).tolist(), strict=True))
        return [expected[each.text] for each in candidates]


class ModelScore(Rerank):
    """Mixes the score of the search with that of another run, which reads the same source.

    The score is weight · log p(text | source) / lengthᵅ by the other run, plus (1 − weight) times the score of the search.

    run: folder of the other run
    weight: share of the other run's score
    length_penalty: α, by which its score is normalised; the length counts its own tokens
    candidates: texts per source that the search finds
    """

    def __init__(
        self,
        open_scorer: OpenScorer | None,
        *,
        run: str,
        weight: Annotated[float, Field(ge=0, le=1)] = 0.5,
        length_penalty: float = 1.0,
        candidates: PositiveInt = 8,
    ) -> None:
        self.weight, self.length_penalty, self.candidates = weight, length_penalty, candidates
        if open_scorer is None:
            raise ConfigError("decode.rerank: another run cannot be opened here; set decode.rerank: none")
        try:
            self.scorer = open_scorer(run)
        except RunError as error:
            raise RunError(f"decode.rerank.run: {error}") from None

    def scores(self, source: str, candidates: Sequence[Prediction]) -> list[float]:
        texts = list(dict.fromkeys(each.text for each in candidates))
        likelihoods = dict(zip(texts, self.scorer.log_likelihoods(source, texts), strict=True))
        weight, alpha = self.weight, self.length_penalty
        pairs = [(each.score, *likelihoods[each.text]) for each in candidates]
        return [weight * logp / length**alpha + (1 - weight) * score for score, logp, length in pairs]


def pairwise(texts: Sequence[str], utility: Literal["chrf", "bleu"]) -> Matrix:
    """[N, N]: sacreBLEU's sentence score of each text with each other as the reference.

    n-grams are counted once per text instead of once per pair, and matches are products of matrices.
    """
    metric = _metric(utility)
    segments: list[str | list[str]] = [str(metric.inner._preprocess_segment(text)).split() for text in texts]
    if utility == "chrf":  # n-grams of characters without white space, not of words
        segments = ["".join(words) for words in segments]
    orders = [
        _matches([_ngrams(units, order) for units in segments]) for order in range(1, (6 if utility == "chrf" else 4) + 1)
    ]
    totals = np.array([[max(0, len(units) - order) for order in range(len(orders))] for units in segments], np.float64)
    ours, theirs = np.broadcast_arrays(totals[:, None], totals[None])
    matches = np.stack(orders, -1)
    if utility == "chrf":
        return metric.value(np.stack([ours, theirs, matches], -1).reshape(*matches.shape[:2], -1))
    return metric.value(np.concatenate([ours[..., :1], theirs[..., :1], matches, ours], -1))


@cache
def _metric(utility: str) -> Chrf | Bleu:
    return Chrf() if utility == "chrf" else Bleu(effective_order=True)


def _ngrams(units: str | list[str], order: int) -> Counter[Any]:
    grams = (units[start : start + order] for start in range(len(units) - order + 1))
    return Counter(gram if isinstance(gram, str) else tuple(gram) for gram in grams)


def _matches(counts: Sequence[Counter[Any]]) -> Matrix:
    """[N, N]: Σ over n-grams of the smaller of two counts, as Σ over k of how many n-grams both texts have k times or more."""
    places = {gram: place for place, gram in enumerate(dict.fromkeys(gram for each in counts for gram in each))}
    table = np.zeros((len(counts), len(places)), np.float32)
    for row, each in enumerate(counts):
        table[row, [places[gram] for gram in each]] = list(each.values())
    matches = np.zeros((len(counts), len(counts)), np.float64)
    for least in range(1, int(table.max(initial=0)) + 1):
        has = (table >= least).astype(np.float32)
        matches += has[:, has.any(0)] @ has[:, has.any(0)].T
    return matches
