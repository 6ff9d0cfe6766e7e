"""Trained runs at work: the `Translator` that `weft.load` returns, and the `Generator` of `weft.load_generator`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from weft.data.sentence_splitting import language_of
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import Warn
from weft.decoding.predictor import Prediction
from weft.errors import ConfigError, RunError
from weft.runs.open_run import open_runs
from weft.runs.trained_model import Trained, check_text, check_texts
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.language_modeling.predictor import Generated, GenerationPredictor, Prompt
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.translation_memory import TranslationMemory, memory_pairs

if TYPE_CHECKING:
    from weft.explain.html_page import Explained
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
            f"{named(run)}: its task, {trained.config.task['kind']}, does not translate lines of text; "
            f"a language model continues a text: weft generate {named(run)} 'a beginning'"
        )
    return trained


def named(run: str | Path | Sequence[str | Path]) -> str:
    """A run, or the runs of an ensemble, as one writes them on the command line."""
    return str(run) if isinstance(run, str | Path) else ",".join(map(str, run))


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


def open_memory(trained: Trained, files: Sequence[str], **options: Any) -> TranslationMemory:
    """A translation memory for a run that translates, from files of any data format; of a .tmx, in the languages of the run."""
    return TranslationMemory(memory_pairs(files, memory_languages(trained, **options)))


def memory_languages(trained: Trained, **options: Any) -> tuple[str | None, str | None]:
    """The languages that a translation memory of a run is read in. Raises ConfigError if the run does not translate."""
    predictor = trained.predictor(**options)
    if not isinstance(predictor, TranslationPredictor):
        raise ConfigError(f"a translation memory needs a run that translates; its task is {trained.config.task['kind']}")
    data, decode = trained.config.data, predictor.options.config
    source, target = language_of(data.source_language, data.files), language_of(data.target_language, data.files, 1)
    if trained.languages:
        source, target = trained.languages if decode.into != trained.languages[0] else reversed(trained.languages)
    return source, decode.tag or target


def explain(run: str | Path | Sequence[str | Path], text: str, *, device: str = "auto", **options: Any) -> Explained:
    """Explains the translation, label or text for one input, as `weft explain` shows it; see `Trained.explain` for options.

    A notebook shows the result as a page.
    """
    return load_trained(run, device=device).explain(text, run=named(run), **options)


def load_generator(run: str | Path, *, device: str = "auto", set: Sequence[str] = ()) -> Generator:
    """The language model of a run folder; `set` changes its settings: ["task.evaluation_memory=1024"]."""
    trained = load_trained(run, device=device, set=set)
    if trained.config.task["kind"] != "language_model":
        raise RunError(f"{run}: its task, {trained.config.task['kind']}, is not language_model, so it cannot continue a text")
    return Generator(trained.model, trained.task, trained.config)
