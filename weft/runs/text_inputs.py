"""The inputs of a predictor, made from the texts that a program passes, with checks that they are texts.

Checks that what a program passes as text is text, and says what it is otherwise.

Makes the inputs of a predictor from lines and what belongs to each line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

from weft.errors import DataError, InputError
from weft.inference.predictor import Predictor
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.markup_projection import MarkupSpan


def check_text(text: Any, name: str) -> str:
    """Returns `text` if it is a string. Raises InputError, which calls it `name`, otherwise."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes | bytearray):
        raise InputError(f"{name} is bytes, not a string; decode it: {name}.decode('utf-8')")
    raise InputError(f"{name} must be a string, not {_described(text)}")


def check_texts(texts: Any, name: str = "texts") -> list[str]:
    """The strings of any iterable. Raises InputError with the index of the first that is not a string."""
    if isinstance(texts, bytes | bytearray):
        check_text(texts, name)
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        hint = f"; give its texts: list({name}.values())" if isinstance(texts, Mapping) else ""
        raise InputError(f"{name} must be a string or a list of strings, not {_described(texts)}{hint}")
    return [check_text(text, f"{name}[{index}]") for index, text in enumerate(texts)]


def _described(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    shown = repr(value)
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} ({shown if len(shown) <= 40 else shown[:37] + '...'})"


def make_inputs(
    predictor: Predictor[Any, Any],
    lines: Iterable[str],
    attention: bool,
    prefixes: Iterable[str] | None,
    terms: Iterable[Terms] | None,
    marks: Iterable[tuple[MarkupSpan, ...]] | None = None,
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
