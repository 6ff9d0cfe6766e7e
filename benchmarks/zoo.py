"""Every mechanism in one slot of one small model, on four kinds of data, by `weft compare`: the order beside the published one.

    python benchmarks/zoo.py --prepare --out OUT [--agnews FILE.tsv] [--multi30k DIR] [--shakespeare FILE]     no GPU needed
    python benchmarks/zoo.py --out OUT [--parts a,c] [--at-once 8] [--minutes 8] [--steps-scale 1]            train and measure
    python benchmarks/zoo.py --draw OUT/zoo.json --out REPORTS                                               draw, anywhere

a: ListOps of up to 1,000 tokens · b: AG News, byte by byte · c: Multi30k en-de, in the encoder · d: tiny Shakespeare by
characters, the causal ones. What was stopped goes on with the same command. OUT/zoo.json collects all parts; OUT/a … OUT/d hold
the report of each. Beside each order stand the averages of the Long Range Arena (Tay et al. 2021, table 1). They are over other
tasks and longer trainings: who is near whom can be compared, and a rank correlation says how far the orders agree.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainings import markdown

from weft.compare.processes import Failure, Processes, Stopped
from weft.compare.report import read_results, write_report
from weft.data.generated import parse_generated

PUBLISHED = {
    "local": 46.1,
    "linear": 50.6,
    "lsh": 50.7,
    "strided": 51.2,
    "sinkhorn": 51.3,
    "linformer": 51.4,
    "performer": 51.4,
    "synthesizer": 52.9,
    "longformer": 53.5,
    "full": 54.4,
    "bigbird": 55.0,
}
"""lsh is their Reformer, strided their Sparse Transformer."""

LONG = {"synthesizer": {"max_length": 1024}}
SHORT: dict[str, dict[str, Any]] = {
    "local": {"window": 3},
    "strided": {"stride": 4},
    "longformer": {"window": 3},
    "bigbird": {"window": 2, "block": 4, "blocks": 1},
    "linformer": {"rank": 16, "max_length": 128},
    "synthesizer": {"max_length": 128},
    "sinkhorn": {"block": 4, "max_length": 128},
    "gmlp": {"max_length": 128},
    "lsh": {"buckets": 4, "window": 4},
    "routing": {"clusters": 4, "window": 4},
    "performer": {"features": 64},
}
"""For sentences of 15 tokens: a window of the default 64 would see all of them."""

BOTH = (
    *("full", "local", "strided", "longformer", "bigbird", "linear", "performer", "rfa", "efficient", "compressed"),
    *("synthesizer", "lsh", "routing", "sinkhorn", "aft", "gmlp"),
)
ENCODER = (*BOTH, "linformer", "fnet")
CAUSAL = (*BOTH, "gated_rfa", "recurrent", "convolution")
SMALL = ("model.dim=256", "model.heads=4", "model.feedforward=1024", "model.decoder_layers=4", "model.position=sinusoidal")


@dataclass(frozen=True)
class Part:
    """One comparison: what it is, its base, the slot that is filled, and with what; files: of the data, below OUT/data."""

    title: str
    recipe: str
    slot: str
    kinds: Sequence[str]
    options: Mapping[str, dict[str, Any]]
    steps: int
    files: tuple[str, str]
    sets: tuple[str, ...] = ()

    def words(self, out: Path, options: argparse.Namespace) -> list[str]:
        """The arguments of `weft compare`; OUT is where all parts are."""
        train, valid = (",".join(str(out / "data" / name) for name in names.split(",")) for names in self.files)
        wanted = [kind for kind in self.kinds if not options.only or kind in options.only.split(",")]
        kinds = ",".join(json.dumps({"kind": kind, **self.options.get(kind, {})}) for kind in wanted)
        steps = max(2, round(self.steps * options.steps_scale))
        changes = [*self.sets, f"train.precision={options.precision}", f"data.cache={out / 'cache'}", *options.set]
        found = ["compare", self.recipe, "--slot", self.slot, "--kinds", kinds, "--data", train, "--valid", valid]
        found += ["--budget", f"{steps}-steps", "--at-once", str(options.at_once), "--repeat", str(options.repeat)]
        found += ["--lengths", options.lengths, "--sentences", str(options.sentences)]
        return found + [word for change in changes for word in ("--set", change)]


def _schedule(rate: float, warmup: int) -> str:
    return f"train.schedule={{kind: cosine, rate: {rate}, warmup: {warmup}}}"


PARTS = {
    "a": Part(
        "ListOps, 250 to 1,000 tokens",
        "listops",
        "model.encoder_self",
        ENCODER,
        LONG,
        1000,
        ("listops.train.tsv", "listops.valid.tsv"),
        ("data.max_length=1000", "train.batch_tokens=16384", _schedule(1e-3, 100)),
    ),
    "b": Part(
        "AG News, bytes",
        "classifier-bytes",
        "model.encoder_self",
        ENCODER,
        LONG,
        600,
        ("agnews.train.tsv", "agnews.valid.tsv"),
        ("train.batch_tokens=16384", _schedule(1e-3, 100)),
    ),
    "c": Part(
        "Multi30k en-de, encoder",
        "transformer-small",
        "model.encoder_self",
        ENCODER,
        SHORT,
        800,
        ("multi30k.train.en,multi30k.train.de", "multi30k.val.en,multi30k.val.de"),
        (
            "data.max_length=127",
            "model.position=sinusoidal",
            "model.dropout=0.2",
            "model.encoder_layers=3",
            "model.decoder_layers=3",
            "train.batch_tokens=12288",
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
        CAUSAL,
        LONG,
        1000,
        ("shakespeare.train.txt", "shakespeare.valid.txt"),
        (*SMALL, "model.dropout=0.1", "model.attention_dropout=0"),
    ),
}


def prepare(options: argparse.Namespace) -> None:
    """Writes the data of the parts as files, the same at every call; of those whose source was not given, nothing."""
    folder = options.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 12_000), ("valid", 1000)):
        pairs = parse_generated(f"listops?count={count}&longest=1000&split={split}")
        (folder / f"listops.{split}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in pairs), "utf-8")
    if options.agnews:
        lines = options.agnews.read_text("utf-8").splitlines(keepends=True)
        random.Random(0).shuffle(lines)
        _write(folder, "agnews", ".tsv", lines[1000:], lines[:1000])
    if options.multi30k:
        for split in ("train", "val"):
            for side in ("en", "de"):
                (folder / f"multi30k.{split}.{side}").write_bytes((options.multi30k / f"{split}.{side}").read_bytes())
    if options.shakespeare:
        lines = options.shakespeare.read_text("utf-8").splitlines(keepends=True)
        cut = round(0.9 * len(lines))
        _write(folder, "shakespeare", ".txt", lines[:cut], lines[cut:])
    print(f"data in {folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")


def _write(folder: Path, name: str, ending: str, train: Sequence[str], valid: Sequence[str]) -> None:
    for split, lines in (("train", train), ("valid", valid)):
        (folder / f"{name}.{split}{ending}").write_text("".join(lines), "utf-8")


def compare(names: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Runs the comparisons of the parts; gives what went wrong."""
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    processes, problems = Processes(options.out / "logs", until=until), []
    for name in names:
        began = time.monotonic()
        try:
            words = PARTS[name].words(options.out, options)
            print(processes(name, [*words, "--out", str(options.out / name)]))
        except (Failure, Stopped) as error:
            problems.append(f"{name}: {error}")
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return problems


def collect(out: Path) -> dict[str, Any]:
    """The results of all parts that have any."""
    files = {name: out / name / "results.json" for name in PARTS}
    return {name: read_results(file) for name, file in files.items() if file.exists()}


def order(results: dict[str, Any]) -> str:
    """One part's entries, the best first, beside what is published; and how much the two orders agree."""
    headline = results["headline"]
    rows = [row for row in results["entries"] if row["quality"]]
    published = [PUBLISHED.get(_kind(row)) for row in rows]
    lines = [
        (row["label"], f"{row['quality']['mean']:.2f}", _per_second(row), _mib(row), "–" if known is None else f"{known:.1f}")
        for row, known in zip(rows, published, strict=True)
    ]
    both = [(row["quality"]["mean"], known) for row, known in zip(rows, published, strict=True) if known is not None]
    sign = 1 if headline["higher_is_better"] else -1
    agreement = correlation([sign * ours for ours, _ in both], [theirs for _, theirs in both]) if len(both) > 2 else None
    said = (
        "" if agreement is None else f"Rank correlation with the published averages: {agreement:+.2f} ({len(both)} entries).\n"
    )
    return markdown(("entry", headline["title"], f"{results['counts']}/s", "MiB", "LRA average"), lines) + said


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's: that of ranks, equal values sharing theirs."""
    try:
        return statistics.correlation(_ranks(ours), _ranks(theirs))
    except statistics.StatisticsError:  # all of one side are equal
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2 for value in values]


def _kind(row: Mapping[str, Any]) -> str:
    return str(row["label"]).split()[0]


def _per_second(row: Mapping[str, Any]) -> str:
    return f"{row['speed']['mean']:,.0f}" if row["speed"] else "–"


def _mib(row: Mapping[str, Any]) -> str:
    return f"{row['memory']['mean'] / 2**20:,.0f}" if row["memory"] else "–"


def show(parts: Mapping[str, Any]) -> str:
    return "\n".join(f"### {PARTS[name].title}\n\n{order(results)}" for name, results in parts.items())


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, default=Path("runs/zoo"), help="folder for data, runs and results")
    found.add_argument("--prepare", action="store_true", help="write the data of the parts and leave")
    found.add_argument("--agnews", type=Path, help="file of text TAB label, for --prepare")
    found.add_argument("--multi30k", type=Path, help="folder with train and val, .en and .de, for --prepare")
    found.add_argument("--shakespeare", type=Path, help="file of text, for --prepare")
    found.add_argument("--draw", type=Path, metavar="JSON", help="draw what was collected, into --out")
    found.add_argument("--parts", default="a,b,c,d", help="which parts, joined by commas")
    found.add_argument("--only", default="", help="which mechanisms, joined by commas (default: all of the part)")
    found.add_argument("--at-once", type=int, default=8, help="trainings side by side")
    found.add_argument("--repeat", type=int, default=1, help="seeds")
    found.add_argument("--minutes", type=float, default=0, help="stop after so long; the same command goes on later")
    found.add_argument("--steps-scale", type=float, default=1.0, help="factor on all steps")
    found.add_argument("--precision", default="bf16", choices=["bf16", "float32"])
    found.add_argument("--lengths", default="none", help="as for weft compare; growth has a benchmark of its own")
    found.add_argument("--sentences", type=int, default=64, help="decoded for the speed")
    found.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for all")
    return found


def main() -> None:
    options = parser().parse_args()
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if options.prepare:
        prepare(options)
        return
    if options.draw:
        parts = json.loads(options.draw.read_text("utf-8"))
        for name, results in parts.items():
            write_report(results, options.out / name)
        print(show(parts))
        return
    problems = compare(names, options)
    parts = collect(options.out)
    (options.out / "zoo.json").write_text(json.dumps(parts, ensure_ascii=False) + "\n", "utf-8")
    print(show(parts))
    print(f"collected in {options.out / 'zoo.json'}; draw it with --draw")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
