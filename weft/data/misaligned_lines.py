"""Says from which line on two text files that should be aligned are not."""

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from weft.data.text_lines import read_lines

ALARM = 10.0
"""Sum of log ratios at which a shift is detected: about thirty lines after it in ordinary text."""

ALARM_AT_END = 3.0
"""The threshold for a shift so late that the file ends before the sum reaches `ALARM`."""

EXCERPT = 48


def explain_mismatch(source: str, target: str) -> str:
    """The error message for two files of different length, with the line where they become misaligned.

    Aligned lines have similar lengths. After an extra line in one file, every line is paired with the neighbour of its partner.
    A cumulative sum (Page, 1954) of how much better the lines would fit if the longer file were shifted up by one line stays
    near zero while the files are aligned, and grows steadily afterwards. Only the lengths of lines are kept in memory.
    """
    letters, blank = zip(*(_measure(path) for path in (source, target)))
    counts = [len(each) for each in letters]
    text = f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}, so they cannot be paired line by line."
    paired = min(counts)
    one_sided = np.flatnonzero(blank[0][:paired] != blank[1][:paired])
    empty = int(one_sided[0]) if len(one_sided) else None
    shift = _onset(*letters)
    if shift is not None:
        text += f" They seem to be misaligned from about line {shift + 1:,} on: {_show(shift, source, target)}."
    if empty is not None and (shift is None or empty < shift):
        text += f" The first line that is empty on only one side is line {empty + 1:,}: {_show(empty, source, target)}."
    if shift is None and empty is None:
        shorter, longer = (target, source) if counts[0] > counts[1] else (source, target)
        text += f" They seem aligned up to the end of {shorter}; the lines of {longer} from {paired + 1:,} on have no partner."
    return text


def _measure(path: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The number of characters of each line of a file, and whether it is blank."""
    lines = np.fromiter(((len(line), not line.strip()) for line in read_lines(path)), np.dtype("i8,?"))
    return lines["f0"], lines["f1"]


def _onset(source: NDArray[np.int64], target: NDArray[np.int64]) -> int | None:
    """The index of the line where the files become misaligned, if they do."""
    shorter, longer = sorted([source, target], key=len)
    centre = np.log((longer.sum() + 1) / (shorter.sum() + 1))
    here, ahead = longer[: len(shorter)], longer[1 : len(shorter) + 1]
    here, ahead = (np.abs(np.log((lines + 1) / (shorter + 1)) - centre) for lines in (here, ahead))
    walk = np.concatenate([[0.0], np.cumsum(here - ahead)])
    total = walk - np.minimum.accumulate(walk)
    if not (total >= ALARM).any() and total[-1] < ALARM_AT_END:
        return None
    end = int(np.argmax(total >= ALARM)) or len(total)
    return int(np.flatnonzero(total[:end] == 0)[-1])


def _show(index: int, source: str, target: str) -> str:
    lines = [next(islice(read_lines(path), index, None)) for path in (source, target)]
    first, second = (repr(line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…") for line in lines)
    return f"{first} is paired with {second}"
