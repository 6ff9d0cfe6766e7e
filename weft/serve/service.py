"""The state that all APIs of a server share: models, batcher, access control, translated files, metrics and health."""

import asyncio
import re
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from weft.decoding.predictor import Prediction
from weft.errors import WeftError
from weft.runs.translation_confidence import question, with_quality
from weft.serve.access_control import AccessControl
from weft.serve.middleware import Log
from weft.serve.prometheus import Metrics
from weft.serve.request_batcher import Batcher
from weft.serve.request_documents import FileStore, RequestDocuments
from weft.serve.served_model import ServedModel, TranslationQuery
from weft.serve.served_models import Models
from weft.serve.server_processes import files_folder
from weft.serve.settings import Settings
from weft.worker_processes import LINUX

SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")

MAX_PREFIX = 1_000
"""Characters of a forced prefix. Its tokens take steps of the search that bring nothing."""

RECENT = 5.0
"""Seconds for which an answer of a model counts as a sign of health."""

STUCK = 60.0
"""Seconds after which a batch that is still running counts as stuck."""

WITHIN = 10.0
"""Seconds in which a model must answer the test text."""


class Health:
    """Tests every model that has not answered lately with a short text, through the queue like any other."""

    def __init__(self, batcher: Batcher, models: Models) -> None:
        self.batcher, self.models = batcher, models
        self._testing = asyncio.Lock()
        self._last: tuple[float, list[str]] = (float("-inf"), [])

    async def problems(self) -> list[str]:
        """The problems of the server; empty if it is healthy. Tests run one at a time, and their result holds for a second."""
        busy = self.batcher.busy_since
        if not self.batcher.alive:
            return ["the model's thread is not running"]
        if busy is not None and time.monotonic() - busy > STUCK:
            return [f"the model has been busy with one batch for {time.monotonic() - busy:.0f} s"]
        async with self._testing:
            if time.monotonic() - self._last[0] > 1:
                problems = await asyncio.gather(*map(self._problem, self.models.served))
                self._last = (time.monotonic(), [each for each in problems if each])
            return self._last[1]

    async def _problem(self, model: ServedModel) -> str:
        if time.monotonic() - self.batcher.worked.get(model.name, float("-inf")) < RECENT:
            return ""
        try:
            await asyncio.wait_for(
                self.batcher.answer([TranslationQuery(model, model.sample("a b"))], "health", cached=False), WITHIN
            )
        except (WeftError, HTTPException):
            return ""  # it does not read text, or the queue is full, which is no fault of the model
        except TimeoutError:
            return f"{model.name}: no answer within {WITHIN:g} s"
        except Exception as error:
            return f"{model.name}: {type(error).__name__}"
        return ""


class Service:
    """The shared state of a server: settings, models, metrics, batcher and access control."""

    def __init__(self, settings: Settings, models: Models, log: Log = lambda facts: None) -> None:
        self.settings, self.models, self.metrics = settings, models, Metrics()
        # A forked process cannot use a GPU.
        forks = LINUX and all(model.translator.model.device.type == "cpu" for model in models.served)
        self.batcher = Batcher(settings, self.metrics, log, forks=forks)
        self.readers = self.batcher.readers
        self.health = Health(self.batcher, models)
        self.access = AccessControl(settings, self.metrics)
        self.documents = RequestDocuments(self.readers, settings.queue)
        self.files = FileStore(files_folder())
        self.metrics.add_gauge("queue_length", "sentences waiting in the queue", lambda: self.batcher.length)
        self.metrics.add_gauge("cache_bytes", "memory of cached translations", lambda: self.batcher.cache.used)
        self.metrics.add_gauge("models", "models in memory, in all processes", lambda: len(self.models.served))
        self._reloading = asyncio.Lock()

    def admit(self, request: Request, key: Any = None, *, admin: bool = False) -> None:
        """Refuses a request without a valid key or beyond the rate limit; see `AccessControl`."""
        self.access.admit(request, key, admin=admin)
        note(request, key=request.scope.get("weft.key"))

    def check(self, texts: Sequence[str], others: Sequence[str] = (), prefixes: Sequence[str] = ()) -> None:
        """Refuses too many texts, texts and prefixes with too many characters, and invalid Unicode. `others`: terms."""
        settings, others = self.settings, (*others, *prefixes)
        longest = max(map(len, (*texts, *others)), default=0)
        if any(len(prefix) > MAX_PREFIX for prefix in prefixes):
            raise HTTPException(400, f"Invalid request: a prefix has more than {MAX_PREFIX:,} characters")
        if len(texts) > settings.texts:
            raise HTTPException(400, f"Invalid request: {len(texts)} texts exceed the limit of {settings.texts}")
        if longest > settings.characters:
            raise HTTPException(400, f"Invalid request: request ({longest}) exceeds text limit ({settings.characters})")
        if any(SURROGATE.search(text) for text in (*texts, *others)):
            raise HTTPException(400, "Invalid request: the text is not valid Unicode")  # JSON allows unpaired surrogates

    async def answer(self, request: Request, queries: Sequence[TranslationQuery], cells: int | None = None) -> list[Prediction]:
        """Answers each query. cells: the most attention weights that the queries may compute."""
        note(request, texts=len(queries), characters=sum(len(query.text) for query in queries))
        if self.settings.log_text:
            note(request, text=[query.text for query in queries])
        if queries:
            note(request, model=queries[0].model.name)
        return await self.batcher.answer(queries, client_of(request), cells)

    async def judged(
        self, request: Request, model: ServedModel, texts: Sequence[str], answers: Sequence[Prediction]
    ) -> list[Prediction]:
        """The answers with their estimated quality, if the model has an estimator. It is asked like any other model."""
        if model.estimator is None:
            return list(answers)
        asked = {place: question(text, each) for place, (text, each) in enumerate(zip(texts, answers, strict=True))}
        queries = {place: TranslationQuery(model.estimator, text) for place, text in asked.items() if text}
        found = dict(zip(queries, await self.batcher.answer([*queries.values()], client_of(request)), strict=True))
        return [with_quality(each, found[place]) if place in found else each for place, each in enumerate(answers)]

    async def attend(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Does the work of a request. Cancels it if the client disconnects or the time is up."""
        task = asyncio.ensure_future(work)
        disconnect = asyncio.ensure_future(_disconnect(request))
        try:
            done, _ = await asyncio.wait({task, disconnect}, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if disconnect in done:
                raise HTTPException(499, "the client disconnected")  # the usual status in logs for this
            raise HTTPException(504, f"no answer within {self.settings.timeout:g} s; send fewer texts, or try again later")
        finally:
            disconnect.cancel()
            if not task.done():
                task.cancel()

    async def reload(self) -> None:
        """Reloads the models while the old ones keep answering. Batches in progress finish with the old models."""
        async with self._reloading:
            try:
                self.access.reload()
                await asyncio.to_thread(self.models.reload, self.batcher.warm_up)
            except Exception:
                self.metrics.count(failed_reloads=1)
                raise
            self.batcher.clear_cache()
            self.readers.restart()
            self.metrics.count(reloads=1)


def client_of(request: Request) -> str:
    """The client of a request: the name of its key, else its address. Of an IPv6 address only the network counts."""
    address = request.client.host if request.client else ""
    network = ":".join(address.split(":")[:4]) if ":" in address else address
    return str(request.scope.get("weft.key") or network)


def note(request: Request, **facts: Any) -> None:
    """Adds fields to the request's line in the log."""
    request.scope.setdefault("weft.log", {}).update(facts)


async def _disconnect(request: Request) -> None:
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
