"""Trained runs at work: what `weft.load` gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from pydantic import ValidationError

from weft.config import Config, DecodeSection, load_config
from weft.data.tokenizer import Tokenizer, load_tokenizers
from weft.errors import ConfigError, RunError
from weft.models.base import Model, Sizes
from weft.models.ensemble import Ensemble
from weft.registry import build, problems
from weft.tasks.decoding import Decoding, Translation
from weft.training.checkpoint import MODEL
from weft.training.distributed import choose_device
from weft.training.weights import load_weights


class Translator:
    """A model with its tokenizers, ready to translate."""

    def __init__(
        self, model: Model, source: Tokenizer, target: Tokenizer, config: Config, warn: Callable[[str], None] | None = None
    ) -> None:
        self.model, self.source, self.target, self.config, self.warn = model.eval(), source, target, config, warn

    @overload
    def translate(self, texts: str, *, attention: bool = ..., prefix: str | None = ..., **options: Any) -> Translation: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, attention: bool = ..., prefix: Sequence[str] | None = ..., **options: Any
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        attention: bool = False,
        prefix: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Translation | list[Translation]:
        """Translates one text or several. `options` are those of the section decode: beam=4, n_best=3, sample=True, …

        `prefix` forces how translations begin; `attention` adds the weights of every layer that has any.
        """
        if isinstance(texts, str):
            if not (prefix is None or isinstance(prefix, str)):
                raise ConfigError("with one text, give one prefix, not a list")
            forced = None if prefix is None else [prefix]
            return next(self.stream([texts], attention=attention, prefixes=forced, **options))
        if isinstance(prefix, str):
            raise ConfigError("with several texts, give a list with one prefix for each")
        if prefix is not None and len(prefix) != len(texts):
            raise ConfigError(f"there are {len(texts)} texts and {len(prefix)} prefixes; give one for each")
        return list(self.stream(texts, attention=attention, prefixes=prefix, **options))

    def stream(
        self, lines: Iterable[str], *, attention: bool = False, prefixes: Iterable[str] | None = None, **options: Any
    ) -> Iterator[Translation]:
        """The same for any number of lines in constant memory, in order, as they are done."""
        return self.decoding(**options).translate(lines, prefixes=prefixes, attention=attention)

    def decoding(self, **options: Any) -> Decoding:
        """The search with these options written over the run's own."""
        wanted = {**self.config.decode.model_dump(), **options}
        try:
            section = DecodeSection(**wanted)
        except ValidationError as error:
            found = problems(error, DecodeSection, wanted)
            raise ConfigError("; ".join(f"decode.{'.'.join(path)}: {text}" for path, text in found)) from None
        return Decoding(self.model, self.source, self.target, section, warn=self.warn)


def load(
    run: str | Path | Sequence[str | Path], *, device: str = "auto", warn: Callable[[str], None] | None = None
) -> Translator:
    """The model of a run folder; of several, an ensemble that averages their probabilities."""
    folders = [Path(run)] if isinstance(run, str | Path) else [Path(each) for each in run]
    if not folders:
        raise RunError("there is no run to load; name at least one folder")
    parts = [_open(folder) for folder in folders]
    config, source, target, _ = parts[0]
    for folder, (_, other_source, other_target, _) in zip(folders[1:], parts[1:], strict=True):
        if (source.digest(), target.digest()) != (other_source.digest(), other_target.digest()):
            raise RunError(
                f"{folder}: its tokenizer differs from that of {folders[0]}; an ensemble needs the same one in all runs"
            )
    models = [model for _, _, _, model in parts]
    if len({model.copies for model in models}) > 1:
        raise RunError("an ensemble needs runs that all copy source words (model.kind: pointer), or runs of which none does")
    model = models[0] if len(models) == 1 else Ensemble(models)
    return Translator(model.to(choose_device(device)), source, target, config, warn)


def _open(folder: Path) -> tuple[Config, Tokenizer, Tokenizer, Model]:
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such run folder")
    if not (folder / "config.yaml").is_file():
        raise RunError(f"{folder}: this is not a run folder: it has no config.yaml")
    config = load_config(folder / "config.yaml")
    if not (folder / MODEL).is_file():
        raise RunError(f"{folder}: there is no {MODEL} yet; training saves the first one after train.save_every steps")
    source, target = load_tokenizers(folder, config.data.tokenizer)
    model: Model = build("weft.models:MODELS", config.model, Sizes(source.size, target.size, source is target), where="model")
    load_weights(model, folder / MODEL)
    return config, source, target, model
