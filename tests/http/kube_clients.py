"""How Kubernetes clients interpret a failed request, modeled on their source."""

from __future__ import annotations

from typing import Any

import yaml


def upgrade_failure(answer: bytes) -> str:
    """Return the message that a user sees when an upgrade gets this response.

    Like ``NewConnection`` of k8s.io/apimachinery pkg/util/httpstream/spdy/roundtripper.go, decode
    the body into a ``metav1.Status`` whatever its type is, with a decoder that accepts JSON and
    YAML, and a mapping without a kind. Only a body that cannot be decoded is shown as text.
    ``RoundTrip`` of k8s.io/client-go transport/websocket/roundtripper.go does the same with the
    first 1024 bytes of the body, which is all that gorilla/websocket reads (``NewClient`` of its
    client.go).
    """
    _, _, body = answer.partition(b"\r\n\r\n")
    text = body[:1024].decode("utf-8", "replace").strip()
    try:
        events: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        events = None
    if not isinstance(events, dict) or events.get("kind", "Status") != "Status":
        return f"unable to upgrade connection: {text}"
    return str(events.get("message", ""))
