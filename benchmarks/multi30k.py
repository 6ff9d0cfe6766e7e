"""Quality and training time of a recipe on Multi30k en-de, compared with transformers' Marian in the same run.

    python benchmarks/multi30k.py DIR [--recipe transformer-small] [--peer] [--set train.steps=100 …]

DIR holds train, val and test_2016_flickr, each as .en and .de. Prints a table with BLEU on test_2016_flickr (beam 5,
sacreBLEU 13a, cased), parameters, target-side padded tokens and seconds of training.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import weft
from weft.data.formats import open_pairs
from weft.evaluation.metrics import make_metrics, score
from weft.training.validate_and_save import Result


def train(recipe: str, folder: Path, out: Path, sets: list[str]) -> tuple[Result, float]:
    """The result of training, and its seconds including tokenizer, cache, start-up, validation and saving."""
    began = time.perf_counter()
    result = weft.train(
        recipe,
        data=f"{folder}/train.en,{folder}/train.de",
        valid=f"{folder}/val.en,{folder}/val.de",
        out=out,
        set=[f"data.cache={out.parent}/cache", *sets],
        tell=print,
    )
    return result, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="transformer-small")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", action="store_true", help="also train transformers' Marian")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp()) / "run"
    result, total = train(options.recipe, options.folder, out, options.set)
    translator = weft.load(out)
    pairs = list(open_pairs(f"{options.folder}/test_2016_flickr.en,{options.folder}/test_2016_flickr.de"))
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    translator.translate(sources[:50], beam=5)
    began = time.perf_counter()
    outputs = [each.text for each in translator.translate(sources, beam=5)]
    rate = len(outputs) / (time.perf_counter() - began)
    bleu = score(outputs, references, make_metrics(["bleu"]))["BLEU"]
    train_section = translator.config.train
    padded = result.update * train_section.batch_tokens * train_section.accumulate
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    versions = f"Python {platform.python_version()} · torch {torch.__version__} · weft {weft.__version__}"
    print(f"\n{time.strftime('%Y-%m-%d')} · {device} · {versions}")
    print(f"BLEU signature {bleu.signature}")
    ours = (options.recipe, bleu.value, translator.model.count_parameters(), padded, result.seconds, rate)
    row = "{:<20} BLEU {:.2f} · {:,} parameters · at most {:,} padded target tokens · {:.0f} s training · {:.0f} sentences/s"
    print(row.format(*ours), f"· {total:.0f} s with tokenizer and cache")
    if options.peer:
        script = Path(__file__).with_name("multi30k_peer.py")
        lines = subprocess.run([sys.executable, script, options.folder], check=True, stdout=subprocess.PIPE, text=True).stdout
        peer = json.loads(lines.strip().split("\n")[-1])
        figures = [peer[name] for name in ("seconds", "sentences_per_second")]
        print(row.format("transformers' Marian", peer["bleu"], peer["parameters"], 5000 * 8192, *figures))
        print(f"training time: {result.seconds / peer['seconds']:.2f} of the peer's; BLEU {bleu.value - peer['bleu']:+.2f}")


if __name__ == "__main__":
    main()
