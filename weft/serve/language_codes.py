"""Codes of languages: which a request means, and which a run translates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from babel import Locale

from weft.config.sections import Config
from weft.errors import ConfigError

UNKNOWN = "und"
"""ISO 639 code for an undetermined language."""

ALIASES = {
    "zh": "zh-hans",
    "zh-cn": "zh-hans",
    "zh-sg": "zh-hans",
    "zh-tw": "zh-hant",
    "zh-hk": "zh-hant",
    "zt": "zh-hant",
    "zh-hans": "zh",
    "zh-hant": "zt",
    "no": "nb",
    "nb": "no",
    "iw": "he",
    "in": "id",
    "tl": "fil",
    "pb": "pt-br",
}
"""Other usual codes of languages."""


def known_code(code: str, known: Collection[str]) -> str | None:
    """The language among `known` that a code means: itself in any case, an alias, or the same language in another region."""
    codes = {each.lower().replace("_", "-"): each for each in sorted(known)}
    wanted = code.lower().replace("_", "-")
    for name in (wanted, ALIASES.get(wanted, wanted), wanted.partition("-")[0]):
        if name in codes:
            return codes[name]
    if "-" in wanted and not wanted.startswith("zh"):
        wanted = wanted.partition("-")[0]
    return next((each for name, each in codes.items() if name.partition("-")[0] == wanted), None)


def languages_of(config: Config, two: Sequence[str] = (), run: str = "the run") -> tuple[str, str]:
    """Returns the languages from the configuration, else from the data files' suffixes (train.en,train.de), else `und`.

    two: the languages between which the run translates in both directions. By default it translates into the second one.
    """
    data, known = config.data, set(Locale("en").languages)
    if two:
        target = data.target_language or config.decode.into or two[1]
        source = data.source_language or next(code for code in two if code != target)
        if target not in two or source == target:
            raise ConfigError(
                f"{run}: the run translates between {' and '.join(two)}, not from {source} to {target}; give {run} without "
                "languages to serve both directions"
            )
        return source, target
    pairs = set()
    for spec in data.files:
        suffixes = [Path(part.strip().removesuffix(".gz")).suffix.removeprefix(".") for part in spec.split(",")]
        pairs.add(tuple(suffixes) if len(suffixes) == 2 and set(suffixes) <= known else (UNKNOWN, UNKNOWN))
    guess = pairs.pop() if len(pairs) == 1 else (UNKNOWN, UNKNOWN)
    return data.source_language or guess[0], data.target_language or guess[1]
