"""Discovery of a cluster's authorities with only a bootstrap token, as kubeadm does it.

The ConfigMap ``cluster-info`` in ``kube-public`` is readable without authentication. It contains a
kubeconfig with the cluster's authorities, and a signature of it for each token (RFC 7515, appendix
F), which proves to holders of the token that another holder has signed it. All joining nodes share
a token, so pins of the authorities' keys are stronger: with pins, only a pinned authority is
trusted to verify the API's certificate, and the ConfigMap is then read once more over the verified
connection and must be the same. See "Token discovery with CA pinning" of kubeadm's documentation,
and cmd/kubeadm/app/discovery/token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint

from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.kube.endpoints import CONNECT_SECONDS, address_of
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.resources import CONFIG_MAPS, Object
from yurttunnel.pki.authorities import Authorities
from yurttunnel.pki.contexts import UnverifiedConnections
from yurttunnel.pki.credentials import (
    BadCredentials,
    certificates_from_pem,
    certificates_to_pem,
    pin_of,
)
from yurttunnel.tunnel.named_endpoint import named_endpoint
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.tls import TLSEndpoint

NAMESPACE, NAME = "kube-public", "cluster-info"
_SIGNATURE_PREFIX = "jws-kubeconfig-"
_PIN = re.compile("sha256:([0-9a-f]{64})", re.IGNORECASE)
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})", re.ASCII)


class DiscoveryFailed(Exception):
    """The authorities were not found or are not trusted; one line describes why."""


class BadBootstrapToken(ValueError):
    """A text that is not a bootstrap token; the message does not repeat it."""


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """A bootstrap token ("Authenticating with Bootstrap Tokens" of Kubernetes)."""

    id: str
    secret: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> BootstrapToken:
        """Read ``abcdef.0123456789abcdef``; raises :class:`BadBootstrapToken`."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise BadBootstrapToken(
                "that is not a bootstrap token: six characters, a dot and sixteen more, all of a-z"
                " and 0-9 (kubeadm token create)"
            )
        return cls(match[1], match[2])

    @property
    def bearer(self) -> str:
        """The bearer token for the API."""
        return f"{self.id}.{self.secret}"


def parse_pin(text: str) -> str:
    """Parse ``sha256:HEX``, the pin of an authority's key; return HEX as ``pin_of`` does."""
    match = _PIN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not the pin of an authority: sha256: and 64 hex digits")
    return match[1].lower()


async def discover(
    reactor: IReactor, server: str, token: BootstrapToken, pins: Collection[str], skip: int = 0
) -> Authorities:
    """Return the authorities of the cluster whose API is at the URL ``server``.

    Without ``pins``, every holder of the token is trusted. Raises :class:`DiscoveryFailed`; both
    requests have the deadline of :class:`KubeClient`, and dial the first ``skip`` addresses last.
    """
    anonymous = KubeClient(
        reactor, _anonymous_configuration(server, ()), _unverified(reactor, server, skip)
    )
    kubeconfig = _verified_kubeconfig(await _cluster_info(anonymous), token)
    authorities = _authorities_in(kubeconfig)
    pinned = [each for each in authorities if pin_of(each) in pins]
    if pins and not pinned:
        found = ", ".join(f"sha256:{pin_of(each)}" for each in authorities)
        raise DiscoveryFailed(
            f"{server}: the cluster's authority is not a pinned one, but {found}:"
            " this may be another cluster, somebody may impersonate the API, or"
            " --discovery-token-ca-cert-hash is wrong"
        )
    verified = KubeClient(
        reactor, _anonymous_configuration(server, pinned or authorities), skip=skip
    )
    if _verified_kubeconfig(await _cluster_info(verified), token) != kubeconfig:
        raise DiscoveryFailed(
            f"{server}: cluster-info differs when it is read over a verified connection: somebody"
            " may intercept the connection"
        )
    return authorities


def _anonymous_configuration(server: str, authorities: Collection[Any]) -> KubeConfiguration:
    pem = certificates_to_pem(tuple(authorities))
    return KubeConfiguration(server, "default", lambda: pem, FileCredentials())


async def _cluster_info(client: KubeClient) -> dict[str, str]:
    try:
        found: Object = await client.get(CONFIG_MAPS, NAME, NAMESPACE)
    except NotFound as error:
        raise DiscoveryFailed(
            f"{error}: kubeadm creates it (kubeadm init phase bootstrap-token); without it, use"
            " --bootstrap-file with certificate-authority-data"
        ) from None
    except (ApiError, ApiUnreachable) as error:
        raise DiscoveryFailed(str(error)) from None
    finally:
        await client.close()
    data = found.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("kubeconfig"), str):
        raise DiscoveryFailed(f"the ConfigMap {NAME} in {NAMESPACE} has no kubeconfig")
    return {key: text for key, text in data.items() if isinstance(text, str)}


def _verified_kubeconfig(data: dict[str, str], token: BootstrapToken) -> str:
    """Return the kubeconfig, if the token has signed it."""
    signature = data.get(f"{_SIGNATURE_PREFIX}{token.id}")
    if signature is None:
        raise DiscoveryFailed(
            f"the cluster does not know the bootstrap token {token.id}, or it has expired: create"
            " another one (kubeadm token create)"
        )
    kubeconfig = data["kubeconfig"]
    if not is_signed_by(kubeconfig, signature, token):
        raise DiscoveryFailed(
            f"the API's cluster-info is not signed with the bootstrap token {token.id}:"
            " the token is wrong, or somebody impersonates the API"
        )
    return kubeconfig


def is_signed_by(kubeconfig: str, signature: str, token: BootstrapToken) -> bool:
    """Return whether ``signature`` is a detached JWS (HS256) of ``kubeconfig`` by ``token``."""
    header, _, rest = signature.partition(".")
    payload, _, given = rest.partition(".")
    try:
        named = json.loads(_from_base64(header))
        mac = _from_base64(given)
        signed = f"{header}.{_to_base64(kubeconfig.encode())}".encode()
    except (ValueError, RecursionError):
        return False
    if payload or not isinstance(named, dict):
        return False
    # The algorithm is fixed; a header with another one is rejected.
    if named.get("alg") != "HS256" or named.get("kid") != token.id:
        return False
    return hmac.compare_digest(
        mac, hmac.new(token.secret.encode(), signed, hashlib.sha256).digest()
    )


def _authorities_in(kubeconfig: str) -> Authorities:
    # Imported late: the hub does not need PyYAML any more once it has its certificate.
    from yurttunnel.kube.yaml_documents import yaml_document

    try:
        cluster = yaml_document(kubeconfig)["clusters"][0]["cluster"]
        pem = base64.b64decode(cluster["certificate-authority-data"], validate=True)
        return certificates_from_pem(pem)
    except (LookupError, TypeError, ValueError, BadCredentials) as error:
        reason = " ".join(str(error).split())
        raise DiscoveryFailed(
            f"the kubeconfig in the ConfigMap {NAME} cannot be used: {reason}"
        ) from None


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _from_base64(text: str) -> bytes:
    padded = text + "=" * (-len(text) % 4)
    try:
        return base64.b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _unverified(reactor: IReactor, server: str, skip: int) -> IStreamClientEndpoint:
    """Return an endpoint for an API over TLS without verification.

    It is for data that is authenticated by its signature.
    """
    host, port = address_of(server)
    tcp = named_endpoint(reactor, host, port, CONNECT_SECONDS, lambda: skip)
    return TLSEndpoint(reactor, UnverifiedConnections(host, b"http/1.1"), tcp)
