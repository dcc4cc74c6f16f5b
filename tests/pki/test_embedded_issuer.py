"""The certificates that the server issues for itself and its callers."""

from __future__ import annotations

import errno
import socket
from unittest import mock

from cryptography import x509
from twisted.trial.unittest import TestCase

from tests.pki.support import Issuer, clock_now, state_directory
from yurttunnel.ops.own_addresses import own_addresses
from yurttunnel.pki.certificate_store import CertificateStore, PairStore
from yurttunnel.pki.contexts import names_in
from yurttunnel.pki.credentials import certificates_from_pem, key_from_pem
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.embedded_issuer import own_certificate
from yurttunnel.pki.issuer import CertificateTemplate
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.server.standalone_trust import server_template

DAY = 86400


class ServingCertificateTests(TestCase):
    """``server.pem``."""

    def setUp(self) -> None:
        """Create an authority and an empty directory."""
        self.clock = clock_now()
        self.authority = Issuer.make(self, self.clock).authority
        self.directory = state_directory(self)

    def load(self, bind: str = "192.0.2.1", *names: str) -> x509.Certificate:
        """Load the certificate, as at each start."""
        renewal = own_certificate(
            self.clock,
            self.authority,
            "certificate of the server",
            server_template([bind], names),
            CertificateStore(self.directory, "server.pem"),
            90.0 * DAY,
        )
        assert renewal.current is not None
        return renewal.current.certificate

    def test_names(self) -> None:
        """It is for the bind address, the given names, the machine's name and loopback."""
        names = names_in(self.load("192.0.2.1", "Tunnel.example", "203.0.113.5", ""))
        machine = socket.gethostname().lower()
        self.assertEqual(
            set(names),
            {
                "localhost",
                machine,
                "tunnel.example",
                "192.0.2.1",
                "203.0.113.5",
                "127.0.0.1",
                "::1",
            },
        )

    def test_wildcard(self) -> None:
        """For a wildcard address it has the machine's addresses instead."""
        own = own_addresses()
        names = set(names_in(self.load("::")))
        self.assertLessEqual({str(address) for address in own}, names)
        self.assertNotIn("::", names)
        self.assertNotIn("0.0.0.0", names_in(self.load("0.0.0.0")))

    def test_zone(self) -> None:
        """An address has no zone in the certificate."""
        self.assertIn("fe80::1", names_in(self.load("fe80::1%lo")))

    def test_not_kept(self) -> None:
        """A certificate that cannot be stored is an error, except on a full disk."""
        for number, kind in ((errno.ENOSPC, None), (errno.EIO, StateError)):
            with mock.patch("os.fsync", side_effect=OSError(number, "no")):
                if kind is None:
                    self.load()
                else:
                    self.assertRaises(kind, self.load)
        self.assertEqual([], self.directory.names())

    def test_kept(self) -> None:
        """A restart keeps it, even if fewer names are needed."""
        first = self.load("192.0.2.1", "a.test")
        self.assertEqual(self.load("192.0.2.1", "a.test"), first)
        self.assertEqual(self.load("192.0.2.1"), first)

    def test_reissued(self) -> None:
        """Another name, another authority or a certificate near its end cause a new one."""
        first = self.load()
        second = self.load("192.0.2.2")
        self.assertNotEqual(second, first)
        self.authority = Issuer.make(self, self.clock).authority
        third = self.load("192.0.2.2")
        third.verify_directly_issued_by(self.authority.certificate)
        self.clock.advance(61 * DAY)
        self.assertNotEqual(self.load("192.0.2.2"), third)

    def test_broken(self) -> None:
        """A broken file is replaced, since nothing is lost."""
        self.load()
        self.directory.write("server.pem", b"nonsense")
        self.load()
        self.assertIn(b"BEGIN CERTIFICATE", self.directory.read("server.pem") or b"")

    def test_bad_name(self) -> None:
        """An invalid name is an error that quotes it."""
        error = self.assertRaises(StateError, self.load, "192.0.2.1", "münchen.example")
        self.assertIn("'münchen.example' cannot be in", str(error))


class CallerCertificateTests(TestCase):
    """``client.crt`` and ``client.key``."""

    def setUp(self) -> None:
        """Create the pair."""
        self.clock = clock_now()
        self.authority = Issuer.make(self, self.clock).authority
        self.directory = state_directory(self)
        self.first = self.ensure()

    def ensure(self) -> bytes:
        """Create or load the pair, check that it matches, and return the certificate."""
        own_certificate(
            self.clock,
            self.authority,
            "certificate of callers",
            CertificateTemplate(CALLER_NAME, (), "client auth"),
            PairStore(self.directory, "client.crt", "client.key"),
            365.0 * DAY,
        )
        content = self.directory.read("client.crt") or b""
        (certificate,) = certificates_from_pem(content)
        key = key_from_pem(self.directory.read("client.key", secret=True) or b"")
        self.assertEqual(certificate.public_key(), key.public_key())
        certificate.verify_directly_issued_by(self.authority.certificate)
        return content

    def test_kept(self) -> None:
        """A valid pair is kept."""
        self.assertEqual(self.ensure(), self.first)

    def test_replaced(self) -> None:
        """A pair that is near its end, broken, mismatched or of another authority is replaced."""
        self.clock.advance(250 * DAY)
        second = self.ensure()
        self.assertNotEqual(second, self.first)
        self.directory.write("client.crt", self.first)
        self.assertNotIn(self.ensure(), (self.first, second))
        self.directory.write("client.key", b"nonsense")
        self.ensure()
        self.directory.remove("client.key")
        self.ensure()
        self.authority = Issuer.make(self, self.clock).authority
        self.ensure()
