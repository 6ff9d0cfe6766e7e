"""Which fonts of this machine have the glyphs of a text."""

from __future__ import annotations

from functools import cache

FIRST = "DejaVu Sans"
"""matplotlib brings it along: Latin, Greek, Cyrillic, Hebrew, Arabic, Armenian, Georgian."""

NO_FONT = "Last Resort"
"""It has a box for every character there is."""


def fonts_for(text: str) -> tuple[list[str], str]:
    """Families to draw a text with, in the order in which they are asked for a glyph; and the characters that none has."""
    from matplotlib.font_manager import findfont, fontManager

    missing = {character for character in text if character.isprintable() and not character.isspace()}
    missing -= _glyphs(findfont(FIRST))
    families = [FIRST]
    if not missing:
        return families, ""
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.style != "normal", abs(_weight(entry.weight) - 400))):
        if entry.name in families or entry.name.startswith(NO_FONT):
            continue
        if missing & (found := _glyphs(entry.fname)):
            families.append(entry.name)
            missing -= found
        if not missing:
            break
    return families, "".join(sorted(missing))


def _weight(weight: int | str) -> int:
    return weight if isinstance(weight, int) else 400


@cache
def _glyphs(path: str) -> frozenset[str]:
    """The characters that a font file has a glyph for; none if it cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
