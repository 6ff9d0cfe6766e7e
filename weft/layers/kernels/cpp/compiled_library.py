"""Finds the compiled kernels for this CPU: those that an installed platform wheel brings, or compiles them once per machine."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch

from weft.errors import WeftError
from weft.file_access import own_cache, why_untrusted

HERE = Path(__file__).parent
PREBUILT = HERE / "prebuilt"
"""The libraries of a platform wheel: INSTRUCTIONS-SOURCES-CONTENT.so, with fingerprints of the sources and the file itself."""

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
    """Loads the kernels, and compiles them first unless they are installed or cached. Raises CannotBuild with the reason.

    Whoever sets CXX gets them from that compiler.
    """
    if platform.system() != "Linux":
        raise CannotBuild("they need Linux")
    flags = (*FLAGS, *INSTRUCTIONS[instructions()])
    if "CXX" not in os.environ and (installed := prebuilt_library()) is not None:
        with suppress(OSError):  # a system without the libraries that it needs
            return ctypes.CDLL(str(installed))
    wanted = os.environ.get("CXX", "c++")
    compiler = shutil.which(wanted)
    if compiler is None:
        raise CannotBuild(f"the C++ compiler {wanted} was not found; install g++, or set CXX to another compiler")
    try:
        kept = _folder() / f"kernels-{_of_sources(compiler, *flags)}.so"
        with suppress(OSError):  # missing or damaged
            if why_untrusted(kept) is None:
                return ctypes.CDLL(str(kept))
        _compile(compiler, flags, sorted(HERE.glob("*.cpp")), kept)
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise CannotBuild(f"{error}") from None


def prebuilt_library() -> Path | None:
    """The installed library for this CPU, if it was made of these sources and nothing in it has changed.

    It has a C interface and calls neither Python nor torch, so it fits every version of both.
    """
    name = instructions()
    begin = f"{name}-{_of_sources(*FLAGS, *INSTRUCTIONS[name])}-"
    found = (file for file in sorted(PREBUILT.glob(f"{begin}*.so")) if file.stem == begin + _fingerprint(file.read_bytes()))
    return next(found, None)


def prebuild(name: str, compiler: str, folder: Path) -> Path:
    """Compiles the kernels for a set of instructions into a folder, for a wheel. Raises CannotBuild with the reason."""
    flags = (*FLAGS, *INSTRUCTIONS[name])
    made = folder / "kernels.so"
    _compile(compiler, flags, sorted(HERE.glob("*.cpp")), made)
    return made.rename(folder / f"{name}-{_of_sources(*flags)}-{_fingerprint(made.read_bytes())}.so")


def _of_sources(*options: str) -> str:
    """A fingerprint of a compiler's options and all sources."""
    sources = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])
    return _fingerprint(*(option.encode() for option in options), *(file.read_bytes() for file in sources))


def _fingerprint(*parts: bytes) -> str:
    return blake2b(bytes(0).join(parts), digest_size=10).hexdigest()


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


def _folder() -> Path:
    """The cache folder, if it is private; otherwise a new folder for this process only."""
    own = own_cache()
    with suppress(OSError):  # no writable home
        if own is None:
            raise FileNotFoundError
        folder = own / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if why_untrusted(folder, inside=False):
            warnings.warn(
                f"{folder}: it is not yours, or others may write to it, so compiled kernels are not loaded from there; they "
                "are compiled in each process. To keep them, remove the folder, or make it your own (chmod 700)",
                stacklevel=2,
            )
        elif os.access(folder, os.W_OK):
            return folder
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
