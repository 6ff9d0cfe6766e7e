"""Golden numbers: whether two commits compute the same, bit for bit.

    python benchmarks/golden.py --out before.json                          # before a refactoring
    python benchmarks/golden.py --out after.json --against before.json     # after it

Trains small models of every task, family and objective (golden_cases.py) on made-up data, on one thread of a CPU, and writes
down the weights, the losses of all steps, the scores, predictions of many searches, the output of commands, and whether a
stopped run that is resumed ends with the same bits. `--against` compares, and also loads, uses and resumes the runs of before.
`PYTHONPATH` says which checkout of weft is used, so that one copy of this script serves both. `--only 'speech*'` selects cases.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import golden_data as made
from golden_cases import GROUPS, TRAIN, Case, Options, unpaired

Found = dict[str, Any]
"""What a case gave, by name."""

CLOCKS = {"run", "seconds", "seconds_left", "tokens_per_second", "time", "peak_memory"}
"""Entries of logs and outputs that differ from call to call, and folders."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def weights(run: Path) -> dict[str, str]:
    """Digests of the published weights and of everything in the last checkpoint."""
    last = max((run / "checkpoints").glob("step-*"))
    files = [run / "model.safetensors", *sorted(last.glob("*.safetensors"))]
    return {f"{file.parent.name if file.parent == last else 'run'}/{file.name}": digest(file.read_bytes()) for file in files}


def log(run: Path) -> list[dict[str, Any]]:
    """The log without times."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [without_clocks(line) for line in lines]


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in CLOCKS and not key.endswith("_per_second")}
        return {key: without_clocks(each) for key, each in kept.items()}
    return [without_clocks(each) for each in value] if isinstance(value, list) else value


def text_files(run: Path, work: Path) -> dict[str, str]:
    """Tokenizers, label lists and the configuration, with paths that do not depend on the machine.

    Not run.json, which has the version of the format.
    """
    names = [
        path
        for path in sorted(run.iterdir())
        if path.suffix in (".json", ".yaml", ".txt") and path.name not in ("run.json", "weft.schema.json")
    ]
    return {path.name: path.read_text("utf-8").replace(str(work), "WORK") for path in names}


def plain(prediction: Any) -> list[Any]:
    """A prediction with all its digits, and the digest of its attention."""
    others = [[each.text, each.score] for each in prediction.alternatives]
    maps = {name: digest(values.tobytes()) for name, values in prediction.attention.items()}
    return [prediction.text, prediction.score, list(prediction.ids), others, *([maps] if maps else [])]


def command(*arguments: str) -> str:
    """Standard output of a command line, which runs in this process. Raises RuntimeError with its message if it fails."""
    from weft import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run([*arguments])
    if status:
        raise RuntimeError(err.getvalue().strip())
    return out.getvalue()


def attempt(found: Found, name: str, work: Path, measure: Any) -> Any:
    """Puts what `measure` returns under a name, or its error message."""
    try:
        found[name] = measure()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}".replace(str(work), "WORK")


class Golden:
    """All cases in one folder. before: the folder of an earlier call, whose runs are used again."""

    def __init__(self, work: Path, before: Path | None) -> None:
        self.work, self.before = work, before
        self.data = work / "data"

    def run(self, name: str) -> Path:
        return self.work / name.replace(" ", "_") / "run"

    def settings(self, case: Case) -> dict[str, Any]:
        def filled(value: Any) -> Any:
            if not isinstance(value, str) or not value.startswith("{"):
                return value
            return value.replace("{data}", str(self.data)) if "{data}" in value else str(self.run(value[1:-1]))

        given = {key: filled(value) for key, value in case.settings.items()}
        return {**TRAIN, "data.cache": str(self.work / "cache"), **given}

    def train(self, name: str, case: Case) -> None:
        import weft

        made.vectors(self.data, "words", 32, 8)
        data, valid = case.files(self.data)
        run, settings = self.run(name), self.settings(case)
        if case.start:
            model = tuple(key for key in settings if key.startswith(("data.tok", "data.voc", "model.")) and "lora" not in key)
            settings = {key: value for key, value in settings.items() if key not in model}
            weft.train(start=self.run(case.start), data=data, valid=valid, out=run, set=settings)
        else:
            weft.train(case.recipe, data=data, valid=valid, out=run, set=settings)

    def resume(self, run: Path, out: Path) -> dict[str, str]:
        """The weights of a copy of a run that lost its last checkpoint and was resumed."""
        import weft

        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run, out)
        steps = sorted((out / "checkpoints").glob("step-*"))
        shutil.rmtree(steps[-1])
        (out / "model.safetensors").unlink()
        weft.train(out=out, resume=True)
        return weights(out)

    def inputs(self, case: Case) -> list[str]:
        return [str(path) for path in sorted(self.data.glob(case.inputs))][:50] if isinstance(case.inputs, str) else case.inputs

    def predictions(self, run: Path, case: Case, options: Options) -> Any:
        import weft

        if case.use == "generate":
            generator = weft.load_generator(run, device="cpu")
            return [
                [each.text, each.score] for prompt in case.inputs for each in generator.generate(prompt, tokens=30, **options)
            ]
        return [plain(each) for each in weft.load(run, device="cpu").translate(self.inputs(case), **options)]

    def attention(self, run: Path, case: Case) -> Any:
        import weft

        options = next(iter(case.searches.values()))
        return [
            plain(each) for each in weft.load(run, device="cpu").translate(self.inputs(case)[:8], attention=True, **options)
        ]

    def scores(self, run: Path, case: Case) -> Any:
        data, valid = case.files(self.data)
        named = made.pairs(self.data, "scored", 30, 41) if case.recipe == "unsupervised" else valid or data
        files = named if isinstance(named, str) else named[0] if isinstance(named[0], str) else named[0]["files"]
        tag = [] if isinstance(named, str | list) and isinstance(named[0], str) else ["--tag", named[0]["tag"]]
        found = json.loads(command("evaluate", str(run), "--data", files, "--json", "--device", "cpu", *tag))
        return json.loads(json.dumps(without_clocks(found)).replace(str(self.work), "WORK"))

    def measure(self, name: str, case: Case) -> Found:
        found: Found = {}
        run = self.run(name)
        shutil.rmtree(run.parent, ignore_errors=True)
        attempt(found, "training", self.work, lambda: self.train(name, case))
        if found["training"] is not None:
            return found
        attempt(found, "weights", self.work, lambda: weights(run))
        attempt(found, "log", self.work, lambda: log(run))
        attempt(found, "files", self.work, lambda: text_files(run, self.work))
        attempt(found, "resumed", self.work, lambda: self.resume(run, run.parent / "resumed"))
        attempt(found, "resumed log", self.work, lambda: log(run.parent / "resumed"))
        attempt(found, "scores", self.work, lambda: self.scores(run, case))
        if case.use != "evaluate":
            for search, options in case.searches.items():
                attempt(found, f"search: {search}", self.work, lambda options=options: self.predictions(run, case, options))
        if case.use == "translate":
            attempt(found, "attention", self.work, lambda: self.attention(run, case))
        earlier = self.before and self.before / run.relative_to(self.work)
        if earlier and earlier.exists():
            attempt(found, "before: resumed", self.work, lambda: self.resume(earlier, run.parent / "before"))
            if case.use != "evaluate":
                search, options = next(iter(case.searches.items()))
                attempt(found, f"before: search: {search}", self.work, lambda: self.predictions(earlier, case, options))
        return found


def recipes() -> Found:
    """All recipes with every default, and the schema of configurations without its descriptions."""
    from weft.config.sections import load_config

    found: Found = {}
    names = re.findall(r"^│ ([a-z0-9-]+)", command("list", "recipes"), re.MULTILINE)
    for name in sorted(names):
        attempt(found, name, Path("/nowhere"), lambda name=name: load_config(name).model_dump(mode="json"))
    return found


def commands(golden: Golden) -> Found:
    """Commands that write files or texts, with the run of the case transformer-tiny."""
    work, run = golden.work, str(golden.run("transformer-tiny"))
    folder = work / "commands"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pairs = made.pairs(golden.data, "commands", 60, 31)
    lines = made.write_lines(folder / "lines.txt", made.sentences(50, 3))
    targets = made.write_lines(folder / "targets.txt", map(made.translation, made.sentences(40, 32)))
    terms = made.write_lines(folder / "glossary.tsv", ["dog\tgod", "cat\t!tac", "house\tesuoh"])
    starts = made.write_lines(folder / "starts.txt", ["eht" if number % 2 else "" for number in range(50)])
    html = folder / "page.html"
    html.write_text("<p>the <b>red</b> dog sees <i>a cat</i>.</p><ul><li>the king hears a bird</li></ul>", "utf-8")
    srt = folder / "a.srt"
    srt.write_text(
        "1\n00:00:01,000 --> 00:00:02,000\nthe dog sees a cat\nat the river\n\n2\n00:00:03,000 --> 00:00:04,000\nthe man\n",
        "utf-8",
    )
    sound = golden.data / "recordings-valid" / "3.wav"
    english, other = (spec.partition("=")[2] for spec in unpaired(golden.data)[0])
    copied = folder / "run"
    shutil.copytree(run, copied)
    rerank = f"decode.rerank={{kind: model, run: {golden.run('rnn-bahdanau')}, candidates: 4}}"
    fusion = f"decode.fusion={{kind: shallow, run: {golden.run('lm of the translator')}, weight: 0.3}}"
    long = str(golden.run("transformer-tiny, long"))
    usual = ("--device", "cpu")
    calls: dict[str, tuple[str, ...]] = {
        "glossary": ("translate", run, lines, "--glossary", terms, "--json", *usual),
        "glossary, beam": ("translate", run, lines, "--glossary", terms, "--beam", "4", "--json", *usual),
        "prefix": ("translate", run, lines, "--prefix", starts, "--json", *usual),
        "ensemble": ("translate", f"{run},{golden.run('R-Drop')}", lines, "--n-best", "3", *usual),
        "html": ("translate", run, str(html), "--format", "html", *usual),
        "rerank": ("translate", run, lines, "--json", "--set", rerank, *usual),
        "fusion": ("translate", long, lines, "--json", "--set", fusion, *usual),
        "align": ("align", run, "--data", pairs, *usual),
        "shortlist": ("shortlist", str(copied), "--data", pairs),
        "with a shortlist": ("translate", str(copied), lines, "--json", "--set", "decode.shortlist=10", *usual),
        "evaluate against": ("evaluate", run, "--data", pairs, "--against", str(golden.run("R-Drop")), "--json", *usual),
        "backtranslate": ("backtranslate", run, "--data", targets, "--out", str(folder / "bt.jsonl"), *usual),
        "distill": ("distill", run, "--data", pairs, "--out", str(folder / "distilled.jsonl"), *usual),
        "average": ("average", run, "--last", "2", "--out", str(folder / "average")),
        "merge": ("merge", str(golden.run("LoRA")), "--out", str(folder / "merged")),
        "vectors": ("vectors", english, "--output", str(folder / "vectors.txt")),
        "dictionary": ("dictionary", str(folder / "dictionary.tsv"), "--data", f"en={english}", "--data", f"xx={other}"),
        "explain": ("explain", run, "the red dog sees a cat", "-o", str(folder / "page-explain.html"), *usual),
        "stream": ("predict", str(golden.run("speech, attention")), str(sound), "--stream", *usual),
        "srt": ("translate", run, str(srt), "--format", "srt", *usual),
    }
    found: Found = {}
    for name, arguments in calls.items():
        attempt(found, name, work, lambda arguments=arguments: command(*arguments).replace(str(work), "WORK"))
    attempt(found, "iterate", work, lambda: iterate(golden, folder, pairs, targets))
    attempt(found, "two processes", work, lambda: distributed(golden, folder, pairs))
    for path in sorted(
        [
            *folder.glob("*.jsonl"),
            *folder.glob("*/model.safetensors"),
            *folder.glob("run/*.npz"),
            *folder.glob("vectors*"),
            *folder.glob("page-*"),
            *folder.glob("*.tsv"),
        ]
    ):
        found[f"file {path.relative_to(folder)}"] = digest(path.read_bytes())
    return found


def distributed(golden: Golden, folder: Path, pairs: str) -> dict[str, str]:
    """The weights of a run that two processes trained."""
    settings = {**golden.settings(GROUPS["families"]()["transformer-tiny"]), "train.steps": 8, "train.accumulate": 2}
    sets = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "weft", "train"]
    command = [*launcher, "transformer-tiny", "--data", pairs, "--valid", pairs, "--out", str(folder / "two"), "--set", *sets]
    subprocess.run(command, check=True, capture_output=True)
    return weights(folder / "two")


def iterate(golden: Golden, folder: Path, pairs: str, targets: str) -> Any:
    """Two rounds of back-translation."""
    settings = {**golden.settings(GROUPS["families"]()["transformer-tiny"]), "train.steps": 8, "train.best_by": "bleu"}
    sets = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    data = ("--data", pairs, "--valid", pairs, "--target-text", targets, "--out", str(folder / "rounds"))
    command("iterate", "transformer-tiny", *data, "--rounds", "1", "--set", *sets)
    runs = sorted(path for path in (folder / "rounds").glob("*-*") if path.is_dir())
    scores = without_clocks(json.loads((folder / "rounds" / "rounds.json").read_text("utf-8")))
    return [scores, {run.name: weights(run) for run in runs}]


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested data."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from flattened(each, f"{path}/{key}")
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from flattened(each, f"{path}/{number}")
    else:
        yield path, value


def compare(before: dict[str, Found], after: dict[str, Found]) -> tuple[dict[str, list[str]], int]:
    """Differing values by case and measurement, and how many values were compared."""
    differing: dict[str, list[str]] = {}
    count = 0
    for case in after:
        for name, value in after[case].items():
            earlier = before.get(case, {})
            old = earlier.get(name.removeprefix("before: "))
            a, b = dict(flattened(old)), dict(flattened(value))
            count += len(a.keys() | b.keys())
            wrong = [
                f"{key}: {a.get(key)!r} → {b.get(key)!r}" for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)
            ]
            if wrong:
                differing[f"{case} · {name}"] = wrong
    return differing, count


def unsound(found: dict[str, Found]) -> list[str]:
    """Cases whose resumed run differs from the uninterrupted one, and those that failed."""
    wrong = []
    for name, case in found.items():
        for weighed, resumed in (("weights", "resumed"), ("log", "resumed log")):
            if weighed in case and case[weighed] != case.get(resumed):
                wrong.append(f"{name}: {resumed} differs from the whole run")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the numbers; the runs go into a folder next to it")
    parser.add_argument("--against", type=Path, help="numbers of another commit to compare with")
    parser.add_argument("--only", default="*", help="pattern of the names of cases; default: all")
    arguments = parser.parse_args()
    work = arguments.out.absolute().with_suffix(".runs")
    before = json.loads(arguments.against.read_text("utf-8")) if arguments.against else {}
    earlier = arguments.against.absolute().with_suffix(".runs") if arguments.against else None
    os.environ["XDG_CACHE_HOME"] = str(work / "user-cache")
    import torch

    import weft

    torch.set_num_threads(1)
    print(f"weft {weft.__version__} of {Path(weft.__file__).parent}, torch {torch.__version__}")
    golden = Golden(work, earlier)
    cases = {name: case for group in GROUPS.values() for name, case in group().items()}
    calls: dict[str, Any] = {name: lambda name=name, case=case: golden.measure(name, case) for name, case in cases.items()}
    calls |= {"recipes": recipes, "commands": lambda: commands(golden)}
    found: dict[str, Found] = {}
    for name, call in calls.items():
        if fnmatch.fnmatch(name, arguments.only):
            began = time.perf_counter()
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                found[name] = call()
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
            arguments.out.write_text(json.dumps(found, ensure_ascii=False), "utf-8")
    report(found, before)


def report(found: dict[str, Found], before: dict[str, Found]) -> None:
    """Prints what failed and what differs; exits with 1 if anything does."""
    failed = [
        f"{case} · {name}: {value}"
        for case in found
        for name, value in found[case].items()
        if isinstance(value, str) and "Error: " in value
    ]
    print(f"{len(failed)} refusals or errors", *(line[:300] for line in failed), sep="\n  ")
    wrong = unsound(found)
    print(f"{len(wrong)} resumed runs differ", *wrong, sep="\n  ")
    differing, count = compare(before, found) if before else ({}, 0)
    for name, lines in differing.items():
        print(f"DIFFERENT {name}: {len(lines)} values", *(line[:300] for line in lines[:5]), sep="\n  ")
    if before:
        print(f"{count:,} values of {len(found)} cases compared, {sum(map(len, differing.values()))} differ")
    sys.exit(bool(wrong or differing))


if __name__ == "__main__":
    main()
