"""Adds units to a TMX file in place, such as corrections that a server receives one by one.

A unit takes the place of the end of the file, which is written again behind it in the same call, so the file is well-formed at
any time. Processes that add to one file wait for each other.
"""

import fcntl
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from weft.errors import DataError
from weft.version import VERSION

HEADER = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n<header creationtool="weft" creationtoolversion="{version}" '
    'segtype="sentence" o-tmf="weft" adminlang="en" srclang={source} datatype="plaintext"/>\n<body>\n'
)
END = "</body>\n</tmx>\n"

TAIL = 4096
"""Bytes at the end of a file in which its body has to end."""

FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML does not allow."""


def append_unit(file: Path, texts: tuple[str, str], languages: tuple[str, str]) -> None:
    """Adds a unit with a source and its translation. Creates the file if there is none.

    Raises DataError if an existing file is no TMX in UTF-8.
    """
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    variants = "".join(
        f"<tuv xml:lang={quoteattr(language)}><seg>{escape(FORBIDDEN.sub('', text))}</seg></tuv>"
        for text, language in zip(texts, languages, strict=True)
    )
    unit = f'<tu creationdate="{now}">{variants}</tu>\n'.encode()
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if not size:
            header = HEADER.format(version=VERSION, source=quoteattr(languages[0]))
            os.pwrite(handle, header.encode() + unit + END.encode(), 0)
            return
        start = max(0, size - TAIL)
        tail = os.pread(handle, TAIL, start)
        place = tail.rfind(b"</body>")
        if place < 0:
            raise DataError(f"{file}: this is no TMX in UTF-8 that ends in </body></tmx>, so nothing can be added to it")
        os.pwrite(handle, unit + tail[place:], start + place)
    finally:
        os.close(handle)
