"""Compiles the kernels that lie beside this file, once for a machine, and loads them."""

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
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-fopenmp"),
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma"),
)
"""Nothing of the very CPU that compiles, so that a home that several machines share serves them all."""

SECONDS = 120
"""Compiling takes two or three."""


class CannotBuild(WeftError):
    """The kernels cannot be had here; why is said."""


def library() -> ctypes.CDLL:
    """The kernels, compiled if they are not kept from another time. CannotBuild says what is missing."""
    if platform.system() != "Linux":
        raise CannotBuild("they are written for Linux")
    if platform.machine() != "x86_64" or not (torch.cpu._is_avx512_supported() and torch.cpu._is_vnni_supported()):
        raise CannotBuild("this CPU has no products of bytes in registers of 512 bits (AVX512-VNNI)")
    wanted = os.environ.get("CXX", "c++")
    compiler = shutil.which(wanted)
    if compiler is None:
        raise CannotBuild(f"there is no C++ compiler called {wanted}; install g++, or name one in the environment as CXX")
    sources = sorted(HERE.glob("*.cpp"))
    name = _name(compiler, [*sources, *HERE.glob("*.h")])
    try:
        kept = _folder() / name
        with suppress(OSError):  # not there yet, or damaged
            return ctypes.CDLL(str(kept))
        _compile(compiler, sources, kept)
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise CannotBuild(f"{error}") from None


def _name(compiler: str, files: list[Path]) -> str:
    """A file name that changes with all that the kernels are made from."""
    said = [compiler.encode(), *(flag.encode() for flag in FLAGS), *(file.read_bytes() for file in sorted(files))]
    return f"kernels-{blake2b(bytes(0).join(said), digest_size=10).hexdigest()}.so"


def _folder() -> Path:
    """Where kernels are kept: a folder that belongs to this user alone, for what lies there is run."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "weft" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # no home, or one that nobody may write to: for this process they are compiled anew
    return Path(tempfile.mkdtemp(prefix="weft-kernels-"))


def _compile(compiler: str, sources: list[Path], into: Path) -> None:
    """Written aside and renamed, so that several processes can do it at the same time."""
    with tempfile.TemporaryDirectory(dir=into.parent) as aside:
        made = Path(aside) / into.name
        command = [compiler, *FLAGS, *map(str, sources), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"{compiler} took more than {SECONDS} s") from None
        if done.returncode != 0:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]).strip()
            raise CannotBuild(f"{compiler} failed: {said or f'status {done.returncode}'}")
        os.replace(made, into)
