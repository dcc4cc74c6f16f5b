"""Errors of the Kubernetes API, with the messages of kube-apiserver.

``kubectl`` prints the messages and programs check the reasons, so both are those of
k8s.io/apimachinery (pkg/api/errors/errors.go).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(eq=False)
class ApiError(Exception):
    """A failed request, with all fields of the ``metav1.Status`` of the response."""

    status: int
    reason: str
    message: str
    details: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the message."""
        return self.message

    def as_status(self) -> dict[str, Any]:
        """Return the ``metav1.Status``."""
        answer: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        if self.details is not None:
            answer["details"] = self.details
        return answer


@dataclass(frozen=True, slots=True)
class Cause:
    """An error in one field, as in ``metav1.StatusCause``.

    ``reason`` is a ``CauseType`` such as FieldValueRequired.
    """

    reason: str
    message: str
    field: str

    def __str__(self) -> str:
        """Return the message."""
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    """Return the error that ``field`` is missing."""
    return Cause("FieldValueRequired", _joined("Required value", detail), field)


def invalid_value(field: str, value: object, detail: str) -> Cause:
    """Return the error that ``field`` cannot have ``value``."""
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def duplicate_value(field: str, value: object) -> Cause:
    """Return the error that ``value`` is a duplicate."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", field)


def forbidden_field(field: str, detail: str) -> Cause:
    """Return the error that ``field`` may not be set, or may not be changed."""
    return Cause("FieldValueForbidden", _joined("Forbidden", detail), field)


def not_supported(field: str, value: object, supported: Sequence[str]) -> Cause:
    """Return the error that ``value`` is not one of the supported values."""
    values = ", ".join(f'"{one}"' for one in supported)
    message = f"Unsupported value: {_shown(value)}: supported values: {values}"
    return Cause("FieldValueNotSupported", message, field)


def not_found(group: str, plural: str, name: str) -> ApiError:
    """Return the error that the object does not exist."""
    return _about(404, "NotFound", f"{_shown(name)} not found", group, plural, name)


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Return the error that the name is taken."""
    return _about(409, "AlreadyExists", f"{_shown(name)} already exists", group, plural, name)


def conflict(group: str, plural: str, name: str, text: str) -> ApiError:
    """Return the error that the object is in a state that conflicts with the request."""
    message = f"Operation cannot be fulfilled on {_qualified(group, plural)} {_shown(name)}: {text}"
    return ApiError(409, "Conflict", message, _details(group, plural, name))


def modified(group: str, plural: str, name: str) -> ApiError:
    """Return the error that the object was modified since the client read it."""
    return conflict(
        group,
        plural,
        name,
        "the object has been modified; please apply your changes to the latest version and try"
        " again",
    )


def forbidden(group: str, plural: str, name: str, text: str) -> ApiError:
    """Return the error that the request is not allowed."""
    subject = f"{_shown(name)} is forbidden: {text}" if name else f"is forbidden: {text}"
    return _about(403, "Forbidden", subject, group, plural, name)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Return the error that fields of an object are invalid; only this one names the *kind*."""
    texts = [str(cause) for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(group, kind, name)
    details["causes"] = [asdict(cause) for cause in causes]
    subject = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f"{subject} {_shown(name)} is invalid: {text}", details)


def unprocessable(group: str, plural: str, name: str, problem: str) -> ApiError:
    """Return the error that the request does not apply to the object, as a failed patch test."""
    message = "the server rejected our request due to an error in our request"
    details = _details(group, plural, name)
    details["causes"] = [{"reason": "UnexpectedServerResponse", "message": problem}]
    return ApiError(422, "Invalid", message, details)


def bad_request(message: str) -> ApiError:
    """Return the error that the request is malformed."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """Return the error that the user is not authenticated."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> ApiError:
    """Return the error that the requested version is older than the history."""
    return ApiError(410, "Expired", message)


def method_not_allowed() -> ApiError:
    """Return the error that the method is not supported there."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})


def not_in_demonstration(text: str) -> ApiError:
    """Return the error that the demonstration lacks a feature, and the alternative to it."""
    message = f"this is the demonstration API of yurttunnel: {text}"
    return ApiError(405, "MethodNotAllowed", message)


def not_acceptable(supported: Sequence[str]) -> ApiError:
    """Return the error that no media type that the client accepts is supported."""
    message = f"only the following media types are accepted: {', '.join(supported)}"
    return ApiError(406, "NotAcceptable", message)


def unsupported_media_type(supported: Sequence[str]) -> ApiError:
    """Return the error that the media type of the body is not supported."""
    message = (
        "the body of the request was in an unknown format - accepted media types include:"
        f" {', '.join(supported)}"
    )
    return ApiError(415, "UnsupportedMediaType", message)


def too_large(limit: int) -> ApiError:
    """Return the error that the body is longer than ``limit`` bytes."""
    message = f"Request entity too large: limit is {limit}"
    return ApiError(413, "RequestEntityTooLarge", message)


def no_such_path() -> ApiError:
    """Return the error that nothing is served at the path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def _about(status: int, reason: str, text: str, group: str, plural: str, name: str) -> ApiError:
    message = f"{_qualified(group, plural)} {text}"
    return ApiError(status, reason, message, _details(group, plural, name))


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    fields = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in fields.items() if value}


def _shown(value: object) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if value is None or isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)


def _joined(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text
