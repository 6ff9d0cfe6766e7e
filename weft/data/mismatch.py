"""Finds the line where two parallel files become misaligned.

Aligned lines have similar lengths. After an extra line in one file, every line is paired with the neighbour of its partner.
A cumulative sum (Page, 1954) of how much better the lines would fit if the longer file were shifted up by one line stays
near zero while the files are aligned, and grows steadily afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from weft.data.lines import read_lines

ALARM = 10.0
"""Sum of log ratios at which a shift is detected: about thirty lines after it in ordinary text."""

ALARM_AT_END = 3.0
"""The threshold for a shift so late that the file ends before the sum reaches `ALARM`."""

EXCERPT = 48


def explain_mismatch(source: str, target: str) -> str:
    """The error message for two files of different length. Reads both files twice, line by line."""
    sizes = [_measure(source), _measure(target)]
    lines, letters = zip(*sizes)
    text = f"{source} has {lines[0]:,} lines but {target} has {lines[1]:,}, so they cannot be paired line by line."
    centre = math.log((letters[0] + 1) / (letters[1] + 1))
    empty, shift = _survey(source, target, longer_source=lines[0] > lines[1], centre=centre)
    if shift is not None:
        text += f" They seem to be misaligned from about line {shift.number:,} on: {shift.show()}."
    if empty is not None and (shift is None or empty.number < shift.number):
        text += f" The first line that is empty on only one side is line {empty.number:,}: {empty.show()}."
    if shift is None and empty is None:
        shorter, longer = (target, source) if lines[0] > lines[1] else (source, target)
        first = min(lines) + 1
        text += f" They seem aligned up to the end of {shorter}; the lines of {longer} from {first:,} on have no partner."
    return text


@dataclass(frozen=True)
class _Place:
    number: int
    source: str
    target: str

    def show(self) -> str:
        return f"{_excerpt(self.source)} is paired with {_excerpt(self.target)}"


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…")


def _measure(path: str) -> tuple[int, int]:
    """The number of lines and of characters of a file."""
    lines = letters = 0
    for line in read_lines(path):
        lines += 1
        letters += len(line)
    return lines, letters


def _survey(source: str, target: str, *, longer_source: bool, centre: float) -> tuple[_Place | None, _Place | None]:
    """The first line that is empty on only one side, and the line where the files become misaligned."""
    empty: _Place | None = None
    onset: _Place | None = None
    total = 0.0
    for number, (here, ahead) in enumerate(_with_next(source, target, longer_source), start=1):
        place = _Place(number, *here)
        if empty is None and (not here[0].strip()) != (not here[1].strip()):
            empty = place
        if total == 0.0:
            onset = place
        total = max(0.0, total + _misfit(here, centre) - _misfit(ahead, centre))
        if total >= ALARM:
            return empty, onset
    return empty, onset if total >= ALARM_AT_END else None


def _with_next(source: str, target: str, longer_source: bool) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each pair of lines, and the pair if the longer file were one line ahead."""
    longer, shorter = (source, target) if longer_source else (target, source)
    ahead = read_lines(longer)
    current = next(ahead, "")
    for coming, line in zip(ahead, read_lines(shorter)):
        yield ((current, line), (coming, line)) if longer_source else ((line, current), (line, coming))
        current = coming


def _misfit(pair: tuple[str, str], centre: float) -> float:
    return abs(math.log((len(pair[0]) + 1) / (len(pair[1]) + 1)) - centre)
