"""Terms that a translation must use or avoid: for a single text, or from a glossary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from weft.data.term_automata import UNSPACED, is_letter, spelling_of
from weft.data.text_lines import read_lines
from weft.data.tokenizers import Tokenizer
from weft.decoding.lexical_constraints import TermAutomata, stack
from weft.errors import DataError

LETTER = rf"[^\W{''.join(f'{chr(first)}-{chr(last)}' for first, last in UNSPACED)}]"
"""A letter of a word: none of a script without spaces, where words have no borders."""


@dataclass(frozen=True)
class Terms:
    """The terms of one text: its translation contains all of `use` and none of `avoid`, as whole words.

    sources: (source term, term to use), where the source terms are known. They tell which of several sentences needs a term.
    """

    use: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.use or self.avoid)

    def among(self, parts: Sequence[str]) -> list[Terms]:
        """The terms of each part of a text. Raises DataError if it is not known which part needs a term."""
        if len(parts) < 2 or not self.use:
            return [self] * len(parts)
        sources = [tuple(pair for pair in self.sources if whole_word(pair[0]).search(part)) for part in parts]
        terms = [Terms(tuple(dict.fromkeys(use for _, use in own)), self.avoid, own) for own in sources]
        if missing := [term for term in self.use if not any(term in each.use for each in terms)]:
            raise DataError(
                f"the text is translated in {len(parts)} parts, and which of them needs {missing[0]!r} is not known. "
                "Give one sentence per line or a glossary with source terms, or set decode.sentences to off"
            )
        return terms

    def unmet(self, text: str) -> list[str]:
        """The terms that a translation should contain but does not, because it reached its longest length first."""
        return [term for term in self.use if not whole_word(term, any_case=False).search(text)]


NO_TERMS = Terms()


class Glossary:
    """Source terms, each with a target term to use wherever the source term occurs, as whole words in any case.

    With "!" before it, the target term is to be avoided there.
    """

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._entries = [
            (whole_word(source), source, target.removeprefix("!").strip(), target.startswith("!")) for source, target in entries
        ]

    def terms(self, text: str) -> Terms:
        """The terms that apply to this text."""
        entries = [(source, target, avoid) for pattern, source, target, avoid in self._entries if pattern.search(text)]
        use = tuple((source, target) for source, target, avoid in entries if not avoid)
        avoided = dict.fromkeys(target for _, target, avoid in entries if avoid)
        return Terms(tuple(dict.fromkeys(target for _, target in use)), tuple(avoided), use)


@lru_cache(1024)
def whole_word(term: str, *, any_case: bool = True) -> re.Pattern[str]:
    """A pattern that finds a term where it is whole words, as `Spelling.automaton` does."""
    before, after = (rf"(?{side}{LETTER})" if is_letter(end) else "" for side, end in (("<!", term[:1]), ("!", term[-1:])))
    return re.compile(rf"{before}{re.escape(term)}{after}", re.IGNORECASE if any_case else 0)


def read_glossary(path: Path) -> Glossary:
    """Reads a file with a source term, a tab and a target term per line; "!" before the target term means avoid."""
    entries = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        source, tab, target = line.partition("\t")
        source, target = source.strip(), target.strip()
        if not (tab and source and target.removeprefix("!")):
            raise DataError(f"{path}, line {number}: expected a source term, a tab and a target term")
        entries.append((source, target))
    return Glossary(entries)


def term_automata(
    target: Tokenizer, terms: Sequence[Sequence[str]], device: torch.device, *, early: bool = False
) -> TermAutomata | None:
    """The automata for the terms of some texts; None if there are no terms. Raises DataError for a term that cannot be written.

    early: the terms are to be avoided, so a token that completes a term counts without waiting for the word to end
    (`Spelling.automaton`).
    """
    known = {term: number for number, term in enumerate(dict.fromkeys(term for each in terms for term in each), start=1)}
    if not known:
        return None
    spelling = spelling_of(target)
    automata = [spelling.automaton(term, early) for term in known]
    most = max(len(each) for each in terms)
    which = [[*(known[term] for term in each), *[0] * (most - len(each))] for each in terms]
    blocks = stack(*([torch.from_numpy(getattr(each, part)) for each in automata] for part in ("follow", "force", "left")))
    parts = (*blocks, torch.from_numpy(spelling.breaks), torch.tensor(which))
    return TermAutomata(*(part.to(device) for part in parts))
