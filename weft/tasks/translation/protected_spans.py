"""Protected spans, which a translation has to repeat: placeholders, URLs, e-mail addresses and numbers."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

Kind = Literal["placeholders", "urls", "emails", "numbers"]

PATTERNS: dict[Kind, re.Pattern[str]] = {
    "urls": re.compile(
        r"(?<![\w.@])(?:[a-z][a-z0-9+.-]{1,15}://|www\.)[\w\-.~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII | re.IGNORECASE
    ),
    "emails": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII),
    "placeholders": re.compile(
        r"\{\{[^{}\n]*\}\}|[$%#]\{[^{}\n]+\}|\{[\w.:!\[\]-]*\}"
        r"|\{ *+[$-][\w.-]++ *+\}"  # Fluent: { $name }, { -term }
        r"|(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+0#]*+\d*+(?:\.\d++)?(?:[hlqjzt]{0,2}[diufeEgGxXocsSrpn]\d*+|@)(?![a-z])"
        r"|(?<![\d%])%L?[1-9]\d?(?![\d$%])"  # Qt: %1, %L1
        r"|(?<![\w$])\$[1-9](?!\w|[.,]\d)"  # MediaWiki and others: $1
        r"|<_:[\w:.-]+/>"  # itstool
    ),
    "numbers": re.compile(r"(?<!\w)\d+(?:[.,:/]\d+)*(?!\w)"),
}
"""The first that matches at a place counts."""

HINTS: dict[Kind, re.Pattern[str]] = {
    "urls": re.compile(r"://|ww\.", re.IGNORECASE),
    "emails": re.compile("@"),
    "placeholders": re.compile("[{%$]|<_"),
    "numbers": re.compile(r"\d"),
}
"""A text is searched for a kind only if this occurs in it. Most texts have none of it."""

AUTO: tuple[Kind, ...] = ("urls", "emails", "placeholders")
TRAILING = ".,;:!?'\""
"""Marks at the end of a URL that belong to the sentence."""


def kinds(setting: str | Sequence[str]) -> tuple[Kind, ...]:
    """The kinds that decode.protect names."""
    if isinstance(setting, str):
        return AUTO if setting == "auto" else ()
    return tuple(kind for kind in PATTERNS if kind in setting)


def hint(wanted: Sequence[Kind]) -> re.Pattern[str] | None:
    """Matches any text that may have something of these kinds."""
    return re.compile("|".join(HINTS[kind].pattern for kind in wanted), re.IGNORECASE) if wanted else None


def find(text: str, wanted: Sequence[Kind], taken: Collection[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """The ranges of a text that have to be repeated, in order, without overlaps and outside of the ranges `taken`."""
    spans: list[tuple[int, int]] = []
    covered = bytearray(len(text))
    for start, end in taken:
        covered[start:end] = b"x" * (end - start)
    for kind in wanted:
        if HINTS[kind].search(text):
            for start, end in _matches(text, kind):
                if not any(covered[start:end]):
                    spans.append((start, end))
                    covered[start:end] = b"x" * (end - start)
    return sorted(spans)


def _matches(text: str, kind: Kind) -> Iterator[tuple[int, int]]:
    for match in PATTERNS[kind].finditer(text):
        start, end = match.span()
        if kind == "urls":
            end = start + len(_without_trailing(match[0]))
        if end > start:
            yield start, end


def _without_trailing(url: str) -> str:
    """A URL without marks at its end, and without brackets there that it does not open, as in (see https://example.org/)."""
    unopened = {closing: url.count(closing) - url.count(opening) for opening, closing in ("()", "[]")}
    end = len(url)
    while end and (url[end - 1] in TRAILING or unopened.get(url[end - 1], 0) > 0):
        end -= 1
        if url[end] in unopened:
            unopened[url[end]] -= 1
    return url[:end]
