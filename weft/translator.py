"""Trained runs at work: what `weft.load` gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pydantic import ValidationError

from weft.config.registry import problems
from weft.config.sections import Config, DecodeSection
from weft.errors import ConfigError, RunError
from weft.kernels.cpp import Kernels
from weft.layers.int8 import in_int8
from weft.models.base import Network
from weft.runs.device import choose_device
from weft.runs.opening import open_run
from weft.tasks.base import Decodes, TextTask
from weft.tasks.decoding import Decoding, Translation
from weft.tasks.placing import native, settled
from weft.tasks.terms import Terms

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation


class Translator:
    """A trained model and the task it was trained for, ready to translate; a classifier's translations are labels."""

    def __init__(self, model: Network, task: TextTask, config: Config, warn: Callable[[str], None] | None = None) -> None:
        self.model, self.task, self.config, self.warn = model.eval(), task, config, warn
        self.source, self.target = task.source, getattr(task, "target", task.source)
        self._made: dict[tuple[str, bool], Network] = {}

    @overload
    def translate(
        self, texts: str, *, attention: bool = ..., prefix: str | None = ..., terms: Terms | None = ..., **options: Any
    ) -> Translation: ...
    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        attention: bool = ...,
        prefix: Sequence[str] | None = ...,
        terms: Terms | Sequence[Terms] | None = ...,
        **options: Any,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        attention: bool = False,
        prefix: str | Sequence[str] | None = None,
        terms: Terms | Sequence[Terms] | None = None,
        **options: Any,
    ) -> Translation | list[Translation]:
        """Translates one text or several. `options` are those of the section decode: beam=4, n_best=3, sample=True, …

        `prefix` forces how translations begin; `attention` adds the weights of every layer that has any; `terms` are words that
        translations have to use and to avoid, the same for all texts or some for each.
        """
        wanted = _for_each(terms, 1 if isinstance(texts, str) else len(texts))
        if isinstance(texts, str):
            if not (prefix is None or isinstance(prefix, str)):
                raise ConfigError("with one text, give one prefix, not a list")
            forced = None if prefix is None else [prefix]
            return next(self.stream([texts], attention=attention, prefixes=forced, terms=wanted, **options))
        if isinstance(prefix, str):
            raise ConfigError("with several texts, give a list with one prefix for each")
        if prefix is not None and len(prefix) != len(texts):
            raise ConfigError(f"there are {len(texts)} texts and {len(prefix)} prefixes; give one for each")
        return list(self.stream(texts, attention=attention, prefixes=prefix, terms=wanted, **options))

    def stream(
        self,
        lines: Iterable[str],
        *,
        attention: bool = False,
        prefixes: Iterable[str] | None = None,
        terms: Iterable[Terms] | None = None,
        **options: Any,
    ) -> Iterator[Translation]:
        """The same for any number of lines in constant memory, in order, as they are done."""
        return self.decoding(**options).translate(lines, prefixes=prefixes, terms=terms, attention=attention)

    def explain(
        self, text: str, *, target: str | None = None, influence: bool | None = None, run: str = "", **options: Any
    ) -> Explanation:
        """All that can be seen of how one text is translated; a notebook shows it as a page.

        `target`: look at this translation instead of the model's own · `influence`: also how much each token depends on each of
        the source · `run`: what the page calls the model · `options` are those of the section decode.
        """
        from weft.explain.explain import explain  # who only translates need not wait for it

        section = changed(self.config.decode, options)
        if "n_best" not in options and not section.sample:
            section = section.model_copy(update={"n_best": max(section.n_best, section.beam)})
        decoding = self.task.decoding(self._in(section), section, self.warn)
        if not isinstance(decoding, Decoding):
            raise ConfigError(
                f"explain shows how a text is translated; the task {self.config.task['kind']} gives labels. "
                "What they were given for is in translate(text, attention=True)"
            )
        return explain(decoding, text, target=target, run=run, influence=influence)

    def decoding(self, **options: Any) -> Decodes:
        """The search with these options written over the run's own."""
        section = changed(self.config.decode, options)
        return self.task.decoding(self._in(section), section, self.warn)

    def _in(self, section: DecodeSection) -> Network:
        """The model with its weights in the precision asked for; all but float32 are made when first asked for."""
        precision = settled(section, self.model.device).precision
        kernels = native(section, self.model.device) if precision == "int8" else None
        key = precision, kernels is not None
        if key not in self._made:
            self._made[key] = in_precision(self.model, precision, kernels)
        return self._made[key]


def in_precision(model: Network, precision: str, kernels: Kernels | None = None) -> Network:
    """A copy of the model for decoding with its weights in bf16 or int8; for float32 the model itself."""
    if precision == "float32":
        return model
    return in_int8(model, kernels) if precision == "int8" else deepcopy(model).bfloat16()


def _for_each(terms: Terms | Sequence[Terms] | None, count: int) -> list[Terms] | None:
    if terms is None:
        return None
    if isinstance(terms, Terms):
        return [terms] * count
    if len(terms) != count:
        raise ConfigError(f"there are {count} texts and terms for {len(terms)}; give them once, or for each")
    return list(terms)


def changed(section: DecodeSection, options: Mapping[str, Any]) -> DecodeSection:
    """The section with these options written over its own."""
    wanted = {**section.model_dump(), **options}
    try:
        return DecodeSection(**wanted)
    except ValidationError as error:
        found = problems(error, DecodeSection, wanted)
        raise ConfigError("; ".join(f"decode.{'.'.join(path)}: {text}" for path, text in found)) from None


def load(
    run: str | Path | Sequence[str | Path], *, device: str = "auto", warn: Callable[[str], None] | None = None
) -> Translator:
    """The model of a run folder; of several, an ensemble that averages their probabilities."""
    folders = [Path(run)] if isinstance(run, str | Path) else [Path(each) for each in run]
    if not folders:
        raise RunError("there is no run to load; name at least one folder")
    parts = [_open(folder) for folder in folders]
    task, config, _ = parts[0]
    for folder, (other, theirs, _) in zip(folders[1:], parts[1:], strict=True):
        if theirs.task["kind"] != config.task["kind"]:
            raise RunError(f"{folder}: its task is {theirs.task['kind']}, that of {folders[0]} is {config.task['kind']}")
        if task.vocabularies() != other.vocabularies():
            raise RunError(
                f"{folder}: its tokenizer differs from that of {folders[0]}; an ensemble needs the same one in all runs"
            )
    models = [model for _, _, model in parts]
    model = models[0] if len(models) == 1 else task.join(models)
    return Translator(model.to(choose_device(device)), task, config, warn)


def _open(folder: Path) -> tuple[TextTask, Config, Network]:
    run = open_run(folder)
    task, config, model = run.task, run.config, run.model
    if not isinstance(task, TextTask):
        raise RunError(
            f"{folder}: its task, {config.task['kind']}, is not one on lines of text; "
            f"a language model goes on with a text: weft generate {folder} 'a beginning'"
        )
    return task, config, model
