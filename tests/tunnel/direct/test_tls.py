"""TLS in memory: one contract for Twisted's layer and for the one with large pieces.

The peer is OpenSSL itself, driven by the test, over a plain transport that only records calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet import ssl
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.tunnel.certificates import HOST, ClientTLS, ServerTLS, authority
from tests.tunnel.direct.users import User
from tests.tunnel.memory import Producer
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct import openssl
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.direct.tls import RecordCounter

MUCH = bytes(range(256)) * 4 * 10 * 1024
"""10 MiB."""


@implementer(IHandshakeListener)
class TLSUser(User):
    """A :class:`User` that is notified of the end of the handshake."""

    def handshakeCompleted(self) -> None:
        """Record the event."""
        self.note("shaken")


class Plain:
    """A plain transport that stores written data, and records calls."""

    disconnecting = False
    aborted = False
    paused = False
    producer = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Store the data."""
        if not self.aborted:
            self.sent.append(data)

    def loseConnection(self) -> None:
        """Record the call."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Record the call."""
        self.aborted = True

    def registerProducer(self, producer, streaming: bool) -> None:
        """Record the call."""
        assert self.producer is None
        self.producer = producer

    def unregisterProducer(self) -> None:
        """Record the call."""
        self.producer = None

    def pauseProducing(self) -> None:
        """Record the call."""
        self.paused = True

    def resumeProducing(self) -> None:
        """Record the call."""
        self.paused = False


class Keys:
    """The record protection keys of a link's peer: pyOpenSSL cannot trigger a key update.

    The peer itself can send nothing once this has sent a record.
    """

    def __init__(self, is_client: bool) -> None:
        self._label = f"{'CLIENT' if is_client else 'SERVER'}_TRAFFIC_SECRET_0".encode()
        # A server has sent two tickets.
        self._number = 0 if is_client else 2

    def change(self) -> bytes:
        """Return a record that updates the keys, and requests the same from the other side."""
        record = self.seal(22, b"\x18\0\0\1\1")
        self._begin(self._expand(b"traffic upd", 48))
        self._number = 0
        return record

    def seal(self, kind: int, data: bytes) -> bytes:
        """Return the next record."""
        header = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2, "big")
        nonce = (int.from_bytes(self._vector, "big") ^ self._number).to_bytes(12, "big")
        self._number += 1
        return header + self._cipher.encrypt(nonce, data + bytes([kind]), header)

    def note(self, connection: SSL.Connection, line: bytes) -> None:
        """Process a line of OpenSSL's key log."""
        label, _, secret = line.split()
        if label == self._label:
            assert connection.get_cipher_name() == "TLS_AES_256_GCM_SHA384"
            self._begin(bytes.fromhex(secret.decode()))

    def _begin(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(self._expand(b"key", 32))
        self._vector = self._expand(b"iv", 12)

    def _expand(self, label: bytes, size: int) -> bytes:
        """Derive a key from the secret (RFC 8446 section 7.1)."""
        info = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)


class Link:
    """A user above the tested layer, with OpenSSL as its peer."""

    def __init__(
        self,
        transports: str,
        is_client: bool = False,
        creator=None,
        peer_certificate="edge-1",
        keys: Keys | None = None,
    ) -> None:
        self.clock = Clock()
        self.user = TLSUser()
        reactor = with_transports(self.clock, transports)
        factory = Factory.forProtocol(lambda: self.user)
        server, client = ServerTLS([b"a"]), ClientTLS([b"a"], peer_certificate)
        if keys is not None:
            (server if is_client else client)._context.set_keylog_callback(keys.note)
        if is_client:
            self.peer = server.serverConnectionForTLS(None)
            self.peer.set_accept_state()
            secured = tls.client_side(reactor, creator or client, factory)
        else:
            self.peer = client.clientConnectionForTLS(None)
            self.peer.set_connect_state()
            secured = tls.server_side(reactor, creator or server, factory)
        self.plain = Plain()
        self.layer = secured.buildProtocol(None)
        self.received = bytearray()
        self.peer_ended = False
        self.peer_error: SSL.Error | None = None
        self.is_over = False

    def start(self) -> Link:
        """Connect, and complete the handshake."""
        self.layer.makeConnection(self.plain)
        return self.run()

    def run(self) -> Link:
        """Transfer data between both until nothing moves any more."""
        while True:
            self.clock.advance(0)
            self.to_peer()
            data = b"" if self.plain.paused else self.from_peer()
            if data and not self.plain.disconnecting and not self.plain.aborted:
                self.layer.dataReceived(data)
            elif not self.plain.sent and not self.clock.getDelayedCalls():
                break
        self.close_plain()
        return self

    def to_peer(self) -> None:
        """Pass the sent data to OpenSSL."""
        sent, self.plain.sent = b"".join(self.plain.sent), []
        if sent:
            self.peer.bio_write(sent)
        try:
            while True:
                self.received += self.peer.recv(1 << 16)
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            self.peer_ended = True
        except SSL.Error as error:
            self.peer_error = self.peer_error or error

    def from_peer(self) -> bytes:
        """Return the output of OpenSSL."""
        try:
            return self.peer.bio_read(1 << 25)
        except SSL.WantReadError:
            return b""

    def close_plain(self) -> None:
        """Simulate a socket in the next iteration."""
        if not self.is_over and (self.plain.disconnecting or self.plain.aborted):
            self.lose(ConnectionAborted() if self.plain.aborted else ConnectionDone())

    def lose(self, error: Exception) -> None:
        """Lose the plain connection."""
        self.is_over = True
        producer, self.plain.producer = self.plain.producer, None
        if producer is not None:
            producer.stopProducing()
        self.layer.connectionLost(Failure(error))
        self.clock.advance(0)


def creator_for(host: str):
    """Return the creator for clients of ``twisted.internet.ssl``, with its own verification."""
    pem = authority().certificate.public_bytes(serialization.Encoding.PEM)
    trusted = ssl.trustRootFromCertificates([ssl.Certificate.loadPEM(pem)])
    return ssl.optionsForClientTLS(host, trustRoot=trusted)


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Yield each byte separately."""
    return (data[number : number + 1] for number in range(len(data)))


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
            self.assertEqual(link.user.told, ["made", "shaken"])
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
        self.assertEqual(link.user.told, ["made", "shaken", "data"])
        self.assertEqual(link.user.received, b"at once")
        link.lose(ConnectionLost())

    def test_records_may_come_in_any_pieces(self) -> None:
        """Records may be split into bytes, during the handshake and after it."""
        link = self.link()
        link.layer.makeConnection(link.plain)
        while "shaken" not in link.user.told:
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

    def test_a_close_tells_the_peer_and_waits_for_it(self) -> None:
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
            self.assertEqual(link.user.told, ["made", "shaken", "data", "lost"])
            link.user.reason.trap(ConnectionDone)
            link.to_peer()
            self.assertTrue(link.peer_ended)

    def test_an_end_that_tls_was_not_told_of_is_a_loss(self) -> None:
        """An end without ``close_notify`` is a lost connection, also during the handshake."""
        link = self.link()
        link.layer.makeConnection(link.plain)
        link.lose(ConnectionDone())
        link.user.reason.trap(ConnectionLost)
        for link in self.both():
            link.start()
            link.lose(ConnectionDone())
            link.user.reason.trap(ConnectionLost)

    def test_a_reset_is_told_as_such(self) -> None:
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
        push = Producer()
        link.user.transport.registerProducer(push, True)
        with self.assertRaises((RuntimeError, AssertionError)):
            link.user.transport.registerProducer(Producer(), True)
        link.plain.producer.pauseProducing()
        link.plain.producer.resumeProducing()
        self.assertEqual(push.told, ["pause", "resume"])
        link.user.transport.unregisterProducer()
        link.user.transport.unregisterProducer()
        self.assertIsNone(link.plain.producer)
        link.lose(ConnectionLost())
        self.assertEqual(push.told, ["pause", "resume"])

    def test_a_close_waits_for_a_producer(self) -> None:
        """A close waits until a registered producer has sent its remaining data."""
        link = self.link().start()
        link.user.transport.registerProducer(Producer(), True)
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
        push = Producer()
        link.user.transport.registerProducer(push, True)
        link.peer.shutdown()
        link.run()
        link.user.reason.trap(ConnectionDone)
        self.assertEqual(push.told, ["stop"])

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
        for what, told in (
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
            self.assertEqual(link.user.told, [*told, "lost"])

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
            self.assertNotIn("shaken", link.user.told)

    def test_a_peer_without_a_certificate_is_told_why(self) -> None:
        """A peer without a certificate gets an alert."""
        link = self.link(peer_certificate=None).start()
        link.user.reason.trap(SSL.Error)
        link.to_peer()
        self.assertIn("alert", str(link.peer_error))

    def test_a_broken_record_ends_the_connection(self) -> None:
        """Data before a broken record is delivered; the peer gets an alert."""
        link = self.link().start()
        push = Producer()
        link.user.transport.registerProducer(push, True)
        link.peer.sendall(b"good")
        link.layer.dataReceived(link.from_peer() + b"\x17\x03\x03\x00\x20" + b"x" * 32)
        link.run()
        self.assertEqual(link.user.received, b"good")
        link.user.reason.trap(SSL.Error)
        self.assertIn("alert", str(link.peer_error))
        self.assertEqual(push.told, ["stop"])

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
        self.assertIn("shaken", link.user.told)
        link = self.link(is_client=True, creator=creator_for("other.test")).start()
        self.assertEqual(link.user.told, ["made", "lost"])
        link.user.reason.trap(VerificationError)


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
        self.assertEqual(link.user.told, ["made", "shaken", "data"])

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
        self.assertIn("shaken", link.user.told)

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
            self.assertEqual(link.user.told, ["made", "shaken", "lost"])

    def test_early_data_goes_before_what_is_written_at_the_end_of_the_handshake(self) -> None:
        """Early data is sent before data written at the end of the handshake."""
        link = self.link(is_client=True)
        link.user.on["made"] = lambda: link.user.transport.write(b"1")
        link.user.on["shaken"] = lambda: link.user.transport.write(b"2")
        link.start()
        self.assertEqual(link.received, b"12")

    def test_a_handshake_with_a_peer_that_is_refused_is_never_over(self) -> None:
        """The user of a connection whose peer is rejected gets no ``handshakeCompleted``."""
        self.assertEqual(self.fail_verification().user.told, ["made", "lost"])

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
