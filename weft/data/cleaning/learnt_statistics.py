"""Statistics learnt from a sample of the data: lengths, the languages of both sides, and which words translate which.

The sample are the pairs with the lowest hashes, so it depends neither on the order of the pairs nor on how they are divided.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.cleaning.duplicates import pair_hash
from weft.data.formats import Texts
from weft.data.ibm_model_1 import likely_translations
from weft.data.term_automata import is_unspaced
from weft.version import install

SAMPLE = 100_000
"""Pairs that statistics are learnt from."""

WORD = re.compile(r"\w+")
BEST, FREQUENT = 8, 30
"""Translations of a word that count as its translations; frequent words, which occur with everything and prove nothing."""

WORDS, LEAST = 60_000, 3
"""Most words of a side whose translations are learnt, and fewest occurrences of each."""

MOST_TRUE, ROUNDS = 0.99, 20
"""Largest share of true pairs that is assumed; rounds of estimating it."""

CHECKED, LEARNT = 5000, 0.05
"""Pairs of each half that say how many words are covered; the difference to random pairs from which on that means something."""

FEWEST_LETTERS = 10
"""Letters of a text whose language is looked at. Shorter ones may be of any language."""

FEWEST_TYPICAL = 100
"""Different texts from which the look of a language is learnt."""

UNLIKE = 0.05
"""The share of typical texts that is as unlike the others as texts in other languages may be."""

COMMON = 0.03
"""Share of the texts of a side from which on a label is one of its language, if py3langid does not know the language."""

GRAMS = 1 << 18
ORDER = 4
"""Size and order of the table of character n-grams that tell the sides apart."""

Floats = NDArray[np.float64]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; characters of scripts without spaces are words, in pairs."""
    words: list[str] = []
    for word in WORD.findall(text.casefold()):
        if is_unspaced(word[0]):
            words += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        else:
            words.append(word)
    return words


def sampled(pairs: Iterable[tuple[str, str]], size: int = SAMPLE) -> tuple[Texts, int]:
    """The pairs with the lowest hashes, without empty ones, ordered by their hashes; and the number of all pairs."""
    heap: list[tuple[int, str, str]] = []
    chosen: set[int] = set()
    total = 0
    for source, target in pairs:
        total += 1
        rank = -pair_hash(source, target)
        if (len(heap) == size and rank <= heap[0][0]) or rank in chosen or not (source.strip() and target.strip()):
            continue
        chosen.add(rank)
        if len(heap) < size:
            heapq.heappush(heap, (rank, source, target))
        else:
            chosen.discard(heapq.heapreplace(heap, (rank, source, target))[0])
    return [(source, target) for _, source, target in sorted(heap, reverse=True)], total


class _WordCorpus:
    """The words of a sample as ids, as `likely_translations` reads them."""

    def __init__(self, rows: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, side: str, place: int) -> NDArray[np.int64]:
        return self.rows[place][side == "target"]


class _Lexicon:
    """The likely translations of the words of both sides, learnt by IBM Model 1 from pairs of sets of words."""

    def __init__(self, pairs: Sequence[tuple[set[str], set[str]]]) -> None:
        counts = [Counter(word for pair in pairs for word in pair[side]) for side in (0, 1)]
        known = [sorted(word for word, count in side.most_common(WORDS) if count >= LEAST) for side in counts]
        ids = [{word: place for place, word in enumerate(side)} for side in known]
        rows = [
            [np.array(sorted(ids[side][word] for word in pair[side] if word in ids[side]), np.int64) for side in (0, 1)]
            for pair in pairs
        ]
        self.translations: list[dict[str, frozenset[str]]] = [{}, {}]
        for side in (0, 1) if min(map(len, known)) > FREQUENT else ():
            other = 1 - side
            corpus: Any = _WordCorpus([(row[side], row[other]) for row in rows])
            best, _ = likely_translations(
                corpus, len(known[side]), len(known[other]), most=BEST, frequent=FREQUENT, pairs=len(rows)
            )
            # Frequent words prove nothing: some of their translations are in every text.
            frequent = {word for word, _ in counts[side].most_common(FREQUENT)}
            self.translations[side] = {
                word: frozenset(known[other][place] for place in row if place >= 0)
                for word, row in zip(known[side], best.tolist(), strict=True)
                if word not in frequent
            }

    def counts(self, source: set[str], target: set[str]) -> tuple[int, int]:
        """The number of words with one of their translations, or with themselves, on the other side; and of all known words."""
        covered = total = 0
        for words, other, translations in zip((source, target), (target, source), self.translations, strict=True):
            for word in words:
                if likely := translations.get(word):
                    total += 1
                    covered += word in other or not likely.isdisjoint(other)
        return covered, total


class LexicalModel:
    """The likelihood that the words of two texts translate each other.

    The log-likelihood ratio of a pair compares the words that have a translation on the other side with those of the pairs of
    the data, most of which are true, and with those of pairs drawn at random. Half of the pairs, by their hashes, are scored by
    the words of the other half, since every pair would confirm what was learnt from itself.

    prior: the logarithm of how much more frequent true pairs are
    """

    def __init__(self, sample: Texts) -> None:
        tokens = [(set(words_of(source)), set(words_of(target))) for source, target in sample]
        halves: list[list[tuple[set[str], set[str]]]] = [[], []]
        for pair, words in zip(sample, tokens, strict=True):
            halves[_half(*pair)].append(words)
        self.lexicons = [_Lexicon(half) for half in halves]
        checked = [(half, number) for half in (0, 1) for number in range(min(CHECKED, len(halves[half])))]
        true = [self.lexicons[1 - half].counts(*halves[half][number]) for half, number in checked]
        false = [
            self.lexicons[1 - half].counts(halves[half][number][0], halves[half][number - 1][1]) for half, number in checked
        ]
        self.false = _share(np.array([covered for covered, _ in false]), np.array([total for _, total in false]))
        self.true, share = _true_share(np.array(true).reshape(-1, 2), self.false)
        self.prior = math.log(share / (1 - share))

    def score(self, source: str, target: str) -> float:
        """The logarithm of how much likelier a pair is as a true one than as a random one; 0 if nothing is known."""
        if self.true - self.false < LEARNT:
            return 0.0
        lexicon = self.lexicons[1 - _half(source, target)]
        covered, total = lexicon.counts(set(words_of(source)), set(words_of(target)))
        return covered * math.log(self.true / self.false) + (total - covered) * math.log((1 - self.true) / (1 - self.false))


def _half(source: str, target: str = "") -> int:
    return pair_hash(source, target) & 1


def _share(covered: NDArray[Any], totals: NDArray[Any]) -> float:
    """The share of covered words, between 0 and 1."""
    return float((covered.sum() + 1) / (totals.sum() + 2))


def _true_share(counts: NDArray[np.int64], false: float) -> tuple[float, float]:
    """The share of words that are covered in true pairs, and the share of true pairs.

    The pairs of the data are a mixture of two binomial distributions, of which that of false pairs is known; by expectation
    maximisation.
    """
    covered, totals = counts.T
    true, share = _share(covered, totals), MOST_TRUE
    for _ in range(ROUNDS):
        ratio = covered * math.log(true / false) + (totals - covered) * math.log((1 - true) / (1 - false))
        weights = 1 / (1 + np.exp(-np.clip(ratio + math.log(share / (1 - share)), -50, 50)))
        true = max(false, _share(weights * covered, weights * totals))
        share = min(MOST_TRUE, max(1 - MOST_TRUE, float(weights[totals > 0].mean()) if (totals > 0).any() else MOST_TRUE))
    return true, share


class SideModel:
    """Character n-grams that tell the two sides apart, so that swapped and copied texts are found in any language."""

    def __init__(self, sample: Texts) -> None:
        counts = np.ones((2, GRAMS))
        for pair in sample:
            for side, text in enumerate(pair):
                np.add.at(counts[side], _grams(text), 1)
        self._ratio: Floats = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())

    def score(self, text: str) -> float:
        """The mean over n-grams of how much likelier they are in sources than in targets, as a logarithm."""
        grams = _grams(text)
        return float(self._ratio[grams].mean()) if len(grams) else 0.0


def _grams(text: str) -> NDArray[np.int64]:
    codes = np.frombuffer(f" {text.casefold()} ".encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    if len(codes) < ORDER:
        return codes[:0]
    hashes = np.zeros(len(codes) - ORDER + 1, np.int64)
    for place in range(ORDER):
        hashes = (hashes * 1_000_003 + codes[place : len(codes) - ORDER + 1 + place]) & 0xFFFFFFFFFF
    return (hashes ^ (hashes >> 20)) % GRAMS


@cache
def identifier() -> Any:
    """py3langid's identifier; None if the package is not installed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def missing_identifier() -> str:
    """A note on the work that needs py3langid, and how to install it; empty if it is installed."""
    if identifier() is not None:
        return ""
    return f"texts in a third language were not looked for; this needs the package py3langid: {install('languages')}"


class Languages:
    """The language of one side: the given one if py3langid knows it, else the labels that it gives to many of the texts.

    A language that py3langid does not know gets the labels of its relatives. So a text with another label is in another
    language only if it is also unlike the texts of this side: less likely by their n-grams than nearly all of those with the
    commonest label. Half of the texts, by their hashes, are compared with the other half.

    given: its code, if it is known · labels: those of texts in this language · shares: the commonest labels of the sample
    """

    def __init__(self, texts: Sequence[str], given: str | None) -> None:
        self.given = given
        labelled = [(text, label) for text in texts if (label := likely_language(text)) is not None]
        found = Counter(label for _, label in labelled)
        total = max(1, sum(found.values()))
        self.shares = {label: count / total for label, count in found.most_common(5)}
        base = (given or "").split("-")[0].split("_")[0].lower()
        known = identifier() is not None and base in identifier().labels
        common = {label for label, count in found.items() if count >= COMMON * total}
        # Without a given language, one label that most texts have is the language; else several are labels of an unknown one.
        first = next(iter(self.shares), "")
        clear = not given and self.shares.get(first, 0) > 0.5
        self.labels = frozenset({base} if known else {first} if clear else common)
        typical = list(dict.fromkeys(text for text, label in labelled if label == first))
        counts = np.ones((2, GRAMS))
        for text in typical:
            np.add.at(counts[_half(text)], _grams(text), 1)
        self._known: Floats = np.log(counts / counts.sum(1, keepdims=True))
        enough = len(typical) >= FEWEST_TYPICAL
        self._least = float(np.quantile([self._likeness(text) for text in typical], UNLIKE)) if enough else math.inf

    def _likeness(self, text: str) -> float:
        """The mean logarithm of the probability of a text's n-grams in the half of the typical texts that it is not in."""
        grams = _grams(text)
        return float(self._known[1 - _half(text)][grams].mean()) if len(grams) else 0.0

    def margin(self, text: str) -> float:
        """The logarithm of the ratio by which another language is likelier than those of this side; 0 if nothing is known."""
        if not self.labels or (label := likely_language(text)) is None or label in self.labels:
            return 0.0
        if self._likeness(text) >= self._least:
            return 0.0
        ranked = identifier().rank(text)
        own = max(score for label, score in ranked if label in self.labels)
        return float(ranked[0][1] - own)


def likely_language(text: str) -> str | None:
    """py3langid's label of a text; None if the text is too short, or the package is not installed."""
    if identifier() is None or sum(map(str.isalpha, text)) < FEWEST_LETTERS:
        return None
    return str(identifier().classify(text)[0])


class LearntStatistics:
    """Everything that filters know about the data as a whole.

    ratio: the median of the target's length over the source's, as a logarithm · total: the number of pairs
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], languages: tuple[str | None, str | None] = (None, None)) -> None:
        sample, self.total = sampled(pairs)
        lengths = [(len(source) + 1, len(target) + 1) for source, target in sample] or [(1, 1)]
        self.ratio = float(np.median([math.log(target / source) for source, target in lengths]))
        sides = list(zip(*sample)) or [(), ()]
        self.languages = [Languages(texts[:5000], given) for texts, given in zip(sides, languages, strict=True)]
        self.sides = SideModel(sample[:20_000])
        self.lexicon = LexicalModel(sample)
        self.sample = sample
