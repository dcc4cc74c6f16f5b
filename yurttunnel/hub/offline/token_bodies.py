"""The kubelet's requests about tokens, in JSON or in Kubernetes protobuf.

The field numbers are those of generated.proto of k8s.io/api, authentication/v1 and core/v1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from yurttunnel.hub.media.json_text import checked
from yurttunnel.hub.media.protobuf_objects import open_envelope
from yurttunnel.hub.request.accept import encoding_of
from yurttunnel.kube.protobuf_fields import fields, tag, text


class TokenReview(NamedTuple):
    """A request for the owner of a token."""

    token: str
    audiences: Sequence[str]


class TokenRequest(NamedTuple):
    """A request for a service account's token; ``pod`` is the pod to bind it to, if any."""

    audiences: Sequence[str]
    pod: str


def token_review(content_type: bytes, body: bytes) -> TokenReview:
    """Parse a TokenReview; raise :class:`BadBody`."""
    if encoding_of(content_type) != "protobuf":
        spec = _spec(body)
        return TokenReview(str(spec.get("token") or ""), _texts(spec.get("audiences")))
    message = _spec_message(body)
    token = _text_fields(message, 1)
    return TokenReview(token[-1] if token else "", _text_fields(message, 2))


def token_request(content_type: bytes, body: bytes) -> TokenRequest:
    """Parse a TokenRequest; raise :class:`BadBody`."""
    if encoding_of(content_type) != "protobuf":
        spec = _spec(body)
        bound = spec.get("boundObjectRef")
        is_pod = isinstance(bound, dict) and bound.get("kind") == "Pod"
        pod = str(bound.get("name") or "") if isinstance(bound, dict) and is_pod else ""
        return TokenRequest(_texts(spec.get("audiences")), pod)
    message = _spec_message(body)
    pod = ""
    for bound_message in _messages(message, 3):
        if _text_fields(bound_message, 1) == ["Pod"]:
            pod = "".join(_text_fields(bound_message, 3)[-1:])
    return TokenRequest(_text_fields(message, 1), pod)


def service_account_of(form: str, pod: bytes) -> str:
    """Return the service account of a pod that is cached in ``form``; raise :class:`BadBody`."""
    if form == "json":
        return str(_spec(pod).get("serviceAccountName") or "")
    accounts = [name for spec in _messages(pod, 2) for name in _text_fields(spec, 8)]
    return accounts[-1] if accounts else ""


def _spec(body: bytes) -> dict[str, Any]:
    found = checked(msgspec.json.decode, body)
    spec = found.get("spec") if isinstance(found, dict) else None
    return spec if isinstance(spec, dict) else {}


def _texts(value: object) -> Sequence[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _spec_message(body: bytes) -> bytes:
    _, message = open_envelope(body)
    return b"".join(_messages(message, 2))


def _messages(message: bytes, number: int) -> list[bytes]:
    """Return the contents of a field, which may occur several times."""
    wanted = tag(number)
    found = fields(message, 0, len(message))
    return [message[begin:end] for field, begin, end in found if field == wanted]


def _text_fields(message: bytes, number: int) -> list[str]:
    return [text(content, 0, len(content)) for content in _messages(message, number)]
