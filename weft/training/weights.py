"""Weights in files: safetensors only, so that nothing is ever unpickled; every file is on the disk before it counts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.errors import RunError

DRAWING = {"uniform_", "normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_"}
"""Functions of torch that write random numbers into a tensor: those of tensors, and those of torch.nn.init."""


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights and buffers by name. Tied tensors, which share their memory, appear once, by their first name."""
    return without_ties(model.state_dict())


def without_ties(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or place not in seen:
            kept[name] = tensor
            seen.add(place)
    return kept


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and shapes: two models with the same one have the same architecture."""
    described = sorted((name, list(tensor.shape)) for name, tensor in tensors.items())
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file and wait until the disk has it. Equal tensors and metadata give equal bytes."""
    ready = {name: tensor.detach().contiguous() for name, tensor in without_ties(tensors).items()}
    # One entry: safetensors writes several in an order that changes from call to call.
    save_file(ready, file, {"weft": json.dumps(dict(metadata), sort_keys=True)} if metadata else None)
    sync(file)


def sync(path: Path) -> None:
    """Wait until the disk has this file, or the names in this folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


RENAMED = [
    (re.compile(r"(^|[./])encoder((?:\.base)*)\.embedding\.(table|ngrams)\."), r"\1encoder\2.front.\3."),
    (re.compile(r"(^|[./])encoder((?:\.base)*)\.embedding\.position\."), r"\1encoder\2.position."),
]
"""Weight names of runs that were trained before encoders had fronts, and what they are called now."""


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; names of earlier versions are translated."""
    try:
        tensors = load_file(file)
        if any("encoder.front." in name or "encoder.base.front." in name for name in tensors):
            return tensors
        return {_current(name): tensor for name, tensor in tensors.items()}
    except FileNotFoundError:
        raise RunError(f"{file}: there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file}: not a whole safetensors file ({error}); it was cut short or damaged") from None


def _current(name: str) -> str:
    for old, new in RENAMED:
        name = old.sub(new, name)
    return name


def read_metadata(file: Path) -> dict[str, str]:
    """What `publish` wrote beside the weights: which ones they are, their step, their scores."""
    try:
        with safe_open(file, framework="pt") as opened:
            written = (opened.metadata() or {}).get("weft", "{}")
            return dict(json.loads(written))
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file}: not a whole safetensors file ({error}); it was cut short or damaged") from None
    except (ValueError, TypeError):
        raise RunError(
            f"{file}: its metadata was not written by this version of weft; publish it anew from a checkpoint"
        ) from None


@torch.no_grad()
def put_tensors(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy `tensors` into the model, in place. They have to be those of its architecture exactly."""
    expected = tensors_of(model)
    differences = _differences(expected, tensors)
    if differences:
        shown = "; ".join(differences[:4]) + (f"; and {len(differences) - 4} more" if len(differences) > 4 else "")
        raise RunError(
            f"{where}: made by a model of another architecture: {shown}. Use the configuration that it was trained with"
        )
    for name, tensor in expected.items():
        tensor.copy_(tensors[name])


def _differences(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in expected if name not in given]
    unknown = [f"{name} is not part of this model" for name in given if name not in expected]
    shapes = [
        f"{name} has shape {list(given[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    return shapes + missing + unknown


class blank(TorchFunctionMode):  # noqa: N801 — a context, named as those of torch are
    """Inside, first weights are 0 instead of drawn: for models that are about to be given those of a file."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if getattr(func, "__name__", "") not in DRAWING:
            return func(*args, **options)
        tensor: Tensor = args[0] if args else options["tensor"]
        with torch.no_grad():
            return tensor.zero_()


def load_weights(model: nn.Module, file: Path) -> dict[str, str]:
    """Read a run's `model.safetensors` into the model; gives the file's metadata."""
    put_tensors(model, read_tensors(file), file)
    return read_metadata(file)


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn a failure to write into a message that says where and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        there = next(folder for folder in target.absolute().parents if folder.is_dir())
        free = shutil.disk_usage(there).free / 2**20
        raise RunError(
            f"could not save {target}: {error}. {free:,.0f} MiB are free there. What was saved before is untouched: make room "
            "on that disk (older runs, other files) or set a smaller train.keep_last, and go on with --resume"
        ) from error
