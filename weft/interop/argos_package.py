"""Packages of Argos Translate, which LibreTranslate runs too: a folder of CTranslate2 and one SentencePiece model in a zip."""

import json
import zipfile
from pathlib import Path
from typing import Any

from weft.data.batch import UNK
from weft.data.language_names import language_names
from weft.data.sentence_splitting import language_of
from weft.data.tokenizers.sentencepiece_model import SentencePieceTokenizer
from weft.errors import ConfigError
from weft.interop import ctranslate2_folder
from weft.interop.transformer_weights import PORTABLE
from weft.runs.open_run import TrainedRun
from weft.version import VERSION

ARGOS_VERSION = "1.9.0"
EPOCH = (1980, 1, 1, 0, 0, 0)


def export(run: TrainedRun, out: Path, quantization: str | None = None) -> list[str]:
    """Writes a package into the folder, and returns what to say about it."""
    task: Any = run.task
    if task.source is not task.target or not isinstance(task.source, SentencePieceTokenizer):
        raise ConfigError(f"data.tokenizer: Argos needs one SentencePiece model for both sides, without tags; {PORTABLE}")
    data = run.config.data
    codes = [language_of(data.source_language, data.files), language_of(data.target_language, data.files, 1)]
    for code, key in zip(codes, ("source", "target"), strict=True):
        if code is None:
            raise ConfigError(f"data.{key}_language: Argos needs the languages; set them in the config.yaml of the run")
    model = out / "model"
    model.mkdir()
    ctranslate2_folder.export(run, model, quantization, never=[UNK])  # Argos would write it, weft does not
    for name in ("source.spm", "target.spm"):
        (model / name).unlink()
    top = f"translate-{codes[0]}_{codes[1]}-1_0"
    facts = {
        "package_version": "1.0",
        "argos_version": ARGOS_VERSION,
        "from_code": codes[0],
        "from_name": _name(str(codes[0])),
        "to_code": codes[1],
        "to_name": _name(str(codes[1])),
    }
    contents = {
        "metadata.json": json.dumps(facts, indent=1).encode(),
        "README.md": f"# {facts['from_name']} to {facts['to_name']}\n\nTrained with weft {VERSION}.\n".encode(),
        "sentencepiece.model": task.source.dump(),
        **{f"model/{path.name}": path.read_bytes() for path in sorted(model.iterdir())},
    }
    file = out / f"{top}.argosmodel"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(f"{top}/{name}", EPOCH), content, zipfile.ZIP_DEFLATED)
    for path in model.iterdir():
        path.unlink()
    model.rmdir()
    return [
        f"argospm install {file}",
        "Argos writes spaces for underscores, and downloads a model that splits sentences when it first translates",
    ]


def _name(code: str) -> str:
    """The English name of a language."""
    language = code.partition("-")[0]
    return language_names().get(code.replace("-", "_")) or language_names().get(language) or code
