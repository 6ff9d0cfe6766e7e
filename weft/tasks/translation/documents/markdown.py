"""Markdown: headings, paragraphs, items, quotations and cells of tables are translated, with their inline markup.

Code, HTML blocks, front matter, destinations of links and everything else stay as they are. A paragraph of several lines
becomes one line, since its words move.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from weft.tasks.translation.documents.html import VOID, Document, Token, tokens

FENCE = re.compile(r"[ >]*(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}|~{3,})")
PREFIX = re.compile(r"(?:[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t])|\[[ xX]\](?=[ \t])))*[ \t]*(?:#{1,6}[ \t]+)?")
"""Marks that may precede the text of a line: those of quotations, items, tasks and headings."""

KEPT = re.compile(
    r"={1,}|-{2,}|(?:[-*_][ \t]*+){3,}|\|?[ \t]*+:?-{1,}:?[ \t]*+(?:\|[ \t]*+:?-{1,}:?[ \t]*+)*\|?"
    r"|\[[^\]]+\]:.*|</?(?:address|article|aside|blockquote|body|br|center|details|dialog|div|dl|fieldset|figure|footer|form|h\d|"
    r"head|header|hr|html|iframe|img|li|link|main|nav|ol|p|picture|pre|script|section|style|summary|table|tbody|td|tfoot|th|thead|"
    r"tr|ul|video|!--)\b.*",
    re.DOTALL | re.IGNORECASE,
)
"""Lines that stay: underlines of headings, rules, delimiters of tables, definitions of links, blocks of HTML."""

INLINE = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`++).{1,2000}?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<note>\[\^[^\[\]\s]++\])"
    r"|(?P<auto><(?:https?|ftp|mailto):[^\s<>]*>|<[\w.+-]+@[\w.-]+>)"
    r"|(?P<open>!?\[)(?=[^\[\]]*\](?:\([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)?(?:\s++(?:\"[^\"]*\"|'[^']*'))?\s*+\)|\[[^\]]*\]))"
    r"|(?P<close>\](?:\([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)?(?:\s++(?:\"[^\"]*\"|'[^']*'))?\s*+\)|\[[^\]]*\]))"
    r"|(?P<mark>\*{1,3}|~~|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w))",
    re.DOTALL,
)
SPECIAL = re.compile(r"([\\`*\[\]<])")


def markdown_document(text: str) -> Document:
    """The document of a Markdown text."""
    document = Document(lambda written: SPECIAL.sub(r"\\\1", written))
    waiting: list[Token] = []
    fence = ""
    lines = text.splitlines(keepends=True)
    front = next((place for place, line in enumerate(lines) if place and line.strip() in ("---", "...")), 0)
    front = front if lines and lines[0].strip() == "---" else 0

    def flush() -> None:
        nonlocal waiting
        document.add(waiting)
        waiting = []

    for number, line in enumerate(lines):
        content, end = line.rstrip("\r\n"), line[len(line.rstrip("\r\n")) :]
        match = FENCE.match(content)
        if fence or match or number <= front > 0:
            flush()
            document.keep(line)
            if match and not (number <= front > 0):
                mark = match[1]
                fence = mark if not fence else "" if mark.startswith(fence) and content.strip(" >") == mark else fence
            continue
        prefix = PREFIX.match(content)
        begins = prefix[0] if prefix else ""
        code = content.startswith(("    ", "\t")) and not waiting
        if not content.strip() or code or KEPT.fullmatch(content.strip()):
            flush()
            document.keep(line)
        elif "|" in content and content.strip().startswith("|"):
            flush()
            _add_cells(document, content)
            document.keep(end)
        else:
            if begins.strip() or not waiting:
                flush()
                document.keep(begins)
            else:
                content = content.lstrip()
                begins = ""
            body = content[len(begins) :]
            text_part = body.rstrip(" ").removesuffix("\\") if body.endswith("\\") else body.rstrip(" ")
            hard = body[len(text_part) :] if body.endswith(("  ", "\\")) else ""
            waiting += _inline(text_part if hard else body)
            waiting.append(Token("other" if hard else "text", hard + end))
            if "#" in begins:
                flush()
    flush()
    return document


def _add_cells(document: Document, line: str) -> None:
    """Adds a row of a table, cell by cell."""
    for place, cell in enumerate(re.split(r"((?<!\\)\|)", line)):
        if place % 2:
            document.keep(cell)
        else:
            document.add(list(_inline(cell)))


def _inline(text: str) -> list[Token]:
    """The tokens of a line: marks of emphasis and links are tags, code and escapes stay."""
    found: list[Token] = []
    at = 0
    for match in INLINE.finditer(text):
        found += tokens(text[at : match.start()], void=VOID)
        at = match.end()
        kind = str(match.lastgroup)
        if kind in ("ticks", "code", "escape", "note", "auto"):
            found.append(Token("other", match[0]))
        elif kind in ("open", "close"):
            found.append(Token("open" if kind == "open" else "close", match[0], "link"))
        else:
            found.append(Token("open", match[0], match[0]))
    found += tokens(text[at:], void=VOID)
    return list(_paired(found))


def _paired(found: list[Token]) -> Iterator[Token]:
    """The tokens, in which every second mark of emphasis closes the one before; a mark alone is text."""
    marks = {token.name for token in found if token.name and token.name[0] in "*_~"}
    counts = {mark: sum(token.name == mark for token in found) for mark in marks}
    seen = dict.fromkeys(marks, 0)
    for token in found:
        if token.name not in marks:
            yield token
            continue
        seen[token.name] += 1
        if seen[token.name] == counts[token.name] and counts[token.name] % 2:
            yield Token("other", token.raw)
        else:
            yield replace(token, kind="open" if seen[token.name] % 2 else "close")
