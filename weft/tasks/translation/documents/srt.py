"""Subtitles in the format SubRip (.srt)."""

from __future__ import annotations

from weft.tasks.translation.documents.html import Document
from weft.tasks.translation.documents.markup import Token, tokens


def srt(text: str) -> Document:
    """Subtitles. The text of a cue is one segment; its line breaks and tags are carried along. Numbers and times stay."""
    document, cue, inside = Document(), list[Token](), False
    for line in text.splitlines(keepends=True):
        content = line.splitlines()[0]
        if inside and content.strip() and "-->" not in content:
            cue += [*tokens(content), Token("other", line[len(content) :])]
            continue
        document.add(cue)
        document.keep(line)
        cue, inside = [], "-->" in content
    document.add(cue)
    return document
