"""Models that run in another process (see `weft.serve.engine`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Hashable
from multiprocessing.connection import Connection

from weft.errors import WeftError
from weft.inference.predictor import Part
from weft.search.loop import Control
from weft.serve.engine import Failed, Gone, Task, Unknown
from weft.serve.models import Options, Place, Ran, Version

LOOK = 0.02
"""Seconds between two checks whether somebody still waits for the running rows."""

TRIES = 2
"""How often a task is sent: the model process may have ended and been started again."""


class Remote:
    """A connection per thread to the model process, which listens at `path`."""

    def __init__(self, path: str) -> None:
        self._path, self._own = path, threading.local()

    def open(self, place: Place) -> Version:
        """Opens the model in these run folders, or the present version of it. Raises WeftError if that fails."""
        found = self._ask(place)
        assert isinstance(found, Version)
        return found

    def run(self, model: Version, options: Options, group: Hashable, parts: list[Part], control: Control | None) -> Ran:
        """Runs some parts. Raises an error if that fails."""
        task = Task(model, options, group, parts)
        found = self._ask(task, control)
        if isinstance(found, Unknown):
            found = self._ask(Task(self.open(model.place), options, group, parts), control)
        if not isinstance(found, Ran):
            raise RuntimeError("the model changed")
        return found

    def _ask(self, message: object, control: Control | None = None) -> object:
        for _ in range(TRIES):
            try:
                link = self._link()
                link.send(message)
                while not link.poll(None if control is None else LOOK):
                    if control is not None and (gone := control.gone()):
                        link.send(Gone(gone))
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
