"""Templates of the certificates of servers and hubs in a cluster, and their file prefixes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address

from yurttunnel.pki.issuer import CLIENT_AUTH, SERVER_AUTH, Address, CertificateTemplate
from yurttunnel.pki.names import KUBELET_CLIENT_NAME, NODE_ORGANIZATION

SERVING_SIGNER = "kubernetes.io/kubelet-serving"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
NODE_USER_PREFIX = "system:node:"
"""The prefix of the user names of nodes (k8s.io/kubernetes/pkg/auth/nodeidentifier)."""
NODES_ORGANIZATION = "system:nodes"
SERVER_NAME = f"{NODE_USER_PREFIX}tunnel-server"
"""The common name of the server's serving certificate; its signer requires the prefix."""

SERVER_PREFIX = "yurttunnel-server"
HUB_ORGANIZATION = "openyurt:yurthub"
"""The organization of a node's hub, in addition to the group of nodes."""
HUB_ADDRESS = IPv4Address("169.254.2.1")
HUB_ADDRESS_6 = IPv6Address("fd00::2:1")
"""The default address at which pods reach the hub of their node."""
HUB_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
"""The API's names, by which pods also reach the hub of their node in its place."""

PROXY_CLIENT_PREFIX = "yurttunnel-server-proxy-client"
HUB_PREFIX = "yurthub"
HUB_SERVER_PREFIX = "yurthub-server"
"""The prefixes of the names of the files that store the certificates."""


def serving_template(
    hosts: Collection[str] = (), addresses: Collection[Address] = ()
) -> CertificateTemplate:
    """Return the template of the certificate that authenticates a server to agents and callers."""
    return CertificateTemplate(
        SERVER_NAME,
        (NODES_ORGANIZATION,),
        SERVER_AUTH,
        tuple(sorted(set(hosts))),
        _sorted_addresses(addresses),
        signer=SERVING_SIGNER,
    )


def proxy_client_template() -> CertificateTemplate:
    """Return the template of the certificate for kubelets and the other replicas."""
    return CertificateTemplate(
        KUBELET_CLIENT_NAME, (NODE_ORGANIZATION,), CLIENT_AUTH, signer=CLIENT_SIGNER
    )


def hub_client_template(node: str, further: Sequence[str] = ()) -> CertificateTemplate:
    """Return the template of the certificate that authenticates the hub of ``node`` to the API.

    The hub authenticates as that node. ``further`` are organizations that an operator has added.
    """
    organizations = dict.fromkeys([HUB_ORGANIZATION, NODES_ORGANIZATION, *further])
    return CertificateTemplate(
        f"{NODE_USER_PREFIX}{node}", tuple(organizations), CLIENT_AUTH, signer=CLIENT_SIGNER
    )


def hub_serving_template(node: str, addresses: Collection[Address]) -> CertificateTemplate:
    """Return the template of the certificate that authenticates the hub of ``node`` to pods."""
    return CertificateTemplate(
        f"{NODE_USER_PREFIX}{node}",
        (NODES_ORGANIZATION,),
        SERVER_AUTH,
        HUB_NAMES,
        _sorted_addresses(addresses),
        signer=SERVING_SIGNER,
    )


def _sorted_addresses(addresses: Collection[Address]) -> tuple[Address, ...]:
    return tuple(sorted(set(addresses), key=lambda a: (a.version, int(a))))
