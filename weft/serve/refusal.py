"""What a client is told when it gets no translation."""

from __future__ import annotations

from weft.errors import WeftError


class Refusal(WeftError):
    """An answer other than a translation: an HTTP status, a sentence that says why, and where it helps, when to come back."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
