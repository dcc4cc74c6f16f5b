"""Failure responses to clients of the Kubernetes API."""

from __future__ import annotations

from yurttunnel.http.errors import RequestFailed, status_content
from yurttunnel.http.interfaces import IExchange


def send_failure(exchange: IExchange, failure: RequestFailed) -> None:
    """Respond with a ``metav1.Status``; abort a response that has begun."""
    if exchange.head_sent:
        exchange.abort()
    else:
        fields, body = status_content(failure)
        exchange.respond(failure.status, fields, body)
