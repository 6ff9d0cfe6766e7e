"""Where two files that should run in parallel part ways.

Aligned lines have lengths that go together; from the first line that one file has too many, each line stands beside its
neighbour's partner. A cumulative sum (Page, 1954) of how much better the lines would fit after moving the longer file up by
one stays near zero while the files are aligned, and climbs without end after that place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from weft.data.lines import read_lines

ALARM = 10.0
"""Sum of log ratios at which a shift counts as found: some thirty lines after the place on ordinary text."""

ALARM_AT_END = 3.0
"""The same for a shift so late that the file ends before `ALARM` is reached."""

EXCERPT = 48


def explain_mismatch(source: str, target: str) -> str:
    """What to tell a user about two files of different length. Reads both twice, one line at a time."""
    sizes = [_measure(source), _measure(target)]
    lines, letters = zip(*sizes)
    text = f"{source} has {lines[0]:,} lines but {target} has {lines[1]:,}: they cannot be pairs, line by line."
    centre = math.log((letters[0] + 1) / (letters[1] + 1))
    empty, parting = _survey(source, target, longer_source=lines[0] > lines[1], centre=centre)
    if parting is not None:
        text += f" They fit together up to about line {parting.number:,} and no longer after it: {parting.show()}."
    if empty is not None and (parting is None or empty.number < parting.number):
        text += f" The first line that is empty on one side only is line {empty.number:,}: {empty.show()}."
    if parting is None and empty is None:
        shorter, longer = (target, source) if lines[0] > lines[1] else (source, target)
        lonely = min(lines) + 1
        text += f" Nothing looks shifted up to the end of {shorter}; from line {lonely:,} on, {longer} has no partner."
    return text


@dataclass(frozen=True)
class _Place:
    number: int
    source: str
    target: str

    def show(self) -> str:
        return f"{_excerpt(self.source)} beside {_excerpt(self.target)}"


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…")


def _measure(path: str) -> tuple[int, int]:
    """How many lines and how many characters a file has."""
    lines = letters = 0
    for line in read_lines(path):
        lines += 1
        letters += len(line)
    return lines, letters


def _survey(source: str, target: str, *, longer_source: bool, centre: float) -> tuple[_Place | None, _Place | None]:
    """The first line empty on one side only, and the line where the files part."""
    empty: _Place | None = None
    onset: _Place | None = None
    climbed = 0.0
    for number, (here, ahead) in enumerate(_with_next(source, target, longer_source), start=1):
        place = _Place(number, *here)
        if empty is None and (not here[0].strip()) != (not here[1].strip()):
            empty = place
        if climbed == 0.0:
            onset = place
        climbed = max(0.0, climbed + _misfit(here, centre) - _misfit(ahead, centre))
        if climbed >= ALARM:
            return empty, onset
    return empty, onset if climbed >= ALARM_AT_END else None


def _with_next(source: str, target: str, longer_source: bool) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each pair of lines, and the pair it would be if the longer file were one line further."""
    longer, shorter = (source, target) if longer_source else (target, source)
    ahead = read_lines(longer)
    current = next(ahead, "")
    for coming, line in zip(ahead, read_lines(shorter)):
        yield ((current, line), (coming, line)) if longer_source else ((line, current), (line, coming))
        current = coming


def _misfit(pair: tuple[str, str], centre: float) -> float:
    return abs(math.log((len(pair[0]) + 1) / (len(pair[1]) + 1)) - centre)
