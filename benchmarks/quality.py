"""Quality estimation on data of your own: correlation with sentence chrF beside log-probability and length, with two controls.

    python benchmarks/quality.py --train train.en,train.de --valid val.en,val.de --test test.en,test.de --out OUT
        [--recipe transformer-small] [--set train.steps=1500] [--steps 1000] [--seeds 1] [--only translator,esim]

Trains two models, each on half of the training data, and labels the translations of the other half; then the estimators on
these labels. The first of the two models translates validation and test data. Each estimator is calibrated on the validation
data and reported on the test data.

    translator   the recipe `quality`, from the first model
    esim         the same data and budget for an ESIM that starts from nothing
    no-source    `translator`, but every source is a full stop: what the translation alone says
    no-target    `translator`, scores only, but translations are shuffled: what the source alone says

OUT/quality.json has all reports; a table is printed.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

ESIM = [
    "model={kind: composed, encoder: {kind: rnn, cell: lstm, dim: 128, dropout: 0.2}}",
    "task.estimator={kind: esim, composition: {kind: rnn, cell: lstm, dim: 128, dropout: 0.2}}",
    "data.vocabulary=8000",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--train", "--valid", "--test", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--recipe", default="transformer-small")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the models that translate")
    parser.add_argument("--quality-set", nargs="*", default=[], help="settings of the estimators")
    parser.add_argument("--steps", type=int, default=1000, help="of each estimator")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="translator,esim,no-source,no-target")
    parser.add_argument("--beam", type=int, default=4)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    data = labelled(options, out)
    reports = {}
    for name in options.only.split(","):
        for seed in range(1, options.seeds + 1):
            began = time.monotonic()
            reports[f"{name} {seed}"] = estimator(name, seed, options, out, data)
            print(f"{name}, seed {seed}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            (out / "quality.json").write_text(json.dumps(reports, indent=1))
    table(reports)
    return 0


def labelled(options: argparse.Namespace, out: Path) -> dict[str, Path]:
    """The labelled translations of training, validation and test data."""
    from weft.training.cross_fitting import CrossFitting, label_corpus, make_quality_data

    files = {name: out / f"{name}.jsonl" for name in ("train", "valid", "test")}
    beam = {"beam": options.beam}
    if not files["train"].exists():
        plan = CrossFitting(options.recipe, [options.train], [options.valid], files["train"], sets=options.set, options=beam)
        make_quality_data(plan, lambda message: None)
    for name in ("valid", "test"):
        if not files[name].exists():
            label_corpus(first_model(out), [getattr(options, name)], files[name], options=beam)
    return files


def first_model(out: Path) -> Path:
    return out / "train.jsonl.folds" / "run-1"


def estimator(name: str, seed: int, options: argparse.Namespace, out: Path, data: dict[str, Path]) -> dict[str, Any]:
    """The report of one estimator on the test data."""
    import weft
    from weft.runs.quality_calibration import calibrate, draw_reliability, estimate, report

    files = {part: changed(file, name, out) for part, file in data.items()}
    sets = [f"train.steps={options.steps}", f"train.seed={seed}", "train.tensorboard=false", *options.quality_set]
    sets += ESIM if name == "esim" else []
    sets += ["task.output=number"] if name == "no-target" else []
    run = out / f"{name}-{seed}"
    if not (run / "model.safetensors").exists():
        start = None if name == "esim" else first_model(out)
        weft.train("quality", start=start, data=str(files["train"]), valid=str(files["valid"]), out=run, set=sets)
    calibrate(run, [str(files["valid"])])
    found = report(estimate(run, [str(files["test"])]))
    draw_reliability(found, run / "reliability.png")
    return found


def changed(file: Path, name: str, out: Path) -> Path:
    """The data of an estimator: that of controls without sources, or with the translations of other sources."""
    if not name.startswith("no-"):
        return file
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    if name == "no-source":
        rows = [row | {"source": "."} for row in rows]
    else:
        texts = [row["translation"] for row in rows]
        random.Random(1).shuffle(texts)
        rows = [{**row, "translation": text} for row, text in zip(rows, texts, strict=True)]
    written = out / f"{name}.{file.name}"
    written.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return written


def table(reports: dict[str, Any]) -> None:
    """The test scores of all estimators, in percent, and the floors of the first report."""
    print(f"{'':40}{'Pearson':>9}{'Spearman':>10}{'worst tenth':>13}{'MCC':>7}{'error':>8}{'of words':>10}")
    for name, found in reports.items():
        words = found.get("words", {})
        rows = {name: found["estimators"]["this run"]}
        if found is next(iter(reports.values())):
            rows |= {key: each for key, each in found["estimators"].items() if key != "this run"}
        for key, each in rows.items():
            line = f"{key:40}{100 * each['pearson']:9.1f}{100 * each['spearman']:10.1f}{100 * each['worst_found']:13.1f}"
            if key == name:
                line += f"{100 * words.get('mcc', 0):7.1f}{found['sentences']['error']:8.3f}{words.get('error', 0):10.3f}"
            print(line)


if __name__ == "__main__":
    sys.exit(main())
