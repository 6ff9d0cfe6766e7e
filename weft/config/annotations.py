"""The types that an option's annotation is made of."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal


def members(annotation: Any) -> Iterator[Any]:
    """A type and, recursively, all its type arguments."""
    yield annotation
    for member in typing.get_args(annotation):
        yield from members(member)


def plain_types(annotation: Any) -> set[Any]:
    """The types that a value may have: {int, NoneType} for `Annotated[int, …] | None`."""
    if typing.get_origin(annotation) is Annotated:
        return plain_types(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is Literal:
        return {type(value) for value in typing.get_args(annotation)}
    if members := [
        member for member in typing.get_args(annotation) if typing.get_origin(annotation) not in (list, dict, tuple, set)
    ]:
        return set[Any]().union(*map(plain_types, members))
    return {annotation}
