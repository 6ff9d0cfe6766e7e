"""Packed runs: what a run needs to answer, in one file to hand over.

A zip archive without compression: config.yaml, weights as safetensors, tokenizers, a card. It has no pickle, no path of the
machine it comes from, and the same run always gives the same bytes. Reading checks every name and size first.
"""

import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.data.compression_and_encodings import ZIP_ERRORS
from weft.data.corpus import cache_folder, close_own, trusted_place
from weft.errors import ConfigError, RunError
from weft.file_access import why_unreadable
from weft.runs.run_folder import CONFIG, MODEL, create_folder
from weft.runs.weight_files import replacing, write_tensors

SUFFIX = ".weft"
CARD = "README.md"
NAMES = re.compile(r"config\.yaml|model\.safetensors|README\.md|[a-z_]+\.json|tokenizer[a-z.]*|shortlist[a-z.]*")
"""Files that a packed run may have, all at its top."""

MOST = 64
"""The most files of a packed run."""

EPOCH = (1980, 1, 1, 0, 0, 0)
COPIED = ("tokenizer*", "marks.json", "sentences.json", "origin.json", "labels.json", "shortlist*")
LOCAL: dict[str, Any] = {
    "data.train": [],
    "data.valid": [],
    "data.hold_out": 0,
    "data.cache": None,
    "data.teacher": None,
    "data.tokenizer_of": None,
    "start": {},
    "model.lora": None,
}
"""Settings that only training needs, and that name files of this machine. Adapters are merged with the weights."""


def is_packed(path: Path) -> bool:
    """Whether a path names a packed run rather than a folder."""
    return path.suffix == SUFFIX and path.is_file()


def pack_run(run: Path, file: Path) -> None:
    """Writes a packed run."""
    if file.exists():
        raise RunError(f"{file}: it exists already, and weft does not overwrite files; choose another name")
    with replacing(file, new=True) as aside:
        folder = aside.with_name(aside.name + ".files")
        try:
            folder.mkdir(parents=True)
            write_packed_files(run, folder)
            with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
                for path in sorted(folder.iterdir()):
                    entry = zipfile.ZipInfo(path.name, EPOCH)
                    entry.external_attr = 0o644 << 16
                    with archive.open(entry, "w", force_zip64=True) as inner, open(path, "rb") as content:
                        shutil.copyfileobj(content, inner, 1 << 20)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def write_packed_files(run: Path, folder: Path) -> None:
    """Writes the files of a packed run into an empty folder."""
    from weft.runs.open_run import open_run  # which itself opens packed runs
    from weft.runs.weight_files import named_weights

    opened = open_run(run)
    for key in ("rerank", "fusion"):
        if other := getattr(opened.config.decode, key).get("run"):
            raise ConfigError(f"decode.{key}.run: {other}: a packed run cannot use another run; set decode.{key}: none")
    write_tensors(folder / MODEL, named_weights(opened.model), {"by": "pack", "weights": "packed", "step": "0"})
    _write_rest(opened, folder)


def _write_rest(opened: Any, folder: Path) -> None:
    """Everything but the weights."""
    from weft.config.sections import save_config
    from weft.data.sentence_splitting import language_of
    from weft.runs.contextual_vectors import forget_contextual
    from weft.runs.migrations import write_format

    config = opened.config
    files = config.data.files
    languages = {
        "data.source_language": language_of(config.data.source_language, files),
        "data.target_language": language_of(config.data.target_language, files, 1),
    }
    write_format(folder)
    save_config(config.replaced(LOCAL | languages | forget_contextual(config)), folder / CONFIG)
    for pattern in COPIED:
        for path in sorted(opened.folder.glob(pattern)):
            if path.is_file() and NAMES.fullmatch(path.name):
                shutil.copyfile(path, folder / path.name)
    card = opened.folder / CARD
    (folder / CARD).write_text(card.read_text("utf-8") if card.is_file() else _card(config, languages, folder), "utf-8")


def _card(config: Any, languages: Mapping[str, Any], folder: Path) -> str:
    """The model card of a packed run."""
    pair = " to ".join(str(each) for each in languages.values() if each)
    model = config.model
    lines = ["# A run of weft", "", f"- task: {config.task['kind']}{f', {pair}' if pair else ''}", f"- model: {model['kind']}"]
    origin = folder / "origin.json"
    if origin.is_file():
        facts = json.loads(origin.read_text("utf-8"))
        lines.append(f"- imported from {facts['name']} ({facts['program']}); licence: {facts['license'] or 'not known'}")
    use = "`weft translate` and `weft serve` open this file directly; `weft unpack` makes a folder."
    return "\n".join([*lines, "", use, ""])


def unpack_run(file: Path, out: Path) -> None:
    """Makes a run folder of a packed run."""
    create_folder(out)
    with _archive(file) as archive, replacing(out, new=True) as aside:
        aside.mkdir(parents=True)
        _extract(file, archive, aside)


def unpacked(path: Path) -> Path:
    """A folder with the files of a packed run or of one on the hub, in the user's cache; any other path as it is."""
    if str(path).startswith("hf:"):
        from weft.runs.hub import hub_folder  # which packs runs itself

        return hub_folder(str(path))
    if not is_packed(path):
        return path
    if problem := why_unreadable(path):
        raise RunError(f"{path}: {problem}")
    with open(path, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()[:32]
    folder = trusted_place(cache_folder() / "packed" / digest)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _archive(path) as archive, replacing(folder, new=True) as aside:
                aside.mkdir()
                _extract(path, archive, aside)
                close_own(aside)
        except RunError:
            if not folder.is_dir():  # otherwise another process was first, and may be reading it
                raise
    return folder


@contextmanager
def _archive(file: Path) -> Iterator[zipfile.ZipFile]:
    """The archive of a packed run, after its names and sizes were checked."""
    if problem := why_unreadable(file):
        raise RunError(f"{file}: {problem}")
    try:
        with zipfile.ZipFile(file) as archive:
            _check(file, archive)
            yield archive
    except ZIP_ERRORS as error:
        raise RunError(f"{file}: not a packed run, or cut short or damaged ({error})") from None


def _check(file: Path, archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    strange = next((name for name in names if not NAMES.fullmatch(name)), None)
    if strange is not None:
        raise RunError(f"{file}: it contains {strange!r}, which a packed run never has; nothing was written")
    if len(set(names)) < len(names) or len(names) > MOST:
        raise RunError(f"{file}: it contains a name twice, or too many files; nothing was written")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        raise RunError(f"{file}: a packed run is neither compressed nor encrypted; nothing was written")
    if sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise RunError(f"{file}: it claims to contain more bytes than it has; nothing was written")
    if missing := {CONFIG, MODEL} - set(names):
        raise RunError(f"{file}: {' and '.join(sorted(missing))} is missing, so this is no packed run")


def _extract(file: Path, archive: zipfile.ZipFile, folder: Path) -> None:
    for entry in archive.infolist():
        with archive.open(entry) as content, open(folder / entry.filename, "xb") as out:
            shutil.copyfileobj(content, out, 1 << 20)
