"""The addresses and interfaces of streams and requests."""

from __future__ import annotations

from twisted.internet.interfaces import IAddress
from zope.interface.verify import verifyObject

from tests.tunnel.sessions import SessionTestCase
from yurttunnel.tunnel.interfaces import IStreamRequest


class InterfaceTests(SessionTestCase):
    """The addresses and interfaces of streams and requests."""

    def test_addresses(self):
        """A stream's addresses contain the node and the target, and its request id at this end."""
        self.join()
        for address in (self.near.getPeer(), self.near.getHost()):
            self.assertTrue(verifyObject(IAddress, address))
        self.assertEqual("edge-1/192.0.2.80:80", repr(self.near.getPeer()))
        self.assertEqual("server/request", repr(self.near.getHost()))

    def test_address_of_ipv6_target(self):
        """An IPv6 target is written in brackets, as ``--forward`` spells it."""
        opened = []
        self.pair.acceptor.answer = lambda request: request.accept()
        self.pair.server.open_stream("fd00::1", 80, 1.0, "request").addCallback(opened.append)
        self.pair.pump()
        self.assertEqual("edge-1/[fd00::1]:80", repr(opened[0].getPeer()))

    def test_request(self):
        """A request provides its interface, and the values that the opener sent."""
        self.pair.dial(timeout=2.5, request_id="abc").addErrback(lambda failure: None)
        self.pair.pump()
        request = self.pair.acceptor.requests[0]
        self.assertTrue(verifyObject(IStreamRequest, request))
        self.assertEqual(
            ("192.0.2.80", 80, 2.5, "abc"),
            (request.host, request.port, request.timeout, request.request_id),
        )

    def test_text_is_refused(self):
        """Writing text instead of bytes raises TypeError, without further effects."""
        self.join()
        self.assertRaises(TypeError, self.near.write, "text")
        self.near.write(b"bytes")
        self.pair.pump()
        self.assertEqual(b"bytes", self.far_user.received)
