"""Finds installed fonts that have the glyphs of a text."""

from __future__ import annotations

from functools import cache

FIRST = "DejaVu Sans"
"""Comes with matplotlib; covers Latin, Greek, Cyrillic, Hebrew, Arabic, Armenian and Georgian."""

NO_FONT = "Last Resort"
"""A font that draws a box for every character."""


def fonts_for(text: str) -> tuple[list[str], str]:
    """Returns font families for a text, in order of preference, and the characters that no font has."""
    from matplotlib.font_manager import findfont, fontManager

    missing = {character for character in text if character.isprintable() and not character.isspace()}
    missing -= _glyphs(findfont(FIRST))
    families = [FIRST]
    if not missing:
        return families, ""
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.style != "normal", abs(_weight(entry.weight) - 400))):
        if entry.name in families or entry.name.startswith(NO_FONT):
            continue
        if missing & (glyphs := _glyphs(entry.fname)):
            families.append(entry.name)
            missing -= glyphs
        if not missing:
            break
    return families, "".join(sorted(missing))


def _weight(weight: int | str) -> int:
    return weight if isinstance(weight, int) else 400


@cache
def _glyphs(path: str) -> frozenset[str]:
    """Returns the characters that a font file has glyphs for; empty if the file cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
