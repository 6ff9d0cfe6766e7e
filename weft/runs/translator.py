"""Trained runs at work: the `Translator` that `weft.load` returns, the `Generator` of `weft.load_generator`, and their base."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from weft.config.sections import Config
from weft.data.tokenizers import Tokenizer
from weft.errors import ConfigError, DataError, InputError, RunError
from weft.evaluation.metrics import choose_tokenization
from weft.evaluation.report import Baseline, Evaluation
from weft.evaluation.report import evaluate as score_system
from weft.explain.html_page import Explained
from weft.inference.decoding_options import DecodingOptions, changed, resolve_options
from weft.inference.predictor import Prediction, Predictor, Ready
from weft.inference.reranking import Scorer
from weft.layers.int8 import in_precision
from weft.models.base import Model, Network
from weft.models.language_model import LanguageModel
from weft.runs.open_run import TrainedRun, open_run
from weft.tasks.base import Ensembles, Task
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.language_modeling.predictor import Generated, GenerationPredictor, Prompt
from weft.tasks.language_modeling.task import LanguageModelTask
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.predictor import TranslationPredictor

if TYPE_CHECKING:
    from weft.tasks.translation.documents import Format


def check_text(text: Any, name: str) -> str:
    """Returns `text` if it is a string. Raises InputError, which calls it `name`, otherwise."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes | bytearray):
        raise InputError(f"{name} is bytes, not a string; decode it: {name}.decode('utf-8')")
    raise InputError(f"{name} must be a string, not {_described(text)}")


def check_texts(texts: Any, name: str = "texts") -> list[str]:
    """The strings of any iterable. Raises InputError with the index of the first that is not a string."""
    if isinstance(texts, bytes | bytearray):
        check_text(texts, name)
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        hint = f"; give its texts: list({name}.values())" if isinstance(texts, Mapping) else ""
        raise InputError(f"{name} must be a string or a list of strings, not {_described(texts)}{hint}")
    return [check_text(text, f"{name}[{index}]") for index, text in enumerate(texts)]


def _described(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    shown = repr(value)
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} ({shown if len(shown) <= 40 else shown[:37] + '...'})"


def make_inputs(
    predictor: Predictor[Any, Any],
    lines: Iterable[str],
    attention: bool,
    prefixes: Iterable[str] | None,
    terms: Iterable[Terms] | None,
    marks: Iterable[Any] | None = None,
) -> Iterator[Any]:
    """Lines with their prefixes, terms and marks as inputs of the predictor."""
    starts = repeat("") if prefixes is None else iter(prefixes)
    wishes = repeat(None) if terms is None else iter(terms)
    tags = repeat(None) if marks is None else iter(marks)
    number = 0
    for number, line in enumerate(lines, start=1):
        check_text(line, f"line {number}")
        fields = {"prefix": next(starts, None), "terms": next(wishes, None), "attention": attention, "marks": next(tags, None)}
        if fields["prefix"] is None:
            raise DataError(f"line {number} has no prefix: give one for every line, which may be empty")
        try:
            parsed = predictor.parse_input(line, **{name: value for name, value in fields.items() if value})
        except DataError as error:
            raise DataError(f"line {number}: {error}") from None
        yield parsed
    if prefixes is not None and next(starts, None) is not None:
        raise DataError(f"there are more prefixes than lines to translate: line {number + 1} is missing")


class AuxiliaryModels:
    """The models that decoding with a trained one needs. `load` loads a run onto its device. Each is made once."""

    def __init__(self, model: Network, task: Task, load: Callable[[str], Any]) -> None:
        self.model, self.task, self._load = model, task, load
        self.scorer, self.language = cache(self._open_scorer), cache(self._open_language)
        self._converted: dict[tuple[str, bool], Network] = {}
        self._fused: dict[str, Network] = {}

    def _open_scorer(self, run: str) -> Scorer:
        """The run that reranks translations."""
        other = self._load(run)
        if not hasattr(other, "translation_predictor"):
            raise RunError(f"{run}: its task, {other.config.task['kind']}, does not translate lines of text")
        scorer: Scorer = other.translation_predictor("decode.rerank", rerank="none")
        return scorer

    def _open_language(self, run: str) -> tuple[LanguageModel, int]:
        """A language model over the vocabulary of the targets, and its token for the end of a line."""
        other = self._load(run)
        if not (isinstance(other.model, LanguageModel) and isinstance(other.task, LanguageModelTask)):
            raise RunError(f"{run}: its task, {other.config.task['kind']}, is not language_model")
        if not isinstance(self.task, Ensembles) or self.task.vocabularies()[-1:] != other.task.vocabularies():
            raise RunError(f"{run}: its vocabulary differs from that of the targets; train it with data.tokenizer_of")
        return other.model, other.task.tokenizer.encode("\n")[-1]

    def decoded(self, resolved: DecodingOptions) -> Network:
        """The model in the chosen precision, fused with a language model if the options say so."""
        model = self.converted(resolved)
        if resolved.fusion is None or not isinstance(model, Model):
            return model
        key = json.dumps([resolved.precision, resolved.kernels is not None, resolved.config.fusion])
        if key not in self._fused:
            self._fused[key] = resolved.fusion(model)
        return self._fused[key]

    def converted(self, resolved: DecodingOptions) -> Network:
        """The model with its weights in the chosen precision."""
        if resolved.precision == "bf16" and not self.task.info.bf16_weights:
            return self.model
        kernels = resolved.kernels if resolved.precision == "int8" else None
        key = resolved.precision, kernels is not None
        if key not in self._converted:
            self._converted[key] = in_precision(self.model, resolved.precision, kernels)
        return self._converted[key]


Warn = Callable[[str], None]


class Trained:
    """A trained model and the task it was trained for."""

    def __init__(self, model: Network, task: Task, config: Config, warn: Warn | None = None) -> None:
        self.model, self.task, self.config, self.warn = model.eval(), task, config, warn
        self.auxiliary = AuxiliaryModels(self.model, task, lambda run: load_trained(run, device=str(self.model.device)))

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        task, model = self.config.task["kind"], self.config.model["kind"]
        return f"<{type(self).__name__} {self.task.run}: {task}, {model} with {size:,} parameters on {self.model.device}>"

    @property
    def languages(self) -> Sequence[str]:
        """The two languages of a model that translates in both directions; decode.into names one. Empty for other models."""
        languages: Sequence[str] = getattr(self.task, "languages", ())
        return languages

    def predictor(self, *, auto_workers: int = 1, **options: Any) -> Predictor[Any, Any]:
        """The predictor, with these options of the section decode changed: beam=4, search="sample", n_best=3, …

        auto_workers: the number of worker processes on a CPU if the options leave it to `auto`.
        """
        section = changed(self.config.decode, options)
        if section.into and not self.languages:
            raise ConfigError(
                f"decode.into: a run of the task {self.config.task['kind']} translates in one direction only, or has tags "
                "(decode.tag); remove it"
            )
        resolved = resolve_options(
            section,
            self.model.device,
            auto_workers=auto_workers,
            warn=self.warn or (lambda message: None),
            open_scorer=self.auxiliary.scorer,
            open_language=self.auxiliary.language,
        )
        return self.task.predictor(self.auxiliary.decoded(resolved), resolved, self.warn)

    def stream(
        self,
        lines: Iterable[str],
        *,
        attention: bool = False,
        prefixes: Iterable[str] | None = None,
        terms: Iterable[Terms] | None = None,
        marks: Iterable[Any] | None = None,
        ready: Ready | None = None,
        auto_workers: int = 1,
        **options: Any,
    ) -> Iterator[Any]:
        """A prediction for each line, in order, for any number of lines in constant memory.

        `prefixes`, `terms` and `marks` have one item per line. Lines in a list are read ahead, which is faster. `ready` says
        whether the next line can be read without waiting; if not, the lines so far are answered first.
        """
        if isinstance(lines, str):
            raise InputError("lines must be an iterable of strings, not one string; give [line]")
        if not isinstance(lines, Iterable) or isinstance(lines, bytes):
            check_texts(lines, "lines")
        predictor = self.predictor(auto_workers=auto_workers, **options)
        inputs = make_inputs(predictor, lines, attention, prefixes, terms, marks)
        return predictor.predict(inputs, together=isinstance(lines, Sequence), ready=ready)

    def listen(self, sound: Any, **options: Any) -> Iterator[str]:
        """The text of a sound as it comes, see `Predictor.listen`. The whole text is that of a greedy search."""
        return self.predictor(**{"beam": 1, "n_best": 1, **options}).listen(sound)

    @torch.inference_mode()
    def score(self, data: str | Sequence[str]) -> dict[str, float]:
        """The scores that the task declares, on the data of these files."""
        return self.task.score(self.model, [data] if isinstance(data, str) else data)

    def explain(
        self, text: str, *, target: str | None = None, influence: bool | None = None, run: str = "", **options: Any
    ) -> Explained:
        """Everything that can be seen of how one input is translated, labelled or described; a notebook shows it as a page.

        `target`: explain this translation instead of the model's own · `influence`: also how much each token depends on each
        source token · `run`: what the page calls the model · `options`: those of the section decode. Nothing is reranked.
        """
        check_text(text, "text")
        options = {"rerank": "none", **options}
        if "n_best" not in options:
            section = changed(self.config.decode, options)
            options["n_best"] = max(section.n_best, section.search.get("width", 1))
        return self.task.explain(self.predictor(**options), text, target=target, influence=influence, run=run)

    def explain_sentences(self, text: str, **settings: Any) -> list[Explained]:
        """An explanation for each part of a text that is translated by itself; `settings` are those of `explain`."""
        whole = settings.get("target") is not None or settings.get("sentences", self.config.decode.sentences) == "off"
        texts = [text] if whole else self.predictor(rerank="none").sentences(text)
        return [self.explain(each, **{**settings, "sentences": "off"}) for each in texts]


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
    first, *others = (open_run(folder, set, device=device) for folder in folders)
    task, config = first.task, first.config
    model = _ensemble(first, others) if others else first.model
    model = model.to(first.model.device)
    return Translator(model, task, config, warn) if isinstance(task, CorpusTask) else Trained(model, task, config, warn)


def _ensemble(first: TrainedRun, others: Sequence[TrainedRun]) -> Network:
    """The models of several runs as one. Raises RunError if they do not belong together."""
    for other in others:
        kind, expected = other.config.task["kind"], first.config.task["kind"]
        if kind != expected:
            raise RunError(f"{other.folder}: its task is {kind}, that of {first.folder} is {expected}")
        if not (isinstance(first.task, Ensembles) and isinstance(other.task, Ensembles)):
            raise RunError("models of this task cannot form an ensemble; name one run")
        if first.task.vocabularies() != other.task.vocabularies():
            raise RunError(
                f"{other.folder}: its tokenizer differs from that of {first.folder}; the runs of an ensemble share one"
            )
    assert isinstance(first.task, Ensembles)
    return first.task.ensemble([run.model for run in (first, *others)])


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
    systems = [load_trained(each, device=device) for each in (run, against) if each is not None]
    task, config = systems[0].task, systems[0].config
    if not task.metrics():
        return systems[0].score(files)
    pairs = task.examples(files)
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    chosen = choose_tokenization(config.train.tokenize, config.data.target_language, references)
    metrics = task.metrics(tokenize=chosen.name)
    ours, *theirs = [[each.text for each in system.stream(sources, **options)] for system in systems]
    return score_system(
        ours,
        references,
        system=str(run),
        data=" ".join(files),
        sources=sources if any(metric.name == "BLEU" for metric in metrics) else None,
        baseline=Baseline(str(against), theirs[0]) if theirs else None,
        metrics=metrics,
    )


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
