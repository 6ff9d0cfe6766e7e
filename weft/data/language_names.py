"""Names of languages: in English for every language, and in a few languages for each other."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
"""Made from Babel's data by deploy/language_names.py, so that weft needs no Babel for it."""


@cache
def language_names(language: str = "en") -> Mapping[str, str]:
    """Names of languages in a language, by code, such as de or pt_BR. Empty for a language that the file does not have."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text("utf-8"))["names"]
    return found.get(language, {})
