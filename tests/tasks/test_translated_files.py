"""Translated files of translators: only what needs a translation changes, every other byte stays; flags, states and scores."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.errors import DataError
from weft.tasks.translation.documents import DocumentFile, open_content, open_document
from weft.tasks.translation.documents.html import Document
from weft.tasks.translation.segmenter import Translation


def answers(document: Document, change: Callable[[str], str] = str.upper) -> list[Translation]:
    """Made-up translations with the markup of their segments around them, as if it were carried over."""
    found = []
    for segment in document.segments:
        runs, at = [], 0
        edges = sorted(
            [(mark.start, number, mark.open) for number, mark in enumerate(segment.marks) if mark.kind != "opaque"]
            + [(mark.end, 1000 - number, mark.close) for number, mark in enumerate(segment.marks) if mark.kind != "opaque"]
            + [(mark.start, 500, mark.open) for mark in segment.marks if mark.kind == "opaque"]
        )
        for place, _, markup in edges:
            runs += [(change(segment.text[at:place]), False), (markup, True)]
            at = place + (segment.text[place : place + 1] == "\ufffc")
        runs.append((change(segment.text[at:]), False))
        found.append(Translation("".join(text for text, _ in runs), -0.25, runs=runs))
    return found


def translated(file: DocumentFile, change: Callable[[str], str] = str.upper) -> bytes:
    return file.filled(answers(file.document, change))


CATALOG = r"""# Somebody, 2026
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: a.c:1
#, c-format
#| msgid "older"
msgid "one %s"
msgstr ""

#, fuzzy
#| msgid "older"
msgid "two"
msgstr "stale"

msgid "kept"
msgstr  "bleibt"

msgid ""
"several\n"
"lines\n"
msgstr ""

msgctxt "x"
msgid "%d \"dog\""
msgid_plural "%d dogs"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr "alt"
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_catalogs(tmp_path: Path, end: str) -> None:
    polib = pytest.importorskip("polib")
    content = CATALOG.replace("\n", end).encode()
    file = open_content(content, "po")
    found = translated(file)
    expected = CATALOG.replace('#, c-format\n#| msgid "older"\n', "#, fuzzy, c-format\n").replace('#| msgid "older"\n', "")
    expected = expected.replace('msgid "one %s"\nmsgstr ""', 'msgid "one %s"\nmsgstr "ONE %S"').replace('"stale"', '"TWO"')
    expected = expected.replace('msgid ""\n"several', '#, fuzzy\nmsgid ""\n"several')
    expected = expected.replace('"lines\\n"\nmsgstr ""\n', '"lines\\n"\nmsgstr ""\n"SEVERAL\\n"\n"LINES\\n"\n')
    expected = expected.replace('msgctxt "x"', '#, fuzzy\nmsgctxt "x"')
    expected = expected.replace('[0] ""', r'[0] "%D \"DOG\""').replace('[1] ""', '[1] "%D DOGS"')
    assert found == expected.replace("\n", end).encode()
    (tmp_path / "a.po").write_bytes(found)
    entries = {entry.msgid: entry for entry in polib.pofile(str(tmp_path / "a.po"))}
    assert [entry.fuzzy for entry in entries.values()] == [True, True, False, True, True, False]
    assert entries["several\nlines\n"].msgstr == "SEVERAL\nLINES\n" and entries["kept"].msgstr == "bleibt"
    again = open_content(found.replace(b"fuzzy, ", b"").replace(b"#, fuzzy" + end.encode(), b""), "po")
    assert not again.document.segments, "what is reviewed is kept"


def test_catalogs_in_other_encodings_and_languages() -> None:
    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n"Plural-Forms: nplurals=1; plural=0;\\n"\n\n'
    text += '# ä\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n'
    file = open_content(text.encode("latin-1"), "po")
    assert translated(file, lambda text: "ß" + text).endswith('msgstr[0] "ßb"\n'.encode("latin-1"))
    with pytest.raises(DataError, match="ISO-8859-1, which has no '日'"):
        translated(open_content(text.encode("latin-1"), "po"), lambda text: "日")


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("  Close the <b>window</b> now ", ["Close the window now"], "  CLOSE THE <b>WINDOW</b> NOW "),
        ("<b>Note</b>: see <a href='x'>this</a>", ["Note: see this"], "<b>NOTE</b>: SEE <a href='x'>THIS</a>"),
        ("cp <file> a<b and c>d", ["cp <file> a<b and c>d"], "CP <FILE> A<B AND C>D"),
        ("a &amp; b<br>c <code>x</code>", ["a \ufffc b\ufffcc \ufffc"], "A &amp; B<br>C <code>x</code>"),
        ("&File <i>x</i> & <", ["&File x & <"], "&FILE <i>X</i> & <"),
        ("<b>12</b>", [], "<b>12</b>"),
    ],
)
def test_tags_in_messages_of_a_catalog_stay(text: str, read: list[str], written: str) -> None:
    file = open_content(f'msgid "{text}"\nmsgstr ""\n'.encode(), "po")
    assert [segment.text for segment in file.document.segments] == read
    assert translated(file).decode().partition("msgstr ")[2] == (f'"{written}"\n' if read else f'"{text}"\n')


def test_memories_get_the_missing_language(tmp_path: Path) -> None:
    text = """<?xml version="1.0" encoding="UTF-16"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" adminlang="de"/><body>
  <tu tuid="1"><note>x</note>
    <tuv xml:lang="en-US"><seg>Press <bpt i="1">&lt;b&gt;</bpt>this<ept i="1">&lt;/b&gt;</ept> &amp; go</seg></tuv>
  </tu>
  <tu tuid="2"><tuv xml:lang="en-US"><seg>kept</seg></tuv><tuv xml:lang="de-AT"><seg>bleibt</seg></tuv></tu>
  <tu tuid="3"><tuv xml:lang="fr"><seg>non</seg></tuv><tuv xml:lang="en"><seg>a</seg></tuv></tu>
  <tu tuid="4"><tuv xml:lang="en"><seg>– …</seg></tuv></tu>
</body></tmx>
"""
    document = open_document(text, "tmx", "de")
    found = document.fill(answers(document))
    added = re.compile(r'(?:\n    )?<tuv xml:lang="de" creationid="weft">.*?</tuv>')
    assert added.sub("", found) == text.replace("UTF-16", "UTF-8")
    assert added.findall(found) == [
        '\n    <tuv xml:lang="de" creationid="weft"><seg>PRESS <bpt i="1">&lt;b&gt;</bpt>THIS<ept i="1">&lt;/b&gt;</ept> '
        "&amp; GO</seg></tuv>",
        '<tuv xml:lang="de" creationid="weft"><seg>A</seg></tuv>',
    ]
    tmx = pytest.importorskip("translate.storage.tmx")
    (tmp_path / "a.tmx").write_text(found)
    store = tmx.tmxfile.parsefile(str(tmp_path / "a.tmx"))
    assert len(store.units) == 4
    with pytest.raises(DataError, match="set data"):
        open_document(text, "tmx")
    with pytest.raises(DataError, match="entities"):
        open_document('<!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>', "tmx", "de")


def test_an_empty_text_of_a_memory_is_filled_in_place() -> None:
    text = (
        '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>a</seg></tuv>'
        '<tuv xml:lang="de" creationid="you"><note>n</note><seg/></tuv></tu>'
        '<tu><tuv xml:lang="de"><seg> </seg></tuv><tuv xml:lang="en"><seg>b</seg></tuv></tu></body></tmx>'
    )
    document = open_document(text, "tmx", "de")
    expected = text.replace(' creationid="you"', ' creationid="weft"').replace("<seg/>", "<seg>A</seg>")
    expected = expected.replace('<tuv xml:lang="de"><seg> </seg>', '<tuv xml:lang="de" creationid="weft"><seg>B</seg>')
    assert document.fill(answers(document)) == expected


KEPT_1 = [
    '<target state="translated">T</target>',
    '<target state="signed-off">T</target>',
    '<target state="needs-review-translation">T</target>',
    '<target state="final"/>',
    "<target>T</target>",
]
REPLACED_1 = [
    '<target state="needs-translation">T</target>',
    '<target state="needs-review-translation" state-qualifier="mt-suggestion">T</target>',
    "<target> a </target>",
    '<target state="translated"> </target>',
]
KEPT_2 = [' state="translated"', ' state="reviewed"', ' state="final"', ' state="translated" subState="weft:exact-match"']
REPLACED_2 = ["", ' state="initial"', ' state="translated" subState="weft:-0.5"']


def test_xliff_keeps_what_a_person_has_translated() -> None:
    first = '<xliff version="1.2"><file><body><trans-unit id="1"><source>a</source>{}</trans-unit></body></file></xliff>'
    segment = "<segment{}><source>a</source><target>T</target></segment>"
    second = f'<xliff version="2.0"><file><unit id="1">{segment}</unit></file></xliff>'
    for text, kept, replaced in ((first, KEPT_1, REPLACED_1), (second, KEPT_2, REPLACED_2)):
        assert not any(open_document(text.format(each), "xliff").segments for each in kept)
        assert all(len(open_document(text.format(each), "xliff").segments) == 1 for each in replaced)


def test_a_new_target_stands_after_the_segmented_source() -> None:
    text = '<xliff version="1.2"><file><body><trans-unit id="1"><source>a</source>'
    text += '<seg-source><mrk mtype="seg" mid="0">a</mrk></seg-source>'
    document = open_document(f"{text}<note>n</note></trans-unit></body></file></xliff>", "xliff")
    assert document.fill(answers(document)).startswith(f"{text}<target state=")


def test_xliff_has_states_and_scores() -> None:
    first = '<xliff version="1.2"><file><body><trans-unit id="1"><source>a</source>{}</trans-unit></body></file></xliff>'
    state = 'state="needs-review-translation" state-qualifier="mt-suggestion" xmlns:weft="urn:weft" weft:score="-0.2500"'
    for target in ("", '<target state="new">old</target>', f"<target {state}>old</target>", "<target/>"):
        document = open_document(first.format(target), "xliff")
        assert document.fill(answers(document)) == first.format(f"<target {state}>A</target>")
    second = (
        '<xliff version="2.0"><file id="f"><unit id="u"><segment id="s"{}><source>a</source>{}</segment></unit></file></xliff>'
    )
    for attributes, target in (("", ""), (' state="initial"', "<target>old</target>"), (" subState='weft:-9'", "<target/>")):
        document = open_document(second.format(attributes, target), "xliff")
        expected = second.format(' state="translated" subState="weft:-0.2500"', "<target>A</target>")
        assert document.fill(answers(document)) == expected
    blank = second.format("", "").replace("<source>a", "<source>…")
    assert "state" not in open_document(blank, "xliff").fill([]), "nothing was translated"


MARKDOWN = """---
title: kept
---

# A heading with `code` #

A *soft* paragraph with a [link](http://a.org "x") and ![image](a.png),
and **two** lines.  
After a break \\* <b>bold</b>.

- item one
- [ ] item two
  1. nested <https://a.org>

> quoted text
> goes on

| Head | Other |
|------|:-----:|
| cell | `x`   |

```python
kept = "a"
```

    kept code

<div>
Setext
======

[ref]: http://a.org
Text with [ref] and [^1] and snake_case_name.
***
"""


def test_markdown() -> None:
    document = open_document(MARKDOWN, "markdown")
    texts = [segment.text for segment in document.segments]
    assert texts[1].startswith("A soft paragraph with a link and image, and two lines.")
    assert [text for text in texts if "kept" in text] == []
    found = document.fill(answers(document)).splitlines()
    assert found[:3] == ["---", "title: kept", "---"] and found[4] == "# A HEADING WITH `code` #"
    expected = 'A *SOFT* PARAGRAPH WITH A [LINK](http://a.org "x") AND ![IMAGE](a.png), AND **TWO** LINES.'
    assert found[6].startswith(expected) and "\\* <b>BOLD</b>." in "\n".join(found)
    for line in ("- ITEM ONE", "- [ ] ITEM TWO", "  1. NESTED <https://a.org>", "| HEAD | OTHER |", "|------|:-----:|",
                 "| CELL | `x`   |", 'kept = "a"', "    kept code", "<div>", "SETEXT", "======", "[ref]: http://a.org",
                 "***"):  # fmt: skip
        assert line in found, line
    assert "SNAKE_CASE_NAME" in "\n".join(found) and "[^1]" in "\n".join(found)
    plain = open_document("a <b> [x] 2 * 3\n", "markdown")
    assert plain.fill([Translation("*a* <b> [x](y)", 0.0)]).startswith("\\*a\\* \\<b> \\[x\\](y)"), "a model writes no markup"


@pytest.mark.parametrize(
    "text", ["", "\n", "a\r\n\r\nb", "*a", "a*b*c_", "`a", "[a](b", "![](x)\n", "```\na", "---\na", "|a|b|\n", "a\\\nb\n"]
)
def test_markdown_that_is_not_translated_stays(text: str) -> None:
    document = open_document(text, "markdown")
    same = document.fill(answers(document, str))
    assert re.sub(r"\s|\\", "", same) == re.sub(r"\s|\\", "", text)


def test_the_command_line_translates_them(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    (tmp_path / "a.md").write_text("# a b\n\n- c **d e**\n")
    assert weft("translate", reverse_run, tmp_path / "a.md") == "# b a\n\n- **e d** c\n"
    book = openpyxl.Workbook()
    for row in (("source", "target"), ("a b", ""), ("c d", "x")):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert weft("translate", reverse_run, tmp_path / "a.xlsx") == "b a\nd c\n"
    memory = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>a b</seg></tuv></tu></body></tmx>'
    (tmp_path / "a.tmx").write_text(memory)
    weft.fails("translate", reverse_run, tmp_path / "a.tmx", says=["set data.target_language"])
    assert weft("predict", reverse_run, tmp_path / "a.md", "--format", "text").startswith("b a")
