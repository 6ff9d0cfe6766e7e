"""Writes weft/data/language_names.json from Babel's data: names of languages, which weft needs without Babel.

    python deploy/language_names.py

English has names for all languages. The other ones have names for each other, for headings of columns such as Englisch.
"""

from __future__ import annotations

import json
from pathlib import Path

import babel
from babel import Locale

from weft.data.column_checks_and_listed_files import OTHER_HEADINGS
from weft.data.language_names import FILE

SOURCE = f"Unicode CLDR, as in Babel {babel.__version__}; Unicode License V3"


def names() -> dict[str, dict[str, str]]:
    """By language, the names of languages by code."""
    found = {"en": {str(code): str(name) for code, name in sorted(Locale("en").languages.items())}}
    for language in OTHER_HEADINGS:
        own = Locale(language).languages
        found[language] = {code: str(own[code]) for code in ("en", *OTHER_HEADINGS) if code in own}
    return found


if __name__ == "__main__":
    text = json.dumps({"source": SOURCE, "names": names()}, ensure_ascii=False, indent=0)
    Path(FILE).write_text(text + "\n", "utf-8")
