"""The names and addresses of a node, as a request for its certificate and its object have them."""

from __future__ import annotations

from yurttunnel.http.authority import Address, address_in
from yurttunnel.kube.resources import Object
from yurttunnel.pki.approval_requests import Request
from yurttunnel.pki.cluster_identity import check_cluster_node_name
from yurttunnel.pki.identity import BadIdentity


def further_names(request: Request, node: str) -> list[str]:
    """List the host names beside the node's own that a request asks for, each once."""
    return sorted(set(request.dns_names) - {node})


def names_of(node: str, found: Object) -> tuple[set[str], set[Address]]:
    """Read ``status.addresses`` of a ``Node``, of whatever type they are.

    The name of the node is always one of them. What is no host name that a certificate of a node
    can have, such as one with a wildcard, is none of them.
    """
    hosts, addresses = {node}, set[Address]()
    status = found.get("status")
    reported = status.get("addresses") if isinstance(status, dict) else None
    for each in reported if isinstance(reported, list) else []:
        text = each.get("address") if isinstance(each, dict) else None
        if not isinstance(text, str):
            continue
        if (address := address_in(text)) is not None:
            addresses.add(address)
        elif is_host(text.lower()):
            hosts.add(text.lower())
    return hosts, addresses


def is_host(text: str) -> bool:
    """Return whether it is a host name of the form that names of nodes have."""
    try:
        check_cluster_node_name(text)
    except BadIdentity:
        return False
    return True
