"""Starting torch without parts that using a model does not need. They are imported as soon as something may ask for them.

A quarter of `import torch` describes operations for tensors without data (the device meta), which compilers need.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

KNOWN = "__version__ = '2.13."
"""The beginning of the version of torch with which this is tested. Others start as a whole."""

DEFERRED = ("torch.export", "torch._meta_registrations")
"""The modules that wait, in the order in which torch imports them."""

_LOCK = RLock()
_COMPLETING: list[bool] = []


def defer_parts() -> None:
    """Lets the next `import torch` of this process leave out what is rarely needed, if this version of torch is known."""
    spec = None if "torch" in sys.modules else PathFinder.find_spec("torch")
    if spec is not None and spec.origin is not None:
        with suppress(OSError):
            if KNOWN in Path(spec.origin).with_name("version.py").read_text():
                sys.meta_path.insert(0, _Finder())


def complete_torch() -> None:
    """Imports what was left out. For code that computes with tensors without data, and for packages of others."""
    with _LOCK:
        _complete()


def _complete() -> None:
    """Executes what waits, in order. What it imports meanwhile finds it as far as it is."""
    if _COMPLETING:
        return
    _COMPLETING.append(True)
    try:
        for name in DEFERRED:
            if isinstance(module := sys.modules.get(name), _Deferred):
                _execute(module)
    finally:
        _COMPLETING.clear()


class _Deferred(ModuleType):
    """A module that is executed when an attribute is missed. Its `__path__` waits, too."""

    def __getattr__(self, name: str) -> Any:
        complete_torch()
        return ModuleType.__getattribute__(self, name)


class _Later(Loader):
    """Makes a module that waits."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def exec_module(self, module: ModuleType) -> None:
        vars(module).pop("__path__", None)  # whoever looks for a submodule misses it
        module.__class__ = _Deferred
        if module.__name__ == DEFERRED[-1]:
            _allow_generators()


class _Loaded(Loader):
    """Finds a module that was imported while it was looked for, and makes way for its own loader."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec, self.loader = spec, spec.loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        self.spec.loader = self.loader


class _Finder:
    """Lets modules wait while torch is imported. Before any other module of torch is imported later, they are."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("torch.") or target is not None:
            return None
        if name in DEFERRED and name not in sys.modules:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Later(spec.loader)
            return spec
        if _starting() or not _LOCK.acquire(blocking=False):  # a thread that completes torch may wait for this import
            return None
        try:
            _complete()
        finally:
            _LOCK.release()
        found = sys.modules[name].__spec__ if name in sys.modules else None
        if found is not None:
            found.loader = _Loaded(found)
        return found


def _allow_generators() -> None:
    """Does the one thing that the modules which wait do for others than compilers: without it there is no torch.Generator."""
    import torch
    from torch._opaque_base import OpaqueBaseMeta

    torch._C._set_generator_metaclass(OpaqueBaseMeta)


def _starting() -> bool:
    """Whether torch is still being imported."""
    return bool(getattr(sys.modules["torch"].__spec__, "_initializing", False))


def _execute(module: ModuleType) -> None:
    spec = module.__spec__
    later = None if spec is None else spec.loader
    assert spec is not None and isinstance(later, _Later)
    spec.loader = module.__loader__ = later.loader
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    try:
        later.loader.exec_module(module)
        module.__class__ = ModuleType
    except BaseException:
        spec.loader = module.__loader__ = later
        raise
