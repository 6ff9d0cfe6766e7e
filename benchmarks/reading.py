"""Questions about generated passages whose names never occur in training, and questions with a blank from the Brown corpus.

    python benchmarks/reading.py --out OUT [--brown brown.txt.gz] [--seeds 1] [--only bidaf,no-question]

The passages of `generated:passages` are about people and towns, those of `generated:distractors` have sentences about
relatives of the person asked about as well. The control `no-question` has the same question everywhere.

With --brown, a passage is 20 sentences, and the question the next sentence, in which a word of the passage is blank: a name (a
word with a capital that does not begin a sentence), or else a word of four letters and more. The model chooses among ten
candidates, the answer and nine other such words of the passage. Beside it: the candidate that is most frequent in the passage,
the one with which an n-gram model of the training sentences finds the question likeliest, and the one for which the product of
both, frequency and likelihood, is largest. With --language-model RUN a trained language model chooses as well; OUT/known.txt
has the sentences on which it may be trained.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any, cast

from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, score_cell, select, sweep

import weft
from weft.data.phrases.ngram_language_model import NgramModel
from weft.data.text_lines import read_lines
from weft.runs.translator import load_generator
from weft.tasks.reading.predictor import Answer

RECIPE = "reader"
COUNT, TESTED = 20_000, 1_000
MODELING = "modeling: {kind: rnn, cell: lstm, dim: 100, dropout: 0.2}, ending: {kind: rnn, cell: lstm, dim: 100, dropout: 0.2}"
SELF_MATCHING = f"task.reader={{kind: bidaf, aligned: true, self_matching: true, pointer: network, {MODELING}}}"
NO_ALIGNMENT = f"task.reader={{kind: bidaf, {MODELING}}}"
ATTENTION_SUM = ("task.reader=attention_sum", "model.encoder={kind: rnn, cell: gru, dim: 200, embedding: 160, dropout: 0.2}")
SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bidaf": ("passages", ()),
    "bidaf-distractors": ("distractors", ()),
    "bidaf-unaligned": ("passages", (NO_ALIGNMENT,)),
    "self-matching": ("passages", (SELF_MATCHING,)),
    "no-question": ("no-question", ()),
}
"""System → training data, changes to the recipe."""

SENTENCES, CANDIDATES, BLANK = 20, 10, "@blank"
ORDER, LEAST = 3, 2
"""Of the n-gram model, and how often a word occurs that it knows."""
BLOCK, EVERY = 210, 20
"""Lines per block of Brown; of this many blocks, the first is for testing and the second for validation."""
STRIDES = {"valid": 21, "test": 7}
"""Lines from one question to the next. Those for training are `--stride`, so that passages overlap much."""


def hidden(spec: str, file: Path) -> str:
    """Generated passages with the same question everywhere, in a file."""
    from weft.tasks.reading.data import open_passages

    rows = [(source.split("\t")[0], answer) for source, answer in open_passages(spec)]
    file.write_text(
        "".join(json.dumps({"passage": text, "question": "What ?", "answer": answer}) + "\n" for text, answer in rows)
    )
    return str(file)


def data(kind: str, split: str, count: int, out: Path) -> str:
    name = "passages" if kind == "no-question" else kind
    spec = f"generated:{name}?count={count}&split={split}"
    return hidden(spec, out / f"hidden-{split}.jsonl") if kind == "no-question" else spec


def plan(name: str, seed: int, options: argparse.Namespace) -> Run:
    kind, changes = SYSTEMS[name]
    sets = (*common_settings(options.out.absolute()), f"train.seed={seed}", *changes, *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    tests = [kind] if kind == "no-question" else ["passages", "distractors"]
    asked = {test: data(test, "test", TESTED, options.out) for test in tests}
    return Run(f"{name}-{seed}", RECIPE, data(kind, "train", COUNT, options.out), sets, asked, beam=0)


def cloze(lines: Sequence[str], stride: int) -> Iterator[dict[str, Any]]:
    """Passages of a block of Brown with a blank in the next sentence, and the candidates."""
    for start in range(0, len(lines) - SENTENCES, stride):
        passage, asked = lines[start : start + SENTENCES], lines[start + SENTENCES].split()
        words = [word for line in passage for word in line.split()]
        usable = Counter(word for word in words if re.fullmatch("[A-Za-z]{4,}", word))
        names = {word for line in passage for word in line.split()[1:] if word[:1].isupper() and word in usable}
        chosen = [word for word in asked[1:] if word in names] or [word for word in asked if word in usable]
        chance = random.Random(f"{start} {passage[0]}")
        if not chosen or len({word.lower() for word in usable}) < CANDIDATES:
            continue
        answer = chance.choice(chosen)
        pool = [word for word in (names if answer in names else usable) if word.lower() != answer.lower()]
        rest = [word for word in usable if word.lower() != answer.lower() and word not in pool]
        others = chance.sample(sorted(pool), min(len(pool), CANDIDATES - 1))
        others += chance.sample(sorted(rest), CANDIDATES - 1 - len(others))
        question = [BLANK if place == asked.index(answer) else word for place, word in enumerate(asked)]
        yield {
            "passage": " ".join(words),
            "question": " ".join(question),
            "answer": answer,
            "candidates": sorted({answer, *others}),
            "named": answer in names,
        }


def write_cloze(file: Path, out: Path, stride: int) -> tuple[dict[str, Path], list[dict[str, Any]]]:
    """The files of the parts and, as `known`, of the sentences for training; and the questions of the test part."""
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "valid": [], "test": []}
    lines, known = list(read_lines(str(file))), []
    for number, start in enumerate(range(0, len(lines), BLOCK)):
        part = {0: "test", 1: "valid"}.get(number % EVERY, "train")
        parts[part] += cloze(lines[start : start + BLOCK], STRIDES.get(part, stride))
        known += lines[start : start + BLOCK] if part == "train" else []
    files = {"known": out / "known.txt"}
    files["known"].write_text("".join(f"{line}\n" for line in known), "utf-8")
    for name, rows in parts.items():
        files[name] = out / f"cloze-{name}.jsonl"
        files[name].write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return files, parts["test"]


def share(rows: Sequence[Mapping[str, Any]], said: Sequence[str]) -> str:
    return f"{100 * sum(word == row['answer'] for row, word in zip(rows, said, strict=True)) / len(rows):.1f}"


def likeliest(model: Any, row: Mapping[str, Any]) -> str:
    """The candidate with which a language model finds the sentence likeliest."""
    texts = [row["question"].replace(BLANK, word) for word in row["candidates"]]
    from weft.tasks.language_modeling.explanation import read_text

    predictor = model.predictor()
    losses = [-sum(map(_log, read_text(predictor, text).probabilities)) for text in texts]
    return str(row["candidates"][losses.index(min(losses))])


def _log(share: float) -> float:
    return log(max(share, 1e-30))


class Ngrams:
    """An n-gram model of sentences; words that are rare there are one unknown word."""

    def __init__(self, sentences: Sequence[str]) -> None:
        texts = [text.split() for text in sentences]
        counts = Counter(word for words in texts for word in words)
        self.numbers = {word: 1 + number for number, word in enumerate(w for w, count in counts.items() if count >= LEAST)}
        self.model = NgramModel([self._ids(words) for words in texts], 1 + len(self.numbers), ORDER)

    def _ids(self, words: Sequence[str]) -> list[int]:
        return [self.numbers.get(word, 0) for word in words]

    def log_prob(self, text: str) -> float:
        return float(self.model.text_log_probs(self._ids(text.split())).sum())


def likeliest_of(scores: Mapping[str, float]) -> str:
    return max(scores, key=scores.__getitem__)


def counted_choices(rows: Sequence[Mapping[str, Any]], ngrams: Ngrams) -> dict[str, list[str]]:
    """The choices by counting: by frequency in the passage, by the n-gram model, and by both."""
    found: dict[str, list[str]] = {"most frequent candidate": [], "n-gram model": [], "both": []}
    for row in rows:
        counts = Counter(word.lower() for word in row["passage"].split())
        often = {word: log(counts[word.lower()]) for word in row["candidates"]}
        likely = {word: ngrams.log_prob(row["question"].replace(BLANK, word)) for word in row["candidates"]}
        both = {word: often[word] + likely[word] for word in often}
        for choices, scores in zip(found.values(), (often, likely, both), strict=True):
            choices.append(likeliest_of(scores))
    return found


def cloze_rows(
    runs: Sequence[Path], rows: Sequence[Mapping[str, Any]], known: Path, language_model: str
) -> list[tuple[str, ...]]:
    """The accuracies among candidates: of all questions, and of those for a name."""
    counted = counted_choices(rows, Ngrams(list(read_lines(str(known)))))
    systems = {f"*{name}*": choices for name, choices in counted.items()}
    for run in runs:
        found = weft.load(run).translate([f"{row['passage']}\t{row['question']}" for row in rows])
        systems[f"attention-sum, {run.name}"] = [
            likeliest_of({word: cast(Answer, each).probabilities.get(word.lower(), 0.0) for word in row["candidates"]})
            for row, each in zip(rows, found, strict=True)
        ]
    if language_model:
        generator = load_generator(language_model)
        systems["language model"] = [likeliest(generator, row) for row in rows]
    named = [place for place, row in enumerate(rows) if row["named"]]
    return [
        (name, share(rows, said), share([rows[place] for place in named], [said[place] for place in named]))
        for name, said in systems.items()
    ]


def run_cloze(options: argparse.Namespace) -> tuple[str, list[Outcome]]:
    files, rows = write_cloze(options.brown, options.out, options.stride)
    sets = (
        *common_settings(options.out.absolute()),
        *ATTENTION_SUM,
        *("data.max_length=900", "train.batch_tokens=8192"),
        *options.set,
    )
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    train, valid, tests = str(files["train"]), str(files["valid"]), {"test": str(files["test"])}
    runs = [
        Run(f"cloze-{seed}", RECIPE, train, (*sets, f"train.seed={seed}"), tests, beam=0, valid=valid)
        for seed in options.seeds.split(",")
    ]
    outcomes = sweep(runs, options)
    done = [options.out / each.run.name for each in outcomes if not each.error]
    headings = (f"{len(rows)} questions, {sum(row['named'] for row in rows)} for a name", "all, %", "names, %")
    return "\n" + markdown(headings, cloze_rows(done, rows, files["known"], options.language_model)), outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brown", type=Path, help="the Brown corpus, a sentence of words per line")
    parser.add_argument("--stride", type=int, default=2, help="lines between questions for training (default 2: 19,276)")
    parser.add_argument("--language-model", default="", help="a run of a language model, to compare with")
    parser.add_argument("--seeds", default="1", help="seeds, separated by commas (default 1)")
    add_options(parser, at_once=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = [] if options.only == "cloze" else select(SYSTEMS, options.only)
    outcomes = (
        sweep([plan(name, int(seed), options) for seed in options.seeds.split(",") for name in names], options) if names else []
    )
    rows = [
        (
            each.run.name,
            *(score_cell(each, test, "exact", 1) for test in ("passages", "distractors", "no-question")),
            f"{each.parameters / 1e3:.0f}k",
            f"{each.seconds:.0f}",
        )
        for each in outcomes
    ]
    found = markdown(("system", "passages, exact", "distractors, exact", "no question, exact", "parameters", "seconds"), rows)
    more, others = run_cloze(options) if options.brown else ("", [])
    sys.exit(report(options.out, "reading", found + more, [*outcomes, *others]))


if __name__ == "__main__":
    main()
