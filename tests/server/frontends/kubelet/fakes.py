"""Requests without connections."""

from __future__ import annotations

from OpenSSL.crypto import X509
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.testing import StringTransport
from zope.interface import implementer

from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange
from yurttunnel.server.frontends.kubelet.request import InterceptedRequest


def head(method="GET", target="/metrics", host="edge-1:10250", **fields):
    """Return the head of a request; underscores in names of fields stand for hyphens."""
    pairs = [] if host is None else [(b"Host", host.encode())]
    for name, values in fields.items():
        values = [values] if isinstance(values, str) else values
        pairs += [(name.replace("_", "-").encode(), value.encode()) for value in values]
    return RequestHead(method.encode(), target.encode(), "1.1", pairs)


class SecureTransport(StringTransport):
    """A caller's transport, with or without a certificate."""

    certificate_reads = 0

    def __init__(self, certificate):
        super().__init__(peerAddress=IPv6Address("TCP", "2001:db8::9", 4242))
        self.certificate = certificate

    def getPeerCertificate(self):
        """Return the certificate."""
        self.certificate_reads += 1
        return self.certificate and X509.from_cryptography(self.certificate)


@implementer(IExchange)
class FakeExchange:
    """An exchange that the test ends, with the methods that middlewares use."""

    secure = True
    head_sent = False
    status = 0
    failure = ""
    bytes_sent = 0

    def __init__(self, request_head=None):
        self.head = request_head or head()
        self.transport = StringTransport(peerAddress=IPv4Address("TCP", "192.0.2.99", 4242))
        self.failures = []
        self._callbacks = []

    def on_end(self, callback):
        """Store ``callback``."""
        self._callbacks.append(callback)

    def fail(self, status, text):
        """Record the response, and end."""
        self.failures.append((status, text))
        self.failure = text
        self.end(status)

    def end(self, status, sent=0, error=None):
        """End with a response of ``status``."""
        self.status = status
        self.bytes_sent = sent
        for callback in self._callbacks:
            callback(error)


def request(request_head=None, request_id="r-1"):
    """Return a request."""
    return InterceptedRequest(FakeExchange(request_head), request_id)
