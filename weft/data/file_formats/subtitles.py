"""Two files of subtitles, SubRip or WebVTT, in two languages: cues that are shown at the same time are pairs.

Subtitles of one film may be cut differently, so cues whose times overlap form groups, each with at most three cues per side.
Cues without a partner, and larger groups, are left out and counted.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import unescape
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

from weft.data.formats import Pairs, combine
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.errors import DataError

TIMES = re.compile(r"\s*((?:\d+:)?\d+:\d+(?:[.,]\d+)?)\s*-->\s*((?:\d+:)?\d+:\d+(?:[.,]\d+)?)")
MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
OVERLAP = 0.5
"""Share of the shorter cue that has to overlap."""

MOST = 3
"""Cues of one side in a pair."""


LASTING = 20
"""The most cues of the other file that a cue is shown with. One that is shown longer, such as a logo, has no partner."""


@dataclass(frozen=True)
class Cue:
    """A text, shown from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str


Role = Literal["times", "text", "other"]


def cue_lines(lines: Iterable[str], *, webvtt: bool) -> Iterator[tuple[str, Role]]:
    """Each line of a file of subtitles, and whether it has the times of a cue, its text, or something else.

    In SubRip, text after a blank line belongs to the cue before it, as players read it; in WebVTT, it is a note or the like.
    """
    inside = False
    for line, following in pairwise(chain(lines, [""])):
        content = line.strip()
        number = content.isdecimal() and "-->" in following
        if "-->" in content:
            inside = True
            yield line, "times"
        elif inside and content and not number:
            yield line, "text"
        else:
            inside = inside and not webvtt and not number
            yield line, "other"


def read_cues(path: str) -> list[Cue]:
    """The cues of a file in the order of their times, with their lines joined and without tags. Empty ones are left out."""
    cues: list[tuple[float, float, list[str]]] = []
    inside, webvtt = False, ".vtt" in Path(path).name.lower()
    for line, role in cue_lines(read_lines(path), webvtt=webvtt):
        if role == "times":
            match = TIMES.match(line)
            inside = match is not None
            if match:
                cues.append((_seconds(match[1]), _seconds(match[2]), []))
        elif role == "text" and inside:
            cues[-1][2].append(line.strip())
    texts = [Cue(start, end, _plain(" ".join(lines), webvtt)) for start, end, lines in cues]
    return sorted((cue for cue in texts if cue.text), key=lambda cue: (cue.start, cue.end))


def _plain(text: str, webvtt: bool) -> str:
    """The text that a player shows, on one line. Only WebVTT has entities, such as `&amp;`."""
    text = MARKUP.sub("", text)
    return " ".join((unescape(text) if webvtt else text).split())


def _seconds(time: str) -> float:
    seconds = 0.0
    for part in time.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def without_lasting(cues: list[Cue], others: list[Cue]) -> list[Cue]:
    """The cues that are not shown with more than `LASTING` of the other file, so that pairing takes linear time."""
    starts, ends = sorted(each.start for each in others), sorted(each.end for each in others)
    return [cue for cue in cues if bisect_left(starts, cue.end) - bisect_right(ends, cue.start) <= LASTING]


def paired_cues(sources: list[Cue], targets: list[Cue]) -> Iterator[tuple[list[Cue], list[Cue]]]:
    """Groups of cues that are connected by overlaps, in order; one side is empty for cues without a partner."""
    links = _overlaps(sources, targets)
    group: tuple[set[int], set[int]] = (set(), set())
    used: tuple[set[int], set[int]] = (set(), set())
    for source, target in [*links, (-1, -1)]:
        if group[0] and source not in group[0] and target not in group[1]:
            yield [sources[each] for each in sorted(group[0])], [targets[each] for each in sorted(group[1])]
            group = (set(), set())
        for side, cue in enumerate((source, target)):
            group[side].add(cue)
            used[side].add(cue)
    yield from (([cue], []) for place, cue in enumerate(sources) if place not in used[0])
    yield from (([], [cue]) for place, cue in enumerate(targets) if place not in used[1])


def _overlaps(sources: list[Cue], targets: list[Cue]) -> list[tuple[int, int]]:
    """The places of cues that overlap enough, in order."""
    links: list[tuple[int, int]] = []
    first = 0
    for place, cue in enumerate(sources):
        while first < len(targets) and targets[first].end <= cue.start:
            first += 1
        other = first
        while other < len(targets) and targets[other].start < cue.end:
            partner = targets[other]
            shared = min(cue.end, partner.end) - max(cue.start, partner.start)
            if shared > OVERLAP * max(0.001, min(cue.end - cue.start, partner.end - partner.start)):
                links.append((place, other))
            other += 1
    return links


class SubtitlePairs(Pairs):
    """Cues of two files that are shown at the same time."""

    def __init__(self, name: str, source: str, target: str) -> None:
        super().__init__(name)
        self.paths = str(check_file(source)), str(check_file(target))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        sources, targets = map(read_cues, self.paths)
        brief = without_lasting(sources, targets), without_lasting(targets, sources)
        if lasting := len(sources) + len(targets) - sum(map(len, brief)):
            self.left_out["cues that many others overlap"] += lasting
        empty = True
        for ours, theirs in paired_cues(*brief):
            if not (ours and theirs):
                self.left_out["cues without a partner"] += 1
            elif max(len(ours), len(theirs)) > MOST:
                self.left_out["cues that many others overlap"] += len(ours) + len(theirs)
            else:
                empty = False
                yield " ".join(cue.text for cue in ours), " ".join(cue.text for cue in theirs)
        if empty:
            raise DataError(
                f"{self.name}: no cues of both files are shown at the same time ({len(sources):,} and {len(targets):,} cues)."
            )

    def digest(self) -> str:
        return combine("subtitles", *map(file_digest, self.paths))
