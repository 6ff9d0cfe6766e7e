"""Models that run in another process (see `weft.serve.engine_process`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Hashable
from multiprocessing.connection import Connection

from weft.decoding.search_loop import Cancellation
from weft.errors import WeftError
from weft.inference.predictor import BatchItem
from weft.serve.engine_process import CancelledRows, EngineTask, Failed, UnknownModel
from weft.serve.served_models import BatchResult, ModelLocation, ModelVersion, Options

LOOK = 0.02
"""Seconds between two checks whether somebody still waits for the running rows."""

TRIES = 2
"""How often a task is sent: the model process may have ended and been started again."""


class Remote:
    """A connection per thread to the model process, which listens at `path`."""

    def __init__(self, path: str) -> None:
        self._path, self._own = path, threading.local()

    def open(self, place: ModelLocation) -> ModelVersion:
        """Opens the model in these run folders, or the present version of it. Raises WeftError if that fails."""
        found = self._ask(place)
        assert isinstance(found, ModelVersion)
        return found

    def run(
        self, model: ModelVersion, options: Options, group: Hashable, parts: list[BatchItem], control: Cancellation | None
    ) -> BatchResult:
        """Runs some parts. Raises an error if that fails."""
        task = EngineTask(model, options, group, parts)
        found = self._ask(task, control)
        if isinstance(found, UnknownModel):
            found = self._ask(EngineTask(self.open(model.place), options, group, parts), control)
        if not isinstance(found, BatchResult):
            raise RuntimeError("the model changed")
        return found

    def _ask(self, message: object, control: Cancellation | None = None) -> object:
        for _ in range(TRIES):
            try:
                link = self._link()
                link.send(message)
                while not link.poll(None if control is None else LOOK):
                    if control is not None and (gone := control.gone()):
                        link.send(CancelledRows(gone))
                found = link.recv()
            except (EOFError, OSError):
                self._own.link = None
                continue
            if isinstance(found, Failed):
                raise WeftError(found.message) if found.expected else RuntimeError(found.message)
            return found
        raise RuntimeError("the model process ended")

    def _link(self) -> Connection:
        if getattr(self._own, "link", None) is None:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(self._path)
            self._own.link = Connection(connected.detach())
        link: Connection = self._own.link
        return link
