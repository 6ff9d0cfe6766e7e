"""Inputs of translation: a text with what its translation has to have, and what is known about it."""

from dataclasses import dataclass, fields

from weft.tasks.translation.glossary import NO_TERMS, Terms, whole_word
from weft.tasks.translation.markup_and_tag_transfer import MarkupSpan
from weft.tasks.translation.translation_memory import MemoryMatch


@dataclass(frozen=True)
class TranslationInput:
    """A text to translate.

    prefix: how the translation has to begin · terms: words it must use or avoid · attention: whether to add attention weights
    · marks: the markup of the text, which the translation must have as well · match: the entry of a translation memory that
    is most similar to the text · context: the texts before it, for decode.context.
    """

    text: str
    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False
    marks: tuple[MarkupSpan, ...] = ()
    match: MemoryMatch | None = None
    context: str = ""

    @property
    def from_memory(self) -> bool:
        """Whether the match is the translation: it is exact, and has what the translation must have."""
        if self.match is None or not self.match.exact or self.marks:
            return False
        target, avoided = self.match.target, self.terms.avoid
        kept = target.startswith(self.prefix) and not self.terms.unmet(target)
        return kept and not any(whole_word(term, any_case=False).search(target) for term in avoided)


INPUT_FIELDS = frozenset(each.name for each in fields(TranslationInput)) - {"text"}
"""Fields of an input besides its text."""
