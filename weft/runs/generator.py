"""Language models at work: the `Generator` that `weft.load_generator` returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.errors import ConfigError, RunError
from weft.runs.translator import Trained, check_text, load_trained
from weft.tasks.language_modeling.predictor import Generated, GenerationPredictor, Prompt


class Generator(Trained):
    """A trained language model that continues texts and scores them."""

    def generate(
        self, prompt: str = "", *, tokens: int = 200, count: int = 1, hear: Callable[[str], None] | None = None, **options: Any
    ) -> list[Generated]:
        """`count` continuations of the prompt with `tokens` tokens each.

        They are sampled unless the options name a `beam` (1: greedy) or a `search`; `options` are those of the section decode:
        temperature=0.8, top_k=40, seed=3, … Samples differ, other continuations are all the same. `hear` receives the text of
        the first as it comes.
        """
        check_text(prompt, "prompt")
        if tokens < 1 or count < 1:
            raise ConfigError(f"there must be at least one token and one text, not {tokens} and {count}")
        wanted = options if {"beam", "search", "sample"} & options.keys() else {"sample": True, **options}
        predictor = self.predictor(**wanted)
        assert isinstance(predictor, GenerationPredictor)
        prompts = [Prompt(prompt, tokens, draw) for draw in range(count)]
        return predictor.generate(prompts, hear) if hear else list(predictor.predict(prompts, together=True))


def load_generator(run: str | Path, *, device: str = "auto", set: Sequence[str] = ()) -> Generator:
    """The language model of a run folder; `set` changes its settings: ["task.evaluation_memory=1024"]."""
    trained = load_trained(run, device=device, set=set)
    if trained.config.task["kind"] != "language_model":
        raise RunError(f"{run}: its task, {trained.config.task['kind']}, is not language_model, so it cannot continue a text")
    return Generator(trained.model, trained.task, trained.config)
