"""Languages: codes in requests, the languages of a run, and detection, which needs no download.

Detection scores a few candidates by py3langid and by character n-grams. The n-gram counts of a language come from Babel's
locale data: names of languages, countries, months and units. They tell languages apart that py3langid does not know.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from babel import Locale, UnknownLocaleError

from weft.config.sections import Config
from weft.errors import ConfigError

UNKNOWN = "und"
"""ISO 639 code for an undetermined language."""

ALIASES = {
    **dict.fromkeys(("zh", "zh-cn", "zh-sg"), "zh-hans"),
    **dict.fromkeys(("zh-tw", "zh-hk", "zt"), "zh-hant"),
    **{"zh-hans": "zh", "zh-hant": "zt", "no": "nb", "nb": "no", "iw": "he", "in": "id", "tl": "fil", "pb": "pt-br"},
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


NGRAM_WEIGHT = 0.3
"""Weight of the n-grams next to py3langid's scores, which know more text; chosen on software strings and captions."""

NOT_LETTERS = re.compile(r"[\W\d_]+")
ORDER = 3


@cache
def language_name(code: str) -> str:
    """Returns the English name of a language, or its code if the name is unknown."""
    locale = _locale(code)
    return (locale and locale.get_display_name("en")) or Locale("en").languages.get(code) or code


@cache
def _locale(code: str) -> Locale | None:
    try:
        locale = Locale.parse(code.replace("-", "_"))
        # For an unknown code Babel guesses the likeliest locale. A guess would be wrong here.
        return locale if locale.language == re.split("[-_]", code)[0].lower() else None
    except (ValueError, UnknownLocaleError):
        return None


def detect_language(text: str, codes: Sequence[str]) -> list[dict[str, Any]]:
    """Ranks all of `codes`, the likeliest first, each with a confidence in percent.

    A language is scored by py3langid and by the likelihood of the text's character n-grams.
    """
    text = text[:2000]
    grams = [gram for word in NOT_LETTERS.split(text.lower()) if word for gram in _grams(word)]
    scores = _langid_scores(text, codes)
    for code in codes:
        counts, total = _gram_counts(code)
        scores[code] += NGRAM_WEIGHT * sum(math.log((counts[gram] + 0.1) / (total + 2000)) for gram in grams)
    best = max(scores.values())
    # Neighbouring n-grams overlap, so the sum of their log-probabilities is overconfident.
    weights = {code: math.exp((score - best) / 4) for code, score in scores.items()}
    total_weight = sum(weights.values())
    ranked = sorted(weights, key=lambda code: -weights[code])
    return [{"confidence": round(100 * weights[code] / total_weight, 1), "language": code} for code in ranked]


def _langid_scores(text: str, codes: Sequence[str]) -> dict[str, float]:
    """The log-probabilities of languages by py3langid. One that it does not know gets the best of those not in `codes`."""
    bases = {code: code.split("-")[0].lower() for code in codes}
    names = {code: ALIASES["nb"] if base == "nb" else base for code, base in bases.items()}
    ranked = dict(_identifier().rank(text))
    others = [score for name, score in ranked.items() if name not in names.values()]
    return {code: ranked.get(name, max(others)) for code, name in names.items()}


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # its model takes half a second to load

    return LanguageIdentifier.from_model_file(MODEL_FILE)


@cache
def _gram_counts(code: str) -> tuple[Counter[str], int]:
    """Counts the character n-grams in Babel's names of a language; returns the counts and their sum."""
    locale, texts = _locale(code), list[str]()
    if locale is not None:
        for names in (locale.languages, locale.territories, locale.currencies):
            texts += map(str, names.values())
        for forms in (locale.months, locale.days):
            texts += [str(name) for width in forms.values() for name in width.get("wide", {}).values()]
        texts += [str(text) for patterns in locale.unit_display_names.values() for text in patterns.values()]
    words = NOT_LETTERS.split(" ".join(texts).lower())
    counts = Counter(gram for word in words if word for gram in _grams(word))
    return counts, sum(counts.values())


def _grams(word: str) -> Iterator[str]:
    """Yields the character n-grams of a word, with a space on either side of it."""
    padded = f" {word} "
    return (padded[start : start + ORDER] for start in range(len(padded) - ORDER + 1))
