"""The help of commands: what values are called, and examples."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

VALUES = {"bool": "", "int": "N", "float": "X", "str": "TEXT", "Path": "FILE"}
"""What the help calls the value of an option, by the type of its parameter; a flag has none."""

NAMES = {
    "against": "RUN",
    "budget": "TIME",
    "device": "DEVICE",
    "head": "HEAD",
    "host": "ADDRESS",
    "kinds": "KINDS",
    "lengths": "NUMBERS",
    "out": "FOLDER",
    "proxy": "ADDRESS",
    "recipe": "RECIPE",
    "slot": "SLOT",
    "tokenize": "NAME",
}
"""The same by the name of the parameter, where that says more."""

EXAMPLES = {
    "train": [
        "weft train auto --data train.en,train.de --out runs/a --time 20m",
        "weft train transformer-small --data train.en,train.de --valid val.en,val.de",
        "weft train my.yaml --data corpus.tsv#2,3 --valid val.csv#en,de --out runs/a",
        "weft train transformer-small --from runs/a --data new.tsv --out runs/b",
        "weft train --resume runs/a",
    ],
    "translate": [
        "weft translate runs/a input.txt -o output.txt",
        'weft translate runs/a "A dog runs."',
        "cat input.txt | weft translate runs/a --beam 5 --json",
    ],
    "predict": ["weft predict runs/reviews texts.txt -o labels.txt", 'weft predict runs/reviews "A fine film."'],
    "serve": ["weft serve runs/a", "weft serve en-de=runs/a de-en=runs/b --host 0.0.0.0 --api-keys keys.txt"],
    "evaluate": [
        "weft evaluate runs/a --data test.en,test.de",
        "weft evaluate runs/a --data test.tsv#2,3 --against runs/b -o output.txt.gz",
    ],
    "explain": ['weft explain runs/a "A dog runs." -o page.html', 'weft explain runs/a "A dog runs." -o attention.png --words'],
    "align": ["weft align runs/a --data test.en,test.de -o links.txt", "weft align runs/a --data test.tsv --gold gold.txt"],
    "generate": [
        'weft generate runs/text "Once upon a time" --tokens 100',
        "weft generate runs/text --count 3 -o texts.txt",
    ],
    "compare": [
        "weft compare transformer-tiny rnn-luong --data train.tsv --budget 10m --out runs/c",
        "weft compare transformer-tiny --slot model.encoder_self --kinds full,local "
        "--data train.tsv --budget 500-steps --out runs/c",
    ],
    "bench": ["weft bench runs/a --batch 1 --beam 4", "weft bench transformer-small --profile profile.png"],
    "distill": [
        "weft distill runs/a --data train.en,train.de --out distilled.de",
        "weft distill runs/a --data train.tsv --out distilled.jsonl --beam 5",
    ],
    "dictionary": [
        "weft dictionary en-fr.tsv --data en=english.txt --data fr=french.txt",
        "weft dictionary en-fr.tsv --gold gold.tsv",
        "weft dictionary en-fr.tsv --translate input.txt -o output.txt",
    ],
    "vectors": [
        "weft vectors text.txt more.txt.gz -o words.vec",
        "weft vectors tokenized.txt -o words.vec.gz --width 128 --spaces",
    ],
    "backtranslate": [
        "weft backtranslate runs/deen --data mono.de --out backtranslated.jsonl",
        "weft backtranslate runs/deen --data mono.de --out part2.jsonl --shard 2/8 --set decode.search=sample",
    ],
    "iterate": [
        "weft iterate transformer-small --data pairs.tsv --valid val.tsv --target-text mono.de --source-text mono.en "
        "--out runs/i",
    ],
    "shortlist": ["weft shortlist runs/a"],
    "merge": ["weft merge runs/adapted --out runs/merged"],
    "average": ["weft average runs/a --last 5", "weft average runs/a --last 5 --out runs/mean"],
    "list": ["weft list", "weft list attentions"],
    "new": ["weft new my.yaml", "weft new my.yaml --recipe rnn-luong --set train.steps=2000"],
    "doctor": ["weft doctor", "weft doctor --json"],
    "demo": ["weft demo", "weft demo --out runs/dates --set train.steps=500"],
}
"""Examples by command. They are parsed in a test."""


def examples(name: str) -> str | None:
    """The end of the help of a command."""
    return "\n\n".join(["Examples:", *(f"  {each}" for each in EXAMPLES[name])]) if name in EXAMPLES else None


def _called(params: list[Any], callback: Any) -> list[Any]:
    """The parameters, with names for their values that say what is expected instead of a type of Python."""
    types = {} if callback is None else {name: each.annotation for name, each in inspect.signature(callback).parameters.items()}
    for param in params:
        if param.param_type_name == "argument":
            if param.metavar is None:
                param.metavar = param.name.upper()
            if types.get(param.name) in ("str", "Path", "list[str]"):
                param.display_type_rich = lambda ctx: None  # the name says it
        elif getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None:
            param.metavar = NAMES.get(param.name) or VALUES.get(str(types.get(param.name)))
    return params


class Command(TyperCommand):
    """A command whose help shows no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _called(super().get_params(ctx), self.callback)


class Group(TyperGroup):
    """The program itself; see `Command`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _called(super().get_params(ctx), self.callback)
