"""`weft search`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.input_and_output import StatusLine, tell
from weft.cli.options import recipes
from weft.errors import ConfigError


def search(
    recipe: str = typer.Argument(
        help="A recipe or YAML file, with changes after commas: transformer-small,model.dim=256.", autocompletion=recipes
    ),
    set_space: list[str] = typer.Option(
        [],
        "--set-space",
        metavar="KEY=VALUES",
        help="A setting to search: KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=LOW..HIGH:STEP or KEY=A|B|C. Repeatable.",
    ),
    budget: str = typer.Option(None, help="Training budget per trial: 10m, 90s, 1.5h, 500-steps or 20k-steps."),
    trials: int = typer.Option(20, help="Trainings in all; a later call with more continues the search.", min=1),
    data: list[str] = typer.Option([], help="Training data, as for `weft train`. Repeatable.", metavar="FILES"),
    valid: list[str] = typer.Option([], help="Validation data, which decides. Repeatable.", metavar="FILES"),
    out: Path = typer.Option(None, help="Folder for runs and results; the same command continues there."),
    by: str = typer.Option("", help="Score to improve, by its key, such as chrf2 or loss. Default: that of the task."),
    seed: int = typer.Option(1, help="Random seed of the proposed values.", min=0),
    set: list[str] = typer.Option([], help="Any setting, for all trials. Repeatable.", metavar="KEY=VALUE"),
) -> None:
    """Search settings of a recipe: train it under one budget per trial, with values that optuna proposes.

    Writes results.json, trials.csv and importance.png, which shows how much each setting matters. An interrupted search
    continues where it stopped. Scores are those of validation data; score the winner on other data.
    """
    if out is None or budget is None:
        raise ConfigError("give a folder with --out and a training budget per trial with --budget, such as 10m or 2k-steps")
    from weft.bench.compare.plan import Comparison, parse_budget, parse_entry
    from weft.bench.hyperparameter_search import Search, best_or_raise, parse_dimension, run_search

    files = tuple(data), tuple(valid), (), tuple(set)
    plan = Comparison((parse_entry(recipe),), out, parse_budget(budget), *files)
    with StatusLine() as line:
        document = run_search(Search(plan, tuple(map(parse_dimension, set_space)), trials, seed, by), line.say, line.show)
    best, score = best_or_raise(document), document["score"]
    tell(f"best: trial {best['number']} with {score['title']} {best['score']:.4g} on validation data")
    for key, share in document["importance"].items():
        tell(f"  {key}: {best[key]} ({share:.0%} of the importance)")
    tell(f"  {document['command']} --out RUN")
    tell(f"written: {out}/results.json {out}/trials.csv {out}/importance.png")
