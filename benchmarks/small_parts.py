"""Small parts of models, each beside the model without it: short sentences to translate, and characters to predict.

    python benchmarks/small_parts.py --out OUT [--pairs TRAIN,DEV] [--text FILE] [--seeds 1,2] [--only gru,sru]

--pairs: English, tab, French on each line (Tatoeba). 10,000 pairs of at most six words are for training, 500 of the second
file for the test. --text: running text, whose last tenth is for the test. Models have about a million parameters or fewer, and
the last weights are scored, so nothing is chosen by the scores.

The first system of a group is the control: the others differ from it in what their title names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, score_cell, select, sweep

from weft.data.text_lines import read_lines

WORDS, PAIRS, TESTED = 6, 10_000, 500
"""Words of a short sentence, training pairs, test pairs."""

PAIR_BUDGET = (
    *("data.vocabulary=3000", "train.steps=300", "train.batch_tokens=2048", "train.precision=float32", "train.ema=0"),
    *("train.schedule={kind: cosine, rate: 2.0e-3, warmup: 50}", "train.validate_every=0", "train.keep_best=false"),
)
TEXT_BUDGET = ("train.steps=300", "train.batch_tokens=2048", "train.validate_every=0")

RNN = ("model.dim=128", "model.embedding=128", "model.dropout=0.2")
GRU = (*RNN, "model.encoder_dim=256")
TINY = ("model.dim=128", "model.heads=4", "model.feedforward=256", "model.dropout=0.1")
ADDED = (
    *(*TINY, "model.encoder_layers=2", "model.decoder_layers=2"),
    *("model.position=sinusoidal", "model.encoder_self=full", "model.decoder_self=full"),
)
BLOCKS = "dim: 160, dilations: [1, 2, 4], dropout: 0.1"
BYTENET = f"{BLOCKS}, encoder_sets: 1, decoder_sets: 1, unfold_ratio: 1.2, unfold_extra: 4"
READER = "{kind: transformer, dim: 128, heads: 4, feedforward: 256, layers: 2, dropout: 0.1}"
WRITER = READER


@dataclass(frozen=True)
class System:
    """A row of the table. title: what differs from the first of the group · group: pairs or text, and a name."""

    group: tuple[str, str]
    title: str
    recipe: str
    sets: tuple[str, ...] = ()


def _composed(encoder: str, decoder: str) -> str:
    return f"model={{kind: composed, encoder: {encoder}, decoder: {decoder}, share_embeddings: all}}"


CELLS, SCORES, BLOCK = ("pairs", "cells"), ("pairs", "scores"), ("pairs", "Transformers")
DILATED, CHARACTERS = ("pairs", "dilated convolutions"), ("text", "characters")
SYSTEMS = {
    "gru": System(CELLS, "additive attention, GRU", "rnn-bahdanau", GRU),
    "rnn": System(CELLS, "plain RNN", "rnn-bahdanau", (*GRU, "model.cell=rnn")),
    "sru": System(CELLS, "SRU (Lei et al. 2017)", "rnn-bahdanau", (*GRU, "model.cell=sru")),
    "dot": System(SCORES, "Luong's dot, LSTM", "rnn-luong", (*RNN, "model.attention=dot")),
    "cosine": System(SCORES, "cosine (Graves et al. 2014)", "rnn-luong", (*RNN, "model.attention=cosine")),
    "transformer": System(BLOCK, "Transformer, 2 + 2 layers, sinusoids added", "transformer-tiny", ADDED),
    "joined": System(BLOCK, "positions concatenated", "transformer-tiny", (*ADDED, "model.position_join=concatenate")),
    "funnel": System(
        BLOCK,
        "Funnel: the second encoder layer has half the positions (Dai et al. 2020)",
        "transformer-tiny",
        (_composed("{kind: funnel, dim: 128, heads: 4, feedforward: 256, blocks: [1, 1], dropout: 0.1}", WRITER),),
    ),
    "prefix": System(BLOCK, "prefix language model, 4 layers (Dong et al. 2019)", "prefix-lm", (*TINY, "model.layers=4")),
    "bytenet": System(DILATED, "ByteNet", "bytenet", (f"model={{kind: bytenet, {BYTENET}}}",)),
    "sub-batch": System(
        DILATED,
        "sub-batch normalisation (Kalchbrenner et al. 2016)",
        "bytenet",
        (f"model={{kind: bytenet, {BYTENET}, block_norm: sub_batch}}",),
    ),
    "bytenet-rnn": System(
        DILATED,
        "recurrent ByteNet",
        "bytenet",
        (_composed(f"{{kind: bytenet, {BLOCKS}, sets: 1}}", "{kind: bytenet_rnn, dim: 160, dropout: 0.1}"),),
    ),
    "lm-transformer": System(CHARACTERS, "Transformer-XL, 3 layers (`lm-tiny`)", "lm-tiny"),
    "lm-lstm": System(
        CHARACTERS,
        "LSTM",
        "lm-tiny",
        ("model={kind: rnn_language_model, cell: lstm, dim: 320, embedding: 128, dropout: 0.1}", "task.carry=state"),
    ),
    "lm-bytenet": System(
        CHARACTERS,
        "ByteNet, which sees 63 characters (Kalchbrenner et al. 2016)",
        "lm-tiny",
        (
            "model={kind: bytenet_language_model, dim: 256, dilations: [1, 2, 4, 8, 16], sets: 1, dropout: 0.1}",
            "task.carry=nothing",
        ),
    ),
}
SHOWN = {"pairs": {"BLEU": 1, "chrF2": 1}, "text": {"bits_per_character": 3}}
"""Kind of the data → scores and their digits."""


def short(file: Path, most: int) -> list[str]:
    """The first lines of a file of pairs whose texts have at most six words."""
    found = (line for line in read_lines(str(file)) if all(len(text.split()) <= WORDS for text in line.split("\t")[:2]))
    return [line for _, line in zip(range(most), found, strict=False)]


def write(lines: Iterable[str], file: Path) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return file


def find_data(options: argparse.Namespace) -> dict[str, tuple[Path, Path]]:
    """Kind → files for training and for the test."""
    found: dict[str, tuple[Path, Path]] = {}
    folder = options.out.absolute()
    if options.pairs:
        known, asked = map(Path, options.pairs.split(","))
        lines = short(known, 10**9)
        every = max(1, len(lines) // PAIRS)
        found["pairs"] = write(lines[::every][:PAIRS], folder / "train.tsv"), write(short(asked, TESTED), folder / "test.tsv")
    if options.text:
        lines = list(read_lines(str(options.text)))
        first = len(lines) * 9 // 10
        found["text"] = write(lines[:first], folder / "train.txt"), write(lines[first:], folder / "test.txt")
    return found


def plan(name: str, seed: int, data: Mapping[str, tuple[Path, Path]], options: argparse.Namespace) -> Run:
    system = SYSTEMS[name]
    kind = system.group[0]
    known, asked = map(str, data[kind])
    budget = PAIR_BUDGET if kind == "pairs" else TEXT_BUDGET
    sets = (*common_settings(options.out.absolute()), *system.sets, *budget, f"train.seed={seed}", *options.set)
    sets = (*sets, scale_steps(system.recipe, sets, options.steps_scale))
    return Run(f"{name}-{seed}", system.recipe, known, sets, {"test": asked}, beam=1 if kind == "pairs" else 0)


def table(outcomes: Sequence[Outcome], names: Sequence[str], kind: str) -> str:
    """The scores of each system: their mean, and those of all seeds."""
    rows = []
    for name in names:
        own = [each for each in outcomes if each.run.name.rpartition("-")[0] == name and not each.error]
        cells = []
        for key, digits in SHOWN[kind].items():
            values = [each.scores["test"][key] for each in own]
            every = ", ".join(score_cell(each, "test", key, digits) for each in own)
            cells.append(f"{mean(values):.{digits}f} ({every})" if values else "–")
        about = (f"{own[0].parameters / 1e3:.0f}k", f"{mean(each.seconds for each in own):.0f}") if own else ("–", "–")
        rows.append((f"`{name}`", SYSTEMS[name].title, *cells, *about))
    return markdown(("system", "", *SHOWN[kind], "parameters", "seconds"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="", metavar="TRAIN,DEV", help="tables of English and French sentences")
    parser.add_argument("--text", type=Path, help="running text")
    parser.add_argument("--seeds", default="1,2", help="seeds, separated by commas (default 1,2)")
    add_options(parser, at_once=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = find_data(options)
    names = [name for name in select(SYSTEMS, options.only) if SYSTEMS[name].group[0] in data]
    if not names:
        sys.exit("give --pairs, --text or both")
    runs = [plan(name, int(seed), data, options) for name in names for seed in options.seeds.split(",")]
    outcomes = sweep(runs, options, prepare=0)
    tables = [table(outcomes, own, kind) for kind in data if (own := [n for n in names if SYSTEMS[n].group[0] == kind])]
    sys.exit(report(options.out, "small_parts", "\n".join(tables), outcomes))


if __name__ == "__main__":
    main()
