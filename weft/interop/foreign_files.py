"""Files of others, which may be damaged or hostile: nothing in them is executed, and what they claim is checked first."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from weft.data.json_text import read_json
from weft.errors import RunError
from weft.file_access import why_unreadable
from weft.runs.weight_files import tensors_of

LARGEST_TEXT = 1 << 28
"""Bytes of the largest file that is read as text."""

CODE = "it is a pickle of more than tensors, perhaps with code, which is never run; ask its author for model.safetensors"


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files that a folder has."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def need(folder: Path, *names: str) -> Path:
    """The first of these files that a folder has. Raises RunError if it has none."""
    found = find(folder, *names)
    if found is None:
        raise RunError(f"{folder}: {' or '.join(names)} is missing")
    return found


def check_readable(path: Path, what: str = "file") -> None:
    """Raises RunError with the reason if the path cannot be read."""
    if problem := why_unreadable(path, what):
        raise RunError(f"{path}: {problem}")


def read_bytes(file: Path) -> bytes:
    """The content of a file that is no larger than `LARGEST_TEXT`."""
    check_readable(file)
    if file.stat().st_size > LARGEST_TEXT:
        raise RunError(f"{file}: it has {file.stat().st_size:,} bytes, too many for such a file")
    return file.read_bytes()


def read_text(file: Path) -> str:
    """The text of a file."""
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{file}: byte {error.start} is not UTF-8") from None


def read_vocabulary(file: Path) -> dict[str, int]:
    """A table from pieces to ids, each of which occurs once."""
    content = read_json(file)
    ids = list(content.values())
    if not all(type(number) is int and number >= 0 for number in ids) or len(set(ids)) != len(ids):
        raise RunError(f"{file}: the ids of a vocabulary must be different numbers, from 0 on")
    return content


def number(settings: Mapping[str, Any], key: str, file: Path, default: int | None = None) -> int:
    """A whole number of a configuration."""
    value = settings.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise RunError(f"{file}: {key} must be a whole number, not {str(value)[:40]!r}")
    return value


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder of transformers, and their file."""
    file = need(folder, "model.safetensors", "pytorch_model.bin")
    return (tensors_of(file) if file.suffix == ".safetensors" else read_pickle(file)), file


def read_pickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch.save wrote. Only tensors and plain values are unpickled."""
    check_readable(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise RunError(f"{file}: {CODE}") from None
    except Exception as error:  # torch raises many kinds for damaged files
        raise RunError(f"{file}: the file of weights is cut short or damaged ({str(error).splitlines()[0][:120]})") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise RunError(f"{file}: it holds no tensors by name")
    return {key: value for key, value in content.items() if isinstance(value, Tensor)}


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping of a small YAML text."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RunError(f"{where}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise RunError(f"{where}: it must hold a mapping")
    return content


def licence_of(folder: Path) -> str | None:
    """The licence that the card of a folder (the head of its README.md) names."""
    file = find(folder, "README.md")
    if file is None:
        return None
    text = read_text(file)
    if not text.startswith("---"):
        return None
    head = read_yaml(text.split("---")[1], str(file))
    licence = head.get("license")
    return str(licence) if isinstance(licence, str) else None
