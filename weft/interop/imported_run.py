"""Imported models as runs: the folder that `weft import` writes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.config.sections import Config, save_config, save_schema
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import save_extended
from weft.interop.transformer_weights import Architecture
from weft.models.base import Sizes
from weft.runs.migrations import write_format
from weft.runs.open_run import build_network, build_task
from weft.runs.run_folder import CONFIG, MODEL, create_folder
from weft.runs.weight_files import copy_weights, named_weights, replacing, write_tensors, zero_initialized
from weft.version import VERSION

ORIGIN = "origin.json"
"""Where an imported run comes from, and its licence."""


@dataclass(frozen=True)
class ImportedModel:
    """A model of another program in weft's terms.

    weights: by weft's names · tokenizer: data.tokenizer · decode: settings of the section · freeze: train.freeze · program:
    where it comes from · licence: as its card says, if it has one.
    """

    shape: Architecture
    weights: Mapping[str, Tensor]
    source: Tokenizer
    target: Tokenizer
    program: str
    name: str
    tokenizer: Mapping[str, Any] = field(default_factory=lambda: {"kind": "mapped_sentencepiece"})
    languages: tuple[str | None, str | None] = (None, None)
    decode: Mapping[str, Any] = field(default_factory=dict)
    freeze: Sequence[str] = ()
    licence: str | None = None

    def config(self) -> Config:
        """The configuration of the run. Its training settings are those of fine-tuning."""
        source, target = self.languages
        return Config().replaced(
            {
                "data.tokenizer": dict(self.tokenizer),
                "data.vocabulary": max(self.source.size, self.target.size),
                "data.shared_vocabulary": self.source.shares_ids(self.target),
                "data.source_language": source,
                "data.target_language": target,
                "model": self.shape.section(),
                "train.schedule": {"kind": "inverse_sqrt", "rate": 1e-4, "warmup": 400},
                "train.steps": 4000,
                "train.freeze": list(self.freeze),
                **{f"decode.{key}": value for key, value in self.decode.items()},
            }
        )

    def save(self, out: Path) -> None:
        """Writes the run, as a whole or not at all."""
        create_folder(out)
        config = self.config()
        with replacing(out) as aside:
            aside.mkdir(parents=True)
            write_format(aside)
            save_extended(aside, self.source, self.target)
            sizes = Sizes(self.source.size, self.target.size, self.source.shares_ids(self.target))
            with zero_initialized():
                model = build_network(build_task(config, aside), config, sizes)
            copy_weights(model, self.weights, out)
            save_schema(aside)
            save_config(config, aside / CONFIG)
            facts = {"by": "import", "weights": "imported", "step": "0", "version": VERSION}
            write_tensors(aside / MODEL, named_weights(model), facts)
            origin = {"program": self.program, "name": self.name, "license": self.licence}
            (aside / ORIGIN).write_text(json.dumps(origin, ensure_ascii=False, indent=1) + "\n", "utf-8")
