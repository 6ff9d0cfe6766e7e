"""The models of a server and the queries they answer: languages, how a request selects a model, and reloading."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException

from weft.decoding.predictor import BatchItem, Predictor
from weft.decoding.search_loop import Cancellation
from weft.errors import ConfigError
from weft.explain.explanation import Explanation
from weft.explain.html_page import Section
from weft.runs.adapted_runs import model_version, newest_adapted
from weft.runs.run_folder import run_folders
from weft.runs.translation_confidence import load_estimator
from weft.runs.translator import Translator, load, open_memory
from weft.runs.weight_files import share_equal
from weft.serve.bounded_cache import BoundedCache
from weft.serve.languages import UNKNOWN, known_code, languages_of
from weft.tasks.translation.glossary import NO_TERMS, Terms
from weft.tasks.translation.markup_and_tag_transfer import MarkupSpan
from weft.tasks.translation.task import TranslationTask

if TYPE_CHECKING:
    from weft.serve.engine_process import Remote
    from weft.tasks.translation.translation_memory import TranslationMemory

Options = tuple[tuple[str, Any], ...]

PREDICTORS = 32
"""Predictors that a model keeps, each with other options."""

CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
PAIR = re.compile(rf"({CODE.pattern}):({CODE.pattern})|([A-Za-z]{{2,3}})-([A-Za-z]{{2,3}})")


@dataclass(frozen=True)
class ModelLocation:
    """The source of a model: its run folders (several form an ensemble), and its languages if they were named."""

    folders: tuple[str, ...]
    languages: tuple[str, str] | None = None

    def adapted(self) -> ModelLocation:
        """The newest adapted run of this run; this location itself if there is none, and for ensembles."""
        found = newest_adapted(Path(self.folders[0])) if len(self.folders) == 1 else None
        return self if found is None else ModelLocation((str(found),), self.languages)


class ModelVersion(NamedTuple):
    """One state of a model: its run folders, and the times and sizes of their files."""

    location: ModelLocation
    files: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class BatchResult:
    """The results of some batch items; the items of their batch, which may be more, and their share of its seconds."""

    results: list[Any]
    together: int
    seconds: float

    @property
    def batch_seconds(self) -> float:
        """The seconds of the whole batch."""
        return self.seconds * self.together / len(self.results)


@dataclass(frozen=True)
class TranslationQuery:
    """A text for a model. Equal queries have equal answers, so a query is the key of the answer cache.

    options: options of the `decode` section that differ from the run's configuration, sorted by name · prefix, terms,
    attention, marks: fields of the predictor's input.
    """

    model: ServedModel
    text: str
    options: Options = ()
    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False
    marks: tuple[MarkupSpan, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name in ("prefix", "terms", "attention", "marks") if (value := getattr(self, name))}

    @property
    def input_fields(self) -> dict[str, Any]:
        """The fields of the predictor's input: those that are set, and what the model's translation memory has."""
        match = None if self.model.memory is None else self.model.memory.find(self.text)
        return self.fields | ({} if match is None else {"match": match})


_PLACES: WeakValueDictionary[int, ServedModel] = WeakValueDictionary()
"""Models by their places in memory."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A loaded model with a unique name. Reloading creates a new object, so cached answers never mix with the old model's.

    location: its source as it was named · opened: the run that was opened, which may be an adapted one of that source ·
    version: the version of that run · remote: the process that runs it, and its version there; None if this process does.
    Attention weights and explanations are computed here in any case · memory: its translation memory, if it has one ·
    estimator: a run of the task quality, which says how good its translations are.
    """

    name: str
    source: str
    target: str
    location: ModelLocation
    opened: ModelLocation
    version: str
    translator: Translator = field(repr=False)
    remote: tuple[Remote, ModelVersion] | None = field(default=None, repr=False)
    memory: TranslationMemory | None = field(default=None, repr=False)
    estimator: ServedModel | None = field(default=None, repr=False)
    _predictors: BoundedCache[Options, Any] = field(default_factory=lambda: BoundedCache(PREDICTORS), repr=False)

    def predictor(self, options: Options) -> Predictor[Any, Any]:
        """The predictor with these options. Only one thread may call this."""
        if options not in self._predictors:
            self._predictors[options] = self.translator.predictor(**dict(options))
        return self._predictors[options]

    def run_batch(
        self, predictor: Predictor[Any, Any], options: Options, items: list[BatchItem], control: Cancellation | None = None
    ) -> BatchResult:
        """Runs items of one group, which the predictor with these options has made."""
        if self.remote is not None:
            process, version = self.remote
            return process.run(version, options, predictor.group(items[0]), items, control)
        began = time.monotonic()
        return BatchResult(predictor.run(items, control), len(items), time.monotonic() - began)

    @cached_property
    def attention_maps(self) -> int:
        """The number of attention maps: heads of all layers. This runs the model once."""
        attention = getattr(self.translator.translate(self.sample("a b"), attention=True), "attention", {})
        return sum(weights.shape[0] for weights in attention.values())

    def sample(self, words: str) -> str:
        """An input of these words, in as many texts as the task reads."""
        return "\t".join([words] * self.translator.task.info.texts)

    def sentences(self, text: str) -> list[str]:
        """The segments of a text, which are translated one by one."""
        return self.predictor(()).sentences(text)

    def explain(self, sentence: str, options: Options) -> Explanation | Section:
        """Explains the output of the model for a sentence."""
        explanation = self.translator.explain(sentence, run=self.name, sentences="off", **dict(options))
        if isinstance(explanation, Explanation):
            explanation.languages = (self.source, self.target)
        return explanation

    def count(self, text: str) -> int:
        """Returns the number of source tokens in a text, including EOS."""
        return len(self.translator.source.encode(text)) + 1

    def __post_init__(self) -> None:
        _PLACES[id(self)] = self

    def __reduce__(self) -> tuple[Callable[[int], ServedModel], tuple[int]]:
        """Pickles a model as its place in memory, where a forked process finds it."""
        return _model_at, (id(self),)


def _model_at(place: int) -> ServedModel:
    return _PLACES[place]


def parse_location(text: str) -> ModelLocation:
    """Parses `RUN`, or `RUN,RUN` for an ensemble; either may start with its languages: `en-de=RUN`, `zh-Hans:en=RUN`."""
    pair, equals, rest = text.partition("=")
    if not equals or os.path.exists(text):
        return ModelLocation(tuple(run_folders(text)))
    match = PAIR.fullmatch(pair.strip())
    if match is None:
        run = rest or "RUN"
        raise ConfigError(f"{text}: {pair!r} is not a language pair; write en-de={run}, or zh-Hans:en={run}")
    source, target = [code for code in match.groups() if code]
    return ModelLocation(tuple(run_folders(rest)), (source, target))


class Models:
    """All models of a server. The old models keep answering while `reload` reads the run folders again.

    remote: the process that runs the models, if this one does not · memories: files of the translation memory · estimators:
    runs of the task quality, each for the models of its languages, or of any if it has none · adapted: whether the newest
    adapted run takes the place of a run.
    """

    def __init__(
        self,
        locations: Sequence[ModelLocation],
        *,
        device: str = "auto",
        fast: bool = False,
        warn: Callable[[str], None] = lambda text: None,
        remote: Remote | None = None,
        memories: Sequence[str] = (),
        estimators: Sequence[ModelLocation] = (),
        adapted: bool = True,
    ) -> None:
        if not locations:
            raise ConfigError("no run to serve; name at least one run folder")
        self.device, self.fast, self.warn, self.remote = device, fast, warn, remote
        self.memories, self.estimators, self.adapted = memories, estimators, adapted
        self.served: list[ServedModel] = []
        for location in locations:
            self.served.append(first := self._open(location, self._free_name(location), self.served))
            if location.languages is None and first.translator.languages:
                back = ModelLocation(location.folders, (first.target, first.source))
                self.served.append(self._open(back, self._free_name(back), self.served))
        for name in memories if len(self.served) > 1 else ():
            if not name.lower().removesuffix(".gz").endswith(".tmx"):
                raise ConfigError(
                    f"--memory {name}: this server has {len(self.served)} models, each of which takes the pairs of its "
                    "languages from a .tmx; convert the file, leave out what is after #, or serve the models apart"
                )

    def _free_name(self, location: ModelLocation) -> str:
        base, taken = Path(location.folders[0]).resolve().name, {model.name for model in self.served}
        names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 2))]
        return next(name for name in names if name not in taken)

    def _open(self, location: ModelLocation, name: str, others: Sequence[ServedModel]) -> ServedModel:
        """Loads a model. It shares equal weights with the others, such as those of a run that both adapt."""
        opened = self._present(location)
        run, named = location.folders[0], zip(("source", "target"), location.languages or (), strict=False)
        sets = [f'data.{side}_language="{code}"' for side, code in named] + ["decode.fast=true"] * self.fast
        translator = load(opened.folders, device=self.device, set=sets)
        if translator.task.data_format.suffixes:
            problem = f"its task, {translator.config.task['kind']}, reads files, which a server does not accept"
            raise ConfigError(f"{run}: {problem}; use weft predict {run} FILE")
        share_equal(translator.model, (other.translator.model for other in others))
        source, target = languages_of(translator.config, two := translator.languages, run)
        if two:
            location, opened = (ModelLocation(each.folders, (source, target)) for each in (location, opened))
            translator.config = translator.config.replaced({"decode.into": target})
        elif isinstance(translator.task, TranslationTask) and target in translator.task.tags:
            translator.config = translator.config.replaced({"decode.tag": target})
        if location.languages is None and UNKNOWN in (source, target):
            self.warn(
                f"{run}: the languages of this run are not known, so it is served as {source} to {target}; set them with "
                f"en-de={run}, or with data.source_language and data.target_language"
            )
        remote = None if self.remote is None else (self.remote, self.remote.open(opened))
        memory = open_memory(translator, self.memories) if self.memories else None
        if memory is not None:
            memory.prepare()
        version = model_version(opened.folders)
        estimator = self._open_estimator(name, (source, target), translator)
        return ServedModel(name, source, target, location, opened, version, translator, remote, memory, estimator)

    def _open_estimator(self, name: str, languages: tuple[str, str], translator: Translator) -> ServedModel | None:
        """The estimator of a model, which shares the weights that it has from it."""
        found = next((each for each in self.estimators if each.languages in (None, languages)), None)
        if found is None:
            return None
        trained = load_estimator(found.folders, self.device, self.warn)
        share_equal(trained.model, [translator.model])
        remote = None if self.remote is None else (self.remote, self.remote.open(found))
        return ServedModel(f"{name} quality", *languages, found, found, model_version(found.folders), trained, remote)

    def _present(self, location: ModelLocation) -> ModelLocation:
        """The run to open for a location."""
        return location.adapted() if self.adapted else location

    @property
    def newer(self) -> list[tuple[str, ...]]:
        """The runs to open if one of those in use has a newer adapted run, or was one that was removed; otherwise empty."""
        present = [self._present(model.location).folders for model in self.served]
        return [] if present == [model.opened.folders for model in self.served] else present

    def reload(self, prepare: Callable[[list[ServedModel]], None] = lambda served: None) -> None:
        """Reads every model again. If one fails, all old models stay and the error names the run.

        prepare: called with the new models before they are used.
        """
        served: list[ServedModel] = []
        for old in self.served:
            served.append(self._open(old.location, old.name, served))
        prepare(served)
        self.served = served

    def path(self, source: str, target: str) -> list[ServedModel]:
        """The models that lead from one language to another: one, two by way of a third language, or none if they are equal.

        See `known_code` for other names of a language.
        """
        codes = {code for model in self.served for code in (model.source, model.target)}
        first, last = (known_code(code, codes) for code in (source, target))
        for code, known in ((source, first), (target, last)):
            if known is None:
                raise HTTPException(400, f"{code} is not supported")
        direct = [model for model in self.served if (model.source, model.target) == (first, last)]
        if first == last:
            return direct[:1]
        pairs = [
            [one, other]
            for one in self.served
            for other in self.served
            if one.source == first and one.target == other.source and other.target == last and one.source != one.target
        ]
        if not (direct or pairs):
            raise HTTPException(400, f"{target} is not available as a target language from {source}")
        return direct[:1] or pairs[0]

    def targets(self, source: str) -> set[str]:
        """The languages that texts in `source` can be translated to, directly or by way of a third language."""
        direct = {model.target for model in self.served if model.source == source}
        return direct | {model.target for model in self.served if model.source in direct} - {source}

    def select(self, name: str | None, source: str | None, target: str | None) -> ServedModel:
        """Returns the model with this name, or for this language pair, or the only model."""
        if name is not None:
            models = {model.name: model for model in self.served}
            if name not in models:
                raise HTTPException(400, f"there is no model {name!r}; choose one of: {', '.join(models)}")
            return models[name]
        if source is None and target is None:
            if len(self.served) > 1:
                raise HTTPException(400, "this server has several models: select one with model, or with source and target")
            return self.served[0]
        if source is None or target is None:
            raise HTTPException(400, "send both source and target, or a model")
        path = self.path(source, target)
        if len(path) != 1:
            raise HTTPException(400, f"{target} is not available as a target language from {source}")
        return path[0]

    @property
    def choices_with_auto(self) -> dict[str, list[str]]:
        """The values that requests can select if they may leave the source language to be detected."""
        return {**self.choices, "source": ["auto", *self.choices["source"]]}

    @property
    def choices(self) -> dict[str, list[str]]:
        """The values that requests can select: models, source languages and target languages, each without duplicates."""
        return {
            "model": [model.name for model in self.served],
            "source": list(dict.fromkeys(model.source for model in self.served)),
            "target": list(dict.fromkeys(model.target for model in self.served)),
        }
