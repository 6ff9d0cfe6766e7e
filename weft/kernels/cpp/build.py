"""Compiles the kernels in this folder once per machine, and loads them."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch

from weft.errors import WeftError

HERE = Path(__file__).parent
FLAGS = (
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast"),
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma"),
)
"""No flags for the compiling CPU itself, so that machines that share a home directory can share the result."""

SECONDS = 120
"""The time limit; compiling takes two or three seconds."""


class CannotBuild(WeftError):
    """The kernels cannot be compiled here. The message says why."""


def library() -> ctypes.CDLL:
    """Loads the kernels, and compiles them first unless a cached build exists. Raises CannotBuild with the reason."""
    if platform.system() != "Linux":
        raise CannotBuild("they need Linux")
    if platform.machine() != "x86_64" or not (torch.cpu._is_avx512_supported() and torch.cpu._is_vnni_supported()):
        raise CannotBuild("this CPU does not support AVX512-VNNI")
    wanted = os.environ.get("CXX", "c++")
    compiler = shutil.which(wanted)
    if compiler is None:
        raise CannotBuild(f"the C++ compiler {wanted} was not found; install g++, or set CXX to another compiler")
    sources = sorted(HERE.glob("*.cpp"))
    name = _name(compiler, [*sources, *HERE.glob("*.h")])
    try:
        kept = _folder() / name
        with suppress(OSError):  # missing or damaged
            return ctypes.CDLL(str(kept))
        _compile(compiler, sources, kept)
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise CannotBuild(f"{error}") from None


def _name(compiler: str, files: list[Path]) -> str:
    """A file name that depends on the compiler, the flags and all sources."""
    inputs = [compiler.encode(), *(flag.encode() for flag in FLAGS), *(file.read_bytes() for file in sorted(files))]
    return f"kernels-{blake2b(bytes(0).join(inputs), digest_size=10).hexdigest()}.so"


def _folder() -> Path:
    """The cache folder. It belongs to this user alone, since its contents are executed."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "weft" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # no writable home: compile for this process only
    return Path(tempfile.mkdtemp(prefix="weft-kernels-"))


def _compile(compiler: str, sources: list[Path], into: Path) -> None:
    """Compiles to a temporary file and renames it, so that several processes can do so at the same time."""
    with tempfile.TemporaryDirectory(dir=into.parent) as aside:
        made = Path(aside) / into.name
        command = [compiler, *FLAGS, *map(str, sources), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"{compiler} took more than {SECONDS} s") from None
        if done.returncode != 0:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]).strip()
            raise CannotBuild(f"{compiler} failed: {reason or f'status {done.returncode}'}")
        os.replace(made, into)
