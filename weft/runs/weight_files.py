"""Weight files. They are safetensors, so nothing is ever unpickled, and they are synced to disk before they are used."""

import errno
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.errors import RunError
from weft.file_access import denied, sync, sync_all, temporary_name, unfinished, why_unreadable
from weft.models.base import Network
from weft.runs.distributed_tensors import fill, local
from weft.runs.migrations import migrate_metadata, migrate_weights

DRAWING = {"uniform_", "normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_"}
"""Tensor methods and functions of torch.nn.init that fill a tensor with random numbers."""

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types of tensors in safetensors files, with their names there."""


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a model by name, without borrowed ones. Tied tensors appear once, under their first name."""
    borrowed = model.borrowed if isinstance(model, Network) else frozenset()
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    left_out = borrowed | (every - {name for name, _ in model.named_parameters()})
    return {name: tensor for name, tensor in without_ties(model.state_dict()).items() if name not in left_out}


def without_ties(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name; of those that share memory, the first.

    Those of which this process holds nothing are all kept: with more processes than rows, that is so although they are not
    empty.
    """
    seen: set[tuple[int, int, torch.Size, tuple[int, ...]]] = set()
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        part = local(tensor)
        memory = (part.untyped_storage().data_ptr(), int(part.storage_offset()), tensor.shape, tensor.stride())
        if part.numel() == 0 or memory not in seen:
            kept[name] = tensor
            seen.add(memory)
    return kept


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and shapes. Models with the same fingerprint have the same architecture."""
    described = sorted((name, list(tensor.shape)) for name, tensor in tensors.items())
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file and syncs it to disk. Equal tensors and metadata give equal bytes.

    One tensor after the other is copied to the host.
    """
    # Those with larger elements come first, so that all are aligned.
    ready = dict(sorted(without_ties(tensors).items(), key=lambda item: (-item[1].element_size(), item[0])))
    with open(file, "wb") as out:
        out.write(_header(ready, metadata or {}))
        for tensor in ready.values():
            out.write(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    sync(file)


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a safetensors file with these tensors: its length, then JSON, padded to multiples of 8 bytes."""
    # All metadata is one entry, as the order of several is not defined.
    entries: dict[str, Any] = {"__metadata__": {"weft": json.dumps(dict(metadata), sort_keys=True)}} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The weights in a file of weft, by the names of today."""
    return migrate_weights(tensors_of(file))


def tensors_of(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name."""
    with read_errors(file):
        return load_file(file)


def read_metadata(file: Path) -> dict[str, str]:
    """The metadata of published weights: which weights they are, their step, their scores."""
    with read_errors(file), safe_open(file, framework="pt") as opened:
        written = (opened.metadata() or {}).get("weft", "{}")
    try:
        return migrate_metadata(dict(json.loads(written)))
    except (ValueError, TypeError, RecursionError):
        raise RunError(
            f"{file}: the metadata was not written by this version of weft; publish the weights again from a checkpoint"
        ) from None


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def read_errors(file: Path) -> Iterator[None]:
    """Turns an error in reading a safetensors file, or a folder of them, into one that says what is wrong with it."""
    if problem := why_unreadable(file):  # safetensors takes every file that it cannot open for missing
        raise RunError(f"{file}: {problem}")
    if not _is_utf8(os.fsencode(file)):
        raise RunError(
            f"{file}: safetensors needs a path in UTF-8; rename the folder, or write its name in UTF-8 (PYTHONUTF8=1)"
        )
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file}: the safetensors file is cut short or damaged ({error})") from None


@torch.no_grad()
def copy_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copies `tensors` into the model, in place. Names and shapes must match exactly."""
    expected = named_weights(model)
    check_same(expected, tensors, where)
    for name, tensor in expected.items():
        fill(tensor, tensors[name])


def check_same(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: Path) -> None:
    """Raises RunError if names and shapes of `tensors` are not those of a model."""
    differences = [
        f"{name} has shape {list(tensors[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    differences += [f"{name} is missing" for name in expected if name not in tensors]
    differences += [f"{name} is not part of this model" for name in tensors if name not in expected]
    if differences:
        shown = "; ".join(differences[:4]) + (f"; and {len(differences) - 4} more" if len(differences) > 4 else "")
        raise RunError(
            f"{where}: the weights belong to a different architecture: {shown}. Use the configuration they were trained with"
        )


def share_equal(model: nn.Module, others: Iterable[nn.Module]) -> None:
    """Replaces weights of a model by equal ones of the same name in other models, so that memory holds them once."""
    known: dict[str, list[nn.Parameter]] = {}
    for other in others:
        for name, weight in other.named_parameters(remove_duplicate=False):
            known.setdefault(name, []).append(weight)
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        same = next((each for each in known.get(name, []) if torch.equal(each, weight)), None)
        if same is not None:
            parent, _, key = name.rpartition(".")
            setattr(model.get_submodule(parent), key, same)


class zero_initialized(TorchFunctionMode):  # noqa: N801 — a context manager, named in the style of torch
    """Inside this context, weights are initialised to 0 instead of randomly: for models that then load a file."""

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
    """Loads a run's `model.safetensors` into the model and returns the file's metadata."""
    copy_weights(model, read_tensors(file), file)
    return read_metadata(file)


@contextmanager
def replacing(target: Path, *, new: bool = False, advice: str = "") -> Iterator[Path]:
    """Yields a temporary path for a file or folder that then replaces `target`. If this fails, nothing of it remains.

    All of it is synced to disk before, so that a crash leaves either what was there or what is new, as a whole. With `new`,
    only an empty folder is replaced; RunError says if another process has made more of it meanwhile. advice: what an error
    says besides.
    """
    with save_errors(target, advice), unfinished(target) as aside:
        yield aside
        sync_all(aside)
        if new:
            _place(aside, target)
        else:
            if target.is_dir():
                discard(target)
            os.replace(aside, target)
        sync(target.parent)


@contextmanager
def save_errors(target: Path, advice: str = "") -> Iterator[None]:
    """Turns an error in writing into one that says why `target` could not be saved, and `advice`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        parent = next(folder for folder in target.absolute().parents if folder.is_dir())
        if isinstance(error, PermissionError) or not os.access(parent, os.W_OK):
            raise RunError(f"could not save {target}: {denied(parent, 'write there')}") from error
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        full = not isinstance(error, OSError) or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        free = (
            f"{shutil.disk_usage(parent).free / 2**20:,.0f} MiB are free on that disk: free some space (old runs, other files)"
        )
        raise RunError(". ".join(filter(None, [f"could not save {target}: {reason}", free if full else "", advice]))) from error


def _place(aside: Path, target: Path) -> None:
    """Gives a file or folder its name, unless that is taken."""
    try:
        if aside.is_dir():
            os.rename(aside, target)
        else:
            os.link(aside, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise RunError(f"{target}: another process has just made it, and weft does not overwrite files") from None
        if aside.is_dir():
            raise
        os.replace(aside, target)  # not every file system has links


def discard(folder: Path) -> None:
    """Removes a folder. It is renamed first: a partly removed checkpoint must not look like a checkpoint."""
    aside = temporary_name(folder, "old-")
    os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)
