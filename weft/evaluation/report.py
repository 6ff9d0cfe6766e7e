"""Evaluates a system: a table for people, a JSON document for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table

from weft.evaluation.metrics import Breakdown, Bucket, Metric, MetricScore, by_length, check_texts, make_metrics
from weft.evaluation.significance import SEED, TESTS, Significance, Test, confidence

FORMAT = 1
"""The version of the JSON document. It changes when a key changes its meaning or is removed, not when one is added."""

SHOWN = 30
"""The most rows of a table of details on the terminal."""


@dataclass(frozen=True)
class Baseline:
    """Another system's output for the same test set."""

    name: str
    hypotheses: Sequence[str]


@dataclass(frozen=True)
class Evaluation:
    """The scores of a system on a test set, compared with a baseline if there is one."""

    system: str
    data: str
    sentences: int
    scores: list[MetricScore]
    intervals: list[tuple[float, float]]
    baseline: str | None = None
    comparisons: list[Significance] = field(default_factory=list)
    lengths: list[Bucket] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Plain data for JSON with stable keys; see FORMAT."""
        metrics = {
            score.name: {
                "value": score.value,
                "signature": score.signature,
                "ci": list(ci),
                "higher_is_better": score.higher_is_better,
            }
            for score, ci in zip(self.scores, self.intervals)
        }
        buckets = [
            {"from": item.low, "below": item.high, "sentences": item.sentences, "bleu": item.bleu} for item in self.lengths
        ]
        return {
            "format": FORMAT,
            "system": self.system,
            "data": self.data,
            "sentences": self.sentences,
            "metrics": metrics,
            "comparison": self._comparison(),
            "by_length": buckets,
            **{each.key: each.document() for each in self.breakdowns},
        }

    def _comparison(self) -> dict[str, Any] | None:
        if not self.comparisons:
            return None
        first = self.comparisons[0]
        metrics = {
            item.metric: {"baseline": item.baseline, "delta": item.delta, "ci": list(item.ci), "p": item.p}
            for item in self.comparisons
        }
        return {"baseline": self.baseline, "test": first.test, "samples": first.samples, "seed": first.seed, "metrics": metrics}

    def table(self) -> RenderableType:
        """The tables for the terminal, with rich."""
        return Group(self._scores(), *([self._lengths()] if self.lengths else []), *map(_breakdown, self.breakdowns))

    def signatures(self) -> list[str]:
        """The signature of each metric, one line each. Print them without wrapping, so that they can be copied."""
        return [f"{score.name}: {score.signature}" for score in self.scores]

    def _scores(self) -> Table:
        title = escape(f"{self.system} on {self.data} ({self.sentences} sentences)")
        compared = [escape(str(self.baseline)), "difference", "95 % interval", "p"] if self.comparisons else []
        numbers = (Column(heading, justify="right") for heading in ("score", "95 % interval", *compared))
        table = Table("metric", *numbers, title=title, title_justify="left")
        for index, (score, (low, high)) in enumerate(zip(self.scores, self.intervals)):
            arrow = "↑" if score.higher_is_better else "↓"
            digits = score.digits
            cells = [escape(f"{score.name} {arrow}"), f"{score.value:.{digits}f}", f"{low:.{digits}f} … {high:.{digits}f}"]
            table.add_row(*cells, *(_compared(self.comparisons[index], digits) if self.comparisons else ()))
        return table

    def _lengths(self) -> Table:
        numbers = (Column(heading, justify="right") for heading in ("words", "sentences", "BLEU"))
        table = Table(*numbers, title="BLEU by source length")
        for item in self.lengths:
            words = f"{item.low} and more" if item.high is None else f"{item.low} to {item.high - 1}"
            table.add_row(words, str(item.sentences), "–" if item.bleu is None else f"{item.bleu:.2f}")
        return table


def _breakdown(item: Breakdown) -> Table:
    name, *numbers = map(escape, item.columns)
    table = Table(name, *(Column(heading, justify="right") for heading in numbers), title=item.title, title_justify="left")
    for row in item.rows[:SHOWN]:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    if len(item.rows) > SHOWN:
        table.caption = f"and {len(item.rows) - SHOWN:,} more; --json has all"
    return table


def _compared(item: Significance, digits: int) -> tuple[str, ...]:
    colour = "green" if item.better else "red"
    delta = f"{item.delta:+.{digits}f}"
    shown = f"[bold {colour}]{delta}[/]" if item.p < 0.05 else delta
    return f"{item.baseline:.{digits}f}", shown, f"{item.ci[0]:+.{digits}f} … {item.ci[1]:+.{digits}f}", f"{item.p:.3f}"


def _free_name(name: str, taken: Iterable[str]) -> str:
    """The name of a metric, with a number if another has it already."""
    names = {name, *(f"{name} ({number})" for number in range(2, len(set(taken)) + 2))} - set(taken)
    return min(names, key=lambda each: (len(each), each))


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    system: str,
    data: str,
    sources: Sequence[str] | None = None,
    baseline: Baseline | None = None,
    metrics: Sequence[Metric] | None = None,
    test: Test = "randomisation",
    samples: int = 1000,
    seed: int = SEED,
) -> Evaluation:
    """Scores a system with confidence intervals, against a baseline and by source length if these are given."""
    check_texts(hypotheses, references)
    if baseline:
        check_texts(baseline.hypotheses, references, (f"hypotheses of {baseline.name}", "references"))
    scores: list[MetricScore] = []
    intervals, comparisons = [], []
    chosen = make_metrics() if metrics is None else metrics
    for metric in chosen:
        ours = metric.count(hypotheses, references)
        score = metric.score(ours)
        name = _free_name(score.name, [each.name for each in scores])
        scores.append(replace(score, name=name))
        intervals.append(confidence(metric, ours, samples, seed))
        if baseline:
            found = TESTS[test](metric, ours, metric.count(baseline.hypotheses, references), samples, seed)
            comparisons.append(replace(found, metric=name))
    bleu = next((metric for metric in chosen if metric.name == "BLEU"), None)
    lengths = by_length(hypotheses, references, sources, bleu=bleu) if sources is not None else []
    other = baseline.name if baseline else None
    details = [each for metric in chosen for each in metric.breakdowns(hypotheses, references)]
    return Evaluation(system, data, len(references), scores, intervals, other, comparisons, lengths, details)
