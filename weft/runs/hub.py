"""Runs on the Hugging Face hub: `weft push`, `weft pull`, and `hf:user/name` wherever a run is named.

What travels is what a packed run has: settings without paths of this machine, merged weights as safetensors, tokenizers, and
the model card. Only files with the names of these are downloaded, and none of them is executed. The environment says where
the hub is (HF_ENDPOINT), where its cache is (HF_HUB_CACHE), and whether it is offline (HF_HUB_OFFLINE).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from weft.errors import ConfigError, RunError
from weft.runs.packed_run import MOST, NAMES, write_packed_files
from weft.runs.run_folder import CONFIG, MODEL, create_folder
from weft.runs.weight_files import replacing
from weft.version import VERSION, install

PREFIX = "hf:"
"""The beginning of a name that means a run on the hub."""

REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")

PATTERNS = ["*.yaml", "*.json", "*.safetensors", "README.md", "tokenizer*", "shortlist*"]
"""Files that may be downloaded; `NAMES` then decides which of them belong to a run."""


def is_on_hub(path: Path | str) -> bool:
    """Whether a name means a run on the hub."""
    return str(path).startswith(PREFIX)


def push_run(run: Path, repository: str, *, private: bool = False) -> str:
    """Uploads a run, also as the new state of a repository that is there. Returns the address."""
    name, revision = _parse(repository)
    if revision:
        raise ConfigError(f"{repository}: a run is uploaded to the main branch; leave out @{revision}")
    api = _api()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_packed_files(run, folder)
        try:
            address = api.create_repo(name, private=private, exist_ok=True)
            options: dict[str, Any] = {"commit_message": f"Upload a run of weft {VERSION}", "delete_patterns": PATTERNS}
            api.upload_folder(repo_id=name, folder_path=folder, **options)
        except Exception as error:  # the package raises those of its HTTP client, too
            raise RunError(f"{repository}: the upload failed: {_reason(error)}") from None
    return str(address)


def pull_run(repository: str, out: Path) -> None:
    """Downloads a run into a new folder."""
    found = hub_folder(repository)
    create_folder(out)
    with replacing(out, new=True) as aside:
        aside.mkdir(parents=True)
        for file in _run_files(found):
            shutil.copyfile(file, aside / file.name)


def hub_folder(repository: str) -> Path:
    """A folder of the hub's cache with a run: its newest state or, without a connection, the one that was downloaded last."""
    name, revision = _parse(repository)
    options: dict[str, Any] = {
        "revision": revision or None,
        "allow_patterns": PATTERNS,
        "cache_dir": os.environ.get("HF_HUB_CACHE"),
    }
    try:
        folder = Path(_api().snapshot_download(name, **options))
    except Exception as error:
        raise RunError(f"{repository}: the run cannot be downloaded: {_reason(error)}") from None
    if missing := {CONFIG, MODEL} - {file.name for file in _run_files(folder)}:
        raise RunError(f"{repository}: this is not a run of weft: it has no {' and no '.join(sorted(missing))}")
    return folder


def _run_files(folder: Path) -> list[Path]:
    """The files that belong to a run. Others are left alone, whatever they are."""
    found = [file for file in sorted(folder.iterdir()) if file.is_file() and NAMES.fullmatch(file.name)]
    if len(found) > MOST:
        raise RunError(f"{folder}: too many files for a run")
    return found


def _parse(repository: str) -> tuple[str, str]:
    """The repository, and the revision after @, if one is named."""
    plain = repository.removeprefix(PREFIX)
    if not REPOSITORY.fullmatch(plain) or ".." in plain:
        raise ConfigError(f"{repository}: name a repository of the hub as user/name, or user/name@revision")
    name, _, revision = plain.partition("@")
    return name, revision


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    except ImportError:
        raise ConfigError(f"runs on the hub need the package huggingface_hub: {install('hub')}") from None
    disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="weft", library_version=VERSION)


def _reason(error: Exception) -> str:
    """The first line of an error, which says what is wrong."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
