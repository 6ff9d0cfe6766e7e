"""The base of all trackers: opens a package's run, sends records to it, and continues it when training is resumed."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from weft.config.registry import find_table, load
from weft.config.sections import Config
from weft.errors import ConfigError, RunError, without_secrets
from weft.file_access import MALFORMED, replace_file
from weft.training.log import Sink
from weft.training.log_text import Record
from weft.version import install

STATE = "trackers.json"
"""File of a run: for each tracker, its name for the run, and the last step of each event that it has received."""

PROJECT = "weft"
"""The project of all runs, unless an environment variable of the tracker names another one."""


class Tracker(Sink):
    """A sink that sends training and validation records to a package.

    A resumed run repeats steps with the same values, so those that the tracker has received are not sent again. If sending
    fails, training goes on without the tracker.

    package: its name, also that of the extra · module: the imported package
    """

    package: ClassVar[str]

    def __init__(self, run: Path, config: Config) -> None:
        try:
            self.module: Any = import_module(self.package)
        except ImportError as error:
            raise ConfigError(
                f"train.trackers: {self.package} needs the package {error.name}: {install(self.package)}; or remove it"
            ) from None
        self.run, self.config = run, config
        self.sent: dict[str, int] = {}
        self.id, self.works = "", True

    @abstractmethod
    def open(self, settings: dict[str, Any]) -> str:
        """Opens the run `self.id` or, if that is empty, a new one with these settings. Returns the tracker's name for it."""

    @abstractmethod
    def send(self, values: Mapping[str, float], step: int) -> None:
        """Adds values to the curves."""

    @abstractmethod
    def end(self) -> None:
        """Ends the run."""

    def begin(self, step: int) -> None:
        state = self._states().get(self.package, {}) if step else {}
        self.id, self.sent = state.get("id", ""), dict(state.get("sent", {}))
        try:
            self.id = self.open(self.config.model_dump())
        except Exception as error:  # packages of others raise anything
            raise RunError(
                f"train.trackers: {self.package} cannot be started: {error}. See its documentation for working offline, or "
                "train without it"
            ) from None
        self._save()

    def record(self, record: Record) -> None:
        event, step = record["event"], int(record["step"])
        if not self.works or event == "summary" or step <= self.sent.get(event, -1):
            return
        values = {
            f"{event}/{name}": value for name, value in record.items() if name not in ("event", "step") and value is not None
        }
        try:
            self.send(values, step)
        except Exception as error:
            self._give_up(error)
            return
        self.sent[event] = step
        self._save()

    def close(self) -> None:
        try:
            if self.works:
                self.end()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.works = False
        print(f"warning: {self.package} receives nothing more of this run: {without_secrets(str(error))}", file=sys.stderr)

    def _states(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.run / STATE).read_text("utf-8")))
        except (OSError, *MALFORMED):
            return {}

    def _save(self) -> None:
        states = {**self._states(), self.package: {"id": self.id, "sent": self.sent}}
        replace_file(self.run / STATE, json.dumps(states) + "\n")


def open_trackers(run: Path, config: Config) -> list[Sink]:
    """The trackers of train.trackers. Raises ConfigError if one is not installed."""
    known = find_table("weft.training:TRACKERS")
    return [load(known, name)(run, config) for name in dict.fromkeys(config.train.trackers)]


def flat(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Settings by their whole path, for trackers whose parameters are not nested."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        place = f"{path}.{key}" if path else key
        found |= flat(value, place) if isinstance(value, Mapping) and value else {place: value}
    return found
