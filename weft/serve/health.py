"""Health of the server: whether its models answer."""

from __future__ import annotations

import asyncio
import time

from starlette.exceptions import HTTPException

from weft.errors import WeftError
from weft.serve.request_batcher import Batcher
from weft.serve.served_models import Models, ServedModel, TranslationQuery

RECENT = 5.0
"""Seconds for which an answer of a model counts as a sign of health."""

STUCK = 60.0
"""Seconds after which a batch that is still running counts as stuck."""

WITHIN = 10.0
"""Seconds in which a model must answer the test text."""


class ProbeQuery(TranslationQuery):
    """A short text that tests a model. Its answer is not cached."""

    @property
    def cached(self) -> bool:
        return False


class Health:
    """Tests every model that has not answered lately with a short text, through the queue like any other."""

    def __init__(self, batcher: Batcher, models: Models) -> None:
        self.batcher, self.models = batcher, models
        self._testing = asyncio.Lock()
        self._last: tuple[float, list[str]] = (float("-inf"), [])

    async def problems(self) -> list[str]:
        """What is wrong; nothing if all is well. Tests run one at a time, and their result holds for a second."""
        busy = self.batcher.busy_since
        if not self.batcher.alive:
            return ["the model's thread is not running"]
        if busy is not None and time.monotonic() - busy > STUCK:
            return [f"the model has been busy with one batch for {time.monotonic() - busy:.0f} s"]
        async with self._testing:
            if time.monotonic() - self._last[0] > 1:
                found = await asyncio.gather(*map(self._problem, self.models.served))
                self._last = (time.monotonic(), [each for each in found if each])
            return self._last[1]

    async def _problem(self, model: ServedModel) -> str:
        if time.monotonic() - self.batcher.worked.get(model.name, float("-inf")) < RECENT:
            return ""
        try:
            await asyncio.wait_for(self.batcher.answer([ProbeQuery(model, "a b")], "health"), WITHIN)
        except (WeftError, HTTPException):
            return ""  # it does not read text, or the queue is full, which is no fault of the model
        except TimeoutError:
            return f"{model.name}: no answer within {WITHIN:g} s"
        except Exception as error:
            return f"{model.name}: {type(error).__name__}"
        return ""
