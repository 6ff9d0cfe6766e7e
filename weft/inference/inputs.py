"""Makes the inputs of a predictor from lines and what belongs to each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from weft.errors import DataError
from weft.inference.predictor import Predictor
from weft.inference.projection import Mark
from weft.inference.terms import Terms
from weft.inference.texts import check_text


def make_inputs(
    predictor: Predictor[Any, Any],
    lines: Iterable[str],
    attention: bool,
    prefixes: Iterable[str] | None,
    terms: Iterable[Terms] | None,
    marks: Iterable[tuple[Mark, ...]] | None = None,
) -> Iterator[Any]:
    """Lines with their prefixes, terms and marks as inputs of the predictor."""
    starts = repeat("") if prefixes is None else iter(prefixes)
    wishes = repeat(None) if terms is None else iter(terms)
    tags = repeat(None) if marks is None else iter(marks)
    number = 0
    for number, line in enumerate(lines, start=1):
        check_text(line, f"line {number}")
        fields = {"prefix": next(starts, None), "terms": next(wishes, None), "attention": attention, "marks": next(tags, None)}
        if fields["prefix"] is None:
            raise DataError(f"line {number} has no prefix: give one for every line, which may be empty")
        try:
            parsed = predictor.parse(line, **{name: value for name, value in fields.items() if value})
        except DataError as error:
            raise DataError(f"line {number}: {error}") from None
        yield parsed
    if prefixes is not None and next(starts, None) is not None:
        raise DataError(f"there are more prefixes than lines to translate: line {number + 1} is missing")
