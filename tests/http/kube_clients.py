"""What the clients of Kubernetes make of a failure, imitated from their source."""

from __future__ import annotations

from typing import Any

import yaml


def upgrade_failure(answer: bytes) -> str:
    """What a person reads when an upgrade is answered like this.

    As ``NewConnection`` of k8s.io/apimachinery pkg/util/httpstream/spdy/roundtripper.go: the body
    is decoded into a ``metav1.Status`` whatever its type is, by a decoder that takes JSON and YAML,
    and a mapping without a kind is one. Only what cannot be decoded is shown as text.
    ``RoundTrip`` of k8s.io/client-go transport/websocket/roundtripper.go does the same with the
    first 1024 bytes of the body, which is all that gorilla/websocket reads (``NewClient`` of its
    client.go).
    """
    _, _, body = answer.partition(b"\r\n\r\n")
    text = body[:1024].decode("utf-8", "replace").strip()
    try:
        told: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        told = None
    if not isinstance(told, dict) or told.get("kind", "Status") != "Status":
        return f"unable to upgrade connection: {text}"
    return str(told.get("message", ""))
