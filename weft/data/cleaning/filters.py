"""Filters of parallel data, in the order in which they are applied. Each has options of its own, which a YAML file may change.

    repairs:  {escapes: false}
    filters:  {length: {most: 100}, numbers: false}

A filter is a class with a docstring for reports, options with defaults, and `finds`. The defaults were chosen on data with
injected noise; see docs/results.md.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from weft.config.registry import Options
from weft.data.cleaning.duplicates import HashSet, bare, near_hash, pair_hash
from weft.data.cleaning.learnt_statistics import LearntStatistics
from weft.data.term_automata import is_unspaced
from weft.errors import ConfigError

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\u200b\u2060\ufeff]")
ESCAPED = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,6}|#x[0-9a-fA-F]{1,5});")
MOJIBAKE = re.compile(
    r"\ufffd|[\x80-\x9f]|Ã[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€[™œž“”\x9d¦¢]|Â[\xa0-\xbf]|Ð[\x80-\xbf°±²³´µ¶·¸¹º»]"
)
# Each pattern can begin and end a part at one place only, so that no text takes more than linear time.
PLACEHOLDER = re.compile(
    r"%(?:\([\w.]+\))?(?:\d+\$)?[-+#0]*(?:[1-9]\d*)?(?:\.\d+)?(?:hh|h|ll|l|z|j|t|L)?[diouxXeEfFgGcsSp@](?![A-Za-z])"
    r"|%\d+(?![\d%])|\{\{?[\w.:-]*\}\}?|\$\{?\w+\}?|@\w+@|</?[A-Za-z][^<>]*>"
)
URL = re.compile(r"(?:https?://|www\.)[^\s<>\"')\]]+|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?<=\w)")
NUMBER = re.compile(r"\d+(?:[.,:\u00a0\u202f]\d+)*")
WORD = re.compile(r"\S+")
SHORTEST = 15
"""Characters of a text whose n-grams say which side it belongs to."""


def repaired(text: str, repairs: "Repairs") -> str:
    """A text without what can be repaired."""
    if repairs.escapes and ESCAPED.search(text):
        text = unescape(unescape(text) if "&amp;" in text else text)
    if repairs.control:
        text = CONTROL.sub("", text)
    if repairs.unicode and not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split()) if repairs.whitespace else text


class Repairs(Options):
    """Changes to texts, before anything is looked for."""

    whitespace: bool = Field(default=True, description="one space for any white space between words, none around the text")
    escapes: bool = Field(default=False, description="&amp; and other entities of HTML become the characters they stand for")
    control: bool = Field(default=True, description="control characters and spaces of no width are removed")
    unicode: bool = Field(default=True, description="letters with accents have their composed form (NFC)")


@dataclass
class Candidate:
    """A pair that is looked at. Derived facts are computed once."""

    source: str
    target: str

    @property
    def texts(self) -> tuple[str, str]:
        return self.source, self.target

    @cached_property
    def word_counts(self) -> tuple[float, float]:
        return _words(self.source), _words(self.target)

    @cached_property
    def bare_texts(self) -> tuple[str, str]:
        return bare(self.source), bare(self.target)


def _words(text: str) -> float:
    """The number of words; two characters of a script without spaces count as one."""
    if text.isascii():
        return len(text.split())
    unspaced = sum(map(is_unspaced, text))
    return len(text.split()) + unspaced / 2 - (1 if unspaced > len(text) / 2 else 0)


class Filter(Options):
    """A filter: `finds` says whether a pair has this flaw."""

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        raise NotImplementedError


class Empty(Filter):
    """a side is empty"""

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        return not (pair.source.strip() and pair.target.strip())


class Damaged(Filter):
    """damaged characters, as text has that was read in a wrong encoding"""

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        return any(not text.isascii() and MOJIBAKE.search(text) is not None for text in pair.texts)


class Length(Filter):
    """too short or too long"""

    least: PositiveInt = Field(default=1, description="fewest words")
    most: PositiveInt = Field(default=150, description="most words")
    characters: PositiveInt = Field(default=2000, description="most characters")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        if max(map(len, pair.texts)) > self.characters:
            return True
        return min(pair.word_counts) < self.least or max(pair.word_counts) > self.most


class LongWord(Filter):
    """a word that is too long for one"""

    most: PositiveInt = Field(default=60, description="most characters of a word that is no URL and has no markup")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        if max(map(len, pair.texts)) <= self.most:
            return False
        return any(
            len(word) > self.most and "/" not in word and "<" not in word and not is_unspaced(word[0])
            for text in pair.texts
            for word in WORD.findall(text)
        )


class Letters(Filter):
    """few letters or few words"""

    letters: PositiveFloat = Field(default=0.5, description="least share of letters among characters that are no spaces")
    words: PositiveFloat = Field(default=0.4, description="least share of words with a letter")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        return any(map(self._few, pair.texts))

    def _few(self, text: str) -> bool:
        characters = [letter for letter in text if not letter.isspace()]
        letters = sum(letter.isalpha() or unicodedata.category(letter)[0] == "M" for letter in characters)
        words = text.split()
        return letters < self.letters * len(characters) or sum(map(_has_letter, words)) < self.words * len(words)


def _has_letter(word: str) -> bool:
    return any(map(str.isalpha, word))


class Ratio(Filter):
    """lengths that differ too much"""

    most: PositiveFloat = Field(
        default=2.5, description="largest ratio of lengths, after that of the language pair is divided out"
    )
    slack: NonNegativeInt = Field(
        default=15, description="characters added to both lengths, so that short texts may differ more"
    )

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        source, target = len(pair.source), len(pair.target)
        return abs(math.log((target + self.slack) / (source * math.exp(learnt.ratio) + self.slack))) > math.log(self.most)


class Identical(Filter):
    """both sides are the same"""

    letters: NonNegativeInt = Field(default=15, description="fewest letters; shorter texts may be names, which stay the same")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        one, other = pair.bare_texts
        return one == other and len(one) >= self.letters


class Numbers(Filter):
    """numbers that differ"""

    share: PositiveFloat = Field(default=0.5, description="least share of the numbers that both sides have")
    least: PositiveInt = Field(default=2, description="fewest numbers of the side with more")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        one, other = (Counter(re.sub(r"\D", "", found) for found in NUMBER.findall(text)) for text in pair.texts)
        more = max(one.total(), other.total())
        return more >= self.least and (one & other).total() < self.share * more


class Placeholders(Filter):
    """placeholders, markup or URLs that differ"""

    share: PositiveFloat = Field(default=0.5, description="least share of them that both sides have")
    least: PositiveInt = Field(default=1, description="fewest of the side with more")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        one, other = map(placeholders, pair.texts)
        more = max(one.total(), other.total())
        return more >= self.least and (one & other).total() < self.share * more


def placeholders(text: str) -> Counter[str]:
    """The placeholders, tags and URLs of a text. Tags count by their names."""
    if not any(sign in text for sign in "%{$@<:."):
        return Counter()
    found = [re.sub(r"^<(/?\w+).*", r"<\1>", each, flags=re.DOTALL) for each in PLACEHOLDER.findall(text)]
    return Counter([*found, *(url.rstrip(".,;:") for url in URL.findall(text))])


class Swapped(Filter):
    """source and target are exchanged"""

    margin: PositiveFloat = Field(default=0.4, description="least evidence for it on each side, as in wrong_language")

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        score = learnt.sides.score
        return min(map(len, pair.texts)) >= SHORTEST and score(pair.source) < -self.margin and score(pair.target) > self.margin


class WrongLanguage(Filter):
    """a side in another language"""

    margin: PositiveFloat = Field(default=10.0, description="least evidence for another language, a logarithm")
    other_side: PositiveFloat = Field(
        default=0.6, description="least evidence for the language of the other side, a mean over n-grams of characters"
    )

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        for sign, text, language in zip((1, -1), pair.texts, learnt.languages, strict=True):
            if len(text) >= SHORTEST and -sign * learnt.sides.score(text) > self.other_side:
                return True
            if language.margin(text) > self.margin:
                return True
        return False


class Misaligned(Filter):
    """texts that do not translate each other, by their words"""

    margin: float = Field(
        default=2.0, description="least logarithm of how much likelier it is than not; a larger one keeps more"
    )

    def finds(self, pair: Candidate, learnt: LearntStatistics) -> bool:
        return learnt.lexicon.score(*pair.texts) + learnt.lexicon.prior < -self.margin


FILTERS: dict[str, type[Filter]] = {
    "empty": Empty,
    "damaged": Damaged,
    "length": Length,
    "long_word": LongWord,
    "letters": Letters,
    "ratio": Ratio,
    "identical": Identical,
    "numbers": Numbers,
    "placeholders": Placeholders,
    "swapped": Swapped,
    "wrong_language": WrongLanguage,
    "misaligned": Misaligned,
}
"""Filters of single pairs, in their order."""

OTHERS = {
    "test_sentence": "a sentence of the test data",
    "cross_entropy": "two models find the pair unlikely",
    "duplicate": "the pair occurred before",
    "near_duplicate": "a pair that differs only in case, numbers or punctuation occurred before",
}
"""Filters that look at more than a pair, which come last."""

NAMES = {name: str(each.__doc__) for name, each in FILTERS.items()} | OTHERS


class Choices:
    """The repairs and filters that are on, with their options.

    given: a mapping with `repairs` and `filters`; a filter is `false`, `true` or a mapping with its options.
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        given = given or {}
        if unknown := sorted(set(given) - {"repairs", "filters"}):
            raise ConfigError(f"choices of filters have no {unknown[0]!r}, only repairs and filters")
        self.repairs: Repairs = _options(Repairs, given.get("repairs"), "repairs")
        chosen = given.get("filters") or {}
        if not isinstance(chosen, Mapping):
            raise ConfigError("filters: expected a mapping from filters to true, false or their options")
        if unknown := sorted(set(chosen) - set(NAMES)):
            raise ConfigError(f"there is no filter {unknown[0]!r}; the filters are {', '.join(NAMES)}")
        self.filters = {
            name: _options(kind, wish, f"filters.{name}")
            for name, kind in FILTERS.items()
            if (wish := chosen.get(name, True)) is not False
        }
        self.others = [name for name in OTHERS if chosen.get(name, True) is not False]

    def document(self) -> dict[str, Any]:
        """All choices, as a mapping that makes the same."""
        filters = {name: self.filters[name].model_dump() or True if name in self.filters else False for name in FILTERS}
        return {"repairs": self.repairs.model_dump(), "filters": filters | {name: name in self.others for name in OTHERS}}


def _options(kind: type[Any], given: Any, where: str) -> Any:
    if given is None or given is True:
        return kind()
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: expected true, false or a mapping of options, not {given!r}")
    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(kind.model_fields)
        raise ConfigError(f"{where}.{name}: {first['msg'].lower()}; its options are {known}") from None


class PairChecker:
    """Applies filters to one pair after the other. `flaw` is the first that a pair has, `flaws` are all of them."""

    def __init__(self, choices: Choices, learnt: LearntStatistics, test: frozenset[str] = frozenset()) -> None:
        self.choices, self.learnt, self.test = choices, learnt, test
        self._seen, self._near = HashSet(), HashSet()

    def repaired(self, source: str, target: str) -> Candidate:
        return Candidate(repaired(source, self.choices.repairs), repaired(target, self.choices.repairs))

    def flaw(self, pair: Candidate, unlikely: bool = False) -> str | None:
        """The name of the first filter that finds a pair; None if it is clean. unlikely: whether models say so."""
        for name, each in self.choices.filters.items():
            if each.finds(pair, self.learnt):
                return name
        return self._other_flaw(pair, unlikely)

    def flaws(self, pair: Candidate) -> list[str]:
        """The names of all filters that find a pair. Nothing else is looked for in one with an empty side."""
        if not (pair.source.strip() and pair.target.strip()):
            return ["empty"]
        found = [name for name, each in self.choices.filters.items() if each.finds(pair, self.learnt)]
        other = self._other_flaw(pair, False)
        return [*found, *([other] if other else [])]

    def _other_flaw(self, pair: Candidate, unlikely: bool) -> str | None:
        others = self.choices.others
        if self.test and "test_sentence" in others and not self.test.isdisjoint(map(normal, pair.texts)):
            return "test_sentence"
        if unlikely and "cross_entropy" in others:
            return "cross_entropy"
        return self.remember(pair)

    def remember(self, pair: Candidate) -> str | None:
        """Remembers a pair. Returns the name of the filter that finds it a duplicate."""
        others = self.choices.others
        if "duplicate" in others and not self._seen.add(pair_hash(*pair.texts)):
            return "duplicate"
        if "near_duplicate" in others and not self._near.add(near_hash(*pair.texts)):
            return "near_duplicate"
        return None


def normal(text: str) -> str:
    """The form in which equal sentences are equal."""
    return " ".join(text.casefold().split())
