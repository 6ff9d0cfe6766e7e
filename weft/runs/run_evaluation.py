"""Scores of trained runs on test data: metrics, significance tests, and contrastive pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.data.formats import holds_pairs, open_pairs
from weft.data.text_lines import read_lines
from weft.decoding.reranking import Scorer
from weft.errors import ConfigError, DataError
from weft.evaluation.command_metric import TIMEOUT, CommandMetric, command_of
from weft.evaluation.contrastive_pairs import ContrastiveResult, judge, read_contrasts
from weft.evaluation.metrics import Metric
from weft.runs.trained_model import Trained
from weft.runs.translator import load_trained
from weft.tasks.language_modeling.predictor import GenerationPredictor

if TYPE_CHECKING:
    from weft.evaluation.report import Baseline, Evaluation


@dataclass(frozen=True)
class AddedMetrics:
    """Metrics that commands compute, beside those of the task. timeout: seconds that each may take for a test set."""

    commands: Sequence[str] = ()
    timeout: float = TIMEOUT

    def metrics(self, trained: Trained, sources: Sequence[str], *, several: bool = False) -> list[Metric]:
        several = several or trained.task.info.several_references
        return [CommandMetric(each, sources, several=several, timeout=self.timeout) for each in self.commands]

    def refuse(self, trained: Trained) -> None:
        """Raises ConfigError if there are any, for a run whose task has no outputs to compare with references."""
        if self.commands:
            raise ConfigError(
                f"--metric: the task of {trained.task.run}, {trained.config.task['kind']}, has no outputs to compare with "
                "references, so no metric can be added"
            )


NO_METRICS = AddedMetrics()


def evaluate(
    run: str | Path | Sequence[str | Path],
    data: str | Sequence[str],
    *,
    against: str | Path | Sequence[str | Path] | None = None,
    device: str = "auto",
    reference: Sequence[str] = (),
    metric: Sequence[str] = (),
    metric_timeout: float = TIMEOUT,
    **options: Any,
) -> Evaluation | dict[str, float]:
    """Scores a run on test data by the metrics of its task, as `weft evaluate` does.

    The result has `scores` (each with value, signature and interval), `table()` and `document()`; for a task without answers to
    compare, such as language modelling, it is a mapping of scores. `against` is another run, compared by a significance test.
    `reference` names further references, see `read_references`. `metric` are metrics of other programs, each "command:COMMAND",
    which may take `metric_timeout` seconds; see `weft.evaluation.command_metric`. `options` are those of the section decode:
    beam=4, …
    """
    added = AddedMetrics([command_of(each) for each in metric], metric_timeout)
    files = [data] if isinstance(data, str) else list(data)
    systems = [(str(each), load_trained(each, device=device)) for each in (run, against) if each is not None]
    first = systems[0][1]
    if not first.task.metrics():
        added.refuse(first)
        return first.score(files)

    def predict(name: str, system: Trained, lines: list[str]) -> list[str]:
        return [each.text for each in system.stream(lines, **options)]

    return evaluate_systems(systems, files, predict, reference=reference, added=added)


def evaluate_systems(
    systems: Sequence[tuple[str, Trained]],
    data: Sequence[str],
    predict: Callable[[str, Trained, list[str]], list[str]],
    *,
    outputs: Path | None = None,
    reference: Sequence[str] = (),
    added: AddedMetrics = NO_METRICS,
    tokenize: str | None = None,
    lowercase: bool = False,
    **significance: Any,
) -> Evaluation:
    """Scores the first of some trained models, each with its name.

    A second one, or a file with the outputs of another system, is its baseline.

    predict: the texts of a system for all inputs, given its name, itself and the inputs · reference: further references, see
    `read_references` · added: metrics of other programs,
    beside those of the task · tokenize, lowercase: see
    `Trained.metrics` · significance: the test and its samples, see `weft.evaluation.report.evaluate`.
    """
    from weft.evaluation import report  # which imports rich's tables

    (name, first), *_ = systems
    pairs = first.task.examples(data, first.warn or (lambda message: None))
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    metrics = first.metrics(references, tokenize=tokenize, lowercase=lowercase)
    if reference:
        references = read_references(references, reference, sources)
        for metric in metrics:
            metric.read_several(1 + len(reference))
    metrics += added.metrics(first, sources, several=bool(reference))
    theirs = None if outputs is None else _baseline(outputs, len(pairs))
    ours, *others = [(each, predict(each, system, sources)) for each, system in systems]
    return report.evaluate(
        ours[1],
        references,
        system=name,
        data=" ".join(data),
        sources=sources if any(metric.name == "BLEU" for metric in metrics) else None,
        baseline=report.Baseline(*others[0]) if others else theirs,
        metrics=metrics,
        **significance,
    )


def evaluate_contrastive(
    system: Trained, file: str | Path, *, advance: Callable[[], None] = lambda: None, **options: Any
) -> ContrastiveResult:
    """The share of pairs whose right text a model prefers to the wrong one, on a file of `weft.evaluation.contrastive_pairs`.

    A translation model scores both as translations of the source, a language model as its continuations, by forced decoding.
    `advance` is called after each pair; `options` are those of the section decode.
    """
    contrasts = read_contrasts(read_lines(file), str(file))
    predictor = system.predictor(**{"rerank": "none", **options})
    scores: list[tuple[float, float]] = []
    for each in contrasts:
        texts = [each.right, each.wrong]
        if isinstance(predictor, Scorer):
            right, wrong = (score for score, _ in predictor.log_likelihoods(each.source, texts))
        elif isinstance(predictor, GenerationPredictor):
            right, wrong = predictor.log_likelihoods_of([f"{each.source} {text}".strip() for text in texts])
        else:
            raise ConfigError(
                f"contrastive pairs need a run that translates or a language model; the task of {system.task.run} is "
                f"{system.config.task['kind']}"
            )
        scores.append((right, wrong))
        advance()
    return judge(contrasts, scores)


def read_references(references: Sequence[str], others: Sequence[str], sources: Sequence[str]) -> list[str]:
    """The references of each text, one in each line: those of the test data, and those of other files in the same order.

    Another file has one reference per line, or is data of the same sources: `test.tsv#1,3`.
    """
    streams = [references]
    for name in others:
        if holds_pairs(name):
            pairs = list(open_pairs(name))
            if wrong := next(
                (number for number, (ours, (theirs, _)) in enumerate(zip(sources, pairs, strict=False), 1) if ours != theirs), 0
            ):
                raise DataError(f"--reference {name}: pair {wrong} has another source than the test data")
            streams.append([target for _, target in pairs])
        else:
            streams.append(list(read_lines(name)))
        if len(streams[-1]) != len(references):
            counts = f"{len(streams[-1]):,} references, and the test data {len(references):,}"
            raise DataError(f"--reference {name} has {counts}; there must be one for each")
    return ["\n".join(" ".join(each.split("\n")) for each in row) for row in zip(*streams, strict=True)]


def _baseline(file: Path, count: int) -> Baseline:
    """The outputs of another system, one per line."""
    from weft.evaluation.report import Baseline

    lines = list(read_lines(file))
    if len(lines) != count:
        raise DataError(f"{file} has {len(lines):,} lines, and the test data {count:,}; there must be one for each")
    return Baseline(str(file), lines)
