"""Archives of OPUS in the Moses format: a .zip with two text files, aligned line by line, whose names end in languages."""

import zipfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import PurePath

from weft.data.compression_and_encodings import ZIP_ERRORS
from weft.data.formats import Pairs, combine
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.errors import DataError

OTHERS = {"", "xml", "ids", "txt", "scores", "md", "info", "html", "tmx", "gz"}
"""Ends of names inside an archive that are no languages."""


class ArchivePairs(Pairs):
    """The lines of the two files of an archive whose names end in the languages after `#`."""

    def __init__(self, name: str, path: str, languages: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = [part for part in archive.namelist() if not part.endswith("/")]
        except ZIP_ERRORS as error:
            raise DataError(f"{self.path}: the .zip file cannot be read: {error}") from None
        texts: dict[str, str] = {}
        for part in sorted(names):
            language = PurePath(part).suffix[1:]
            if language.lower() not in OTHERS and texts.setdefault(language, part) != part and language in (languages or ()):
                raise DataError(
                    f"{self.path}: both {texts[language]} and {part} end in .{language}; unpack the files and name them."
                )
        found = ", ".join(sorted(texts)) or "none"
        if languages is None:
            one, other = (sorted(texts) * 2)[:2] if texts else ("en", "de")
            raise DataError(f"{self.path}: choose source and target, as in {self.path}#{one},{other}; texts: {found}.")
        if missing := [language for language in languages if language not in texts]:
            raise DataError(f"{self.path}: no file in it ends in .{missing[0]}; texts: {found}.")
        self.parts = [texts[language] for language in languages]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        empty = True
        try:
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(self.parts[0]) as one,
                archive.open(self.parts[1]) as other,
            ):
                names = [f"{self.path}/{part}" for part in self.parts]
                lines = (read_lines(file, name) for file, name in zip((one, other), names, strict=True))
                for number, (source, target) in enumerate(zip_longest(*lines), start=1):
                    if source is None or target is None:
                        shorter = names[source is not None]
                        raise DataError(f"{shorter} ends after {number - 1:,} lines, before the other one.")
                    empty = False
                    yield source, target
        except ZIP_ERRORS as error:
            raise DataError(f"{self.path}: the .zip file cannot be read: {error}") from None
        if empty:
            raise DataError(f"{self.path}: its texts are empty.")

    def digest(self) -> str:
        return combine("zip", *self.parts, file_digest(self.path))
