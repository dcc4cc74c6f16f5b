"""Authorization of CONNECT."""

from __future__ import annotations

import json
import os
import socket
from types import SimpleNamespace

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer
from tests.server.frontends.connecting import ConnectTestCase, MemoryTLSConnection, connect
from tests.server.frontends.kubelet.fakes import SecureTransport
from yurttunnel.http.errors import RequestFailed
from yurttunnel.pki.credentials import new_key
from yurttunnel.server.audit import Audit
from yurttunnel.server.frontends.admission import Identity, Permissions, parse_permission


class ParseTests(SynchronousTestCase):
    """The values of ``--allow-connect``."""

    def test_each_kind_of_identity(self):
        """A name may contain any characters, and equivalent identities are equal."""
        for text, identity in (
            ("certificate:kube-apiserver", Identity("certificate", "kube-apiserver")),
            ("certificate:a=b/c:d e", Identity("certificate", "a=b/c:d e")),
            ("user:0", Identity("user", "0")),
            ("user:0065534", Identity("user", "65534")),
            ("address:192.0.2.7", Identity("address", "192.0.2.7")),
            ("address:2001:DB8:0::1", Identity("address", "2001:db8::1")),
            ("address:::ffff:192.0.2.7", Identity("address", "192.0.2.7")),
        ):
            self.assertEqual(identity, parse_permission(f"{text}=*/*:*").identity)

    def test_targets(self):
        """Nodes, hosts and ports may be wildcards, or specific."""
        for text, target in (
            ("*/*:*", (None, None, None)),
            ("edge-1/*:10250", ("edge-1", None, 10250)),
            ("*/127.0.0.1:*", (None, "127.0.0.1", None)),
            ("edge-1/[2001:DB8::1]:80", ("edge-1", "2001:db8::1", 80)),
        ):
            permission = parse_permission(f"user:0={text}")
            self.assertEqual(target, (permission.node, permission.host, permission.port))

    def test_malformed_permissions(self):
        """The error of a malformed permission has the reason and the syntax."""
        for text, problem in (
            ("user:0", "is not a permission"),
            ("user:0=edge-1", "is not a permission"),
            ("=edge-1/a:1", "has no identity"),
            ("user:=edge-1/a:1", "has no identity"),
            ("somebody=edge-1/a:1", "has no identity"),
            ("token:x=edge-1/a:1", "'token' is not a kind of identity"),
            ("user:root=edge-1/a:1", "root is not a user id"),
            ("address:edge=edge-1/a:1", "edge is not an IP address"),
            ("user:0=edge-1/a", "'a' has no port"),
            ("user:0=edge-1/a:0", "0"),
            ("user:0=edge-1/:1", "''"),
            ("user:0=/a:1", "''"),
        ):
            with self.assertRaises(ValueError) as raised:
                parse_permission(text)
            self.assertIn(problem, str(raised.exception))
            self.assertIn("write certificate:NAME=NODE/HOST:PORT", str(raised.exception))


class IdentifyTests(SynchronousTestCase):
    """The identity of the peer."""

    def identify(self, transport):
        """Return the identity."""
        return Permissions(()).identify(transport)

    def test_addresses(self):
        """IPv4 addresses are the same on a listener of both families."""
        for address, who in (
            (IPv4Address("TCP", "192.0.2.7", 1), "192.0.2.7"),
            (IPv6Address("TCP", "::ffff:192.0.2.7", 1), "192.0.2.7"),
            (IPv6Address("TCP", "2001:db8::1", 1), "2001:db8::1"),
        ):
            transport = SimpleNamespace(getPeer=lambda address=address: address)
            self.assertEqual(Identity("address", who), self.identify(transport))

    def test_users(self):
        """The kernel knows the user of a Unix socket."""
        own, other = socket.socketpair()
        self.addCleanup(own.close)
        self.addCleanup(other.close)
        transport = SimpleNamespace(getPeer=lambda: UNIXAddress(b""), getHandle=lambda: own)
        self.assertEqual(Identity("user", str(os.getuid())), self.identify(transport))

    def test_certificates(self):
        """The identity is the common name, but a node's certificate, or none, gives no identity."""
        authority = Issuer.make(self).authority
        for name, organization, who in (
            ("jane", "developers", "jane"),
            ("kube-apiserver", "system:nodes", ""),
            ("kube-apiserver", "openyurt:yurttunnel", ""),
            ("system:node:edge-1", None, ""),
        ):
            certificate = authority.sign_client(new_key().public_key(), name, organization)
            identity = self.identify(SecureTransport(certificate))
            self.assertEqual(Identity("certificate", who), identity)
        self.assertEqual(Identity("certificate", ""), self.identify(SecureTransport(None)))


class AdmissionTestCase(ConnectTestCase):
    """Callers whose entry has permissions."""

    def allow(self, *permissions):
        """Create the entry with these, and an audit log."""
        self.factory.gates = (Permissions([parse_permission(each) for each in permissions]),)
        self.lines = []
        self.factory.audit = Audit(self.reactor, self.lines.append)

    def assert_dialed(self, *targets):
        """Check that all of these are dialed."""
        for target in targets:
            before = len(self.session.dials)
            self.open(connect(*target) if isinstance(target, tuple) else connect(target))
            self.assertEqual(len(self.session.dials), before + 1, target)

    def assert_refused(self, *targets):
        """Check that none of these is."""
        before = len(self.session.dials)
        for target in targets:
            data = connect(*target) if isinstance(target, tuple) else connect(target)
            self.assert_answer(self.open(data), 403, "may not reach")
        self.assertEqual(len(self.session.dials), before)


class AdmissionTests(AdmissionTestCase):
    """Permissions of callers over TCP, identified by address."""

    def test_only_what_is_named(self):
        """Another port, another host, another node: each is rejected."""
        self.allow("address:127.0.0.1=edge-1/edge-1:10250")
        self.assert_dialed("edge-1:10250")
        self.assert_refused(
            "edge-1:22",
            ("127.0.0.1:10250", "X-Tunnel-Proxy-Host: edge-1"),
            "edge-2:10250",
            ("edge-1:10250", "X-Tunnel-Proxy-Host: edge-2"),
        )

    def test_others(self):
        """A permission applies to the identity that it names, of the same kind."""
        self.allow(
            "address:192.0.2.1=*/*:*",
            "certificate:127.0.0.1=*/*:*",
            "user:0=*/*:*",
        )
        self.assert_refused("edge-1:10250")

    def test_others_from_now_on(self):
        """Replaced permissions apply to later calls."""
        self.allow("address:127.0.0.1=edge-1/*:10250")
        self.assert_dialed("edge-1:10250")
        (gate,) = self.factory.gates
        gate.permissions = [parse_permission("address:127.0.0.1=edge-1/*:22")]
        self.assert_refused("edge-1:10250")
        self.assert_dialed("edge-1:22")

    def test_no_permission_at_all(self):
        """Without permissions everyone who can connect reaches everything."""
        self.allow()
        self.assert_dialed("edge-1:10250", "edge-1:22")

    def test_any(self):
        """A star matches every node, host or port; one of several permissions suffices."""
        self.allow("address:127.0.0.1=edge-2/*:*", "address:127.0.0.1=*/*:10250")
        self.assert_dialed("edge-1:10250", "192.0.2.1:10250")
        self.assert_refused("edge-1:10255")

    def test_a_node_by_another_name(self):
        """The name of the node that serves an address counts, not the address."""
        self.allow("address:127.0.0.1=edge-1/*:*")
        self.assert_dialed("192.0.2.1:80", ("10.0.0.1:80", "X-Tunnel-Proxy-Host: 192.0.2.1"))
        self.allow("address:127.0.0.1=192.0.2.1/*:*")
        self.assert_refused("192.0.2.1:80", "edge-1:80")

    def test_disconnected_nodes(self):
        """A permitted caller learns that the node is away, others do not."""
        self.allow("address:127.0.0.1=edge-9/*:*")
        self.assert_answer(self.open(connect("edge-9:80")), 503, "no agent is connected")
        self.assert_refused("edge-8:80")

    def test_response_and_audit_record(self):
        """The response and the audit log have identity, target, and flag."""
        self.allow("address:127.0.0.1=edge-1/*:80")
        connection = self.open(connect("edge-1:22"))
        connection.turns()
        text = (
            "address:127.0.0.1 may not reach edge-1/edge-1:22: no --allow-connect of the server"
            " permits it"
        )
        self.assertTrue(connection.sent.startswith(f"HTTP/1.1 403 {text}\r\n".encode()))
        (line,) = map(json.loads, self.lines)
        record = [line[key] for key in ("result", "status", "node", "destination", "reason")]
        self.assertEqual(record, ["refused", 403, "edge-1", "edge-1:22", text])


class GateTests(AdmissionTestCase):
    """Gates of others, such as middlewares."""

    def test_order(self):
        """Gates are called in order, with identity and target; the first rejection counts."""
        seen = []

        def gate(call):
            seen.append((call.kind, call.flag, call.node, call.serving_node, call.host, call.port))
            raise RequestFailed(451, "not from here")

        self.allow("address:127.0.0.1=*/*:10250")
        self.factory.flag = "--connect-endpoint tcp:8133"
        self.factory.gates = (*self.factory.gates, SimpleNamespace(admit=gate))
        self.assert_refused("edge-1:22")
        self.assertEqual([], seen)
        self.assert_answer(self.open(connect("192.0.2.1:10250")), 451, "not from here")
        entry = ("connect", "--connect-endpoint tcp:8133")
        self.assertEqual([(*entry, "192.0.2.1", "edge-1", "192.0.2.1", 10250)], seen)
        self.assertEqual([], self.session.dials)
        self.assertIn(b'"reason":"not from here"', self.lines[-1])

    def test_defects(self):
        """Any other exception rejects the call, and is logged."""
        self.factory.gates = (SimpleNamespace(admit=lambda call: 1 // 0),)
        answered = self.open(connect("edge-1:10250"))
        self.assert_answer(answered, 500, "internal error")
        self.assertEqual([], self.session.dials)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))


class CertificateTests(AdmissionTestCase):
    """Permissions of callers over TLS, identified by certificate."""

    def open(self, data=b"", connection_class=None):
        """Open a TLS connection as jane."""
        authority = Issuer.make(self).authority
        shown = authority.sign_client(new_key().public_key(), "jane", None)

        class Known(MemoryTLSConnection):
            """A caller with a certificate."""

            getPeerCertificate = SecureTransport(shown).getPeerCertificate

        return super().open(data, Known)

    def test_the_name_counts(self):
        """The address of a caller with a certificate does not count."""
        self.allow("certificate:jane=edge-1/*:80", "address:127.0.0.1=edge-1/*:*")
        self.assert_dialed("edge-1:80")
        connection = self.open(connect("edge-1:81"))
        connection.turns()
        self.assertIn(b" 403 certificate:jane may not reach edge-1/edge-1:81: ", connection.sent)
