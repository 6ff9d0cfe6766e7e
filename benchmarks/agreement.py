"""Subject–verb agreement by distance and by attractors: RNNs, convolutions, and Transformers with 1 to 16 heads.

    python benchmarks/agreement.py --out OUT [--only rnn,heads-4] [--seeds 2] [--minutes 20] [--steps-scale 0.01]

Trains small models on generated phrases of up to 12 words between a noun and its verb (`generated:agreement`), and tests by
contrastive pairs whether they prefer the right verb, over distances seen in training and longer ones, and past 0 to 3
attractors. The question is that of Tran et al. 2018 and Tang et al. 2018. Of real sentences, `contrastive.py` makes such pairs;
any language model, such as those of `brown.py`, is tested on them by `weft evaluate RUN --contrastive FILE`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, select, sweep

from weft.data.generators import PairGenerator
from weft_studies.synthetic import VERBS, attractors

TRAIN = "generated:agreement?count=20000&longest=12"
SEEN, UNSEEN = (1, 2, 4, 8, 12), (16, 24)
"""Distances of the test."""
MOST, EACH = 3, 200
"""The most attractors that have a group of their own, and the pairs of each distance."""

COMMON = (
    "data.tokenizer={kind: words}",
    "model.dropout=0",
    "train.steps=1500",
    "train.batch_tokens=256",
    "decode.search=greedy",
    "task.label_smoothing=0",
)
RATE = (
    "train.schedule={kind: cosine, rate: 1.0e-3, warmup: 100}",
    "train.validate_every=0",
    "train.precision=float32",
    "train.ema=0",
)
RNN = ("model.dim=64", "model.embedding=64", "model.encoder_layers=2", "model.decoder_layers=1", "model.bridge=tanh")
STACKS = ("model.dim=64", "model.feedforward=256", "model.encoder_layers=2", "model.decoder_layers=2")
SINUSOIDS = ("model.position=sinusoidal", "model.encoder_self=full", "model.decoder_self=full")


def _relative(kind: str) -> tuple[str, ...]:
    spec = f"{{kind: full, position: {kind}}}"
    return "model.position=none", f"model.encoder_self={spec}", f"model.decoder_self={spec}"


POSITIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("none: the source is a bag of words", _relative("none")),
    "sinusoid": ("sinusoids (Vaswani et al. 2017)", SINUSOIDS),
    "learned": ("a learned vector for each position (Gehring et al. 2017)", ("model.position=learned", *SINUSOIDS[1:])),
    "shaw": ("a learned vector for each distance (Shaw et al. 2018)", _relative("shaw")),
    "alibi": ("ALiBi (Press et al. 2022)", _relative("alibi")),
    "rotary": ("rotary (Su et al. 2021)", _relative("rotary")),
}
"""What says to a Transformer where a token is, for comparisons that other scripts make: title, settings."""

SYSTEMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "rnn-fixed": ("LSTM left to right, fixed context", "rnn-fixed", (*RNN, "model.readout=tanh", "model.reverse_source=false")),
    "rnn": ("bidirectional LSTM with attention", "rnn-luong", (*RNN, "model.encoder_dim=64")),
    "cnn": (
        "ConvS2S, width 3",
        "convs2s",
        ("model.dim=64", "model.channels=64", "model.encoder_layers=4", "model.decoder_layers=2"),
    ),
    **{
        name: (f"Transformer, {count} head{'s' * (count > 1)}", "transformer-tiny", (*STACKS, f"model.heads={count}"))
        for name, count in (("heads-1", 1), ("heads-2", 2), ("heads-4", 4), ("heads-8", 8), ("heads-16", 16))
    },
    "heads-4-sinusoids": ("Transformer, 4 heads, sinusoids", "transformer-tiny", (*STACKS, "model.heads=4", *SINUSOIDS)),
}


def contrasts() -> Iterator[tuple[str, int, int]]:
    """(phrase TAB right TAB wrong, distance, attractors) of phrases that training never sees."""
    for distance in (*SEEN, *UNSEEN):
        for phrase, verb in PairGenerator("agreement", count=EACH, seed=2, split="test", shortest=distance, longest=distance):
            wrong = VERBS[verb == VERBS[False]]
            yield f"{phrase}\t{verb}\t{wrong}", distance, attractors(phrase)


def write_tests(out: Path) -> dict[str, str]:
    """Two files with the same kind of pairs: all distances, and those of training by attractors."""
    out.mkdir(parents=True, exist_ok=True)
    found = list(contrasts())
    lines = {
        "distance": [f"{line}\t{distance} words" for line, distance, _ in found],
        "attractors": [f"{line}\t{count} attractors" for line, distance, count in found if count <= MOST and distance in SEEN],
    }
    for name, some in lines.items():
        (out / f"{name}.tsv").write_text("".join(f"{line}\n" for line in some), "utf-8")
    return {name: str(out / f"{name}.tsv") for name in lines}


def plan(name: str, seed: int, tests: dict[str, str], options: argparse.Namespace) -> Run:
    _, recipe, own = SYSTEMS[name]
    sets = (*COMMON, *RATE, *own, f"train.seed={seed}", *common_settings(options.out))
    steps = scale_steps(recipe, sets, options.steps_scale)
    return Run(f"{name}@{seed}", recipe, TRAIN, (*sets, steps, *options.set), contrasts=tests)


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each system, with means over seeds."""
    groups = [("distance", f"{each} words") for each in (*SEEN, *UNSEEN)]
    groups += [("attractors", f"{count} attractors") for count in range(MOST + 1)]
    rows = []
    for name in dict.fromkeys(each.run.name.partition("@")[0] for each in outcomes):
        some = [each for each in outcomes if each.run.name.partition("@")[0] == name and each.scores]
        if not some:
            continue
        figures = [[each.scores[test][group] for each in some] for test, group in groups]
        about = SYSTEMS[name][0], f"{some[0].parameters / 1e3:,.0f}k", f"{statistics.mean(each.seconds for each in some):.0f}"
        rows.append([f"`{name}`", *about, *(f"{statistics.mean(each):.1f}" for each in figures)])
    return markdown(["system", "", "parameters", "seconds", *(group for _, group in groups)], rows)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--seeds", type=int, default=2, help="runs of each system")
    add_options(result, at_once=8)
    return result


def main() -> None:
    options = parser().parse_args()
    tests = write_tests(options.out)
    names = select(SYSTEMS, options.only)
    outcomes = sweep([plan(name, seed, tests, options) for name in names for seed in range(1, options.seeds + 1)], options)
    sys.exit(report(options.out, "agreement", table(outcomes), outcomes))


if __name__ == "__main__":
    main()
