"""Errors of calls to the API."""

from __future__ import annotations


class ApiError(Exception):
    """The API returned an error; ``reason`` is that of ``metav1.Status``.

    ``retry_after`` is in seconds, ``None`` if the response has none.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Return the API's message, and the status."""
        return f"{self.message} ({self.status} {self.reason})"


class NotFound(ApiError):
    """The object does not exist (404)."""


class AlreadyExists(ApiError):
    """The object already exists (409 ``AlreadyExists``)."""


class Conflict(ApiError):
    """The object has changed in the meantime (409 ``Conflict``)."""


class Expired(ApiError):
    """The requested resource version is too old (410): list again."""


class NotAllowed(ApiError):
    """The caller is not authenticated (401) or not authorized (403)."""


class ApiUnreachable(Exception):
    """The API did not respond; the text contains the request, the address and the error."""


class WatchInterrupted(ApiUnreachable):
    """The connection of a watch was lost after its response had begun."""
