"""gettext catalogs (PO, POT): their messages one after the other, as pairs or to be translated in place.

A message keeps its lines, so that a catalog can be written with new translations and everything else as it was.
"""

import gettext
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import IO

from weft.data.compression_and_encodings import READ_ERRORS
from weft.data.file_formats.xliff_pairs import exchanged
from weft.data.formats import Pairs, combine
from weft.data.text_lines import LONGEST, check_file, file_digest, open_file
from weft.errors import DataError

CHARSET = re.compile(rb"charset=([\w.:-]+)", re.IGNORECASE)
PLURALS = re.compile(r"Plural-Forms:\s*nplurals\s*=\s*(\d{1,4})\s*;\s*plural\s*=\s*([^;\n]+)")
BEGINS = re.compile(r"(?:msgctxt|msgid)(?!\w)")
PART = re.compile(r'\s*(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d{1,4})\])?)\s*)?"((?:[^"\\]|\\.)*)"\s*')
ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
SAMPLE = 200
"""Lines of a catalog whose header may name its encoding."""

MANY = 100
"""The number whose plural form translates the plural of a source: the general one in the languages of gettext."""

FORMS = 16
"""Most plural forms of a language; Arabic has six."""


@dataclass
class Message:
    """A message of a catalog.

    texts: the parts by keyword, such as msgid and msgid_plural · strings: its translations by the number of the form ·
    lines: all its lines, with comments · first: the number of the first one · places: [from, to) of its translations in lines
    """

    first: int
    lines: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    obsolete: bool = False

    @property
    def id(self) -> str:
        return self.texts.get("msgid", "")

    @property
    def plural(self) -> str | None:
        return self.texts.get("msgid_plural")

    @property
    def flags(self) -> set[str]:
        return {flag.strip() for line in self.lines if line.startswith("#,") for flag in line[2:].split(",")}

    @property
    def is_header(self) -> bool:
        return not self.id and "msgctxt" not in self.texts

    @property
    def translated(self) -> bool:
        return any(text.strip() for text in self.strings.values())


class Plurals:
    """The plural forms of a catalog, as its header defines them; those of English if it has none."""

    def __init__(self, header: str = "") -> None:
        match = PLURALS.search(header)
        self.count = min(FORMS, int(match[1])) if match else 2
        try:
            self._form: Callable[[int], int] = gettext.c2py(match[2].strip()) if match else (lambda number: int(number != 1))
            self._form(1), self._form(MANY)
        except (ValueError, ZeroDivisionError, RecursionError, OverflowError):
            self._form = lambda number: int(number != 1)

    @property
    def one(self) -> int:
        """The form of the number 1, or of all numbers."""
        return min(self.count - 1, self._form(1))

    @property
    def many(self) -> int:
        return min(self.count - 1, self._form(MANY))


def read_messages(lines: Iterable[str], name: str) -> Iterator[Message]:
    """The messages of a catalog, the header first. Errors call it `name`."""
    message, key, index = Message(1), "", 0
    for number, line in enumerate(lines, start=1):
        content = line.strip()
        if content.startswith("#~"):
            content = content.removeprefix("#~").strip()
            obsolete = not content.startswith("|")
        else:
            obsolete = False
        begins = BEGINS.match(content) is not None
        if message.strings and (begins or content.startswith("#") or not content):
            yield message
            message, key = Message(number), ""
        elif begins and "msgid" in message.texts:
            raise DataError(f"{name}, line {number:,}: the message before has no msgstr")
        message.lines.append(line)
        message.obsolete = message.obsolete or obsolete
        if not content or content.startswith(("#", "|")):
            continue
        part = PART.fullmatch(content)
        if part is None or not (part[1] or key):
            raise DataError(f"{name} is not a gettext catalog that can be read: line {number:,} is {content[:60]!r}")
        if part[1]:
            key = "msgstr" if part[1].startswith("msgstr") else part[1]
            index = int(part[2] or 0)
            if key == "msgstr" and (index >= FORMS or not message.texts):
                raise DataError(f"{name}, line {number:,}: a msgstr without a msgid, or the number of no plural form")
        text = unescaped(part[3])
        if key == "msgstr":
            message.strings[index] = message.strings.get(index, "") + text
            place = len(message.lines) - 1
            message.places = [message.places[0] if message.places else place, place + 1]
        else:
            message.texts[key] = message.texts.get(key, "") + text
    if message.texts and not message.strings:
        raise DataError(f"{name} is not a gettext catalog that can be read: its last message has no msgstr")
    if message.lines:
        yield message


def unescaped(text: str) -> str:
    """The text that a string of a catalog stands for."""

    def letter(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0] in "01234567" else LETTERS.get(code, code)

    return ESCAPE.sub(letter, text) if "\\" in text else text


def quoted(keyword: str, text: str, end: str) -> list[str]:
    """The lines of a string in a catalog, as gettext writes them: one, or one for each line of the text."""
    parts = [
        '"' + "".join({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(each, each) for each in part) + '"'
        for part in text.splitlines(keepends=True) or [""]
    ]
    if len(parts) == 1:
        return [f"{keyword} {parts[0]}{end}"]
    return [f'{keyword} ""{end}', *(f"{part}{end}" for part in parts)]


def charset(start: Iterable[bytes]) -> str:
    """The encoding that the header of a catalog names, given its first lines."""
    for line in start:
        if found := CHARSET.search(line):
            name = found[1].decode("ascii")
            return "utf-8" if name.upper() == "CHARSET" else name
    return "utf-8"


def decoded(lines: Iterable[bytes], encoding: str, name: str) -> Iterator[str]:
    """The lines of a catalog as text. Raises DataError with the number of a line that is not in this encoding."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").decode(encoding)
        except LookupError:
            raise DataError(f"{name}: its header names the encoding {encoding}, which is unknown; correct it") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number:,}: not valid {encoding}, which its header names: {error.reason}") from None


def catalog_messages(path: str) -> Iterator[Message]:
    """The messages of a file, the header first."""
    with open_file(path) as file:
        lines = _bounded(file, path)
        start = list(islice(lines, SAMPLE))
        yield from read_messages(decoded(chain(start, lines), charset(start), path), path)


def _bounded(file: IO[bytes], path: str) -> Iterator[bytes]:
    """The lines of a file, which may be a small compressed one with a line that fills the memory."""
    try:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise DataError(f"{path}, line {number:,}: the line has more than {LONGEST:,} characters.")
            yield line
    except READ_ERRORS as error:
        raise DataError(f"{path}: the file cannot be read: {error}. It seems to be damaged or cut short.") from None


class CatalogPairs(Pairs):
    """The translated messages of a catalog. Of plural forms, those of 1 and of 100 become pairs.

    Fuzzy, obsolete and untranslated messages are left out. `#target,source` exchanges the sides.
    """

    def __init__(self, name: str, path: str, sides: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.exchanged = exchanged(name, sides)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        empty, plurals = True, Plurals()
        for message in catalog_messages(self.path):
            if message.is_header:
                plurals = Plurals(message.strings.get(0, ""))
                continue
            if reason := _why_left_out(message):
                self.left_out[reason] += 1
                continue
            for source, target in self._pairs(message, plurals):
                empty = False
                yield (target, source) if self.exchanged else (source, target)
        if empty:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items()) or "it has none"
            raise DataError(f"{self.path}: no message is translated: {reasons}.")

    def _pairs(self, message: Message, plurals: Plurals) -> Iterator[tuple[str, str]]:
        if message.plural is None:
            yield message.id, message.strings[0]
            return
        wanted = [(message.plural, plurals.many)]
        if plurals.one != plurals.many:
            wanted.insert(0, (message.id, plurals.one))
        if len(message.strings) > len(wanted):
            self.left_out["further plural forms"] += len(message.strings) - len(wanted)
        for source, form in wanted:
            if message.strings.get(form, "").strip():
                yield source, message.strings[form]

    def sources(self) -> Iterator[str]:
        for message in catalog_messages(self.path):
            if not message.is_header and not message.obsolete:
                yield message.id
                if message.plural is not None:
                    yield message.plural

    def digest(self) -> str:
        return combine("po", str(self.exchanged), file_digest(self.path))


def _why_left_out(message: Message) -> str | None:
    if message.obsolete:
        return "obsolete"
    if not message.translated:
        return "without a translation"
    return "fuzzy" if "fuzzy" in message.flags else None
