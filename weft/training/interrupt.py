"""Stopping on request: Ctrl-C and SIGTERM let the current step end, so that a checkpoint can be saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MESSAGE = b"\nstopping after this step and saving a checkpoint; once more to stop at once\n"


ECHO = 1.0
"""Seconds in which a second signal counts as the first: torchrun passes on a Ctrl-C that its processes have had already."""


class Interrupts:
    """Inside the block the first signal only sets `asked`; the second one stops at once, as usual."""

    def __init__(self) -> None:
        self.asked = False
        self._first = 0.0
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        # Python gives signals to the main thread alone; elsewhere they stay with whoever has them.
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            if time.monotonic() - self._first < ECHO:
                return
            raise KeyboardInterrupt
        self.asked, self._first = True, time.monotonic()
        os.write(2, MESSAGE)  # not print: a handler may interrupt another print
