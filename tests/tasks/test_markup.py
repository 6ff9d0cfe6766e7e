"""Markup, placeholders and documents: every mark comes back once, nested as before, and text is translated as a whole."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers import tiny
from weft.errors import ConfigError, DataError
from weft.runs.translator import Translator, load
from weft.tasks.translation import attention_alignment as alignment
from weft.tasks.translation.documents import open_document
from weft.tasks.translation.documents.html import RAW, VOID, Segment, html_document, tokens
from weft.tasks.translation.markup_and_tag_transfer import (
    OBJECT,
    MarkupProjection,
    MarkupSpan,
    WeightBlock,
    find_literals,
    repeated,
    visible,
)
from weft.tasks.translation.protected_spans import AUTO, find, kinds
from weft.tasks.translation.segmenter import Translation

QUICK = settings(max_examples=150, derandomize=True, deadline=None, database=None)

INLINE, BLOCKS = ("b", "i", "a", "span"), ("p", "div", "li", "td", "h1")
TEXTS = st.sampled_from([*"abcd", "dog", "runs.", ", ", " ", "  ", "\n", "é", "狗", "(", ")", "12", "&amp;", "&eacute;"])
POINTS = st.sampled_from(["<img src=1>", "<wbr>", "<!-- a dog -->", "<code>a < b</code>", "&nbsp;", "&copy;"])


def element(content: st.SearchStrategy[str], names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda name, number, inner: f'<{name} id="{number}">{inner}</{name}>',
        st.sampled_from(names),
        st.integers(0, 99),
        content,
    )


def several(content: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(content, max_size=5).map("".join)


INLINES = st.recursive(several(TEXTS | POINTS), lambda inner: several(TEXTS | POINTS | element(inner, INLINE)), max_leaves=12)
PAGES = st.recursive(several(element(INLINES, BLOCKS)), lambda inner: several(element(inner | INLINES, BLOCKS)), max_leaves=4)
TAG = re.compile(r"<!--.*?-->|<code>.*?</code>|<[^>]*>|&(?:nbsp|copy);")


def shuffled(segment: Segment, seed: int, lossy: bool = True) -> Translation:
    """A stub of a translation: some of the words that a model would see, in any order, aligned at random or by spelling."""
    draw = np.random.default_rng(seed)
    words = visible(segment.text, segment.marks).split()
    kept = [words[k] for k in draw.permutation(len(words)) if not lossy or draw.random() < 0.9] + ["new"] * int(
        draw.integers(2)
    )
    target, held = " ".join(kept), [(mark.start, mark.end) for mark in segment.marks if mark.kind == "opaque"]
    units = alignment.units(target), alignment.units(segment.text, held)
    weights = draw.random((len(units[0]), len(units[1]))).astype(np.float32)
    if draw.random() < 0.5:
        sides = ([text[a:b] for a, b in each] for text, each in zip((target, segment.text), units, strict=True))
        weights = 0.1 * weights + alignment.spelling_and_position_similarity(*sides)
    weights[:, [k for k, span in enumerate(units[1]) if span in held]] = 0
    runs = MarkupProjection(segment.text, units[1], target, units[0], [one_block(weights)]).runs(segment.marks)
    said = "".join(text for text, markup in runs if not markup)
    assert "".join(said.split()) == "".join(kept), "no word of the translation is lost, added or moved"
    return Translation("".join(text for text, _ in runs), 0.0, runs=runs)


def one_block(weights: NDArray[np.float32]) -> WeightBlock:
    return WeightBlock(0, np.arange(weights.shape[1]), weights)


def parsed(page: str) -> ElementTree.Element:
    """The page as XML, which has to be well-formed."""
    page = re.sub(r"<!--.*?-->|<code>.*?</code>|<img[^>]*>|<wbr>|&(?:nbsp|copy|eacute);", "", page)
    return ElementTree.fromstring(f"<page>{page}</page>")


@QUICK
@given(PAGES, st.integers(0, 1 << 30))
def test_every_tag_comes_back_once_and_rightly_nested(page: str, seed: int) -> None:
    document = html_document(page)
    found = document.fill([shuffled(segment, seed) for segment in document.segments])
    assert sorted(TAG.findall(found)) == sorted(TAG.findall(page))
    parents = [{child.get("id"): each.get("id") for each in parsed(text).iter() for child in each} for text in (page, found)]
    ids = re.findall(r'id="(\d+)"', page)
    unique = {each for each in ids if ids.count(each) == 1}
    assert {k: v for k, v in parents[0].items() if k in unique} == {k: v for k, v in parents[1].items() if k in unique}


@QUICK
@given(PAGES)
def test_the_model_sees_the_text_of_a_block_in_one_piece(page: str) -> None:
    seen = [visible(segment.text, segment.marks) for segment in html_document(page).segments]
    assert not any(re.search(r"[<>]|id=|&\w+;", text.replace("a < b", "")) or OBJECT in text for text in seen)
    blocks = re.split(r"</?(?:p|div|li|td|h1)\b[^>]*>", re.sub(r"<!--.*?-->|<code>.*?</code>", "", page))
    texts = ["".join(unescape(re.sub(r"<[^>]*>|&nbsp;|&copy;", "", block)).split()) for block in blocks]
    assert ["".join(text.split()) for text in seen] == [text for text in texts if any(map(str.isalnum, text))]


FRAGMENTS = [
    *(
        "<b>",
        "</b>",
        "<p>",
        "</p>",
        "<",
        "<b",
        "</",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "<![foo[",
        "<script>",
        "</script>",
        "<?x",
    ),
    *("a dog. ", "text", " ", "&", "&amp;", "&nbsp;", "&bogus;", '<a href="x', "'>", '">', "<span translate=no>", "</span>"),
    *("<code>", "</code>", OBJECT, "<br>", "<img src=x/>", "<p translate='no'>", "<textarea>", "{name}", "\r\n", "\ud800"),
]


@settings(QUICK, max_examples=1000)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join), st.integers(0, 1 << 30))
def test_broken_markup_never_raises_and_loses_nothing(page: str, seed: int) -> None:
    assert "".join(token.raw for token in tokens(page, RAW, VOID)) == page
    document = html_document(page)
    same = document.fill([shuffled(segment, seed, lossy=False) for segment in document.segments])
    for token in tokens(page, RAW, VOID):
        if token.kind != "text":
            assert token.raw in same
    letters = sorted(filter(str.isalpha, unescape(TAG.sub("", page))))
    assert not document.segments or len(letters) <= len(same)


@pytest.mark.parametrize(
    ("page", "segments"),
    [
        ("<p>A <b>dog</b> runs.</p>", ["A dog runs."]),
        ("<p>One.</p><ul><li>Two <i>three</i><li>Four</ul>", ["One.", "Two three", "Four"]),
        ("<div>A <code>x = 1</code> b<br>c</div>", ["A b", "c"]),
        ("A&nbsp;dog &amp; caf&eacute; &copy;", ["A dog & café"]),
        ('<a href="x"><span> hi there </span></a>', ["hi there"]),
        ("<script>a b</script><style>c</style><pre>d</pre><textarea>e</textarea><!-- f -->", []),
        ("<script>never closed <b>a</b>", []),
        ('<div translate="no">a <b>b</b></div><p class="x notranslate">c</p>d', ["d"]),
        ("<!DOCTYPE html><title>Hi</title><![foo[ x ]]> y <![CDATA[z]]> w", ["Hi", "y w"]),
        ("a < b and <b", ["a < b and"]),
        ("<p>123</p><p>—</p>", ["123"]),
    ],
)
def test_blocks_are_segments_and_what_is_not_prose_stays(page: str, segments: list[str]) -> None:
    document = html_document(page)
    assert [visible(each.text, each.marks) for each in document.segments] == segments
    if not segments:
        assert document.fill([]) == page


def project(
    source: str, marks: list[MarkupSpan], target: str, pairs: dict[str, str], literals: tuple[MarkupSpan, ...] = ()
) -> str:
    """The target with its marks. `pairs`: target words and the source words they are aligned with."""
    held = [(mark.start, mark.end) for mark in (*marks, *literals) if mark.kind == "opaque"]
    units = alignment.units(target), alignment.units(source, held)
    names = [source[a:b] for a, b in units[1]]
    weights = np.zeros((len(units[0]), len(units[1])), np.float32)
    for row, (a, b) in enumerate(units[0]):
        weights[row, names.index(pairs.get(target[a:b], target[a:b]))] = 1
    runs = MarkupProjection(source, units[1], target, units[0], [one_block(weights)]).runs(marks, literals)
    return "".join(text for text, _ in runs)


def test_tags_follow_the_words() -> None:
    pairs = {"Hund": "dog", "Ein": "A", "läuft": "runs", "schwarzer": "black", "heute": "today"}
    bold, nested = MarkupSpan(2, 11, "<b>", "</b>"), MarkupSpan(2, 7, "<i>", "</i>", depth=1)
    assert project("A black dog runs today.", [bold, nested], "heute läuft Ein schwarzer Hund.", pairs) == (
        "heute läuft Ein <b><i>schwarzer</i> Hund</b>."
    )
    image = MarkupSpan(8, 9, "<img>", kind="opaque")
    assert project(f"A black {OBJECT} dog", [image], "schwarzer Ein Hund", pairs) == "schwarzer Ein <img> Hund"


def test_tags_without_their_counterpart_keep_their_order() -> None:
    """As in <a>one</a> x <a>two</a> if each element began or ended in another block."""
    marks = [MarkupSpan(3, 3, "", "</a>", kind="unpaired"), MarkupSpan(6, 6, "<a>", kind="unpaired")]
    assert project("one x two", marks, "zwei y eins", {"zwei": "two", "y": "x", "eins": "one"}) == "zwei</a> y <a>eins"


def test_placeholders_come_back_with_the_space_around_them() -> None:
    text = "Hello {name}, see https://x.org/a(b)."
    literals = find_literals(text, (), AUTO).literals
    assert visible(text, literals) == "Hello, see."
    pairs = {"Hallo": "Hello", "siehe": "see"}
    assert project(text, [], "Hallo, siehe.", pairs, literals) == "Hallo {name}, siehe https://x.org/a(b)."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello {name} {0} {} {{x}} ${y} %s %(z)d %1$s %.2f %{w}", "{name} {0} {} {{x}} ${y} %s %(z)d %1$s %.2f %{w}"),
        (
            "See https://a.org/b?c=d#e, (http://x.y/), www.z.de! me.you+x@mail.org.",
            "https://a.org/b?c=d#e http://x.y/ www.z.de me.you+x@mail.org",
        ),
        ("网址https://a.org/b在这里", "https://a.org/b"),
        ("50% discount, 5 %, 100 %d’accord is { not } one: a@b 3.5 12:30 e.g. this/that", "%d"),
        ("v%s takes %dMB, 10%of it", "%s %d"),
        ("%1 of %L2 (%10), %n file(s): 50 %3, %%4, 20%5 %1$S %s1 %lu", "%1 %L2 %10 %n %3 %1$S %s1 %lu"),
        ("$1 pages for $9.99, $12 or US$2 <_:list-1/> <_a>", "$1 <_:list-1/>"),
    ],
)
def test_what_is_protected(text: str, found: str) -> None:
    assert [text[start:end] for start, end in find(text, AUTO)] == found.split()


def test_numbers_are_protected_on_request() -> None:
    text = "In 2010 it was 3.5, at 12:30 in B2."
    assert [text[start:end] for start, end in find(text, kinds(["numbers"]))] == ["2010", "3.5", "12:30"]
    assert kinds("auto") == AUTO and kinds("off") == ()
    literals = find_literals("a %s b", (), AUTO).literals
    assert repeated(literals, AUTO, "b %s a")
    assert not repeated(literals, AUTO, "b %s %s a") and not repeated([], AUTO, "www.x.org")


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return load(reverse_run, device="cpu")


def test_a_trained_model_carries_tags_by_its_attention(translator: Translator) -> None:
    page = '<p>a <b>b c</b> d <i>e</i> f</p>\n<ul><li>g <a href="x?y=1&amp;z">h</a></li></ul>'
    found = translator.translate(page, format="html")
    assert found.text == '<p>f <i>e</i> d <b>c b</b> a</p>\n<ul><li><a href="x?y=1&amp;z">h</a> g</li></ul>'
    assert [part.text for part in found.parts][1] == '<a href="x?y=1&amp;z">h</a> g'
    several = translator.translate([page, "a b"], format="html", n_best=2, beam=2)
    assert several[1].text == "b a" and len(several[0].alternatives) == 1
    assert sorted(TAG.findall(several[0].alternatives[0].text)) == sorted(TAG.findall(page))
    assert translator.translate("<p>a <b>b c! d e</b> f g! h</p>", format="html").text.count("<b>") == 1
    with pytest.raises(ConfigError, match="no prefix"):
        translator.translate(page, format="html", prefix="a")
    with pytest.raises(ConfigError, match="choose one of text, html, srt, vtt, xliff"):
        translator.translate(page, format="docx")


@pytest.mark.parametrize("text", ["a b {name} c", "{name}", "a %s b! c d www.x.org e? f", "x@y.org, a b", "a b c {x}{y}"])
def test_a_trained_model_repeats_what_is_protected(translator: Translator, text: str) -> None:
    """Placeholders are not in its vocabulary, so on its own the model cannot write them."""
    for options in ({}, {"n_best": 3, "beam": 3}, {"attention": True}):
        found = translator.translate(text, **options)
        for each in (found, *found.alternatives):
            assert repeated(find_literals(text, (), AUTO).literals, AUTO, each.text)
    assert find(translator.translate(text, protect="off").text, AUTO) == []


def test_what_is_protected_is_placed_by_alignment(translator: Translator) -> None:
    assert translator.translate("a b {name} c d").text == "d c {name} b a"
    assert translator.translate("a b 7 c d", protect=["numbers"]).text == "d c 7 b a"
    assert translator.translate("<p>a <b>b {name}</b> c d</p>", format="html").text.count("{name}") == 1
    page = "<p>&copy; <b>www.x.org</b> ! <img> {name}</p>"
    assert translator.translate(page, format="html").text == page, "there is nothing to translate"
    assert translator.translate("a b {name} c d", prefix="{name}").text.count("{name}") <= 1


def test_sentences_without_protected_parts_are_unchanged(translator: Translator) -> None:
    lines = ["a b c", "d e f g.", "50% a", "", "a b! c d!"]
    found, before = (translator.translate(lines, protect=each) for each in ("auto", "off"))
    assert [(each.text, each.score, each.ids) for each in found] == [(each.text, each.score, each.ids) for each in before]


@pytest.mark.parametrize("family", ["transformer", "rnn", "convs2s", "bytenet", "pointer"])
def test_models_of_all_families_carry_marks(family: str) -> None:
    """ByteNet has no attention, so its marks keep their relative position."""
    page = "<p>a <b>b c</b> {x} <i>d</i> e</p>"
    found = load(Path(__file__).parents[1] / "fixtures" / "old_runs" / family, device="cpu").translate(page, format="html").text
    assert sorted(TAG.findall(found)) == sorted(TAG.findall(page)) and found.count("{x}") == 1


def test_markup_in_a_translation_is_escaped() -> None:
    document = html_document("<p>a <b>b</b></p>")
    assert document.fill([Translation("<script> & co", 0.0)]) == "<p>&lt;script&gt; &amp; co</p>"


XLIFF_1 = """<?xml version="1.0" encoding="ISO-8859-1"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
 <file original="x" source-language="en" datatype="plaintext"><!-- a --><body>
  <trans-unit id="1">
   <source>a <g id="1">b c</g><x id="2"/> d</source>
   <note>a b</note>
  </trans-unit>
  <trans-unit id="2"><source>a <bpt id="1">&lt;</bpt>b<ept id="1">/&gt;</ept> c</source><target state="new">old</target>
  </trans-unit>
  <trans-unit id="3" translate="no"><source>a b</source></trans-unit>
  <trans-unit id="4" approved="yes"><source>a b</source><target>kept</target></trans-unit>
  <trans-unit id="5"><source xml:space="preserve"> a <mrk mtype="protected">b</mrk> <ph id="1">{0}</ph> c </source><target/>
  </trans-unit>
  <trans-unit id="6"><source><![CDATA[a b]]></source></trans-unit>
  <trans-unit id="7"><source/></trans-unit>
 </body></file>
</xliff>
"""
XLIFF_2 = """<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f">
<unit id="1"><originalData><data id="d1">a b</data></originalData>
<segment><source>a <pc id="1">b <ph id="2"/>c</pc> d</source></segment>
<ignorable><source> </source></ignorable>
<segment state="final"><source>a b</source><target>kept</target></segment>
<segment><source>a <sc id="3"/>b<ec startRef="3"/> <mrk id="m" type="term">c</mrk></source><target>old</target></segment></unit>
<unit id="2" translate="no"><segment><source>a b</source></segment></unit></file></xliff>
"""


def inline(text: str) -> list[str]:
    return sorted(re.findall(r"<[^>]*>", text))


@pytest.mark.parametrize("file", [XLIFF_1, XLIFF_2])
def test_xliff_targets_are_filled_and_keep_their_inline_elements(translator: Translator, file: str) -> None:
    found = translator.translate(file, format="xliff").text
    pairs = re.findall(r"<source[^>]*>(.*?)</source>\s*<target[^>]*>(.*?)</target>", found, re.DOTALL)
    assert len(pairs) == (5 if file is XLIFF_1 else 3)
    for source, target in pairs:
        if target != "kept":
            source = source.replace("<![CDATA[", "").replace("]]>", "")
            assert inline(source) == inline(target)
            assert sorted(re.sub(r"<[^>]*>|\s", "", source)) == sorted(re.sub(r"<[^>]*>|\s", "", target)), "words are reversed"
            assert re.sub(r"<[^>]*>|\s", "", target) != re.sub(r"<[^>]*>|\s", "", source)
    ElementTree.fromstring(re.sub(r"<\?xml.*\?>", "", found))
    targets = re.compile(r"\s*(?:<target[^>]*/>|<target[^>]*>.*?</target>)", re.DOTALL)
    states = re.compile(r' state="translated" subState="weft:-[0-9.]+"')
    assert states.sub("", targets.sub("", found)) == targets.sub("", file).replace("ISO-8859-1", "UTF-8"), "the rest stays"


def test_xliff_names_the_target_language_and_refuses_what_it_cannot_read() -> None:
    assert 'trgLang="de">' in open_document(XLIFF_2, "xliff", "de").fill([Translation("x", 0.0)] * 9)
    assert 'target-language="de">' in open_document(XLIFF_1, "xliff", "de").fill([Translation("x", 0.0)] * 9)
    for text, says in (
        ("<xliff><a></xliff>", "not well-formed"),
        ("<html/>", "not XLIFF"),
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><xliff>&a;</xliff>', "entities"),
        ("", "not well-formed"),
    ):
        with pytest.raises(DataError, match=says):
            open_document(text, "xliff")


def test_the_command_line_translates_documents(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    page = '<html>\r\n<p class="x">a <b>b c</b> d</p>\n</html>'
    expected = '<html>\r\n<p class="x">d <b>c b</b> a</p>\n</html>'
    assert weft("translate", reverse_run, "--format", "html", stdin=page) == expected
    (tmp_path / "in.html").write_text(page, newline="")
    for chosen in ((), ("--format", "html")):
        weft("translate", reverse_run, tmp_path / "in.html", *chosen, "-o", tmp_path / "out.html")
        assert (tmp_path / "out.html").read_bytes().decode() == expected, "the end of the name tells the format"
    assert "p class" not in weft("translate", reverse_run, tmp_path / "in.html", "--format", "text").replace("class p", "")
    bilingual = weft("translate", reverse_run, "--format", "xliff", stdin=XLIFF_1)
    assert ">d c b a<" in bilingual.replace('<g id="1">', "").replace("</g>", "").replace('<x id="2"/>', "")
    weft.fails("translate", reverse_run, "--format", "xliff", stdin=page, says=["not XLIFF"])
    weft.fails(
        "translate", reverse_run, "--format", "html", stdin=b"a\nb\xff", says=["standard input, line 2", "not valid UTF-8"]
    )
    weft.fails("translate", reverse_run, "--format", "html", "--json", stdin=page, says=["a document has no"])


SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\n{\\an8}a <i>b</i>\nc d\n\n2\n00:00:03,000 --> 00:00:04,000\ne f\n"
VTT = "WEBVTT - a b\n\nNOTE a b c\n\nSTYLE\n::cue {}\n\n00:01.000 --> 00:02.000 align:start\n<v Bob>a <00:01.500>b c\n"


def test_the_end_of_a_name_decides_how_a_file_is_translated(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    files = {"a.srt": SUBTITLES, "a.vtt": VTT, "a.XLF": XLIFF_1, "a.htm": "<p>a b</p>", "a.txt": "a b\nc d\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = {name: weft("translate", reverse_run, tmp_path / name) for name in files}
    assert (
        found["a.srt"].splitlines()[:2] == SUBTITLES.splitlines()[:2]
        and "{\\an8}" in found["a.srt"]
        and "f e" in found["a.srt"]
    )
    assert found["a.vtt"].startswith(VTT.partition("<v")[0]) and "<00:01.500>" in found["a.vtt"] and "<v Bob>" in found["a.vtt"]
    assert (
        'state-qualifier="mt-suggestion"' in found["a.XLF"]
        and found["a.htm"] == "<p>b a</p>"
        and found["a.txt"] == "b a\nd c\n"
    )
    for name in ("a.xls", "a.properties", "a.pdf", "a.PDF.gz"):
        (tmp_path / name).write_text("a b\n")
        weft.fails("translate", reverse_run, tmp_path / name, says=["does not read", "--format text"])
    assert weft("translate", reverse_run, tmp_path / "a.pdf", "--format", "text") == "b a\n"


CATALOG = """# comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=utf-8\\n"
"Plural-Forms: nplurals=3; plural=(n != 1);\\n"

#: main.c:12
#, c-format
msgid "a b %d"
msgstr ""

msgid "c d"
msgstr "done"

msgctxt "menu"
msgid "e f"
msgid_plural "g h"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""
"""


def test_catalogs_and_tables_keep_their_structure(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text(CATALOG)
    found = weft("translate", reverse_run, tmp_path / "a.po")
    assert all(each in found for each in ("# comment", "#: main.c:12", "c-format", 'msgctxt "menu"', 'msgid "a b %d"'))
    assert 'msgstr "b a %d"' in found or 'msgstr "%d b a"' in found
    assert 'msgstr "done"' in found and 'msgstr[0] "f e"' in found and found.count('"h g"') == 2
    (tmp_path / "a.csv").write_bytes(b'1;2;3\r\n1;"a; b";\r\n2;c d;"e ""f"""\r\n')
    weft("translate", reverse_run, tmp_path / "a.csv", "-o", tmp_path / "out.csv")
    rows = (tmp_path / "out.csv").read_bytes().split(b"\r\n")
    assert rows[0] == b"1;2;3" and rows[2].startswith(b"2;d c;") and len(rows) == 4
    for name, wrong, says in (("b.po", b'msgid "a', "not a gettext catalog"), ("b.csv", b"a\x1eb", "U+001E")):
        (tmp_path / name).write_bytes(wrong)
        weft.fails("translate", reverse_run, tmp_path / name, says=[says])


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("1\n00:00:01,000 --> 00:00:02,000\na b\n\nc d\n\n2\n00:00:03,000 --> 00:00:04,000\ne\n", ["a b", "c d", "e"]),
        ("1\n00:00:01,000 --> 00:00:02,000\na b\n2\n00:00:03,000 --> 00:00:04,000\ne\n", ["a b", "e"]),
        ("00:00:01,000 --> 00:00:02,000\r\na\r\n\r\n00:00:03,000 --> 00:00:04,000\r\n42\r\n\r\n", ["a", "42"]),
        ("\ufeff1\n0:00:01.5 --> 0:00:02.2 X1:40\n{\\an8}a\n\n\n\n 00:00:03,000-->00:00:04,000\nb  \n", ["a", "b"]),
        (
            "2\n00:00:09,000 --> 00:00:08,000\na\n\n1\n00:00:01,000 --> 00:00:02,000\n\n3\n00:00:03 --> 00:00:04\nb\n",
            ["a", "b"],
        ),
    ],
)
def test_hard_subtitles(text: str, segments: list[str]) -> None:
    """The cues are those that pysubs2 finds, and all else stays."""
    document = open_document(text, "srt")
    assert [each.text for each in document.segments] == segments
    assert document.fill([Translation(each.text, 0.0) for each in document.segments]) == text


def test_the_command_line_translates_word_documents(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_paragraph("a b c")
    document.save(str(tmp_path / "in.docx"))
    weft("translate", reverse_run, tmp_path / "in.docx", "-o", tmp_path / "out.docx")
    assert [each.text for each in docx.Document(str(tmp_path / "out.docx")).paragraphs] == ["c b a"]
    weft.fails("translate", reverse_run, tmp_path / "in.docx", says=["-o translated.docx"])


def test_deep_nesting_is_refused_in_words() -> None:
    deep = "a <i>b" * 1000 + "</i>" * 1000
    with pytest.raises(DataError, match="more than 100 inline elements are inside one another"):
        open_document(deep, "html")
    assert open_document("<p>" * 2000 + "a" + "</p>" * 2000, "html").segments[0].text == "a"


def test_placeholders_of_fluent_have_spaces() -> None:
    text = "{ $count } new in { -brand-name }, { not } { 3 }"
    assert [text[start:end] for start, end in find(text, AUTO)] == ["{ $count }", "{ -brand-name }"]
