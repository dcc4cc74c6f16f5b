"""Callers, and the claims of tokens."""

from __future__ import annotations

import hashlib
import math

from twisted.trial.unittest import SynchronousTestCase

from tests.hub.request.tokens import jwt
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.callers import MAX_COMPONENT, caller_of, read_token
from yurttunnel.hub.request.requests import Caller


def caller(*fields, local=True):
    """Return the caller for header fields."""
    return caller_of(RequestHead(b"GET", b"/", "1.1", list(fields)), local)


class CallerTests(SynchronousTestCase):
    """Callers."""

    def component(self, agent):
        """Return the component for a User-Agent."""
        return caller((b"User-Agent", agent)).component

    def test_component(self):
        """It is the first word of User-Agent, in lower case and without its version."""
        for agent, component in {
            b"kubelet/v1.34.0 (linux/amd64) kubernetes/abc": "kubelet",
            b"CoreDNS/1.11 linux": "coredns",
            b"flanneld": "flanneld",
            b"my agent/1.0": "my",
            b"/v1": "",
            b"": "",
        }.items():
            self.assertEqual(component, self.component(agent), agent)
        self.assertEqual("", caller().component)

    def test_long_components(self):
        """A long component is truncated."""
        longest = "a" * MAX_COMPONENT
        found = self.component(longest.encode() + b"b" * 10_000)
        self.assertEqual(longest, found)
        self.assertIs(found, self.component(longest.encode() + b"bc"), "the rest is remembered")

    def test_token(self):
        """The bearer token is an attribute, and is not in the caller's ``repr``."""
        found = caller((b"Authorization", b"Bearer secret"), (b"User-Agent", b"a"), local=False)
        self.assertEqual(Caller("a", "secret", False), found)
        self.assertNotIn("secret", repr(found))

    def test_caching(self):
        """``Edge-Cache: true`` requests caching."""
        self.assertTrue(caller((b"Edge-Cache", b"True")).wants_caching)
        self.assertTrue(
            caller((b"edge-cache", b"true"), (b"Authorization", b"Bearer a")).wants_caching
        )
        for fields in ([], [(b"Edge-Cache", b"false")], [(b"Edge-Cache", b"")]):
            self.assertFalse(caller(*fields).wants_caching, fields)

    def test_other_credentials(self):
        """Other credentials are rejected, not ignored."""
        for value in (b"Basic YTpi", b"", b"Bearer", b"Bearer  a"):
            error = self.assertRaises(RequestFailed, caller, (b"Authorization", value))
            self.assertEqual(401, error.status, value)
        twice = [(b"Authorization", b"Bearer a")] * 2
        self.assertRaises(RequestFailed, caller, *twice)

    def test_tokens_of_web_sockets(self):
        """A token in a WebSocket subprotocol, as browsers send it, is detected."""
        offered = b"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0"
        error = self.assertRaises(RequestFailed, caller, (b"Sec-WebSocket-Protocol", offered))
        self.assertEqual(401, error.status)
        self.assertNotIn("c2VjcmV0", str(error))
        self.assertEqual("", caller((b"Sec-WebSocket-Protocol", b"v4.channel.k8s.io")).token)


class TokenTests(SynchronousTestCase):
    """The claims of tokens."""

    def test_digest(self):
        """A token is identified by its SHA-256."""
        self.assertEqual(hashlib.sha256(b"opaque").digest(), read_token("opaque").digest)

    def test_expiry(self):
        """The expiry of a JWT is its claim; other tokens have no known expiry."""
        self.assertEqual(1234.5, read_token(jwt({"exp": 1234.5})).expires)
        for end in ("soon", None, 10**400, math.nan, math.inf, -1):
            self.assertEqual(math.inf, read_token(jwt({"exp": end})).expires, end)
        for token in ("opaque", "a.b.c", "..", jwt(b"\xff"), jwt(b"[]"), jwt(b"[" * 5000)):
            self.assertEqual(math.inf, read_token(token).expires, token)
