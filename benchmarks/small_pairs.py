"""Comparisons on a few thousand short sentences, for a CPU: positions, little data against much, noise at test time.

    python benchmarks/small_pairs.py TRAIN.tsv.gz TEST.tsv --out OUT [--only rotary,rnn-2000] [--seeds 2] [--minutes 20]

TRAIN and TEST are pairs with a tab in between, such as Tatoeba's English and French, from the shortest to the longest. Training
takes 8,000 pairs at equal steps, or 2,000 or 500 of these; the test takes 500. All systems make the same number of updates of
the same size, about a million weights each. BLEU is by greedy search, without checkpoint selection and without validation.

positions    Transformers that differ in what says where a token is. Of the test, the sources of up to 6 words, those of 7 and
             more, and `joined`: three sources at random in one text, longer than nearly all of training
little data  `rnn-COUNT` and `rotary-COUNT`: an LSTM with attention and the Transformer with COUNT pairs (`rotary`: 8,000)
noise        the two with 8,000 pairs, when 5, 10 or 20 % of the words of the test are left out, exchanged with the next, or
             (words of at least four letters) mistyped; more noise includes less
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from agreement import POSITIONS
from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, select, sweep

from weft.data.changed_copies import LEAST_LETTERS, mistyped
from weft.data.formats import open_pairs
from weft.evaluation.metrics import score

Pair = tuple[str, str]
SIZES, TESTED, SHORT, TOGETHER = (500, 2000, 8000), 500, 6, 3
SHARES = (5, 10, 20)
COMMON = (
    "data.vocabulary=2000",
    "data.max_length=100",
    "model.dropout=0.1",
    "train.steps=700",
    "train.batch_tokens=1024",
    "train.schedule={kind: cosine, rate: 2.0e-3, warmup: 100}",
    "train.validate_every=0",
    "train.precision=float32",
    "train.ema=0",
    "decode.search=greedy",
)
STACKS = ("model.dim=128", "model.heads=4", "model.feedforward=512", "model.encoder_layers=2", "model.decoder_layers=2")
RNN = ("model.dim=224", "model.embedding=160", "model.encoder_dim=224")


SYSTEMS: dict[str, tuple[str, tuple[str, ...], int]] = {
    **{name: ("transformer-tiny", (*STACKS, *sets), SIZES[-1]) for name, (_, sets) in POSITIONS.items()},
    **{f"rotary-{count}": ("transformer-tiny", (*STACKS, *POSITIONS["rotary"][1]), count) for count in SIZES[:-1]},
    **{f"rnn-{count}": ("rnn-luong", RNN, count) for count in SIZES},
}
"""System → recipe, changes to it, pairs of training."""


def dropped(words: list[str], chosen: list[bool], _: random.Random) -> list[str]:
    return [word for word, gone in zip(words, chosen, strict=True) if not gone] or words[:1]


def swapped(words: list[str], chosen: list[bool], _: random.Random) -> list[str]:
    found = list(words)
    for at in range(len(found) - 1):
        if chosen[at]:
            found[at], found[at + 1] = found[at + 1], found[at]
    return found


def typos(words: list[str], chosen: list[bool], chance: random.Random) -> list[str]:
    drawn = [mistyped(word, chance) for word in words]
    return [new if some else word for word, new, some in zip(words, drawn, chosen, strict=True)]


NOISES: dict[str, Callable[[list[str], list[bool], random.Random], list[str]]] = {
    "dropped": dropped,
    "swapped": swapped,
    "typos": typos,
}


def with_noise(kind: str, share: int, texts: Sequence[str]) -> list[str]:
    """The texts with noise on `share` per cent of their words. Draws are the same for all shares."""
    found = []
    for number, text in enumerate(texts):
        chance, words = random.Random(f"{kind} {number}"), text.split()
        chosen = [100 * chance.random() < share for _ in words]
        found.append(" ".join(NOISES[kind](words, chosen, chance)))
    return found


def equally_spaced(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """`count` of the pairs, at equal steps; fewer of the same pairs if `count` is a divisor of another one."""
    return [pairs[len(pairs) * at // count] for at in range(count)]


def write(file: Path, pairs: Sequence[Pair]) -> str:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return str(file)


def write_data(train: str, test: str, out: Path) -> tuple[dict[int, str], dict[str, str], list[Pair]]:
    """The training data of each size, the tests by name, and the pairs of the whole test."""
    out.mkdir(parents=True, exist_ok=True)
    pairs, tested = equally_spaced(list(open_pairs(train)), SIZES[-1]), equally_spaced(list(open_pairs(test)), TESTED)
    sizes = {count: write(out / f"train-{count}.tsv", equally_spaced(pairs, count)) for count in SIZES}
    mixed = random.Random(1).sample(tested, len(tested))
    groups = zip(*(mixed[at::TOGETHER] for at in range(TOGETHER)), strict=False)
    joined = [(" ".join(source for source, _ in some), " ".join(target for _, target in some)) for some in groups]
    tests = {
        "all": tested,
        "short": [pair for pair in tested if len(pair[0].split()) <= SHORT],
        "long": [pair for pair in tested if len(pair[0].split()) > SHORT],
        "joined": joined,
    }
    sources, targets = zip(*tested, strict=True)
    for kind in NOISES:
        tests |= {f"{kind}-{share}": list(zip(with_noise(kind, share, sources), targets, strict=True)) for share in SHARES}
    return sizes, {name: write(out / f"test-{name}.tsv", some) for name, some in tests.items()}, tested


def plan(name: str, seed: int, data: dict[int, str], tests: dict[str, str], options: argparse.Namespace) -> Run:
    recipe, own, count = SYSTEMS[name]
    sets = (*COMMON, *own, f"train.seed={seed}", *common_settings(options.out))
    steps = scale_steps(recipe, sets, options.steps_scale)
    plain = ("all", "short", "long", "joined")
    wanted = tests if name in ("rotary", f"rnn-{SIZES[-1]}") else plain if name in POSITIONS else plain[:1]
    return Run(f"{name}@{seed}", recipe, data[count], (*sets, steps, *options.set), {each: tests[each] for each in wanted}, 0)


def bleu(some: Sequence[Outcome], test: str) -> str:
    """The BLEU of each seed on a test."""
    return ", ".join(f"{each.scores[test]['BLEU']:.1f}" for each in some) or "–"


def tables(outcomes: Sequence[Outcome]) -> str:
    """Positions by length, systems by size of the data, and noise."""
    found = {name: [each for each in outcomes if each.run.name.startswith(f"{name}@") and each.scores] for name in SYSTEMS}
    plain = [f"all {TESTED}", f"up to {SHORT} words", "longer", f"{TOGETHER} joined"]
    rows = [
        [f"`{name}`", title, *(bleu(found[name], test) for test in ("all", "short", "long", "joined")), _cost(found[name])]
        for name, (title, _) in POSITIONS.items()
    ]
    text = markdown(["positions", "", *plain, "weights; seconds"], rows)
    sizes = [
        [title, *(bleu(found[names.get(count, f"{kind}-{count}")], "all") for count in SIZES), _cost(found[last])]
        for kind, title, last, names in (
            ("rnn", "LSTM with attention", f"rnn-{SIZES[-1]}", {}),
            ("rotary", "Transformer", "rotary", {SIZES[-1]: "rotary"}),
        )
    ]
    text += "\n" + markdown(["system", *(f"{count:,} pairs" for count in SIZES), "weights; seconds"], sizes)
    noisy = [
        [title, kind, bleu(found[name], "all"), *(bleu(found[name], f"{kind}-{share}") for share in SHARES)]
        for name, title in ((f"rnn-{SIZES[-1]}", "LSTM with attention"), ("rotary", "Transformer"))
        for kind in NOISES
    ]
    return text + "\n" + markdown(["system", "words", "0 %", *(f"{share} %" for share in SHARES)], noisy)


def _cost(some: Sequence[Outcome]) -> str:
    return f"{some[0].parameters / 1e6:.2f}M; {statistics.mean(each.seconds for each in some):.0f}" if some else "–"


def floor(pairs: Sequence[Pair]) -> str:
    """The score of the source as its own translation."""
    copied, targets = zip(*pairs, strict=True)
    return f"Copying the source scores {score(copied, targets)['BLEU'].value:.1f} BLEU.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="pairs to train on, with a tab in between")
    parser.add_argument("test", help="pairs of the test")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each system (default 2)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    data, tests, tested = write_data(options.train, options.test, options.out)
    names, seeds = select(SYSTEMS, options.only), range(1, options.seeds + 1)
    outcomes = sweep([plan(name, seed, data, tests, options) for seed in seeds for name in names], options)
    words = sum(any(len(word) >= LEAST_LETTERS for word in source.split()) for source, _ in tested)
    note = f"{floor(tested)}{words} of {len(tested)} sources have a word that can be mistyped.\n"
    sys.exit(report(options.out, "small_pairs", f"{tables(outcomes)}\n{note}", outcomes))


if __name__ == "__main__":
    main()
