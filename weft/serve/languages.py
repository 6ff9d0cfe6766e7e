"""Languages: codes in requests, the languages of a run, and detection, which needs no model and no download.

Detection scores a few candidates by character n-grams and frequent words. The n-gram counts of a language come from Babel's
locale data: names of languages, countries, months and units in that language. Frequent words are listed below; a language
without a list relies on its n-grams.
"""

from __future__ import annotations

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


WORDS = {
    "bg": "и на в за се да от е с по не че са като това",
    "ca": "de la i el que a en es per un una amb no els les del al",
    "cs": "a se v na je že o s z do to i za pro jsou by jako ve u ale k po si",
    "da": "og i at det en den til er som på de med han af for ikke der var et",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an er sie",
    "el": "και το να του η της με που την από για είναι ο οι στο",
    "en": "the of and to in is that for it was on are as with his they at be this from have or by one had not but a an",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más",
    "et": "ja on ei et see kui ta oli ma mis ka aga",
    "fi": "ja on ei että se hän oli mutta joka kun ovat myös niin",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se il",
    "hr": "i je u na se da za su od s a što kao koji iz",
    "hu": "a az és hogy nem is egy ez van volt de csak meg már",
    "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada saya",
    "it": "di e il la che in a per un è una con non del si da le i sono al",
    "lt": "ir kad į yra su ne iš tai kaip bet jo",
    "lv": "un ir ar no ka par uz bet tas kas tika",
    "nl": "de van een het en in is dat op te zijn voor met die niet aan er om ook als",
    "nb": "og i det er en på til som for at med de av ikke den har jeg var et",
    "pl": "i w na z się do nie to że jest o jak a po co tak za od dla",
    "pt": "de a o que e do da em um para com não uma os no se na por mais as dos é",
    "ro": "de și în a la cu pe nu o un că din este pentru mai care",
    "ru": "и в не на что с он по это как к но его из у за от так все она",
    "sk": "a v na sa je že s z do to o i pre ako sú by za",
    "sl": "in je v na se da za so ki z s pa ne tudi bi",
    "sv": "och i att det som en på är av för med till den har de inte om ett han var",
    "tr": "ve bir bu da için ile de ne çok gibi daha var ama o",
    "uk": "і в не на що з до як у це за та від він але є",
    "vi": "và của là có không được cho một trong người với các này",
}
WORD_BONUS = 2.5
"""Nats added to a language's score for each of its frequent words in the text."""

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

    A language is scored by the likelihood of the text's character n-grams and by its frequent words in the text.
    """
    words = NOT_LETTERS.split(text[:2000].lower())
    grams = [gram for word in words if word for gram in _grams(word)]
    scores = {}
    for code in codes:
        counts, total = _gram_counts(code)
        logp = sum(math.log((counts[gram] + 0.1) / (total + 2000)) for gram in grams)
        scores[code] = logp + WORD_BONUS * sum(word in _frequent_words(code) for word in words)
    best = max(scores.values())
    # Neighbouring n-grams overlap, so the sum of their log-probabilities is overconfident.
    weights = {code: math.exp((score - best) / 4) for code, score in scores.items()}
    total_weight = sum(weights.values())
    ranked = sorted(weights, key=lambda code: -weights[code])
    return [{"confidence": round(100 * weights[code] / total_weight, 1), "language": code} for code in ranked]


def _frequent_words(code: str) -> list[str]:
    return WORDS.get(code.split("-")[0].lower(), "").split()


@cache
def _gram_counts(code: str) -> tuple[Counter[str], int]:
    """Counts the character n-grams in the known words of a language; returns the counts and their sum."""
    locale, texts = _locale(code), _frequent_words(code) * 3
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
