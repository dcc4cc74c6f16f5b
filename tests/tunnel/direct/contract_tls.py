"""The requirements of the users of TLS, for Twisted's layer and the one with large pieces."""

from __future__ import annotations

from collections.abc import Iterator

from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from tests.tunnel.certificates import HOST, ClientTLS
from tests.tunnel.direct.tls_links import MUCH, Keys, Link, creator_for, pieces_of
from tests.tunnel.direct.users import Push


class TLSContract:
    """The requirements of the users of TLS."""

    transports: str

    def link(self, **options) -> Link:
        """Create both ends."""
        return Link(self.transports, **options)

    def both(self) -> Iterator[Link]:
        """Yield a link for each side of the handshake."""
        for is_client in (False, True):
            yield self.link(is_client=is_client)

    def test_data_goes_both_ways(self) -> None:
        """Small and large amounts of data arrive."""
        for link in self.both():
            link.start()
            self.assertEqual(link.user.events, ["made", "shaken"])
            self.assertEqual(link.user.transport.negotiatedProtocol, b"a")
            link.user.transport.write(b"x")
            link.user.transport.write(b"")
            link.user.transport.writeSequence([MUCH, b"y"])
            link.run()
            self.assertTrue(link.received == b"x" + MUCH + b"y")
            link.peer.sendall(MUCH)
            link.run()
            self.assertTrue(link.user.received == MUCH)
            link.lose(ConnectionLost())

    def test_data_written_before_the_end_of_the_handshake_waits_for_it(self) -> None:
        """Data written before the end of the handshake is sent after it, without loss."""
        for link in self.both():
            link.user.on["made"] = lambda link=link: link.user.transport.write(MUCH)
            link.start()
            self.assertTrue(link.received == MUCH)
            link.lose(ConnectionLost())

    def test_data_that_comes_with_the_end_of_the_handshake(self) -> None:
        """Data that arrives with the end of the handshake is delivered after that."""
        link = self.link()
        link.layer.makeConnection(link.plain)
        link.to_peer()
        link.layer.dataReceived(link.from_peer())
        link.to_peer()
        link.peer.sendall(b"at once")
        link.layer.dataReceived(link.from_peer())
        self.assertEqual(link.user.events, ["made", "shaken", "data"])
        self.assertEqual(link.user.received, b"at once")
        link.lose(ConnectionLost())

    def test_records_may_come_in_any_pieces(self) -> None:
        """Records may be split into bytes, during the handshake and after it."""
        link = self.link()
        link.layer.makeConnection(link.plain)
        while "shaken" not in link.user.events:
            link.to_peer()
            for piece in pieces_of(link.from_peer()):
                link.layer.dataReceived(piece)
        link.peer.sendall(b"x" * 20000)
        link.peer.sendall(b"y")
        for piece in pieces_of(link.from_peer()):
            link.layer.dataReceived(piece)
        self.assertEqual(link.user.received, b"x" * 20000 + b"y")
        link.lose(ConnectionLost())

    def test_a_peer_that_changes_its_keys_is_answered(self) -> None:
        """A key update is answered with the next write or update; later data is delivered."""
        for is_client in (False, True):
            keys = Keys(not is_client)
            link = self.link(is_client=is_client, keys=keys).start()
            link.layer.dataReceived(keys.seal(23, b"one ") + keys.change() + keys.seal(23, b"two"))
            self.assertEqual(link.user.received, b"one two")
            link.layer.dataReceived(keys.change())
            link.clock.advance(0)
            self.assertEqual(27, len(b"".join(link.plain.sent)))
            link.user.transport.write(b"answer")
            link.run()
            self.assertEqual(link.received, b"answer")
            link.lose(ConnectionLost())

    # Ends

    def test_a_close_notifies_the_peer_and_waits(self) -> None:
        """The plain connection is closed after the peer's own ``close_notify``."""
        for link in self.both():
            link.start()
            link.user.transport.write(b"x")
            link.user.transport.loseConnection()
            link.user.transport.loseConnection()
            link.run()
            self.assertEqual((link.received, link.peer_ended), (b"x", True))
            self.assertFalse(link.is_over)
            link.peer.sendall(b"still talking")
            link.run()
            self.assertEqual(link.user.received, b"still talking")
            link.peer.shutdown()
            link.run()
            self.assertTrue(link.is_over)
            link.user.reason.trap(ConnectionDone)

    def test_the_peers_close_is_answered(self) -> None:
        """The peer's close is answered after all data; then the plain connection is closed."""
        for link in self.both():
            link.start()
            link.peer.sendall(b"bye")
            link.peer.shutdown()
            link.run()
            self.assertEqual(link.user.events, ["made", "shaken", "data", "lost"])
            link.user.reason.trap(ConnectionDone)
            link.to_peer()
            self.assertTrue(link.peer_ended)

    def test_an_end_without_close_notify_is_a_loss(self) -> None:
        """An end without ``close_notify`` is a lost connection, also during the handshake."""
        link = self.link()
        link.layer.makeConnection(link.plain)
        link.lose(ConnectionDone())
        link.user.reason.trap(ConnectionLost)
        for link in self.both():
            link.start()
            link.lose(ConnectionDone())
            link.user.reason.trap(ConnectionLost)

    def test_a_reset_is_reported_as_such(self) -> None:
        """Without a reason of TLS, that of the plain connection is reported."""
        link = self.link().start()
        link.lose(ConnectionAborted())
        self.assertTrue(link.user.reason.check(ConnectionAborted, ConnectionLost))

    def test_what_is_written_after_a_close_is_dropped(self) -> None:
        """Data written after a close is dropped without an error."""
        link = self.link().start()
        link.user.transport.loseConnection()
        link.user.transport.write(b"late")
        link.run()
        link.peer.shutdown()
        link.run()
        self.assertEqual(link.received, b"")
        link.user.reason.trap(ConnectionDone)
        link.user.transport.write(b"later")

    def test_a_close_before_the_handshake_aborts(self) -> None:
        """There is no ``close_notify`` before TLS is established."""
        link = self.link()
        link.layer.makeConnection(link.plain)
        link.user.transport.loseConnection()
        self.assertTrue(link.plain.aborted)
        link.close_plain()
        self.assertTrue(link.user.lost)

    def test_a_close_after_early_data_sends_it_first(self) -> None:
        """A close after data written before the end of the handshake waits for the handshake."""
        link = self.link(is_client=True)

        def write_and_close() -> None:
            link.user.transport.write(b"early")
            link.user.transport.loseConnection()

        link.user.on["made"] = write_and_close
        link.start()
        self.assertEqual((link.received, link.peer_ended), (b"early", True))
        self.assertFalse(link.plain.aborted)
        link.peer.shutdown()
        link.run()
        link.user.reason.trap(ConnectionDone)

    # Producers

    def test_a_producer_is_the_plain_transports(self) -> None:
        """A producer is paused and resumed by the plain transport."""
        link = self.link().start()
        push = Push()
        link.user.transport.registerProducer(push, True)
        with self.assertRaises((RuntimeError, AssertionError)):
            link.user.transport.registerProducer(Push(), True)
        link.plain.producer.pauseProducing()
        link.plain.producer.resumeProducing()
        self.assertEqual(push.events, ["pause", "resume"])
        link.user.transport.unregisterProducer()
        link.user.transport.unregisterProducer()
        self.assertIsNone(link.plain.producer)
        link.lose(ConnectionLost())
        self.assertEqual(push.events, ["pause", "resume"])

    def test_a_close_waits_for_a_producer(self) -> None:
        """A close waits until a registered producer has sent its remaining data."""
        link = self.link().start()
        link.user.transport.registerProducer(Push(), True)
        link.user.transport.loseConnection()
        link.user.transport.write(b"rest")
        link.run()
        self.assertEqual((link.received, link.peer_ended), (b"rest", False))
        link.user.transport.unregisterProducer()
        link.run()
        self.assertTrue(link.peer_ended)

    def test_a_producer_ends_with_its_connection(self) -> None:
        """The peer's close stops a producer, and is a clean end."""
        link = self.link().start()
        push = Push()
        link.user.transport.registerProducer(push, True)
        link.peer.shutdown()
        link.run()
        link.user.reason.trap(ConnectionDone)
        self.assertEqual(push.events, ["stop"])

    def test_reading_can_be_paused(self) -> None:
        """Pausing reading pauses the plain transport."""
        link = self.link().start()
        link.user.transport.pauseProducing()
        link.peer.sendall(b"x")
        link.run()
        self.assertEqual(link.user.received, b"")
        link.user.transport.resumeProducing()
        link.peer.sendall(b"y")
        link.run()
        self.assertTrue(link.user.received.endswith(b"y"))

    # Reentrance

    def test_an_abort_in_any_callback_is_the_last_thing_that_happens(self) -> None:
        """Nothing is delivered after it, even if it was received already."""
        for what, events in (
            ("made", ["made"]),
            ("shaken", ["made", "shaken"]),
            ("data", ["made", "shaken", "data"]),
        ):
            link = self.link()
            link.user.on[what] = lambda link=link: link.user.transport.abortConnection()
            link.layer.makeConnection(link.plain)
            for _ in range(2):
                link.to_peer()
                try:
                    link.peer.sendall(b"x")
                except SSL.Error:
                    pass  # The handshake is not complete.
                link.layer.dataReceived(link.from_peer() or b"\x17\x03\x03\x00\x01x")
            self.assertTrue(link.plain.aborted)
            link.close_plain()
            self.assertEqual(link.user.events, [*events, "lost"])

    def test_an_answer_and_a_close_on_data(self) -> None:
        """An answer and a close within ``dataReceived`` both reach the peer."""
        link = self.link().start()

        def answer() -> None:
            link.user.transport.write(b"answer")
            link.user.transport.loseConnection()

        link.user.on["data"] = answer
        link.peer.sendall(b"question")
        link.run()
        self.assertEqual((link.received, link.peer_ended), (b"answer", True))

    def test_a_close_when_the_handshake_is_over(self) -> None:
        """A close in ``handshakeCompleted`` ends TLS cleanly."""
        for link in self.both():
            link.user.on["shaken"] = lambda link=link: link.user.transport.loseConnection()
            link.start()
            self.assertTrue(link.peer_ended)
            self.assertFalse(link.plain.aborted)

    # Failures

    def test_garbage_instead_of_a_handshake(self) -> None:
        """Garbage instead of a handshake ends the connection with the reason of TLS."""
        for link in self.both():
            link.layer.makeConnection(link.plain)
            link.plain.sent.clear()
            link.layer.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
            self.assertTrue(link.plain.disconnecting)
            link.close_plain()
            link.user.reason.trap(SSL.Error)
            self.assertNotIn("shaken", link.user.events)

    def test_a_peer_without_a_certificate_gets_the_reason(self) -> None:
        """A peer without a certificate gets an alert."""
        link = self.link(peer_certificate=None).start()
        link.user.reason.trap(SSL.Error)
        link.to_peer()
        self.assertIn("alert", str(link.peer_error))

    def test_a_broken_record_ends_the_connection(self) -> None:
        """Data before a broken record is delivered; the peer gets an alert."""
        link = self.link().start()
        push = Push()
        link.user.transport.registerProducer(push, True)
        link.peer.sendall(b"good")
        link.layer.dataReceived(link.from_peer() + b"\x17\x03\x03\x00\x20" + b"x" * 32)
        link.run()
        self.assertEqual(link.user.received, b"good")
        link.user.reason.trap(SSL.Error)
        self.assertIn("alert", str(link.peer_error))
        self.assertEqual(push.events, ["stop"])

    def test_a_verification_after_the_handshake_can_fail(self) -> None:
        """Nothing is sent to that peer, and the user gets the reason."""
        self.fail_verification()

    def fail_verification(self) -> Link:
        """Reject the peer in a callback of OpenSSL at the end of the handshake."""
        creator = ClientTLS([b"a"])
        link = self.link(is_client=True, creator=creator)

        def look(_: SSL.Connection, where: int, result: int) -> None:
            if where & SSL.SSL_CB_HANDSHAKE_DONE:
                link.layer.failVerification(Failure(ZeroDivisionError()))

        creator._context.set_info_callback(look)
        link.user.on["made"] = lambda: link.user.transport.write(b"secret")
        link.start()
        self.assertTrue(link.plain.aborted)
        self.assertEqual(link.received, b"")
        link.user.reason.trap(ZeroDivisionError)
        return link

    def test_twisteds_own_creators_serve(self) -> None:
        """Twisted's own connection creators work, and their verification is applied."""
        link = self.link(is_client=True, creator=creator_for(HOST)).start()
        self.assertIn("shaken", link.user.events)
        link = self.link(is_client=True, creator=creator_for("other.test")).start()
        self.assertEqual(link.user.events, ["made", "lost"])
        link.user.reason.trap(VerificationError)
