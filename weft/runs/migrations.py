"""The format of run folders, and everything that lets runs of earlier formats load.

`run.json` says the format of a run, and what was requested of it; runs without that file have format 1. A run of a newer
format is refused. Whatever reads a file of a run passes the content through the function of that kind of file here. A migration
recognises old content by its form, so it also works for a file that was copied out of its run.

Some additions need no migration. A setting, a tokenizer option or a value in `state.json` that an older run does not have
takes its default, which must mean what older runs did. `sentences.json` and `checkpoints/data.id` are optional.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import RunError
from weft.file_access import MALFORMED, replace_file
from weft.version import DISTRIBUTION, VERSION

T = TypeVar("T")
Data = dict[str, Any]

FORMAT = 2
"""The format of new runs. It grows when an earlier weft could not use a new run, or would use it wrongly."""

FORMAT_FILE = "run.json"


def write_format(run: Path, request: Data | None = None, packages: Mapping[str, str] | None = None) -> None:
    """Marks a run as one of this format, and keeps what was requested of it, and the other packages that it needs.

    Both are by default what the run has already. packages: their names and versions.
    """
    known = _facts(run)
    request = known.get("request") if request is None else request
    packages = known.get("packages") if packages is None else packages
    noted = {name: value for name, value in (("request", request), ("packages", packages)) if value}
    replace_file(run / FORMAT_FILE, json.dumps({"format": FORMAT, "weft": VERSION, **noted}, ensure_ascii=False) + "\n")


def _facts(run: Path) -> Data:
    """The content of the format file; empty if there is none."""
    if not (run / FORMAT_FILE).is_file():
        return {}
    check_format(run)
    return dict(json.loads((run / FORMAT_FILE).read_text("utf-8")))


def read_request(run: Path) -> Data:
    """The request for a run, before anything was chosen; empty for runs that did not save it."""
    return _mapping(run, "request")


def read_packages(run: Path) -> dict[str, str]:
    """The other packages that a run needs, with their versions; empty for runs that do not say it."""
    return {str(name): str(version) for name, version in _mapping(run, "packages").items()}


def _mapping(run: Path, key: str) -> Data:
    found = _facts(run).get(key, {})
    if not isinstance(found, dict):
        raise RunError(f"{run / FORMAT_FILE}: {key} must be a mapping; restore this file")
    return found


def check_format(run: Path) -> int:
    """The format of a run. Raises RunError if it is newer than what this weft knows."""
    file = run / FORMAT_FILE
    try:
        written = json.loads(file.read_text("utf-8")) if file.exists() else {"format": 1}
        number = int(written["format"])
    except (OSError, *MALFORMED) as error:
        raise RunError(f"{file}: the format of the run cannot be read ({error}); restore this file") from None
    if number > FORMAT:
        raise RunError(
            f"{run}: the run has format {number}, of weft {written.get('weft', '(unknown)')}, and weft {VERSION} reads "
            f"formats up to {FORMAT}; update it: pip install --upgrade {DISTRIBUTION}"
        )
    return number


def _unchanged(content: Any) -> Any:
    return content


@dataclass(frozen=True)
class Migration:
    """One change of what runs hold. Its functions bring older content up to date, and leave newer content as it is.

    format: the format of runs that have the change from the beginning
    config: config.yaml as plain data · weights: tensors by name · metadata: that of published weights
    files: new files, each with the file that holds its content in older runs
    """

    format: int
    change: str
    config: Callable[[Data], Data] = _unchanged
    weights: Callable[[dict[str, Any]], dict[str, Any]] = _unchanged
    metadata: Callable[[dict[str, str]], dict[str, str]] = _unchanged
    files: Mapping[str, str] = field(default_factory=dict)


SEARCH_OPTIONS = {
    "beam": {"beam": "width", "length_penalty": "length_penalty", "stop": "stop"},
    "sample": {name: name for name in ("temperature", "top_k", "top_p", "seed")},
}
FLAT = {"sample", *(name for options in SEARCH_OPTIONS.values() for name in options)}


def _search_section(config: Data) -> Data:
    decode = config.get("decode")
    if not isinstance(decode, dict) or "search" in decode or not decode.keys() >= FLAT:
        return config
    kind = "sample" if decode["sample"] else "beam"
    search = {"kind": kind, **{new: decode[old] for old, new in SEARCH_OPTIONS[kind].items()}}
    return {**config, "decode": {"search": search, **{key: value for key, value in decode.items() if key not in FLAT}}}


EMBEDDINGS = (
    (re.compile(r"(^|[./])encoder((?:\.base)*)\.embedding\.(table|ngrams)\."), r"\1encoder\2.front.\3."),
    (re.compile(r"(^|[./])encoder((?:\.base)*)\.embedding\.position\."), r"\1encoder\2.position."),
)


def _frontends(tensors: dict[str, Any]) -> dict[str, Any]:
    if any("encoder.front." in name or "encoder.base.front." in name for name in tensors):
        return tensors
    for old, new in EMBEDDINGS:
        tensors = {old.sub(new, name): tensor for name, tensor in tensors.items()}
    return tensors


def _publisher(facts: dict[str, str]) -> dict[str, str]:
    return {"by": "average" if "averaged" in facts else "train", **facts} if facts else facts


def _embedding_rank(config: Data) -> Data:
    model, start = config.get("model"), config.get("start")
    lora = model.get("lora") if isinstance(model, dict) else None
    trained = isinstance(start, dict) and start.get("weights") is not None  # a recipe has no hash of weights
    if not (isinstance(model, dict) and isinstance(lora, dict) and trained):
        return config
    return {**config, "model": {**model, "lora": {"embedding_rank": 0, **lora}}}


MIGRATIONS = (
    Migration(1, "decode.search holds the options of a search, which lay side by side in decode", config=_search_section),
    Migration(1, "the embeddings of an encoder belong to its frontend, positions to itself", weights=_frontends),
    Migration(1, "published weights name the command that published them", metadata=_publisher),
    Migration(1, "checkpoints keep the settings they were trained with", files={"checkpoints/config.yaml": "config.yaml"}),
    Migration(1, "embeddings may have adapters (model.lora.embedding_rank); they had none", config=_embedding_rank),
    Migration(2, "run.json says the format of a run"),
)
"""All changes, oldest first. Those of format 1 were made before runs said their format."""


def migrate_config(config: Data) -> Data:
    """The plain data of a configuration, in today's form."""
    return reduce(lambda data, migration: migration.config(data), MIGRATIONS, config)


def migrate_weights(tensors: dict[str, T]) -> dict[str, T]:
    """Weights, or tensors named after them, by the names of today."""
    return reduce(lambda data, migration: migration.weights(data), MIGRATIONS, tensors)


def migrate_metadata(facts: dict[str, str]) -> dict[str, str]:
    """The metadata of published weights, in today's form."""
    return reduce(lambda data, migration: migration.metadata(data), MIGRATIONS, facts)


def find_file(run: Path, name: str) -> Path:
    """The file of this name in a run or, if the run is older than such files, the one that holds its content."""
    older = next((migration.files[name] for migration in MIGRATIONS if name in migration.files), name)
    return run / (name if (run / name).is_file() else older)
