"""TLS in memory: one contract for Twisted's layer and for the one with large pieces.

The peer is OpenSSL itself, driven by the test, over a plain transport that only records calls.
"""

from __future__ import annotations

import contextlib
import gc

from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.certificates import ServerTLS
from tests.tunnel.direct.contract_tls import TLSContract
from tests.tunnel.direct.tls_links import Keys, Link
from yurttunnel.tunnel.direct import openssl
from yurttunnel.tunnel.direct.tls import RecordCounter


class TwistedTLSTests(TLSContract, SynchronousTestCase):
    """The contract with Twisted's layer."""

    transports = "twisted"


class DirectTLSTests(TLSContract, SynchronousTestCase):
    """The contract with the layer for large pieces."""

    transports = "direct"

    def test_an_abort_on_data_before_a_broken_record(self) -> None:
        """The abort is reported, not an error in data that was not to be read."""
        link = self.link().start()
        link.user.on["data"] = link.user.transport.abortConnection
        link.peer.sendall(b"good")
        link.layer.dataReceived(link.from_peer() + b"\x17\x03\x03\x00\x20" + b"x" * 32)
        link.close_plain()
        link.user.reason.trap(ConnectionAborted)
        self.assertEqual(link.plain.sent, [])

    def test_a_peer_that_changes_its_keys_without_end(self) -> None:
        """Endless key updates disconnect a peer, with hardly any data buffered."""
        for is_client in (False, True):
            for at_once in (1, 1000):
                keys = Keys(not is_client)
                link = self.link(is_client=is_client, keys=keys).start()
                for _ in range(1000 // at_once):
                    changes = b"".join(keys.change() for _ in range(at_once))
                    link.layer.dataReceived(changes + keys.seal(23, b"x"))
                self.assertTrue(link.plain.aborted)
                self.assertLessEqual(len(b"".join(link.plain.sent)), 4096)
                self.assertEqual(len(link.user.received), 152 if at_once == 1 else 0)
                link.close_plain()
                link.user.reason.trap(ConnectionLost)
                self.assertIn("updates keys", str(link.user.reason.value))

    def test_keys_that_are_changed_now_and_then(self) -> None:
        """Occasional key updates are no flood, whatever their total."""
        keys = Keys(True)
        link = self.link(keys=keys).start()
        for _ in range(1000):
            link.layer.dataReceived(keys.change())
            link.user.transport.write(b"x")
        link.layer.dataReceived(keys.seal(23, b"still here"))
        self.assertEqual(link.user.received, b"still here")
        link.lose(ConnectionLost())

    def test_what_comes_in_one_read_is_delivered_in_one_piece(self) -> None:
        """One read is delivered in one piece, with any number of records."""
        link = self.link().start()
        link.peer.sendall(b"x" * 100_000)
        link.peer.sendall(b"y")
        link.run()
        self.assertEqual(link.user.events, ["made", "shaken", "data"])

    def test_there_is_no_tls_state_before_there_is_a_first_record(self) -> None:
        """A silent or slow peer costs only a socket and an incomplete record."""
        made: list[object] = []
        creator = ServerTLS([b"a"])
        make = creator.serverConnectionForTLS
        self.patch(
            creator, "serverConnectionForTLS", lambda layer: made.append(layer) or make(layer)
        )
        link = Link("direct", creator=creator)
        link.layer.makeConnection(link.plain)
        with contextlib.suppress(SSL.WantReadError):
            link.peer.do_handshake()
        first = link.peer.bio_read(1 << 16)
        for position in range(len(first) - 1):
            link.layer.dataReceived(first[position : position + 1])
        self.assertEqual(([], []), (made, link.plain.sent))
        link.layer.dataReceived(first[-1:])
        self.assertEqual(1, len(made))
        link.run()
        self.assertIn("shaken", link.user.events)

    def test_a_first_record_that_cannot_be_is_refused_at_once(self) -> None:
        """A peer that does not speak TLS, or announces an overlong record, is rejected."""
        for first in (b"G", b"\x80", b"\x16\x03\x01\xff\xff"):
            link = Link("direct")
            link.layer.makeConnection(link.plain)
            link.layer.dataReceived(first + bytes(4))
            self.assertTrue(link.plain.disconnecting, first)

    def test_what_ends_before_the_first_record(self) -> None:
        """Either side may close before the first record."""
        link = Link("direct")
        link.layer.makeConnection(link.plain)
        link.layer.dataReceived(b"\x16\x03")
        link.layer.connectionLost(Failure(ConnectionDone()))
        link.user.reason.trap(ConnectionLost)
        link = Link("direct")
        link.layer.makeConnection(link.plain)
        link.layer.loseConnection()
        self.assertTrue(link.plain.aborted)

    def test_a_write_is_sent_in_one_piece_and_at_once(self) -> None:
        """One write is sent in one piece and at once, in any number of records."""
        link = self.link().start()
        link.user.transport.write(b"x" * 100_000)
        self.assertEqual(len(link.plain.sent), 1)

    def test_buffers_do_not_keep_the_size_of_the_handshake(self) -> None:
        """The BIOs are replaced after the handshake, if OpenSSL can be called directly."""
        for link in self.both():
            before = []
            link.user.on["shaken"] = lambda link=link, before=before: before.append(
                link.user.transport.getHandle()._into_ssl
            )
            link.start()
            now = [link.user.transport.getHandle()._into_ssl]
            self.assertEqual(openssl.private_library() is not None, before != now)

    def test_a_connection_that_is_lost_when_the_handshake_is_over(self) -> None:
        """The state that is freed then is not used any more."""
        for link in self.both():
            link.user.on["shaken"] = lambda link=link: link.lose(ConnectionDone())
            link.start()
            self.assertEqual(link.user.events, ["made", "shaken", "lost"])

    def test_a_lost_connection_is_part_of_no_cycle(self) -> None:
        """The user still has its transport, but the transport no longer has its user."""
        for link in self.both():
            link.start()
            link.lose(ConnectionDone())
            referents = gc.get_referents(link.user.transport, vars(link.user.transport))
            self.assertNotIn(link.user, referents)

    def test_early_data_goes_before_what_is_written_at_the_end_of_the_handshake(self) -> None:
        """Early data is sent before data written at the end of the handshake."""
        link = self.link(is_client=True)
        link.user.on["made"] = lambda: link.user.transport.write(b"1")
        link.user.on["shaken"] = lambda: link.user.transport.write(b"2")
        link.start()
        self.assertEqual(link.received, b"12")

    def test_a_handshake_with_a_peer_that_is_refused_is_never_over(self) -> None:
        """The user of a connection whose peer is rejected gets no ``handshakeCompleted``."""
        self.assertEqual(self.fail_verification().user.events, ["made", "lost"])

    def test_a_record_that_is_too_long_is_refused_at_once(self) -> None:
        """The rest of a record that is too long is not awaited."""
        link = self.link().start()
        link.layer.dataReceived(b"\x17\x03\x03\xff\xff")
        link.run()
        link.user.reason.trap(SSL.Error)


class PublicMethodsTLSTests(DirectTLSTests):
    """The contract with the same layer, using only public methods of pyOpenSSL."""

    def setUp(self) -> None:
        """Disable the private names of pyOpenSSL."""
        self.patch(openssl, "private_library", lambda: None)


class RecordCounterTests(SynchronousTestCase):
    """Counting of complete records."""

    @given(
        st.lists(st.integers(0, 40), max_size=8),
        st.lists(st.integers(0, 60), max_size=12),
    )
    def test_pieces_complete_the_records_that_end_in_them(self, lengths, cuts) -> None:
        """The result does not depend on how the bytes are split."""
        data = b"".join(b"\x17\x03\x03" + n.to_bytes(2, "big") + bytes(n) for n in lengths)
        ends = [sum(5 + n for n in lengths[: count + 1]) for count in range(len(lengths))]
        counter = RecordCounter()
        start = 0
        for cut in [*cuts, len(data)]:
            stop = min(len(data), start + cut)
            expected = sum(start < end <= stop for end in ends)
            self.assertEqual(counter.feed(data[start:stop]), expected)
            start = stop
