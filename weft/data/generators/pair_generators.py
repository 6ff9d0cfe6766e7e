"""Generated data for demonstrations and tests, which needs no files and no licence.

    dates     "Dienstag, 3. März 2026" → "2026-03-03", in forty languages with several formats each
    copy      "k d q" → "k d q"        reverse  "k d q" → "q d k"        sort  "k d q" → "d k q"
    addition  "417+85" → "502"
    listops, recall, distant_copy, verdict: see `weft.data.generators.long_range`
    bits_copy, bits_repeat, bits_recall: see `weft.data.generators.bit_sequences`
    babi      "Mary went to the kitchen.⇥Where is Mary?" → "kitchen": see `weft.data.generators.babi`

Pair i depends only on the kind, the seed and i. A hash of the subject of a pair (the day, the letters, the numbers) decides
whether the pair belongs to train, valid or test, so that these never share a subject, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import date, timedelta
from functools import cache, partial
from random import Random
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

from weft.config.registry import suggest
from weft.data.generators.babi import draw_story
from weft.data.generators.bit_sequences import bits_copy, bits_recall, bits_repeat
from weft.data.generators.long_range import distant_copy, listops, recall, verdict
from weft.errors import DataError

Split = Literal["train", "valid", "test"]
Arrange = Callable[[list[str]], Iterable[str]]

# fmt: off
LANGUAGES = [
    "ar", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hu", "hy", "id", "is",
    "it", "ja", "ka", "ko", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sv", "sw", "th", "tr", "uk", "vi", "zh",
]
# fmt: on
"""Croatian is missing: its name for October is almost that of November in Polish and Czech."""

DIGITS = {"ar": "٠١٢٣٤٥٦٧٨٩", "bn": "০১২৩৪৫৬৭৮৯", "fa": "۰۱۲۳۴۵۶۷۸۹", "hi": "०१२३४५६७८९", "th": "๐๑๒๓๔๕๖๗๘๙"}
"""Native digits, which a language uses in half of its dates instead of the European ones."""

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)

ATTEMPTS = 1000


@dataclass(frozen=True)
class PairGenerator:
    """`count` pairs of the given kind, the same on every iteration.

    longest   maximum number of symbols (copy, reverse, sort; default 10), of digits (addition; default 4), of source
              tokens (listops, recall, distant_copy), or of sentences (verdict; default 8); ignored for dates
    shortest  minimum number of symbols (default 1) or of source tokens (default: a quarter of the maximum); ignored for
              dates and addition
    task      number of the task, from 1 to 20 (babi only)
    """

    kind: str
    count: int = 10_000
    seed: int = 1
    split: Split = "train"
    longest: int = 0
    shortest: int = 0
    task: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "babi"):
            raise DataError(f"generated:{self.kind}: there is no such generator; {suggest(self.kind, (*KINDS, 'babi'))}.")
        if self.split not in get_args(Split):
            raise DataError(f"generated:{self.kind}: there is no split {self.split!r}; {suggest(self.split, get_args(Split))}.")
        if self.count < 1 or self.longest < 0 or self.shortest < 0:
            raise DataError(f"generated:{self.kind}: count must be at least 1, longest and shortest at least 0.")
        if (self.task > 0) != (self.kind == "babi"):
            raise DataError(f"generated:{self.kind}: `task` is the number of a task of babi, as in generated:babi?task=1.")
        if self.shortest > self.longest:
            raise DataError(f"generated:{self.kind}: longest must be at least shortest={self.shortest}.")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (self.pair(index) for index in range(self.count))

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> tuple[str, str]:
        """Pair number `index`, drawn repeatedly until its subject belongs to this split."""
        kind = f"{self.kind}{self.task or ''}"
        random = Random(int.from_bytes(_hash(f"{kind} {self.seed} {index}")[:8], "little"))
        for _ in range(ATTEMPTS):
            if self.task:
                subject, source, target = draw_story(random, self.task)
            else:
                subject, source, target = KINDS[self.kind](random, self.shortest, self.longest)
            if split_of(f"{kind} {subject}") == self.split:
                return source, target
        raise DataError(f"generated:{self.kind}: no pair found for {self.split!r}; increase `longest`.")

    def digest(self) -> str:
        """A hash of everything that the pairs depend on: the options and, for dates, the version of the calendar data."""
        import babel

        return _hash(repr((asdict(self), babel.__version__, LANGUAGES))).hex()


def parse_generator(spec: str) -> PairGenerator:
    """Parses a generator such as "dates?count=20000&seed=1"."""
    kind, _, query = spec.partition("?")
    known = {field.name: field for field in fields(PairGenerator) if field.name != "kind"}
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise DataError(f"generated:{spec}: there is no option {name!r}; {suggest(name, known)}.")
        if name != "split" and not value.isdecimal():
            raise DataError(f"generated:{spec}: {name} must be an integer, not {value!r}.")
        options[name] = value if name == "split" else int(value)
    return PairGenerator(kind, **options)


def split_of(subject: str) -> Split:
    """The split of a subject: one in ten is for validation, one in ten for testing."""
    tenth = _hash(subject)[0] % 10
    return "test" if tenth == 0 else "valid" if tenth == 1 else "train"


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _date(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    day = FIRST_DAY + timedelta(days=random.randrange((LAST_DAY - FIRST_DAY).days + 1))
    language = random.choice(LANGUAGES)
    text = write_date(day, language, random.choice(patterns(language)))
    if language in DIGITS and random.random() < 0.5:
        text = text.translate(str.maketrans(string.digits, DIGITS[language]))
    return day.isoformat(), text, day.isoformat()


def write_date(day: date, language: str, pattern: str) -> str:
    from babel.dates import format_date

    return str(format_date(day, pattern, locale=language))


@cache
def patterns(language: str) -> tuple[str, ...]:
    """The date formats of a language in which day, month and year are unambiguous."""
    from babel import Locale

    locale = Locale.parse(language)
    named = [locale.date_formats[name].pattern for name in ("full", "long", "medium", "short")]
    skeletons = [locale.datetime_skeletons[name].pattern for name in ("yMMMEd", "yMd") if name in locale.datetime_skeletons]
    return tuple(sorted({pattern for pattern in named + skeletons if _clear(pattern)}))


def _clear(pattern: str) -> bool:
    """Whether a pattern is unambiguous in every country: 4/3/2026 may be two days, and '26 two years."""
    if "y" not in pattern or "yy" in pattern:
        return False
    if "MMM" in pattern:
        return True
    year, month, day = (pattern.index(letter) for letter in "yMd")
    return year < month < day or (day < month < year and "/" not in pattern and "-" not in pattern)


def _letters(arrange: Arrange, random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    letters = random.choices(string.ascii_lowercase, k=random.randint(shortest or 1, longest or 10))
    subject = "".join(sorted(letters)) if arrange is sorted else " ".join(letters)
    return subject, " ".join(letters), " ".join(arrange(letters))


def _addition(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    digits = longest or 4
    first, second = (random.randrange(10 ** random.randint(1, digits)) for _ in range(2))
    return f"{min(first, second)}+{max(first, second)}", f"{first}+{second}", str(first + second)


KINDS: dict[str, Callable[[Random, int, int], tuple[str, str, str]]] = {
    "dates": _date,
    "copy": partial(_letters, list),
    "reverse": partial(_letters, reversed),
    "sort": partial(_letters, sorted),
    "addition": _addition,
    "listops": listops,
    "recall": recall,
    "distant_copy": distant_copy,
    "verdict": verdict,
    "bits_copy": bits_copy,
    "bits_repeat": bits_repeat,
    "bits_recall": bits_recall,
}
"""kind → function that draws (subject, source, target), given the minimum and maximum length."""
