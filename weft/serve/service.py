"""What every interface of the server uses: the models, the batcher, the doorkeeper, and answers that end in time."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.requests import Request

from weft.inference.predictor import Prediction
from weft.serve.ask import Ask, Explain
from weft.serve.batcher import Answer, Batcher
from weft.serve.metrics import Metrics
from weft.serve.models import Models
from weft.serve.refusal import Refusal
from weft.serve.settings import Settings

LEFT = 499
"""The status, usual in logs, of a request whose client did not wait for the answer."""

VISITORS = 10_000
"""Clients whose pace is remembered."""


class Door:
    """Lets a request in by its key, and not too often: each key, or each address where there are no keys, has a bucket of
    `rate` requests that fills up again within a minute."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.keys, self.rate, self.metrics = settings.keys, settings.rate, metrics
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, key: str | None, address: str) -> None:
        if self.keys and not self.knows(key):
            self.metrics.count("refused_key", 1)
            raise Refusal(403, "Invalid API key" if key else "Please send an API key with your request")
        if self.rate:
            self._take(key if self.keys and key else address)

    def knows(self, key: str | None) -> bool:
        """Whether this is one of the keys. All are compared, so the time it takes tells nothing."""
        given = (key or "").encode("utf-8", "replace")
        return sum(hmac.compare_digest(given, known.encode()) for known in self.keys) > 0

    def _take(self, visitor: str) -> None:
        now, a_second = time.monotonic(), self.rate / 60
        left, since = self._buckets.pop(visitor, (float(self.rate), now))
        left = min(float(self.rate), left + (now - since) * a_second)
        allowed = left >= 1
        self._buckets[visitor] = (left - 1 if allowed else left, now)
        while len(self._buckets) > VISITORS:
            self._buckets.popitem(last=False)
        if not allowed:
            self.metrics.count("refused_rate", 1)
            raise Refusal(429, f"Slowdown: at most {self.rate} requests a minute", retry_after=int((1 - left) / a_second) + 1)


class Service:
    """One server's parts, in one place."""

    def __init__(self, settings: Settings, models: Models) -> None:
        self.settings, self.models, self.metrics = settings, models, Metrics()
        self.batcher = Batcher(settings, self.metrics)
        self.door = Door(settings, self.metrics)
        self.metrics.gauges["queue_length"] = ("texts that wait for a model", lambda: self.batcher.length)
        self.metrics.gauges["models"] = ("models served", lambda: len(self.models.served))
        self._reloading = asyncio.Lock()

    def admit(self, request: Request, key: Any = None) -> None:
        """Refuses a request that may not come in. The key is the one given, or in a header."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        shown = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
        self.door.admit(key if isinstance(key, str) and key else shown, request.client.host if request.client else "")

    def check(self, texts: Sequence[str]) -> None:
        """Refuses texts that are too many, too long, or no text at all."""
        settings, characters = self.settings, sum(map(len, texts))
        if len(texts) > settings.texts:
            raise Refusal(400, f"Invalid request: {len(texts)} texts are more than the limit of {settings.texts}")
        if characters > settings.characters:
            raise Refusal(400, f"Invalid request: request ({characters}) exceeds text limit ({settings.characters})")
        for text in texts:
            check_unicode(text)

    async def answer(self, request: Request, asks: Sequence[Ask]) -> list[Prediction]:
        """A translation for each ask; ends when the client leaves or the time is up, and then takes the asks back."""
        note(request, texts=len(asks), characters=sum(len(ask.text) for ask in asks))
        if self.settings.log_text:
            note(request, text=[ask.text for ask in asks])
        if asks:
            note(request, model=asks[0].model.name)
        found = await self._in_time(request, self.batcher.answer(asks))
        return [each for each in found if isinstance(each, Prediction)]

    async def explain(self, request: Request, ask: Explain) -> str:
        """A page, within the same limits."""
        note(request, characters=len(ask.text), model=ask.model.name)
        (page,) = await self._in_time(request, self.batcher.answer([ask]))
        return str(page)

    async def _in_time(self, request: Request, work: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
        try:
            done, _ = await asyncio.wait({task, gone}, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if gone in done:
                raise Refusal(LEFT, "the client has left")
            raise Refusal(504, f"no answer within {self.settings.timeout:g} s; send less at once, or come back later")
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()

    async def reload(self) -> None:
        """Reads the models again while the old ones serve. What is being decoded ends with the old ones."""
        async with self._reloading:
            await asyncio.to_thread(self.models.reload)
            self.batcher.forget()
            self.metrics.count("reloads", 1)


def note(request: Request, **facts: Any) -> None:
    """Adds facts to the request's line in the log."""
    request.scope.setdefault("weft.log", {}).update(facts)


def check_unicode(text: str) -> None:
    """JSON can hold halves of characters, which are no text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refusal(400, "Invalid request: the text is not valid Unicode") from None


async def _gone(request: Request) -> None:
    """Ends when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
