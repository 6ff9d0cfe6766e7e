"""Metrics of texts, from 0 to 100 (TER may be higher). BLEU, chrF and TER are those of sacreBLEU.

A metric is computed in two steps: counts for each sentence, and a value from their sums. Tests of significance can then
resample the counts instead of the text. sacreBLEU is imported only where it is used, since translation does not need it.

BLEU needs the tokenizer of sacreBLEU that suits the language: the usual one finds words at spaces, which some languages do not
write.

Shapes: N sentences · S counts per sentence.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.config.registry import find_table, load, suggest
from weft.errors import ConfigError, DataError
from weft.evaluation import METRICS

Counts = NDArray[np.float64]

PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"} | dict.fromkeys(
    ("spm", "flores101", "flores200", "spBLEU-1K"), "sentencepiece"
)
"""Packages to install for tokenizers that sacreBLEU does not bring along."""

USUAL = "13a"

LANGUAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("zh", "cmn", "yue"), ("zh",)),
    **dict.fromkeys(("ja", "jpn"), ("ja-mecab", "char")),
    **dict.fromkeys(("ko", "kor"), ("ko-mecab", USUAL)),
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), ("char",)),
}
"""Language → its tokenizer and, if that may not be installed, the one to use instead. All others have the usual one."""

SCRIPTS = (
    ("ja", "Japanese", re.compile(r"[\u3040-\u30ff]"), 0.05),
    ("zh", "Chinese", re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"), 0.5),
    ("th", "Thai, Lao, Khmer, Burmese or Tibetan", re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"), 0.5),
)
"""Language, script, its characters, and the share of them from which on a text is in it; the first that applies."""

SAMPLE = 1000
"""Texts whose script is counted."""

SPACED = 1 / 8
"""A text with more spaces per letter has been split into words already."""


@dataclass(frozen=True)
class MetricScore:
    """A value with the signature that makes it reproducible. digits: decimals that tables show."""

    name: str
    value: float
    signature: str
    higher_is_better: bool = True
    key: str = ""
    digits: int = 2


@dataclass(frozen=True)
class Breakdown:
    """Scores in detail: a table with a name and numbers in each row. key: its name in the JSON document."""

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]

    def document(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}


class Metric(ABC):
    """A metric that is a function of counts summed over sentences."""

    name: str
    higher_is_better: bool = True
    digits: ClassVar[int] = 2
    """Decimals that tables show."""
    several_references: ClassVar[bool] = False
    """Whether each line of a reference is a reference of its own, as for captions."""
    references: int = 1
    """References of each text. If there are more than one, they are the lines of a reference."""

    def read_several(self, references: int) -> None:
        """Reads this many references of each text from now on, as lines. Raises ConfigError if the metric reads one only."""
        if not isinstance(self, SacreMetric | ExactMatch | TokenAccuracy):
            raise ConfigError(f"{self.name} compares with one reference; leave out --reference, or this metric")
        self.references = references

    def references_of(self, reference: str) -> list[str]:
        """The references of a text."""
        return reference.split("\n") if self.references > 1 else [reference]

    @classmethod
    def key(cls) -> str:
        """Its name in logs, `train.best_by` and results: bleu, chrf2, macro_f1."""
        return cls.name.lower().replace(" ", "_")

    @property
    @abstractmethod
    def signature(self) -> str:
        """Everything that must be equal for two values to be comparable."""

    @abstractmethod
    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, S]: the counts of each sentence."""

    def value(self, sums: Counts) -> Counts:
        """[…, S] → […]: the value of each row of sums; unless overridden, the first count in percent of the second."""
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)

    def breakdowns(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[Breakdown]:
        """Tables with details of the value, for metrics that have any."""
        return []

    def score(self, counts: Counts) -> MetricScore:
        """The value over all sentences."""
        value = float(self.value(counts.sum(0)))
        return MetricScore(self.name, value, self.signature, self.higher_is_better, self.key(), self.digits)


class SacreMetric(Metric):
    """A metric with the counts and signature of sacreBLEU (Post 2018)."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def signature(self) -> str:
        self.inner.num_refs = self.references  # sacreBLEU sets it only when it scores
        return str(self.inner.get_signature().format())

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        streams = [list(stream) for stream in zip(*map(self.references_of, references), strict=True)]
        return np.array(self.inner._extract_corpus_statistics(list(hypotheses), streams), np.float64)


class Bleu(SacreMetric):
    """BLEU (Papineni et al. 2002) with n-grams up to 4, smoothed as in mteval-v13a.

    effective_order: leave out orders that a text is too short for, as sacreBLEU does for single sentences.
    """

    name = "BLEU"
    order: ClassVar[int] = 4

    def __init__(self, *, tokenize: str = "13a", lowercase: bool = False, effective_order: bool = False) -> None:
        from sacrebleu.metrics.bleu import BLEU

        if tokenize not in BLEU.TOKENIZERS:
            raise ConfigError(f"BLEU has no tokenizer {tokenize!r}; {suggest(tokenize, BLEU.TOKENIZERS)}")
        try:
            inner = BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=effective_order, max_ngram_order=self.order)
        except (ImportError, RuntimeError):
            raise ConfigError(
                f"the tokenizer {tokenize} needs a package: pip install '{PACKAGES.get(tokenize, 'sacrebleu')}'"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"the tokenizer {tokenize} downloads its model when it is first used, and this failed: {error}; "
                "run the command once with a network connection, or choose another tokenizer"
            ) from None
        super().__init__(inner)
        self.effective_order = effective_order

    def value(self, sums: Counts) -> Counts:
        ours, theirs, correct, total = sums[..., 0], sums[..., 1], *np.split(sums[..., 2:], 2, -1)
        none = (correct == 0) & (total > 0)
        halved = 0.5 ** np.cumsum(none, -1)  # each further order without a match counts half as much
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = np.where(none, halved, correct) / total
            brevity = np.where(ours < theirs, np.exp(1 - theirs / ours), 1.0)
            logs = np.where(total > 0, np.log(precision), 0.0)
            score = 100 * brevity * np.exp(logs.sum(-1) / (total > 0).sum(-1))
        usable = correct.any(-1) & (self.effective_order | (total > 0).all(-1))
        return np.where(usable, score, 0.0)


class Chrf(SacreMetric):
    """chrF2 (Popović 2015): F-score of character n-grams up to 6, with recall weighted twice as much as precision."""

    name = "chrF2"

    def __init__(self, *, lowercase: bool = False) -> None:
        from sacrebleu.metrics.chrf import CHRF

        super().__init__(CHRF(lowercase=lowercase))

    def value(self, sums: Counts) -> Counts:
        orders = sums.reshape(*sums.shape[:-1], -1, 3)
        ours, theirs, match = orders[..., 0], orders[..., 1], orders[..., 2]
        both = (ours > 0) & (theirs > 0)
        seen = np.maximum(both.sum(-1), 1)
        precision = np.where(both, match / np.maximum(ours, 1), 0).sum(-1) / seen
        recall = np.where(both, match / np.maximum(theirs, 1), 0).sum(-1) / seen
        weight = self.inner.beta**2
        below = weight * precision + recall
        return 100 * (1 + weight) * precision * recall / np.where(below > 0, below, 1)


class Ter(SacreMetric):
    """TER (Snover et al. 2006): edits and shifts per word of the reference. Lower is better."""

    name = "TER"
    higher_is_better = False

    def __init__(self) -> None:
        from sacrebleu.metrics.ter import TER

        super().__init__(TER())

    def value(self, sums: Counts) -> Counts:
        edits, words = sums[..., 0], sums[..., 1]
        return 100 * np.where(words > 0, edits / np.where(words > 0, words, 1), edits > 0)


class ExactMatch(Metric):
    """The share of sentences that equal their reference, ignoring whitespace at both ends."""

    name = "exact"
    signature = "sentences equal to their reference|strip:yes"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        pairs = zip(hypotheses, map(self.references_of, references))
        return np.array([[ours.strip() in map(str.strip, theirs), 1] for ours, theirs in pairs], np.float64)


class TokenAccuracy(Metric):
    """The share of words that equal the reference at the same position; missing and extra words count as wrong."""

    name = "accuracy"
    signature = "words equal to the reference at the same place|split:whitespace|of:the longer side"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        counts = []
        for ours, theirs in zip(map(str.split, hypotheses), map(self.references_of, references)):
            each = [(sum(a == b for a, b in zip(ours, one)), max(len(ours), len(one))) for one in map(str.split, theirs)]
            counts.append(max(each, key=lambda count: count[0] / max(1, count[1])))  # the reference that is nearest
        return np.array(counts, np.float64)

    def value(self, sums: Counts) -> Counts:
        right, words = sums[..., 0], sums[..., 1]
        return 100 * np.where(words > 0, right / np.where(words > 0, words, 1), 1.0)


def built_in_metrics() -> list[type[Metric]]:
    """The metrics that are built in, as classes; a metric itself may take long to make."""
    return [load(METRICS, name) for name in METRICS]


def make_metrics(names: Sequence[str] = tuple(METRICS), *, tokenize: str = "13a", lowercase: bool = False) -> list[Metric]:
    """The metrics with the given names, by default all that are built in.

    `tokenize` (for BLEU: 13a, zh, ja-mecab, char, …) and `lowercase` as in sacreBLEU.
    """
    known = find_table("weft.evaluation:METRICS")
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no metric {name!r}; {suggest(name, known)}")
    special: dict[str, Metric] = {"bleu": Bleu(tokenize=tokenize, lowercase=lowercase), "chrf": Chrf(lowercase=lowercase)}
    return [special[name] if name in special else load(known, name)() for name in names]


def check_texts(
    hypotheses: Sequence[str], references: Sequence[str], names: tuple[str, str] = ("hypotheses", "references")
) -> None:
    """Raises DataError if the texts are empty or their numbers differ."""
    if len(hypotheses) != len(references):
        raise DataError(f"there are {len(hypotheses)} {names[0]} for {len(references)} {names[1]}; there must be one per line")
    if not hypotheses:
        raise DataError(f"there is nothing to score: the lists of {names[0]} and {names[1]} are empty")


def score(
    hypotheses: Sequence[str], references: Sequence[str], metrics: Sequence[Metric] | None = None
) -> dict[str, MetricScore]:
    """The scores of a system by metric name; by default under all metrics."""
    check_texts(hypotheses, references)
    chosen = make_metrics() if metrics is None else metrics
    return {metric.name: metric.score(metric.count(hypotheses, references)) for metric in chosen}


@dataclass(frozen=True)
class Bucket:
    """BLEU of the sentences whose source has at least `low` and fewer than `high` words; None if there are none."""

    low: int
    high: int | None
    sentences: int
    bleu: float | None


def by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str],
    edges: Sequence[int] = (10, 20, 30, 40),
    bleu: Metric | None = None,
) -> list[Bucket]:
    """BLEU by source length in words, in buckets divided at `edges`: fewer than 10, 10 to 19, …, 40 and more."""
    check_texts(hypotheses, references)
    check_texts(sources, references, ("sources", "references"))
    if list(edges) != sorted(set(edges)) or any(edge <= 0 for edge in edges):
        raise ConfigError(f"the edges of length buckets must be positive and increasing, not {list(edges)}")
    metric = bleu or Bleu()
    counts = metric.count(hypotheses, references)
    place = np.searchsorted(edges, [len(source.split()) for source in sources], side="right")
    buckets = []
    for index, (low, high) in enumerate(zip([0, *edges], [*edges, None])):
        inside = counts[place == index]
        buckets.append(Bucket(low, high, len(inside), float(metric.value(inside.sum(0))) if len(inside) else None))
    return buckets


@dataclass(frozen=True)
class Tokenization:
    """The name of a tokenizer, and a sentence that says why it was chosen, if it is not the usual one."""

    name: str
    note: str = ""


def choose_tokenization(wanted: str, language: str | None, references: Sequence[str]) -> Tokenization:
    """The tokenizer called `wanted`; for "auto", that of the target language or, if it is None, of the references' script."""
    if wanted != "auto":
        return Tokenization(wanted)
    code = re.split("[-_]", language.lower())[0] if language else ""
    why = f"the target language is {language}"
    if not language:
        code, script = script_of(references[:SAMPLE])
        why = f"the references are in {script} script"
    if code not in LANGUAGES:
        return Tokenization(USUAL)
    name, problem = LANGUAGES[code][0], ""
    try:
        Bleu(tokenize=name)
    except ConfigError as error:
        name, problem = LANGUAGES[code][-1], f" ({error})"
    return Tokenization(name, f"BLEU uses sacreBLEU's tokenizer {name}, because {why}{problem}")


def script_of(texts: Sequence[str]) -> tuple[str, str]:
    """The language and script of texts that are written without spaces; ("", "") for all others."""
    whole = "\n".join(texts)
    letters = sum(map(str.isalpha, whole)) or 1
    for language, script, characters, least in SCRIPTS:
        count = len(characters.findall(whole))
        if count / max(letters, count) >= least and sum(line.strip().count(" ") for line in texts) / letters < SPACED:
            return language, script
    return "", ""
