"""Trained runs at work: the `Translator` that `weft.load` returns, and the `Generator` of `weft.load_generator`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from weft.data.text_lines import read_lines
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import Warn
from weft.decoding.predictor import Prediction
from weft.decoding.reranking import Scorer
from weft.errors import ConfigError, DataError, RunError
from weft.evaluation.contrastive_pairs import ContrastiveResult, judge, read_contrasts
from weft.explain.html_page import Explained
from weft.runs.open_run import open_runs
from weft.runs.trained_model import Trained, check_text, check_texts
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.language_modeling.predictor import Generated, GenerationPredictor, Prompt
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.predictor import TranslationPredictor

if TYPE_CHECKING:
    from weft.evaluation.report import Baseline, Evaluation
    from weft.tasks.translation.documents import Format


class Translator(Trained):
    """A trained model that answers lines of text, by translations or labels."""

    task: CorpusTask

    @property
    def source(self) -> Tokenizer:
        """The source tokenizer."""
        return self.task.source

    @property
    def target(self) -> Tokenizer:
        """The target tokenizer; a classifier has none."""
        return self.task.target

    @overload
    def translate(
        self,
        texts: str,
        *,
        attention: bool = ...,
        prefix: str | None = ...,
        terms: Terms | None = ...,
        format: Format = ...,
        **options: Any,
    ) -> Prediction: ...
    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        attention: bool = ...,
        prefix: Sequence[str] | None = ...,
        terms: Terms | Sequence[Terms] | None = ...,
        **options: Any,
    ) -> list[Prediction]: ...

    def translate(
        self,
        texts: str | Iterable[str],
        *,
        attention: bool = False,
        prefix: str | Sequence[str] | None = None,
        terms: Terms | Sequence[Terms] | None = None,
        format: Format = "text",
        **options: Any,
    ) -> Prediction | list[Prediction]:
        """Translates one text or several; a classifier gives labels. `options` are those of the section decode: beam=4, …

        `prefix` forces how translations begin. `attention` adds the weights of every layer that has any. `terms` are words that
        translations must use or avoid, the same for all texts or one item per text. One text gives a `Translation` (or a
        `Label`), several give a list. With `format` html, srt or xliff, a text is a document whose markup stays.
        """
        if isinstance(texts, str):
            if not (prefix is None or isinstance(prefix, str)):
                raise ConfigError("with one text, give one prefix, not a list")
            first = None if prefix is None else [prefix]
            return self.translate([texts], attention=attention, prefix=first, terms=terms, format=format, **options)[0]
        texts = check_texts(texts)
        if isinstance(prefix, str):
            raise ConfigError("with several texts, give a list with one prefix for each")
        if prefix is not None and len(check_texts(prefix, "prefix")) != len(texts):
            raise ConfigError(f"there are {len(texts)} texts and {len(prefix)} prefixes; give one for each")
        if isinstance(terms, Terms):
            terms = [terms] * len(texts)
        if terms is not None and len(terms) != len(texts):
            raise ConfigError(f"there are {len(texts)} texts and terms for {len(terms)}; give them once, or for each text")
        if format != "text":
            if attention or prefix is not None:
                raise ConfigError(f"format {format}: a document has no prefix and no attention; give a plain text instead")
            from weft.tasks.translation.documents import translate_documents

            language = self.config.data.target_language
            return [*translate_documents(partial(self.stream, **options), texts, format, terms, language)]
        return list(self.stream(texts, attention=attention, prefixes=prefix, terms=terms, **options))

    def translation_predictor(self, purpose: str, **options: Any) -> TranslationPredictor:
        """The predictor, for a purpose that needs translations. Raises ConfigError if the model does not translate."""
        predictor = self.predictor(**options)
        if isinstance(predictor, TranslationPredictor):
            return predictor
        raise ConfigError(f"{purpose} needs a run that translates; the task of this one is {self.config.task['kind']}")


def load(
    run: str | Path | Sequence[str | Path], *, device: str = "auto", warn: Warn | None = None, set: Sequence[str] = ()
) -> Translator:
    """The model of a run folder; of several, an ensemble that averages their probabilities. `set`: see `load_trained`."""
    trained = load_trained(run, device=device, warn=warn, set=set)
    if not isinstance(trained, Translator):
        raise RunError(
            f"{run}: its task, {trained.config.task['kind']}, does not translate lines of text; "
            f"a language model continues a text: weft generate {run} 'a beginning'"
        )
    return trained


def load_trained(
    run: str | Path | Sequence[str | Path], *, device: str = "auto", warn: Warn | None = None, set: Sequence[str] = ()
) -> Trained:
    """The model of a run folder of any task, with `set` written over its configuration; of several folders, an ensemble."""
    folders = [Path(run)] if isinstance(run, str | Path) else [Path(each) for each in run]
    if not folders:
        raise RunError("there is no run to load; name at least one folder")
    opened = open_runs(folders, set, device=device)
    kind = Translator if isinstance(opened.task, CorpusTask) else Trained
    return kind(opened.model, opened.task, opened.config, warn)


class Generator(Trained):
    """A trained language model that continues texts and scores them."""

    def generate(
        self, prompt: str = "", *, tokens: int = 200, count: int = 1, hear: Callable[[str], None] | None = None, **options: Any
    ) -> list[Generated]:
        """`count` continuations of the prompt with `tokens` tokens each.

        They are sampled unless the options name a `beam` (1: greedy) or a `search`; `options` are those of the section decode:
        temperature=0.8, top_k=40, seed=3, … Samples differ, other continuations are all the same. `hear` receives the text of
        the first as it comes.
        """
        check_text(prompt, "prompt")
        if tokens < 1 or count < 1:
            raise ConfigError(f"there must be at least one token and one text, not {tokens} and {count}")
        wanted = options if {"beam", "search", "sample"} & options.keys() else {"sample": True, **options}
        predictor = self.predictor(**wanted)
        assert isinstance(predictor, GenerationPredictor)
        prompts = [Prompt(prompt, tokens, draw) for draw in range(count)]
        return predictor.generate(prompts, hear) if hear else list(predictor.predict(prompts, together=True))


def evaluate(
    run: str | Path | Sequence[str | Path],
    data: str | Sequence[str],
    *,
    against: str | Path | Sequence[str | Path] | None = None,
    device: str = "auto",
    **options: Any,
) -> Evaluation | dict[str, float]:
    """Scores a run on test data by the metrics of its task, as `weft evaluate` does.

    The result has `scores` (each with value, signature and interval), `table()` and `document()`; for a task without answers to
    compare, such as language modelling, it is a mapping of scores. `against` is another run, compared by a significance test.
    `options` are those of the section decode: beam=4, …
    """
    files = [data] if isinstance(data, str) else list(data)
    systems = [(str(each), load_trained(each, device=device)) for each in (run, against) if each is not None]
    first = systems[0][1]
    if not first.task.metrics():
        return first.score(files)
    return evaluate_systems(systems, files, lambda name, system, lines: [each.text for each in system.stream(lines, **options)])


def evaluate_contrastive(
    system: Trained, file: str | Path, *, advance: Callable[[], None] = lambda: None, **options: Any
) -> ContrastiveResult:
    """How often a model prefers the right text to the wrong one, on a file of `weft.evaluation.contrastive_pairs`.

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


def evaluate_systems(
    systems: Sequence[tuple[str, Trained]],
    data: Sequence[str],
    predict: Callable[[str, Trained, list[str]], list[str]],
    *,
    outputs: Path | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    **significance: Any,
) -> Evaluation:
    """Scores the first of some trained models, each with its name.

    A second one, or a file with the outputs of another system, is its baseline.

    predict: the texts of a system for all inputs, given its name, itself and the inputs · tokenize, lowercase: see
    `Trained.metrics` · significance: the test and its samples, see `weft.evaluation.report.evaluate`.
    """
    from weft.evaluation import report  # which imports rich's tables

    (name, first), *_ = systems
    pairs = first.task.examples(data, first.warn or (lambda message: None))
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    metrics = first.metrics(references, tokenize=tokenize, lowercase=lowercase)
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


def _baseline(file: Path, count: int) -> Baseline:
    """The outputs of another system, one per line."""
    from weft.evaluation.report import Baseline

    lines = list(read_lines(file))
    if len(lines) != count:
        raise DataError(f"{file} has {len(lines):,} lines, and the test data {count:,}; there must be one for each")
    return Baseline(str(file), lines)


def explain(run: str | Path | Sequence[str | Path], text: str, *, device: str = "auto", **options: Any) -> Explained:
    """How a run translates, labels or describes one input, as `weft explain` shows it; see `Trained.explain` for the options.

    A notebook shows the result as a page.
    """
    return load_trained(run, device=device).explain(text, run=str(run), **options)


def load_generator(run: str | Path, *, device: str = "auto", set: Sequence[str] = ()) -> Generator:
    """The language model of a run folder; `set` changes its settings: ["task.evaluation_memory=1024"]."""
    trained = load_trained(run, device=device, set=set)
    if trained.config.task["kind"] != "language_model":
        raise RunError(f"{run}: its task, {trained.config.task['kind']}, is not language_model, so it cannot continue a text")
    return Generator(trained.model, trained.task, trained.config)
