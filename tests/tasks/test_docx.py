"""Word documents keep their formatting, links, images and tables."""

from __future__ import annotations

from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from weft.errors import DataError
from weft.tasks.translation.documents import open_file
from weft.tasks.translation.documents.docx import WordDocument
from weft.tasks.translation.segmenter import Translation

docx = pytest.importorskip("docx")


def written(document: object) -> bytes:
    out = BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def sample() -> bytes:
    document = docx.Document()
    document.add_heading("One title", 1)
    paragraph = document.add_paragraph("A ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" wo")
    paragraph.add_run("rd\tand a tab < 3\nline")
    document.add_table(1, 1).cell(0, 0).text = "In a cell"
    document.sections[0].header.paragraphs[0].text = "At the top"
    document.add_paragraph("")
    return written(document)


def test_paragraphs_become_html_and_are_written_back_with_their_formatting() -> None:
    opened = open_file(sample(), ".docx")
    texts = [segment.text for segment in opened.document.segments]
    assert texts == ["One title", "A bold word", "and a tab < 3", "line", "In a cell", "At the top"]
    answers = [Translation(text.upper(), 0.0) for text in texts]
    answers[1].runs = [("<r1>", True), ("FETT", False), ("</r1>", True), (" EIN WORT", False)]
    found = docx.Document(BytesIO(opened.filled(answers)))
    assert [each.text for each in found.paragraphs] == ["ONE TITLE", "FETT EIN WORT\tAND A TAB < 3\nLINE", ""]
    assert next((run.text, run.bold) for run in found.paragraphs[1].runs) == ("FETT", True)
    assert not any(run.bold for run in found.paragraphs[1].runs[1:])
    assert found.paragraphs[0].style.name == "Heading 1"
    assert found.tables[0].cell(0, 0).text == "IN A CELL" and found.sections[0].header.paragraphs[0].text == "AT THE TOP"


def test_pages_that_unpack_to_much_are_refused() -> None:
    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", b" " * (33 << 20))
    with pytest.raises(DataError, match="unpacked"):
        WordDocument(out.getvalue())
    with pytest.raises(DataError, match="not a Word document"):
        WordDocument(b"PK")
