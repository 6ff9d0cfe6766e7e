"""Trained language models at work: what `weft.load_generator` gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.config.sections import Config, DecodeSection
from weft.data.text import TextFile
from weft.errors import ConfigError, RunError
from weft.layers.int8 import in_int8
from weft.models.lm import LanguageModel
from weft.runs.opening import open_run
from weft.tasks.generating import Generated
from weft.tasks.language_model import LanguageModelTask
from weft.translator import changed


class Generator:
    """A trained language model, ready to go on with texts and to score them."""

    def __init__(self, model: LanguageModel, task: LanguageModelTask, config: Config) -> None:
        self.model, self.task, self.config = model.eval(), task, config
        self._rounded: LanguageModel | None = None

    def generate(
        self, prompt: str = "", *, tokens: int = 200, count: int = 1, hear: Callable[[str], None] | None = None, **options: Any
    ) -> list[Generated]:
        """`count` texts that go on from the prompt, each with so many tokens.

        They are drawn unless a `beam` is asked for (1: greedy); `options` are those of the section decode: temperature=0.8,
        top_k=40, seed=3, … Texts that are drawn differ, all others are alike. `hear` is told the first as it comes.
        """
        if tokens < 1 or count < 1:
            raise ConfigError(f"there must be at least one token and one text, not {tokens} and {count}")
        wanted: Mapping[str, Any] = {"sample": "beam" not in options, **options}
        section = changed(self.config.decode, wanted)
        return self.task.generating(self._in(section), section).generate(prompt, tokens, count=count, hear=hear)

    def _in(self, section: DecodeSection) -> LanguageModel:
        """The model, in eight bits if that is asked for."""
        if section.precision != "int8":
            return self.model
        if self._rounded is None:
            self._rounded = in_int8(self.model)
        return self._rounded

    @torch.inference_mode()
    def score(self, files: str | Sequence[str]) -> dict[str, float]:
        """Loss (nats a token), perplexity, bits per character and per byte of the text of these files."""
        paths = [files] if isinstance(files, str) else list(files)
        return self.task.score(self.model, self.task.read([TextFile(path) for path in paths], "test"))


def load_generator(run: str | Path, *, device: str = "auto", set: Sequence[str] = ()) -> Generator:
    """The language model of a run folder; `set` writes over its settings: ["task.evaluation_memory=1024"]."""
    opened = open_run(Path(run), set, device=device)
    task, config, model = opened.task, opened.config, opened.model
    if not (isinstance(task, LanguageModelTask) and isinstance(model, LanguageModel)):
        raise RunError(f"{run}: its task, {config.task['kind']}, is not language_model, so it cannot go on with a text")
    return Generator(model, task, config)
