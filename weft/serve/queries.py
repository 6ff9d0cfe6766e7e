"""Queries to a model: one text with everything that its answer depends on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.inference.terms import NO_TERMS, Terms

if TYPE_CHECKING:
    from weft.serve.models import Served


@dataclass(frozen=True)
class Query:
    """A text for a model. Equal queries have equal answers, so a query is the key of the answer cache.

    options: options of the `decode` section that differ from the run's configuration, sorted by name.
    """

    model: Served
    text: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def cached(self) -> bool:
        """Whether to cache the answer."""
        return False

    @property
    def group(self) -> Hashable:
        """Queries with the same group may be decoded in one batch."""
        return self


class ExplanationQuery(Query):
    """A text whose translation is to be explained on an HTML page."""


@dataclass(frozen=True)
class TranslationQuery(Query):
    """A text to translate, and the fields of the predictor's input."""

    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False

    @property
    def cached(self) -> bool:
        return not self.attention  # weights are large and rarely requested twice

    @property
    def group(self) -> Hashable:
        return self.model, self.options

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are given."""
        given = {"prefix": self.prefix, "terms": self.terms, "attention": self.attention}
        return {name: value for name, value in given.items() if value}
