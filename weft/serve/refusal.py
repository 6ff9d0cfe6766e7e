"""Errors that the server answers a request with."""

from __future__ import annotations

from weft.errors import WeftError


class Refusal(WeftError):
    """An HTTP error: a status, a message, and optionally the seconds after which to try again (Retry-After)."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
