"""The parts of the zoo: four kinds of data, a small model for each, and the mechanisms for one of its slots."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import floors
from floors import Floors

from weft.bench.compare.plan import Budget, Comparison, Entry, labelled, slot_entries
from weft.data.generators import parse_generator

PUBLISHED = {
    "local": {"ListOps": 15.82, "Text": 52.98, "average": 46.06},
    "linear": {"ListOps": 16.13, "Text": 65.90, "average": 50.55},
    "lsh": {"ListOps": 37.27, "Text": 56.10, "average": 50.67},
    "joined": {"ListOps": 17.07, "Text": 63.58, "average": 51.24},
    "sinkhorn": {"ListOps": 33.67, "Text": 61.20, "average": 51.29},
    "linformer": {"ListOps": 35.70, "Text": 53.94, "average": 51.36},
    "performer": {"ListOps": 18.01, "Text": 65.40, "average": 51.41},
    "synthesizer": {"ListOps": 36.99, "Text": 61.68, "average": 52.88},
    "longformer": {"ListOps": 35.63, "Text": 62.85, "average": 53.46},
    "full": {"ListOps": 36.37, "Text": 64.27, "average": 54.39},
    "bigbird": {"ListOps": 36.05, "Text": 64.02, "average": 55.01},
}
"""Scores of the Long Range Arena (Tay et al. 2021, table 1): two of its tasks, and the average of five. Their Reformer is lsh
here, and their Sparse Transformer is joined (local and strided)."""

ARENA = ("full", *(kind for kind in PUBLISHED if kind != "full"))
CAUSAL_ARENA = tuple(kind for kind in ARENA if kind != "linformer")
SIMPLE = ("strided", "rfa", "efficient", "compressed", "routing", "aft", "gmlp")
"""Mechanisms that are not in the Arena, for encoders and decoders."""

LONG: dict[str, dict[str, Any]] = {"synthesizer": {"max_length": 1024}}
POSITIONS: dict[str, dict[str, Any]] = {
    "linformer": {"rank": 16, "max_length": 128},
    "synthesizer": {"max_length": 128},
    "gmlp": {"max_length": 128},
    "mlp_mixer": {"max_length": 128},
    "xl_relative": {"max_distance": 128},
    "performer": {"features": 64},
}

SHORT: dict[str, dict[str, Any]] = {
    **POSITIONS,
    "local": {"window": 3},
    "joined": {"patterns": [{"kind": "local", "window": 3}, {"kind": "strided", "stride": 4}]},
    "strided": {"stride": 4},
    "fixed": {"block": 4, "summary": 1},
    "global": {"tokens": 2},
    "random": {"block": 4, "blocks": 2},
    "longformer": {"window": 3},
    "bigbird": {"window": 2, "block": 4, "blocks": 1},
    "sinkhorn": {"block": 4, "max_length": 128},
    "lsh": {"buckets": 4, "window": 4},
    "routing": {"clusters": 4, "window": 4},
    "gat": {"distance": 3},
}
"""Options for sentences of 15 tokens, which the default window of 64 would cover."""

BYTES: dict[str, dict[str, Any]] = {
    "linformer": {"rank": 32, "max_length": 384},
    "synthesizer": {"max_length": 384},
    "gmlp": {"max_length": 384},
    "mlp_mixer": {"max_length": 384},
    "xl_relative": {"max_distance": 320},
    "performer": {"features": 64},
    "local": {"window": 16},
    "joined": {"patterns": [{"kind": "local", "window": 16}, {"kind": "strided", "stride": 16}]},
    "strided": {"stride": 16},
    "longformer": {"window": 16},
    "bigbird": {"window": 8, "block": 16, "blocks": 1},
    "sinkhorn": {"block": 16, "max_length": 384},
    "lsh": {"buckets": 16, "window": 16},
    "routing": {"clusters": 16, "window": 16},
    "gat": {"distance": 16},
}
"""Options for texts of 200 bytes, whose words have about 6."""


@dataclass(frozen=True)
class Part:
    """One comparison: its recipe, the slot, and the mechanisms for it in starting order; files: the data, below OUT/data.

    floors: scores without a neural network, from the two files · arena_task: the task of the Long Range Arena of the same kind.
    """

    title: str
    recipe: str
    slot: str
    kinds: Sequence[str]
    options: Mapping[str, dict[str, Any]]
    steps: int
    files: tuple[str, str]
    floors: Callable[[str, str], Floors]
    sets: tuple[str, ...] = ()
    arena_task: str = ""

    def paths(self, out: Path) -> tuple[str, str]:
        """The specifications of the training and the validation data."""
        train, valid = (",".join(str(out / "data" / name) for name in names.split(",")) for names in self.files)
        return train, valid

    def comparison(self, out: Path, name: str, settings: Settings) -> Comparison:
        """The comparison for `weft compare`, in out/NAME."""
        specs = [json.dumps({"kind": kind, **self.options.get(kind, {})}) for kind in self.kinds if settings.includes(kind)]
        entries = slot_entries([Entry(self.recipe)], self.slot, ",".join(specs), print) if specs else []
        steps = max(2, round(self.steps * settings.steps_scale))
        train, valid = self.paths(out)
        return Comparison(
            tuple(labelled(entries)),
            out / name,
            Budget(f"{steps:,} steps", steps=steps),
            (train,),
            (valid,),
            sets=(*self.sets, f"train.precision={settings.precision}", f"data.cache={out / 'cache'}", *settings.sets),
            repeat=settings.repeat,
            at_once=settings.at_once,
        )


@dataclass(frozen=True)
class Settings:
    """The options of all parts that a user may change."""

    only: tuple[str, ...] = ()
    steps_scale: float = 1.0
    precision: str = "bf16"
    at_once: int = 8
    repeat: int = 1
    sets: tuple[str, ...] = ()

    def includes(self, kind: str) -> bool:
        return not self.only or kind in self.only


def _schedule(rate: float, warmup: int) -> str:
    return f"train.schedule={{kind: cosine, rate: {rate}, warmup: {warmup}}}"


PARTS = {
    "a": Part(
        "ListOps, 10 to 1,000 tokens",
        "listops",
        "model.encoder_self",
        (*ARENA, *SIMPLE, "fnet"),
        LONG,
        2500,
        ("listops.train.tsv", "listops.valid.tsv"),
        floors.listops,
        ("data.max_length=1000", "train.batch_tokens=8192", "train.save_every=1000", _schedule(1e-3, 200)),
        "ListOps",
    ),
    "b": Part(
        "AG News, bytes",
        "classifier-bytes",
        "model.encoder_self",
        (*ARENA, *SIMPLE, "fnet", "xl_relative", "mlp_mixer", "isab", "recurrent", "convolution", "gat"),
        BYTES,
        2000,
        ("agnews.train.tsv", "agnews.valid.tsv"),
        floors.topics,
        (
            "data.max_length=320",
            "model.dropout=0.3",
            "task.pooling={kind: mean}",
            "task.label_smoothing=0.1",
            "train.batch_tokens=8192",
            "train.ema=0.99",
            "train.save_every=1000",
            _schedule(1e-3, 200),
        ),
        "Text",
    ),
    "c": Part(
        "Multi30k en-de, encoder",
        "transformer-small",
        "model.encoder_self",
        (
            *(*ARENA, *SIMPLE, "fnet", "xl_relative", "fixed", "global", "random", "mlp_mixer"),
            *("isab", "recurrent", "convolution", "gat"),
        ),
        SHORT,
        900,
        ("multi30k.train.en,multi30k.train.de", "multi30k.val.en,multi30k.val.de"),
        floors.copied,
        (
            "data.max_length=127",
            "model.position=sinusoidal",
            "model.dropout=0.2",
            "model.encoder_layers=3",
            "model.decoder_layers=3",
            "train.batch_tokens=8192",
            "train.validate_sentences=0",
            "train.ema=0.99",
            "decode.beam=1",
            _schedule(2e-3, 200),
        ),
    ),
    "d": Part(
        "tiny Shakespeare, characters, causal",
        "lm-shakespeare-transformer",
        "model.decoder_self",
        (*CAUSAL_ARENA, *SIMPLE, "gated_rfa", "xl_relative", "recurrent", "convolution"),
        {"synthesizer": {"max_length": 512}, "xl_relative": {"max_distance": 256}},
        1000,
        ("shakespeare.train.txt", "shakespeare.valid.txt"),
        floors.characters,
        (
            "model.dim=256",
            "model.heads=4",
            "model.feedforward=1024",
            "model.decoder_layers=4",
            "model.position=sinusoidal",
            "model.scale_embeddings=true",
            "model.dropout=0.1",
            "model.attention_dropout=0",
            "train.batch_tokens=8192",
            "train.ema=0",
        ),
    ),
}


def write_data(folder: Path, agnews: Path | None, multi30k: Path | None, shakespeare: Path | None) -> None:
    """Writes the data of the parts, the same at every call. Parts whose source is not given are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 20_000), ("valid", 1500)):
        pairs = parse_generator(f"listops?count={count}&longest=1000&shortest=10&split={split}")
        (folder / f"listops.{split}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in pairs), "utf-8")
    if agnews:
        lines = agnews.read_text("utf-8").splitlines(keepends=True)
        random.Random(0).shuffle(lines)
        _write(folder, "agnews", ".tsv", lines[1000:], lines[:1000])
    if multi30k:
        for split in ("train", "val"):
            for side in ("en", "de"):
                (folder / f"multi30k.{split}.{side}").write_bytes((multi30k / f"{split}.{side}").read_bytes())
    if shakespeare:
        lines = shakespeare.read_text("utf-8").splitlines(keepends=True)
        cut = round(0.9 * len(lines))
        _write(folder, "shakespeare", ".txt", lines[:cut], lines[cut:])


def _write(folder: Path, name: str, ending: str, train: Sequence[str], valid: Sequence[str]) -> None:
    for split, lines in (("train", train), ("valid", valid)):
        (folder / f"{name}.{split}{ending}").write_text("".join(lines), "utf-8")
