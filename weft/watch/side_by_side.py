"""Scores two runs on the validation data of the first one, with a significance test, and shows their outputs side by side.

`python -m weft.watch.side_by_side RUN RUN FILE` writes a JSON file. It is a process of its own, so that the page stays small.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from weft.config.corpus_entries import names
from weft.data.validation_split import HELD_OUT
from weft.errors import ConfigError, WeftError
from weft.file_access import replace_file
from weft.runs.open_run import run_config
from weft.runs.run_evaluation import evaluate_systems
from weft.runs.trained_model import Trained
from weft.runs.translator import load_trained

SHOWN = 200
"""Inputs whose outputs are shown. All are scored."""


def validation_data(run: Path) -> list[str]:
    """The validation data of a run, also that which it has held out of its training data."""
    config = run_config(run)
    found = names(config.data.valid)
    if not found and (run / HELD_OUT).is_file():
        found = [str(run / HELD_OUT)]
    if not found:
        raise ConfigError(f"{run.name} has no validation data on which it could be compared")
    return found


def side_by_side(first: Path, second: Path) -> dict[str, Any]:
    """The scores of both runs, the significance of their difference, and the outputs for the first inputs."""
    outputs: dict[str, list[str]] = {}
    data = validation_data(first)
    systems = [(str(number), load_trained(run)) for number, run in enumerate((first, second))]

    def predict(name: str, system: Trained, lines: list[str]) -> list[str]:
        outputs[name] = [each.text for each in system.stream(lines)]
        return outputs[name]

    report = evaluate_systems(systems, data, predict).document()
    pairs = systems[0][1].task.examples(data)[:SHOWN]
    rows = [
        {"source": source, "reference": reference, "outputs": [outputs["0"][place], outputs["1"][place]]}
        for place, (source, reference) in enumerate(pairs)
    ]
    return {"report": report, "rows": rows, "inputs": len(outputs["0"])}


def main(first: str, second: str, file: str) -> None:
    """Writes the comparison into a file. Errors go to standard error, as those of commands."""
    try:
        replace_file(Path(file), json.dumps(side_by_side(Path(first), Path(second)), ensure_ascii=False))
    except WeftError as error:
        sys.exit(f"weft: error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
