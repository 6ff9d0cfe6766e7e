"""Graceful interruption: after Ctrl-C or SIGTERM the current step ends and a checkpoint is saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MESSAGE = b"\nstopping after this step and saving a checkpoint; interrupt again to stop immediately\n"

ECHO = 1.0
"""Seconds during which a second signal is ignored: torchrun forwards a Ctrl-C that its processes have already received."""


class Interrupts:
    """Inside the block the first signal only sets `requested`; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False
        self._first = 0.0
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        # Only the main thread can handle signals; in other threads the existing handlers stay.
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if time.monotonic() - self._first < ECHO:
                return
            raise KeyboardInterrupt
        self.requested, self._first = True, time.monotonic()
        os.write(2, MESSAGE)  # print is not safe in a signal handler: it may interrupt another print
