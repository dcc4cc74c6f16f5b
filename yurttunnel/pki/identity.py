"""The identity of a node in its verified certificate, and the identifiers of an agent.

Identifiers have two forms. On command lines and in the HELLO they are text in the syntax of URL
queries (:func:`parse_identifiers`); in certificates they are alternative names
(:func:`subject_alternative_names`, :func:`identity_from_certificate`):

========================  =========================  =========================================
identifier                text                       certificate
========================  =========================  =========================================
the node's own name       ``host=edge-1``            common name, and a DNS name
further hosts             ``host=camera.site-7``     DNS name
addresses                 ``ipv4=192.0.2.7``,        IP address
                          ``ipv6=2001:db8::7``
networks                  ``cidr=10.0.0.0/8``        URI ``yurttunnel:cidr=10.0.0.0/8``
                          (``/32``: an address)
default route             ``default-route=true``     URI ``yurttunnel:default-route=true``
enrolment (see below)     --                         URI ``yurttunnel:enrolment=<id>``
========================  =========================  =========================================

A node's certificate has the organization ``openyurt:yurttunnel`` and is valid for TLS clients. An
*enrolment* is one use of a join token by a node: every renewal of a certificate keeps it, and
revoking a node revokes it. Certificates of a cluster's CA have none.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from yurttunnel.http.authority import Address, Network, canonical_host, parse_network
from yurttunnel.pki.names import (
    MAX_NODE_NAME_LENGTH,
    NODE_ORGANIZATION,
    BadIdentity,
    check_host,
    check_node_name,
)
from yurttunnel.wire.hello import HELLO_LIMIT

MAX_IDENTIFIERS = 256
"""The maximum number of identifiers of one node."""

_URI_SCHEME = "yurttunnel:"
_ENROLMENT = re.compile("[0-9a-f]{1,64}")


class BadIdentifiers(ValueError):
    """Identifiers that cannot be parsed; one line quotes the invalid item."""


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The destinations for which an agent may be chosen.

    Named as in the ``--agent-identifiers`` flag of the agent of
    https://github.com/kubernetes-sigs/apiserver-network-proxy, which yurttunnel 1.2 took over:
    ``host``, ``ipv4`` and ``ipv6``, ``cidr``, ``default-route``. All of them are in the canonical
    form of :mod:`yurttunnel.http.authority`.
    """

    hosts: frozenset[str]
    addresses: frozenset[Address] = frozenset()
    networks: frozenset[Network] = frozenset()
    default_route: bool = False


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The node and the identifiers in a node's certificate.

    ``not_before`` and ``not_after`` are the certificate's, in UTC. ``enrolment`` is empty if the
    embedded authority did not issue the certificate.
    """

    node: str
    identifiers: Identifiers
    not_before: datetime.datetime
    not_after: datetime.datetime
    enrolment: str = ""


def parse_identifiers(text: str, warn: Callable[[str], None] | None = None) -> Identifiers:
    """Parse the ``--agent-identifiers`` syntax.

    ``text`` is ``key=value`` items joined by ``&``, with percent-encoding; keys may be repeated.
    Commas instead of ``&`` are also accepted, as yurttunnel 0.3 documented. ``uid`` never had an
    effect and is ignored; ``warn`` is called with a sentence about it.

    Raises :class:`BadIdentifiers`.
    """
    builder = _IdentifiersBuilder()
    separator = "," if "&" not in text and "," in text else "&"
    items = [item for item in text.strip().split(separator) if item]
    if not items:
        raise BadIdentifiers("no identifier is given: write for example host=edge-1")
    if len(items) > MAX_IDENTIFIERS:
        raise BadIdentifiers(f"more than {MAX_IDENTIFIERS} identifiers are given")
    for item in items:
        key, equals, value = item.strip().partition("=")
        if not equals:
            raise BadIdentifiers(f"{item[:100]!r} is not of the form key=value")
        if key == "uid":
            if warn is not None:
                warn(f"{item[:100]!r} is ignored: nodes are not chosen by uid")
        else:
            builder.add(key, unquote(value))
    return builder.identifiers()


def format_identifiers(identifiers: Identifiers) -> str:
    """Return the text form that :func:`parse_identifiers` accepts, in a fixed order."""
    return "&".join(
        [f"host={host}" for host in sorted(identifiers.hosts)]
        + [f"ipv{a.version}={a}" for a in _sorted_addresses(identifiers.addresses)]
        + _network_items(identifiers)
    )


def subject_alternative_names(
    node: str, identifiers: Identifiers, enrolment: str = "", max_length: int = MAX_NODE_NAME_LENGTH
) -> list[x509.GeneralName]:
    """List the alternative names of a certificate for ``node``, the node's own name first.

    Raises :class:`BadIdentity` for names and numbers of names that certificates cannot have, and if
    the node's name has more than ``max_length`` characters.
    """
    check_node_name(node, max_length)
    hosts = sorted(identifiers.hosts - {node})
    for host in hosts:
        check_host(host)
    items = _network_items(identifiers)
    if len(hosts) + len(identifiers.addresses) + len(items) >= MAX_IDENTIFIERS:
        raise BadIdentity(f"{node} has more than {MAX_IDENTIFIERS} identifiers")
    if enrolment:
        items.append(f"enrolment={enrolment}")
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in [node, *hosts]]
    names += [x509.IPAddress(address) for address in _sorted_addresses(identifiers.addresses)]
    names += [x509.UniformResourceIdentifier(_URI_SCHEME + item) for item in items]
    return names


def identity_from_certificate(certificate: x509.Certificate) -> NodeIdentity:
    """Return the identity of a node from its certificate, which TLS has verified.

    Raises :class:`BadIdentity` with a sentence if it is not a node's certificate.
    """
    return read_identity(certificate, _node_from_names)


def read_identity(
    certificate: x509.Certificate, node_of: Callable[[str, frozenset[str]], str]
) -> NodeIdentity:
    """Read a verified certificate whose node is ``node_of(common name, DNS names)``.

    Raises :class:`BadIdentity`, as does ``node_of`` if the two do not name a node.
    """
    names, subject = _names_of_client(certificate)
    organizations = [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if organizations != [NODE_ORGANIZATION]:
        raise BadIdentity(
            f"the certificate's organization is {organizations!r}, a node's is {NODE_ORGANIZATION}"
        )
    common_names = [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(common_names) != 1 or not isinstance(common_names[0], str):
        raise BadIdentity("the certificate does not have exactly one common name")
    builder = _IdentifiersBuilder()
    try:
        _collect_names(names, builder)
    except BadIdentifiers as error:
        raise BadIdentity(f"the certificate of {common_names[0]!r} is malformed: {error}") from None
    return NodeIdentity(
        node=node_of(common_names[0], frozenset(builder.hosts)),
        identifiers=builder.identifiers(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        enrolment=builder.enrolment,
    )


def _names_of_client(
    certificate: x509.Certificate,
) -> tuple[x509.SubjectAlternativeName, x509.Name]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        subject = certificate.subject
    except x509.ExtensionNotFound as error:
        missing = error.oid._name
        raise BadIdentity(f"the certificate has no {missing}: it is not a node's") from None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise BadIdentity(f"the certificate is malformed: {error}") from None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
        raise BadIdentity("the certificate is not meant for TLS clients")
    return names, subject


def _node_from_names(common_name: str, hosts: frozenset[str]) -> str:
    node = check_node_name(common_name)
    if node not in hosts:
        raise BadIdentity(f"the certificate's common name {node} is not among its DNS names")
    return node


def uncovered_identifiers(identity: NodeIdentity, claimed: Identifiers) -> list[str]:
    """List the items of ``claimed``, in text form, that the certificate does not cover.

    A network covers the networks and the addresses within it; the default route covers every
    network but no address or name.
    """
    own = identity.identifiers
    missing = Identifiers(
        hosts=claimed.hosts - own.hosts,
        addresses=frozenset(a for a in claimed.addresses if not _covers_address(own, a)),
        networks=frozenset(n for n in claimed.networks if not _covers_network(own, n)),
        default_route=claimed.default_route and not own.default_route,
    )
    return format_identifiers(missing).split("&") if missing != Identifiers(frozenset()) else []


@dataclass(slots=True)
class _IdentifiersBuilder:
    """Identifiers collected item by item during parsing."""

    hosts: set[str] = field(default_factory=set)
    addresses: set[Address] = field(default_factory=set)
    networks: set[Network] = field(default_factory=set)
    default_route: bool = False
    enrolment: str = ""

    def add(self, key: str, value: str) -> None:
        """Add an item; raises :class:`BadIdentifiers`."""
        item = f"{key}={value}"[:100]
        try:
            match key:
                case "host":
                    self.hosts.add(check_host(value))
                case "ipv4" | "ipv6":
                    self.addresses.add(_address(key, value))
                case "cidr":
                    self._add_network(parse_network(value))
                case "default-route":
                    self.default_route = {"true": True, "false": False}[value]
                case _:
                    raise BadIdentifiers(
                        f"{item!r}: the key is none of host, ipv4, ipv6, cidr, default-route"
                    )
        except BadIdentifiers:
            raise
        except KeyError:
            raise BadIdentifiers(f"{item!r}: the value is neither true nor false") from None
        except (ValueError, BadIdentity) as error:
            raise BadIdentifiers(f"{item!r}: {_one_line(error)}") from None

    def count(self) -> int:
        """Return the number of identifiers."""
        ways = len(self.hosts) + len(self.addresses) + len(self.networks)
        return ways + self.default_route

    def _add_network(self, network: Network) -> None:
        """Add a network; a network of one address is added as that address."""
        if network.prefixlen < network.max_prefixlen:
            self.networks.add(network)
        else:
            self.addresses.add(_check_unicast(network.network_address))

    def identifiers(self) -> Identifiers:
        """Return the collected identifiers."""
        return Identifiers(
            frozenset(self.hosts),
            frozenset(self.addresses),
            frozenset(self.networks),
            self.default_route,
        )


def _collect_names(names: x509.SubjectAlternativeName, builder: _IdentifiersBuilder) -> None:
    if len(names) > MAX_IDENTIFIERS + 1:
        raise BadIdentifiers(f"it has more than {MAX_IDENTIFIERS} names")
    for name in names:
        if isinstance(name, x509.DNSName):
            builder.add("host", name.value)
        elif isinstance(name, x509.IPAddress):
            builder.add(f"ipv{name.value.version}", str(name.value))
        elif isinstance(name, x509.UniformResourceIdentifier):
            scheme, key, value = _split_uri(name.value)
            if scheme and key == "enrolment" and _ENROLMENT.fullmatch(value):
                builder.enrolment = value
            elif scheme:
                builder.add(key, value)
        else:
            raise BadIdentifiers(f"it has a name of an unexpected kind, {type(name).__name__}")
    # One name more is allowed for the enrolment. Identities are sent to sibling servers, which
    # reject longer lists and close the session with the sender.
    if builder.count() > MAX_IDENTIFIERS:
        raise BadIdentifiers(f"it has more than {MAX_IDENTIFIERS} identifiers")
    if len(format_identifiers(builder.identifiers())) > HELLO_LIMIT:
        raise BadIdentifiers(f"its identifiers have more than {HELLO_LIMIT} characters")


def _split_uri(uri: str) -> tuple[bool, str, str]:
    """Return whether the URI is one of ours, its key and its value; others (SPIFFE) are ignored."""
    key, _, value = uri.removeprefix(_URI_SCHEME).partition("=")
    return uri.startswith(_URI_SCHEME), key, value


def _address(key: str, text: str) -> Address:
    """Parse a value of ``ipv4`` or ``ipv6``; an IPv4-mapped address becomes the IPv4 address.

    Loopback and link-local addresses are allowed: a caller that uses one also names the node.
    """
    given = ip_address(text)
    if key != f"ipv{given.version}":
        raise ValueError(f"an address of IPv{given.version}: write ipv{given.version}={given}")
    address = canonical_host(text)
    assert not isinstance(address, str)
    return _check_unicast(address)


def _check_unicast(address: Address) -> Address:
    if address.is_unspecified or address.is_multicast:
        raise ValueError("not the address of one machine")
    return address


def _covers_address(own: Identifiers, address: Address) -> bool:
    return address in own.addresses or any(address in network for network in own.networks)


def _covers_network(own: Identifiers, network: Network) -> bool:
    return own.default_route or any(_is_subnet(network, other) for other in own.networks)


def _is_subnet(inner: Network, outer: Network) -> bool:
    return inner.network_address in outer and inner.prefixlen >= outer.prefixlen


def _network_items(identifiers: Identifiers) -> list[str]:
    networks = sorted(identifiers.networks, key=lambda n: (n.version, int(n[0]), n.prefixlen))
    items = [f"cidr={network}" for network in networks]
    if identifiers.default_route:
        items.append("default-route=true")
    return items


def _sorted_addresses(addresses: Iterable[Address]) -> list[Address]:
    return sorted(addresses, key=lambda a: (a.version, int(a)))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
