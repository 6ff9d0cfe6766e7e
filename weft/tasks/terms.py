"""Words that a translation has to use, and words that it may not: for one text, or by a glossary for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.config.sections import DecodeSection
from weft.data.lines import read_lines
from weft.data.spelling import spelling_of
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError, DataError
from weft.search.terms import Book, Require, stack

BANKS = 8
"""The narrowest beam with which terms are asked for: they share it with texts that have not said them yet."""


@dataclass(frozen=True)
class Terms:
    """For one text: `use`, each of which its translation holds as whole words, and `avoid`, none of which it does."""

    use: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.use or self.avoid)


class Glossary:
    """Source terms, each with what to use or to avoid where a text holds it as whole words, whatever its case."""

    def __init__(self, entries: Sequence[tuple[str, str, bool]]) -> None:
        self._entries = [
            (re.compile(rf"(?<!\w){re.escape(source)}(?!\w)", re.IGNORECASE), target, avoid)
            for source, target, avoid in entries
        ]

    def terms(self, text: str) -> Terms:
        """What holds for this text."""
        found = [(target, avoid) for pattern, target, avoid in self._entries if pattern.search(text)]
        use, avoid = (tuple(dict.fromkeys(target for target, kind in found if kind is avoided)) for avoided in (False, True))
        return Terms(use, avoid)


def read_glossary(path: Path) -> Glossary:
    """A file with a source term, a tab and a target term a line; a target with "!" before it must not be used."""
    entries = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        source, tab, target = line.partition("\t")
        source, target = source.strip(), target.strip()
        avoid = target.startswith("!")
        target = target.removeprefix("!").strip()
        if not (tab and source and target):
            raise DataError(f"{path}, line {number}: expected a source term, a tab and a target term")
        entries.append((source, target, avoid))
    return Glossary(entries)


def book(target: Tokenizer, terms: Sequence[Sequence[str]], device: torch.device, *, early: bool = False) -> Book | None:
    """The automata of the terms of some texts; None if there are none. Raises DataError for a term that cannot be written.

    early: they are to be avoided, so a piece that completes a term is as bad as the end of the word (`Spelling.automaton`).
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
    return Book(*(part.to(device) for part in parts))


def constrained(options: DecodeSection, use: Book, at: torch.Tensor) -> Require:
    """A search for texts that hold the terms of `use`, of which a forced beginning may have said some (`at`)."""
    if options.sample:
        raise ConfigError("terms that must be used need a search: leave decode.sample off")
    keep = max(options.beam, options.n_best)
    return Require(max(BANKS, 2 * keep), use, at, options.length_penalty, keep)
