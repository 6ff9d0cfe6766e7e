"""`weft data check` and `weft data clean`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.input_and_output import Counter, opened, tell
from weft.cli.options import DEVICE, PAIRS, parse_share
from weft.errors import ConfigError

if TYPE_CHECKING:
    from weft.data.cleaning.clean import Unlikely
    from weft.data.formats import Pairs

FILES = typer.Argument(help=f"Pairs: {PAIRS}; or any other format in docs/data.md.", metavar="FILES")
LANGUAGES = typer.Option(
    None,
    "--languages",
    help="Codes of both languages, such as en,de; default: by the names of the files, or learnt.",
    metavar="A,B",
)
TEST = typer.Option([], "--test", help="Test data; finds its sentences in the data. Repeatable.", metavar="FILES")


def check(
    files: list[str] = FILES,
    languages: str = LANGUAGES,
    test: list[str] = TEST,
    report: Path = typer.Option(None, "--report", help="HTML page with examples of each finding."),
    as_json: bool = typer.Option(False, "--json", help="The report as a JSON document."),
) -> None:
    """Check parallel data before anything is trained on it: languages, lengths, duplicates, misaligned and damaged pairs.

    Nothing is changed. A pair may have several findings.
    """
    from weft.data.cleaning.check import check as check_data
    from weft.explain.data_report_page import check_page

    data = _opened(files)
    with Counter("checked", "pairs") as counter:
        found = check_data(data, _languages(languages, files), _opened(test), counter.advance)
    if report is not None:
        _write(report, check_page(found))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
        return
    for each in found["data"]:
        left = ", ".join(f"{count:,} {reason}" for reason, count in each["left_out"].items())
        typer.echo(each["name"] + (f": entries left out: {left}" if left else ""))
    typer.echo(f"{found['pairs']:,} pairs, {found['found']:,} with a finding")
    for side, language, words in zip(("source", "target"), found["languages"], found["words"], strict=True):
        labels = ", ".join(f"{label} {100 * share:.0f} %" for label, share in language["labels"].items()) or "unknown"
        typer.echo(f"{side}: language {labels}; words: half of the texts at most {words['50']}, 95 % at most {words['95']}")
    _print_counts(found["counts"], found["pairs"])
    for first, last in found["misaligned_stretches"]:
        typer.echo(f"pairs {first:,} to {last:,} seem to be misaligned; a line may be missing on one side")
    _warn_without_identifier()


def clean(
    files: list[str] = FILES,
    out: str = typer.Option(..., "-o", "--output", help="File: .tsv, .csv, .jsonl or a.en,a.de (also .gz).", metavar="FILES"),
    choices: Path = typer.Option(None, "--choices", help="YAML file with repairs and filters; see --write-choices."),
    write_choices: Path = typer.Option(None, "--write-choices", help="Write all choices that are in effect to this YAML file."),
    languages: str = LANGUAGES,
    test: list[str] = TEST,
    shard: str = typer.Option(
        None, "--shard", help="Only the K-th of N shares of the pairs, as K/N; equal pairs are in one share."
    ),
    left_out: Path = typer.Option(None, "--left-out", help="JSON lines with the pairs that are left out, and why."),
    report: Path = typer.Option(None, "--report", help="HTML page with counts and examples of each filter."),
    as_json: bool = typer.Option(False, "--json", help="The report as a JSON document."),
    models: str = typer.Option(
        None, "--models", help="Two runs, of this and of the opposite direction, that find unlikely pairs.", metavar="RUN,RUN"
    ),
    train_time: str = typer.Option(
        None, "--train-models", help="Train the runs of --models first, each for this time.", metavar="TIME"
    ),
    unlikely: float = typer.Option(0.05, min=0.0, max=1.0, help="Share of clean pairs that --models may find unlikely."),
    device: str = DEVICE,
) -> None:
    """Leave out pairs that harm training: empty, damaged, misaligned, copied, in a wrong language, duplicates, …

    Filters are applied in the order of the report. Continues where an earlier call was interrupted.
    """
    from weft.config import yaml_document
    from weft.data.cleaning.clean import CleaningJob, PairFiles
    from weft.data.cleaning.clean import clean as clean_data
    from weft.data.cleaning.filters import Choices
    from weft.data.text_lines import read_text
    from weft.explain.data_report_page import clean_page

    given = {} if choices is None else yaml_document.value(read_text(choices), str(choices))
    chosen = Choices(given)
    if write_choices is not None:
        import yaml

        _write(write_choices, yaml.safe_dump(chosen.document(), sort_keys=False))
    PairFiles(out, left_out).check(files)
    job = CleaningJob(
        _opened(files), out, chosen, _languages(languages, files), _opened(test), parse_share(shard) or (1, 1), left_out
    )
    make = None if models is None else _cross_entropy(models, files, train_time, unlikely, device)
    with Counter("cleaned", "pairs") as counter:
        done = clean_data(job, make, f"{models} {unlikely}", counter.advance, counter.say)
    if report is not None:
        _write(report, clean_page(done))
    if as_json:
        typer.echo(json.dumps(done, ensure_ascii=False, indent=1))
        return
    typer.echo(f"{done['kept']:,} of {done['pairs']:,} pairs kept, {done['repaired']:,} of them repaired: {out}")
    _print_counts(done["counts"], done["pairs"])
    _warn_without_identifier()


def _cross_entropy(
    models: str, files: Sequence[str], time: str | None, share: float, device: str
) -> Callable[[Sequence[tuple[str, str]]], Unlikely]:
    """Makes the filter by cross-entropy. Runs that do not exist are trained if `time` says how long."""
    from weft.data.formats import swapped

    runs = [part.strip() for part in models.split(",")]
    if len(runs) != 2 or not all(runs):
        raise ConfigError(
            f"--models {models}: name two runs, of this and of the opposite direction, such as runs/ende,runs/deen"
        )
    for run, specs in zip(runs, (list(files), [swapped(name) for name in files] if time else []), strict=True):
        if time and not Path(run, "config.yaml").exists():
            from weft.training.train_run import train

            tell(f"training {run} for {time}")
            train("auto", data=specs, out=run, time=time, tell=tell)

    def make(clean: Any) -> Unlikely:
        from weft.runs.cross_entropy_filter import CrossEntropyFilter

        return CrossEntropyFilter(runs[0], runs[1], share, device).calibrated(clean)

    return make


def _opened(names: Sequence[str]) -> list[Pairs]:
    from weft.data.formats import open_pairs

    return [open_pairs(name) for name in names]


def _languages(given: str | None, files: Sequence[str]) -> tuple[str | None, str | None]:
    """The languages of both sides: given, or by the names of the files."""
    from weft.data.sentence_splitting import language_of

    if given is None:
        return language_of(None, files, 0), language_of(None, files, 1)
    codes = [part.strip() for part in given.split(",")]
    if len(codes) != 2 or not all(codes):
        raise ConfigError(f"--languages {given}: give two codes, such as en,de")
    return codes[0], codes[1]


def _write(file: Path, text: str) -> None:
    with opened(file) as target:
        target.write(text)
    tell(f"wrote {file}")


def _print_counts(counts: dict[str, int], pairs: int) -> None:
    from weft.data.cleaning.filters import NAMES

    for name, about in NAMES.items():
        if count := counts.get(name):
            typer.echo(f"{count:>12,}  {100 * count / max(1, pairs):6.2f} %  {name}: {about}")


def _warn_without_identifier() -> None:
    from weft.data.cleaning.learnt_statistics import missing_identifier

    if missing := missing_identifier():
        tell(f"weft: {missing}")
