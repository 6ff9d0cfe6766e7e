"""Predictions shard by shard, with progress: `--shard` and `--engine` of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.documents import Format, format_of
from weft.cli.input_and_output import Counter, tell
from weft.errors import ConfigError

if TYPE_CHECKING:
    from weft.runs.prediction_work import PredictionWork


def predict_in_shards(work: PredictionWork, *, share: tuple[int, int] | None, engine: str | None, actors: int | None) -> None:
    """Predicts the inputs of `work`, or this process's share of them, and says whether its output is complete."""
    from weft.runs.ray_engine import predict_on_ray
    from weft.runs.sharded_prediction import predict_corpus

    with Counter("done", "lines") as counter:
        told: Any = {"advance": counter.advance, "expect": counter.expect, "report": counter.say}
        if engine is not None:
            predict_on_ray(work, actors=actors, **told)
            complete = True
        else:
            complete = predict_corpus(work, share=share, **told)
    waiting = "the other shards are not finished yet; the process that finishes the last one writes this file"
    tell(f"wrote {work.out}" if complete else f"{work.out}: {waiting}")


def work_of(
    run: str, file: Path, output: Path, glossary: Path | None, as_json: bool, device: str, options: dict[str, Any]
) -> PredictionWork:
    """The work of predicting the lines of a file, for `--shard` and `--engine`."""
    from weft.runs.open_run import run_config
    from weft.runs.packed_run import unpacked
    from weft.runs.prediction_work import InputFile, PredictionWork
    from weft.runs.run_folder import run_folders
    from weft.tasks.base import build_task

    folders = [unpacked(Path(folder)) for folder in run_folders(run)]
    task = build_task(run_config(folders[0]), folders[0])
    if task.info.output_suffix and not as_json:
        raise ConfigError("--shard and --engine write lines of text, and the outputs of this run are files; add --json")
    if format_of(task, file) != Format.text:
        raise ConfigError(f"{file}: --shard and --engine read lines of text, not documents; leave them out")
    if output.suffix == ".gz" or output.is_dir():
        raise ConfigError(f"{output}: --shard and --engine write a plain file; choose a name without .gz that is no folder")
    return PredictionWork(folders, InputFile(file, folders[0], as_json), output, device, options, glossary)
