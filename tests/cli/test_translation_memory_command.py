"""`weft translate --memory`: lines and documents, and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.tiny import Shell


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory.tsv").write_text("a b c\tx y z\na b c d e f\tnot used\n", encoding="utf-8")
    return tmp_path / "memory.tsv"


def test_lines(weft: Shell, reverse_run: Path, memory: Path) -> None:
    arguments = ("translate", reverse_run, "--memory", memory)
    assert weft(*arguments, stdin="a b c\na b c d e h\nb\n") == "x y z\nh e d c b a\nb\n"
    assert "translation memory (2 entries): 1 of 3 texts are answered by exact matches; 1 more have a similar entry" in weft.err
    assert "83% similar" in weft.err
    exact, fuzzy, none = map(json.loads, weft(*arguments, "--json", stdin="a b c\na b c d e h\nb\n").splitlines())
    assert (exact["text"], exact["memory"], fuzzy["memory"]) == ("x y z", "exact", "fuzzy")
    assert fuzzy["match"]["score"] == 0.8333 and "memory" not in none


def test_the_last_memory_counts(weft: Shell, reverse_run: Path, memory: Path, tmp_path: Path) -> None:
    (tmp_path / "newer.tsv").write_text("a b c\tz\n", encoding="utf-8")
    found = weft("translate", reverse_run, "--memory", memory, "--memory", tmp_path / "newer.tsv", stdin="a b c\n")
    assert found == "z\n"


PO = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a b c"\nmsgstr ""\n\nmsgid "d e"\nmsgstr ""\n'


def test_documents(weft: Shell, reverse_run: Path, memory: Path, tmp_path: Path) -> None:
    (tmp_path / "text.po").write_text(PO, encoding="utf-8")
    found = weft("translate", reverse_run, tmp_path / "text.po", "--memory", memory)
    assert 'msgstr "x y z"' in found and 'msgstr "e d"' in found
    assert "1 of 2 texts are answered" in weft.err
    tagged = PO.replace('"a b c"', '"a <b>b c</b>"').replace('"d e"', '"d <i>e</i>"')
    (tmp_path / "text.po").write_text(tagged, encoding="utf-8")
    (tmp_path / "tagged.tsv").write_text("a <b>b c</b>\t<b>x</b> y\n", encoding="utf-8")
    found = weft("translate", reverse_run, tmp_path / "text.po", "--memory", tmp_path / "tagged.tsv")
    assert 'msgstr "<b>x</b> y"' in found and 'msgstr "<i>e</i> d"' in found, "a memory of catalogs has their tags"
    (tmp_path / "text.html").write_text("<p>a b c</p><p>a <b>b</b> c</p>", encoding="utf-8")
    found = weft("translate", reverse_run, tmp_path / "text.html", "--memory", memory)
    assert found.startswith("<p>x y z</p><p>c <b>b</b> a</p>")  # a memory does not say where markup belongs
    assert "1 of 2 texts are answered by exact matches; 1 more have a similar entry, on average 100% similar" in weft.err


@pytest.mark.parametrize(
    ("start", "unit", "shown"),
    [
        (
            'version="1.2"><file><body>',
            '<trans-unit id="{0}"><source>{0}</source></trans-unit>',
            'state-qualifier="exact-match"',
        ),
        ('version="2.0" srcLang="en"><file>', "<unit><segment><source>{0}</source></segment></unit>", '"weft:exact-match"'),
    ],
)
def test_xliff_says_what_comes_from_the_memory(
    weft: Shell, reverse_run: Path, memory: Path, tmp_path: Path, start: str, unit: str, shown: str
) -> None:
    end = "</body></file></xliff>" if "body" in start else "</file></xliff>"
    text = f"<xliff {start}{unit.format('a b c')}{unit.format('a b')}{end}"
    (tmp_path / "text.xliff").write_text(text, encoding="utf-8")
    found = weft("translate", reverse_run, tmp_path / "text.xliff", "--memory", memory)
    ours, theirs = found.split("<source>a b<")
    assert ">x y z</target>" in ours and "weft:score" not in ours and found.count(shown) == 1
    assert ">b a</target>" in theirs


def test_what_cannot_have_a_memory(weft: Shell, reverse_run: Path, memory: Path, tmp_path: Path) -> None:
    weft.fails("translate", reverse_run, "a b", "--memory", tmp_path / "no.tsv", says=["no.tsv"])
    (tmp_path / "in.txt").write_text("a b c\n", encoding="utf-8")
    arguments = ("translate", reverse_run, tmp_path / "in.txt", "-o", tmp_path / "out.txt", "--memory", memory)
    weft.fails(*arguments, "--shard", "1/2", says=["without --prefix, --memory, --quality and --stream"])
