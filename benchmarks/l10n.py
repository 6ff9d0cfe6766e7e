"""`auto` on a million real pairs and on small ones, beside fixed recipes and transformers' Marian, each for the same time.

    python benchmarks/l10n.py L10N --out OUT --time 10m                         en-de: auto, transformer-base, -big, Marian
    python benchmarks/l10n.py L10N --out OUT --time 10m --systems auto,marian   some of them
    python benchmarks/l10n.py L10N --out OUT --time 5m --small en-hsb,en-si     small languages: alone, together, fine-tuned

L10N has a folder for each pair of languages, with train.tsv.xz, dev.tsv.xz and test.tsv.xz. Systems train one after the other;
one that is finished is not trained again, so a call that was stopped is repeated. Where a command may take only some minutes,
--slice 420 interrupts the training that runs after so many seconds; the same call continues it, until nothing is missing. dev
and test are only scored, with beam 5, by sacreBLEU (13a) and chrF2; the floors copy the source and answer with the most
frequent target. `multilingual`: one model of en-de and all small languages, with a tag for each target and a temperature of 5;
`fine-tuned` starts from it. With --small, dev chooses the best weights of each training. Curves are in OUT/NAME/results.png.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from weft.data.formats import open_pairs
from weft.data.text_lines import read_lines
from weft.evaluation.metrics import make_metrics, score
from weft.runs.run_folder import complete
from weft.training.auto.plan_for_time import parse_duration
from weft.training.resumption import begun

SPLITS = ("dev", "test")
TEMPERATURE = 5


def spec(folder: Path, language: str, split: str) -> str:
    return str(folder / language / f"{split}.tsv.xz")


def run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True)


class Slice:
    """The time of this call. seconds: after so many, a training is interrupted, which a later call continues."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def run(self, out: Path, *words: str) -> None:
        """Runs a command of Python, and adds its seconds to those of earlier calls in `command.json`; may end this call."""
        file, began = out / "command.json", time.monotonic()
        before = json.loads(file.read_text())["seconds"] if file.exists() else 0.0
        process = subprocess.Popen([sys.executable, *words])
        try:
            code = process.wait(max(1.0, self.end - began))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
            code = STOPPED
        if out.exists():
            file.write_text(json.dumps({"seconds": before + time.monotonic() - began, "whole": code == 0}), "utf-8")
        if code == STOPPED:
            sys.exit(f"{out}: the same call continues this training")
        if code:
            sys.exit(code)


STOPPED = 75
"""The exit status of a peer that has saved its state after its slice."""


def done(out: Path) -> bool:
    """Whether a training needs no further call."""
    return (out / "command.json").exists() and json.loads((out / "command.json").read_text()).get("whole", True)


def train(out: Path, recipe: str, data: Sequence[str], options: Sequence[str], limit: Slice) -> None:
    """`weft train`, or what is left of it, and what all its commands took."""
    if complete(out) and done(out):
        return
    words = ["--resume", str(out)] if begun(out) else [*([recipe] if recipe else []), "--out", str(out), *options]
    words += [] if begun(out) else [word for one in data for word in ("--data", one)]
    limit.run(out, "-m", "weft", "train", *words)


def translate(out: Path, folder: Path, language: str, tag: str = "") -> None:
    """Translates dev and test with a trained run."""
    for split in SPLITS:
        file = out / f"{language}.{split}.txt"
        if not file.exists():
            source = out / f"{language}.{split}.source"
            source.write_text("".join(f"{text}\n" for text, _ in open_pairs(spec(folder, language, split))), "utf-8")
            extra = ("--tag", tag) if tag else ()
            run("-m", "weft", "translate", str(out), str(source), "-o", str(file), "--beam", "5", *extra)


def scores(folder: Path, language: str, outputs: dict[str, list[str]]) -> str:
    cells = []
    for split in SPLITS:
        references = [target for _, target in open_pairs(spec(folder, language, split))]
        found = score(outputs[split], references, make_metrics()).values()
        cells.append(" / ".join(f"{each.value:.1f}" for each in found if each.name in ("BLEU", "chrF2")))
    return " | ".join(cells)


def floors(folder: Path, language: str) -> None:
    common = Counter(target for _, target in open_pairs(spec(folder, language, "train"))).most_common(1)[0][0]
    sources = {split: [source for source, _ in open_pairs(spec(folder, language, split))] for split in SPLITS}
    print(f"| {language} | source copied | {scores(folder, language, sources)} | |")
    same = {split: [common] * len(texts) for split, texts in sources.items()}
    print(f"| {language} | most frequent target | {scores(folder, language, same)} | |")


def show(folder: Path, language: str, name: str, out: Path) -> None:
    outputs = {split: list(read_lines(out / f"{language}.{split}.txt")) for split in SPLITS}
    facts = out / "command.json"
    seconds = f"{json.loads(facts.read_text())['seconds']:.0f} s" if facts.exists() else ""
    print(f"| {language} | {name} | {scores(folder, language, outputs)} | {seconds} |", flush=True)


def tagged(folder: Path, languages: Sequence[str], split: str) -> str:
    """The setting of data.train or data.valid with a tag for the target language of each corpus."""
    name = "dev" if split == "valid" else split
    corpora = [f"{{files: '{spec(folder, each, name)}', tag: {each[3:]}}}" for each in languages]
    return f"data.{split}=[{', '.join(corpora)}]"


def large(folder: Path, options: argparse.Namespace, limit: Slice) -> None:
    """Systems for en-de. A fixed recipe gets more steps than the time allows, so the time ends it."""
    language, data = "en-de", [spec(folder, "en-de", "train")]
    floors(folder, language)
    for system in options.systems.split(","):
        out = options.out / f"{system}-{options.time}"
        if system == "marian":
            if not (out / "facts.json").exists():
                words = [data[0], spec(folder, language, "test"), spec(folder, language, "dev"), "--out", str(out)]
                words += ["--seconds", str(parse_duration(options.time)), "--slice", str(0.95 * (limit.end - time.monotonic()))]
                out.mkdir(parents=True, exist_ok=True)
                limit.run(out, str(Path(__file__).parent / "l10n_peer.py"), *words)
            for split in SPLITS:
                if (out / f"{split}.txt").exists():
                    (out / f"{split}.txt").rename(out / f"{language}.{split}.txt")
        else:
            sets = [] if system == "auto" else ["train.budget=time", "data.hold_out=1000", "train.validate_every=0"]
            train(
                out,
                system,
                data,
                ["--time", options.time, *(["--set", *sets, *options.set] if sets + options.set else [])],
                limit,
            )
            translate(out, folder, language)
        show(folder, language, system, out)


def small(folder: Path, options: argparse.Namespace, limit: Slice) -> None:
    """Small languages alone, in one model with the large one, and fine-tuned from that model."""
    languages = options.small.split(",")
    together = options.out / f"multilingual-{options.time}"
    everything = ["en-de", *languages]
    sets = [tagged(folder, everything, "train"), tagged(folder, everything, "valid"), f"data.temperature={TEMPERATURE}"]
    sets += options.set
    train(together, "auto", [], ["--time", options.large_time or options.time, "--set", *sets], limit)
    for language in languages:
        floors(folder, language)
        tag = language[3:]
        alone, tuned = (options.out / f"{kind}-{language}-{options.time}" for kind in ("alone", "fine-tuned"))
        data = [spec(folder, language, "train")]
        train(alone, "auto", data, ["--valid", spec(folder, language, "dev"), "--time", options.time], limit)
        translate(alone, folder, language)
        show(folder, language, "alone", alone)
        translate(together, folder, language, tag)
        show(folder, language, "multilingual", together)
        corpora = [tagged(folder, [language], "train"), tagged(folder, [language], "valid")]
        train(tuned, "", [], ["--from", str(together), "--time", options.time, "--set", *corpora], limit)
        translate(tuned, folder, language, tag)
        show(folder, language, "fine-tuned", tuned)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--time", required=True, help="of each training")
    parser.add_argument("--large-time", help="of the multilingual training, if it is another")
    parser.add_argument("--systems", default="auto,transformer-base,transformer-big,marian")
    parser.add_argument("--small", help="small languages, such as en-hsb,en-si")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of the large trainings")
    parser.add_argument("--slice", type=float, default=1e6, help="seconds after which a training is interrupted")
    options = parser.parse_args()
    limit = Slice(options.slice)
    print("| pair | system | dev BLEU / chrF2 | test | command |\n|---|---|---|---|---|")
    (small if options.small else large)(options.folder, options, limit)


if __name__ == "__main__":
    main()
