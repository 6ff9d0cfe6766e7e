"""What can be asked of a model: one text and everything its answer depends on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.inference.terms import NO_TERMS, Terms

if TYPE_CHECKING:
    from weft.serve.models import Served


@dataclass(frozen=True)
class Ask:
    """A text for a model. Equal asks have equal answers: this is what the cache knows them by.

    options: those of the section decode that differ from the run's own, sorted by name.
    """

    model: Served
    text: str
    options: tuple[tuple[str, Any], ...] = ()
    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False

    @property
    def kept(self) -> bool:
        """Whether the answer is worth remembering. Weights of attention are large, and looked at once."""
        return not self.attention

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the predictor's input besides the text, as far as they are given."""
        given = {"prefix": self.prefix, "terms": self.terms, "attention": self.attention}
        return {name: value for name, value in given.items() if value}

    @property
    def group(self) -> Hashable:
        """Asks of one group may be decoded in one batch."""
        return self.model, self.options


@dataclass(frozen=True)
class Explain:
    """A text whose translation is to be explained on a page."""

    model: Served
    text: str
    options: tuple[tuple[str, Any], ...] = ()
    kept: bool = False

    @property
    def group(self) -> Hashable:
        """None is like another: each is answered alone."""
        return self
