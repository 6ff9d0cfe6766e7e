"""The state that all APIs of a server share: models, batcher, access control, translated files, metrics and health."""

import asyncio
import re
import secrets
import time
from collections.abc import Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from weft.decoding.predictor import Prediction
from weft.decoding.worker_processes import LINUX
from weft.errors import DataError, WeftError
from weft.runs.translation_confidence import question, with_quality
from weft.serve.access_control import AccessControl
from weft.serve.fair_queue import SHORT
from weft.serve.middleware import Log
from weft.serve.prometheus import Metrics
from weft.serve.request_batcher import Batcher
from weft.serve.served_models import Models, ServedModel, TranslationQuery
from weft.serve.server_processes import shared_folder
from weft.serve.settings import Settings
from weft.tasks.translation.documents import SUFFIXES, fill_all, open_document
from weft.tasks.translation.documents.html import Segment
from weft.tasks.translation.segmenter import Translation

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

KEPT = 30 * 60.0
"""Seconds for which a translated file can be downloaded."""

TOTAL = 256 << 20
"""Bytes of all translated files; beyond that the oldest are deleted."""

REPEATED = 10
"""How many times as many segments as sentences a request may have: those that are repeated or have no letters are free."""

NAME = re.compile(r"[0-9a-f]{32}(\.[a-z]{3,5})")


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
        self.files = FileStore(shared_folder())
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

    async def segments(self, request: Request, texts: Sequence[str], form: str, language: str | None) -> list[list[Segment]]:
        """The segments of documents in this format. Long ones and markup are read by another process."""
        most = self.settings.queue
        if form == "text" and sum(map(len, texts)) <= SHORT:
            return read_documents(texts, form, language, most)
        return await self.readers.do(client_of(request), read_documents, texts, form, language, most)

    async def filled(
        self, request: Request, texts: Sequence[str], form: str, language: str | None, answers: Sequence[Any]
    ) -> list[Translation]:
        """The documents with the translations of their segments."""
        if form == "text" and sum(map(len, texts)) <= SHORT:
            return write_documents(texts, form, language, answers)
        return await self.readers.do(client_of(request), write_documents, texts, form, language, answers)

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


def read_documents(texts: Sequence[str], form: str, language: str | None, most: int) -> list[list[Segment]]:
    """The segments of documents, of which at most `most` may be different."""
    documents = [open_document(text, form, language).segments for text in texts]
    check_segments([segment for document in documents for segment in document], most)
    return documents


def check_segments(segments: Sequence[Segment], most: int) -> None:
    """Raises DataError if there are more segments than a request may have."""
    different = len({segment for segment in segments if is_translated(segment)})
    if different > most:
        raise DataError(f"the request has {different} sentences; this server takes at most {most} at once")
    if len(segments) > REPEATED * most:
        raise DataError(
            f"the request has {len(segments)} lines or segments; this server takes at most {REPEATED * most} at once"
        )


def is_translated(segment: Segment) -> bool:
    """Whether a segment has something to translate: letters, or markup that a model may move."""
    return bool(segment.marks) or any(map(str.isalpha, segment.text))


def write_documents(texts: Sequence[str], form: str, language: str | None, answers: Sequence[Translation]) -> list[Translation]:
    """The documents with the translations of their segments. They are read again, since a document may hold anything."""
    return fill_all([open_document(text, form, language) for text in texts], answers)


def suffixes() -> list[str]:
    """Suffixes of the files that this server translates."""
    return [*SUFFIXES, *([".docx"] if find_spec("docx") else [])]


def suffix_of(name: str) -> str:
    """The suffix of a file name. Raises an HTTP error if such files are not translated."""
    suffix = Path(name).suffix.lower()
    if suffix not in suffixes():
        raise HTTPException(400, f"Invalid request: file format not supported; send one of {', '.join(suffixes())}")
    return suffix


class FileStore:
    """Files under random names in a folder, which all processes of a server share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes, suffix: str) -> str:
        """Stores a file; returns its name."""
        name = f"{secrets.token_hex(16)}{suffix}"
        files = sorted(((path.stat(), path) for path in self._paths()), key=lambda each: each[0].st_mtime)
        total = len(content) + sum(status.st_size for status, _ in files)
        for status, path in files:
            if total > TOTAL or time.time() - status.st_mtime > KEPT:
                path.unlink(missing_ok=True)
                total -= status.st_size
        (self.folder / name).write_bytes(content)
        return name

    def get(self, name: str) -> bytes:
        """The file with this name. Raises an HTTP error if there is none."""
        path = self.folder / name
        if not NAME.fullmatch(name) or not path.is_file() or time.time() - path.stat().st_mtime > KEPT:
            raise HTTPException(404, "there is no such file; translated files are deleted after half an hour")
        return path.read_bytes()

    def _paths(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
