"""Language models by words on the Brown corpus, beside n-gram models with Kneser–Ney smoothing on the same tokens.

    python benchmarks/brown.py brown.txt.gz --out OUT [--at-once 3] [--minutes 3] [--only xl] [--steps-scale 0.01]

The file has one sentence per line, with spaces between words. The split is that of Bengio et al. 2003: the first 800,000 words
for training, the next 200,000 for validation, the rest for the test; the texts change from press to fiction on the way. A line
end is a token. Words that occur at most three times in the training part are UNK, for all models. Perplexities are per token,
UNK and line ends included. Weights are those of the best validation.
Published (Bengio et al. 2003, table 1; paragraph marks instead of line ends, a vocabulary of 16,383 words from all parts): test
perplexities of 323 for Kneser–Ney trigrams, 321 for 5-grams, 312 for the best class-based n-grams, 252 for the best neural
model. Their perplexities are not comparable with these, but the ratios to Kneser–Ney are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ngrams import ngram_losses
from trainings import about, add_options, common_settings, deadline, markdown, scale_steps, select

from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.data.tokenizers import RESERVED
from weft.runs.translator import load_generator

RECIPE = "lm-words"
SYSTEMS = {
    "transformer": ("task.carry=nothing", "model.decoder_self={kind: full, position: rotary}"),
    "xl": (),
    "lstm": ("task.carry=state", "model.decoder_self={kind: recurrent, cell: lstm}", "model.decoder_layers=2"),
}
"""System → changes to the recipe."""
SIZES = {"train": 800_000, "valid": 200_000}
RAREST = 4
"""Occurrences in the training part from which a word is in the vocabulary."""
ORDER = 5
LINE_END, UNKNOWN = "\n", ""


@dataclass(frozen=True)
class Row:
    """Perplexities of one model by part; parameters: None for n-grams."""

    system: str
    parameters: int | None
    valid: float
    test: float


def split(file: Path, out: Path) -> dict[str, list[str]]:
    """Writes train.txt, valid.txt and test.txt; returns the words of each part, with line ends."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        sentences = [line.split() for line in lines if line.strip()]
    parts: dict[str, list[str]] = {}
    place = 0
    for name in ("train", "valid", "test"):
        words: list[str] = []
        begin, count = place, 0
        while place < len(sentences) and count < SIZES.get(name, math.inf):
            count += len(sentences[place])
            words += [*sentences[place], LINE_END]
            place += 1
        text = "".join(" ".join(sentence) + "\n" for sentence in sentences[begin:place])
        (out / f"{name}.txt").write_text(text, "utf-8")
        parts[name] = words
    return parts


def number_words(parts: dict[str, list[str]]) -> tuple[dict[str, list[int]], int]:
    """Ids of all words, and the size of the vocabulary with UNK."""
    counts = Counter(parts["train"])
    known = [UNKNOWN, *(word for word, times in counts.items() if times >= RAREST)]
    ids = {word: number for number, word in enumerate(known)}
    return {name: [ids.get(word, 0) for word in words] for name, words in parts.items()}, len(ids)


def floors(parts: dict[str, list[int]], size: int) -> list[Row]:
    """Perplexities of n-gram models of order 1 to `ORDER`."""
    losses = {name: ngram_losses(parts["train"], parts[name], size, ORDER) for name in ("valid", "test")}
    names = ["unigrams", "bigrams", "trigrams", *(f"{n}-grams" for n in range(4, ORDER + 1))]
    rows = zip(names, losses["valid"], losses["test"], strict=True)
    return [Row(f"*floor: {name}, Kneser–Ney*", None, math.exp(valid), math.exp(test)) for name, valid, test in rows]


def measure(name: str, run: Path, out: Path) -> Row:
    generator = load_generator(run)
    scores = [generator.score(str(out / f"{part}.txt"))["perplexity"] for part in ("valid", "test")]
    return Row(name, generator.model.count_parameters(), *scores)


def table(rows: Sequence[Row]) -> str:
    """Best test perplexity first, with ratios to the best n-gram model."""
    best = min((row.test for row in rows if row.parameters is None), default=math.nan)
    cells = [
        (
            row.system,
            f"{row.parameters:,}" if row.parameters else "",
            f"{row.valid:.1f}",
            f"{row.test:.1f}",
            f"{row.test / best:.2f}",
        )
        for row in sorted(rows, key=lambda row: row.test)
    ]
    return markdown(
        ("system", "parameters", "perplexity, validation", "perplexity, test", "relative to the best n-grams"), cells
    )


def plan(name: str, size: int, out: Path, options: argparse.Namespace) -> Training:
    # The tokenizer keeps the most frequent words, and exactly `size` − 1 of them (and UNK) are frequent enough.
    changes = (*common_settings(out), f"data.vocabulary={size - 1 + RESERVED}", *SYSTEMS[name], *options.set)
    steps = scale_steps(RECIPE, changes, options.steps_scale)
    return Training(RECIPE, (str(out / "train.txt"),), (str(out / "valid.txt"),), (*changes, steps))


def run(options: argparse.Namespace, size: int) -> list[Row]:
    """Trains the systems in parallel and scores those that ended."""
    out: Path = options.out
    processes = Processes(out / "logs", at_once=options.at_once, until=deadline(options.minutes))

    def one(name: str) -> Row | None:
        try:
            train(plan(name, size, out, options), out / name, processes, name)
            return measure(name, out / name, out)
        except (Failure, Stopped) as error:
            print(f"{name}: {error}", flush=True)
            return None

    with ThreadPoolExecutor(options.at_once) as workers:
        return [row for row in workers.map(one, select(SYSTEMS, options.only)) if row]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("text", type=Path, help="the Brown corpus, one sentence per line, also .gz")
    add_options(result, at_once=3)
    return result


def main() -> None:
    options = parser().parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    words = split(options.text, out)
    parts, size = number_words(words)
    facts = [f"{name} {len(ids):,} tokens, {100 * ids.count(0) / len(ids):.1f} % UNK" for name, ids in parts.items()]
    about_data = f"{' · '.join(facts)} · vocabulary {size:,}"
    rows = run(options, size)
    wanted = len(select(SYSTEMS, options.only))
    text = f"{about()}\n{about_data}\n\n{table([*rows, *floors(parts, size)])}"
    (out / "brown.md").write_text(text, "utf-8")
    found = {"about": about(), "data": about_data, "scores": [asdict(row) for row in [*rows, *floors(parts, size)]]}
    (out / "brown.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{text}\nwritten to {out / 'brown.md'} and .json")
    sys.exit(len(rows) < wanted)


if __name__ == "__main__":
    main()
