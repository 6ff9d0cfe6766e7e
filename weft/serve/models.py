"""The runs that are served: which languages each reads and writes, and how they are found and read anew."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from weft.config import Config
from weft.errors import ConfigError
from weft.explain.page import page
from weft.inference.predictor import Prediction, Wanted
from weft.serve.ask import Ask, Explain
from weft.serve.refusal import Refusal
from weft.translator import Translator, load

UNKNOWN = "und"
"""ISO 639's code for a language that nobody has named."""

CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
PAIR = re.compile(rf"({CODE.pattern}):({CODE.pattern})|([A-Za-z]{{2,3}})-([A-Za-z]{{2,3}})")


@dataclass(frozen=True)
class Place:
    """Where a model comes from: run folders (several form an ensemble), and its languages where they were given."""

    folders: tuple[str, ...]
    languages: tuple[str, str] | None = None


@dataclass(frozen=True, eq=False)
class Served:
    """A model at work, under a name of its own. Read anew, it is another object, so nothing of the old one is mixed in."""

    name: str
    source: str
    target: str
    place: Place
    translator: Translator = field(repr=False)

    def answer(self, asks: Sequence[Ask | Explain], wanted: Wanted) -> Sequence[Prediction | str]:
        """Answers asks of one group: a prediction for each, or the page that explains the only one."""
        first = asks[0]
        if isinstance(first, Explain):
            return [page([self.translator.explain(first.text, run=self.name, **dict(first.options))], "weft")]
        predictor = self.translator.predictor(**dict(first.options))
        inputs = [predictor.parse(ask.text, **ask.fields) for ask in asks if isinstance(ask, Ask)]
        return list(predictor.predict(inputs, together=True, wanted=wanted))

    def count(self, text: str) -> int:
        """Source tokens of a text, EOS counted."""
        return len(self.translator.source.encode(text)) + 1


def parse_place(text: str) -> Place:
    """`RUN`, `RUN,RUN` for an ensemble, each also with its languages: `en-de=RUN`, `zh-Hans:en=RUN`."""
    pair, equals, rest = text.partition("=")
    if not equals or Path(text).exists():
        return Place(_folders(text))
    found = PAIR.fullmatch(pair.strip())
    if found is None:
        raise ConfigError(
            f"{text}: {pair!r} is no pair of languages; write en-de={rest or 'RUN'}, or zh-Hans:en={rest or 'RUN'}"
        )
    source, target = [code for code in found.groups() if code]
    return Place(_folders(rest), (source, target))


def _folders(text: str) -> tuple[str, ...]:
    parts = [text] if Path(text).is_dir() else [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{text!r} names no run folder; write RUN, or RUN,RUN for an ensemble")
    return tuple(parts)


def languages_of(config: Config) -> tuple[str, str]:
    """Those of the configuration, or the endings of its data files (train.en,train.de), or unknown."""
    data = config.data
    ends = Counter(_endings(spec) for spec in data.train)
    written = next(iter(ends)) if len(ends) == 1 else (UNKNOWN, UNKNOWN)
    return data.source_language or written[0], data.target_language or written[1]


def _endings(spec: str) -> tuple[str, str]:
    """The languages that a pair of files is named after."""
    from babel import Locale

    parts = [Path(part.strip().removesuffix(".gz")).suffix.removeprefix(".") for part in spec.split(",")]
    known = set(Locale("en").languages)
    return (parts[0], parts[1]) if len(parts) == 2 and set(parts) <= known else (UNKNOWN, UNKNOWN)


class Models:
    """All models of a server. `reload` reads their folders again while the old ones go on serving."""

    def __init__(
        self, places: Sequence[Place], *, device: str = "auto", tell: Callable[[str], None] = lambda text: None
    ) -> None:
        if not places:
            raise ConfigError("there is no run to serve; name at least one folder")
        self.device, self.tell = device, tell
        self.served: list[Served] = []
        for place in places:
            self.served.append(self._open(place, self._free_name(place)))

    def _free_name(self, place: Place) -> str:
        base, taken = Path(place.folders[0]).resolve().name, {model.name for model in self.served}
        names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    def _open(self, place: Place, name: str) -> Served:
        translator = load(place.folders, device=self.device)
        source, target = place.languages or languages_of(translator.config)
        if place.languages is None and UNKNOWN in (source, target):
            self.tell(
                f"{place.folders[0]}: its languages are not known, so it is served as {source} to {target}; "
                f"name them with en-de={place.folders[0]}, or with data.source_language and data.target_language"
            )
        return Served(name, source, target, place, translator)

    def reload(self) -> list[Served]:
        """Reads every model again. If one cannot be read, all old ones stay and the error says which."""
        self.served = [self._open(old.place, old.name) for old in self.served]
        return self.served

    def named(self, name: str) -> Served:
        for model in self.served:
            if model.name == name:
                return model
        raise Refusal(400, f"there is no model {name!r}; there are: {', '.join(model.name for model in self.served)}")

    def between(self, source: str, target: str) -> Served:
        """The first model for this pair of languages. Case does not matter."""
        wanted = (source.lower(), target.lower())
        for model in self.served:
            if (model.source.lower(), model.target.lower()) == wanted:
                return model
        for code, known in ((source, self.sources), (target, self.choices["target"])):
            if code.lower() not in {each.lower() for each in known}:
                raise Refusal(400, f"{code} is not supported")
        raise Refusal(400, f"{target} is not available as a target language from {source}")

    def chosen(self, name: str | None, source: str | None, target: str | None) -> Served:
        """The model of this name, or for this pair of languages, or the only one."""
        if name is not None:
            return self.named(name)
        if source is None and target is None:
            if len(self.served) > 1:
                raise Refusal(400, "several models are served: name one with model, or languages with source and target")
            return self.served[0]
        if source is None or target is None:
            raise Refusal(400, "give both source and target, or a model")
        return self.between(source, target)

    @property
    def choices(self) -> dict[str, list[str]]:
        """What requests can name: models, source and target languages."""
        targets = list(dict.fromkeys(model.target for model in self.served))
        return {"model": [model.name for model in self.served], "source": self.sources, "target": targets}

    @property
    def sources(self) -> list[str]:
        """The source languages, each once."""
        return list(dict.fromkeys(model.source for model in self.served))
