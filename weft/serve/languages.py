"""Languages: codes in requests, the languages of a run, and detection, which needs no download.

Detection scores a few candidates by py3langid and by character n-grams. The n-grams of a language come from Babel's locale
data: names of languages, countries, months and units. They tell languages apart that py3langid does not know.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from babel import Locale, UnknownLocaleError

from weft.config.sections import Config
from weft.errors import ConfigError
from weft.file_access import plain_name

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
        suffixes = [Path(plain_name(part.strip())).suffix.removeprefix(".") for part in spec.split(",")]
        pairs.add(tuple(suffixes) if len(suffixes) == 2 and set(suffixes) <= known else (UNKNOWN, UNKNOWN))
    guess = pairs.pop() if len(pairs) == 1 else (UNKNOWN, UNKNOWN)
    return data.source_language or guess[0], data.target_language or guess[1]


NGRAM_WEIGHT = 0.2
"""Weight of the n-grams next to py3langid's scores, which know more text."""

UNKNOWN_PENALTY = 2.0
"""The distance of a language that py3langid does not know below the best one that it knows, before n-grams are counted.

Both were chosen on phrases of three words in 32 languages that py3langid knows and seven others; see docs/results.md."""

NOT_LETTERS = re.compile(r"[\W\d_]+")
ORDER = 4
LETTERS = 3000
"""Letters that words may contain; each is as likely as the others before any text was seen."""

LONGEST_SAMPLE = 1_000
"""Characters of a text that are looked at."""


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
    text = text[:LONGEST_SAMPLE]
    words = [word for word in NOT_LETTERS.split(text.lower()) if word]
    scores = _langid_scores(text, codes)
    for code in codes:
        scores[code] += NGRAM_WEIGHT * _log_likelihood(words, code)
    best = max(scores.values())
    # The scores of neighbouring n-grams depend on each other, so their sum is overconfident.
    weights = {code: math.exp((score - best) / 4) for code, score in scores.items()}
    total_weight = sum(weights.values())
    ranked = sorted(weights, key=lambda code: -weights[code])
    return [{"confidence": round(100 * weights[code] / total_weight, 1), "language": code} for code in ranked]


def _langid_scores(text: str, codes: Sequence[str]) -> dict[str, float]:
    """The log-probabilities of languages by py3langid.

    A text in a language that it does not know gets a high score in a related one. So unknown languages get the score of the
    best language that is known, less a penalty, and n-grams decide.
    """
    bases = {code: code.split("-")[0].lower() for code in codes}
    names = {code: ALIASES["nb"] if base == "nb" else base for code, base in bases.items()}
    ranked = dict(_identifier().rank(text))
    unknown = max(ranked.values()) - UNKNOWN_PENALTY
    return {code: ranked.get(name, unknown) for code, name in names.items()}


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # its model takes half a second to load

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _log_likelihood(words: Sequence[str], code: str) -> float:
    """The log-likelihood of words in a language: of each letter after those before it, mixed with shorter contexts.

    The weight of a context is that of Witten and Bell (1991).
    """
    counts, totals, kinds = _gram_counts(code)
    sum_ = 0.0
    for word in words:
        padded = f" {word} "
        for at in range(1, len(padded)):
            probability = 1 / LETTERS
            for order in range(min(ORDER, at + 1)):
                context = padded[at - order : at]
                total = totals.get(context)
                if total is None:
                    break
                seen = counts.get(context + padded[at], 0)
                probability = (seen + kinds[context] * probability) / (total + kinds[context])
            sum_ += math.log(probability)
    return sum_


@cache
def _gram_counts(code: str) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Counts the n-grams up to ORDER in Babel's names of a language. Returns how often each occurs, how often each context
    occurs, and how many different letters follow it.
    """
    locale, texts = _locale(code), list[str]()
    if locale is not None:
        for names in (locale.languages, locale.territories, locale.currencies):
            texts += map(str, names.values())
        for forms in (locale.months, locale.days):
            texts += [str(name) for width in forms.values() for name in width.get("wide", {}).values()]
        texts += [str(text) for patterns in locale.unit_display_names.values() for text in patterns.values()]
    padded = [f" {word} " for word in NOT_LETTERS.split(" ".join(texts).lower()) if word]
    # An n-gram ends with a letter, or with the space after a word.
    counts = Counter(
        word[end - size : end] for word in padded for end in range(2, len(word) + 1) for size in range(1, min(ORDER, end) + 1)
    )
    totals, kinds = Counter[str](), Counter[str]()
    for gram, count in counts.items():
        totals[gram[:-1]] += count
        kinds[gram[:-1]] += 1
    return counts, totals, kinds
