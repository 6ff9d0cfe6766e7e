"""Writes a small parallel corpus, English and a small language, from the locale data that comes with weft's dependency Babel.

    python examples/phrases.py hsb data     # Upper Sorbian; also br, eu, fo, fy, gd, lb, rm, …

The names of countries, languages and currencies, dates, quantities and lists come from Unicode's CLDR. FOLDER gets
train.en, train.hsb, test.en and test.hsb, aligned line by line. The same arguments always write the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from random import Random

from babel import Locale
from babel.dates import format_date
from babel.lists import format_list
from babel.units import format_unit

UNITS = [f"duration-{name}" for name in ("minute", "hour", "day", "week", "month", "year")]
UNITS += ["length-meter", "length-kilometer", "mass-kilogram", "volume-liter"]
PATTERNS = ("d MMMM y", "EEEE", "d MMMM", "MMMM y")
Pair = tuple[str, str]


def shared_names(table: str, english: Locale, other: Locale) -> list[Pair]:
    """The names of a table of CLDR that both languages have, without brackets, digits and the like."""
    first, second = getattr(english, table), getattr(other, table)
    found = {(first[code], second[code]) for code in first if code in second}
    return sorted(pair for pair in found if all(name.replace(" ", "").isalpha() for name in pair))


def phrases(language: str, seed: int) -> Iterator[Pair]:
    """Endless pairs of phrases, each kind in turn."""
    locales = Locale.parse("en"), Locale.parse(language)
    random = Random(seed)
    units = [unit for unit in UNITS if unit not in format_unit(2, unit, "long", locale=locales[1])]
    tables = [shared_names(table, *locales) for table in ("territories", "languages", "currencies")]

    def listed() -> Pair:
        chosen = random.sample(random.choice(tables), random.choice((2, 2, 3)))
        style = random.choice(("standard", "or"))
        english, other = (format_list([pair[side] for pair in chosen], style, locale) for side, locale in enumerate(locales))
        return english, other

    def dated() -> Pair:
        day, pattern = date(1950, 1, 1) + timedelta(random.randrange(36_000)), random.choice(PATTERNS)
        own = pattern.replace("d ", "d. ") if ". " in locales[1].date_formats["long"].pattern else pattern
        return format_date(day, pattern, locales[0]), format_date(day, own, locales[1])

    def measured() -> Pair:
        count, unit = random.randint(1, 60), random.choice(units)
        return format_unit(count, unit, "long", locale=locales[0]), format_unit(count, unit, "long", locale=locales[1])

    kinds: tuple[Callable[[], Pair], ...] = (lambda: random.choice(random.choice(tables)), listed, listed, dated, measured)
    while True:
        for make in kinds:
            yield make()


def distinct(pairs: Iterator[Pair], count: int, known: set[str]) -> Iterator[Pair]:
    """The next `count` pairs whose English is not known yet."""
    while count:
        english, other = next(pairs)
        if english not in known:
            known.add(english)
            count -= 1
            yield english, other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", help="code of the language, such as hsb")
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--pairs", type=int, default=4000, help="pairs to train on")
    parser.add_argument("--test", type=int, default=200, help="pairs to test with, none of them in the training data")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    pairs, known = phrases(options.language, seed=1), set[str]()
    for part, count in (("train", options.pairs), ("test", options.test)):
        found = list(distinct(pairs, count, known))
        for side, code in enumerate(("en", options.language)):
            (options.folder / f"{part}.{code}").write_text("".join(f"{pair[side]}\n" for pair in found), encoding="utf-8")
        print(f"{options.folder}/{part}.en, {options.folder}/{part}.{options.language}: {len(found):,} pairs")


if __name__ == "__main__":
    main()
