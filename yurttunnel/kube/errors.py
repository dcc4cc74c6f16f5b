"""What can go wrong when the API is asked."""

from __future__ import annotations


class ApiError(Exception):
    """The API has answered with an error; ``reason`` is that of ``metav1.Status``.

    ``retry_after`` is in seconds, ``None`` when the answer does not say.
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
        """Return the API's sentence, and the status."""
        return f"{self.message} ({self.status} {self.reason})"


class NotFound(ApiError):
    """There is no such object (404)."""


class AlreadyExists(ApiError):
    """There is such an object already (409 ``AlreadyExists``)."""


class Conflict(ApiError):
    """The object has changed in the meantime (409 ``Conflict``)."""


class Expired(ApiError):
    """The version asked for is too old (410): list again."""


class NotAllowed(ApiError):
    """The caller is not known (401) or may not do this (403)."""


class ApiUnreachable(Exception):
    """The API did not answer; the text says what was asked, where, and what went wrong."""


class WatchCut(ApiUnreachable):
    """The API has answered a watch, and the connection was lost before its end."""
