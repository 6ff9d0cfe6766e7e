"""Compiles the kernels in this folder once per machine, and loads them."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch

from weft.errors import WeftError

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-Wno-psabi")

INSTRUCTIONS = {
    "AVX512-VNNI": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
    "NEON": (),
}
"""Flags by instruction set: not those of the compiling CPU itself, so that machines that share a home directory can share the
result."""

SECONDS = 300
"""The time limit; compiling takes about four seconds on four cores and ten on one."""


class CannotBuild(WeftError):
    """The kernels cannot be compiled here. The message says why."""


def library() -> ctypes.CDLL:
    """Loads the kernels, and compiles them first unless a cached build exists. Raises CannotBuild with the reason."""
    if platform.system() != "Linux":
        raise CannotBuild("they need Linux")
    flags = (*FLAGS, *INSTRUCTIONS[instructions()])
    wanted = os.environ.get("CXX", "c++")
    compiler = shutil.which(wanted)
    if compiler is None:
        raise CannotBuild(f"the C++ compiler {wanted} was not found; install g++, or set CXX to another compiler")
    sources = sorted(HERE.glob("*.cpp"))
    name = _name(compiler, flags, [*sources, *HERE.glob("*.h")])
    try:
        kept = _folder() / name
        with suppress(OSError):  # missing or damaged
            return ctypes.CDLL(str(kept))
        _compile(compiler, flags, sources, kept)
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise CannotBuild(f"{error}") from None


def instructions() -> str:
    """The widest instruction set of this CPU that the kernels are compiled for. Raises CannotBuild if there is none."""
    machine = platform.machine()
    if machine == "x86_64" and torch.cpu._is_avx512_supported() and torch.cpu._is_vnni_supported():
        return "AVX512-VNNI"
    if machine == "x86_64" and torch.cpu._is_avx2_supported():
        return "AVX2"
    if machine in ("aarch64", "arm64"):
        return "NEON"
    raise CannotBuild(f"this CPU ({machine}) supports neither AVX2 nor NEON")


def _name(compiler: str, flags: Sequence[str], files: list[Path]) -> str:
    """A file name that depends on the compiler, the flags and all sources."""
    inputs = [compiler.encode(), *(flag.encode() for flag in flags), *(file.read_bytes() for file in sorted(files))]
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


def _compile(compiler: str, flags: Sequence[str], sources: list[Path], into: Path) -> None:
    """Compiles all sources at the same time and links them, in a folder of its own: several processes may do so at once."""
    with tempfile.TemporaryDirectory(dir=into.parent) as aside, ThreadPoolExecutor(len(sources)) as pool:
        made, objects = Path(aside) / into.name, [f"{aside}/{source.stem}.o" for source in sources]
        each = [[compiler, *flags, "-c", str(source), "-o", out] for source, out in zip(sources, objects, strict=True)]
        list(pool.map(_call, each))
        _call([compiler, *flags, "-shared", *objects, "-o", str(made)])
        os.replace(made, into)


def _call(command: list[str]) -> None:
    """Runs the compiler. Raises CannotBuild with its first error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{command[0]} took more than {SECONDS} s") from None
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]).strip()
        raise CannotBuild(f"{command[0]} failed: {reason or f'status {done.returncode}'}")
