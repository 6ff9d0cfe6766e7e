"""The models of a server and the queries they answer: languages, how a request selects a model, and reloading."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from babel import Locale
from starlette.exceptions import HTTPException

from weft.config.sections import Config
from weft.errors import ConfigError
from weft.explain.page import page
from weft.inference.predictor import Prediction, Wanted
from weft.inference.projection import Mark
from weft.inference.terms import NO_TERMS, Terms
from weft.runs.weights import share_equal
from weft.translator import Translator, load

UNKNOWN = "und"
"""ISO 639 code for an undetermined language."""

CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
PAIR = re.compile(rf"({CODE.pattern}):({CODE.pattern})|([A-Za-z]{{2,3}})-([A-Za-z]{{2,3}})")


@dataclass(frozen=True)
class Place:
    """Where a model comes from: its run folders (several form an ensemble), and its languages if given."""

    folders: tuple[str, ...]
    languages: tuple[str, str] | None = None


@dataclass(frozen=True)
class Query:
    """A text for a model. Equal queries have equal answers, so a query is the key of the answer cache.

    options: options of the `decode` section that differ from the run's configuration, sorted by name.
    """

    model: Served
    text: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def cached(self) -> bool:
        """Whether to cache the answer."""
        return False

    @property
    def group(self) -> Hashable:
        """Queries with the same group may be decoded in one batch."""
        return self


class ExplanationQuery(Query):
    """A text whose translation is to be explained on an HTML page."""


@dataclass(frozen=True)
class TranslationQuery(Query):
    """A text to translate, and the fields of the predictor's input."""

    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False
    marks: tuple[Mark, ...] = ()

    @property
    def cached(self) -> bool:
        return not self.attention  # weights are large and rarely requested twice

    @property
    def group(self) -> Hashable:
        return self.model, self.options

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are given."""
        given = {"prefix": self.prefix, "terms": self.terms, "attention": self.attention, "marks": self.marks}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded model with a unique name. Reloading creates a new object, so cached answers never mix with the old model's."""

    name: str
    source: str
    target: str
    place: Place
    translator: Translator = field(repr=False)

    def answer(self, queries: Sequence[Query], wanted: Wanted) -> list[Prediction]:
        """Answers queries of one group. Explanations of a group are equal; their prediction has the page as its text."""
        text, options = queries[0].text, dict(queries[0].options)
        if isinstance(queries[0], ExplanationQuery):
            found = self.translator.explain_sentences(text, run=self.name, **options)
            return [Prediction(page(found, "weft"), 0.0)] * len(queries)
        predictor = self.translator.predictor(**options)
        inputs = [predictor.parse(query.text, **query.fields) for query in queries if isinstance(query, TranslationQuery)]
        return list(predictor.predict(inputs, together=True, wanted=wanted))

    def count(self, text: str) -> int:
        """Returns the number of source tokens in a text, including EOS."""
        return len(self.translator.source.encode(text)) + 1


def parse_place(text: str) -> Place:
    """Parses `RUN`, or `RUN,RUN` for an ensemble; either may start with its languages: `en-de=RUN`, `zh-Hans:en=RUN`."""
    pair, equals, rest = text.partition("=")
    if not equals or os.path.exists(text):
        return Place(_folders(text))
    match = PAIR.fullmatch(pair.strip())
    if match is None:
        raise ConfigError(
            f"{text}: {pair!r} is not a language pair; write en-de={rest or 'RUN'}, or zh-Hans:en={rest or 'RUN'}"
        )
    source, target = [code for code in match.groups() if code]
    return Place(_folders(rest), (source, target))


def _folders(text: str) -> tuple[str, ...]:
    parts = [text] if os.path.isdir(text) else [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{text!r} names no run folder; write RUN, or RUN,RUN for an ensemble")
    return tuple(parts)


def languages_of(config: Config) -> tuple[str, str]:
    """Returns the languages from the configuration, else from the data files' suffixes (train.en,train.de), else `und`."""
    data, known = config.data, set(Locale("en").languages)
    pairs = set()
    for spec in data.train:
        suffixes = [Path(part.strip().removesuffix(".gz")).suffix.removeprefix(".") for part in spec.split(",")]
        pairs.add(tuple(suffixes) if len(suffixes) == 2 and set(suffixes) <= known else (UNKNOWN, UNKNOWN))
    guess = pairs.pop() if len(pairs) == 1 else (UNKNOWN, UNKNOWN)
    return data.source_language or guess[0], data.target_language or guess[1]


class Models:
    """All models of a server. The old models keep answering while `reload` reads the run folders again."""

    def __init__(
        self,
        places: Sequence[Place],
        *,
        device: str = "auto",
        fast: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        if not places:
            raise ConfigError("no run to serve; name at least one run folder")
        self.device, self.fast, self.tell = device, fast, tell
        self.served: list[Served] = []
        for place in places:
            self.served.append(self._open(place, self._free_name(place), self.served))

    def _free_name(self, place: Place) -> str:
        base, taken = Path(place.folders[0]).resolve().name, {model.name for model in self.served}
        names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    def _open(self, place: Place, name: str, others: Sequence[Served]) -> Served:
        """Loads a model. It shares equal weights with the others, such as those of a run that both adapt."""
        named = zip(("source", "target"), place.languages or (), strict=False)
        sets = [f'data.{side}_language="{code}"' for side, code in named] + ["decode.fast=true"] * self.fast
        translator = load(place.folders, device=self.device, set=sets)
        share_equal(translator.model, (other.translator.model for other in others))
        source, target = languages_of(translator.config)
        if place.languages is None and UNKNOWN in (source, target):
            self.tell(
                f"{place.folders[0]}: the languages of this run are not known, so it is served as {source} to {target}; "
                f"set them with en-de={place.folders[0]}, or with data.source_language and data.target_language"
            )
        return Served(name, source, target, place, translator)

    def reload(self) -> None:
        """Reads every model again. If one fails, all old models stay and the error names the run."""
        opened: list[Served] = []
        for old in self.served:
            opened.append(self._open(old.place, old.name, opened))
        self.served = opened

    def between(self, source: str, target: str) -> Served:
        """Returns the first model for this language pair, ignoring case."""
        wanted = (source.lower(), target.lower())
        for model in self.served:
            if (model.source.lower(), model.target.lower()) == wanted:
                return model
        for code, known in ((source, self.choices["source"]), (target, self.choices["target"])):
            if code.lower() not in {each.lower() for each in known}:
                raise HTTPException(400, f"{code} is not supported")
        raise HTTPException(400, f"{target} is not available as a target language from {source}")

    def chosen(self, name: str | None, source: str | None, target: str | None) -> Served:
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
        return self.between(source, target)

    @property
    def choices(self) -> dict[str, list[str]]:
        """The values that requests can select: models, source languages and target languages, each without duplicates."""
        return {
            "model": [model.name for model in self.served],
            "source": list(dict.fromkeys(model.source for model in self.served)),
            "target": list(dict.fromkeys(model.target for model in self.served)),
        }
