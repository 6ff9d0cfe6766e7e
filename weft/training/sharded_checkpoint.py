"""Tensors of a sharded training in a checkpoint: torch.distributed.checkpoint, in the form of safetensors.

Each process writes what it holds into a file of its own, and reads what it will hold, so no process ever has all of it in
memory. The header of a file says which rows it has. So any number of processes reads what another number has written, and so
does one process that is not sharded. What is not divided, such as buffers, is in the file of the first process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.errors import RunError
from weft.runs.distributed_tensors import divided
from weft.runs.weight_files import read_errors
from weft.training.distributed import World

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

# torch.distributed.checkpoint is imported where it is used: that takes half as long as torch itself.


def write_parts(folder: Path, tensors: Mapping[str, Tensor], world: World) -> list[Path]:
    """Writes what this process holds of these tensors, and syncs it to disk. Returns the files that this process has written.

    All processes call this together. If one of them cannot write, all raise its error.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    written: set[str] = set()

    class Writer(HuggingFaceStorageWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            results = super().write_data(plan, planner)
            written.update(result.storage_data.relative_path for result in results.wait())
            return results

    mine = {name: tensor for name, tensor in tensors.items() if divided(tensor) or world.first}
    with _as_one_process_has_them():
        save(mine, storage_writer=Writer(str(folder), save_distributed=True), process_group=world.control)
    return [folder / name for name in sorted(written)]


@torch.no_grad()
def fill_parts(folder: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    """Copies what has been saved into these tensors, in place: of divided ones, what this process holds."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _as_one_process_has_them(), read_errors(folder):
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), **_together(world))


def outline(folder: Path) -> dict[str, Tensor]:
    """The tensors that have been saved by name, on torch's meta device: shapes and types without values."""
    return {name: _empty(saved, "meta") for name, saved in _saved(folder).items()}


def read_parts(folder: Path) -> dict[str, Tensor]:
    """All that has been saved, whole, in this process."""
    tensors = {name: _empty(saved, "cpu") for name, saved in _saved(folder).items()}
    fill_parts(folder, tensors, World(0, 1, torch.device("cpu")))
    return tensors


def _saved(folder: Path) -> dict[str, TensorStorageMetadata]:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    with read_errors(folder):
        found: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return dict(sorted(found.items()))


def _empty(saved: TensorStorageMetadata, device: str) -> Tensor:
    return torch.empty(saved.size, dtype=saved.properties.dtype, device=device)


def _together(world: World) -> dict[str, Any]:
    return {"no_dist": True} if world.size == 1 else {"process_group": world.control}


@contextmanager
def _as_one_process_has_them() -> Iterator[None]:
    """Raises an error of one of the processes as it is: torch collects those of all. Hides warnings of torch about itself."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        raise first if isinstance(first, (OSError, RunError)) else RunError(str(first)) from None
