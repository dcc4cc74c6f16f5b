"""Failures as the Kubernetes API tells them, in the words of kube-apiserver.

``kubectl`` prints the messages and programs look at the reasons, so both are those of
k8s.io/apimachinery (pkg/api/errors/errors.go).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(eq=False)
class ApiError(Exception):
    """A request that failed: everything that the ``metav1.Status`` of the answer has."""

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
    """What is wrong with one field, as a ``metav1.StatusCause`` has it.

    ``reason`` is a ``CauseType`` such as FieldValueRequired.
    """

    reason: str
    message: str
    field: str

    def __str__(self) -> str:
        """Return the sentence."""
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    """Return the error that ``field`` is missing."""
    return Cause("FieldValueRequired", _joined("Required value", detail), field)


def invalid_value(field: str, value: object, detail: str) -> Cause:
    """Return the error that ``field`` cannot have ``value``."""
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def duplicate_value(field: str, value: object) -> Cause:
    """Return the error that ``value`` is there twice."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", field)


def forbidden_field(field: str, detail: str) -> Cause:
    """Return the error that ``field`` may not be set, or not be changed."""
    return Cause("FieldValueForbidden", _joined("Forbidden", detail), field)


def not_supported(field: str, value: object, supported: Sequence[str]) -> Cause:
    """Return the error that ``value`` is none of those that ``field`` can have."""
    values = ", ".join(f'"{one}"' for one in supported)
    message = f"Unsupported value: {_shown(value)}: supported values: {values}"
    return Cause("FieldValueNotSupported", message, field)


def not_found(group: str, plural: str, name: str) -> ApiError:
    """Return the error that there is no such object."""
    return _about(404, "NotFound", f"{_shown(name)} not found", group, plural, name)


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Return the error that the name is taken."""
    return _about(409, "AlreadyExists", f"{_shown(name)} already exists", group, plural, name)


def conflict(group: str, plural: str, name: str, text: str) -> ApiError:
    """Return the error that the object is not as the request supposes."""
    message = f"Operation cannot be fulfilled on {_qualified(group, plural)} {_shown(name)}: {text}"
    return ApiError(409, "Conflict", message, _details(group, plural, name))


def modified(group: str, plural: str, name: str) -> ApiError:
    """Return the error that somebody else has changed the object meanwhile."""
    return conflict(
        group,
        plural,
        name,
        "the object has been modified; please apply your changes to the latest version and try"
        " again",
    )


def forbidden(group: str, plural: str, name: str, text: str) -> ApiError:
    """Return the error that the request is understood and not allowed."""
    subject = f"{_shown(name)} is forbidden: {text}" if name else f"is forbidden: {text}"
    return _about(403, "Forbidden", subject, group, plural, name)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Return which fields of an object are wrong; here alone the *kind* is named."""
    texts = [str(cause) for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(group, kind, name)
    details["causes"] = [asdict(cause) for cause in causes]
    subject = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f"{subject} {_shown(name)} is invalid: {text}", details)


def unprocessable(group: str, plural: str, name: str, problem: str) -> ApiError:
    """Return the error that the request does not fit what is there, as a JSON patch's test."""
    message = "the server rejected our request due to an error in our request"
    details = _details(group, plural, name)
    details["causes"] = [{"reason": "UnexpectedServerResponse", "message": problem}]
    return ApiError(422, "Invalid", message, details)


def bad_request(message: str) -> ApiError:
    """Return the error that the request makes no sense."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """Return the error that it is not known who asks."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> ApiError:
    """Return the error that history does not reach back so far."""
    return ApiError(410, "Expired", message)


def method_not_allowed() -> ApiError:
    """Return the error that this cannot be done there."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})


def not_in_demonstration(text: str) -> ApiError:
    """Return the error that this is no whole cluster, what is missing, and what to do instead."""
    message = f"this is the demonstration API of yurttunnel: {text}"
    return ApiError(405, "MethodNotAllowed", message)


def not_acceptable(supported: Sequence[str]) -> ApiError:
    """Return the error that nothing of what the caller accepts can be had."""
    message = f"only the following media types are accepted: {', '.join(supported)}"
    return ApiError(406, "NotAcceptable", message)


def unsupported_media_type(supported: Sequence[str]) -> ApiError:
    """Return the error that the body is of no kind that can be read."""
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
    """Return the error that nothing is served there."""
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
