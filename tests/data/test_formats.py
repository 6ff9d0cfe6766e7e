"""Data formats, and error messages about broken data."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.data.formats import open_pairs, swapped
from weft.data.text_lines import read_lines, read_text
from weft.errors import DataError

PAIRS = [("one house", "ein Haus"), ("two 水", "zwei 水"), ("", "leer")]


def write(path: Path, content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return str(path)


def text(folder: Path, suffix: str, end: str) -> str:
    return ",".join(
        write(folder / f"a.{side}{suffix}", "".join(p[i] + end for p in PAIRS)) for i, side in enumerate(("en", "de"))
    )


def tsv(folder: Path, suffix: str, end: str) -> str:
    return write(folder / f"a.tsv{suffix}", "".join(f"{s}\t{t}{end}" for s, t in PAIRS))


def jsonl(folder: Path, suffix: str, end: str) -> str:
    return write(folder / f"a.jsonl{suffix}", "".join(json.dumps({"target": t, "source": s}) + end for s, t in PAIRS))


@pytest.mark.parametrize("form", [text, tsv, jsonl])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_form_gives_the_same_pairs_again_and_again(
    tmp_path: Path, form: Callable[[Path, str, str], str], suffix: str, end: str
) -> None:
    spec = form(tmp_path, suffix, end)
    pairs = open_pairs(spec)
    assert list(pairs) == PAIRS
    assert list(pairs) == PAIRS
    assert pairs.name == spec


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "1\teins\tuno\n2\tzwei\tdos\n")
    assert list(open_pairs(table)) == [("1", "eins"), ("2", "zwei")]
    assert list(open_pairs(f"{table}#3,1")) == [("uno", "1"), ("dos", "2")]
    records = write(tmp_path / "a.jsonl", '{"translation": {"en": "one", "de": "eins"}, "a.b": "plain"}\n')
    assert list(open_pairs(f"{records}#translation.en,translation.de")) == [("one", "eins")]
    assert list(open_pairs(f"{records}#a.b,translation.en")) == [("plain", "one")]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    line = "a\u2028b\u0085c\u000bd\re\u001cf"
    path = write(tmp_path / "a.txt", f"\ufeff{line}\r\nlast, without an end")
    assert list(read_lines(path)) == [line, "last, without an end"]


def test_lines_of_streams() -> None:
    assert list(read_lines(io.BytesIO("\ufeffä\r\nb\n".encode()))) == ["ä", "b"]
    assert list(read_lines(io.StringIO("ä\nb"))) == ["ä", "b"]
    with pytest.raises(DataError, match=r"stdin, line 2 "):
        list(read_lines(io.BytesIO(b"good\nb\xe4d\n"), name="stdin"))


def message(spec: str) -> str:
    with pytest.raises(DataError) as caught:
        list(open_pairs(spec))
    return str(caught.value)


def test_wrong_encoding_names_file_line_and_byte(tmp_path: Path) -> None:
    good = write(tmp_path / "a.en", "x\n" * 3)
    bad = write(tmp_path / "a.de", b"first\nsecond\nsch\xf6n\n")
    found = message(f"{good},{bad}")
    assert bad in found
    assert "line 3 (byte 16 of the file)" in found
    assert "0xf6" in found
    assert "UTF-16" in message(write(tmp_path / "wide.tsv", "a\tb\n".encode("utf-16")))


def test_missing_and_empty_files(tmp_path: Path) -> None:
    there = write(tmp_path / "a.en", "x\n")
    with pytest.raises(DataError, match=r"no\.de: there is no such file"):
        open_pairs(f"{there},{tmp_path / 'no.de'}")
    with pytest.raises(DataError, match="is a folder"):
        open_pairs(f"{there},{tmp_path}")
    empty = write(tmp_path / "empty.de", "")
    assert f"{empty} is empty" in message(f"{there},{empty}")
    assert "empty" in message(f"{empty},{empty}")
    for name in ("empty.tsv", "empty.jsonl.gz"):
        assert f"{name} is empty" in message(write(tmp_path / name, ""))


def test_names_that_are_no_data_format(tmp_path: Path) -> None:
    for spec in ("pairs.csv", "a,b,c", "a.en,", "", "hf:", "hf:name", "generated:nothing"):
        with pytest.raises(DataError):
            open_pairs(spec)


def test_tables_with_missing_or_extra_columns(tmp_path: Path) -> None:
    assert "line 2: 1 columns" in message(write(tmp_path / "a.tsv", "a\tb\nc\n"))
    assert "line 3: 3 columns" in message(write(tmp_path / "b.tsv", "a\tb\nc\td\ne\tf\tg\n"))
    assert "line 1: there is no column 2" in message(write(tmp_path / "c.tsv", "a b\n"))
    assert "no column 4" in message(write(tmp_path / "d.tsv", "a\tb\n") + "#1,4")
    assert "no column is called 'en'; found 'a', 'b'" in message(write(tmp_path / "e.tsv", "a\tb\n") + "#en,de")
    for columns in ("#0,1", "#1,de"):
        assert "two numbers from 1 on, or two names" in message(write(tmp_path / "f.tsv", "a\tb\n") + columns)


def test_records_that_are_broken(tmp_path: Path) -> None:
    good = '{"source": "a", "target": "b"}\n'
    assert "line 2: not valid JSON" in message(write(tmp_path / "a.jsonl", good + '{"source": \n'))
    missing = message(write(tmp_path / "b.jsonl", good + '{"source": "a", "tgt": "b"}\n'))
    assert "line 2: there is no 'target' or 'label' or 'labels'; found 'source', 'tgt'" in missing
    assert "line 1: there is no 'source'" in message(write(tmp_path / "c.jsonl", '["a", "b"]\n'))
    assert "'target' must be text, not [3]" in message(write(tmp_path / "d.jsonl", '{"source": "a", "target": [3]}\n'))


def test_a_damaged_gz_is_said_to_be_damaged(tmp_path: Path) -> None:
    whole = gzip.compress(b"a\tb\n" * 5000 + random.Random(0).randbytes(2000).hex().encode() + b"\tc\n")
    cut = tmp_path / "cut.tsv.gz"
    cut.write_bytes(whole[:-40])
    assert "cut short" in message(str(cut))
    plain = tmp_path / "plain.tsv.gz"
    plain.write_bytes(b"a\tb\n")
    assert str(plain) in message(str(plain))


def parallel(count: int) -> tuple[list[str], list[str]]:
    """Lines with correlated lengths, as in translations."""
    draw = random.Random(1)
    sizes = [draw.randint(3, 25) for _ in range(count)]
    source = [f"s{i} " + "word " * size for i, size in enumerate(sizes, start=1)]
    target = [f"t{i} " + "Wort " * max(1, size + draw.randint(-1, 1)) for i, size in enumerate(sizes, start=1)]
    return source, target


def lines(path: Path, content: list[str]) -> str:
    return write(path, "".join(line + "\n" for line in content))


@pytest.mark.parametrize("lost", [10, 700, 985])
@pytest.mark.parametrize("side", [0, 1])
def test_different_lengths_name_counts_and_the_place(tmp_path: Path, lost: int, side: int) -> None:
    sides = parallel(1000)
    del sides[side][lost - 1]
    files = [lines(tmp_path / "a.en", sides[0]), lines(tmp_path / "a.de", sides[1])]
    found = message(",".join(files))
    counts = ["1,000", "1,000"]
    counts[side] = "999"
    assert f"{files[0]} has {counts[0]} lines but {files[1]} has {counts[1]}" in found
    place = int(found.split("misaligned from about line ")[1].split(" ")[0].replace(",", ""))
    assert abs(place - lost) <= 5
    assert f"'{'st'[1 - side]}{place} " in found


def test_a_file_cut_at_its_end_is_not_called_shifted(tmp_path: Path) -> None:
    source, target = parallel(1000)
    found = message(f"{lines(tmp_path / 'a.en', source)},{lines(tmp_path / 'a.de', target[:800])}")
    assert "from 801 on have no partner" in found
    assert "misaligned" not in found


def test_an_empty_line_before_the_end_is_named(tmp_path: Path) -> None:
    source, target = ["aaaa"] * 50, ["bbbb"] * 49
    target[20] = ""
    assert "empty on only one side is line 21: 'aaaa' is paired with ''" in message(
        f"{lines(tmp_path / 'a.en', source)},{lines(tmp_path / 'a.de', target)}"
    )


def test_digest_follows_content_and_columns(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tsv", "a\tb\n")
    same = write(tmp_path / "copy.tsv", "a\tb\n")
    other = write(tmp_path / "b.tsv", "a\tc\n")
    digests = [open_pairs(spec).digest() for spec in (first, same, other, f"{first}#2,1")]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert open_pairs("generated:copy?seed=1").digest() != open_pairs("generated:copy?seed=2").digest()


class FakeDataset(list[dict[str, Any]]):
    info = types.SimpleNamespace(version="1.0.0", download_size=12, dataset_size=None, download_checksums=None)


def test_hugging_face_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str, streaming: bool) -> FakeDataset:
        assert streaming, "a dataset may be larger than the disk"
        asked.append((name, config, split))
        if name == "gone":
            raise FileNotFoundError("no such dataset")
        return FakeDataset([{"translation": {"en": "one", "de": "eins"}}])

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    pairs = open_pairs("hf:org/name:de-en@valid#translation.en,translation.de")
    assert list(pairs) == [("one", "eins")]
    assert list(open_pairs("hf:org/name#translation.de,translation.en")) == [("eins", "one")]
    assert asked == [("org/name", "de-en", "valid"), ("org/name", None, "train")]
    assert pairs.digest() != open_pairs("hf:org/name#translation.en,translation.de").digest()
    assert "record 1: there is no 'fr'" in message("hf:org/name#fr,fr")
    assert "no such dataset" in message("hf:gone#a,b")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "weft-seq2seq[datasets]" in message("hf:org/name#a,b")


def test_more_columns_than_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\tc\n")
    with pytest.raises(DataError, match="3 columns are chosen, and this task reads two"):
        open_pairs(f"{tmp_path / 'a.tsv'}#1,2,3")


@pytest.mark.parametrize(
    ("spec", "exchanged"),
    [
        ("a.en,a.de", "a.de,a.en"),
        ("a.tsv", "a.tsv#2,1"),
        ("a.jsonl", "a.jsonl#target,source"),
        ("hf:a#en,de", "hf:a#de,en"),
    ],
)
def test_source_and_target_can_be_exchanged(spec: str, exchanged: str) -> None:
    assert swapped(spec) == exchanged


def test_generated_pairs_are_not_exchanged_silently() -> None:
    with pytest.raises(DataError, match="cannot be exchanged"):
        swapped("generated:reverse?count=3,4")


def test_a_stream_without_a_name_is_called_the_input() -> None:
    with pytest.raises(DataError, match=r"^the input"):
        read_text(io.BytesIO(b"a\n\xff\n"))
    with gzip.open(io.BytesIO(b"damaged")) as stream, pytest.raises(DataError, match=r"^the input: the file cannot be read"):
        read_text(stream)
