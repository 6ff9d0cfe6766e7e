"""Measurements of golden.py: trainings, resumed trainings, predictions, scores and commands, as data that can be compared."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import golden_data as made
from golden_cases import GROUPS, TRAIN, Case, Options, unpaired

Found = dict[str, Any]
"""The measured values of a case, by name."""

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
    """All recipes with every default."""
    from weft.config.sections import load_config

    found: Found = {}
    names = re.findall(r"^│ ?([a-z0-9-]+)", command("list", "recipes"), re.MULTILINE)
    for name in sorted(names):
        attempt(found, name, Path("/nowhere"), lambda name=name: load_config(name).model_dump(mode="json"))
    return found


def write_files(golden: Golden) -> dict[str, str]:
    """Files that the commands read, by name."""
    folder = golden.work / "commands"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(golden.run("transformer-tiny, long"), folder / "run")
    html = "<p>the <b>red</b> dog sees <i>a cat</i>.</p><ul><li>the king hears a bird</li></ul>"
    subtitles = (
        "1\n00:00:01,000 --> 00:00:02,000\nthe dog sees a cat\nat the river\n\n2\n00:00:03,000 --> 00:00:04,000\nthe man"
    )
    english, other = (spec.partition("=")[2] for spec in unpaired(golden.data)[0])
    return {
        "pairs": made.pairs(golden.data, "commands", 60, 31),
        "lines": made.write_lines(folder / "lines.txt", made.sentences(50, 3)),
        "targets": made.write_lines(folder / "targets.txt", map(made.translation, made.sentences(40, 32))),
        "terms": made.write_lines(folder / "glossary.tsv", ["dog\tgod", "cat\t!tac", "house\tesuoh"]),
        "starts": made.write_lines(folder / "starts.txt", ["eht" if number % 2 else "" for number in range(50)]),
        "html": made.write_lines(folder / "in.html", [html]),
        "srt": made.write_lines(folder / "in.srt", [subtitles]),
        "sound": str(golden.data / "recordings-valid" / "3.wav"),
        "english": english,
        "other": other,
        "copy": str(folder / "run"),
        "out": str(folder / "out"),
    }


def command_lines(golden: Golden, files: Mapping[str, str]) -> dict[str, list[str]]:
    """Commands that translate, score or write files."""
    run, words, other = (str(golden.run(name)) for name in ("transformer-tiny, long", "transformer-tiny", "R-Drop"))
    rerank = f"decode.rerank={{kind: model, run: {golden.run('rnn-bahdanau')}, candidates: 4}}"
    fusion = f"decode.fusion={{kind: shallow, run: {golden.run('lm of the translator')}, weight: 0.3}}"
    lines, pairs, out = files["lines"], files["pairs"], files["out"]
    two = ["--data", f"en={files['english']}", "--data", f"xx={files['other']}"]
    calls = {
        "glossary": ["translate", run, lines, "--glossary", files["terms"], "--json"],
        "glossary, beam": ["translate", run, lines, "--glossary", files["terms"], "--beam", "4", "--json"],
        "prefix": ["translate", run, lines, "--prefix", files["starts"], "--json"],
        "ensemble": ["translate", f"{words},{other}", lines, "--n-best", "3"],
        "html": ["translate", run, files["html"], "--format", "html"],
        "srt": ["translate", run, files["srt"], "--format", "srt"],
        "rerank": ["translate", run, lines, "--json", "--set", rerank],
        "fusion": ["translate", run, lines, "--json", "--set", fusion],
        "align": ["align", run, "--data", pairs],
        "stream": ["predict", str(golden.run("speech, live")), files["sound"], "--stream"],
        "shortlist": ["shortlist", files["copy"], "--data", pairs],
        "with a shortlist": ["translate", files["copy"], lines, "--json", "--set", "decode.shortlist=10"],
        "evaluate against": ["evaluate", words, "--data", pairs, "--against", other, "--json"],
        "backtranslate": ["backtranslate", run, "--data", files["targets"], "--out", f"{out}-back.jsonl"],
        "distill": ["distill", run, "--data", pairs, "--out", f"{out}-distilled.jsonl"],
        "average": ["average", run, "--last", "2", "--out", f"{out}-average"],
        "merge": ["merge", str(golden.run("LoRA")), "--out", f"{out}-merged"],
        "vectors": ["vectors", files["english"], "--output", f"{out}-vectors.txt"],
        "dictionary": ["dictionary", f"{out}-dictionary.tsv", *two],
        "explain": ["explain", run, "the red dog sees a cat", "-o", f"{out}-explain.html"],
    }
    without_device = {"shortlist", "average", "merge", "vectors", "dictionary"}
    return {name: [*call, *([] if name in without_device else ["--device", "cpu"])] for name, call in calls.items()}


def commands(golden: Golden) -> Found:
    """Outputs of commands, digests of the files that they wrote, and what several trainings of one command gave."""
    files, found = write_files(golden), Found()
    for name, call in command_lines(golden, files).items():
        attempt(found, name, golden.work, lambda call=call: command(*call).replace(str(golden.work), "WORK"))
    for path in sorted(Path(files["out"]).parent.glob("out-*")):
        written = path / "model.safetensors" if path.is_dir() else path
        found[f"file {path.name}"] = digest(written.read_bytes().replace(str(golden.work).encode(), b"WORK"))
    attempt(found, "iterate", golden.work, lambda: iterate(golden, files))
    attempt(found, "two processes", golden.work, lambda: distributed(golden, files))
    return found


def short_settings(golden: Golden, **changes: Any) -> list[str]:
    """Settings of a short training for the command line."""
    settings = {**golden.settings(GROUPS["families"]()["transformer-tiny"]), "train.steps": 8, **changes}
    return ["--set", *(f"{key}={json.dumps(value)}" for key, value in settings.items())]


def distributed(golden: Golden, files: Mapping[str, str]) -> dict[str, str]:
    """The weights of a run that two processes trained."""
    out, data = Path(f"{files['out']}-two"), ["--data", files["pairs"], "--valid", files["pairs"]]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "weft", "train"]
    settings = short_settings(golden, **{"train.accumulate": 2})
    subprocess.run([*launcher, "transformer-tiny", *data, "--out", str(out), *settings], check=True, capture_output=True)
    return weights(out)


def iterate(golden: Golden, files: Mapping[str, str]) -> Any:
    """A round of back-translation."""
    out, data = Path(f"{files['out']}-rounds"), ["--data", files["pairs"], "--valid", files["pairs"]]
    settings = short_settings(golden, **{"train.best_by": "bleu"})
    texts = ["--target-text", files["targets"], "--rounds", "1", "--out", str(out)]
    command("iterate", "transformer-tiny", *data, *texts, *settings)
    runs = sorted(path for path in out.glob("*-*") if path.is_dir())
    scores = without_clocks(json.loads((out / "rounds.json").read_text("utf-8")))
    return [scores, {run.name: weights(run) for run in runs}]
