"""Writes docs/choices.md: every part that a configuration can name, as `weft list` shows it, and a command that uses it.

    python docs/choices.py

`tests/test_choices.py` checks that the page is up to date and that every command accepts every part of its list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from weft.cli.options import LISTS
from weft.config.plugins import installed_in, is_bundled
from weft.config.registry import find_table, first_line, load
from weft.layers import RELATIVE_POSITIONS

PAGE = Path(__file__).parent / "choices.md"
TRAIN, TEST = "weft train {recipe} --data train.tsv --set", "weft translate runs/ende input.txt --set"
POSITIONS = ("none", "learned", "rotary", "alibi", "shaw")
RELATIVE = f"{TRAIN} model.position=none model.encoder_self.position={{}} model.decoder_self.position={{}}"
INTRO = """# Choices

Every part of a model, of training and of decoding that a configuration names is on this page, as `weft list` shows it, with a
command that uses it. Replace the name in the command by any other of the list. Options of a part are written as in
`--set 'train.schedule={kind: noam, warmup: 8000}'`; `weft new my.yaml` writes a file that describes all of them. Packages can
[add parts](../CONTRIBUTING.md#third-party-packages). Figures are those of [Results](results.md), which has more; several
in a cell are several seeds.

`python docs/choices.py` writes this page.
"""


RESULTS = Path(__file__).parent / "results.md"


@dataclass(frozen=True)
class Measured:
    """A column of a table of docs/results.md. section, column: their headings · about: what is measured.

    names: row → part; otherwise a row begins with the name of its part
    """

    section: str
    column: str
    about: str
    names: dict[str, str] = field(default_factory=dict)

    def figures(self) -> dict[str, str]:
        """The figure of each part that has a row."""
        text = RESULTS.read_text("utf-8")
        body = re.split(r"^#+ ", text.partition(f"# {self.section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        found, place = {}, None
        for line in body.splitlines():
            cells = [cell.strip(" `*") for cell in line.strip("|").split("|")] if line.startswith("|") else []
            if self.column in cells:
                place = cells.index(self.column)
            elif not cells:
                place = None
            elif place is not None and cells[place]:
                name = self.names.get(cells[0], "") if self.names else cells[0].split(" ")[0]
                found.setdefault(name, cells[place])
        assert found, f"docs/results.md: no {self.column} in {self.section}"
        return found

    def __str__(self) -> str:
        anchor = re.sub(r"[^a-z0-9 -]", "", self.section.lower()).replace(" ", "-")
        return f"[{self.about}](results.md#{anchor})"


@dataclass(frozen=True)
class Choice:
    """The entry of the page for a list. command: with `{}` in the place of a part, here `example`, on top of a recipe.

    also: commands for parts that need options of their own, with the recipe of each · measured: figures of the parts
    """

    about: str
    command: str
    example: str
    recipe: str = "transformer-small"
    also: dict[str, str] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()

    def with_part(self, kind: str) -> str:
        return self.also.get(kind, self.command).replace("{recipe}", self.recipe).replace("{}", kind)


def _composed(front: str = "tokens", encoder: str = "transformer", decoder: str = "transformer") -> str:
    return f"{TRAIN} 'model={{kind: composed, front: {front}, encoder: {encoder}, decoder: {decoder}}}'"


def _slots(table: str) -> dict[str, str]:
    """Commands of attentions that an encoder cannot use."""
    uses = {kind: load(find_table(table), kind).uses for kind in find_table(table)}
    slots = {kind: "cross" if "cross" in each else "decoder_self" for kind, each in uses.items() if "encoder" not in each}
    return {kind: f"{TRAIN} model.{slot}={{}}" for kind, slot in slots.items()}


FAMILIES = "Families and attentions under one budget"
ONE_BUDGET = "BLEU on Multi30k under one budget"
SINGLE = "One choice at a time"
SLOT = Measured("c. Multi30k en-de, in the encoder", "BLEU", "BLEU on Multi30k in the encoder, 900 steps")
ADDITIVE = {"bahdanau": "additive", "normed": "additive_normed"}
LUONG = {f"luong-{kind}": kind for kind in ("dot", "general", "concat")}
OTHERS = {"local-p": "local_p", "monotonic": "monotonic", "location-aware": "location_aware", "hard": "hard"}
FOR_RNN = Measured(
    FAMILIES, "BLEU test_2016_flickr", "in a recurrent decoder", {**ADDITIVE, **LUONG, **OTHERS, "key-value": "key_value"}
)


def single(about: str, **rows: str) -> Measured:
    """Figures of single choices: part → row."""
    return Measured(SINGLE, "BLEU test", about, {row.replace("_", "-"): part for part, row in rows.items()})


CHOICES = {
    "models": Choice(
        "Families of models, each with one flat list of options.",
        f"{TRAIN} model={{}}",
        "convs2s",
        "transformer-tiny",
        measured=(
            Measured(
                FAMILIES,
                "BLEU test_2016_flickr",
                ONE_BUDGET,
                {"transformer": "transformer", "convs2s": "convs2s", "bytenet": "bytenet", "bahdanau": "rnn"},
            ),
        ),
    ),
    "fronts": Choice(
        "How a composed model turns its input into vectors; see [Tasks](tasks.md).", _composed(front="{}"), "tokens"
    ),
    "encoders": Choice("Encoders of composed models.", _composed(encoder="{}"), "rnn"),
    "decoders": Choice("Decoders of composed models.", _composed(decoder="{}"), "rnn"),
    "canvases": Choice(
        "How many positions a decoder that writes all tokens at once has; see [One-pass translation](one-pass.md).",
        _composed(decoder="{kind: parallel, canvas: {}}"),
        "length",
    ),
    "attentions": Choice(
        "`weft list attentions` says where each is used: `encoder`, `causal` (`model.decoder_self`) or `cross`. "
        "[Mechanisms](mechanisms.md) has the formulas.",
        f"{TRAIN} model.encoder_self={{}}",
        "local",
        also=_slots("weft.attention:ATTENTIONS"),
        measured=(SLOT, FOR_RNN),
    ),
    "mixers": Choice(
        "Self-attention replacements; see [Mechanisms](mechanisms.md).",
        f"{TRAIN} model.encoder_self={{}}",
        "fnet",
        measured=(SLOT,),
    ),
    "patterns": Choice(
        "Which keys a query sees, for the attentions `joined` and `mixed`.",
        f"{TRAIN} 'model.encoder_self={{kind: joined, patterns: [local, {{}}]}}'",
        "global",
    ),
    "positions": Choice(
        "The first four are added to embeddings, the others are part of self-attention.",
        f"{TRAIN} model.position={{}}",
        "sinusoidal",
        also=dict.fromkeys(RELATIVE_POSITIONS, RELATIVE),
        measured=(single(ONE_BUDGET, **{kind: kind for kind in POSITIONS}, sinusoidal="sinusoid"),),
    ),
    "cells": Choice("Cells of recurrent layers.", f"{TRAIN} model.cell={{}} model.bridge=tanh", "gru", "rnn-luong"),
    "poolings": Choice("How a classifier makes one vector of a text.", f"{TRAIN} task.pooling={{}}", "max", "classifier"),
    "comparisons": Choice(
        "How two texts become one vector; see [Two texts](tasks.md#two-texts).",
        f"{TRAIN} task.comparison={{}}",
        "siamese",
        "pairs-attention",
    ),
    "estimators": Choice(
        "What reads a source and its translation to estimate quality; see [Quality estimation](quality.md).",
        f"{TRAIN} task.estimator={{}}",
        "esim",
        "quality",
    ),
    "readers": Choice(
        "How a passage and a question meet; see [Reading](tasks.md#reading).",
        f"{TRAIN} task.reader={{}}",
        "attention_sum",
        "reader",
    ),
    "tasks": Choice("See [Tasks](tasks.md) for data and commands.", f"{TRAIN} task={{}}", "translation", "transformer-tiny"),
    "tokenizers": Choice("See [Data](data.md).", f"{TRAIN} data.tokenizer={{}}", "unigram"),
    "generators": Choice(
        "Generated pairs; options follow the name, as in `generated:sort?longest=20&seed=2`.",
        "weft train transformer-tiny --data 'generated:{}?count=20000'",
        "reverse",
        also={
            "babi": "weft train memory-network --data 'generated:babi?count=1000&task=1'",
            **{kind: f"weft train reader --data 'generated:{kind}?count=20000'" for kind in ("passages", "distractors")},
        },
    ),
    "losses": Choice("The loss of the next token.", f"{TRAIN} task.loss={{}}", "cross_entropy"),
    "samplings": Choice(
        "What a decoder is fed in training; see [Scheduled sampling](fine-tuning.md#scheduled-sampling).",
        f"{TRAIN} task.sampling={{}} train.packed=false",
        "two_pass",
        measured=(single("BLEU of an RNN on Multi30k", none="fed-truth", two_pass="fed-linear", free="fed-free"),),
    ),
    "decays": Choice(
        "How the share of true tokens falls.",
        f"{TRAIN} 'task.sampling={{kind: parallel, decay: {{}}}}'",
        "linear",
        measured=(
            single(
                "BLEU of an RNN on Multi30k, two passes",
                linear="fed-linear",
                exponential="fed-exponential",
                inverse_sigmoid="fed-sigmoid",
            ),
        ),
    ),
    "objectives": Choice(
        "See [Learn from rewards](fine-tuning.md#learn-from-rewards).", f"{TRAIN} task.reward={{}}", "minimum_risk"
    ),
    "rewards": Choice("What these objectives reward.", f"{TRAIN} 'task.reward={{kind: reinforce, metric: {{}}}}'", "bleu"),
    "optimizers": Choice("", f"{TRAIN} train.optimizer={{}}", "adam"),
    "schedules": Choice("The learning rate of each update.", f"{TRAIN} train.schedule={{}}", "noam"),
    "trackers": Choice("Programs that also get the log of a training.", f"{TRAIN} 'train.trackers=[{{}}]'", "trackio"),
    "metrics": Choice("Scores of texts, in validations and `weft evaluate`.", f"{TRAIN} 'train.metrics=[{{}}]'", "ter"),
    "searches": Choice(
        "",
        f"{TEST} decode.search={{}}",
        "sample",
        "transformer-tiny",
        measured=(
            Measured(
                "Reranking", "BLEU test", "BLEU on Multi30k", {"greedy": "greedy", "beam 5": "beam", "one sample": "sample"}
            ),
        ),
    ),
    "rules": Choice("See [Translating](translating.md#rules).", f"{TEST} 'decode.rules=[{{}}]'", "same_length"),
    "reranks": Choice(
        "Rank the texts of a search again.",
        f"{TEST} decode.search=sample decode.rerank={{}}",
        "mbr",
        also={"model": f"{TEST} 'decode.rerank={{kind: model, run: runs/deen}}'"},
        measured=(
            Measured(
                "Reranking",
                "BLEU test",
                "BLEU on Multi30k (beam 5 alone: 41.2)",
                {"mbr bleu, 32 samples, temperature 0.5": "mbr", "10 best by both runs, weight 0.25 (best on val)": "model"},
            ),
        ),
    ),
    "fusions": Choice(
        "Add the scores of a language model.",
        f"{TEST} decode.fusion={{}}",
        "none",
        also={"shallow": f"{TEST} 'decode.fusion={{kind: shallow, run: runs/text}}'"},
    ),
}


def parts(name: str) -> dict[str, str]:
    """The parts of a list that come with weft, each with its description."""
    path = LISTS[name].table
    others = {kind for kind, entry in installed_in(path).items() if not is_bundled(entry)}
    table = {kind: place for kind, place in find_table(path).items() if kind not in others}
    if not all(":" in place for place in table.values()):
        return table
    return {kind: first_line(load(table, kind)) for kind in table}


def page() -> str:
    return "\n".join([INTRO, *(line for name in LISTS for line in _section(name, CHOICES[name]))]) + "\n"


def _section(name: str, choice: Choice) -> Iterator[str]:
    yield f"## {name}\n"
    if choice.about:
        yield f"{choice.about}\n"
    others = {command: choice.with_part(kind) for kind, command in reversed(choice.also.items())}  # one command of each form
    commands = [choice.with_part(choice.example), *others.values()]
    yield "\n".join(["```sh", f"weft list {name}", *commands, "```\n"])
    figures = [each.figures() for each in choice.measured]
    yield f"| {' | '.join(['name', 'what it is', *map(str, choice.measured)])} |\n{'|---' * (2 + len(figures))}|"
    for kind, text in parts(name).items():
        cells = [f"`{kind}`", text.replace("|", "\\|"), *(each.get(kind, "") for each in figures)]
        yield f"| {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
