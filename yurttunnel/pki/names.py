"""The valid names of nodes and hosts, and the names in certificates."""

from __future__ import annotations

import re
from ipaddress import ip_address

from yurttunnel.http.authority import BadAuthority, canonical_host, is_machine_specific

NODE_ORGANIZATION = "openyurt:yurttunnel"
"""The organization in every node certificate, the same in all versions of yurttunnel."""

MAX_NODE_NAME_LENGTH = 64
"""Characters: the limit of a certificate's common name (X.520, ub-common-name)."""
MAX_HOST_LENGTH = 253
"""Characters (RFC 1123)."""

CALLER_NAME = "kube-apiserver-kubelet-client"
"""The common name of callers of the interception ports, as in clusters made by kubeadm."""

KUBELET_CLIENT_NAME = "tunnel-proxy-client"
"""The common name of the server's certificate for kubelets, as in yurttunnel 1.2, with the
organization of the project. Kubelets that authorize callers bind a role to either."""

_LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


class BadIdentity(ValueError):
    """A name that no node can have, or a certificate that does not name a node."""


def check_node_name(name: str, max_length: int = MAX_NODE_NAME_LENGTH) -> str:
    """Return ``name`` if a node can have it.

    Node names are lower-case RFC 1123 subdomains of at most ``max_length`` characters, by default
    the limit of a common name. Raises :class:`BadIdentity` for everything else, such as line ends,
    slashes or NUL, and for names by which every machine refers to itself (``localhost``,
    ``127.0.0.1``).
    """
    if len(name) > max_length:
        raise BadIdentity(
            f"{name[:max_length]!r}... is longer than the"
            f" {max_length} characters that a node's name can have"
        )
    if not _SUBDOMAIN.fullmatch(name):
        raise BadIdentity(
            f"{name!r} is not a node's name: use lower case letters, digits, '-' and '.',"
            " beginning and ending with a letter or digit, at most 63 from '.' to '.'"
        )
    return _check_unique(name)


def check_cluster_node_name(name: str) -> str:
    """Return ``name`` if a node of a cluster can have it, with at most 253 characters.

    Raises :class:`BadIdentity` otherwise.
    """
    return check_node_name(name, MAX_HOST_LENGTH)


def is_cluster_node_name(text: str) -> bool:
    """Return whether ``text`` is a valid name of a node of a cluster."""
    try:
        check_cluster_node_name(text)
    except BadIdentity:
        return False
    return True


def check_host(host: str) -> str:
    """Return ``host`` if it is a valid host name; raises :class:`BadIdentity`."""
    if len(host) > MAX_HOST_LENGTH or not _SUBDOMAIN.fullmatch(host):
        raise BadIdentity("not a host name in lower case (RFC 1123)")
    return _check_unique(host)


def _check_unique(name: str) -> str:
    """Return ``name`` if it can identify one machine; raises :class:`BadIdentity`."""
    try:
        host = canonical_host(name)
    except BadAuthority:
        raise BadIdentity(
            f"{name!r} has numbers only, and inet_aton reads it as an IPv4 address: choose a name"
            " with a letter, or the whole address"
        ) from None
    if is_machine_specific(host):
        raise BadIdentity(f"{name!r} is what every machine calls itself: choose another name")
    return name


def host_is_address(host: str) -> bool:
    """Return whether ``host`` is an address literal rather than a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
