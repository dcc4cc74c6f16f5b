"""The spellings of one node, at every input of hosts.

Each input treats a spelling like the canonical form, or rejects it. Any other result would be
another node to later comparisons of names and addresses.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from ipaddress import ip_address
from types import SimpleNamespace

from cryptography import x509
from twisted.internet.address import IPv6Address
from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeSession, MemoryConnection
from tests.pki.signing_requests import Cluster, node, request_pem, signing_request
from tests.pki.world import World
from tests.server.frontends.kubelet.fakes import head, request
from tests.server.hellos import message, records, server_name
from tests.server.test_client_hello import outcome
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.policy import DestinationPolicy, dialed_host, parse_pattern
from yurttunnel.cluster.nodes import node_from
from yurttunnel.http.authority import (
    BadAuthority,
    canonical_host,
    is_machine_specific,
    parse_network,
    split_authority,
    strip_port,
)
from yurttunnel.http.head import HeadError
from yurttunnel.pki.approval_requests import recognize
from yurttunnel.pki.enrolment_messages import EnrolmentRefused
from yurttunnel.pki.identity import BadIdentifiers, identity_from_certificate, parse_identifiers
from yurttunnel.pki.names import BadIdentity, check_node_name
from yurttunnel.pki.revocation import RevocationFailed, revoke_node
from yurttunnel.server.audit import Audit, audited_peer
from yurttunnel.server.audit_requests import RequestAudit
from yurttunnel.server.frontends.admission import parse_permission
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.frontends.forward import parse_forward
from yurttunnel.server.frontends.kubelet.destination import destination_of
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.proxy import KubeletProxy
from yurttunnel.server.node_session import granted_identifiers
from yurttunnel.server.options import Options as ServerOptions
from yurttunnel.server.registry import NodeNotConnected, SessionRegistry
from yurttunnel.server.siblings.feed import BadEntry, decode_line
from yurttunnel.wire.frames import Violation

ADDRESS = "10.77.2.2"
ADDRESS_SPELLINGS = (
    ADDRESS,
    "::ffff:10.77.2.2",
    "::FFFF:10.77.2.2",
    "::ffff:0a4d:202",
    "0:0:0:0:0:ffff:a4d:202",
    "10.77.2.2%eth0",
    "::ffff:10.77.2.2%eth0",
    "10.77.2.2.",
    "10.77.02.2",
    "010.77.2.2",
    "10.77.514",
    "10.5046786",
    "172819970",
    "0xa4d0202",
    "0x0a.0x4d.2.2",
    "012.0115.2.2",
    "10.77.2.2 ",
    "\uff11\uff10.77.2.2",
)
SIX = "2001:db8::7"
SIX_SPELLINGS = (
    SIX,
    "2001:DB8::7",
    "2001:0db8:0000:0000:0000:0000:0000:0007",
    "2001:db8:0::0:7",
    "2001:db8::0.0.0.7",
    "2001:db8::7%1",
    "2001:db8::7%eth0",
)
NAME = "edge-2.example"
NAME_SPELLINGS = (
    NAME,
    "EDGE-2.Example",
    "edge-2.example.",
    "edge-2.example..",
    ".edge-2.example",
    "edge-2\u3002example",
    "edge-2\uff0eexample",
    "\uff45dge-2.example",
    "edge-\u00ad2.example",
    "edge-2.example ",
    "edge-2.example\0",
)
ALL = f"host=edge-2&host={NAME}&ipv4={ADDRESS}&ipv6={SIX}"
"""All identifiers of edge-2."""
SPELLINGS = {ADDRESS: ADDRESS_SPELLINGS, SIX: SIX_SPELLINGS, NAME: NAME_SPELLINGS}

LOOPBACK = (
    "localhost",
    "edge-1.localhost",
    "localhost.localdomain",
    "a.localhost.localdomain",
    "ip6-localhost",
    "ip6-loopback",
    "localhost6.localdomain6",
    "127.0.0.1",
    "127.77.2.2",
    "0.0.0.0",
    "169.254.2.1",
    "224.0.0.1",
)
"""Names that every machine uses for itself, or no machine has."""


def item_of(spelling: str) -> str:
    """Return an identifier in the form of the agent's flag, of the kind that it looks like."""
    key = "ipv6" if ":" in spelling else "ipv4" if spelling[:1].isdecimal() else "host"
    return f"{key}={spelling.replace('%', '%25')}"


def bracketed(spelling: str) -> str:
    """Return a host in the form before a port."""
    return f"[{spelling}]" if ":" in spelling else spelling


class EveryEntryTests(World):
    """The table of all spellings and all inputs."""

    def each(self, made_of, *refusals, canonical=SPELLINGS):
        """Check the result of ``made_of`` for every spelling, unless it raises a rejection."""
        for desired in canonical:
            self.assertEqual(desired, made_of(desired), "the canonical form")
            for spelling in SPELLINGS[desired]:
                try:
                    made = made_of(spelling)
                except refusals:
                    continue
                self.assertEqual(desired, made, repr(spelling))

    def test_texts(self):
        """CONNECT, X-Tunnel-Proxy-Host, X-Tunnel-Proxy-Dest and Host."""
        self.each(lambda text: str(canonical_host(text)), BadAuthority)
        self.each(lambda text: split_authority(f"{bracketed(text)}:1")[0], BadAuthority)
        self.each(strip_port, BadAuthority)
        self.each(lambda text: destination_of(head(host=f"{bracketed(text)}:1")).node, HeadError)
        for field in ("X_Tunnel_Proxy_Host", "X_Tunnel_Proxy_Dest"):
            value = "{}:1" if "Dest" in field else "{}"
            self.each(
                lambda text, field=field, value=value: (
                    destination_of(head(**{field: value.format(bracketed(text))})).node
                ),
                HeadError,
                UnicodeEncodeError,
            )

    def test_forward(self):
        """The node and the target of --forward."""

        def node_of(text):
            return parse_forward(f"9000={bracketed(text)}/{bracketed(text)}:80")

        self.each(lambda text: node_of(text).node, ValueError)
        self.each(lambda text: node_of(text).host, ValueError)

    def test_permissions(self):
        """The address, the node and the target of --allow-connect."""

        def permission(text):
            return parse_permission(f"user:0={bracketed(text)}/{bracketed(text)}:80")

        def address(text):
            return parse_permission(f"address:{text}=*/*:*").identity.name

        self.each(lambda text: permission(text).node, ValueError)
        self.each(lambda text: permission(text).host, ValueError)
        self.each(address, ValueError, canonical=[ADDRESS, SIX])

    def test_flags(self):
        """Servers that agents dial, and the names in the server's certificate.

        An address with a zone is dialed unchanged: no other machine has it.
        """

        def dialed(text):
            options = AgentOptions({})
            server = f"{bracketed(text)}:1"
            servers = f"--tunnelserver-addr={server},{server}"
            options.parseOptions(["--node-name=edge-1", "--node-ip=192.0.2.1", servers])
            ((host, port),) = options.settings.servers
            self.assertEqual(1, port)
            if "%" in host:
                raise BadAuthority(host)
            return host

        def certified(text):
            options = ServerOptions()
            flag = "cert-dns-names" if text in NAME_SPELLINGS else "cert-ips"
            options.parseOptions([f"--{flag}={text}"])
            settings = options.settings
            (made,) = (*settings.certificate_names, *settings.certificate_addresses)
            return str(made)

        self.each(dialed, UsageError, BadAuthority)
        self.each(certified, UsageError)

    def test_server_name(self):
        """SNI, in which an address is not a name, in any spelling."""

        def read(text):
            kind, name = outcome(records(message(server_name(text.encode()))))
            if kind == "bad":
                raise BadAuthority(name)
            return name

        self.each(read, BadAuthority, canonical=[NAME])
        for spelling in (*ADDRESS_SPELLINGS, *SIX_SPELLINGS):
            kind, name = outcome(records(message(server_name(spelling.encode()))))
            self.assertTrue(kind == "bad" or name is None, repr(spelling))

    def test_policy(self):
        """The destinations that --allow-destination allows, and the dialed ones."""
        policies = {
            desired: DestinationPolicy("edge-1", (), [parse_pattern(desired)])
            for desired in SPELLINGS
        }

        def allowed(spelling, by):
            host = dialed_host(spelling)
            if isinstance(host, str):
                return policies[by].may_look_up(host, 80)
            return policies[by].may_connect(host, 80)

        for desired, spellings in SPELLINGS.items():
            patterns, dialed = {}, {}
            for spelling in spellings:
                with contextlib.suppress(ValueError):
                    patterns[spelling] = str(parse_pattern(spelling))
                with contextlib.suppress(ValueError):
                    dialed[spelling] = allowed(spelling, desired)
            self.assertLessEqual(2, min(len(patterns), len(dialed)))
            self.assertEqual(dict.fromkeys(patterns, desired), patterns)
            self.assertEqual(dict.fromkeys(dialed, True), dialed)

    def test_registry(self):
        """Lookups in the registry."""
        registry = SessionRegistry(self.clock)
        session = FakeSession("edge-2", hosts=[NAME], addresses=[ADDRESS, SIX])
        registry.add(session)
        for desired, spellings in SPELLINGS.items():
            self.assertIs(session, registry.find(desired))
            for spelling in spellings:
                try:
                    self.assertIs(session, registry.find(spelling), repr(spelling))
                except NodeNotConnected:
                    self.assertRaises(BadAuthority, canonical_host, spelling)

    def test_host_names(self):
        """Host of a request without TLS reaches only the node of that name, in the canonical form.

        Addresses are not names of nodes.
        """
        registry = SessionRegistry(self.clock)
        for session in (FakeSession("edge-1"), FakeSession("edge-2", hosts=[NAME])):
            registry.add(session)
        names = []

        def nodes_called(name):
            names.append(name)
            return ()

        middleware = HostNames(registry, nodes_called)

        def answered(text, **fields):
            asked = request(head(host=f"{bracketed(text)}:80", **fields))
            asked.exchange.secure = False
            middleware.wrap(lambda request: None)(asked)
            return asked.exchange.status

        def named_node(text):
            names.clear()
            self.assertEqual(421, answered(text, X_Tunnel_Proxy_Host="edge-1"), repr(text))
            if not names:
                raise BadAuthority(text)
            (name,) = names
            return name

        self.assertEqual(0, answered(NAME))
        self.each(named_node, BadAuthority, canonical=[NAME])
        names.clear()
        for spelling in (*ADDRESS_SPELLINGS, *SIX_SPELLINGS):
            answered(spelling, X_Tunnel_Proxy_Host="edge-1")
        self.assertEqual([], names)

    def test_siblings(self):
        """A sibling's report of a node, and the node's name."""

        def entry_of(node, identifiers):
            fields = {"number": 1, "node": node, "identifiers": identifiers, "draining": False}
            return decode_line(json.dumps(fields).encode())

        def identifier(text):
            has = entry_of("edge-1", item_of(text)).identifiers
            (made,) = has.hosts | set(map(str, has.addresses))
            return made

        self.each(identifier, BadEntry)
        self.each(lambda text: entry_of(text, "").node, BadEntry, canonical=[NAME, ADDRESS])

    def test_enrolment(self):
        """The holder of a token gets nothing of an enrolled node by another spelling."""
        self.ask("edge-2", ALL)
        for spelling in (each for spellings in SPELLINGS.values() for each in spellings):
            with self.subTest(spelling):
                self.assertRaises(
                    EnrolmentRefused, self.ask, "edge-1", f"host=edge-1&host={spelling}"
                )
                if spelling.isascii():
                    self.assertRaises(EnrolmentRefused, self.ask, spelling)

    def test_shared_addresses(self):
        """A node with another's address, in any spelling, shares it."""
        self.ask("edge-2", ALL)
        names = (f"other-{number}" for number in itertools.count())
        for desired in (ADDRESS, SIX):
            sharing = {"edge-2"}
            for name, spelling in zip(names, SPELLINGS[desired], strict=False):
                try:
                    self.ask(name, f"host={name}&{item_of(spelling)}")
                except EnrolmentRefused:
                    continue
                sharing.add(name)
            self.assertLess(2, len(sharing))
            self.assertEqual(sharing, set(self.ownership.nodes_with(ip_address(desired))))

    def test_records(self):
        """Records of an earlier version in another form count, too."""
        self.ask("edge-2", f"host=edge-2&ipv4={ADDRESS}")
        nodes = self.directory.subdirectory("nodes")
        content = nodes.read("edge-2").replace(b"ipv4=10.77.2.2", b"ipv6=::ffff:10.77.2.2")
        self.assertIn(b"::ffff", content)
        nodes.write("edge-2", content)
        self.restart()
        self.assertRaises(EnrolmentRefused, self.ask, "edge-1", f"host=edge-1&host={ADDRESS}")
        self.assertEqual(["edge-2"], self.ownership.nodes_with(ip_address(ADDRESS)))

    def test_renewal(self):
        """A node renews its certificate for its identifiers in any spelling, and no others."""
        mine = self.ask("edge-2", ALL)
        other = self.ask("edge-1", "host=edge-1")
        for desired, spellings in SPELLINGS.items():
            for spelling in spellings:
                identifiers = f"host=edge-2&{item_of(spelling)}"
                try:
                    again = self.identity(self.ask("edge-2", identifiers, presented=mine))
                except EnrolmentRefused:
                    self.assertNotEqual(desired, spelling)
                else:
                    has = again.identifiers.hosts | set(map(str, again.identifiers.addresses))
                    self.assertEqual({"edge-2", desired}, has, repr(spelling))
                self.assertRaises(
                    EnrolmentRefused,
                    self.ask,
                    "edge-1",
                    f"host=edge-1&{item_of(spelling)}",
                    presented=other,
                )

    def test_registration(self):
        """The claims of a HELLO are covered in any spelling, and become canonical."""
        mine = self.identity(self.ask("edge-2", ALL))
        other = self.identity(self.ask("edge-1", "host=edge-1"))

        def claim(spelling, identity=mine):
            hello = SimpleNamespace(properties={"identifiers": item_of(spelling)})
            granted = granted_identifiers(identity, hello)
            (made,) = granted.hosts | set(map(str, granted.addresses))
            return made

        self.each(claim, Violation)
        for spellings in SPELLINGS.values():
            for spelling in spellings:
                self.assertRaises(Violation, claim, spelling, other)

    def test_certificate(self):
        """A certificate signed by somebody else is read in the canonical form."""
        certificate = self.issuer.authority.sign_node(
            "edge-2",
            parse_identifiers("host=edge-2"),
            self.issuer.authority.certificate.public_key(),
            "ab",
            60,
        )
        mapped = x509.SubjectAlternativeName(
            [x509.DNSName("edge-2"), x509.IPAddress(ip_address("::ffff:10.77.2.2"))]
        )
        with_mapped = SimpleNamespace(
            subject=certificate.subject,
            not_valid_before_utc=certificate.not_valid_before_utc,
            not_valid_after_utc=certificate.not_valid_after_utc,
            extensions=_Extensions(certificate.extensions, mapped),
        )
        identity = identity_from_certificate(with_mapped)
        self.assertEqual({ip_address(ADDRESS)}, identity.identifiers.addresses)

    def test_approval(self):
        """A request in the cluster is decided by the canonical form of its names."""
        kubelet = "system:node:edge-1"
        for own in (ADDRESS, "::ffff:10.77.2.2"):
            for asked in (ADDRESS, "::ffff:10.77.2.2", "::ffff:a4d:202"):
                names = [x509.DNSName("edge-1"), x509.IPAddress(ip_address(asked))]
                csr = recognize(signing_request(request_pem(names=names), kubelet))
                self.assertEqual((ip_address(ADDRESS),), csr.addresses)
                cluster = Cluster(node("edge-1", ("InternalIP", own)))
                self.assertTrue(cluster.decide(csr).approved, f"{own} {asked}")
                cluster = Cluster(node("edge-1", ("InternalIP", "10.77.2.3")))
                self.assertFalse(cluster.decide(csr).approved, asked)
        for asked in NAME_SPELLINGS[1:]:
            if not asked.isascii():
                continue
            names = [x509.DNSName("edge-1"), x509.DNSName(asked)]
            csr = recognize(signing_request(request_pem(names=names), kubelet))
            cluster = Cluster(node("edge-1", ("Hostname", NAME)))
            self.assertFalse(cluster.decide(csr).approved, repr(asked))

    def test_api(self):
        """Nodes of the API have addresses in any spelling, and are found by the canonical one."""
        for desired, spellings in SPELLINGS.items():
            for spelling in spellings:
                kept = node_from(node("edge-1", ("InternalIP", spelling)))
                self.assertLessEqual(set(map(str, kept.hosts())), {"edge-1", desired}, spelling)

    def test_revocation(self):
        """A revocation applies to the node of exactly that name, or to nothing."""
        self.ask("edge-2", "host=edge-2")
        for spelling in ("EDGE-2", "edge-2.", "edge-2 ", "\uff45dge-2"):
            self.assertRaises(
                RevocationFailed, revoke_node, self.clock, self.directory.path, spelling
            )
        revoke_node(self.clock, self.directory.path, "edge-2")
        self.revocations.refresh()
        self.assertIsNotNone(self.revocations.revoked_at("edge-2"))

    def test_audit(self):
        """A caller at a listener for both families is recorded by its IPv4 address."""
        peer = IPv6Address("TCP", "::ffff:10.77.2.2", 9)
        transport = SimpleNamespace(getPeer=lambda: peer)
        self.assertEqual("10.77.2.2:9", audited_peer(transport).address)

    def test_audited_nodes(self):
        """The node and the destination of a CONNECT, and of a request, for an unknown node."""
        reactor = MemoryReactorClock()
        registry = SessionRegistry(reactor)
        lines = []
        audit = Audit(reactor, lines.append)
        factory = ConnectFactory(reactor, registry)
        factory.audit = audit
        self.addCleanup(factory.close)
        proxy = KubeletProxy(reactor, registry, None, None, None, 2)
        self.addCleanup(proxy.close)
        handle = RequestAudit(audit).wrap(proxy.handle)

        def written():
            entry = json.loads(lines.pop())
            self.assertEqual([], lines)
            if entry["status"] == 400:
                raise BadAuthority(entry["reason"])
            self.assertEqual(503, entry["status"])
            return entry["node"], entry["destination"].removesuffix(":80").strip("[]")

        def tunneled(text):
            line = f"CONNECT {bracketed(text)}:80 HTTP/1.1\r\n"
            caller = MemoryConnection(reactor).open(factory.buildProtocol(None))
            caller.receive(f"{line}Host: a\r\n\r\n".encode())
            return written()

        def requested(text):
            handle(request(head(host=f"{bracketed(text)}:80")))
            return written()

        for index in (0, 1):
            self.each(lambda text, index=index: tunneled(text)[index], BadAuthority)
            self.each(lambda text, index=index: requested(text)[index], BadAuthority)

    def test_networks(self):
        """Networks have one form, too."""
        for text in ("10.0.0.0/8", "::ffff:10.0.0.0/104", "::FFFF:a00:0/104"):
            self.assertEqual("10.0.0.0/8", str(parse_network(text)), text)
        for text in (
            "10.0.0.1/8",
            "::ffff:10.0.0.1/104",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/8/8",
            "010.0.0.0/8",
            "10/8",
            "10.0.0.0",
            "fe80::%eth0/64",
            "10.0.0.0/\u0668",
        ):
            self.assertRaises(BadAuthority, parse_network, text)
            self.assertRaises(BadIdentifiers, parse_identifiers, f"cidr={text}")


class _Extensions:
    """The extensions of a certificate, with other alternative names."""

    def __init__(self, extensions, names):
        self._extensions = extensions
        self._names = names

    def get_extension_for_class(self, kind):
        """Return the names, or the certificate's extension."""
        if kind is x509.SubjectAlternativeName:
            return SimpleNamespace(value=self._names)
        return self._extensions.get_extension_for_class(kind)


class LoopbackTests(World):
    """No node has a name that every machine uses for itself."""

    def test_names(self):
        """Names that every machine uses for itself are rejected at every input of node names."""
        for name in LOOPBACK:
            self.assertTrue(is_machine_specific(canonical_host(name)), name)
            self.assertRaises(BadIdentity, check_node_name, name)
            self.assertRaises(BadIdentifiers, parse_identifiers, f"host=edge-1&host={name}")
            self.assertRaises(EnrolmentRefused, self.ask, name)
            csr = recognize(
                signing_request(
                    request_pem(
                        subject=(("O", "openyurt:yurttunnel"), ("CN", f"tunnel-agent:{name}")),
                        names=[x509.DNSName(name)],
                    ),
                    f"system:node:{name}",
                )
            )
            self.assertFalse(Cluster(node(name)).decide(csr).approved, name)
        for name in ("local", "localhost-1", "localhosts", "localhost.example", "10.77.2.2"):
            self.assertEqual(name, check_node_name(name))

    def test_names_that_the_api_reports(self):
        """A machine whose host name was never set does not become localhost."""
        kept = node_from(node("edge-1", ("Hostname", "localhost"), ("InternalIP", "192.0.2.7")))
        self.assertFalse(kept.has_host("localhost"))
        self.assertTrue(kept.has_host("192.0.2.7"))

    def test_addresses(self):
        """An address that no machine has belongs to nobody; loopback belongs to every node."""
        for item in ("ipv4=0.0.0.0", "ipv6=::", "ipv6=::ffff:0.0.0.0", "ipv4=224.0.0.1"):
            self.assertRaises(BadIdentifiers, parse_identifiers, item)
        for node_name in ("edge-1", "edge-2"):
            self.ask(node_name, f"host={node_name}&ipv4=127.0.0.1&ipv6=::ffff:127.0.0.2")


class ProviderNamesTests(SynchronousTestCase):
    """Names that resemble addresses."""

    def test_names_that_end_in_an_address(self):
        """Nodes of Alibaba Cloud have names like cn-hangzhou.10.0.0.1, which no resolver
        misinterprets.
        """
        name = "cn-hangzhou.10.0.0.1"
        self.assertEqual(name, check_node_name(name))
        self.assertEqual(name, dialed_host(name))
        self.assertEqual((name, 10250), split_authority(f"{name}:10250"))
