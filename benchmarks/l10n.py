"""`auto` on a million real pairs and on small ones, beside fixed recipes and transformers' Marian, each for the same time.

    python benchmarks/l10n.py L10N --out OUT --time 10m                         en-de: auto, transformer-base, -big, Marian
    python benchmarks/l10n.py L10N --out OUT --time 10m --systems auto,marian   some of them
    python benchmarks/l10n.py L10N --out OUT --time 5m --small en-hsb,en-si     small languages: alone, together, fine-tuned

L10N has a folder for each pair of languages, with train.tsv.xz, dev.tsv.xz and test.tsv.xz. Systems train one after the other;
one that is finished is not trained again, so a call that was stopped is repeated. dev and test are only scored, with beam 5,
by sacreBLEU (13a) and chrF2; the floors copy the source and answer with the most frequent target. `multilingual`: one model of
en-de and all small languages, with a tag for each target and a temperature of 5; `fine-tuned` starts from it. With --small, dev
chooses the best weights of each training. Curves are in OUT/NAME/results.png.
"""

from __future__ import annotations

import argparse
import json
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

SPLITS = ("dev", "test")
TEMPERATURE = 5


def spec(folder: Path, language: str, split: str) -> str:
    return str(folder / language / f"{split}.tsv.xz")


def run(*words: str) -> float:
    """The seconds that a command of Python takes."""
    began = time.monotonic()
    subprocess.run([sys.executable, *words], check=True)
    return time.monotonic() - began


def train(out: Path, recipe: str, data: Sequence[str], options: Sequence[str]) -> None:
    """`weft train`, unless the run is complete, and what the whole command took."""
    if complete(out) and (out / "command.json").exists():
        return
    words = ["train", recipe] if recipe else ["train"]
    seconds = run("-m", "weft", *words, *(word for one in data for word in ("--data", one)), "--out", str(out), *options)
    (out / "command.json").write_text(json.dumps({"seconds": seconds}), "utf-8")


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


def large(folder: Path, options: argparse.Namespace) -> None:
    """Systems for en-de. A fixed recipe gets more steps than the time allows, so the time ends it."""
    language, data = "en-de", [spec(folder, "en-de", "train")]
    floors(folder, language)
    for system in options.systems.split(","):
        out = options.out / f"{system}-{options.time}"
        if system == "marian":
            if not (out / "facts.json").exists():
                words = [data[0], spec(folder, language, "test"), spec(folder, language, "dev"), "--out", str(out)]
                seconds = run(
                    str(Path(__file__).parent / "l10n_peer.py"), *words, "--seconds", str(parse_duration(options.time))
                )
                for split in SPLITS:
                    (out / f"{split}.txt").rename(out / f"{language}.{split}.txt")
                (out / "command.json").write_text(json.dumps({"seconds": seconds}), "utf-8")
        else:
            sets = [] if system == "auto" else ["train.budget=time", "data.hold_out=1000", "train.validate_every=0"]
            train(out, system, data, ["--time", options.time, *(["--set", *sets, *options.set] if sets + options.set else [])])
            translate(out, folder, language)
        show(folder, language, system, out)


def small(folder: Path, options: argparse.Namespace) -> None:
    """Small languages alone, in one model with the large one, and fine-tuned from that model."""
    languages = options.small.split(",")
    together = options.out / f"multilingual-{options.time}"
    everything = ["en-de", *languages]
    sets = [tagged(folder, everything, "train"), tagged(folder, everything, "valid"), f"data.temperature={TEMPERATURE}"]
    sets += options.set
    train(together, "auto", [], ["--time", options.large_time or options.time, "--set", *sets])
    for language in languages:
        floors(folder, language)
        tag = language[3:]
        alone, tuned = (options.out / f"{kind}-{language}-{options.time}" for kind in ("alone", "fine-tuned"))
        data = [spec(folder, language, "train")]
        train(alone, "auto", data, ["--valid", spec(folder, language, "dev"), "--time", options.time])
        translate(alone, folder, language)
        show(folder, language, "alone", alone)
        translate(together, folder, language, tag)
        show(folder, language, "multilingual", together)
        corpora = [tagged(folder, [language], "train"), tagged(folder, [language], "valid")]
        train(tuned, "", [], ["--from", str(together), "--time", options.time, "--set", *corpora])
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
    options = parser.parse_args()
    print("| pair | system | dev BLEU / chrF2 | test | command |\n|---|---|---|---|---|")
    (small if options.small else large)(options.folder, options)


if __name__ == "__main__":
    main()
