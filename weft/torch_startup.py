"""Starting torch without parts that only compilers need. They are imported as soon as something may ask for them.

A quarter of `import torch` describes operations for tensors without data (the device meta). Optimisers import the compiler,
which takes as long as torch, to tell it that it must not compile them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

KNOWN = "__version__ = '2.13."
"""The beginning of the version of torch with which this is tested. Others start as a whole."""

DEFERRED = ("torch.export", "torch._meta_registrations")
"""The modules that wait where a model is used, in the order in which torch imports them."""

COMPILER = "torch._dynamo"
"""The module that waits where a model is trained. What optimisers ask of it does nothing as long as nothing is compiled."""

_LOCK = RLock()
_COMPLETING: list[bool] = []


def defer_parts() -> None:
    """Lets the next `import torch` of this process leave out `DEFERRED`, if this version of torch is known."""
    _defer(_StartFinder())


def defer_compiler() -> None:
    """Lets optimisers of this process do without torch's compiler until something is compiled, if this version is known."""
    _defer(_Finder((COMPILER,)))


def _defer(finder: _Finder) -> None:
    spec = None if "torch" in sys.modules else PathFinder.find_spec("torch")
    if spec is not None and spec.origin is not None:
        with suppress(OSError):
            if KNOWN in Path(spec.origin).with_name("version.py").read_text():
                sys.meta_path.insert(0, finder)


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
        with _LOCK:
            if self.__name__ in DEFERRED:
                _complete()
            else:
                _execute(self)
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
        if module.__name__ == COMPILER:
            vars(module).update(graph_break=lambda msg="": None, disable=_disable)


class _Loaded(Loader):
    """Finds a module that was imported while it was looked for, and makes way for its own loader."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec, self.loader = spec, spec.loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        self.spec.loader = self.loader


class _Finder:
    """Lets modules wait."""

    def __init__(self, deferred: Sequence[str]) -> None:
        self.deferred = deferred

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("torch.") or target is not None:
            return None
        if name in self.deferred and name not in sys.modules:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Later(spec.loader)
            return spec
        self.before(name)
        found = sys.modules[name].__spec__ if name in sys.modules else None
        if found is not None:
            found.loader = _Loaded(found)
        return found

    def before(self, name: str) -> None:
        """Does what has to be done before a module is imported."""


class _StartFinder(_Finder):
    """Lets modules wait while torch is imported. Before any other module of torch is imported later, they are."""

    def __init__(self) -> None:
        super().__init__(DEFERRED)

    def before(self, name: str) -> None:
        if _starting() or not _LOCK.acquire(blocking=False):  # a thread that completes torch may wait for this import
            return
        try:
            _complete()
        finally:
            _LOCK.release()


def _disable(function: Callable[..., Any], *settings: Any, **options: Any) -> Callable[..., Any]:
    """`torch._dynamo.disable` of a function: that of torch, as soon as its compiler is there."""
    disabled: list[Callable[..., Any]] = []

    @wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        compiler = sys.modules[COMPILER]
        if not disabled and type(compiler) is ModuleType:
            disabled.append(compiler.disable(function, *settings, **options))
        return (disabled[0] if disabled else function)(*given, **named)

    return run


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
    if spec is None or not isinstance(later, _Later):
        return  # it is being executed
    spec.loader = module.__loader__ = later.loader
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    try:
        later.loader.exec_module(module)
        module.__class__ = ModuleType
    except BaseException:
        spec.loader = module.__loader__ = later
        raise
