"""Back-translation on Multi30k: 5,000 English-German pairs and 24,000 German captions without their English.

    python benchmarks/backtranslation.py DIR --out OUT [--seeds 1,2] [--only pairs,beam] [--rounds 2] [--minutes 9]

DIR holds train, val and test_2016_flickr, each as .en and .de. The English side of the 24,000 other pairs is used by the system
`all` only, which is the upper limit.

pairs      the 5,000 pairs alone
beam       with the captions translated back by a beam search, tagged
untagged   the same without a tag
sampled    translated back by sampling, tagged
noised     the beam's translations with noise (drop 0.1, blank 0.1, shuffle 3), tagged
all        29,000 true pairs
rounds     `weft iterate`, with the German of 12,000 of the captions and the English of the other 12,000

All systems are transformer-small with a vocabulary of 4,000. They keep the checkpoint with the best validation BLEU. Scores are
BLEU on test_2016_flickr (beam 5, sacreBLEU 13a, cased). The floor copies the source. The same command resumes what was
interrupted.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from floors import copied
from trainings import Outcome, Run, Sweep, add_options, common_settings, markdown, report, select

from weft.bench.compare.training_jobs import Failure, Stopped
from weft.config import yaml_document
from weft.data.text_lines import read_lines

PAIRS = 5_000
SEED = 1
NOISE = {"drop": 0.1, "blank": 0.1, "shuffle": 3}
SETTINGS = (
    *("data.vocabulary=4000", "train.validate_every=500", "train.save_every=500"),
    *("train.keep_best=true", "train.best_by=bleu"),
)
SIZES = {"pairs": (2500, 4096), "backward": (2500, 4096), "rounds": (2500, 4096)}
"""Steps, and tokens per step; others: LARGE."""
LARGE = (3000, 8192)

SYSTEMS: dict[str, tuple[str, dict[str, Any]] | None] = {
    "pairs": None,
    "beam": ("beam", {"tag": "bt"}),
    "untagged": ("beam", {}),
    "sampled": ("sampled", {"tag": "bt"}),
    "noised": ("beam", {"tag": "bt", "noise": NOISE}),
    "all": None,
    "rounds": None,
}
"""How the captions are translated back, and the corpus they form."""

SEARCHES = {"beam": ["--beam", "5"], "sampled": ["--set", "decode.search=sample"]}


def split(folder: Path, out: Path) -> dict[str, Path]:
    """Writes 5,000 pairs, the German of half of the others' rows and, for rounds, the English of the other half."""
    sides = {side: list(read_lines(folder / f"train.{side}")) for side in ("en", "de")}
    order = np.random.default_rng(SEED).permutation(len(sides["en"]))
    chosen, rest = order[:PAIRS], order[PAIRS:]
    parts = {
        **{f"pairs.{side}": [lines[row] for row in chosen] for side, lines in sides.items()},
        "mono.de": [sides["de"][row] for row in rest],
        "half.de": [sides["de"][row] for row in rest[::2]],
        "half.en": [sides["en"][row] for row in rest[1::2]],
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        (out / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return {name: out / name for name in parts}


class Experiment:
    """The commands of all systems, with their results in `out`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        self.sweep = Sweep(options.out, at_once=options.at_once, minutes=options.minutes)
        self.data = split(options.folder, options.out / "data")

    def files(self, part: str, source: str = "en", target: str = "de") -> str:
        return f"{self.options.folder / part}.{source},{self.options.folder / part}.{target}"

    def settings(self, name: str, seed: int) -> tuple[str, ...]:
        steps, tokens = SIZES.get(name, LARGE)
        size = f"train.steps={max(2, int(steps * self.options.steps_scale))}", f"train.batch_tokens={tokens}"
        return (
            *SETTINGS,
            *common_settings(self.out),
            "train.packed=auto",
            *size,
            f"train.seed={seed}",
            *self.options.set,
        )

    def backward(self, seed: int) -> Run:
        pairs = f"{self.data['pairs.de']},{self.data['pairs.en']}"
        valid = f"data.valid={yaml_document.scalar([self.files('val', 'de', 'en')])}"
        return Run(f"backward-{seed}", "transformer-small", pairs, (*self.settings("backward", seed), valid))

    def translate(self, search: str, seed: int) -> Path:
        """The captions translated back, once."""
        made = self.out / "data" / f"{search}-{seed}.jsonl"
        if not made.exists():
            run = str(self.out / f"backward-{seed}")
            words = ["backtranslate", run, "--data", str(self.data["mono.de"]), "--out", str(made), *SEARCHES[search]]
            self.sweep.processes(f"{search}-{seed}.translate", words)
        return made

    def forward(self, name: str, seed: int) -> Run:
        train: list[Any] = [f"{self.data['pairs.en']},{self.data['pairs.de']}"]
        if name == "all":
            train = [self.files("train")]
        if system := SYSTEMS[name]:
            search, corpus = system
            train.append({"files": str(self.out / "data" / f"{search}-{seed}.jsonl"), **corpus})
        data = (f"data.train={yaml_document.scalar(train)}", f"data.valid={yaml_document.scalar([self.files('val')])}")
        return Run(f"{name}-{seed}", "transformer-small", "", (*self.settings(name, seed), *data), self.tests)

    @property
    def tests(self) -> dict[str, str]:
        return {"test": self.files("test_2016_flickr")}

    def iterate(self, seed: int) -> list[tuple[str, float]]:
        """The score of the forward model of every round."""
        folder = self.out / f"rounds-{seed}"
        words = ["iterate", "transformer-small", "--out", str(folder), "--rounds", str(self.options.rounds)]
        words += ["--data", f"{self.data['pairs.en']},{self.data['pairs.de']}", "--valid", self.files("val")]
        words += ["--target-text", str(self.data["half.de"]), "--source-text", str(self.data["half.en"])]
        words += [word for each in self.settings("rounds", seed) for word in ("--set", each)]
        self.sweep.processes(f"rounds-{seed}", words)
        found = json.loads((folder / "rounds.json").read_text("utf-8"))
        runs = [each["run"] for each in found if each["direction"] == "forward"]
        return [(f"round {number}", self._score(f"rounds-{seed}/{run}")) for number, run in enumerate(runs)]

    def _score(self, name: str) -> float:
        run = Run(name.replace("/", "-"), "transformer-small", "", (), self.tests)
        file = self.out / "scores" / f"{run.name}.json"
        if not file.exists():
            words = ["evaluate", str(self.out / name), "--data", self.tests["test"], "--beam", "5", "--json"]
            file.write_text(self.sweep.processes(f"{run.name}.test", words), "utf-8")
        return float(json.loads(file.read_text("utf-8"))["metrics"]["BLEU"]["value"])


def table(scores: Mapping[str, list[float]], options: argparse.Namespace) -> str:
    done = {name: found for name, found in scores.items() if found}
    base = np.mean(done.get("pairs") or done.get("round 0") or np.nan)  # both are the pairs alone
    rows = [
        (name, f"{np.mean(found):.2f}", ", ".join(f"{each:.2f}" for each in found), f"{np.mean(found) - base:+.2f}")
        for name, found in done.items()
    ]
    test = f"{options.folder}/test_2016_flickr.en,{options.folder}/test_2016_flickr.de"
    rows.append(("source copied", f"{copied('', test)['source copied']:.2f}", "", ""))
    return markdown(("system", "mean BLEU", "BLEU of each seed", "against the pairs alone"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="1,2", help="seeds, separated by commas")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of `weft iterate` (default 2)")
    add_options(parser, at_once=6)
    options = parser.parse_args()
    names, seeds = select(SYSTEMS, options.only), [int(seed) for seed in options.seeds.split(",")]
    work = Experiment(options)
    trained = [name for name in names if name != "rounds"]
    first = [work.backward(seed) for seed in seeds if any(SYSTEMS[name] for name in names)]
    first += [work.forward("pairs", seed) for seed in seeds if "pairs" in names]
    outcomes: list[Outcome] = work.sweep(first)
    scores: dict[str, list[float]] = defaultdict(list)
    try:
        searches = dict.fromkeys(system[0] for name in names if (system := SYSTEMS[name]))
        with ThreadPoolExecutor(options.at_once) as workers:
            list(workers.map(lambda job: work.translate(*job), product(searches, seeds)))
        outcomes += work.sweep([work.forward(name, seed) for name in trained if name != "pairs" for seed in seeds])
        with ThreadPoolExecutor(options.at_once) as workers:
            for rounds in workers.map(work.iterate, seeds if "rounds" in names else []):
                for name, found in rounds:
                    scores[name].append(found)
    except (Failure, Stopped) as error:
        print(error)
    known = {each.run.name: each.scores["test"]["BLEU"] for each in outcomes if each.scores}
    systems = {name: [known[run] for seed in seeds if (run := f"{name}-{seed}") in known] for name in trained}
    scores = {**systems, **scores}
    raise SystemExit(report(options.out, "backtranslation", table(scores, options), outcomes))


if __name__ == "__main__":
    main()
