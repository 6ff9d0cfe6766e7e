"""Splits lines into sentences, and counts how many sentences the lines of training data have.

`sentencex` (Wikimedia) does the splitting. It knows the abbreviations of many languages and has general rules for all others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from weft.data.formats import Pairs
from weft.data.term_automata import is_unspaced
from weft.file_access import MALFORMED, plain_name, replace_file

UNSPLIT = {"th", "lo"}
"""Languages that write no mark at the end of a sentence."""

FILE = "sentences.json"
LINES = 10_000
"""The most training lines whose sentences are counted."""

MANY, SOME, KEPT = 0.1, 0.01, 0.6
"""Lines of several sentences are usual if at least MANY of the training lines are such. Then as many are usual as SOME of the
lines have. If the targets of at least SOME lines have less than KEPT of their sentences, as summaries do, no line is split."""

CODE = re.compile(r"(?!(?:src|tgt|trg|txt|csv|tsv)$)[a-z]{2,3}", re.IGNORECASE)
"""A code of a language. `train.src,train.tgt` and files of text or tables name none."""

LETTER = re.compile(r"[^\W_]")
NO_LETTERS = re.compile(r"\W*+")
INITIALS = re.compile(r"(?:(?:[^\W\d]|\d{1,4})\.\s*)*+")
"""Initials, or numbers as in dates and lists: not a sentence."""

DOTTED = re.compile(r"[^\W\d]{1,3}(?:\.[^\W\d]{1,3})++\.")
"""An abbreviation such as i.e., which does not end a sentence if a small letter follows."""

DATE = re.compile(r"(?:^|[^\d.,])\d{1,2}\.$")
"""The day or month of a date if a number follows; any ordinal number in the languages of ORDINAL, or in an unknown one."""

ORDINAL = {
    *("bs", "cs", "da", "de", "dsb", "et", "fi", "hr", "hsb", "hu", "is", "lb", "lv"),
    *("me", "mk", "nb", "nn", "no", "pl", "sk", "sl", "sr", "sv", "tr"),
}
TITLE = re.compile(r"(?:^|[\s(])(?:Dr|Mr|Mrs|Ms|Prof|St|Nr)\.$")
ENDING_WORD = 8
"""Characters of which a date or title has fewer, with the character before it."""

ASIDE = re.compile(r"\s*[(\[].*?[.!?][)\]]\s+(?=[^\W\d_])", re.DOTALL)
"""A whole sentence in brackets."""

KHMER = re.compile(r"(?<!។ល)[។៕](?!\s*ល\s*។)\s*")
"""The end of a sentence in Khmer, which sentencex does not know; not `។ល។`, which means "and so on"."""

QUOTED = re.compile("[」』][とっ]")
"""A quotation and the particle after it, in Japanese: the sentence that says who spoke goes on."""

ENDING = re.compile("[!.?;…\u037e։؝؞؟۔܀܁܂߹।॥၊။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！．？｡]")
"""Marks that may end a sentence, in any language. Most lines have one at most, at their end, and need no segmenter."""

AT_THE_END = " \t\n.!?…\"'”’»)]。！？"
OPENING = "\"'“„‘«‹([¿¡"
WINDOW = 4_000
"""Characters of a long line that are split at once."""

SURROGATE = re.compile("[\ud800-\udfff]")
SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\.)")
"""Sentencex refuses halves of surrogate pairs, and panics if a capital letter and such a space precede a full stop."""


@dataclass(frozen=True)
class Sentence:
    """A part of a line that is translated by itself. gap: the white space before it in the line."""

    text: str
    gap: str = ""


class SentenceSplitter:
    """Splits lines into parts of up to `usual` sentences; 0: no line is split."""

    def __init__(self, language: str | None = None, usual: int = 1) -> None:
        self.language, self.usual = language, usual

    def __call__(self, line: str, *, whole: int = 1) -> list[Sentence]:
        """The parts of a line; one that is the line itself if there is nothing to split.

        whole: how many sentences the first part has at least.
        """
        sentences = split(line, self.language or "") if self.usual else [line]
        groups = [sentences[: max(whole, self.usual)]]
        rest = sentences[len(groups[0]) :]
        groups += [rest[start : start + self.usual] for start in range(0, len(rest), self.usual or 1)]
        if len(groups) == 1:
            return [Sentence(line)]
        texts = ["".join(group) for group in groups]
        ends = ["", *(text[len(text.rstrip()) :] for text in texts)]
        return [Sentence(text.strip(), end) for text, end in zip(texts, ends, strict=False)]


def split(line: str, language: str = "") -> list[str]:
    """The sentences of a line, with all its white space."""
    code = language.split("-")[0].lower()
    if code in UNSPLIT or not ENDING.search(line.rstrip(AT_THE_END)):
        return [line]
    sentences: list[str] = []
    parts = _Parts(line, code)
    at = 0
    for part in _raw(line, language):
        at += len(part)
        end = at if at == len(line) else _before_quotes(line, parts.start, at)
        if not parts.continue_after(end):
            sentences.append(line[parts.start : end])
            parts.begin(end)
    rest = line[parts.start :]
    if rest and not any(map(str.isalnum, rest)) and sentences:
        sentences[-1] += rest
    elif rest:
        sentences.append(rest)
    return sentences


def _before_quotes(line: str, start: int, end: int) -> int:
    """The place of quotation marks and brackets at the end of line[start:end] that open the next sentence; else the end."""
    at = end
    while at > start and line[at - 1] in OPENING:
        at -= 1
    return at if start < at < end and line[at - 1].isspace() else end


class _Parts:
    """The parts of a line that make up one sentence, from `start` on. Nothing is read twice, however many parts it has."""

    def __init__(self, line: str, code: str) -> None:
        self.line, self.code, self.first, self.next = line, code, -1, -1
        self.begin(0)

    def begin(self, start: int) -> None:
        self.start = self.initials = start
        self.lone = False

    def continue_after(self, end: int) -> bool:
        """Whether the sentence that begins at `start` goes on after `end`."""
        line, rest = self.line, end < len(self.line)
        if rest and ((line[end - 1].isascii() and not line[end - 1].isspace()) or QUOTED.match(line, end - 1)):
            return True
        if self.first < self.start:
            self.first = _letter_from(line, self.start)
        return (rest and self._ends_in_abbreviation(end)) or self._is_lone(end) or self.first >= end

    def _ends_in_abbreviation(self, end: int) -> bool:
        line, code = self.line, self.code
        stop = end
        while stop > self.start and line[stop - 1].isspace():
            stop -= 1
        if stop == end:
            return False
        tail = line[max(self.start, stop - ENDING_WORD) : stop]
        if TITLE.search(tail) or ((line[end].isdigit() or not code or code in ORDINAL) and DATE.search(tail)):
            return True
        if self.next < end:
            self.next = _letter_from(line, end)
        if not line[self.next : self.next + 1].islower():
            return False
        word = stop
        while word > self.start and line[word - 1] != "(" and not line[word - 1].isspace():
            word -= 1
        return DOTTED.fullmatch(line, word, stop) is not None

    def _is_lone(self, end: int) -> bool:
        """Whether there are only initials and numbers up to `end`."""
        if not self.lone:
            self.initials = _match_end(NO_LETTERS, self.line, self.initials, end)
        after = _match_end(INITIALS, self.line, self.initials, end)
        self.lone |= after > self.initials
        self.initials = after
        return self.lone and after == end


def _letter_from(line: str, place: int) -> int:
    """The place of the first letter or digit from `place` on; the length of the line if there is none."""
    match = LETTER.search(line, place)
    return len(line) if match is None else match.start()


def _match_end(pattern: re.Pattern[str], line: str, start: int, end: int) -> int:
    match = pattern.match(line, start, end)
    return start if match is None else match.end()


def _raw(line: str, language: str) -> Iterator[str]:
    """The sentences of a line as sentencex finds them, in windows: its time may grow with the square of the length."""
    from sentencex import segment  # few lines need it

    clean = SPACE_BEFORE_STOP.sub(" ", SURROGATE.sub("\ufffd", line))
    start, size = 0, WINDOW
    while start < len(line):
        window = clean[start : start + size]
        sentences = segment(language or "en", window)
        if len(window) < len(line) - start:
            if len(sentences) < 2:
                size *= 2
                continue
            sentences.pop()  # it may go on after the window
        if not window.startswith("".join(sentences)):
            sentences = [window]
        for sentence in sentences:
            for part in _aside(line[start : start + len(sentence)]):
                yield from _khmer(part)
            start += len(sentence)
        size = WINDOW


def _aside(sentence: str) -> list[str]:
    """Separates a sentence in brackets from the sentence after it."""
    match = ASIDE.match(sentence)
    return [sentence] if match is None else [match[0], sentence[match.end() :]]


def _khmer(sentence: str) -> Iterator[str]:
    start = 0
    for match in KHMER.finditer(sentence):
        yield sentence[start : match.end()]
        start = match.end()
    if start < len(sentence):
        yield sentence[start:]


def join_texts(texts: Sequence[str], gaps: Sequence[str]) -> str:
    """Joins translations by the white space between their sources: a space at least, none in Chinese or Japanese."""
    whole = list(texts[:1])
    last, begun = _letter(reversed("".join(whole))), any(whole)
    for text, gap in zip(texts[1:], gaps[1:], strict=True):
        near = last, _letter(text)
        ideographic = all(letter and is_unspaced(letter) and ord(letter) >= 0x2E80 for letter in near)
        whole += ["" if ideographic or not (begun and text) else gap or " ", text]
        last, begun = _letter(reversed(text)) or last, begun or bool(text)
    return "".join(whole)


def _letter(text: Iterable[str]) -> str:
    """The first letter or digit."""
    return next(filter(str.isalnum, text), "")


def language_of(given: str | None, files: Sequence[str], side: int = 0) -> str | None:
    """The language of one side of the data: as given, or by the suffix of its files (train.en,train.de); None if unknown."""
    if given:
        return given
    guesses = set()
    for spec in files:
        names = [Path(plain_name(part.strip())).suffix.removeprefix(".") for part in spec.split(",")]
        guesses.add(names[side] if len(names) == 2 and CODE.fullmatch(names[side]) else None)
    return guesses.pop() if len(guesses) == 1 else None


@dataclass(frozen=True)
class SentenceCounts:
    """Sentences per line of training data: lines counted, the share with several, and the usual number; 0: any number."""

    lines: int = 0
    several: float = 0.0
    usual: int = 1

    def save(self, folder: Path) -> None:
        replace_file(folder / FILE, json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> SentenceCounts:
        """The counts of a run; those of single sentences if there are none, or if they cannot be read."""
        try:
            data: Any = json.loads((folder / FILE).read_text("utf-8"))
            return SentenceCounts(int(data["lines"]), float(data["several"]), max(0, int(data["usual"])))
        except (OSError, *MALFORMED):
            return SentenceCounts()


def count_sentences(pairs: Sequence[Pairs], source: str | None, target: str | None) -> SentenceCounts:
    """Counts the sentences of training lines in these languages, evenly spread over the data."""
    chosen = _spread(chain.from_iterable(pairs), LINES)
    counts = [(len(split(one, source or "")), len(split(other, target or ""))) for one, other in chosen]
    several = [pair for pair in counts if pair[0] > 1]
    usual = 1
    if several and len(several) >= SOME * len(counts):
        if sum(written for _, written in several) < KEPT * sum(read for read, _ in several):
            usual = 0
        elif len(several) >= MANY * len(counts):
            usual = sorted((read for read, _ in counts), reverse=True)[int(SOME * len(counts))]
    return SentenceCounts(len(counts), round(len(several) / max(1, len(counts)), 4), usual)


def _spread(items: Iterable[Any], most: int) -> list[Any]:
    """Every n-th item, as many as possible up to `most`, in one pass."""
    chosen: list[Any] = []
    step = 1
    for number, item in enumerate(items):
        if number % step == 0:
            chosen.append(item)
        if len(chosen) > most:
            chosen, step = chosen[::2], 2 * step
    return chosen
