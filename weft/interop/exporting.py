"""`export_run`: writes a run in the format of another program."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.config.registry import load, suggest
from weft.data.json_text import read_json
from weft.errors import ConfigError, RunError
from weft.interop import EXPORTS
from weft.interop.importing import ORIGIN
from weft.runs.open_run import open_run
from weft.runs.weight_files import replacing
from weft.tasks.translation.task import TranslationTask

QUANTIZED = ("ctranslate2", "argos")
"""Formats whose own program quantises them."""


def export_run(run: Path, to: str, out: Path, quantization: str | None = None) -> Sequence[str]:
    """Writes the run into the new folder `out`, as a whole or not at all, and returns messages about it."""
    if to not in EXPORTS:
        raise ConfigError(f"--to {to}: weft does not write this format; {suggest(to, EXPORTS)}")
    if quantization is not None and to not in QUANTIZED:
        raise ConfigError(f"--quantization: only {' and '.join(QUANTIZED)} have it; leave it out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out}: it exists already, and weft does not overwrite files; choose another name")
    opened = open_run(run)
    if not isinstance(opened.task, TranslationTask):
        raise ConfigError(f"{run}: its task is {opened.config.task['kind']}; only translation models can be exported")
    options: dict[str, Any] = {} if to not in QUANTIZED else {"quantization": quantization}
    with replacing(out, new=True) as aside:
        aside.mkdir(parents=True)
        notes: list[str] = load(EXPORTS, to)(opened, aside, **options)
        card = aside / "README.md"
        if not card.exists() and to != "argos":
            card.write_text(_card(run, to), "utf-8")
    return [note.replace(str(aside), str(out)) for note in notes]


def _card(run: Path, to: str) -> str:
    """A card with the licence of an imported run."""
    licence = None
    if (run / ORIGIN).is_file():
        licence = read_json(run / ORIGIN).get("license")
    head = f"---\nlicense: {licence}\n---\n" if licence else ""
    return f"{head}# {run.resolve().name}\n\nExported by weft for {to}.\n"
