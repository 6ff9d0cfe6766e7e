"""`import_model`: finds out what a model of another program is, and makes a run of it, or says why it cannot."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.config.registry import load
from weft.config.sections import Config, save_config, save_schema
from weft.data.json_text import read_json
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import ExtendedTokenizer, save_extended
from weft.errors import RunError
from weft.interop import IMPORTS
from weft.interop.foreign_files import check_readable, find
from weft.interop.transformer_weights import Architecture
from weft.models.base import Sizes
from weft.runs.migrations import write_format
from weft.runs.open_run import initial_network
from weft.runs.run_folder import CONFIG, MODEL, create_folder
from weft.runs.weight_files import copy_weights, named_weights, replacing, write_tensors, zero_initialized
from weft.version import VERSION

ORIGIN = "origin.json"
"""The origin of an imported run, and its licence."""


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

    @property
    def directed(self) -> bool:
        """Whether the model needs the languages of both sides as tags."""
        return isinstance(self.source, ExtendedTokenizer) and self.source.directed

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
        with replacing(out, new=True) as aside:
            aside.mkdir(parents=True)
            write_format(aside)
            save_extended(aside, self.source, self.target)
            sizes = Sizes(self.source.size, self.target.size, self.source.shares_ids(self.target))
            with zero_initialized():
                model = initial_network(config, aside, sizes)
            copy_weights(model, self.weights, out)
            save_schema(aside)
            save_config(config, aside / CONFIG)
            facts = {"by": "import", "weights": "imported", "step": "0", "version": VERSION}
            write_tensors(aside / MODEL, named_weights(model), facts)
            origin = {"program": self.program, "name": self.name, "license": self.licence}
            (aside / ORIGIN).write_text(json.dumps(origin, ensure_ascii=False, indent=1) + "\n", "utf-8")


REFUSED = {
    "mbart": "mBART normalises its embeddings, which no model of weft does",
    "bart": "BART has learned positions and normalises its embeddings, which no model of weft does",
    "t5": "T5 has RMSNorm and bucketed relative positions, which weft has not (MADLAD is a T5 too)",
    "mt5": "mT5 has RMSNorm and bucketed relative positions, which weft has not (MADLAD is one too)",
    "umt5": "UMT5 has RMSNorm and bucketed relative positions, which weft has not",
    "t5gemma": "T5Gemma has RMSNorm and gated attention layers of its own, which weft has not",
    "nllb-moe": "NLLB-MoE is a mixture of experts, which weft has not; NLLB's dense models can be imported",
    "switch_transformers": "Switch Transformers are mixtures of experts, which weft has not",
    "fsmt": "FSMT has learned tables per language, and is not supported",
    "encoder-decoder": "an EncoderDecoderModel of two pretrained models is not supported",
    "seamless_m4t": "SeamlessM4T reads sound and has several decoders; it is not supported",
}
KNOWN = (
    "weft imports MarianMT (OPUS-MT), Pegasus of weft's own export, M2M100 and NLLB (dense) of transformers, and Marian's npz"
)


def import_model(path: Path, out: Path) -> ImportedModel:
    """Makes the run `out` of a folder of transformers, or of a Marian model (npz), and returns what it read."""
    model = read_model(path)
    model.save(out)
    return model


def read_model(path: Path) -> ImportedModel:
    """The model of a folder or file, by its format. Raises RunError for one that weft cannot run, and says why."""
    check_readable(path, "file or folder")
    if path.is_file():
        if path.suffix != ".npz":
            raise RunError(f"{path}: not a model that weft knows; give the folder of a model, or Marian's .npz. {KNOWN}")
        return _reader(".npz")(path)
    settings = find(path, "config.json")
    if settings is None:
        files = sorted(path.glob("*.npz"))
        if len(files) == 1:
            return _reader(".npz")(files[0])
        more = f"it has {len(files)} npz files; give one of them" if files else "it has no config.json and no .npz"
        raise RunError(f"{path}: not a model that weft knows: {more}. {KNOWN}")
    kind = str(read_json(settings).get("model_type"))
    if kind in IMPORTS:
        return _reader(kind)(path)
    reason = REFUSED.get(kind, f"weft does not know the architecture {kind}")
    raise RunError(f"{path}: {reason}. {KNOWN}")


def _reader(kind: str) -> Callable[[Path], ImportedModel]:
    reader: Callable[[Path], ImportedModel] = load(IMPORTS, kind)
    return reader
