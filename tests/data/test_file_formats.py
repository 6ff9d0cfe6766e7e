"""Files of translators: real ones, written by the usual libraries; damaged and hostile ones; compression and encodings."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
import zipfile
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.data.column_checks_and_listed_files import content_digest, open_file, open_listed, read_inputs, read_listed
from weft.data.file_formats.gettext_catalog import catalog_messages, quoted, unescaped
from weft.data.formats import open_pairs, swapped
from weft.errors import DataError

PAIRS = [("A dog & a cat.", "Ein Hund & eine Katze."), ("Two <b>birds</b>", "Zwei <b>Vögel</b>"), ("x", "y")]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def message(spec: str) -> str:
    with pytest.raises(DataError) as caught:
        list(open_pairs(spec))
    return str(caught.value)


def left_out(spec: str) -> dict[str, int]:
    pairs = open_pairs(spec)
    list(pairs)
    return dict(pairs.left_out)


def memory(*units: str, source: str = "en") -> str:
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
        f'<tmx version="1.4"><header srclang="{source}"/><body>{"".join(units)}</body></tmx>'
    )


def unit(**texts: str) -> str:
    inner = "".join(f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>' for code, text in texts.items())
    return f"<tu>{inner}</tu>"


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("ending", [*COMPRESSORS, ".zst"])
def test_compressed_files_are_read_and_damaged_ones_refused(tmp_path: Path, ending: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    compress = COMPRESSORS.get(ending) or zstandard.ZstdCompressor().compress
    content = "".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()
    path = write(tmp_path / f"a.tsv{ending}", compress(content))
    assert list(open_pairs(path)) == PAIRS == list(open_pairs(f"{path}#1,2"))
    assert list(read_inputs(Path(path))) == content.decode().splitlines()
    two = write(tmp_path / f"b.tsv{ending}", compress(content) + compress(content))
    assert list(open_pairs(two)) == 2 * PAIRS, "parts that are joined are read as one"
    for number, damaged in enumerate((compress(content)[:-9], b"\x28\xb5\x2f\xfdnonsense", b"not compressed")):
        assert "cannot be read" in message(write(tmp_path / f"c{number}.tsv{ending}", damaged))


def test_a_small_zstd_file_that_unpacks_to_much_takes_little_memory(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = write(tmp_path / "a.tsv.zst", zstandard.ZstdCompressor(level=3).compress(bytes(120_000_000)))
    tracemalloc.start()
    said, peak = message(bomb), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than 10,000,000 characters" in said and peak < 60e6


def test_encodings_are_named_in_errors_and_read_after_an_at_sign(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "Straße\tцена\n".encode("cp1252", "replace"))
    assert f"write {path}@cp1252" in message(path) and "iconv -f WINDOWS-1252" in message(path)
    assert list(open_pairs(f"{path}@cp1252")) == [("Straße", "????")]
    wide = write(tmp_path / "b.csv", "a\tb\nÄ, ö\tü\u2028z\n".encode("utf-16"))
    assert f"write {wide}@utf-16" in message(wide)
    assert list(open_pairs(f"{wide}@utf-16#1,2")) == [("a", "b"), ("Ä, ö", "ü\u2028z")]
    one, two = write(tmp_path / "a.ja", "日本\n".encode("shift_jis")), write(tmp_path / "a.de", "Japan\n")
    assert list(open_pairs(f"{one}@shift_jis,{two}")) == [("日本", "Japan")]
    assert "not valid ascii" in message(f"{one}@ascii,{two}")
    assert open_pairs(f"{path}@cp1252").digest() == open_pairs(path).digest()


def test_two_files_may_be_named_by_their_prefix(tmp_path: Path) -> None:
    for code, text in zip(("en", "de"), zip(*PAIRS)):
        write(tmp_path / f"Books.de-en.{code}", "\n".join(text) + "\n")
    assert list(open_pairs(f"{tmp_path}/Books.de-en#en,de")) == PAIRS
    archive = tmp_path / "Books.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("Books.de-en.en", "Books.de-en.de"):
            file.write(tmp_path / name, name)
        file.writestr("README", "words")
        file.writestr("Books.de-en.xml", "<x/>")
    assert list(open_pairs(f"{archive}#en,de")) == PAIRS
    assert list(open_pairs(f"{archive}#de,en")) == [(target, source) for source, target in PAIRS]
    assert "choose source and target" in message(str(archive)) and "texts: de, en" in message(str(archive))
    assert "ends in .fr" in message(f"{archive}#en,fr")
    assert "cannot be read" in message(write(tmp_path / "b.zip", "x"))


def test_tmx_written_by_translate_toolkit(tmp_path: Path) -> None:
    tmx = pytest.importorskip("translate.storage.tmx")
    store = tmx.tmxfile()
    for source, target in PAIRS:
        store.addtranslation(source, "en", target, "de")
    path = write(tmp_path / "a.tmx", bytes(store))
    assert list(open_pairs(path)) == PAIRS == list(open_pairs(f"{path}#en,de"))
    assert list(open_pairs(swapped(path))) == [(target, source) for source, target in PAIRS]
    assert open_pairs(path).digest() != open_pairs(swapped(path)).digest()
    assert list(open_pairs(write(tmp_path / "b.tmx.gz", gzip.compress(bytes(store))))) == PAIRS
    assert [source for source, _ in PAIRS] == list(read_inputs(Path(path)))


def test_tmx_with_several_languages_needs_a_choice(tmp_path: Path) -> None:
    three = [unit(en="a", de_AT="b", fr="c"), unit(en_US="d", fr="f"), unit(en="e", de="g", fr=""), unit(fr="h", en="i")]
    path = write(tmp_path / "a.tmx", memory(*three))
    assert "Choose two" in message(path) and "fr (4)" in message(path)
    assert list(open_pairs(f"{path}#en,de")) == [("a", "b"), ("e", "g")]
    assert list(open_pairs(f"{path}#fr,en")) == [("c", "a"), ("f", "d"), ("h", "i")]
    assert left_out(f"{path}#fr,en") == {"with an empty text": 1}
    assert left_out(f"{path}#en,de") == {"without a text in de": 2}
    assert "both en and it" in message(f"{path}#en,it")
    variants = (
        "<tu><tuv xml:lang='en'><seg>a</seg></tuv><tuv lang='de'><seg>b</seg></tuv><tuv lang='de'><seg>c</seg></tuv></tu>"
    )
    spec = write(tmp_path / "b.tmx", memory(variants, source="de"))
    assert list(open_pairs(spec)) == [("b", "a")], "the header names the source language"
    assert left_out(f"{spec}#en,de") == {"other variants of a translation": 1}


def test_inline_elements_of_tmx_stay_as_markup(tmp_path: Path) -> None:
    source = 'Press <bpt i="1">&lt;b&gt;</bpt>Enter<ept i="1">&lt;/b&gt;</ept><ph x="2"/> '
    source += '<hi type="x">now</hi> &amp; <it pos="begin">{\\i</it>'
    path = write(tmp_path / "a.tmx", memory(unit(en=source, de="a\n b")))
    expected = 'Press <b>Enter</b><ph x="2"/> <hi type="x">now</hi> & {\\i'
    assert list(open_pairs(path)) == [(expected, "a\n b")]


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_tmx_in_other_encodings(tmp_path: Path, encoding: str) -> None:
    text = memory(unit(en="a", de="ü")).replace('version="1.0"', f'version="1.0" encoding="{encoding}"')
    assert list(open_pairs(write(tmp_path / "a.tmx", text.encode(encoding)))) == [("a", "ü")]


LAUGHS = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (memory().replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', LAUGHS), "declares entities"),
        (memory().replace('"tmx14.dtd"', '"x" [<!ENTITY a SYSTEM "file:///etc/passwd">]'), "declares entities"),
        (memory(unit(en="a", de="b"))[:-20], "not well-formed"),
        ("<html/>", "first element is <html>"),
        (memory(), "no translation units"),
        ("", "not well-formed"),
        (f'<tmx x="{"a" * (17 << 20)}', "more than 16,777,216 bytes"),
        (memory(unit(en="a" * (17 << 20), de="b")), "more than 16,777,216 characters"),
        ("<tmx>" + "<a>" * 100_000, "not well-formed"),
    ],
)
def test_hostile_xml_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in message(write(tmp_path / "a.tmx", text))


def test_a_large_memory_takes_little_memory(tmp_path: Path) -> None:
    """The same for a million units is measured by benchmarks/translation_memories.py."""
    path = tmp_path / "a.tmx"
    path.write_text(memory(*(unit(en=f"source {number} {'a' * 100}", de=f"Ziel {number}") for number in range(20_000))))
    tracemalloc.start()
    assert sum(1 for _ in open_pairs(str(path))) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4e6 and peak < 1.5e6


CATALOG = """# Translators
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 ? 1 : 2);\\n"

#: a.c:1
msgctxt "menu"
msgid "Open"
msgstr "Otwórz"

msgid "Open"
msgstr "Otwarty"

#, fuzzy, c-format
#| msgid "old"
msgid "new %d"
msgstr "stary"

msgid "%d file\\n"
msgid_plural "%d \\"files\\"\\n"
msgstr[0] "%d plik\\n"
msgstr[1] "%d pliki\\n"
msgstr[2] ""
"%d "
"plików\\n"

msgid "none"
msgstr ""

#~ msgid "gone"
#~ msgstr "przepadł"
"""


def test_catalogs(tmp_path: Path) -> None:
    polib = pytest.importorskip("polib")
    path = write(tmp_path / "a.po", CATALOG)
    assert list(open_pairs(path)) == [
        ("Open", "Otwórz"),
        ("Open", "Otwarty"),
        ("%d file\n", "%d plik\n"),
        ('%d "files"\n', "%d plików\n"),
    ]
    assert left_out(path) == {"fuzzy": 1, "further plural forms": 1, "without a translation": 1, "obsolete": 1}
    assert list(read_inputs(Path(path))) == ["Open", "Open", "new %d", "%d file\n", '%d "files"\n', "none"]
    theirs = polib.pofile(path)
    ours = [each for each in catalog_messages(path) if not each.is_header]
    assert [(each.msgid, each.msgid_plural or None, bool(each.obsolete), each.fuzzy) for each in theirs] == [
        (each.id, each.plural, each.obsolete, "fuzzy" in each.flags) for each in ours
    ]
    assert [each.msgstr_plural or {0: each.msgstr} for each in theirs] == [each.strings for each in ours]
    assert "".join(line for each in catalog_messages(path) for line in each.lines) == CATALOG, "nothing is lost"
    assert "no message is translated: 1 without a translation" in message(write(tmp_path / "b.pot", 'msgid "a"\nmsgstr ""\n'))


def test_messages_of_a_catalog_need_no_blank_lines_between_them(tmp_path: Path) -> None:
    texts = ("msgid", "a"), ("msgstr", "b"), ("msgctxt", "x"), ("msgid", "c"), ("msgstr", "d"), ("msgid", "f"), ("msgstr", "g")
    for space in (" ", "\t", ""):
        path = write(tmp_path / "a.po", "".join(f'{keyword}{space}"{text}"\n' for keyword, text in texts))
        assert list(open_pairs(path)) == [("a", "b"), ("c", "d"), ("f", "g")] and not left_out(path)
    one = 'msgid ""\nmsgstr "Plural-Forms: nplurals=1; plural=0;\\n"\n\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\n'
    assert left_out(write(tmp_path / "b.po", one)) == {}, "nothing is left out"


def test_catalogs_as_polib_writes_them(tmp_path: Path) -> None:
    polib = pytest.importorskip("polib")
    catalog = polib.POFile(wrapwidth=30)
    catalog.metadata = {"Content-Type": "text/plain; charset=ISO-8859-1"}
    texts = [('a\\b "c"\t', "ä\nö " * 20), ("long words " * 9, "lange Wörter " * 9), ("\x07\\n", "ß")]
    for source, target in texts:
        catalog.append(polib.POEntry(msgid=source, msgstr=target, comment="x"))
    catalog.encoding = "iso-8859-1"
    catalog.save(str(tmp_path / "a.po"))
    assert list(open_pairs(str(tmp_path / "a.po"))) == texts


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'msgid "a', "line 1 is"),
        (b'msgid "a"\n', "no msgstr"),
        (b'msgid "a"\nmsgid "b"\nmsgstr "c"\n', "line 2: the message before has no msgstr"),
        (b'"a"\n', "line 1 is"),
        (b'msgid ""\nmsgstr "charset=nonsense\\n"\n', "encoding nonsense"),
        (b'msgid ""\nmsgstr "charset=utf-8\\n"\n\nmsgid "a"\nmsgstr "\xff"\n', "line 5: not valid utf-8"),
        (b'msgid "a"\nmsgstr[99] "b"\n', "number of no plural form"),
        (b'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=9**9**9**9;\\n"\n', "no message is translated"),
    ],
)
def test_catalogs_that_cannot_be_read(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in message(write(tmp_path / "a.po", content))


XLIFF_1 = """<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file><body>
<trans-unit id="1"><source>A <g id="1">dog</g><x id="2"/>.</source><target>Ein <g id="1">Hund</g><x id="2"/>.</target>
<alt-trans><source>no</source><target>nein</target></alt-trans></trans-unit>
<trans-unit id="2"><source>b</source><target state="needs-translation">b</target></trans-unit>
<trans-unit id="3"><source>c</source></trans-unit>
<trans-unit id="4"><source>d <ph id="1">&lt;br&gt;</ph></source><seg-source><mrk mtype="seg">d</mrk></seg-source>
<target state="final">e</target></trans-unit>
</body></file></xliff>"""
XLIFF_2 = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de">
<file id="f"><unit id="u">
<originalData><data id="d1">%s</data></originalData>
<segment state="translated"><source>a <ph id="1" dataRef="d1"/></source><target>b <ph id="1" dataRef="d1"/></target></segment>
<segment state="initial"><source>c</source><target>c</target></segment></unit></file></xliff>"""


def test_xliff(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.xlf", XLIFF_1), write(tmp_path / "a.xliff", XLIFF_2)
    markup = [('A <g id="1">dog</g><x id="2"/>.', 'Ein <g id="1">Hund</g><x id="2"/>.'), ("d <br>", "e")]
    assert list(open_pairs(first)) == markup
    assert left_out(first) == {"in the state needs-translation": 1, "without a translation": 1}
    assert list(open_pairs(swapped(first))) == [(target, source) for source, target in markup]
    assert list(open_pairs(second)) == [("a %s", "b %s")] and left_out(second) == {"in the state initial": 1}
    assert list(read_inputs(Path(second))) == ["a %s", "c"]
    assert "one source and one target" in message(f"{first}#en,de")


def test_xliff_written_by_translate_toolkit(tmp_path: Path) -> None:
    xliff = pytest.importorskip("translate.storage.xliff")
    store = xliff.xlifffile()
    for source, target in PAIRS:
        store.addsourceunit(source).target = target
    assert list(open_pairs(write(tmp_path / "a.xlf", bytes(store)))) == PAIRS


def test_units_that_are_fixed_or_suggested_by_a_machine_are_no_data(tmp_path: Path) -> None:
    unit = '<trans-unit id="1"{}><source>{}</source><target{}>T</target></trans-unit>'
    units = [
        unit.format("", "kept", ' state="needs-review-translation" state-qualifier="exact-match"'),
        '<group translate="no">'
        + unit.format("", "fixed", "")
        + unit.format(' translate="yes"', "translated", "")
        + "</group>",
        unit.format("", "suggested", ' state="needs-review-translation" state-qualifier="mt-suggestion"'),
        unit.format("", "last", ""),
    ]
    first = write(tmp_path / "a.xlf", f'<xliff version="1.2"><file><body>{"".join(units)}</body></file></xliff>')
    assert [source for source, _ in open_pairs(first)] == ["kept", "translated", "last"]
    assert left_out(first) == {"not to be translated": 1, "suggested by a machine": 1}
    segment = '<segment state="translated"{}><source>{}</source><target>T</target></segment>'
    texts = segment.format(' subState="weft:-0.5"', "suggested") + segment.format(' subState="weft:exact-match"', "kept")
    second = write(tmp_path / "b.xlf", f'<xliff version="2.0"><file id="f"><unit id="u">{texts}</unit></file></xliff>')
    assert [source for source, _ in open_pairs(second)] == ["kept"]


def test_entities_of_a_dtd_that_is_not_read_do_not_vanish(tmp_path: Path) -> None:
    text = memory(unit(en="a&nbsp;b", de="c"))
    assert "line 3: the entity &nbsp; is declared elsewhere" in message(write(tmp_path / "a.tmx", text))


def test_spreadsheets(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Texts"
    rows = [("id", "en", "de"), (1, "A dog", "Ein Hund"), (None, None, None), (2, 3.5, None)]
    for row in rows:
        book.active.append(row)
    book.create_sheet("Second sheet").append(("a", "b"))
    path = tmp_path / "a.xlsx"
    book.save(path)
    assert list(open_pairs(f"{path}#en,de")) == [("A dog", "Ein Hund"), ("3.5", "")]
    assert next(iter(open_pairs(f"{path}#2,3"))) == ("en", "de")
    assert list(open_pairs(f"{path}#Second sheet!1,2")) == [("a", "b")] and left_out(f"{path}#en,de") == {"further sheets": 1}
    assert "Choose two by name" in message(str(path)) and "no sheet 'X'" in message(f"{path}#X!1,2")
    with pytest.raises(DataError, match="3 columns; call the one to read `source`"):
        list(read_inputs(path))
    book.active["B1"] = "source"
    book.save(path)
    assert list(read_inputs(path)) == ["A dog", "3.5"]
    assert "not a spreadsheet" in message(write(tmp_path / "b.xlsx", "x"))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "c.xlsx", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, LAUGHS.encode() + content if "sheet1" in name else content)
    assert "declares entities" in message(f"{tmp_path}/c.xlsx#1,2")


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"en": [one for one, _ in PAIRS], "de": [other for _, other in PAIRS]}), path)
    assert list(open_pairs(str(path))) == PAIRS == list(open_pairs(f"{path}#en,de"))
    nested = pyarrow.table({"id": [1, 2], "translation": [{"en": "a", "de": "b"}, {"en": "c", "de": "d"}]})
    parquet.write_table(nested, path)
    assert list(open_pairs(f"{path}#translation.de,translation.en")) == [("b", "a"), ("d", "c")]
    assert "there is no 'fr'" in message(f"{path}#fr,id")
    parquet.write_table(pyarrow.table({"a": ["x"], "b": ["y"], "c": ["z"]}), path)
    assert "Choose two" in message(str(path))
    assert "cannot be read" in message(write(tmp_path / "b.parquet", "x"))
    parquet.write_table(pyarrow.table({"pair": [{"en": "a", "de": "b"}, None, {"en": "c", "de": None}]}), path)
    assert list(open_pairs(f"{path}#pair.en,pair.de")) == [("a", "b")]
    assert left_out(f"{path}#pair.en,pair.de") == {"without a text": 2}
    assert "row 1: there is no 'pair.fr'" in message(f"{path}#pair.en,pair.fr")


def subtitles(*cues: tuple[float, float, str], comma: str = ",") -> str:
    def time(seconds: float) -> str:
        return f"00:{int(seconds) // 60:02}:{seconds % 60:06.3f}".replace(".", comma)

    return "\n".join(
        f"{place}\n{time(start)} --> {time(end)}\n{text}\n" for place, (start, end, text) in enumerate(cues, start=1)
    )


def test_subtitles_are_paired_by_their_times(tmp_path: Path) -> None:
    one = [
        (1.0, 3.0, "A <i>dog</i>\nruns."),
        (3.1, 6.0, "Two cats sleep, and a bird sings."),
        (8.0, 9.0, "Alone."),
        (20.0, 21.0, "End"),
    ]
    two = [
        (1.1, 3.0, "Ein Hund läuft."),
        (3.1, 4.5, "{\\an8}Zwei Katzen schlafen"),
        (4.5, 6.1, "und ein Vogel singt."),
        (20.4, 22.0, "Ende"),
    ]
    first = write(tmp_path / "a.en.srt", subtitles(*one))
    second = write(tmp_path / "a.de.vtt", "WEBVTT\n\nNOTE x\ny\n\n" + subtitles(*two, comma="."))
    expected = [
        ("A dog runs.", "Ein Hund läuft."),
        ("Two cats sleep, and a bird sings.", "Zwei Katzen schlafen und ein Vogel singt."),
        ("End", "Ende"),
    ]
    assert list(open_pairs(f"{first},{second}")) == expected
    assert left_out(f"{first},{second}") == {"cues without a partner": 1}
    escaped = write(tmp_path / "c.vtt", "WEBVTT\n\n" + subtitles((1, 2, "<v Ann>A &lt;b&gt; &amp; c</v>"), comma="."))
    raw = write(tmp_path / "c.srt", subtitles((1, 2, "Fish &amp; chips")))
    assert list(open_pairs(f"{escaped},{raw}")) == [("A <b> & c", "Fish &amp; chips")], "SubRip has no entities"
    assert list(open_pairs(swapped(f"{first},{second}"))) == [(target, source) for source, target in expected]
    assert "no cues" in message(f"{first},{write(tmp_path / 'b.srt', 'words')}")


def test_a_cue_beside_three_others_is_kept_and_one_beside_four_is_not(tmp_path: Path) -> None:
    def many(begin: float, count: int) -> list[tuple[float, float, str]]:
        return [(begin + number, begin + number + 0.9, f"{count}") for number in range(count)]

    first = write(tmp_path / "a.en.srt", subtitles((0.0, 2.9, "three"), (10.0, 13.9, "four")))
    second = write(tmp_path / "a.de.srt", subtitles(*many(0.0, 3), *many(10.0, 4)))
    assert list(open_pairs(f"{first},{second}")) == [("three", "3 3 3")]
    assert left_out(f"{first},{second}") == {"cues that many others overlap": 5}


def test_a_cue_that_is_shown_beside_all_others_does_not_keep_them_from_being_paired(tmp_path: Path) -> None:
    cues = [(float(second), second + 0.9, f"{second}") for second in range(30)]
    first = write(tmp_path / "a.en.srt", subtitles((0.0, 30.0, "logo"), *cues))
    second = write(tmp_path / "a.de.srt", subtitles(*cues))
    assert [pair[0] for pair in open_pairs(f"{first},{second}")] == [text for *_, text in cues]
    assert left_out(f"{first},{second}") == {"cues that many others overlap": 1}


def test_cues_are_those_that_players_show(tmp_path: Path) -> None:
    """Without a blank line between two cues, the number of the second is no text; a blank line inside a cue does not end it."""
    first = "1\n00:00:01,000 --> 00:00:02,000\na b\n2\n00:00:03,000 --> 00:00:04,000\nc\n\nd\n"
    second = "WEBVTT\n\n00:01.000 --> 00:02.000\ne\n\nNOTE f\n\n00:03.000 --> 00:04.000\n42\n"
    name = f"{write(tmp_path / 'a.srt', first)},{write(tmp_path / 'b.vtt', second)}"
    assert list(open_pairs(name)) == [("a b", "e"), ("c d", "42")]


def test_tables_of_other_dialects(tmp_path: Path) -> None:
    pairs = [("a, b", 'c "d"'), ("e", "f")]
    for number, text in enumerate(
        (
            'sep=;\nsource;target\n"a, b";"c ""d"""\ne;f\n',
            'source|target\n"a, b"|"c ""d"""\ne|f\n',
            'source,target\n"a, b","c \\"d\\""\ne,f\n',
            'source\ttarget\n"a, b"\t"c ""d"""\ne\tf\n',
        )
    ):
        assert list(open_pairs(write(tmp_path / f"{number}.csv", text))) == pairs, text


def archive(path: Path, **texts: str) -> str:
    with zipfile.ZipFile(path, "w") as made:
        for language, text in texts.items():
            made.writestr(f"corpus.{language}", text)
    return str(path)


def test_archives_of_opus(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", en="a\nb\n", de="c\nd\n", txt="read me")
    assert list(open_pairs(f"{path}#en,de")) == [("a", "c"), ("b", "d")] == list(open_pairs(swapped(f"{path}#de,en")))
    assert open_pairs(f"{path}#en,de").digest() != open_pairs(f"{path}#de,en").digest()
    assert "choose source and target" in message(path) and "texts: de, en." in message(f"{path}#en,fr")
    assert "corpus.de ends after 1 lines" in message(archive(tmp_path / "b.zip", en="a\nb\n", de="c\n") + "#en,de")
    assert "corpus.en ends after 0 lines" in message(archive(tmp_path / "c.zip", en="", de="c\n") + "#en,de")
    assert "its texts are empty" in message(archive(tmp_path / "d.zip", en="", de="") + "#en,de")
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as two:
        for part in ("one.en", "one.de", "two.en", "two.fr"):
            two.writestr(part, "a\n")
    assert "both one.en and two.en end in .en" in message(f"{tmp_path / 'g.zip'}#en,de")
    assert list(open_pairs(f"{tmp_path / 'g.zip'}#de,fr")) == [("a", "a")]
    content = Path(path).read_bytes()
    assert "cannot be read" in message(write(tmp_path / "e.zip", content.replace(b"a\nb", b"a\nx", 1)) + "#en,de")
    assert "cannot be read" in message(write(tmp_path / "f.zip", content[:30]) + "#en,de")


def test_every_format_tells_when_its_content_or_its_direction_changes(tmp_path: Path) -> None:
    srt = f"{write(tmp_path / 'a.srt', subtitles((0, 1, 'a')))},{write(tmp_path / 'b.srt', subtitles((0, 1, 'b')))}"
    catalog = write(
        tmp_path / "a.po", 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a"\nmsgstr "b"\n'
    )
    xliff = write(tmp_path / "a.xlf", XLIFF_1)
    seen = set()
    for spec in (srt, catalog, xliff, archive(tmp_path / "a.zip", en="a\n", de="b\n") + "#en,de"):
        first = open_pairs(spec).digest()
        assert open_pairs(spec).digest() == first != open_pairs(swapped(spec)).digest()
        changed = Path(spec.partition("#")[0].rpartition(",")[2])
        changed.write_bytes(changed.read_bytes() + b"\n")
        seen |= {first, open_pairs(spec).digest()}
    assert len(seen) == 8


@pytest.mark.parametrize("text", ["", "x", 'a "b"\tc\\n', "a\n", "a\nb", "\n\n", "a\r\nb\u2028c"])
def test_strings_of_catalogs_are_written_as_they_are_read(text: str) -> None:
    first, *more = quoted("msgid", text, "\n")
    assert first.startswith("msgid ") and all(line.endswith("\n") for line in [first, *more])
    strings = [first.removeprefix("msgid ").rstrip("\n"), *(line.rstrip("\n") for line in more)]
    assert "".join(unescaped(each[1:-1]) for each in strings) == text == "".join(map(literal_eval, strings))
    assert unescaped("\\x41\\101\\q") == "AAq"


def test_lists_name_files_in_folders_and_archives(tmp_path: Path) -> None:
    write(tmp_path / "one.png", "1")
    pictures = tmp_path / "pictures.zip"
    with zipfile.ZipFile(pictures, "w") as made:
        made.writestr("in/two.png", "22")
    lines = write(tmp_path / "list.tsv", "one.png\tA Dog\npictures.zip/in/two.png\tTwo\n")
    one, two = str(tmp_path / "one.png"), str(pictures / "in/two.png")
    assert list(open_listed(lines)) == [(one, "A Dog"), (two, "Two")]
    assert list(open_listed(lines, lowercase=True)) == [(one, "a dog"), (two, "two")]
    assert list(read_listed(Path(lines))) == [one, two]
    with open_file(two) as file:
        assert file.read() == b"22"
    first = open_listed(lines).digest()
    assert first != open_listed(lines, lowercase=True).digest()
    write(tmp_path / "one.png", "3")
    assert open_listed(lines).digest() != first and content_digest(one) != content_digest(two)
    inside = write(tmp_path / "inside.tsv", "A Dog\tin/two.png\n")
    assert list(open_listed(f"{pictures},{inside}", side=1)) == [("A Dog", two)]
    assert list(open_listed(f"{tmp_path},{write(tmp_path / 'c.tsv', 'one.png' + chr(9) + 'x')}")) == [(one, "x")]
    missing = open_listed(f"{pictures},{lines}")
    with pytest.raises(DataError, match=r"row 1: .*there is no one.png in"):
        missing.digest()
    for spec, side, says in (("no.tsv", 0, "a file, a tab and a text"), ("no.tsv", 1, "a text, a tab and a file")):
        with pytest.raises(DataError, match=f"is no list of files.*{says}"):
            open_listed(spec, side=side)
    with pytest.raises(DataError, match=r"the .zip file cannot be read"):
        open_listed(f"{write(tmp_path / 'bad.zip', 'x')},{lines}").digest()
