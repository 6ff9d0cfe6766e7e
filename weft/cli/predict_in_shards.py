"""Predictions shard by shard, with progress: `--shard` and `--engine` of several commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.cli.input_and_output import Counter, tell

if TYPE_CHECKING:
    from weft.runs.sharded_prediction import PredictionWork


def predict_in_shards(work: PredictionWork, *, share: tuple[int, int] | None, engine: str | None, actors: int | None) -> None:
    """Predicts the inputs of `work`, or this process's share of them, and says whether its output is complete."""
    from weft.decoding.worker_processes import cores
    from weft.runs.ray_engine import predict_on_ray
    from weft.runs.sharded_prediction import predict_corpus

    with Counter("done", "lines") as counter:
        if engine is not None:
            predict_on_ray(work, actors=actors, advance=counter.advance, report=counter.say)
            complete = True
        else:
            complete = predict_corpus(work, share=share, auto_workers=cores(), advance=counter.advance, report=counter.say)
    waiting = "the other shards are not finished yet; the process that finishes the last one writes this file"
    tell(f"wrote {work.out}" if complete else f"{work.out}: {waiting}")
