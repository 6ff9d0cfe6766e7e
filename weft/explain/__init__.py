"""Explanations of predictions: attention maps, influence, the beam tree, heat maps, and the pages that show them."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package, which is also the function `weft.explain`: Python sets the attribute to the package once it is imported."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from importlib import import_module

        return import_module("weft.runs.translator").explain(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
