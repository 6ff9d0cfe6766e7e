"""The work that kills.py interrupts: small trainings of every task, and every command that writes files."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import golden_data as made
from golden_cases import GROUPS, PAIRS, SMALL, TRAIN, WORDS, Case, table
from golden_runs import without_clocks as without_clocks

SHORT: dict[str, Any] = {"train.steps": 8, "train.save_every": 3, "train.validate_every": 4, "train.keep_last": 2}
SHORT |= {"train.validate_sentences": 4, "train.batch_tokens": 200}
"""Written over the settings of golden.py, so that saving, removing old checkpoints and validating take turns."""

LEVEL = {"kind": "rnn", "dim": 8, "dropout": 0.1}
HELD: Mapping[str, Any] = {"train.ema": 0.9, "train.best_by": "loss", "train.keep_best": True}
BASES = ("base", "adapters", "portable")
"""Trainings whose runs the commands read."""


@dataclass(frozen=True)
class Work:
    """A command line, run in a folder of its own, whose files are compared.

    base: the run that is copied there as `run` · again: the command after an interruption; by default the same, or for a
    training that has begun, `weft train --resume`
    """

    arguments: Sequence[str]
    base: str = ""
    training: bool = False
    again: Sequence[str] = ()


def quality(folder: Path, name: str, count: int, seed: int) -> str:
    """Translations with scores and words that are OK or BAD."""
    draw, rows = random.Random(seed), []
    for text in made.sentences(count, seed):
        words = made.translation(text).split()
        wrong = [draw.random() < 0.2 for _ in words]
        shown = " ".join(word[::-1] if bad else word for word, bad in zip(words, wrong))
        tags = " ".join("BAD" if bad else "OK" for bad in wrong)
        rows.append(
            {"source": text, "translation": shown, "score": round(100 * (1 - sum(wrong) / len(words)), 1), "tags": tags}
        )
    return made.write_lines(folder / f"{name}.jsonl", map(json.dumps, rows))


def entailed(folder: Path, name: str, count: int, seed: int) -> str:
    """Pairs of sentences that have the same verb, or not."""
    lines: list[str] = []
    for first, second in zip(made.sentences(count, seed), made.sentences(count, seed + 100)):
        label = "yes" if {*first.split()} & {*second.split()} & {*made.VERBS} else "no"
        lines.append(f"{first}\t{second}\t{label}")
    return made.write_lines(folder / f"{name}.tsv", lines)


def spoken(folder: Path, name: str, count: int, seed: int) -> str:
    return f"{made.recordings(folder, f'spoken-{name}', count, seed)}#2,1"


def passages(folder: Path) -> tuple[str, str]:
    return "generated:passages?count=60", "generated:passages?count=20&split=valid"


def _new_cases() -> dict[str, Case]:
    """Tasks that golden.py does not have."""
    words = {"kind": "composed", "front": {"kind": "words", "spelling_width": 4}, "encoder": LEVEL}
    letters = {"data.tokenizer": "characters", "data.vocabulary": 400}
    plain = {"kind": "composed", "encoder": LEVEL}
    decoder = {"kind": "rnn", "dim": 8, "attention": "additive"}
    tones: dict[str, Any] = {"kind": "synthesis", "mels": 8, "prenet": 8, "postnet": 1, "test_dropout": True}
    esim = {"kind": "esim", "composition": LEVEL}
    reader = {"kind": "bidaf", "modeling": LEVEL, "ending": LEVEL}
    return {
        "pairs": Case(
            "transformer-tiny", table(entailed, 80), {**WORDS, "model": plain, "task": {"kind": "pairs", "comparison": esim}}
        ),
        "quality": Case(
            "transformer-tiny", table(quality, 80), {**WORDS, "model": plain, "task": {"kind": "quality", "estimator": esim}}
        ),
        "reading": Case(
            "transformer-tiny", passages, {**letters, "model": words, "task": {"kind": "reading", "reader": reader}}
        ),
        "synthesis": Case(
            "transformer-tiny",
            table(spoken, 40),
            {**WORDS, "model": {**plain, "decoder": decoder}, "task": tones, "data.max_length": 400, "decode.max_length": 9},
        ),
    }


def trainings() -> dict[str, Case]:
    """A training of every task, and of what training can do besides, by name."""
    known = {name: case for group in GROUPS.values() for name, case in group().items()}
    usual = known["transformer-tiny"]
    bpe = {"data.tokenizer": "bpe", "data.vocabulary": 330}
    chosen = {
        "base": (usual, {"train.keep_last": 3, "train.ema": 0.9}),
        "adapters": (known["LoRA"], {}),
        "portable": (Case("transformer-portable", PAIRS, {**SMALL, "data.vocabulary": 60}), {"train.steps": 4}),
        "translation": (usual, HELD),
        "corpora": (known["several corpora"], {}),
        "held out": (known["held out"], bpe),
        "taught": (known["taught"], {"train.average_last": 2}),
        "packed": (known["packed"], {"train.accumulate": 2}),
        "parallel": (known["nat-fertility"], {}),
        "unsupervised": (known["unsupervised"], {"task.denoising_steps": 4, "task.dictionary_steps": 3}),
        "classification": (known["classifier"], HELD),
        "documents": (known["han"], {}),
        "tagging": (known["tagger-crf"], {}),
        "captioning": (known["captioner"], {}),
        "transcription": (known["speech"], {}),
        "language model": (known["lm-tiny"], {}),
        "answering": (known["answers 1"], {"task.linear_start": 2}),
        "bits": (known["bits copy"], {}),
        "deciphering": (known["cipher-shift"], {}),
    }
    few = {"held out": made.pairs, "classification": made.labelled, "tagging": made.tagged, "documents": made.documents}
    few |= dict.fromkeys(("translation", "taught", "packed", "parallel", "base", "adapters", "portable"), made.pairs)
    few |= {"captioning": made.pictures, "transcription": made.recordings}
    found = {**chosen, **{name: (case, {}) for name, case in _new_cases().items()}}
    return {
        name: Case(
            case.recipe,
            table(few[name], 60) if name in few else case.files,
            {**case.settings, **SHORT, **extra},
            start=case.start,
        )
        for name, (case, extra) in found.items()
    }


def options(values: Mapping[str, Any]) -> list[str]:
    return ["--set", *(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())]


def _each(option: str, files: Any) -> list[str]:
    entries: Iterable[Any] = [files] if isinstance(files, str) else files
    return [word for each in entries if each for word in (option, each if isinstance(each, str) else json.dumps(each))]


@dataclass
class Places:
    """The folders of a campaign. data: what commands read · bases: runs that they read · work: where they write."""

    out: Path
    data: Path = field(init=False)
    bases: Path = field(init=False)
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        self.data, self.bases, self.work = (self.out / name for name in ("data", "bases", "work"))

    def training(self, case: Case) -> Work:
        """The command of a training."""
        train, valid = case.files(self.data)

        def filled(value: Any) -> Any:
            return str(self.bases / "base") if isinstance(value, str) and value.startswith("{transformer") else value

        given = {**TRAIN, "data.cache": str(self.work / "cache"), **{key: filled(each) for key, each in case.settings.items()}}
        head = ["train", case.recipe]
        if case.start:
            mine = ("data.tok", "data.voc", "model.")
            given = {key: value for key, value in given.items() if not key.startswith(mine) or "lora" in key}
            head = ["train", "--from", str(self.bases / "base")]
        data = [*_each("--data", train), *_each("--valid", valid)]
        run = str(self.work / "run")
        return Work([*head, *data, "--out", run, *options(given)], training=True, again=["train", "--resume", run])

    def command(self, name: str) -> Work:
        """A command that is no training. Its words are those of the command line, with folders and files filled in."""
        arguments, base = COMMANDS[name](self)
        return Work(arguments, base)

    def pairs(self, name: str, count: int, seed: int) -> str:
        return made.pairs(self.data, name, count, seed)

    def text(self, name: str, count: int, seed: int, turned: bool = False) -> str:
        lines = made.sentences(count, seed)
        return made.write_lines(self.data / name, map(made.translation, lines) if turned else lines)


Words = Callable[[Places], tuple[list[str], str]]

SETTINGS = {**TRAIN, **SMALL, **WORDS, **SHORT, "train.steps": 4, "train.validate_sentences": 4, "train.best_by": "bleu"}


def _trained(places: Places) -> list[str]:
    return options({**SETTINGS, "data.cache": str(places.work / "cache")})


def _unpaired(places: Places) -> list[str]:
    first, second = places.text("mono.en", 200, 6), places.text("mono.xx", 200, 7, turned=True)
    return ["--data", f"en={first}", "--data", f"xx={second}"]


def _exported(to: str) -> Words:
    return lambda places: (["export", str(places.work / "run"), "--to", to, "--out", str(places.work / "out")], "portable")


CPU = ["--device", "cpu"]
COMMANDS: dict[str, Words] = {
    "average": lambda at: (["average", str(at.work / "run"), "--last", "2"], "base"),
    "average into": lambda at: (["average", str(at.work / "run"), "--last", "2", "--out", str(at.work / "out")], "base"),
    "merge": lambda at: (["merge", str(at.bases / "adapters"), "--out", str(at.work / "out")], ""),
    "shortlist": lambda at: (["shortlist", str(at.work / "run"), "--data", at.pairs("shortlist", 60, 31)], "base"),
    "pack": lambda at: (["pack", str(at.bases / "base"), "--out", str(at.work / "packed.weft")], ""),
    "unpack": lambda at: (["unpack", str(at.bases / "base.weft"), "--out", str(at.work / "out")], ""),
    "import": lambda at: (["import", str(at.bases / "marian"), "--out", str(at.work / "out")], ""),
    **{f"export {to}": _exported(to) for to in ("transformers", "onnx", "ctranslate2", "marian")},
    "adapt": lambda at: (
        ["adapt", str(at.work / "run"), "--memory", at.pairs("memory", 30, 51), *CPU, "--set", "train.steps=6"],
        "base",
    ),
    "distill": lambda at: (
        ["distill", str(at.bases / "base"), "--data", at.pairs("distill", 40, 32), "--out", str(at.work / "made.jsonl"), *CPU],
        "",
    ),
    "backtranslate": lambda at: (
        ["backtranslate", str(at.bases / "base"), "--data", at.text("back", 40, 33), "--out", str(at.work / "b.jsonl"), *CPU],
        "",
    ),
    "translate": lambda at: (
        ["translate", str(at.bases / "base"), at.text("lines.txt", 40, 34), "-o", str(at.work / "out.txt"), *CPU],
        "",
    ),
    "clean": lambda at: (
        [
            "data",
            "clean",
            at.pairs("dirty", 300, 35),
            "-o",
            str(at.work / "clean.tsv"),
            "--left-out",
            str(at.work / "left.jsonl"),
        ],
        "",
    ),
    "vectors": lambda at: (["vectors", at.text("vectors.en", 200, 37), "-o", str(at.work / "v.vec"), "--width", "8"], ""),
    "dictionary": lambda at: (["dictionary", str(at.work / "words.tsv"), *_unpaired(at)], ""),
    "phrases": lambda at: (["phrases", str(at.work / "phrases"), *_unpaired(at), "--rounds", "1"], ""),
    "iterate": lambda at: (
        [
            *("iterate", "transformer-tiny", "--data", at.pairs("few", 120, 38), "--valid", at.pairs("few-valid", 10, 39)),
            *("--target-text", at.text("mono", 30, 40, turned=True), "--rounds", "1", "--out", str(at.work / "rounds")),
            *_trained(at),
        ],
        "",
    ),
    "quality data": lambda at: (
        [
            *(
                "quality",
                "data",
                "transformer-tiny",
                "--data",
                at.pairs("folds", 120, 41),
                "--valid",
                at.pairs("few-valid", 10, 39),
            ),
            *("--out", str(at.work / "quality.jsonl"), *CPU, *_trained(at)),
        ],
        "",
    ),
}
"""The commands that write files: the words of the command line, and the run that is copied to be changed."""
