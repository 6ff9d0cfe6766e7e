"""Python's garbage collection, less often: a full one looks at all of the hundreds of thousands of objects of torch."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 50_000
"""New objects between collections. With Python's default, 700, they take a sixth of importing torch and a tenth of a training
step of a small model."""

SERVED = 5_000
"""New objects between collections in a server. After 50,000 a collection takes up to a tenth of a second."""


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


@contextmanager
def collect_in_short_pauses() -> Iterator[None]:
    """Inside this context, garbage is collected after `SERVED` new objects, and what is there already is not looked at.

    For servers: nothing else runs while garbage is collected, so requests wait for it. What is loaded later, such as a model
    that replaces another, is collected as usual.
    """
    before = gc.get_threshold()
    if before[0] > SERVED:
        gc.set_threshold(SERVED, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
