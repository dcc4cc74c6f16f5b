"""A server's credentials and trust without a cluster: an embedded authority and enrolled nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.own_addresses import own_addresses
from yurttunnel.pki.admission import Admission
from yurttunnel.pki.authority import (
    CALLER_LIFETIME,
    DEFAULT_NODE_LIFETIME,
    SERVER_COMMON_NAME,
    SERVER_LIFETIME,
    Authority,
)
from yurttunnel.pki.certificate_store import CertificateStore, PairStore
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.credentials import PrivateKey
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.embedded_issuer import own_certificate
from yurttunnel.pki.enrolment_server import EnrolmentFactory
from yurttunnel.pki.identity import NodeIdentity, identity_from_certificate
from yurttunnel.pki.interception import InterceptionContexts
from yurttunnel.pki.issuer import CLIENT_AUTH, SERVER_AUTH, CertificateTemplate, Template
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.kubelets import EMBEDDED_AUTHORITY, KubeletVerification
from yurttunnel.pki.names import (
    CALLER_NAME,
    KUBELET_CLIENT_NAME,
    NODE_ORGANIZATION,
    BadIdentity,
    host_is_address,
)
from yurttunnel.pki.ownership import Ownership
from yurttunnel.pki.records import NodeRecords
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import DEFAULT_TOKEN_LIFETIME, JOIN_TOKEN_FILE, TokenStore
from yurttunnel.server.trust import ServerTrust, TrustSettings
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL

SERVER_FILE = "server.pem"
KUBELET_CLIENT_FILE = "kubelet-client.pem"
CALLER_CERTIFICATE = "client.crt"
CALLER_KEY = "client.key"


class StandaloneServerTrust(ServerTrust):
    """A server's credentials and trust, stored in its state directory. In addition to those of all
    servers:

    - ``enrolment_factory``: builds the protocol for connections that negotiated enrolment;
    - ``on_revoked(callback)``: ``callback(node)`` ends the node's session;
    - ``ownership``: which node has which name and address;
    - ``authority``, ``records``, ``revocations``, ``tokens`` and ``join_token``: the parts;
    - ``directory``: where all of it is.

    As a service it renews the server's certificates, replaces the join token, and watches for
    revocations and new authorities of kubelets.
    """

    def __init__(
        self,
        clock: IReactorTime,
        state_dir: str | Path,
        bind_addresses: Iterable[str],
        names: Iterable[str] = (),
        node_lifetime: float = DEFAULT_NODE_LIFETIME,
        token_lifetime: float = DEFAULT_TOKEN_LIFETIME,
        kubelet_verify: KubeletVerification = KubeletVerification.AUTO,
        kubelet_ca: Path | None = None,
    ) -> None:
        """Load or create the contents of ``state_dir``; raises :class:`StateError`.

        ``bind_addresses`` and ``names`` (host names and addresses) are what agents may dial.
        ``kubelet_ca`` is a file of the authorities that verify kubelets, in place of the embedded
        one; raises :class:`BadBundle` if it is unusable. Lifetimes are in seconds. On return,
        ``ca.crt``, ``join-token``, ``client.crt`` and ``client.key`` exist.
        """
        directory = StateDirectory.open(state_dir)
        self.authority = authority = Authority.open(clock, directory)
        self.tokens = tokens = TokenStore(clock, directory, authority.pin)
        self.directory = directory
        self.records = records = NodeRecords(directory)
        self.revocations = Revocations(clock, directory, records)
        self.on_revoked = self.revocations.on_revoked
        self.ownership = Ownership(records, self.revocations)
        self._admission = Admission(
            clock, authority, tokens, records, self.revocations, self.ownership, node_lifetime
        )
        super().__init__(
            clock,
            own_certificate(
                clock,
                authority,
                "certificate of the server",
                ServerTemplate(bind_addresses, names),
                CertificateStore(directory, SERVER_FILE),
                SERVER_LIFETIME,
            ),
            own_certificate(
                clock,
                authority,
                "certificate of the server for kubelets",
                CertificateTemplate(KUBELET_CLIENT_NAME, (NODE_ORGANIZATION,), CLIENT_AUTH),
                CertificateStore(directory, KUBELET_CLIENT_FILE),
                CALLER_LIFETIME,
            ),
            lambda: (authority.certificate,),
            TrustSettings((CALLER_NAME,), None, kubelet_verify, kubelet_ca),
        )
        self.build((TUNNEL_PROTOCOL,), (ENROLMENT_PROTOCOL,), EMBEDDED_AUTHORITY)
        self.interception = InterceptionContexts(clock, authority, (CALLER_NAME,))
        self.enrolment_factory = EnrolmentFactory(clock, self._admission)
        caller = own_certificate(
            clock,
            authority,
            "certificate of callers",
            CertificateTemplate(CALLER_NAME, (), CLIENT_AUTH),
            PairStore(directory, CALLER_CERTIFICATE, CALLER_KEY),
            CALLER_LIFETIME,
        )
        self.join_token = join_token = JoinTokenFile(
            clock, directory, tokens, self.revocations, token_lifetime
        )
        _make_token(directory, join_token)
        if caller.storage_error is not None and directory.fingerprint(CALLER_CERTIFICATE) is None:
            raise caller.storage_error
        for service in (self.revocations, join_token, caller):
            service.setServiceParent(self)

    def release_directory(self) -> Deferred[bool]:
        """Stop enrolling nodes and creating join tokens, which a successor would not know.

        A successor may use the directory from now on.
        """
        self._admission.close()
        return self.join_token.stopService()

    def identify(self, certificate: x509.Certificate) -> NodeIdentity:
        """Return a node's identity from its certificate, which TLS has verified already.

        Raises :class:`BadIdentity`, also if the certificate covers what belongs to another node.
        """
        identity = identity_from_certificate(certificate)
        node = identity.node
        # A revoked node must get that reason, and its names may belong to another node by now.
        if not self.revocations.is_revoked(identity):
            for claim, owner in self.ownership.claims_of_other_nodes(
                node, identity.identifiers
            ).items():
                raise BadIdentity(
                    f"the certificate of {node} covers {claim}, which belongs to node {owner}:"
                    f" revoke {node} and enroll it without that, or revoke {owner}"
                )
        return identity

    def problem(self) -> str | None:
        """Return why agents do not trust the server."""
        return self.authority.problem() or self.serving.problem()

    def kubelet_problem(self) -> str | None:
        """Return what is wrong with the certificate for kubelets, or the file of authorities."""
        return self.client.problem() or self.client.warning() or super().kubelet_problem()


def _make_token(directory: StateDirectory, join_token: JoinTokenFile) -> None:
    """Create the join token, or replace it if that is due.

    If the disk is full, the server starts with the existing one: sessions do not need it, and a
    running server retries.
    """
    try:
        join_token.refresh()
    except StateError as error:
        if not error.disk_is_full or directory.fingerprint(JOIN_TOKEN_FILE) is None:
            raise


class ServerTemplate:
    """The template of the server's certificate: each request contains the addresses that the
    machine has at that time.

    Addresses may be added after the start, by DHCP or as a virtual address. No change of addresses
    makes a certificate be replaced: it is compared to those of the start, or of its request. Raises
    :class:`StateError` for a name that no certificate can have.
    """

    usage = SERVER_AUTH

    def __init__(self, bind_addresses: Iterable[str], names: Iterable[str]) -> None:
        self._bind_addresses = tuple(bind_addresses)
        self._names = tuple(names)
        self._template = self._now()

    def request(self, key: PrivateKey) -> bytes:
        """Return the request, for what agents may dial now."""
        self._template = self._now()
        return self._template.request(key)

    def problem(self, certificate: x509.Certificate) -> str | None:
        """Complete "the certificate ..." if it does not match; extra names are allowed."""
        return self._template.problem(certificate)

    def covers(self, other: Template) -> bool:
        """Return whether it is the same: there is one for each server."""
        return other is self

    def _now(self) -> CertificateTemplate:
        return server_template(self._bind_addresses, self._names)


def server_template(bind_addresses: Iterable[str], names: Iterable[str]) -> CertificateTemplate:
    """Return the template of the server's certificate, for everything that agents may dial.

    These are ``names``, the bind addresses (all addresses of the machine if one is a wildcard), the
    machine's name and loopback. Raises :class:`StateError` for a name that no certificate can have.
    """
    hosts = {"localhost"}
    addresses: set[IPv4Address | IPv6Address] = {ip_address("127.0.0.1"), ip_address("::1")}
    machine = socket.gethostname().lower()
    for name in (*bind_addresses, *names, machine):
        if not name:
            continue
        if host_is_address(name):
            # A zone is valid on this machine only: no certificate has one.
            addresses.add(ip_address(name.partition("%")[0]))
        elif name.isascii():
            hosts.add(name.lower())
        else:
            raise StateError(
                f"{name!r} cannot be in the server's certificate: write it in its ASCII form"
            )
    wildcards = {address for address in addresses if address.is_unspecified}
    for wildcard in wildcards:
        # The IPv6 wildcard also accepts IPv4 connections.
        own = own_addresses()
        addresses |= own if wildcard.version == 6 else {a for a in own if a.version == 4}
    return CertificateTemplate(
        SERVER_COMMON_NAME,
        (),
        SERVER_AUTH,
        tuple(sorted(hosts)),
        tuple(sorted(addresses - wildcards, key=lambda a: (a.version, int(a)))),
    )
