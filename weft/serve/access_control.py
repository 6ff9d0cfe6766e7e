"""Access control: API keys, of which only hashes are kept, request rates, and which web sites may use the server."""

import hmac
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from weft.data.text_lines import check_file, read_lines
from weft.errors import ConfigError
from weft.serve.bounded_cache import BoundedCache
from weft.serve.prometheus import Metrics
from weft.serve.settings import LOOPBACK, Settings

ENVIRONMENT = "WEFT_API_KEYS"
"""Environment variable with keys, separated by commas."""

CLIENTS = 10_000
"""Number of clients whose request rate is tracked."""

GUESSES = 10
"""Wrong keys that an address may send per minute."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing and reach no model. A browser keeps the answer from other sites."""


@dataclass(frozen=True)
class Key:
    """An API key, of which only the hash is kept.

    rate: its own requests per minute; None: as for all · admin: whether it may reload the models.
    """

    digest: bytes
    name: str
    rate: int | None = None
    admin: bool = False


def parse_key(line: str, number: int, where: str = "") -> Key | None:
    """A line of a key file: the key, then optionally `name=…`, `rate=…` and `admin`. Blank lines and comments (#) give None."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    secret, *rest = text.partition(" #")[0].split()
    options = dict(word.partition("=")[::2] for word in rest)
    if unknown := set(options) - {"name", "rate", "admin"}:
        raise ConfigError(f"{where}line {number}: unknown word {min(unknown)!r}; write KEY, then name=…, rate=… or admin")
    rate = options.get("rate")
    if rate is not None and not (rate.isdecimal() and len(rate) < 10):
        raise ConfigError(f"{where}line {number}: rate is a number of requests per minute, not {rate!r}")
    name = options.get("name") or f"key {number}"
    return Key(_digest(secret), name, None if rate is None else int(rate), "admin" in options)


def read_keys(secrets: Iterable[str], file: str, admin: Iterable[str] = ()) -> tuple[Key, ...]:
    """All keys: of the command line, the environment and a file. Raises ConfigError for a file without keys."""
    own = [*secrets, *(each for each in os.environ.get(ENVIRONMENT, "").split(",") if each.strip())]
    keys = [Key(_digest(each.strip()), f"option {k}") for k, each in enumerate(own, start=1) if each.strip()]
    keys += [Key(_digest(each.strip()), f"admin {k}", admin=True) for k, each in enumerate(admin, start=1)]
    if file:
        lines = enumerate(read_lines(check_file(Path(file))), start=1)
        listed = [key for number, line in lines if (key := parse_key(line, number, f"{file}, ")) is not None]
        if not listed:
            raise ConfigError(f"{file}: there is no key in the file; leave --api-keys out to serve everyone")
        keys += listed
    return tuple(keys)


def _digest(secret: str, errors: str = "strict") -> bytes:
    return sha256(secret.encode("utf-8", errors)).digest()


def find_key(keys: Iterable[Key], secret: str) -> Key | None:
    """The key with this secret. It is compared with all keys, so that the time taken reveals nothing."""
    digest, match = _digest(secret, "replace"), None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            match = key
    return match


class TokenBuckets:
    """Token buckets, one per client, that refill in a minute."""

    def __init__(self) -> None:
        self._left: BoundedCache[str, tuple[float, float]] = BoundedCache(CLIENTS)

    def take(self, client: str, rate: int, amount: float = 1.0) -> int:
        """Takes `amount` tokens; returns 0, or the seconds to wait if fewer than one is left."""
        now, per_second = time.monotonic(), rate / 60
        left, since = self._left.get(client, (float(rate), now))
        left = min(float(rate), left + (now - since) * per_second)
        allowed = left >= 1
        self._left[client] = (left - amount if allowed else left, now)
        return 0 if allowed else int((1 - left) / per_second) + 1


class AccessControl:
    """Checks API keys and limits the request rate: of each key, or of each address if there are no keys."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self._rates, self._guesses = TokenBuckets(), TokenBuckets()
        self.reload()

    def reload(self) -> None:
        """Reads the keys again."""
        settings = self.settings
        self.keys: tuple[Key, ...] = read_keys(sorted(settings.keys), settings.key_file, sorted(settings.admin_keys))

    def admit(self, request: Request, field: Any = None, *, admin: bool = False) -> None:
        """Refuses a request without a valid key or beyond the rate limit.

        The key comes in a field of the body, which is `field`, in the query, or in a header.
        """
        address = request.client.host if request.client else ""
        key = self._key(_secret(request, field), address) if self.keys else None
        if admin and (key is None or not (key.admin or not any(each.admin for each in self.keys))):
            raise HTTPException(403, "this needs an admin key")
        if key is not None:
            request.scope["weft.key"] = key.name
        rate = self.settings.rate if key is None or key.rate is None else key.rate
        if rate and (wait := self._rates.take(address if key is None else f"key {key.name}", rate)):
            self.metrics.count(refused_rate=1)
            raise HTTPException(429, f"Slowdown: at most {rate} requests per minute", {"Retry-After": str(wait)})

    def _key(self, secret: str, address: str) -> Key:
        if not secret:
            self.metrics.count(refused_key=1)
            raise HTTPException(400, "Please send an API key with your request")  # the status of LibreTranslate
        if wait := self._guesses.take(address, GUESSES, 0.0):
            self.metrics.count(refused_rate=1)
            raise HTTPException(429, "too many wrong API keys; try again later", {"Retry-After": str(wait)})
        key = find_key(self.keys, secret)
        if key is None:
            self._guesses.take(address, GUESSES)
            self.metrics.count(refused_key=1)
            raise HTTPException(403, "Invalid API key")
        return key


def _secret(request: Request, field: Any) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    header = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
    return field if isinstance(field, str) and field else header or request.query_params.get("api_key") or ""


def check_site(settings: Settings, method: str, headers: dict[bytes, bytes]) -> None:
    """Refuses foreign names of this server (DNS rebinding) and requests that other web sites make a browser send."""
    host = headers.get(b"host", b"").decode("latin-1").strip()
    names = settings.hosts or (() if settings.local else ("*",))
    # The health check of a container asks as localhost, which no foreign page can make a browser send.
    if "*" not in names and _name(host) not in (*LOOPBACK, *names):
        raise HTTPException(400, f"this server does not answer as {_name(host)!r}; start it with --allowed-host {_name(host)}")
    origin = headers.get(b"origin", b"").decode("latin-1").strip()
    if not origin or method in SAFE_METHODS or origin in settings.origins or "*" in settings.origins:
        return
    site = urlsplit(origin)
    if site.netloc != host and site.hostname not in settings.hosts:
        raise HTTPException(403, "pages of other web sites may not use this server; allow this one with --cors")


def _name(host: str) -> str:
    """Returns the name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
