"""How a failure of the hub is told to a client of the Kubernetes API."""

from __future__ import annotations

from yurttunnel.http.errors import RequestFailed, status_content
from yurttunnel.http.interfaces import IExchange


def tell(exchange: IExchange, failure: RequestFailed) -> None:
    """Answer with a ``metav1.Status``; an answer that has begun is broken off."""
    if exchange.head_sent:
        exchange.abort()
    else:
        fields, body = status_content(failure)
        exchange.respond(failure.status, fields, body)
