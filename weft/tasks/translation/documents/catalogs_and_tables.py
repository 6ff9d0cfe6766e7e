"""Files whose texts are the entries of a structure: gettext catalogs (.po) and tables (.csv)."""

import codecs
import csv
from collections.abc import Callable, Sequence
from io import BytesIO, StringIO

from weft.data.file_formats.gettext_catalog import SAMPLE, Message, Plurals, charset, decoded, quoted, read_messages
from weft.data.text_lines import decode_text
from weft.errors import DataError

Write = Callable[[Sequence[str]], bytes]
"""Makes the file with these texts in place of its own."""

DELIMITERS = ",;\t|"
BOM = "\ufeff"


def read_catalog(content: bytes, name: str) -> tuple[list[str], Write]:
    """The messages of a gettext catalog that have no translation or a fuzzy one. A plural form is a text of its own.

    Translations are marked as fuzzy, so that somebody reviews them. Everything else stays as it is, byte for byte.
    """
    encoding = charset(content.splitlines()[:SAMPLE])
    bom = content[: 3 * content.startswith(codecs.BOM_UTF8)]
    lines = decoded(BytesIO(content), encoding, name)
    messages = list(read_messages(lines, name))
    plurals = Plurals(messages[0].strings.get(0, "") if messages and messages[0].is_header else "")
    wanted = [message for message in messages if _is_wanted(message)]
    texts = [text for message in wanted for text in (message.id, message.plural) if text is not None]

    def write(answers: Sequence[str]) -> bytes:
        remaining = iter(answers)
        for message in wanted:
            one = next(remaining)
            _translate(message, one, None if message.plural is None else next(remaining), plurals)
        try:
            return bom + "".join(line for message in messages for line in message.lines).encode(encoding)
        except UnicodeEncodeError as error:
            letter = error.object[error.start]
            raise DataError(f"{name} is in {encoding}, which has no {letter!r}; convert it to UTF-8 with `msgconv`") from None

    return texts, write


def _is_wanted(message: Message) -> bool:
    if message.is_header or message.obsolete or not message.places:
        return False
    return not message.translated or "fuzzy" in message.flags


def _translate(message: Message, one: str, many: str | None, plurals: Plurals) -> None:
    """Writes a translation into the lines of a message, and marks it as fuzzy."""
    first, last = message.places
    end = "\r\n" if message.lines[first].endswith("\r\n") else "\n"
    if many is None:
        new = quoted("msgstr", one, end)
    else:
        forms = [one if form == plurals.one != plurals.many else many for form in range(plurals.count)]
        new = [line for form, text in enumerate(forms) for line in quoted(f"msgstr[{form}]", text, end)]
    if not message.lines[last - 1].endswith("\n"):
        new[-1] = new[-1].removesuffix(end)
    before = [line for line in message.lines[:first] if not line.startswith("#|")]
    flags = next((place for place, line in enumerate(before) if line.startswith("#,")), None)
    if flags is None:
        place = next(place for place, line in enumerate(before) if line.strip() and not line.startswith("#"))
        before.insert(place, f"#, fuzzy{end}")
    elif "fuzzy" not in message.flags:
        before[flags] = f"#, fuzzy,{before[flags][2:]}"
    message.lines = before + new + message.lines[last:]


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
