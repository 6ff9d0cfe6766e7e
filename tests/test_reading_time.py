"""Every reader and splitter takes time in proportion to its input, whatever the input is.

Inputs come from a grammar: fragments that a reader treats specially are repeated, alternated and nested. The work is measured
as processor time on an input and on one four times as long. If that grows too fast, it is measured once more at four times the
size, where a busy machine hides less. Refusing an input is as good as reading it.
"""

from __future__ import annotations

import random
import struct
import time
import wave
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from io import BytesIO
from itertools import product
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from weft.config import overrides, yaml_document
from weft.config.registry import build
from weft.data import TOKENIZERS
from weft.data.cleaning.check import check
from weft.data.cleaning.filters import placeholders
from weft.data.column_checks_and_listed_files import check_columns
from weft.data.formats import TABLES, open_pairs
from weft.data.sentence_splitting import join_texts, split
from weft.data.text_lines import read_text
from weft.data.tokenizers import Tokenizer
from weft.data.word_vectors.vectors import read_vectors
from weft.errors import WeftError
from weft.evaluation.contrastive_pairs import read_contrasts
from weft.runs.weight_files import read_metadata, read_tensors
from weft.tasks.captioning.data import read_image
from weft.tasks.edges_between_words import read_edges
from weft.tasks.quality.labels import parse_tags
from weft.tasks.transcription.log_mel import LogMel, features
from weft.tasks.translation import attention_alignment as alignment
from weft.tasks.translation.documents import FORMATS, STRUCTURES, open_content, open_document, open_file
from weft.tasks.translation.glossary import Glossary, Terms, read_glossary
from weft.tasks.translation.markup_and_tag_transfer import MarkupProjection, WeightBlock, find_literals, untranslated, visible
from weft.tasks.translation.protected_spans import PATTERNS
from weft.tasks.translation.segmenter import Segmenter, Translation, best_first

SMALL, LARGE = 4_000, 16_000
"""Characters of the two inputs."""

GROWTH = 1.3
"""The largest power of the length that the time may grow by."""

MUCH = 3
"""How many times as long as allowed is certainly too long, so that nothing longer is tried."""

SHORT = 0.02
"""Seconds that are too few to be compared."""

PLAIN_FORMATS, STRUCTURED = ("text", "html", "srt", "vtt", "markdown"), ("po", "csv")
TABLE_SUFFIXES = (".txt", ".tsv", ".csv", ".jsonl")
TOKENIZER_KINDS = ("bpe", "unigram", "sentencepiece", "words", "characters", "bytes")

Read = Callable[[str], object]


def cpu_time(read: Read, text: str, times: int = 1) -> float:
    """The shortest processor time of several attempts."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        with suppress(WeftError):
            read(text)
        best = min(best, time.process_time() - start)
    return best


def patterns(fragments: list[str], count: int) -> Iterator[Callable[[int], str]]:
    """Ways to write a text of about n characters with the fragments: each alone, and some of all ways to combine two."""

    def alternated(first: str, second: str) -> Callable[[int], str]:
        return lambda n: (first + second) * (n // len(first + second))

    def nested(first: str, second: str) -> Callable[[int], str]:
        return lambda n: first * (n // 2 // len(first)) + second * (n // 2 // len(second))

    def opened(first: str, second: str) -> Callable[[int], str]:
        return lambda n: first + second * (n // len(second)) + first

    yield from (alternated(each, "") for each in fragments)
    pairs = [(make, *pair) for make in (alternated, nested, opened) for pair in product(fragments, repeat=2)]
    yield from (make(*pair) for make, *pair in random.Random(1).sample(pairs, min(count, len(pairs))))


def check_growth(read: Read, fragments: list[str], *, count: int = 30, small: int = SMALL, large: int = LARGE) -> None:
    """Fails if the time grows faster than the length to the power of GROWTH."""
    most = (large / small) ** GROWTH
    for write in patterns(fragments, count):
        short, long = write(small), write(large)
        if (spent := cpu_time(read, long)) <= SHORT or spent <= most * cpu_time(read, short, 2):
            continue
        before, after = cpu_time(read, short, 5), cpu_time(read, long, 3)
        if after <= max(SHORT, most * before):
            continue
        longest = after
        if after < MUCH * most * before:
            longest = cpu_time(read, write(large * large // small), 2)
        growth = f"{before:.3f} s, {large // small} times as long {after:.3f} s, and that many times again {longest:.3f} s"
        assert longest != after and longest <= most * after, f"{short[:60]!r} …: {growth}"


def test_superlinear_readers_are_caught() -> None:
    def quadratic(text: str) -> None:
        for at in range(0, len(text), 8):
            text.find("\0", 0, len(text) - at)
            text[at:].count("b")

    def slower_for_some(text: str) -> None:
        if text.startswith("<<"):
            quadratic(text)

    size = {"small": 20_000, "large": 80_000}
    with pytest.raises(AssertionError, match="'aaa"):
        check_growth(quadratic, ["a"], count=0, **size)
    with pytest.raises(AssertionError, match="'<<<"):
        check_growth(slower_for_some, ["a", "<", ">"], count=0, **size)
    check_growth(lambda text: [text.count("b") for _ in range(800)], ["a"], count=0, **size)


HTML = ["<a>", "</a>", "</b>", "<i x=y>", "<img>", "<br>", "<p>", '<a "', "<a '", ">", '"', "'", "<", "&", "&nbsp;", "a", " ",
        "a=", "=", "<!--", "<![CDATA[", "<script>", "</script", "<code>", "</code>", "\n",
        ". ", "<a b", '<a ">"', "{}", "\ufffc"]  # fmt: skip


def test_all_readers_are_measured() -> None:
    assert {*PLAIN_FORMATS, "xliff", "tmx"} == set(FORMATS) and {*STRUCTURED} == set(STRUCTURES)
    assert {*TABLE_SUFFIXES} == {*TABLES, ".txt", ".jsonl"}
    assert {*TOKENIZER_KINDS, "mapped_sentencepiece"} == set(TOKENIZERS), (
        "the pieces of mapped_sentencepiece are sentencepiece's"
    )


@pytest.mark.parametrize("format", PLAIN_FORMATS)
def test_documents(format: str) -> None:
    cue = {"srt": "1\n00:00:01,000 --> 00:00:02,000\n", "vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n"}.get(format, "")
    check_growth(lambda text: open_document(cue + text, format), [*HTML, "-->", "{\\an8}", "<00:01.000>"])


MARKDOWN = ["*", "**", "_", "`", "``", "[", "](", ")", "](x)", "(", "a", " ", "\n", "\n\n", "|", "- ", "> ", "# ", "\\", "<a@",
            "<http:", "[^", "~~", "```\n", "---\n", "[a]: "]  # fmt: skip


def test_markdown_documents() -> None:
    check_growth(lambda text: open_document(text, "markdown"), MARKDOWN)


def test_memories() -> None:
    start, end = "<tmx version='1.4'><header srclang='en'/><body>", "</body></tmx>"
    inner = ["<bpt i='1'/>", "<ept i='1'/>", "<ph>a</ph>", "a", " ", "&amp;", "<hi>a</hi>"]
    unit = "<tu><tuv xml:lang='en'><seg>{}</seg></tuv></tu>"
    check_growth(lambda text: open_document(start + unit.format(text) + end, "tmx", "de"), inner)
    units = [unit.format("a"), "<tu/>", "<tu><note>a</note></tu>", "<tu><tuv xml:lang='de'><seg>a</seg></tuv></tu>"]
    check_growth(lambda text: open_document(start + text + end, "tmx", "de"), units)


def test_xliff_documents() -> None:
    start, end = "<xliff version='1.2'><file source-language='en'><body>", "</body></file></xliff>"
    unit = "<trans-unit><source>{}</source></trans-unit>"

    def nested(tag: str, text: str) -> str:
        count = len(text) // (2 * len(tag) + 5)
        return f"<{tag}>a" * count + f"</{tag}>" * count

    for tag in ("g", "mrk", "ph"):
        check_growth(lambda text, tag=tag: open_document(start + unit.format(nested(tag, text)) + end, "xliff"), ["x"])
    for tag in ("group", "trans-unit", "source", "segment"):
        check_growth(lambda text, tag=tag: open_document(start + nested(tag, text) + end, "xliff"), ["x"])
    inline = ["<x/>", "<bpt id='1'/>", "<ept id='1'/>", "<g>a</g>", "a", " ", "<![CDATA[a]]>", "&amp;", "<ph>a</ph>", "<sc/>"]
    check_growth(lambda text: open_document(start + unit.format(text) + end, "xliff"), inline)
    units = [unit.format("a"), "<group translate='no'><note>a</note></group>", "<trans-unit approved='yes'/>", "<note>a</note>"]
    check_growth(lambda text: open_document(start + text + end, "xliff"), units)


@pytest.mark.parametrize("format", STRUCTURED)
def test_catalogs_and_tables(format: str) -> None:
    def read(text: str) -> None:
        file = open_content(text.encode(), format)
        file.filled([Translation(each.text, 0.0) for each in file.document.segments])

    fragments = ['msgid "a"\nmsgstr ""\n\n', '#, fuzzy\nmsgid "a"\nmsgstr "b"\n', '"a"\n', "msgid ", "#~ ", "#| ",
                 "#: a:1\n", "\\n", 'msgctxt "a"\n', 'msgid_plural "b"\n', 'msgstr[0] ""\n', '"', '""', ",", ";",
                 "a", "\n", "\r"]  # fmt: skip
    check_growth(read, fragments, count=20)
    check_growth(lambda text: read("".join(f'msgid "{n}"\nmsgstr ""\n\n' for n in range(len(text) // 20))), ["x"], count=0)


@cache
def empty_document() -> dict[str, bytes]:
    """The files in an empty Word document, by name."""
    out = BytesIO()
    pytest.importorskip("docx").Document().save(out)
    with ZipFile(out) as file:
        return {name: file.read(name) for name in file.namelist()}


def word_document(paragraphs: str) -> bytes:
    out = BytesIO()
    with ZipFile(out, "w") as file:
        for name, content in empty_document().items():
            file.writestr(name, content.replace(b"<w:body>", b"<w:body>" + paragraphs.encode()))
    return out.getvalue()


def test_word_documents() -> None:
    run, bold = "<w:r><w:t>a</w:t></w:r>", "<w:r><w:rPr><w:b/></w:rPr><w:t>a</w:t></w:r>"
    paragraphs = ["<w:p/>", f"<w:p>{run}</w:p>", f"<w:p>{run}{bold}</w:p>", "<w:p><w:r><w:tab/></w:r></w:p>"]
    size = {"small": 20_000, "large": 80_000, "count": 0}
    check_growth(lambda text: open_file(word_document(text), ".docx"), paragraphs, **size)
    check_growth(lambda text: open_file(word_document(f"<w:p>{text}</w:p>"), ".docx"), [run, bold], **size)


def project(text: str) -> None:
    """Puts the markup of a page into a translation that is aligned word by word, in segments of fifty words."""
    for segment in open_document(text, "html").segments:
        marked = find_literals(segment.text, segment.marks, tuple(PATTERNS))
        visible(segment.text, (*segment.marks, *marked.literals))
        untranslated(segment.text, segment.marks)
        opaque = {(span.start, span.end) for span in (*segment.marks, *marked.literals) if span.kind == "opaque"}
        source = alignment.units(segment.text, list(opaque))
        target = alignment.units(" ".join("b" for span in source if span not in opaque))
        blocks = []
        for first in range(0, min(len(source), len(target)), 50):
            words = [["a"] * len(source[first : first + 50]), ["b"] * len(target[first : first + 50])]
            weights = alignment.spelling_and_position_similarity(words[1], words[0])
            blocks.append(WeightBlock(first, np.arange(first, first + len(words[0])), weights))
        MarkupProjection(segment.text, source, "b " * len(target), target, blocks).runs(segment.marks, marked.literals)


def test_markup_projection() -> None:
    fragments = [
        "<a>",
        "</a>",
        "<b>a</b>",
        "<b>a</b> ",
        "a <i>",
        "<img>",
        " <img> ",
        "a",
        "a ",
        "&nbsp;",
        "{}",
        "{} ",
        ". ",
        "狗",
    ]
    check_growth(project, fragments, count=25, small=2_000, large=8_000)
    check_growth(lambda text: project("a" + "<i>" * (len(text) // 7) + "a" + "</i>" * (len(text) // 7) + "a"), ["x"])
    check_growth(lambda text: project("a " + "<i>a " * 90 + text + "</i>" * 90 + "a"), ["a ", "<b>a</b> "], count=0)


def test_protected_spans() -> None:
    fragments = ["%", "%0", "0", "{", "}", "{}", "{{", "$", "%(", "a", ".", "@", "a@b", "a.", "https://a", "www.", ")", "(",
                 "]", ",", "1", "1,", ":", "-", "+", "/", " ", "#{", "'", "l", "%1$"]  # fmt: skip
    check_growth(lambda text: find_literals(text, (), tuple(PATTERNS)), fragments, count=60)
    check_growth(lambda text: find_literals(f"https://a{text}", (), tuple(PATTERNS)), [")", "()", "(", ".", "]"], count=10)


def test_sentences() -> None:
    fragments = ["1. ", "(.", ". ", ".", "\0. ", "A. ", "a.b. ", "Dr. ", '"', ' "', "“", "“a. ", "(a.) ", "(", ") ", "a", " ",
                 "! ", "?", "…", "。", "狗", "狗。", "i.e. a ", "3. a ", "\u00a0", "_. ", "[", "\ud800. "]  # fmt: skip
    for language in ("en", "", "de"):
        check_growth(lambda text, language=language: split(text, language), fragments)
    check_growth(
        lambda text: join_texts(text.split("|"), [""] * (text.count("|") + 1)), ["|", "!|", "a|", "狗|", "!"], count=10
    )


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    texts = ["A dog runs in the park.", "Ein Hund läuft, und 2 Katzen schlafen.", "aaaa aaaaaaaa a.a.a (b)"] * 20
    made: dict[str, Tokenizer] = {}
    for kind in TOKENIZER_KINDS:
        made[kind] = build("weft.data:TOKENIZERS", {"kind": kind}, where="data.tokenizer")
        made[kind].train(texts, 320)
    return made


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_tokenizers(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    def read(text: str) -> None:
        tokenizer = tokenizers[kind]
        tokenizer.decode(tokenizer.encode(text))
        tokenizer.unknown(text)

    check_growth(
        read, ["a", " ", "a ", "aa", "dog", ".", "狗", "é", "e\u0301", "▁", "\n", "1", "¼", "<0x41>", "</s>"], count=20
    )


def test_segments(tokenizers: dict[str, Tokenizer]) -> None:
    def read(text: str) -> None:
        tokenizer = tokenizers["bpe"]
        reader = Segmenter(tokenizer, tokenizer, room=50, most=None, copies=False, split=None, warn=lambda message: None)
        groups = reader([text], [""], [1])
        best_first([[0.0, -1.0]] * len(groups[0]), 3)

    check_growth(read, ["a", "a ", "dog ", ". ", "é"], count=10)


@pytest.mark.parametrize("suffix", TABLE_SUFFIXES)
def test_tables(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"pairs{suffix}"

    def read(text: str) -> None:
        file.write_text(text, "utf-8", newline="")
        if suffix == ".txt":
            read_text(file)
            return
        pairs = open_pairs(str(file))
        check_columns(pairs, lambda message: None)
        list(pairs)

    fragments = ["a", "\t", "\n", "a\tb\n", '"', '""', ",", ";", "a,b\n", "a;b\n", '"a\n', "\r", "\ufeff", "1", "id\t",
                 '{"source": "a", "target": "b"}\n', "{", "[", '{"a":', "\\u0000", "\0"]  # fmt: skip
    check_growth(read, fragments)


def test_files_of_translators(tmp_path: Path) -> None:
    def pairs(name: str, text: str) -> None:
        (tmp_path / name).write_text(text, "utf-8", newline="")
        list(open_pairs(str(tmp_path / name)))

    sides = [f"<tuv xml:lang='{language}'><seg>a</seg></tuv>" for language in ("en", "de", "en-US")]
    memory = "<tmx version='1.4'><header srclang='en'/><body>{}</body></tmx>".format
    check_growth(lambda text: pairs("a.tmx", memory(text)), [f"<tu>{sides[0]}{sides[1]}</tu>", "<tu/>", "<!-- a -->"], count=3)
    check_growth(lambda text: pairs("a.tmx", memory(f"<tu>{text}</tu>")), sides, count=3)
    unit = "<trans-unit id='1'><source>a</source><target>b</target></trans-unit>"
    body = "<xliff version='1.2'><file source-language='en' target-language='de'><body>{}</body></file></xliff>".format
    check_growth(lambda text: pairs("a.xlf", body(text)), [unit, "<group><note>a</note></group>"], count=2)
    check_growth(lambda text: pairs("a.po", text), ['msgid "a"\nmsgstr "b"\n\n', '"a"\n', "\\n", '"', "#~ "], count=5)


TIMES = {"long": (0, 9 * 3600), "short": (1, 2), "none": (1, 1)}
"""When a cue begins and ends, in seconds."""


@pytest.mark.parametrize("times", product(TIMES, repeat=2), ids="-".join)
def test_pairs_of_subtitles(times: tuple[str, str], tmp_path: Path) -> None:
    def read(text: str) -> None:
        for side, each in zip("ab", times, strict=True):
            begin, end = (f"{seconds // 3600:02}:00:{seconds % 3600:02},000" for seconds in TIMES[each])
            (tmp_path / f"{side}.srt").write_text(f"1\n{begin} --> {end}\na\n\n" * (len(text) // 40))
        list(open_pairs(f"{tmp_path}/a.srt,{tmp_path}/b.srt"))

    check_growth(read, ["x"], count=0, small=8_000, large=32_000)


def test_labels_and_graphs() -> None:
    check_growth(lambda text: parse_tags(" ".join(["OK"] * len(text.split())), text), ["a ", "a. ", ".", "(a) "], count=2)
    check_growth(lambda text: read_edges(text, 10), ["0-1 ", "0-", "1", "-"], count=4)
    check_growth(lambda text: read_contrasts(text.split("\n"), "pairs"), ["a\tb\tc\n", "a\tb\tc\td\n", "\t", "a"], count=4)


@pytest.mark.parametrize(
    "text", ["a ", ".", "%0", "0", "<a", "a@", "a.", "1,", "{", "https://a", "&amp;", "Ã¼", "狗", "\u0301"]
)
def test_checks_of_data(text: str) -> None:
    """The placeholders that are compared; those of an e-mail address ran to the end of a text from every letter of it."""
    check_growth(placeholders, [text, f"%<.{text}"], count=0)


def test_long_texts_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"

    def read(text: str) -> None:
        file.write_text("a dog runs\tein hund\n" * 20 + f"{text}\tb\n", "utf-8")
        check([open_pairs(str(file))])

    check_growth(read, ["a ", ".", "狗"], count=0, small=8_000, large=32_000)


def test_configurations() -> None:
    def read(text: str) -> None:
        yaml_document.read(f"a: {text}", "config.yaml")

    fragments = ["[", "{", "a: ", "- ", "\n", "\n  ", "a", "1", "'", '"', "#", "&a ", "*a", "|\n", ">\n ", "!", "?", ", ", "-",
                 ".", "\n- a", "\nb: 1", "\\", "\t", "]", "}", "1."]  # fmt: skip
    check_growth(read, fragments, count=10, small=2_000, large=8_000)
    check_growth(lambda text: overrides.parse_override(f"a.b={text}"), fragments, count=0, small=2_000, large=8_000)
    check_growth(lambda text: overrides.parse_override(f"{text}=1"), ["a", ".", "a."], count=5)
    check_growth(lambda text: overrides.put({}, overrides.parse_override(f"{text}a=1").path, 1, "here"), ["a."], count=0)


def test_glossaries(tmp_path: Path) -> None:
    file = tmp_path / "terms.tsv"

    def read(text: str) -> None:
        file.write_text(text, "utf-8", newline="")
        read_glossary(file).terms("a b. c " * 10)

    check_growth(read, ["a\tb\n", "# a\n", "a", "\t", "\n", "a\t!b\n", "狗\t狗\n", "(\t[\n", " "], count=10)
    terms = Glossary([("a", "b"), ("aaaa", "c"), ("a a a b", "d"), ("狗", "e"), ("a-a", "!f"), ("((", "g"), ("aaaa aaab", "h")])
    check_growth(terms.terms, ["a", "a ", "a a a ", "aaaa aaa", "狗", "a-", "(", "A", "\u0301"], count=20)
    check_growth(lambda text: Terms(("b",), (), (("a", "b"),)).among(text.split(".")), ["a", "a.", ". "], count=5)


def test_weights(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"

    def read(text: str, before: str = "", after: str = "}") -> None:
        header = f"{{{before}{text.rstrip(',')}{after}".encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        with suppress(WeftError):
            read_tensors(file)
        read_metadata(file)

    def tensors(text: str) -> None:
        empty = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        read(",".join(f'"{number}":{empty}' for number in range(len(text) // 60)))

    check_growth(tensors, ["x"], small=40_000, large=160_000)
    for text in ("a", '\\"', "[", '{"a":', ","):
        check_growth(lambda n, text=text: read(n, '"__metadata__":{"weft":"', '"}}'), [text], count=0)
        check_growth(read, [text], count=0)


def test_word_vectors(tmp_path: Path) -> None:
    file = tmp_path / "words.vec"

    def read(text: str) -> None:
        file.write_text(text, "utf-8", newline="")
        read_vectors(file)

    check_growth(read, ["a 1 2\n", "a", " ", "1 ", "\n", "2 2\n", "a 1e9999 nan\n", "狗 1 2\n"], count=15)


def test_sound(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"

    def read(text: str, rate: int) -> None:
        with wave.open(str(file), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(rate)
            out.writeframes(text.encode())
        features(file, LogMel(16_000))

    for rate in (16_000, 44_100, 44_101, 7_919, 1_000_003):
        check_growth(lambda text, rate=rate: read(text, rate), ["ab"], count=0, small=100_000, large=400_000)


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("PIL")

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    def read(text: str) -> None:
        width = len(text) // 10
        header, rows = struct.pack(">IIBBBBB", width, 400, 8, 0, 0, 0, 0), zlib.compress(bytes((width + 1) * 400))
        notes = b"".join(chunk(b"tEXt", b"a\0b") for _ in range(width // 100))
        file = tmp_path / "a.png"
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + notes + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
        read_image(str(file), 32)

    check_growth(read, ["a"])
