"""A server's certificates without a cluster."""

from __future__ import annotations

import errno
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from unittest import mock

from cryptography import x509
from OpenSSL import SSL
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.standalone import DAY, World
from tests.pki.support import client_context, clock_now, dial, handshake, peer_serial
from yurttunnel.pki.authorities import BadBundle
from yurttunnel.pki.contexts import ClientContexts, names_in
from yurttunnel.pki.credentials import Credentials, certificates_from_pem, key_from_pem, pin_of
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import Address
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.pki.revocation import revoke_node
from yurttunnel.server import standalone_trust
from yurttunnel.server.standalone_trust import StandaloneServerTrust


class AddressesTests(SynchronousTestCase):
    """The machine's addresses in the certificate of a server that listens on all of them."""

    def setUp(self) -> None:
        """Set up a machine with one address, and start a server on it."""
        self.clock = clock_now()
        self.state = self.mktemp()
        self.own = {ip_address("127.0.0.1"), ip_address("203.0.113.10")}
        self.looks = 0
        self.patch(standalone_trust, "own_addresses", self.addresses)
        self.open()

    def addresses(self) -> set[Address]:
        """Return the current addresses."""
        self.looks += 1
        return set(self.own)

    def open(self) -> None:
        """Start the server, as at each start."""
        self.trust = StandaloneServerTrust(self.clock, self.state, ["0.0.0.0"])
        self.trust.startService()
        self.addCleanup(self.trust.stopService)

    def names(self) -> list[str]:
        """Return the names in the certificate in use."""
        return names_in(self.certificate())

    def certificate(self) -> x509.Certificate:
        """Return the certificate in use."""
        assert self.trust.serving.current is not None
        return self.trust.serving.current.certificate

    def pass_days(self, days: int) -> None:
        """Advance the clock by days."""
        for _ in range(days * 24):
            self.clock.advance(3600)

    def test_started_without_address(self) -> None:
        """A renewal contains an address that was added after the start, which alone causes none."""
        self.trust.stopService()
        first = self.certificate()
        self.own = {ip_address("127.0.0.1")}
        self.open()
        self.own |= {ip_address("203.0.113.10"), ip_address("203.0.113.11")}
        self.pass_days(30)
        self.assertEqual(first, self.certificate())
        self.pass_days(32)
        self.assertNotEqual(first, self.certificate())
        self.assertLessEqual({"203.0.113.10", "203.0.113.11", "127.0.0.1"}, set(self.names()))
        self.assertIsNone(self.trust.serving.warning())
        second = self.certificate()
        self.own = {ip_address("127.0.0.1")}
        self.pass_days(30)
        self.assertEqual(second, self.certificate())

    def test_address_that_has_gone(self) -> None:
        """A renewal lacks an address that the machine had only at the start."""
        self.own = {ip_address("127.0.0.1")}
        self.pass_days(62)
        self.assertNotIn("203.0.113.10", self.names())
        self.assertIsNone(self.trust.serving.problem())
        self.assertIsNone(self.trust.serving.warning())

    def test_new_address_at_start(self) -> None:
        """A new address is in the certificate at once after a start."""
        self.trust.stopService()
        self.own.add(ip_address("203.0.113.11"))
        self.open()
        self.assertIn("203.0.113.11", self.names())

    def test_seldom_read(self) -> None:
        """The kernel's addresses are not read at every check."""
        before = self.looks
        self.clock.pump([1] * 100)
        self.assertEqual(before, self.looks)


class ServerTrustTests(World):
    """The server's facade."""

    def test_files(self) -> None:
        """Once it is open, all files for others are in the state directory."""
        state = Path(self.state)
        (authority,) = certificates_from_pem((state / "ca.crt").read_bytes())
        self.assertEqual(self.read_token().pin, pin_of(authority))
        (caller,) = certificates_from_pem((state / "client.crt").read_bytes())
        caller.verify_directly_issued_by(authority)
        secrets = ("ca.key", "join-token", "client.key", "server.pem", "tokens.json")
        for name in (*secrets, "kubelet-client.pem"):
            self.assertEqual((state / name).stat().st_mode & 0o777, 0o600)

    def test_restart(self) -> None:
        """A restart keeps authority, server certificate, caller's certificate and token."""
        names = ["ca.crt", "ca.key", "server.pem", "client.crt", "client.key", "join-token"]
        names.append("kubelet-client.pem")
        before = [Path(self.state, name).read_bytes() for name in names]
        self.trust.stopService()
        self.start_server()
        self.assertEqual([Path(self.state, name).read_bytes() for name in names], before)

    def test_interception(self) -> None:
        """The certificate in the directory is accepted at the port that stands in for kubelets."""
        state = Path(self.state)
        (certificate,) = certificates_from_pem((state / "client.crt").read_bytes())
        key = key_from_pem((state / "client.key").read_bytes())
        caller = self.trust.authority.credentials(key, certificate)
        contexts = ClientContexts(caller, b"http/1.1")
        refused: list[BaseException] = []
        client = dial(contexts, "edge-1", refused.append)
        server = self.trust.interception.serverConnectionForTLS(None)
        server.set_accept_state()
        handshake(client, server)
        self.assertEqual([], refused)

    def test_kubelets(self) -> None:
        """Kubelets are verified as the flags say; a file of authorities has to exist."""
        self.assertIs(KubeletVerification.AUTO, self.trust.kubelets.mode)
        path = Path(self.mktemp())
        arguments: dict[str, Any] = {"kubelet_verify": KubeletVerification.CA, "kubelet_ca": path}
        self.assertRaises(
            BadBundle, StandaloneServerTrust, self.clock, self.mktemp(), ["127.0.0.1"], **arguments
        )
        path.write_bytes(Path(self.state, "ca.crt").read_bytes())
        trust = StandaloneServerTrust(self.clock, self.mktemp(), ["127.0.0.1"], **arguments)
        self.assertIs(KubeletVerification.CA, trust.kubelets.mode)

    def test_callers(self) -> None:
        """Callers with the directory's certificate are accepted, and the server's own rotates."""
        state = Path(self.state)
        (certificate,) = certificates_from_pem((state / "client.crt").read_bytes())
        key = key_from_pem((state / "client.key").read_bytes())
        before = self.trust.callers.credentials
        caller = Credentials(key, certificate, (), ())
        client = SSL.Connection(client_context(caller, []), None)
        client.set_connect_state()
        server = self.trust.callers.serverConnectionForTLS(None)
        server.set_accept_state()
        handshake(client, server)
        self.assertEqual(peer_serial(client), before.certificate.serial_number)
        self.pass_time(61 * DAY, DAY)
        self.assertNotEqual(self.trust.callers.credentials, before)
        self.assertEqual(self.trust.callers.credentials, self.trust.contexts.credentials)

    def test_unusable_state(self) -> None:
        """Every fault of the state directory is one line with the path."""
        path = Path(self.mktemp())
        path.touch()
        error = self.assertRaises(
            StateError, StandaloneServerTrust, self.clock, path, ["127.0.0.1"]
        )
        self.assertEqual(str(error), f"{path} is not a directory: remove it or choose another")

    def test_renews_its_own(self) -> None:
        """The server's certificate is renewed in time and used without a restart."""
        before = self.trust.contexts.credentials.certificate
        self.pass_time(70 * DAY, DAY)
        after = self.trust.contexts.credentials.certificate
        self.assertGreater(after.not_valid_after_utc, before.not_valid_after_utc)
        self.assertEqual(self.trust.serving.not_after, after.not_valid_after_utc)
        self.assertIsNone(self.trust.serving.warning())
        (stored, _) = certificates_from_pem(Path(self.state, "server.pem").read_bytes())
        self.assertEqual(stored, after)

    def test_full_disk(self) -> None:
        """A failed replacement is one line each time, not a traceback, and is retried."""
        before = self.read_token()
        full = OSError(errno.ENOSPC, "full")
        with mock.patch("os.fsync", side_effect=full), capturedLogs() as events:
            self.pass_time(DAY, 60)
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertEqual(self.read_token(), before)
        lines = {formatEvent(e) for e in events if e["log_level"] is LogLevel.error}
        self.assertEqual(
            lines,
            {
                f"replacing the join token failed: {self.state}/tokens.json cannot be written,"
                " the disk is full: make room"
            },
        )
        self.pass_time(60, 60)
        self.assertNotEqual(self.read_token(), before)

    def test_start_on_a_full_disk(self) -> None:
        """A server whose certificates and token are due starts with the existing ones."""
        self.trust.stopService()
        names = ("client.crt", "join-token", "tokens.json", "server.pem")
        before = [Path(self.state, name).read_bytes() for name in names]
        self.clock.advance(300 * DAY)
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
            self.start_server()
            left = self.trust.serving.not_after.timestamp() - self.clock.seconds()
            self.assertGreater(left, 80 * DAY)
            error = self.assertRaises(
                StateError, StandaloneServerTrust, self.clock, self.mktemp(), ["127.0.0.1"]
            )
            self.assertTrue(error.disk_is_full)
        self.assertEqual([Path(self.state, name).read_bytes() for name in names], before)

    def test_released(self) -> None:
        """After the release it notices revocations, but issues no tokens or certificates."""
        token = self.read_token()
        self.trust.release_directory()
        revoke_node(self.clock, self.state, "edge-9")
        self.clock.advance(1)
        self.assertEqual(["edge-9"], list(self.trust.revocations.all()))
        self.assertEqual(token, self.read_token())
        agent = self.agent()
        self.network.settle()
        self.assertIn("this server is stopping: try again (unavailable)", str(agent.problem()))
        self.assertEqual([], self.trust.records.all())

    def test_stops(self) -> None:
        """Stopping leaves no timers."""
        self.trust.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
