"""One model of a server: its place, its predictors, and the queries that it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from weft.decoding.predictor import BatchItem, Predictor
from weft.decoding.search_loop import Cancellation
from weft.explain.explanation import Explanation
from weft.explain.html_page import Section
from weft.runs.adapted_runs import newest_adapted
from weft.runs.translator import Translator
from weft.serve.bounded_cache import BoundedCache
from weft.tasks.translation.glossary import NO_TERMS, Terms
from weft.tasks.translation.markup_and_tag_transfer import MarkupSpan

if TYPE_CHECKING:
    from weft.serve.engine_process import Remote
    from weft.tasks.translation.translation_memory import TranslationMemory

Options = tuple[tuple[str, Any], ...]

PREDICTORS = 32
"""Predictors that a model keeps, each with other options."""


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
