"""Generated data for demonstrations and tests, which needs no files and no licence.

    dates     "Dienstag, 3. März 2026" → "2026-03-03", in forty languages with several formats each

Installed packages add other kinds (entry points `generator.NAME`), weft_studies for instance. A generator is a function that
draws a subject, a source and a target, given the smallest and the largest length; with a keyword-only `task` if it has several.

Pair i depends only on the kind, the seed and i. A hash of the subject of a pair (the day, the letters, the numbers) decides
whether the pair belongs to train, valid or test, so that these never share a subject, whatever the seeds.
"""

import hashlib
import string
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import date, timedelta
from functools import cache, cached_property
from random import Random
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

from weft.config.plugins import advice_if_stale
from weft.config.registry import find_table, keyword_options, load, suggest
from weft.errors import DataError
from weft.version import install

GENERATORS = "weft.data:GENERATORS"
Split = Literal["train", "valid", "test"]

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

    longest, shortest: maximum and minimum length, in what the kind counts; 0: its default. Ignored for dates
    task: number of the task, of a kind that has several
    """

    kind: str
    count: int = 10_000
    seed: int = 1
    split: Split = "train"
    longest: int = 0
    shortest: int = 0
    task: int = 0

    def __post_init__(self) -> None:
        kinds = find_table(GENERATORS)
        if self.kind not in kinds:
            near = suggest(self.kind, kinds) + advice_if_stale()
            raise DataError(f"generated:{self.kind}: there is no such generator; {near}.")
        if self.split not in get_args(Split):
            raise DataError(f"generated:{self.kind}: there is no split {self.split!r}; {suggest(self.split, get_args(Split))}.")
        if self.kind == "dates":
            calendar_version()
        if self.count < 1 or self.longest < 0 or self.shortest < 0:
            raise DataError(f"generated:{self.kind}: count must be at least 1, longest and shortest at least 0.")
        if (self.task > 0) != any(name == "task" for name, *_ in keyword_options(self._draw)):
            raise DataError(f"generated:{self.kind}: `task` is the number of a task of babi, as in generated:babi?task=1.")
        if self.shortest > self.longest:
            raise DataError(f"generated:{self.kind}: longest must be at least shortest={self.shortest}.")

    @cached_property
    def _draw(self) -> Callable[..., tuple[str, str, str]]:
        draw: Callable[..., tuple[str, str, str]] = load(find_table(GENERATORS), self.kind)
        return draw

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (self.pair(index) for index in range(self.count))

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> tuple[str, str]:
        """Pair number `index`, drawn repeatedly until its subject belongs to this split."""
        kind = f"{self.kind}{self.task or ''}"
        random = Random(int.from_bytes(_hash(f"{kind} {self.seed} {index}")[:8], "little"))
        draw, options = self._draw, {"task": self.task} if self.task else {}
        for _ in range(ATTEMPTS):
            subject, source, target = draw(random, self.shortest, self.longest, **options)
            if split_of(f"{kind} {subject}") == self.split:
                return source, target
        raise DataError(f"generated:{self.kind}: no pair found for {self.split!r}; increase `longest`.")

    def digest(self) -> str:
        """A hash of everything that the pairs depend on: the options and, for dates, the version of the calendar data."""
        calendars = (calendar_version(), LANGUAGES) if self.kind == "dates" else ()
        return _hash(repr((asdict(self), *calendars))).hex()


def parse_generator(spec: str) -> PairGenerator:
    """Parses a generator such as "dates?count=20000&seed=1"."""
    kind, _, query = spec.partition("?")
    known = {field.name: field for field in fields(PairGenerator) if field.name != "kind"}
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise DataError(f"generated:{spec}: there is no option {name!r}; {suggest(name, known)}.")
        if name != "split" and not (value.isdecimal() and len(value) < 19):
            raise DataError(f"generated:{spec}: {name} must be an integer, not {value[:40]!r}.")
        options[name] = value if name == "split" else int(value)
    return PairGenerator(kind, **options)


def split_of(subject: str) -> Split:
    """The split of a subject: one in ten is for validation, one in ten for testing."""
    tenth = _hash(subject)[0] % 10
    return "test" if tenth == 0 else "valid" if tenth == 1 else "train"


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def calendar_version() -> str:
    """The version of Babel, which writes dates. Raises DataError without it."""
    try:
        import babel
    except ImportError:
        raise DataError(f"generated:dates: the package babel, which writes dates, is missing: {install('dates')}") from None
    return babel.__version__


def dates(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Days from 1900 to 2099 as forty languages write them, to ISO 8601."""
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
