"""The parts that both APIs share: models, batcher, access control and timeouts."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.requests import Request

from weft.inference.predictor import Prediction
from weft.serve.batcher import Answer, Batcher
from weft.serve.metrics import Metrics
from weft.serve.models import Models
from weft.serve.queries import Ask, Explain
from weft.serve.refusal import Refusal
from weft.serve.settings import Settings

CLIENT_CLOSED = 499
"""The usual status in logs for a request whose client disconnected before the answer."""

CLIENTS = 10_000
"""Number of clients whose request rate is tracked."""


class AccessControl:
    """Checks API keys and limits the request rate.

    Each key, or each client address if there are no keys, has a token bucket of `rate` requests that refills in a minute.
    """

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
        """Whether this is one of the keys. Compares with all of them, so that the time taken reveals nothing."""
        given = (key or "").encode("utf-8", "replace")
        return sum(hmac.compare_digest(given, known.encode()) for known in self.keys) > 0

    def _take(self, client: str) -> None:
        now, per_second = time.monotonic(), self.rate / 60
        left, since = self._buckets.pop(client, (float(self.rate), now))
        left = min(float(self.rate), left + (now - since) * per_second)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            self.metrics.count("refused_rate", 1)
            raise Refusal(
                429, f"Slowdown: at most {self.rate} requests per minute", retry_after=int((1 - left) / per_second) + 1
            )


class Service:
    """The shared state of a server: settings, models, metrics, batcher and access control."""

    def __init__(self, settings: Settings, models: Models) -> None:
        self.settings, self.models, self.metrics = settings, models, Metrics()
        self.batcher = Batcher(settings, self.metrics)
        self.access = AccessControl(settings, self.metrics)
        self.metrics.gauges["queue_length"] = ("texts waiting in the queue", lambda: self.batcher.length)
        self.metrics.gauges["models"] = ("number of models", lambda: len(self.models.served))
        self._reloading = asyncio.Lock()

    def admit(self, request: Request, key: Any = None) -> None:
        """Refuses a request without a valid key or beyond the rate limit. A key may also come in a header."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        header = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
        self.access.admit(key if isinstance(key, str) and key else header, request.client.host if request.client else "")

    def check(self, texts: Sequence[str]) -> None:
        """Refuses too many texts, too many characters, and invalid Unicode."""
        settings, characters = self.settings, sum(map(len, texts))
        if len(texts) > settings.texts:
            raise Refusal(400, f"Invalid request: {len(texts)} texts exceed the limit of {settings.texts}")
        if characters > settings.characters:
            raise Refusal(400, f"Invalid request: request ({characters}) exceeds text limit ({settings.characters})")
        for text in texts:
            check_unicode(text)

    async def answer(self, request: Request, asks: Sequence[Ask]) -> list[Prediction]:
        """Translates each query. Cancels the queries if the client disconnects or the time is up."""
        note(request, texts=len(asks), characters=sum(len(ask.text) for ask in asks))
        if self.settings.log_text:
            note(request, text=[ask.text for ask in asks])
        if asks:
            note(request, model=asks[0].model.name)
        answers = await self._with_timeout(request, self.batcher.answer(asks))
        return [each for each in answers if isinstance(each, Prediction)]

    async def explain(self, request: Request, ask: Explain) -> str:
        """Returns the page that explains a translation, with the same timeout."""
        note(request, characters=len(ask.text), model=ask.model.name)
        (page,) = await self._with_timeout(request, self.batcher.answer([ask]))
        return str(page)

    async def _with_timeout(self, request: Request, work: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
        try:
            done, _ = await asyncio.wait({task, gone}, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if gone in done:
                raise Refusal(CLIENT_CLOSED, "the client disconnected")
            raise Refusal(504, f"no answer within {self.settings.timeout:g} s; send fewer texts, or try again later")
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()

    async def reload(self) -> None:
        """Reloads the models while the old ones keep answering. Batches in progress finish with the old models."""
        async with self._reloading:
            await asyncio.to_thread(self.models.reload)
            self.batcher.forget()
            self.metrics.count("reloads", 1)


def note(request: Request, **facts: Any) -> None:
    """Adds fields to the request's line in the log."""
    request.scope.setdefault("weft.log", {}).update(facts)


def check_unicode(text: str) -> None:
    """Refuses unpaired surrogates, which JSON allows but Unicode text does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refusal(400, "Invalid request: the text is not valid Unicode") from None


async def _disconnect(request: Request) -> None:
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
