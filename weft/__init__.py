"""weft trains sequence-to-sequence models and runs them.

>>> import weft
>>> weft.train("transformer-small", data="train.en,train.de", valid="val.en,val.de", out="runs/ende")  # doctest: +SKIP
>>> weft.load("runs/ende").translate(["A dog runs.", "Two cats sleep."], beam=4)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Generator", "Translation", "Translator", "WeftError", "load", "load_generator", "train"]

if TYPE_CHECKING:
    from weft.api import train
    from weft.errors import WeftError
    from weft.inference.joining import Translation
    from weft.translator import Generator, Translator, load, load_generator

_PLACES = {
    "train": "weft.api",
    "WeftError": "weft.errors",
    "Generator": "weft.translator",
    "load_generator": "weft.translator",
    "Translation": "weft.inference.joining",
    "Translator": "weft.translator",
    "load": "weft.translator",
}


def __getattr__(name: str) -> Any:
    """Imports names on first use, so that `weft --help` does not wait for torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
