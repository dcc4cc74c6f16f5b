"""TLS over memory: one contract for direct calls of OpenSSL and for pyOpenSSL's public methods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from OpenSSL import SSL, _util
from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.certificates import ClientTLS, ServerTLS
from yurttunnel.tunnel.direct import openssl
from yurttunnel.tunnel.direct.openssl import (
    BUFFER_SIZE,
    RECORD,
    DirectCalls,
    PublicMethods,
    TLSState,
    private_library,
    state_of,
)

PARTIAL_WRITES = 0x1
"""SSL_MODE_ENABLE_PARTIAL_WRITE of OpenSSL's ssl.h: pyOpenSSL sets it in each context."""

MUCH = bytes(range(256)) * 4 * 1024
"""1 MiB: more than the reused buffer."""


class Pair:
    """The TLS of a server and a client after their handshake, and the data between them."""

    def __init__(
        self,
        state: Callable[[SSL.Connection], TLSState],
        whole_writes: bool = True,
        version: int = SSL.TLS1_3_VERSION,
    ) -> None:
        server, client = ServerTLS([b"a"]), ClientTLS([b"a"])
        for context in (server._context, client._context):
            context.set_max_proto_version(version)
            if whole_writes:
                context.clear_mode(PARTIAL_WRITES)
        self.peer = client.clientConnectionForTLS(None)
        self.peer.set_connect_state()
        self.tls = server.serverConnectionForTLS(None)
        self.tls.set_accept_state()
        self.state = state(self.tls)
        for _ in range(3):
            for end in (self.peer, self.tls):
                with contextlib.suppress(SSL.WantReadError):
                    end.do_handshake()
                self.move()

    def move(self) -> None:
        """Transfer the pending output of each end to the other."""
        with contextlib.suppress(SSL.WantReadError):
            self.state.feed(self.peer.bio_read(1 << 25))
        produced = self.state.produced()
        if produced:
            self.peer.bio_write(produced)

    def read(self, records: int) -> bytes:
        """Return the data of a number of records."""
        pieces: list[bytes] = []
        self.state.read(records, pieces)
        return b"".join(pieces)

    def arrives(self, encrypted: bytes, size: int) -> bytes:
        """Return the data that the peer decrypts from ``encrypted``."""
        self.peer.bio_write(encrypted)
        received = b""
        while len(received) < size:
            received += self.peer.recv(RECORD)
        return received


class StateContract:
    """The requirements of the transport."""

    state: Callable[[SSL.Connection], TLSState]

    def pair(self, **options) -> Pair:
        """Create both ends."""
        return Pair(self.state, **options)

    def test_all_that_is_written_comes_out_in_one_piece(self) -> None:
        """Data of any size, from none to more than any buffer, is encrypted in one piece."""
        for version in (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION):
            pair = self.pair(version=version)
            self.assertEqual(b"", pair.state.write(b""))
            for size in (1, RECORD, RECORD + 1, len(MUCH)):
                encrypted = pair.state.write(MUCH[:size])
                self.assertTrue(pair.arrives(encrypted, size) == MUCH[:size])
                self.assertEqual(b"", pair.state.produced())

    def test_partial_writes_are_completed(self) -> None:
        """If the context allows partial writes, OpenSSL writes one record at a time."""
        pair = self.pair(whole_writes=False)
        encrypted = pair.state.write(MUCH)
        self.assertTrue(pair.arrives(encrypted, len(MUCH)) == MUCH)

    def test_a_piece_as_large_as_the_buffer_is_no_end(self) -> None:
        """The output may fill it exactly, or be one byte less or more."""
        for over in (-1, 0, 1):
            pair = self.pair()
            size = BUFFER_SIZE + over - 22 * (BUFFER_SIZE // RECORD)
            while len(pair.state.write(bytes(size))) < BUFFER_SIZE + over:
                size += 1
            pair.tls.send(bytes(size))
            self.assertEqual(BUFFER_SIZE + over, len(pair.state.produced()))
            self.assertEqual(b"", pair.state.produced())

    def test_records_are_read_in_their_order(self) -> None:
        """As many records are read as requested, whatever their size."""
        pair = self.pair()
        pair.peer.sendall(b"one")
        pair.peer.sendall(b"two")
        pair.peer.sendall(MUCH)
        pair.move()
        self.assertEqual(b"", pair.read(0))
        self.assertEqual(b"one", pair.read(1))
        self.assertTrue(pair.read(1 + len(MUCH) // RECORD) == b"two" + MUCH)

    def test_records_without_data(self) -> None:
        """A server's tickets are such records: they are skipped, and following data is returned."""
        pair = self.pair()
        with self.assertRaises(SSL.WantReadError):
            pair.read(1)
        pair.peer.sendall(b"x")
        pair.move()
        pieces: list[bytes] = []
        with self.assertRaises(SSL.WantReadError):
            pair.state.read(3, pieces)
        self.assertEqual([b"x"], pieces)

    def test_half_a_record_is_nothing_yet(self) -> None:
        """Half a record returns no data; it is complete with its rest."""
        pair = self.pair()
        pair.peer.sendall(b"x" * 100)
        encrypted = pair.peer.bio_read(1 << 16)
        pair.state.feed(encrypted[:50])
        with self.assertRaises(SSL.WantReadError):
            pair.read(1)
        pair.state.feed(encrypted[50:])
        self.assertEqual(b"x" * 100, pair.read(1))

    def test_nothing_is_lost_when_it_shrinks(self) -> None:
        """Data that came with the end of the handshake is kept, even half a record."""
        for version in (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION):
            pair = self.pair(version=version)
            pair.peer.sendall(b"one")
            pair.peer.sendall(b"two")
            encrypted = pair.peer.bio_read(1 << 16)
            pair.state.feed(encrypted[:-9])
            pair.state.shrink()
            self.assertEqual(b"one", pair.read(1))
            pair.state.feed(encrypted[-9:])
            self.assertEqual(b"two", pair.read(1))
            self.assertEqual(b"three", pair.arrives(pair.state.write(b"three"), 5))
            # pyOpenSSL uses the same BIOs.
            pair.tls.shutdown()
            pair.move()
            with self.assertRaises(SSL.ZeroReturnError):
                pair.peer.recv(1)

    def test_the_peers_end_is_reported_after_its_data(self) -> None:
        """A clean end is not a lost connection."""
        pair = self.pair()
        pair.peer.sendall(b"bye")
        pair.peer.shutdown()
        pair.move()
        pieces: list[bytes] = []
        with self.assertRaises(SSL.ZeroReturnError):
            pair.state.read(2, pieces)
        self.assertEqual([b"bye"], pieces)
        self.assertTrue(pair.tls.get_shutdown() & SSL.RECEIVED_SHUTDOWN)

    def test_a_broken_record_is_reported_after_the_data(self) -> None:
        """A broken record raises OpenSSL's error after the data before it, and causes an alert."""
        pair = self.pair()
        pair.peer.sendall(b"good")
        pair.move()
        pair.state.feed(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        pieces: list[bytes] = []
        with self.assertRaises(SSL.Error) as raised:
            pair.state.read(2, pieces)
        self.assertEqual([b"good"], pieces)
        self.assertIn("bad record mac", str(raised.exception))
        pair.peer.bio_write(pair.state.produced())
        with self.assertRaisesRegex(SSL.Error, "alert bad record mac"):
            pair.peer.recv(1)
        with self.assertRaises(SSL.Error):
            pair.read(1)

    def test_the_failure_of_one_connection_stays_with_it(self) -> None:
        """Nothing of it is left in OpenSSL's error queue, which all connections share."""
        broken, sound = self.pair(), self.pair()
        broken.state.feed(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        with self.assertRaises(SSL.Error):
            broken.read(1)
        self.assertEqual(0, _util.lib.ERR_peek_error())
        with self.assertRaises(SSL.WantReadError):
            sound.read(1)

    def test_nothing_is_written_after_the_end(self) -> None:
        """Writing after the end is an error of OpenSSL, and has no output."""
        pair = self.pair()
        pair.tls.shutdown()
        self.assertTrue(pair.state.produced())
        with self.assertRaisesRegex(SSL.Error, "protocol is shutdown"):
            pair.state.write(b"late")
        self.assertEqual(b"", pair.state.produced())


class DirectCallsTests(StateContract, SynchronousTestCase):
    """The contract with direct calls."""

    def state(self, connection: SSL.Connection) -> TLSState:
        """Create the state."""
        library = private_library()
        assert library is not None
        return DirectCalls(connection, library)

    def test_buffers_are_new_after_it_shrinks(self) -> None:
        """The old ones have grown during the handshake, and OpenSSL never shrinks them."""
        pair = self.pair()
        before = pair.tls._into_ssl, pair.tls._from_ssl
        pair.state.shrink()
        for former, present in zip(before, (pair.tls._into_ssl, pair.tls._from_ssl), strict=True):
            self.assertNotEqual(former, present)

    def test_an_error_that_something_else_has_left_is_nobodys(self) -> None:
        """An error already in the queue would be taken for the reason of the next failure."""
        pair = self.pair()
        for act in (
            lambda: self.assertRaises(SSL.WantReadError, pair.read, 1),
            lambda: pair.arrives(pair.state.write(b"x"), 1),
        ):
            _util.lib.SSL_CTX_set_cipher_list(pair.tls._context._context, b"nonsense")
            self.assertNotEqual(0, _util.lib.ERR_peek_error())
            act()
            self.assertEqual(0, _util.lib.ERR_peek_error())


class PublicMethodsTests(StateContract, SynchronousTestCase):
    """The contract with pyOpenSSL's public methods."""

    def state(self, connection: SSL.Connection) -> TLSState:
        """Create the state."""
        return PublicMethods(connection)


class Other:
    """Delegates to ``real``, except for one attribute: ``value``, or missing if it is ``None``."""

    def __init__(self, real: object, name: str, value: object) -> None:
        self._real = real
        self._name = name
        self._value = value

    def __getattr__(self, name: str) -> object:
        """Return the attribute."""
        if name != self._name:
            return getattr(self._real, name)
        if self._value is None:
            raise AttributeError(name)
        return self._value


class ChoiceTests(SynchronousTestCase):
    """The choice of the implementation."""

    def setUp(self) -> None:
        """Detect it again afterwards."""
        self.addCleanup(private_library.cache_clear)

    def chosen(self) -> type:
        """Return the class of a connection's state."""
        private_library.cache_clear()
        return type(state_of(SSL.Connection(SSL.Context(SSL.TLS_METHOD))))

    def test_direct_calls_where_they_are_possible(self) -> None:
        """The installed pyOpenSSL supports direct calls."""
        self.assertIs(DirectCalls, self.chosen())

    def test_public_methods_where_a_function_is_missing_or_something_else(self) -> None:
        """A function with another signature would be called wrongly."""
        lib = _util.lib
        for name in openssl._SIGNATURES:
            for value in (None, lib.SSL_new, 1):
                self.patch(_util, "lib", Other(lib, name, value))
                self.assertIs(PublicMethods, self.chosen(), (name, value))

    def test_public_methods_where_a_connection_has_something_else(self) -> None:
        """If a name is missing or has another type, public methods are used."""
        connection = SSL.Connection(SSL.Context(SSL.TLS_METHOD))
        for name in (*openssl._POINTERS, "_raise_ssl_error"):
            for value in (None, 1):
                other = Other(connection, name, value)
                self.patch(SSL, "Connection", lambda *_, other=other: other)
                self.assertIs(PublicMethods, self.chosen(), (name, value))
