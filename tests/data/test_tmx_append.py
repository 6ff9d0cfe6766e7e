"""Units added to a TMX in place: the file is well-formed at any time, whoever made it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from weft.data.file_formats.tmx_append import append_unit
from weft.data.formats import open_pairs
from weft.errors import DataError


def test_a_new_file_grows(tmp_path: Path) -> None:
    file = tmp_path / "new.tmx"
    pairs = [("a < b & c", 'ä > "b"'), ("tab\x00 or not", "ja\x0b"), ("  kept  ", "x")]
    for count, pair in enumerate(pairs, start=1):
        append_unit(file, pair, ("en", "de-AT"))
        assert len(ElementTree.parse(file).findall(".//tu")) == count
    assert list(open_pairs(f"{file}#en,de")) == [pairs[0], ("tab or not", "ja"), pairs[2]]
    header = ElementTree.parse(file).find("header")
    assert header is not None and header.attrib["srclang"] == "en"


def test_a_file_of_another_program_keeps_its_end(tmp_path: Path) -> None:
    file, end = tmp_path / "old.tmx", "</body>\n  <!-- end -->\n</tmx>"
    head = '<tmx version="1.4"><header srclang="en"/><body>' + "<!-- " + "x" * 6000 + " -->"
    file.write_text(head + end, encoding="utf-8")
    append_unit(file, ("a", "b"), ("en", "de"))
    text = file.read_text(encoding="utf-8")
    assert text.startswith(head) and text.endswith(end) and list(open_pairs(f"{file}#en,de")) == [("a", "b")]


def test_other_files_are_refused_and_stay(tmp_path: Path) -> None:
    for number, content in enumerate((b"nothing", '<tmx version="1.4"><body></body></tmx>'.encode("utf-16"))):
        file = tmp_path / f"{number}.tmx"
        file.write_bytes(content)
        with pytest.raises(DataError, match="no TMX in UTF-8"):
            append_unit(file, ("a", "b"), ("en", "de"))
        assert file.read_bytes() == content


def test_many_writers(tmp_path: Path) -> None:
    file = tmp_path / "many.tmx"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append_unit(file, (str(number), str(-number)), ("en", "de")), range(100)))
    assert sorted(open_pairs(f"{file}#en,de")) == sorted((str(number), str(-number)) for number in range(100))
