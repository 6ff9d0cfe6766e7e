"""All models of a server: languages, how a request selects a model, and reloading."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from weft.errors import ConfigError
from weft.runs.adapted_runs import model_version
from weft.runs.run_folder import run_folders
from weft.runs.translation_confidence import load_estimator
from weft.runs.translator import Translator, load, open_memory
from weft.runs.weight_files import share_equal
from weft.serve.languages import UNKNOWN, known_code, languages_of
from weft.serve.served_model import ModelLocation, ServedModel
from weft.tasks.translation.task import TranslationTask

if TYPE_CHECKING:
    from weft.serve.engine_process import Remote

CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
PAIR = re.compile(rf"({CODE.pattern}):({CODE.pattern})|([A-Za-z]{{2,3}})-([A-Za-z]{{2,3}})")


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
