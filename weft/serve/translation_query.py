"""Queries of a server: a text for a model, with everything that its answer depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.serve.served_models import Options, ServedModel
from weft.tasks.translation.glossary import NO_TERMS, Terms
from weft.tasks.translation.markup_and_tag_transfer import MarkupSpan


@dataclass(frozen=True)
class TranslationQuery:
    """A text for a model. Equal queries have equal answers, so a query is the key of the answer cache.

    options: options of the `decode` section that differ from the run's configuration, sorted by name · prefix, terms,
    attention, marks: fields of the predictor's input.
    """

    model: ServedModel
    text: str
    options: Options = ()
    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False
    marks: tuple[MarkupSpan, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name in ("prefix", "terms", "attention", "marks") if (value := getattr(self, name))}

    @property
    def input_fields(self) -> dict[str, Any]:
        """The fields of the predictor's input: those that are set, and what the model's translation memory has."""
        match = None if self.model.memory is None else self.model.memory.find(self.text)
        return self.fields | ({} if match is None else {"match": match})
