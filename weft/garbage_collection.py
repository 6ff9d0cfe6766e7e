"""Python's garbage collection, less often: a full one looks at all of the hundreds of thousands of objects of torch."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 50_000
"""New objects between collections. With Python's default, 700, they take a sixth of importing torch and a tenth of a training
step of a small model."""


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Inside this context, garbage is collected after `OBJECTS` new objects, unless it is already rarer."""
    before = gc.get_threshold()
    if 0 < before[0] < OBJECTS:
        gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def paused_at_startup() -> Iterator[None]:
    """Inside this context, no garbage is collected, and what it makes is not looked at later: modules, and a model.

    They stay until the end of the process; one look at the objects of torch takes a twentieth of starting. Does nothing outside
    of `collect_rarely`: whether garbage is kept is for the program to decide.
    """
    if not gc.isenabled() or gc.get_threshold()[0] < OBJECTS:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
