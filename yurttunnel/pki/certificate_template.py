"""What certificates of servers and hubs in a cluster are like, and where they are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address

from yurttunnel.pki.issuer import CLIENT_AUTH, SERVER_AUTH, Address, CertificateTemplate
from yurttunnel.pki.names import KUBELET_CLIENT_NAME, NODE_ORGANIZATION

SERVING_SIGNER = "kubernetes.io/kubelet-serving"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
NODE_USER_PREFIX = "system:node:"
"""What the user names of nodes begin with (k8s.io/kubernetes/pkg/auth/nodeidentifier)."""
NODES_ORGANIZATION = "system:nodes"
SERVER_NAME = f"{NODE_USER_PREFIX}tunnel-server"
"""The common name of the server's serving certificate; its signer demands the prefix."""

SERVER_PREFIX = "yurttunnel-server"
HUB_ORGANIZATION = "openyurt:yurthub"
"""What the hub of a node is a member of, beside the group of nodes."""
HUB_ADDRESS = IPv4Address("169.254.2.1")
HUB_ADDRESS_6 = IPv6Address("fd00::2:1")
"""At which pods find the hub of their node, unless it is told another address."""
HUB_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
"""The names by which pods ask the API, and so the hub that stands in for it on their node."""

PROXY_CLIENT_PREFIX = "yurttunnel-server-proxy-client"
HUB_PREFIX = "yurthub"
HUB_SERVER_PREFIX = "yurthub-server"
"""What the names of the files begin with in which they are kept."""


def serving_template(
    hosts: Collection[str] = (), addresses: Collection[Address] = ()
) -> CertificateTemplate:
    """Describe the certificate of a server by which agents and callers know it."""
    return CertificateTemplate(
        SERVER_NAME,
        (NODES_ORGANIZATION,),
        SERVER_AUTH,
        tuple(sorted(set(hosts))),
        _in_order(addresses),
        signer=SERVING_SIGNER,
    )


def proxy_client_template() -> CertificateTemplate:
    """Describe the certificate by which kubelets and the other replicas know a server."""
    return CertificateTemplate(
        KUBELET_CLIENT_NAME, (NODE_ORGANIZATION,), CLIENT_AUTH, signer=CLIENT_SIGNER
    )


def hub_client_template(node: str, further: Sequence[str] = ()) -> CertificateTemplate:
    """Describe the certificate by which the API knows the hub of ``node``: as that node.

    ``further`` are organizations that an operator wants beside its own.
    """
    organizations = dict.fromkeys([HUB_ORGANIZATION, NODES_ORGANIZATION, *further])
    return CertificateTemplate(
        f"{NODE_USER_PREFIX}{node}", tuple(organizations), CLIENT_AUTH, signer=CLIENT_SIGNER
    )


def hub_serving_template(node: str, addresses: Collection[Address]) -> CertificateTemplate:
    """Describe the certificate by which pods know the hub of ``node``, as they know the API."""
    return CertificateTemplate(
        f"{NODE_USER_PREFIX}{node}",
        (NODES_ORGANIZATION,),
        SERVER_AUTH,
        HUB_NAMES,
        _in_order(addresses),
        signer=SERVING_SIGNER,
    )


def _in_order(addresses: Collection[Address]) -> tuple[Address, ...]:
    return tuple(sorted(set(addresses), key=lambda a: (a.version, int(a))))
