"""`results.png`, the picture of a training, takes as long as the rest of a small one. Tests leave it out unless they ask."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weft.training import result_files

REAL = result_files.draw_results


@contextmanager
def _drawn_by(draw: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_files, "draw_results", draw)
        yield


def left_out() -> Any:
    """Inside this context, trainings draw nothing."""
    return _drawn_by(lambda *_: None)


def drawn() -> Any:
    """Inside this context, trainings draw as they do outside of tests."""
    return _drawn_by(REAL)
