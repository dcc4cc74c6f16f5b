"""The template of an agent's certificate in a cluster, and the prefix of its file."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from cryptography import x509

from yurttunnel.pki.certificate_template import CLIENT_SIGNER
from yurttunnel.pki.cluster_identity import common_name_of
from yurttunnel.pki.identity import Identifiers, subject_alternative_names
from yurttunnel.pki.issuer import CLIENT_AUTH, CertificateTemplate
from yurttunnel.pki.names import MAX_HOST_LENGTH, NODE_ORGANIZATION

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
