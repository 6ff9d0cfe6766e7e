"""`weft evaluate`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from weft.cli.input_and_output import Counter, opened, warn
from weft.cli.options import ACTORS, BEAM, DEVICE, ENGINE, FAST, PAIRS, RUN, TAG, check_engine, decode_options
from weft.cli.predict_in_shards import predict_in_shards
from weft.data.text_lines import read_lines
from weft.errors import ConfigError
from weft.runs.run_folder import run_folders

if TYPE_CHECKING:
    from weft.evaluation.report import Evaluation
    from weft.runs.trained_model import Trained


DATA = f"Test pairs: {PAIRS}; for a language model, text files. Repeatable."
CONTRASTIVE = (
    "Instead of --data: lines of source, right and wrong text between tabs; counts how often the right one is likelier."
)
AGAINST = "Another run to compare with by a significance test, or a file with the outputs of another system, one per line."
TOKENIZE = typer.Option(
    None, "--tokenize", help="sacreBLEU's tokenizer for BLEU: 13a, zh, ja-mecab, char, …; default: the run's own."
)
METRIC = typer.Option(
    [],
    "--metric",
    help="One more metric, computed by another program: JSON lines with source, output and references in, with score out. "
    "Repeatable.",
    metavar="command:'COMMAND'",
)
LOWERCASE = typer.Option(False, "--lowercase", help="Ignore case.")
REFERENCE = typer.Option(
    [],
    "--reference",
    help="Further references of the test data: a file with one per line, or other columns, x.tsv#1,3. Repeatable.",
    metavar="FILE",
)
TASK_SET = typer.Option(
    [], "--set", help="Any setting of decoding or of the task, e.g. --set decode.beam=5. Repeatable.", metavar="KEY=VALUE"
)


class SignificanceTest(StrEnum):
    randomisation = "randomisation"
    bootstrap = "bootstrap"


def evaluate(
    run: str = RUN,
    data: list[str] = typer.Option([], "--data", help=DATA, metavar="FILES"),
    contrastive: Path = typer.Option(None, "--contrastive", help=CONTRASTIVE),
    against: str = typer.Option(None, "--against", help=AGAINST),
    as_json: bool = typer.Option(False, "--json", help="A JSON document instead of a table."),
    output: Path = typer.Option(None, "-o", "--output", help="Also write the predictions to this file."),
    beam: int = BEAM,
    tag: str = TAG,
    tokenize: str = TOKENIZE,
    lowercase: bool = LOWERCASE,
    test: SignificanceTest = typer.Option(SignificanceTest.randomisation, "--test", help="Significance test."),
    samples: int = typer.Option(1000, "--samples", help="Resamples for intervals and tests."),
    reference: list[str] = REFERENCE,
    metric: list[str] = METRIC,
    metric_timeout: float = typer.Option(3600, "--metric-timeout", help="Seconds that each --metric may take."),
    engine: str = ENGINE,
    actors: int = ACTORS,
    fast: bool = FAST,
    device: str = DEVICE,
    set: list[str] = TASK_SET,
) -> None:
    """Score a run on test data by the metrics of its task.

    Translation: BLEU, chrF, TER (sacreBLEU), exact match, token accuracy. Classification, pairs, answering: accuracy, macro F1;
    pairs with numbers: correlations, squared error. Reading: exact match, F1 of words. Tagging: accuracy, also on unknown
    words, F1 of entities. Captioning: CIDEr-D and BLEU-4 against all captions of an image. Transcription: word and character
    error rates. Synthesis: mel-cepstral distortion. Language models: loss, perplexity, bits per character; --set
    task.evaluation_memory=1024 and the like change how they read.
    """
    from weft.evaluation.command_metric import command_of
    from weft.runs.run_evaluation import AddedMetrics, evaluate_systems
    from weft.runs.translator import load_trained

    task_sets = [text for text in set if text.startswith("task.")]
    _check(data, contrastive, against, engine, actors, task_sets, metric)
    added = AddedMetrics([command_of(each) for each in metric], metric_timeout)
    options = decode_options([text for text in set if text not in task_sets], beam=beam, tag=tag, fast=fast or None)
    names = [run] if against is None or os.path.isfile(against) else [run, against]
    place = "cpu" if engine else device  # with an engine, the actors predict
    systems = {name: load_trained(run_folders(name), device=place, warn=warn, set=task_sets) for name in names}
    if contrastive is not None:
        return _show_preferences(run, systems[run], contrastive, options, output, as_json)
    _warn_of_directions(systems, options)
    if not systems[run].task.metrics():
        added.refuse(systems[run])
        if against is not None and len(names) == 1:
            raise ConfigError(f"--against {against}: this run writes no texts, so it is compared with another run only")
        return _show_scores({name: system.score(data) for name, system in systems.items()}, data, as_json)
    theirs = None if against is None or len(names) > 1 else Path(against)

    def predict(name: str, system: Trained, sources: Sequence[str]) -> list[str]:
        file = output if name == run else None
        if engine:
            return _predict_on_engine(name, sources, engine, actors, device=device, options=options, output=file)
        return _predict(name, system, sources, options=options, output=file)

    scoring: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase, "test": test.value, "samples": samples}
    scoring |= {"reference": reference, "outputs": theirs, "added": added}
    _show_evaluation(evaluate_systems([*systems.items()], data, predict, **scoring), as_json)


def _check(
    data: Sequence[str],
    contrastive: Path | None,
    against: str | None,
    engine: str | None,
    actors: int | None,
    task_sets: Sequence[str],
    metric: Sequence[str],
) -> None:
    """Raises ConfigError if the options contradict each other."""
    check_engine(engine, actors)
    if engine and task_sets:
        raise ConfigError(f"--set {task_sets[0]}: with --engine, only decoding can be changed")
    if (contrastive is None) == (not data):
        raise ConfigError("give either --data FILES or --contrastive FILE")
    if contrastive is not None and (against is not None or engine is not None or metric):
        option = "--against" if against is not None else "--engine" if engine is not None else "--metric"
        raise ConfigError(f"{option}: contrastive pairs are counted for one run, in one process; leave it out")


def _warn_of_directions(systems: dict[str, Trained], options: dict[str, Any]) -> None:
    """Says which direction of a run that translates in both is scored, if the user has not chosen one."""
    for name, system in systems.items():
        if (two := system.languages) and not (options.get("into") or system.config.decode.into):
            warn(f"{name}: translations into {two[1]} are scored; --set decode.into={two[0]} scores those into {two[0]}")


def _show_evaluation(found: Evaluation, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2, ensure_ascii=False))
    else:
        Console().print(found.table())
        typer.echo("\n".join(found.signatures()))


def _show_scores(scores: dict[str, dict[str, float]], data: Sequence[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"data": " ".join(data), "scores": scores}, indent=2, ensure_ascii=False))
        return
    numbers = (Column(name.replace("_", " "), justify="right") for name in next(iter(scores.values())))
    table = Table("run", *numbers, title=f"scores on {' '.join(data)}", title_justify="left")
    for name, values in scores.items():
        table.add_row(name, *(f"{value:.4f}" for value in values.values()))
    Console().print(table)


def _predict_on_engine(
    name: str, sources: Sequence[str], engine: str, actors: int | None, *, output: Path | None, **how: Any
) -> list[str]:
    """The predictions of the actors of an engine. Their shards are beside `output`, or in a temporary folder."""
    from weft.runs.prediction_work import InputTexts, PredictionWork

    with TemporaryDirectory(dir=None if output is None else output.parent, prefix="weft-") as folder:
        work = PredictionWork([*map(Path, run_folders(name))], InputTexts(sources), Path(folder) / "predictions", **how)
        predict_in_shards(work, share=None, engine=engine, actors=actors)
        answers = [json.loads(line) for line in read_lines(work.out)]
    if output is not None:
        with opened(output) as target:
            target.writelines(f"{lines}\n" for _, lines in answers)
    return [text for text, _ in answers]


def _show_preferences(
    run: str, system: Trained, file: Path, options: dict[str, Any], output: Path | None, as_json: bool
) -> None:
    """The accuracy on contrastive pairs; the two scores of each pair go to `output`."""
    from weft.runs.run_evaluation import evaluate_contrastive

    with Counter(f"{run}: done", "pairs") as counter:
        found = evaluate_contrastive(system, file, advance=counter.advance, **options)
    if output is not None:
        with opened(output) as target:
            target.writelines(f"{right:.6f}\t{wrong:.6f}\n" for right, wrong in found.scores)
    if as_json:
        return typer.echo(json.dumps({"run": run, "contrastive": str(file), **found.document()}, indent=2, ensure_ascii=False))
    numbers = ("pairs", "accuracy", "95 % interval", *found.total.floors)
    table = Table("group", *(Column(name, justify="right") for name in numbers), title=f"{run} on {file}", title_justify="left")
    for name, each in {**found.groups, "all": found.total}.items():
        shares = [
            f"{each.accuracy:.1f} %",
            "{:.1f}–{:.1f}".format(*each.interval),
            *(f"{x:.1f} %" for x in each.floors.values()),
        ]
        table.add_row(name, f"{each.pairs:,}", *shares)
    Console().print(table)


def _predict(name: str, system: Trained, sources: Sequence[str], *, options: dict[str, Any], output: Path | None) -> list[str]:
    """The predictions for all inputs, which are also written to `output` as they come."""
    from weft.worker_processes import cores

    found: list[str] = []
    written = opened(output) if output else nullcontext()
    with written as target, Counter(f"{name}: done", "sentences", total=len(sources)) as counter:
        for each in system.stream(sources, auto_workers=cores(), **options):
            found.append(each.text)
            if target is not None:
                target.write(f"{each.lines()}\n")
            counter.advance()
    return found
