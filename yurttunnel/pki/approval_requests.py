"""Parsing of the tunnel's certificate signing requests from the API's objects.

Requests are parsed as strictly as possible, because kube-controller-manager parses them again and
signs what Go's parser finds. A valid request is one PEM block and nothing else. Its subject has one
common name, one organization (a hub's request may have several) and nothing else. Its only
extension is the alternative names, in one attribute: Go merges several attributes
(``parseCSRExtensions`` of crypto/x509), while other parsers read only the first.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from yurttunnel.cluster.fields import mapping, objects
from yurttunnel.http.authority import Address, canonical_address
from yurttunnel.kube.resources import Object
from yurttunnel.pki.authority import BadRequest, key_of_request
from yurttunnel.pki.certificate_template import (
    CLIENT_SIGNER,
    HUB_NAMES,
    HUB_ORGANIZATION,
    NODE_USER_PREFIX,
    SERVER_NAME,
    SERVING_SIGNER,
)
from yurttunnel.pki.cluster_identity import AGENT_NAME_PREFIX
from yurttunnel.pki.names import KUBELET_CLIENT_NAME

SIGNERS = (SERVING_SIGNER, CLIENT_SIGNER)
"""The signers that issue the tunnel's certificates."""

MAX_REQUEST = 256 * 1024
"""Characters of ``spec.request``. The request for a certificate of 100 kB, the most that clients
accept (``MOST_OF_NODES`` of ``cluster/serving_names.py``), has 180,000. Anybody who may create
requests can create one of more than a megabyte, which would take most of a second to parse."""

# The content is untrusted, so matching must take linear time: possessive quantifiers do not
# backtrack.
_PEM = re.compile(
    rb"\s*+-----BEGIN CERTIFICATE REQUEST-----\s++([A-Za-z0-9+/=\s]++)"
    rb"-----END CERTIFICATE REQUEST-----\s*+"
)
_LABEL = "[A-Za-z0-9_](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_LONGEST_HOST = 253
_EXTENSION_REQUEST = x509.ObjectIdentifier("1.2.840.113549.1.9.14")  # RFC 2985 section 5.4.2


class Kind(enum.Enum):
    """The kind of a requested certificate; the value is for people and metrics."""

    SERVING = "serving"
    """Authenticates a server to agents and callers."""
    PROXY_CLIENT = "proxy-client"
    """Authenticates a server to kubelets and other replicas."""
    AGENT = "agent"
    """Authenticates a node to servers."""
    HUB = "hub"
    """Authenticates a node's hub to the API, as that node."""
    HUB_SERVING = "hub-serving"
    """Authenticates a node's hub to pods, by the API's names."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The creator of a request, as authenticated by the API (in the request's ``spec``)."""

    username: str
    groups: frozenset[str]
    extra: Mapping[str, tuple[str, ...]]

    def only(self, key: str) -> str | None:
        """Return the value of ``key`` in ``extra`` if there is exactly one."""
        values = self.extra.get(key, ())
        return values[0] if len(values) == 1 and values[0] else None


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a certificate of the tunnel.

    ``fault`` describes what is wrong with its form, and ``key_fault`` what is wrong with its key or
    signature; both are empty for a valid request. If ``fault`` is set, the requested names are
    incomplete.
    """

    kind: Kind
    name: str
    common_name: str
    requester: Requester
    usages: frozenset[str]
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    fault: str = ""
    key_fault: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """The kind of a request, its common name, and its decoded form."""

    kind: Kind
    common_name: str
    loaded: x509.CertificateSigningRequest


class _Malformed(Exception):
    """A request that does not have the tunnel's form; the text describes the fault."""


def is_decided(csr: Object) -> bool:
    """Return whether a request has been approved or denied, or has failed at its signer."""
    conditions = objects(mapping(csr.get("status")).get("conditions"))
    types = {each.get("type") for each in conditions}
    return not types.isdisjoint({"Approved", "Denied", "Failed"})


def is_for_tunnel(csr: Object) -> bool:
    """Return whether a ``CertificateSigningRequest`` is for a certificate of the tunnel.

    Only the signer and the common name are checked, and for user names of nodes the hub's
    organization or the names of the API.
    """
    return _find(csr) is not None


def recognize(csr: Object) -> Request | None:
    """Parse a ``CertificateSigningRequest`` (certificates.k8s.io/v1).

    Returns ``None`` if it is not for a certificate of the tunnel, or cannot be decoded.
    """
    found = _find(csr)
    if found is None:
        return None
    spec = mapping(csr.get("spec"))
    request = Request(
        kind=found.kind,
        name=str(mapping(csr.get("metadata")).get("name")),
        common_name=found.common_name,
        requester=Requester(
            str(spec.get("username")),
            frozenset(_texts(spec.get("groups"))),
            _extra(spec.get("extra")),
        ),
        usages=frozenset(_texts(spec.get("usages"))),
    )
    try:
        several = found.kind is Kind.HUB
        organizations = _organizations(found.loaded.subject, several)
        hosts, addresses = _alternative_names(found.loaded)
    except _Malformed as fault:
        return replace(request, fault=str(fault))
    return replace(
        request,
        organizations=organizations,
        dns_names=hosts,
        addresses=addresses,
        key_fault=_key_fault(found.loaded),
    )


def _find(csr: Object) -> _Found | None:
    spec = mapping(csr.get("spec"))
    signer = spec.get("signerName")
    if signer not in SIGNERS:
        return None
    try:
        loaded = _load(spec.get("request"))
        subject = [(each.oid, each.value) for each in loaded.subject]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # TypeError: a name has an ASN.1 type that is invalid for names.
        return None
    for oid, value in subject:
        kind = _kind(signer, value, loaded) if oid == NameOID.COMMON_NAME else None
        if kind is not None:
            return _Found(kind, str(value), loaded)
    return None


def _kind(
    signer: str, common_name: str | bytes, loaded: x509.CertificateSigningRequest
) -> Kind | None:
    is_node = isinstance(common_name, str) and common_name.startswith(NODE_USER_PREFIX)
    if signer == SERVING_SIGNER:
        if common_name == SERVER_NAME:
            return Kind.SERVING
        # The same signer issues the certificates of all kubelets, which do not contain the API's
        # names.
        return Kind.HUB_SERVING if is_node and _names_the_api(loaded) else None
    if common_name == KUBELET_CLIENT_NAME:
        return Kind.PROXY_CLIENT
    if is_node:
        return Kind.HUB if _is_of_hub(loaded.subject) else None
    is_agent = isinstance(common_name, str) and common_name.startswith(AGENT_NAME_PREFIX)
    return Kind.AGENT if is_agent else None


def _is_of_hub(subject: x509.Name) -> bool:
    found = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return any(each.value == HUB_ORGANIZATION for each in found)


def _names_the_api(loaded: x509.CertificateSigningRequest) -> bool:
    try:
        hosts, _ = _alternative_names(loaded)
    except _Malformed:
        return False
    return not set(HUB_NAMES).isdisjoint(hosts)


def _load(request: object) -> x509.CertificateSigningRequest:
    """Decode ``spec.request``: base64 of PEM of DER; raises ``ValueError``."""
    if not isinstance(request, str) or len(request) > MAX_REQUEST:
        raise ValueError("the request is not text, or is too long for one of the tunnel")
    try:
        match = _PEM.fullmatch(base64.b64decode(request, validate=True))
        if match is None:
            raise ValueError("the request is not one block of PEM")
        der = base64.b64decode(b"".join(match[1].split()), validate=True)
    except binascii.Error as error:
        raise ValueError("the request is not base64") from error
    try:
        return x509.load_der_x509_csr(der)
    except x509.InvalidVersion as error:
        raise ValueError("the request has an unknown version") from error


def _organizations(subject: x509.Name, several: bool) -> tuple[str, ...]:
    """Return the organizations of a subject that has one common name and nothing else.

    There must be exactly one, or with ``several`` at least one.
    """
    organizations, names = [], 0
    for attribute in subject:
        if attribute.oid == NameOID.ORGANIZATION_NAME:
            organizations.append(str(attribute.value))
        elif attribute.oid == NameOID.COMMON_NAME:
            names += 1
        else:
            raise _Malformed(f"its subject has {attribute.oid.dotted_string}")
    if names != 1:
        raise _Malformed(f"its subject has {names} common names, and must have one")
    if len(organizations) != 1 and not (several and organizations):
        raise _Malformed(f"its subject has {len(organizations)} organizations, and must have one")
    return tuple(organizations)


def _alternative_names(
    loaded: x509.CertificateSigningRequest,
) -> tuple[tuple[str, ...], tuple[Address, ...]]:
    try:
        attributes = [attribute.oid for attribute in loaded.attributes]
        extensions = list(loaded.extensions)
    except (ValueError, TypeError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise _Malformed("its attributes or extensions are malformed") from None
    if attributes not in ([], [_EXTENSION_REQUEST]):
        raise _Malformed("it has attributes other than one with the requested extensions")
    hosts: list[str] = []
    addresses: list[Address] = []
    for extension in extensions:
        if not isinstance(extension.value, x509.SubjectAlternativeName):
            raise _Malformed(
                f"it requests the extension {extension.oid.dotted_string}; only alternative names"
                " are allowed"
            )
        for name in extension.value:
            if isinstance(name, x509.DNSName) and _is_host(name.value):
                hosts.append(name.value)
            elif isinstance(name, x509.IPAddress) and isinstance(name.value, Address):
                addresses.append(canonical_address(name.value))
            else:
                raise _Malformed(
                    f"it requests the name {str(name.value)[:100]!r}; only host names and"
                    " addresses are allowed"
                )
    return tuple(hosts), tuple(addresses)


def _is_host(name: str) -> bool:
    return len(name) <= _LONGEST_HOST and _HOST.fullmatch(name) is not None


def _key_fault(loaded: x509.CertificateSigningRequest) -> str:
    try:
        key_of_request(loaded.public_bytes(Encoding.PEM).decode("ascii"))
    except BadRequest as error:
        return str(error)
    return ""


def _extra(extra: object) -> dict[str, tuple[str, ...]]:
    return {str(key): tuple(_texts(values)) for key, values in mapping(extra).items()}


def _texts(values: object) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []
