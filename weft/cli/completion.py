"""What the shell completes: names of recipes, run folders, and settings of `--set`.

Install it with `weft --install-completion`. Nothing here imports torch, so that it answers at once.
"""

from __future__ import annotations

from pathlib import Path

RUN_FILE = "config.yaml"


def recipes(incomplete: str) -> list[str]:
    """Recipes, YAML files and folders that begin so."""
    from weft.config.sections import recipes as known

    files = [path for path in _paths(incomplete) if path.endswith(("/", ".yaml"))]
    return [*(name for name in known() if name.startswith(incomplete)), *files]


def runs(incomplete: str) -> list[str]:
    """Run folders, and folders that may contain some, after the last comma of an ensemble."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{path.rstrip('/') if _is_run(path) else path}" for path in _paths(last) if path.endswith("/")]


def settings(incomplete: str) -> list[str]:
    """Sections and keys for `--set`, and the kinds of attentions and mixers behind `model.encoder_self=` and the like."""
    from weft.config.sections import Config, DataSection, DecodeSection, Section, StartSection, TrainSection

    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={kind}" for kind in _kinds(key) if kind.startswith(value)]
    sections: dict[str, type[Section]] = {
        "data": DataSection,
        "start": StartSection,
        "train": TrainSection,
        "decode": DecodeSection,
    }
    keys = [f"{section}.{name}=" for section, fields in sections.items() for name in fields.model_fields]
    keys += [f"model.{slot}=" for slot in SLOTS]
    names = [f"{section}." for section in Config.model_fields] if "." not in incomplete else keys
    return [name for name in names if name.startswith(incomplete)]


SLOTS = {
    "encoder_self": ("weft.attention:ATTENTIONS", "weft.attention.mixers:MIXERS"),
    "decoder_self": ("weft.attention:ATTENTIONS", "weft.attention.mixers:MIXERS"),
    "cross": ("weft.attention:ATTENTIONS",),
}
"""Slots of a Transformer → the tables of what fits into them."""


def _kinds(key: str) -> list[str]:
    from weft.config.registry import find_table

    tables = SLOTS.get(key.removeprefix("model."), ()) if key.startswith("model.") else TABLES.get(key, ())
    return [kind for table in tables for kind in find_table(table)]


TABLES = {
    "data.tokenizer": ("weft.data:TOKENIZERS",),
    "decode.search": ("weft.decoding:SEARCHES",),
    "decode.rerank": ("weft.inference:RERANKS",),
    "decode.fusion": ("weft.inference:FUSIONS",),
    "train.optimizer": ("weft.training:OPTIMIZERS",),
    "train.schedule": ("weft.training:SCHEDULES",),
    "model": ("weft.models:MODELS",),
    "task": ("weft.tasks:TASKS",),
}


def _paths(incomplete: str) -> list[str]:
    """Files and folders that begin so; folders end in a slash."""
    folder, slash, start = incomplete.rpartition("/")
    where = Path(folder or ("/" if slash else "."))
    try:
        entries = sorted(where.iterdir())
    except OSError:
        return []
    names = [entry for entry in entries if entry.name.startswith(start) and not (entry.name.startswith(".") and not start)]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in names]


def _is_run(path: str) -> bool:
    return (Path(path) / RUN_FILE).is_file()
