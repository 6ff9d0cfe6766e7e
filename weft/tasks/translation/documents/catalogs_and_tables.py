"""Files whose texts are the entries of a structure: gettext catalogs (.po) and tables (.csv)."""

import csv
import re
from collections.abc import Callable, Sequence
from io import BytesIO, StringIO

from weft.data.text_lines import decode_text
from weft.errors import DataError

Write = Callable[[Sequence[str]], bytes]
"""Makes the file with these texts in place of its own."""

HEADER = re.compile(rb'^msgid\s+""\s*\nmsgstr', re.MULTILINE)
"""The beginning of the header of a catalog, which Babel would add if there is none."""

DELIMITERS = ",;\t|"
BOM = "\ufeff"


def read_catalog(content: bytes, name: str) -> tuple[list[str], Write]:
    """The messages of a gettext catalog that have no translation. A plural form is a text of its own."""
    from babel.messages.pofile import PoFileError, read_po, write_po  # takes time to import, and few need it

    try:
        catalog = read_po(BytesIO(content), abort_invalid=True)
    except (PoFileError, ValueError, LookupError) as error:
        raise DataError(f"{name} is not a gettext catalog that can be read: {error}") from None
    untranslated = [message for message in catalog if message.id and not any(message.string or ())]
    forms = [[message.id] if isinstance(message.id, str) else list(message.id) for message in untranslated]

    def write(texts: Sequence[str]) -> bytes:
        remaining, plurals = iter(texts), catalog.num_plurals
        for message, ids in zip(untranslated, forms, strict=True):
            found = [next(remaining) for _ in ids]
            message.string = found[0] if isinstance(message.id, str) else (found + found[-1:] * plurals)[:plurals]
        out = BytesIO()
        write_po(out, catalog, omit_header=HEADER.search(content) is None)
        return out.getvalue()

    return [text for ids in forms for text in ids], write


def read_table(content: bytes, name: str) -> tuple[list[str], Write]:
    """The cells of a table, which is separated by the character of `DELIMITERS` that its first line has most often."""
    text = decode_text(content, name)
    bom, text = (BOM, text.removeprefix(BOM)) if text.startswith(BOM) else ("", text)
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    end = "\r\n" if first.endswith("\r") else "\n"
    try:
        rows = list(csv.reader(StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise DataError(f"{name} is not a table that can be read: {error}") from None

    def write(texts: Sequence[str]) -> bytes:
        remaining, out = iter(texts), StringIO(newline="")
        writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
        writer.writerows([next(remaining) for _ in row] for row in rows)
        return (bom + out.getvalue()).encode()

    return [cell for row in rows for cell in row], write
