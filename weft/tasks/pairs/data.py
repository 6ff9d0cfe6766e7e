"""Two texts with a label or a number: what the columns are called, and numbers in the place of labels."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.data.formats import Fields, Pairs
from weft.errors import DataError
from weft.file_access import replace_file
from weft.tasks.classification.data import reading
from weft.tasks.pairs.metrics import number_of
from weft.tasks.two_texts import two_text_format

FIELDS: Fields = (
    ("premise", "sentence1", "text1", "first", "source"),
    ("hypothesis", "sentence2", "text2", "second"),
    ("label", "score", "target"),
)
"""The names of the columns."""

FORMAT = two_text_format(FIELDS)

NUMBERS = "numbers.json"


@dataclass(frozen=True)
class Numbers:
    """Numbers in the place of labels. The model gives (number − mean) / deviation, both of the training data."""

    several: ClassVar[bool] = False
    dtype: ClassVar[str] = "float32"
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def names(self) -> list[str]:
        return ["number"]

    def __len__(self) -> int:
        return 1

    def find(self, text: str) -> list[float]:
        """The number in a text, as a list of one."""
        return [number_of(text)]

    def join(self, values: Iterable[float]) -> str:
        """A number as text."""
        return ",".join(f"{value:.4f}".rstrip("0").rstrip(".") for value in values)

    def value(self, output: float) -> float:
        """The number that an output of the model stands for."""
        return self.mean + self.deviation * output

    def check(self, pairs: Pairs) -> None:
        """Raises DataError at the first pair without a number."""
        for _ in _read([pairs]):
            pass

    def save(self, path: Path) -> None:
        replace_file(path, json.dumps({"mean": self.mean, "deviation": self.deviation}))

    @staticmethod
    def load(path: Path) -> "Numbers":
        with reading(path, "the mean and the deviation of numbers"):
            record = json.loads(path.read_text(encoding="utf-8"))
            return Numbers(float(record["mean"]), float(record["deviation"]))


def find_numbers(train: Sequence[Pairs]) -> Numbers:
    """The mean and the deviation of the numbers of training data. Raises DataError if all are the same."""
    values = np.fromiter(_read(train), np.float64)
    if not len(values) or values.min() == values.max():
        names = ", ".join(some.name for some in train)
        raise DataError(
            f"{names}: there are no two different numbers to learn from; choose the column that has them as the last one"
        )
    return Numbers(float(values.mean()), float(values.std()))


def _read(train: Sequence[Pairs]) -> Iterable[float]:
    for pairs in train:
        for number, (_, text) in enumerate(pairs, start=1):
            try:
                yield number_of(text)
            except DataError as error:
                raise DataError(f"{pairs.name}, pair {number:,}: {error}") from None
