"""Entries of data.train and data.valid: a name of files, or a mapping with its own weight, tag, noise and filters.

A run saves the files as absolute paths, so that it can be continued from any folder.
"""

import codecs
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from weft.config import yaml_document
from weft.config.registry import Options
from weft.errors import ConfigError
from weft.file_access import is_pattern, matching_files, plain_name

Share = Annotated[float, Field(ge=0, lt=1)]
FILES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
"""The JSON schema of files, of which a single name needs no list."""

Tag = Annotated[str, StringConstraints(pattern=r"^[\w-]+( [\w-]+)*$")]


class NoiseOptions(Options):
    """Noise on training data, new in every epoch."""

    drop: Share = Field(default=0.0, description="probability of dropping a source word")
    blank: Share = Field(default=0.0, description="probability of replacing a source word by a blank, a token of its own")
    shuffle: NonNegativeInt = Field(default=0, description="most places that a source word moves; 0: the order stays")
    subword: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="draw the segmentation of words, on both sides; bpe: probability of skipping a merge (BPE-dropout), "
        "unigram: exponent of the probabilities; null: always the best one",
    )

    @property
    def any(self) -> bool:
        return bool(self.drop or self.blank or self.shuffle or self.subword is not None)


class CopyOptions(Options):
    """Changed copies of training pairs beside the pairs, each with its probability; see `weft.data.changed_copies`."""

    upper: Share = Field(default=0.0, description="in capitals, both sides")
    title: Share = Field(default=0.0, description="each word with a capital, both sides")
    typo: Share = Field(default=0.0, description="with typing errors in the source")
    emoji: Share = Field(default=0.0, description="with an emoji at an end of both sides")
    merge: Share = Field(default=0.0, description="joined with one or two pairs before")
    context: Share = Field(default=0.0, description="with the source before it in front of the source, for decode.context")
    placeholder: Share = Field(default=0.0, description="with a placeholder for a word that both sides have")
    terms: Share = Field(default=0.0, description="with the translations of terms shown in the source; needs glossary")
    glossary: str | None = Field(default=None, description="pairs of terms, in any data format")

    @model_validator(mode="after")
    def _complete(self) -> "CopyOptions":
        if bool(self.terms) != bool(self.glossary):
            raise PydanticCustomError("glossary", "terms and glossary belong together: give both, or none")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The probability of each kind."""
        return {name: value for name, value in self.model_dump().items() if name != "glossary" and value}


class ValidationCorpus(Options):
    """Validation data of one kind, such as one direction of a multilingual model, which is scored by itself."""

    files: Annotated[list[str], WithJsonSchema(FILES)] = Field(
        min_length=1, description="one or more names of files, as in data.train"
    )
    tag: Tag | None = Field(default=None, description="tokens to put before each source, separated by spaces")

    encoding: str | None = Field(default=None, description="encoding of the files, such as cp1252; null: UTF-8")

    @field_validator("files", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _encoded(cls, value: Any) -> Any:
        """Names the encoding with each file, as in `old.tsv@cp1252`, which is how files are opened."""
        encoding = value.get("encoding") if isinstance(value, dict) else None
        if not isinstance(encoding, str):
            return value
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError(f"there is no encoding {encoding!r}; write for example cp1252 or utf-16") from None
        return {**value, "files": [with_encoding(name, encoding) for name in _files(value)], "encoding": None}

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.tag.split()) if self.tag else ()

    @property
    def label(self) -> str:
        """Its name in reports: its tags, or its files without their folders."""
        return "+".join(self.tags) or ", ".join(",".join(Path(part).name for part in name.split(",")) for name in self.files)


class TrainingCorpus(ValidationCorpus):
    """One of several training corpora."""

    weight: PositiveFloat | None = Field(
        default=None, description="share of the pairs to draw from it, next to the other weights; by default see temperature"
    )
    noise: NoiseOptions = Field(default_factory=NoiseOptions)
    copies: CopyOptions = Field(default_factory=CopyOptions)
    max_length: PositiveInt | None = Field(default=None, description="instead of data.max_length, which must not be lower")
    max_ratio: PositiveFloat | None = Field(default=None, description="instead of data.max_ratio")
    drop_duplicates: bool | None = Field(default=None, description="instead of data.drop_duplicates")


@dataclass(frozen=True)
class Entry:
    """Marks a value that is a name of files or a mapping with the fields of `model`."""

    model: type[ValidationCorpus]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._check,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value if isinstance(value, str) else value.model_dump()
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(self.model.__pydantic_core_schema__)]}

    def _check(self, value: Any) -> str | ValidationCorpus:
        if isinstance(value, str | self.model):
            return value
        if isinstance(value, Mapping):
            return self.model.model_validate(dict(value))
        raise PydanticCustomError("files", "input should be a valid string, or a mapping with files")


Spec = str | Mapping[str, Any] | ValidationCorpus
Kind = TypeVar("Kind", bound=ValidationCorpus)


def parse(text: str | Mapping[str, Any], option: str = "--data") -> str | Mapping[str, Any]:
    """An entry as an option of the command line gives it: a name of files, or a mapping in braces."""
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return text
    entry = yaml_document.value(text, f"{option} {text}")
    if not isinstance(entry, dict):
        raise ConfigError(f"{option} {text}: expected a mapping, such as {{files: pairs.tsv, tag: de}}")
    return entry


def names(specs: Sequence[Spec]) -> list[str]:
    """The names of all files, in order."""
    return [name for spec in specs for name in ([spec] if isinstance(spec, str) else _files(spec))]


def renamed(specs: Sequence[Spec], change: Callable[[str], str]) -> list[str | dict[str, Any]]:
    """A copy of entries as plain data, with every name of files changed."""
    return [change(spec) if isinstance(spec, str) else _renamed(_plain(spec), change) for spec in specs]


def grouped(specs: Sequence[str | Kind], kind: type[Kind]) -> list[Kind]:
    """The corpora that entries describe. Plain names together form one corpus, the first."""
    plain = [spec for spec in specs if isinstance(spec, str)]
    return [*([kind(files=plain)] if plain else []), *(spec for spec in specs if not isinstance(spec, str))]


def labels(corpora: Sequence[ValidationCorpus]) -> list[str]:
    """The names of several corpora in reports. A name that occurs again gets a number."""
    counts: Counter[str] = Counter()
    numbered = []
    for corpus in corpora:
        counts[corpus.label] += 1
        number = counts[corpus.label]
        numbered.append(f"{corpus.label} ({number})" if number > 1 else corpus.label)
    return numbered


def weighed(specs: Sequence[str | TrainingCorpus]) -> list[TrainingCorpus]:
    """The training corpora. Either all of them have a weight, or none has."""
    corpora = grouped(specs, TrainingCorpus)
    weights = [corpus.weight for corpus in corpora]
    if None in weights and any(weights):
        raise ConfigError("data.train: some corpora have a weight and others have none; give all of them one, or none")
    return corpora


def _plain(spec: Mapping[str, Any] | ValidationCorpus) -> dict[str, Any]:
    return spec.model_dump() if isinstance(spec, ValidationCorpus) else dict(spec)


def _files(spec: Mapping[str, Any] | ValidationCorpus) -> list[str]:
    """The names in an entry; none if it is not valid."""
    files = _plain(spec).get("files")
    listed = [files] if isinstance(files, str) else files
    return listed if isinstance(listed, list) and all(isinstance(name, str) for name in listed) else []


def _renamed(spec: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    copies = spec.get("copies")
    if isinstance(copies, dict) and isinstance(glossary := copies.get("glossary"), str):
        spec = {**spec, "copies": {**copies, "glossary": change(glossary)}}
    return {**spec, "files": [change(name) for name in files]} if (files := _files(spec)) else spec


SCHEME = re.compile(r"[a-z]+:")
"""Data that is not a file: `generated:dates`, `hf:NAME`."""

LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*=")
"""The language before the name of a file, as in `en=text.txt`."""

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".tmx", ".po", ".xlf", ".xliff", ".xlsx", ".parquet", ".zip")
"""Files whose columns or languages may be named after '#'."""


def files_of(spec: str) -> list[str]:
    """The paths in `a.en,a.de`, `pairs-*.tsv#3,1`, `text.txt` or `en=text.txt`; none for data that is not a file."""
    return [file for path in _split(spec)[0] for file in (matching_files(path) if is_pattern(path) else []) or [path]]


def with_encoding(spec: str, encoding: str) -> str:
    """`spec` with an encoding behind each of its files."""
    paths, columns = _split(spec)
    return _language(spec) + ",".join(f"{path}@{encoding}" for path in paths) + columns if paths else spec


def absolute(spec: str, folder: Path) -> str:
    """`spec` with absolute paths; a relative path belongs to `folder`."""
    before = _language(spec)
    paths, columns = _split(spec)
    return before + ",".join(absolute_path(path, folder) for path in paths) + columns if paths else spec


def located(spec: str, folder: Path) -> str:
    """`spec` with absolute paths if all its files are in `folder`, else `spec` itself."""
    placed = absolute(spec, folder)
    return placed if all(os.path.exists(path) for path in files_of(placed)) else spec


def _split(spec: str) -> tuple[list[str], str]:
    """The paths of a spec, and the columns behind them with their '#'."""
    if SCHEME.match(spec):
        return [], ""
    spec = spec.removeprefix(_language(spec))
    path, mark, columns = spec.rpartition("#")
    if mark and "," not in path and Path(plain_name(path)).suffix in TABLES:
        return [path], f"#{columns}"
    if os.path.exists(spec):
        return [spec], ""  # a file whose name contains a comma
    return [part.strip() for part in spec.split(",")], ""


def _language(spec: str) -> str:
    """`en=` of `en=text.txt`; nothing if there is a file of the whole name."""
    prefix = LANGUAGE.match(spec)
    return "" if prefix is None or os.path.exists(spec) else prefix[0]


def absolute_path(path: str, folder: Path) -> str:
    """A path made absolute, with ~ for the home folder. An empty one, which is refused where it is opened, stays empty."""
    return os.path.abspath(folder / os.path.expanduser(path)) if path else path
