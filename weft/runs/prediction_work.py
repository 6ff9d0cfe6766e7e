"""The prediction of a corpus as work to do: its inputs, the runs that predict, and where the output goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from weft.data.text_lines import file_digest
from weft.decoding.decoding_options import changed
from weft.decoding.predictor import Prediction
from weft.runs.open_run import run_config
from weft.runs.packed_run import unpacked
from weft.runs.run_folder import MODEL
from weft.tasks.base import build_task


class Inputs(Protocol):
    """Inputs of a corpus, and what is written for each.

    together: whether many of them are read at once, from the first one on, as where the inputs are a list
    """

    together: ClassVar[bool]

    def lines(self) -> Iterator[str]:
        """The inputs, in order, as often as they are asked for."""

    def written(self, line: str, prediction: Prediction) -> str:
        """One line to write, without its end."""

    def digest(self) -> list[Any]:
        """Everything that the inputs and the form of the output depend on."""


@dataclass(frozen=True)
class InputFile:
    """The inputs in a file, as `weft predict` reads and writes them.

    run: a trained run, whose task reads the file · as_json: JSON lines instead of text.
    """

    file: Path
    run: Path
    as_json: bool = False
    together: ClassVar[bool] = False

    def lines(self) -> Iterator[str]:
        folder = unpacked(self.run)
        return iter(build_task(run_config(folder), folder).data_format.inputs(self.file))

    def written(self, line: str, prediction: Prediction) -> str:
        if self.as_json:
            return json.dumps({"source": line, **prediction.document()}, ensure_ascii=False)
        return prediction.lines()

    def digest(self) -> list[Any]:
        return [file_digest(self.file), self.as_json]


@dataclass(frozen=True)
class InputTexts:
    """Inputs in memory. For each, the text of its prediction and its lines are written as a list in JSON."""

    texts: Sequence[str]
    together: ClassVar[bool] = True

    def lines(self) -> Iterator[str]:
        return iter(self.texts)

    def written(self, line: str, prediction: Prediction) -> str:
        return json.dumps([prediction.text, prediction.lines()])

    def digest(self) -> list[Any]:
        return [hashlib.blake2b(json.dumps([*self.texts]).encode(), digest_size=16).hexdigest()]


@dataclass(frozen=True)
class PredictionWork:
    """Everything that a process has to know to predict a part of a corpus. It can be sent to other machines.

    runs: one run, or those of an ensemble · options: of the section decode · translates: whether the run must be one that
    translates.
    """

    runs: Sequence[Path]
    inputs: Inputs
    out: Path
    device: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    glossary: Path | None = None
    translates: bool = False

    def identity(self) -> str:
        """A hash of everything that decides what is written: the weights, how they decode, and the inputs."""
        sections = [changed(run_config(run).decode, self.options).model_dump() for run in self.runs]
        files = [unpacked(run) / MODEL for run in self.runs]
        weights = [file_digest(file) if file.is_file() else "" for file in files]
        terms = None if self.glossary is None else file_digest(self.glossary)
        key = json.dumps([sections, weights, self.inputs.digest(), terms, self.out.suffix])
        return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
