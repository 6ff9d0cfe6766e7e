"""Checks that what a program passes as text is text, and says what it is otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weft.errors import InputError


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
