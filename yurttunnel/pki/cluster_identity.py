"""The identity of a node in a certificate of its cluster's authority, and the template of that.

The common name of such a certificate is also the name of a Kubernetes user. A node's name may be
that of a user with more rights than a node, so the common name has a prefix:
``tunnel-agent:edge-1``. A common name holds 64 characters (X.520, ub-common-name), but a node's
name may have 253 (RFC 1123), so a name that is too long is truncated and made unique by its
SHA-256. The complete name is one of the alternative names.

yurttunnel 1.2 gave all nodes one common name, ``tunnel-agent-client``, and approved it with any
alternative names. Such a certificate does not identify a node and is accepted only if the operator
allows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.pki.certificate_template import CLIENT_SIGNER
from yurttunnel.pki.identity import (
    Identifiers,
    NodeIdentity,
    read_identity,
    subject_alternative_names,
)
from yurttunnel.pki.issuer import CLIENT_AUTH, CertificateTemplate
from yurttunnel.pki.metrics import CommonCertificateCounters
from yurttunnel.pki.names import (
    KUBELET_CLIENT_NAME,
    MAX_HOST_LENGTH,
    NODE_ORGANIZATION,
    BadIdentity,
    check_cluster_node_name,
)

COMMON_AGENT_NAME = "tunnel-agent-client"
"""The common name of all agents of yurttunnel 1.2."""

AGENT_NAME_PREFIX = "tunnel-agent:"
"""The prefix of the common names of agents."""

WARNING_INTERVAL = 3600.0
"""Seconds between two warnings about the same node."""
MAX_NODES = 4096
"""The maximum number of nodes whose last warning is remembered."""

_MAX_COMMON_NAME_LENGTH = 64
_TRUNCATED_LENGTH = 30
_DIGEST_LENGTH = 20


def common_name_of(node: str) -> str:
    """Return the common name of the certificate of ``node``: at most 64 characters."""
    name = AGENT_NAME_PREFIX + node
    if len(name) <= _MAX_COMMON_NAME_LENGTH:
        return name
    digest = hashlib.sha256(node.encode("utf-8")).hexdigest()[:_DIGEST_LENGTH]
    return f"{AGENT_NAME_PREFIX}{node[:_TRUNCATED_LENGTH]}-{digest}"


def node_from_names(common_name: str, hosts: Iterable[str]) -> str:
    """Return the node that a certificate with this common name and these DNS names is for.

    It is the one host that this is the common name of. Raises :class:`BadIdentity` if there is none
    or more than one.
    """
    nodes = [host for host in set(hosts) if common_name_of(host) == common_name]
    if len(nodes) != 1:
        raise BadIdentity(
            f"the certificate's common name {common_name!r} is not {AGENT_NAME_PREFIX}NODE for one"
            " of its DNS names"
        )
    return check_cluster_node_name(nodes[0])


def is_common_certificate(certificate: x509.Certificate) -> bool:
    """Return whether it is the certificate of an agent of yurttunnel 1.2, by its common name."""
    return _values(certificate.subject, NameOID.COMMON_NAME) == [COMMON_AGENT_NAME]


def cluster_identity(certificate: x509.Certificate, accept_common: bool = False) -> NodeIdentity:
    """Return the identity of a node from its certificate, which TLS has verified.

    With ``accept_common``, a certificate of yurttunnel 1.2 is accepted, too; its only DNS name is
    the node, and it covers no networks. Raises :class:`BadIdentity` with a sentence if it is not a
    node's certificate.
    """
    if not is_common_certificate(certificate):
        return read_identity(certificate, node_from_names)
    if not accept_common:
        raise BadIdentity(
            f"the certificate's common name is {COMMON_AGENT_NAME}, as all agents of yurttunnel"
            " 1.2 have it, and does not identify the node: upgrade its agent, or start the server"
            " with --accept-common-agent-certificates until that is done"
        )
    identity = read_identity(certificate, _only_host)
    # Nobody has verified any of this, so the identity covers as little as possible.
    narrow = replace(identity.identifiers, networks=frozenset(), default_route=False)
    return replace(identity, identifiers=narrow)


class NodeIdentification:
    """Reads certificates of agents; those of yurttunnel 1.2 only if ``accepts_common``."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, accepts_common: bool) -> None:
        self._clock = clock
        self._accepts_common = accepts_common
        # The time of each node's last warning, the latest last.
        self._warned = BoundedDict[str, float](MAX_NODES)
        self.counters = CommonCertificateCounters()

    def identify(self, certificate: x509.Certificate) -> NodeIdentity:
        """Return the identity in a certificate that TLS has verified; raises ``BadIdentity``."""
        if not is_common_certificate(certificate):
            return cluster_identity(certificate)
        if not self._accepts_common:
            self.counters.refused += 1
        identity = cluster_identity(certificate, self._accepts_common)
        self.counters.accepted += 1
        self._warn(identity.node)
        return identity

    def _warn(self, node: str) -> None:
        now = self._clock.seconds()
        if now - self._warned.get(node, -WARNING_INTERVAL) < WARNING_INTERVAL:
            return
        self._warned[node] = now
        self._log.warn(
            "{node}: accepted with a certificate that every agent of yurttunnel 1.2 can get in"
            " the name of any node, because of --accept-common-agent-certificates; upgrade this"
            " node's agent",
            node=node,
        )


def check_sibling(certificate: x509.Certificate) -> None:
    """Raise :class:`BadIdentity` unless a verified certificate is that of another replica's server.

    It is the certificate that authenticates servers to kubelets: ``tunnel-proxy-client``, without
    alternative names, which every node's certificate has.
    """
    try:
        subject, extensions = certificate.subject, certificate.extensions
        usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise BadIdentity(f"the certificate is malformed: {error}") from None
    except x509.ExtensionNotFound:
        raise BadIdentity("the certificate has no extended key usage") from None
    names = _values(subject, NameOID.COMMON_NAME)
    organizations = _values(subject, NameOID.ORGANIZATION_NAME)
    if names != [KUBELET_CLIENT_NAME] or organizations != [NODE_ORGANIZATION]:
        raise BadIdentity(
            f"the certificate is for {names!r} of {organizations!r}, a server's is for"
            f" {KUBELET_CLIENT_NAME} of {NODE_ORGANIZATION}"
        )
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
        raise BadIdentity("the certificate is not meant for TLS clients")
    if any(isinstance(each.value, x509.SubjectAlternativeName) for each in extensions):
        raise BadIdentity("the certificate has alternative names, a server's has none")


def _only_host(common_name: str, hosts: frozenset[str]) -> str:
    if len(hosts) != 1:
        raise BadIdentity(
            f"the certificate of {common_name} has {len(hosts)} DNS names: it needs one, its"
            " node's name"
        )
    return check_cluster_node_name(next(iter(hosts)))


def _values(subject: x509.Name, kind: x509.ObjectIdentifier) -> list[str | bytes]:
    return [attribute.value for attribute in subject.get_attributes_for_oid(kind)]


AGENT_PREFIX = "yurttunnel-agent"
"""The prefix of the name of the file that stores the certificate."""


def agent_template(node: str, identifiers: Identifiers) -> CertificateTemplate:
    """Return the template of a node's certificate; raises ``BadIdentity`` for invalid names."""
    names = subject_alternative_names(node, identifiers, max_length=MAX_HOST_LENGTH)
    return CertificateTemplate(
        common_name_of(node),
        (NODE_ORGANIZATION,),
        CLIENT_AUTH,
        tuple(name.value for name in names if isinstance(name, x509.DNSName)),
        tuple(
            name.value
            for name in names
            if isinstance(name, x509.IPAddress)
            and isinstance(name.value, IPv4Address | IPv6Address)
        ),
        tuple(name.value for name in names if isinstance(name, x509.UniformResourceIdentifier)),
        signer=CLIENT_SIGNER,
    )
