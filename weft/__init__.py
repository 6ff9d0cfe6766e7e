"""weft trains sequence-to-sequence models and runs them.

>>> import weft
>>> weft.train("transformer-small", data="train.en,train.de", valid="val.en,val.de", out="runs/ende")  # doctest: +SKIP
>>> weft.load("runs/ende").translate(["A dog runs.", "Two cats sleep."], beam=4)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.version import VERSION

__version__ = VERSION
__all__ = [
    "Generator",
    "Translation",
    "Translator",
    "WeftError",
    "__version__",
    "compare",
    "evaluate",
    "explain",
    "load",
    "load_generator",
    "nn",
    "train",
]

if TYPE_CHECKING:
    from weft import nn
    from weft.bench.compare.sweep import compare
    from weft.errors import WeftError
    from weft.runs.run_evaluation import evaluate
    from weft.runs.translator import Generator, Translator, explain, load, load_generator
    from weft.tasks.translation.segmenter import Translation
    from weft.training.train_run import train

_PLACES = {
    "train": "weft.training.train_run",
    "compare": "weft.bench.compare.sweep",
    "evaluate": "weft.runs.run_evaluation",
    "explain": "weft.runs.translator",
    "WeftError": "weft.errors",
    "Generator": "weft.runs.translator",
    "load_generator": "weft.runs.translator",
    "Translation": "weft.tasks.translation.segmenter",
    "Translator": "weft.runs.translator",
    "load": "weft.runs.translator",
}


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet, for `dir(weft)` and completion."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Imports names on first use, so that `weft --help` does not wait for torch."""
    if name == "nn":
        return import_module("weft.nn")
    if name not in _PLACES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
