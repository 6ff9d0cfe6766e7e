"""Splits lines into sentences, and counts how many sentences the lines of training data have.

`sentencex` (Wikimedia) does the splitting. It knows the abbreviations of many languages and has general rules for all others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from weft.data.formats import Pairs
from weft.data.token_spelling import is_unspaced
from weft.file_access import replace_file

UNSPLIT = {"th", "lo"}
"""Languages that write no mark at the end of a sentence."""

FILE = "sentences.json"
LINES = 10_000
"""The most training lines whose sentences are counted."""

MANY, SOME, KEPT = 0.1, 0.01, 0.6
"""Lines of several sentences are usual if at least MANY of the training lines are such. Then as many are usual as SOME of the
lines have. If the targets of at least SOME lines have less than KEPT of their sentences, as summaries do, no line is split."""

CODE = re.compile(r"[A-Za-z]{2,3}")
LONE = re.compile(r"\W*(?:(?:[^\W\d]|\d{1,4})\.\s*)+")
"""Initials, or numbers as in dates and lists: not a sentence."""

DOTTED = re.compile(r"(?:^|[\s(])[^\W\d]{1,3}(?:\.[^\W\d]{1,3})+\.\s+$")
"""An abbreviation such as i.e., which does not end a sentence if a small letter follows."""

DATE = re.compile(r"(?:^|[^\d.,])\d{1,2}\.\s+$")
"""The day or month of a date if a number follows; any ordinal number in the languages of ORDINAL, or in an unknown one."""

ORDINAL = {
    *("bs", "cs", "da", "de", "dsb", "et", "fi", "hr", "hsb", "hu", "is", "lb", "lv"),
    *("me", "mk", "nb", "nn", "no", "pl", "sk", "sl", "sr", "sv", "tr"),
}
TITLE = re.compile(r"(?:^|[\s(])(?:Dr|Mr|Mrs|Ms|Prof|St|Nr)\.\s+$")

ASIDE = re.compile(r"\s*[(\[].*?[.!?][)\]]\s+(?=[^\W\d_])", re.DOTALL)
"""A whole sentence in brackets."""

ENDING = re.compile("[!.?;…\u037e։؝؞؟۔܀܁܂߹।॥၊။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！．？｡]")
"""Marks that may end a sentence, in any language. Most lines have one at most, at their end, and need no segmenter."""

AT_THE_END = " \t\n.!?…\"'”’»)]。！？"
OPENING = re.compile(r"(?<=\s)[\"'“„‘«‹(\[¿¡]+$")
SURROGATE = re.compile("[\ud800-\udfff]")


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
    at, carry = 0, ""
    for part in _raw(line, language):
        at += len(part)
        text, carry = carry + part, ""
        quote = OPENING.search(text)
        if quote and at < len(line):
            text, carry = text[: quote.start()], quote[0]
        end = at - len(carry)
        if _continues(text, line[end:], code):
            carry = text + carry
        else:
            sentences.append(text)
    if carry and not any(map(str.isalnum, carry)) and sentences:
        sentences[-1] += carry
    elif carry:
        sentences.append(carry)
    return sentences


def _continues(text: str, rest: str, code: str) -> bool:
    """Whether a sentence goes on with `rest`, in the language of this code."""
    glued = text == text.rstrip() and text[-1:].isascii() and bool(rest)
    small = next(filter(str.isalnum, rest), "").islower()
    ordinal = (rest[:1].isdigit() or ((not code or code in ORDINAL) and bool(rest))) and DATE.search(text)
    short = (small and DOTTED.search(text)) or ordinal or (bool(rest) and TITLE.search(text))
    return glued or bool(short) or bool(LONE.fullmatch(text)) or not any(map(str.isalnum, text))


def _raw(line: str, language: str) -> list[str]:
    from sentencex import segment  # few lines need it

    # The library refuses halves of surrogate pairs.
    sentences = segment(language or "en", SURROGATE.sub("\ufffd", line))
    ends = list(accumulate(map(len, sentences), initial=0))
    if ends[-1] != len(line):
        return [line]
    return [part for start, end in pairwise(ends) for part in _aside(line[start:end])]


def _aside(sentence: str) -> list[str]:
    """Separates a sentence in brackets from the sentence after it."""
    match = ASIDE.match(sentence)
    return [sentence] if match is None else [match[0], sentence[match.end() :]]


def join_texts(texts: Sequence[str], gaps: Sequence[str]) -> str:
    """Joins translations by the white space between their sources: a space at least, none in Chinese or Japanese."""
    whole = texts[0] if texts else ""
    for text, gap in zip(texts[1:], gaps[1:], strict=True):
        near = (next(filter(str.isalnum, reversed(whole)), ""), next(filter(str.isalnum, text), ""))
        ideographic = all(letter and is_unspaced(letter) and ord(letter) >= 0x2E80 for letter in near)
        whole += ("" if ideographic or not (whole and text) else gap or " ") + text
    return whole


def language_of(given: str | None, files: Sequence[str], side: int = 0) -> str | None:
    """The language of one side of the data: as given, or by the suffix of its files (train.en,train.de); None if unknown."""
    if given:
        return given
    guesses = set()
    for spec in files:
        names = [Path(part.strip().removesuffix(".gz")).suffix.removeprefix(".") for part in spec.split(",")]
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
        except (OSError, ValueError, TypeError, KeyError):
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
