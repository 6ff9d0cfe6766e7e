"""Tables: quotes, delimiters and names of columns; header rows and ids are noticed before anything is trained on them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from weft.data.column_checks_and_listed_files import check_columns
from weft.data.formats import open_pairs
from weft.errors import DataError

PAIRS = [("A dog, brown.", 'Ein "Hund".'), ("Two\nlines", "Zwei; Zeilen")]
CSV = 'english,german\n"A dog, brown.","Ein ""Hund""."\n"Two\nlines",Zwei; Zeilen\n'
SENTENCES = [("A dog runs here.", "Ein Hund rennt hier."), ("Two cats sleep now.", "Zwei Katzen schlafen nun.")] * 4


def write(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def message(spec: str) -> str:
    with pytest.raises(DataError) as caught:
        list(open_pairs(spec))
    return str(caught.value)


def table(path: Path, *rows: tuple[str, ...], delimiter: str = "\t") -> str:
    return write(path, "".join(f"{delimiter.join(row)}\n" for row in rows))


def said(spec: str) -> list[str]:
    """What is told about the columns."""
    found: list[str] = []
    check_columns(open_pairs(spec), found.append)
    return found


def refusal(spec: str) -> str:
    with pytest.raises(DataError) as caught:
        check_columns(open_pairs(spec), pytest.fail)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_csv_has_quotes_and_a_header(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, CSV)
    assert list(open_pairs(f"{path}#english,german")) == PAIRS
    assert list(open_pairs(f"{path}#german,english")) == [(target, source) for source, target in PAIRS]
    assert list(open_pairs(f"{path}#1,2")) == [("english", "german"), *PAIRS]


def test_columns_called_source_and_target_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "\ufeffid,target,source\n1,b,a\n2,d,c\n")
    assert list(open_pairs(path)) == [("a", "b"), ("c", "d")]
    assert list(open_pairs(write(tmp_path / "b.csv", "a,b\nc,d\n"))) == [("a", "b"), ("c", "d")]
    assert open_pairs(path).digest() != open_pairs(f"{path}#1,2").digest() != open_pairs(f"{path}#source,target").digest()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_of_a_csv(tmp_path: Path, delimiter: str) -> None:
    path = table(tmp_path / "a.csv", ("en", "de"), ("a", "b"), ("c", "d"), delimiter=delimiter)
    assert list(open_pairs(f"{path}#en,de")) == [("a", "b"), ("c", "d")]


def test_a_csv_with_an_error_names_its_line(tmp_path: Path) -> None:
    assert "line 3: 3 columns, but the lines before it have 2" in message(write(tmp_path / "a.csv", "a,b\nc,d\ne,f,g\n"))
    assert 'quotes: "a, b"' in message(write(tmp_path / "a.csv", "a,b\nc,d\ne,f,g\n"))
    assert "not valid CSV" in message(write(tmp_path / "b.csv", 'a,b\nc,"d\n'))
    assert "not valid CSV" in message(write(tmp_path / "c.csv", 'a,b\n"c"x,d\n'))
    assert "b.csv#en,de" not in message(write(tmp_path / "d.csv", ""))
    path = write(tmp_path / "e.csv", "id,english,german\n1,a,b\n")
    assert "'id', 'english', 'german'" in message(path) and f"{path}#english,german" in message(path)
    path = write(tmp_path / "g.csv", "id,length,english,german\n17,3,a dog,ein Hund\n18,2,a cat,eine Katze\n")
    assert f"{path}#english,german" in message(path) and f"{path}#3,4" in message(path), "neither ids nor numbers"
    assert "no column is called 'French'" in message(f"{path}#english,French")
    assert "empty except for its first row" in message(write(tmp_path / "f.csv", "source,target\n"))


def test_a_tsv_may_name_its_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", ("id", "en", "de"), ("1", "a", "b"))
    assert list(open_pairs(f"{path}#en,de")) == [("a", "b")]


def test_errors_say_how_columns_are_chosen(tmp_path: Path) -> None:
    assert "pairs.jsonl#en,de" in message(write(tmp_path / "a.jsonl", '{"en": "a", "de": "b"}\n'))
    assert f"{tmp_path}/a.tsv#2,3" in message(write(tmp_path / "a.tsv", "a b\n"))
    for form in ("pairs.tsv#2,3", "pairs.jsonl#en,de", "pairs.csv#en,de"):
        assert form in message("pairs.xml")


HEADERS = [
    ("source", "target"),
    ("English", "German"),
    ("en", "de"),
    ("text", "label"),
    ("src_text", "tgt_text"),
    ("input", "output"),
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_row_is_refused_unless_the_columns_are_chosen(tmp_path: Path, header: tuple[str, str]) -> None:
    path = table(tmp_path / "a.tsv", header, *SENTENCES)
    assert f"Write {path}#{header[0]},{header[1]}" in refusal(path) and f"{path}#1,2" in refusal(path)
    assert list(open_pairs(f"{path}#{header[0]},{header[1]}")) == SENTENCES
    assert not said(f"{path}#{header[0]},{header[1]}")
    assert "looks like a header" in said(f"{path}#1,2")[0]


def test_headers_of_languages_that_nobody_lists_and_of_text_files_are_said(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", ("bahnar", "vietnamese"), *SENTENCES)
    assert f"{path}#bahnar,vietnamese" in said(path)[0]
    sides = [write(tmp_path / f"a.{side}", f"{side}\nmore text\n") for side in ("en", "de")]
    assert "look like headings" in said(",".join(sides))[0]


@pytest.mark.parametrize("ids", ["{}", "train_{:05d}", "s-{}", "3.{}", "00000000-0000-4000-8000-{:012d}"])
def test_a_column_of_ids_is_refused_unless_the_columns_are_chosen(tmp_path: Path, ids: str) -> None:
    path = table(tmp_path / "a.tsv", *((ids.format(number), *pair) for number, pair in enumerate(SENTENCES)))
    assert "seems to hold ids" in refusal(path) and f"Write {path}#2,3" in refusal(path)
    assert not said(f"{path}#2,3")
    assert "seems to hold ids" in said(f"{path}#1,2")[0]
    headed = table(
        tmp_path / "b.tsv", ("id", "text", "german"), *(("7" + str(number), *pair) for number, pair in enumerate(SENTENCES))
    )
    assert f"Write {headed}#text,german" in refusal(headed)


@pytest.mark.parametrize(
    "rows",
    [
        SENTENCES,
        [("Hello", "Hallo"), *SENTENCES],
        [("source", "Quelle"), ("text", "Text"), ("dog", "Hund"), ("to go", "gehen")],
        [("A text of several words", "label"), *[(source, "positive") for source, _ in SENTENCES]],
        [("Go.", "Geh."), ("Hi.", "Hallo!"), ("Run!", "Lauf!")],
        [("1 2 3", "3 2 1"), ("4 5", "5 4"), ("6 7 8", "8 7 6"), ("9", "9"), ("1 5", "5 1")],
        [(source, str(number % 3)) for number, (source, _) in enumerate(SENTENCES)],
        [("no", "nein"), ("am", "bin"), ("so", "also")],
    ],
)
def test_pairs_are_not_taken_for_headers_or_ids(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    assert not said(table(tmp_path / "a.tsv", *rows))


def test_numbers_and_their_names_are_only_said(tmp_path: Path) -> None:
    """They may be ids, but with two columns there is no other text to train on."""
    path = table(tmp_path / "a.tsv", *((str(number), f"word {number % 7}") for number in range(100)))
    assert "seems to hold ids" in said(path)[0]


def test_tables_of_excel_say_what_they_are(tmp_path: Path) -> None:
    """A German Excel writes Windows-1252 with semicolons."""
    rows = [("Englisch", "Deutsch"), *SENTENCES, ("A hut, nice.", "Eine schöne Hütte, ja.")]
    text = "".join(f"{source};{target}\r\n" for source, target in rows)
    path = tmp_path / "excel.csv"
    path.write_bytes(text.encode("cp1252"))
    found = message(str(path))
    assert "line 10" in found and "Windows-1252" in found and "Eine schöne" in found and "CSV UTF-8" in found
    path.write_bytes(text.encode("utf-8-sig"))
    assert list(open_pairs(f"{path}#Englisch,Deutsch")) == rows[1:]
    assert "looks like a header" in refusal(str(path)) and f"{path}#Englisch,Deutsch" in refusal(str(path))
    assert "header" in refusal(table(tmp_path / "a.tsv", ("anglais", "français"), *SENTENCES))
    assert "header" in refusal(table(tmp_path / "b.tsv", ("Ausgangstext", "Übersetzung"), *SENTENCES))
    for suffix in (".csv", ".tsv", ".jsonl", ".en"):
        for encoding in ("utf-16", "utf-16-le"):
            wide = tmp_path / f"wide{suffix}"
            wide.write_bytes(text.encode(encoding))
            assert "is UTF-16" in message(f"{wide},{wide}" if suffix == ".en" else str(wide))


def test_a_folder_is_answered_with_the_files_in_it(tmp_path: Path) -> None:
    assert "is a folder" in message(str(tmp_path)) and "pairs.tsv" in message(str(tmp_path))
    for name in ("valid.de", "valid.en", "train.de", "train.en", "notes.txt"):
        write(tmp_path / name, "a\n")
    assert f"{tmp_path}/train.de,{tmp_path}/train.en" in message(str(tmp_path))
    write(tmp_path / "all.tsv", "a\tb\n")
    assert f"{tmp_path}/all.tsv" in message(str(tmp_path))


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.data.text_lines.LONGEST", 1000)
    path = write(tmp_path / "a.tsv", "a\tb\n" + "c" * 2000 + "\td\n")
    assert "line 2: the line has more than 1,000 characters" in message(path)


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    assert "not valid JSON" in message(write(tmp_path / "a.jsonl", "[" * 100_000))
