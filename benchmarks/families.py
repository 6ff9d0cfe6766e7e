"""Trains every family and attention on Multi30k en-de under one budget, and prints one table.

    python benchmarks/families.py DIR --out OUT [--at-once 8] [--minutes 9] [--only bahdanau,convs2s] [--steps-scale 0.01]

DIR holds train, val and test_2016_flickr, each as .en and .de. Every system sees 3,333 batches of at most 12,288 padded target
tokens and has at most 11 million parameters. There is no validation, and no checkpoint is selected. Scores are BLEU (sacreBLEU
13a, cased) and chrF2 with a beam of 5. Runs share the device, so their seconds only indicate an order of magnitude.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainings import Outcome, Run, add_options, common_settings, count_parameters, markdown, report, score_cell, select, sweep

from weft.config.sections import recipes

STEPS, BATCH, PARAMETERS = 3333, 12_288, 11_000_000
TESTS = {"test": "test_2016_flickr", "val": "val"}


@dataclass(frozen=True)
class System:
    """A row of the table: title, recipe and changes to it. published: BLEU in a paper, on its own data · decode: settings of
    the test."""

    title: str
    recipe: str
    sets: tuple[str, ...] = ()
    published: str = ""
    decode: tuple[str, ...] = ()


def _rnn(title: str, recipe: str, attention: str) -> System:
    return System(title, recipe, (f"model.attention={attention}",))


CHO = (
    "model.style=cho",
    "model.cell=gru",
    "model.dim=704",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.reverse_source=false",
    "model.bridge=tanh",
    "model.readout=maxout",
)

# Sentences have 15 tokens on average, and the published window of ±10 would cover nearly all of them.
WINDOW = "window: 5"

ONE_HEAD = ("model.cross=additive",)
ROTARY = "{kind: full, position: rotary, bias: false}"

SHARED = "dropout: 0.4, attention_dropout: 0.1, feedforward_dropout: 0.1, position: none"
READER = f"{{kind: transformer, {SHARED}, mixer: {ROTARY}}}"
WRITER = f"{{kind: transformer, {SHARED}, mixer: {ROTARY}, cross: {{kind: full, bias: false}}}}"
LSTM = "kind: rnn, cell: lstm, dim: 512, embedding: 256, dropout: 0.4"


def _composed(title: str, encoder: str, decoder: str) -> System:
    """A composition, trained as transformer-small is."""
    spec = f"{{kind: composed, encoder: {encoder}, decoder: {decoder}, share_embeddings: all}}"
    return System(title, "transformer-small", (f"model={spec}",))


SYSTEMS = {
    "fixed-lstm": System("fixed context, 2 LSTM layers, source reversed (Sutskever et al. 2014)", "rnn-fixed"),
    "fixed-gru": System("fixed context at every step, GRU (Cho et al. 2014)", "rnn-fixed", CHO),
    "bahdanau": System("additive attention, GRU (Bahdanau et al. 2015)", "rnn-bahdanau"),
    "normed": _rnn("normed additive (Salimans & Kingma 2016)", "rnn-bahdanau", "additive_normed"),
    "luong-dot": _rnn("Luong dot, input feeding", "rnn-luong", "dot"),
    "luong-general": System("Luong general, input feeding", "rnn-luong"),
    "luong-concat": _rnn("Luong concat, input feeding", "rnn-luong", "concat"),
    "luong-location": _rnn("Luong location, input feeding", "rnn-luong", "location"),
    "luong-unfed": System("Luong general, without input feeding", "rnn-luong", ("model.input_feeding=false",)),
    "luong-cosine": _rnn("cosine (Graves et al. 2014), input feeding", "rnn-luong", "cosine"),
    "local-m": _rnn("Luong local-m, window ±5, input feeding", "rnn-luong", f"{{kind: local_m, {WINDOW}}}"),
    "local-p": _rnn("Luong local-p, window ±5, input feeding", "rnn-luong", f"{{kind: local_p, {WINDOW}}}"),
    "monotonic": _rnn("monotonic (Raffel et al. 2017)", "rnn-bahdanau", "monotonic"),
    "forced": _rnn("monotonic, forced forward", "rnn-bahdanau", "{kind: monotonic, forced: true, hold: true}"),
    "location-aware": _rnn("location-aware (Chorowski et al. 2015)", "rnn-bahdanau", "location_aware"),
    "hard": System("hard, by REINFORCE (Xu et al. 2015)", "rnn-hard"),
    "key-value": _rnn("key–value (Daniluk et al. 2017)", "rnn-bahdanau", "key_value"),
    "bahdanau-plain": System("additive attention, plain RNN", "rnn-bahdanau", ("model.cell=rnn",)),
    "bahdanau-sru": System("additive attention, SRU (Lei et al. 2017)", "rnn-bahdanau", ("model.cell=sru",)),
    "convs2s": System("ConvS2S (Gehring et al. 2017)", "convs2s"),
    "bytenet": System("ByteNet (Kalchbrenner et al. 2016)", "bytenet"),
    "mixed-rnn-one": System("Transformer blocks, GRUs for self-attention, one additive head", "mixed-rnn", ONE_HEAD),
    "mixed-rnn": System("Transformer blocks, GRUs for self-attention (Domhan 2018)", "mixed-rnn"),
    "mixed-rnn-half": System("the same, self-attention in the encoder", "mixed-rnn", (f"model.encoder_self={ROTARY}",)),
    "mixed-cnn-one": System("Transformer blocks, convolutions for self-attention, one additive head", "mixed-cnn", ONE_HEAD),
    "mixed-cnn": System("Transformer blocks, convolutions for self-attention (Domhan 2018)", "mixed-cnn"),
    "mixed-cnn-half": System("the same, self-attention in the encoder", "mixed-cnn", (f"model.encoder_self={ROTARY}",)),
    "transformer": System("Transformer, pre-norm, rotary positions", "transformer-small"),
    "wiring-same": System("Transformer, each layer reads the one of its depth", "transformer-small", ("model.wiring=same",)),
    "transformer-rnn": _composed(
        "Transformer encoder, Luong's RNN decoder", READER, f"{{{LSTM}, style: luong, attention: general, input_feeding: true}}"
    ),
    "convs2s-transformer": _composed("ConvS2S encoder, Transformer decoder", "{kind: convs2s, dropout: 0.3}", WRITER),
    "rnn-transformer": _composed("bidirectional LSTM encoder, Transformer decoder", f"{{{LSTM}, layers: 2}}", WRITER),
    "funnel": _composed(
        "Funnel-Transformer's encoder (Dai et al. 2020)",
        f"{{kind: funnel, {SHARED}, blocks: [2, 2, 1], mixer: {ROTARY}}}",
        WRITER,
    ),
    "bytenet-rnn": _composed(
        "recurrent ByteNet (Kalchbrenner et al. 2016)",
        "{kind: bytenet, dim: 480, dropout: 0.3}",
        "{kind: bytenet_rnn, dim: 480, dropout: 0.3}",
    ),
    "prefix-lm": System("prefix language model, one stack with UniLM's mask (Dong et al. 2019)", "prefix-lm"),
    "joined-positions": System(
        "Transformer, positions concatenated",
        "transformer-small",
        ("model.position=sinusoidal", "model.position_join=concatenate"),
    ),
    "transformer-2017": System("Transformer as published (Vaswani et al. 2017)", "transformer-2017"),
    "wiring-mix": System("Transformer, each layer reads a learned mix", "transformer-small", ("model.wiring=mix",)),
}


Systems = Mapping[str, System]


def pairs(folder: Path, split: str) -> str:
    return f"{folder / split}.en,{folder / split}.de"


def plan(
    name: str, data: str, tests: dict[str, str], options: argparse.Namespace, label: str = "", systems: Systems = SYSTEMS
) -> Run:
    """The run of a system under the budget. There is no validation, so the moving average of the weights is scored."""
    system, steps = systems[name], max(1, round(STEPS * options.steps_scale))
    budget = (f"train.steps={steps}", f"train.batch_tokens={BATCH}", "train.accumulate=1", "train.validate_every=0")
    sets = (*system.sets, *budget, *common_settings(options.out), *options.set)
    return Run(name + label, system.recipe, data, sets, tests, decode=system.decode)


def within_budget(run: Run) -> bool:
    """Prints a run's parameters and tokens; returns whether both are within the budget."""
    config = run.config()
    train, parameters = config.train, count_parameters(config)
    tokens = train.steps * train.batch_tokens * train.accumulate
    fine = parameters <= PARAMETERS and tokens <= STEPS * BATCH
    print(f"{run.name:<24} {parameters:>12,} parameters {tokens:>12,} padded target tokens{'' if fine else '  TOO MANY'}")
    return fine


def available(names: list[str], systems: Systems) -> list[str]:
    """The systems whose recipes exist."""
    known = recipes()
    for name in names:
        if systems[name].recipe not in known:
            print(f"{name}: skipped, there is no recipe {systems[name].recipe}")
    return [name for name in names if systems[name].recipe in known]


def table(outcomes: list[Outcome], at_once: int, systems: Systems = SYSTEMS) -> str:
    """A row for each system, with the scores of all its seeds."""
    published = any(system.published for system in systems.values())
    headings = ("system", "", "parameters", "BLEU test", "BLEU val", "chrF2 test", "seconds", *["published"] * published)
    rows = []
    for name in dict.fromkeys(each.run.name.partition("@")[0] for each in outcomes):
        seeds = [each for each in outcomes if each.run.name.partition("@")[0] == name]
        scores = (
            ", ".join(score_cell(each, test, metric) for each in seeds)
            for test, metric in (("test", "BLEU"), ("val", "BLEU"), ("test", "chrF2"))
        )
        seconds = ", ".join(f"{each.seconds:.0f}" for each in seeds)
        about = (f"`{name}`", systems[name].title, f"{seeds[0].parameters / 1e6:.1f}M")
        rows.append((*about, *scores, seconds, *[systems[name].published or "–"] * published))
    note = f"Training seconds with up to {at_once} runs sharing the device."
    return f"{markdown(headings, rows)}\n{note}\n"


def parser(about: str | None = __doc__) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("folder", type=Path, help="folder of Multi30k")
    result.add_argument("--label", default="", help="suffix for names, to try settings with --set")
    result.add_argument("--seeds", type=int, default=1, help="runs of each system")
    add_options(result, at_once=8)
    return result


def compare(name: str, systems: Systems, options: argparse.Namespace) -> None:
    """Trains and scores the systems, and prints their table."""
    tests = {test: pairs(options.folder, split) for test, split in TESTS.items()}
    chosen, data = available(select(systems, options.only), systems), pairs(options.folder, "train")
    label = f"@{options.label}" if options.label else ""
    runs = []
    for system in chosen:
        for seed in range(1, options.seeds + 1):
            own = replace(systems[system], sets=(*systems[system].sets, *([f"train.seed={seed}"] if seed > 1 else [])))
            runs.append(plan(system, data, tests, options, f"{label or '@'}{seed}" if seed > 1 else label, {system: own}))
    if beyond := [run.name for run in runs if not within_budget(run)]:
        sys.exit(f"over the budget: {', '.join(beyond)}")
    outcomes = sweep(runs, options)
    sys.exit(report(options.out, f"{name}{label}", table(outcomes, options.at_once, systems), outcomes))


def main() -> None:
    compare("families", SYSTEMS, parser().parse_args())


if __name__ == "__main__":
    main()
